"""Layers of PyTorch on the kernel library, which drop into a model, train, and compile.

Their functions are operators `kiln::...` (`kiln.torch.op`). Weights have the shapes and names of `torch.nn`, so state
dicts can be exchanged. Floating-point inputs are f16, bf16 or f32; those of attention are f16 or bf16, also by
`torch.autocast`.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ._support import lazy
from .base_dsl import packages
from .base_dsl.diagnostics import DSLBaseError

try:
    packages.load("torch")
except ModuleNotFoundError:
    raise ModuleNotFoundError("kiln.nn needs PyTorch: pip install 'kiln-dsl[torch]'", name="torch") from None

import torch
from torch import Tensor, nn

from . import kernels
from .interop.torch.operators import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__dir__ = lazy.listing(__name__)
__all__ = [
    "CrossEntropyLoss",
    "LayerNorm",
    "Linear",
    "MultiheadAttention",
    "RMSNorm",
    "attention",
    "cross_entropy",
    "fused_add_layer_norm",
    "fused_add_rms_norm",
    "geglu",
    "layer_norm",
    "linear",
    "rms_norm",
    "rotary_embedding",
    "softmax",
    "swiglu",
]


_P = ParamSpec("_P")
_R = TypeVar("_R")
_Function = TypeVar("_Function", bound="Callable[..., Any]")
_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32)


def _wrong_type(layer: str, taken: Sequence[torch.dtype], **inputs: Any) -> Exception | None:
    """Return the error for the first input whose type a layer does not take; None if there is none."""
    for name, x in inputs.items():
        if isinstance(x, Tensor) and x.dtype not in taken:
            rule = ", ".join(map(str, taken[:-1])) + f" or {taken[-1]}"
            autocast = f", or call it under torch.autocast({x.device.type!r}, torch.bfloat16)"
            return RuntimeError(
                f"kiln.nn.{layer}: {name} is {x.dtype}; it must be {rule}\n"
                f"help: convert the layer and its inputs: .to({taken[-1]})" + (autocast if taken is _HALVES else "")
            )
    return None


def _takes(taken: Sequence[torch.dtype], *, names: str, alike: int = 0) -> Callable[[_Function], _Function]:
    """Decorate the function of an operator: where it fails, the error tells which types the inputs `names` must have.

    The first `alike` of them are of one type.
    """

    def decorate(function: Any) -> Any:
        parameters = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except DSLBaseError:
                inputs = dict(zip(parameters, args))
                checked = {name: inputs[name] for name in names.split() if name in inputs}
                layer = function.__name__.removeprefix("_")
                wrong = _wrong_type(layer, taken, **checked)
                kinds = {name: x.dtype for name, x in list(checked.items())[:alike] if isinstance(x, Tensor)}
                if wrong is None and len(set(kinds.values())) > 1:
                    types = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
                    wrong = RuntimeError(f"kiln.nn.{layer}: {types}; they must be of one type")
                if wrong is None:
                    raise
                raise wrong from None

        return call

    return decorate


def _like(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _like_input(place: int) -> Any:
    """Return a function of inputs that makes a tensor like one of them; an empty one if that is None."""
    return lambda *inputs: inputs[0].new_empty(0) if inputs[place] is None else _like(inputs[place])


def _or_empty(x: Tensor, gradient: Tensor | None) -> Tensor:
    return x.new_empty(0) if gradient is None else gradient


def _backward_operator(name: str, function: Any, gradients: Mapping[str, str]) -> Operator[..., Any]:
    """Make an operator of gradients, each like the input that it is named with.

    The gradient of an input that is None is empty.
    """
    names = list(inspect.signature(function).parameters)
    outputs = {gradient: _like_input(names.index(like)) for gradient, like in gradients.items()}
    return Operator(f"kiln::{name}", function, outputs=outputs)


def _differentiable(
    forward: Callable[_P, _R],
    backward: Any,
    outputs: Mapping[str, Any],
    saved_names: str,
    gradients: Mapping[str, str],
    returns: Sequence[str] = (),
) -> Operator[_P, _R]:
    """Make `forward` an operator with a gradient, `backward(*output_gradients, *saved)`.

    `saved_names` are the inputs and outputs of `forward` that `backward` takes, separated by spaces. `gradients` names
    the results of `backward` and the parameter that each is like; `returns` are those of the tensor inputs of `forward`
    in order, by default all. The gradient of an optional input that was not passed is None.
    """
    name = forward.__name__.removeprefix("_")
    save = saved_names.split()
    operator = _backward_operator(f"{name}_backward", backward, gradients)
    names = list(inspect.signature(backward).parameters)
    passed = len(names) - len(save)
    order = [list(gradients).index(gradient) for gradient in returns or gradients]
    places = [names.index(like) for like in gradients.values()]

    def backward_of(*saved_and_gradients: object) -> tuple[Any, ...]:
        saved = saved_and_gradients[: len(save)]
        output_gradients = saved_and_gradients[len(save) :]
        inputs = (*output_gradients[:passed], *saved)
        results = operator(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        gradients = [None if inputs[place] is None else result for place, result in zip(places, results)]
        return tuple(gradients[number] for number in order)

    return Operator(f"kiln::{name}", forward, outputs=outputs, backward=backward_of, save=save)


# --- norms and softmax -----------------------------------------------------------------------------------------------

_SAME = {"y": _like}
"""An output like the first input."""


@_takes(_FLOATS, names="x weight")
def _rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Return the RMSNorm of `x` along its last axis, with gradients.

    Args:
        x: (..., columns), f16, bf16 or f32.
        weight: (columns,), a factor of each column, or None.
        eps: what is added to the mean square.
    """
    return kernels.rms_norm(x.contiguous(), weight, eps=eps)


def _rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    dx, dw = kernels.rms_norm_backward(dy.contiguous(), x.contiguous(), weight, eps=eps)
    return dx, _or_empty(x, dw)


rms_norm = _differentiable(_rms_norm, _rms_norm_backward, _SAME, "x weight eps", {"dx": "x", "dw": "weight"})
"""RMSNorm along the last axis."""


@_takes(_FLOATS, names="x weight bias")
def _layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Return the LayerNorm of `x` along its last axis, with gradients.

    Args:
        x: (..., columns), f16, bf16 or f32.
        weight: (columns,), a factor of each column, or None.
        bias: (columns,), what is added to each column, or None.
        eps: what is added to the variance.
    """
    return kernels.layer_norm(x.contiguous(), weight, bias, eps=eps)


def _layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dw, db = kernels.layer_norm_backward(dy.contiguous(), x.contiguous(), weight, bias=bias is not None, eps=eps)
    return dx, _or_empty(x, dw), _or_empty(x, db)


layer_norm = _differentiable(
    _layer_norm, _layer_norm_backward, _SAME, "x weight bias eps", {"dx": "x", "dw": "weight", "db": "bias"}
)
"""LayerNorm along the last axis."""


@_takes(_FLOATS, names="x")
def _softmax(x: Tensor) -> Tensor:
    """Return the softmax of `x` (f16, bf16 or f32) along its last axis, with a gradient."""
    return kernels.softmax(x.contiguous())


def _softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    return kernels.softmax_backward(dy.contiguous(), y.contiguous())


softmax = _differentiable(_softmax, _softmax_backward, _SAME, "y", {"dx": "dy"})
"""Softmax along the last axis."""


# --- norms with a residual, gated units, rotary embeddings -----------------------------------------------------------

_NORM_AND_SUM = {"y": _like, "summed": lambda x, residual, *_: _like(residual)}


@_takes(_FLOATS, names="x residual weight")
def _fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Return the RMSNorm of `x + residual`, and that sum, which is rounded first; with gradients.

    Args:
        x: (..., columns), f16, bf16 or f32.
        residual: what is added, of the same shape.
        weight: (columns,), a factor of each column, or None.
        eps: what is added to the mean square.
    """
    return kernels.fused_add_rms_norm(x.contiguous(), residual.contiguous(), weight, eps)  # type: ignore[return-value]


def _fused_add_rms_norm_backward(
    dy: Tensor, dsum: Tensor, summed: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    dx, dw = kernels.fused_add_rms_norm_backward(dy.contiguous(), dsum.contiguous(), summed, weight, eps)
    return dx, _or_empty(summed, dw)


fused_add_rms_norm = _differentiable(
    _fused_add_rms_norm,
    _fused_add_rms_norm_backward,
    _NORM_AND_SUM,
    "summed weight eps",
    {"dx": "summed", "dw": "weight"},
    ("dx", "dx", "dw"),
)
"""RMSNorm of x + residual, and that sum, which is rounded first."""


@_takes(_FLOATS, names="x residual weight bias")
def _fused_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Return the LayerNorm of `x + residual`, and that sum, which is rounded first; with gradients.

    Args:
        x: (..., columns), f16, bf16 or f32.
        residual: what is added, of the same shape.
        weight: (columns,), a factor of each column, or None.
        bias: (columns,), what is added to each column, or None.
        eps: what is added to the variance.
    """
    y, summed = kernels.fused_add_layer_norm(x.contiguous(), residual.contiguous(), weight, bias, eps)
    return y, summed


def _fused_add_layer_norm_backward(
    dy: Tensor, dsum: Tensor, summed: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dw, db = kernels.fused_add_layer_norm_backward(
        dy.contiguous(), dsum.contiguous(), summed, weight, eps, bias=bias is not None
    )
    return dx, _or_empty(summed, dw), _or_empty(summed, db)


fused_add_layer_norm = _differentiable(
    _fused_add_layer_norm,
    _fused_add_layer_norm_backward,
    _NORM_AND_SUM,
    "summed weight bias eps",
    {"dx": "summed", "dw": "weight", "db": "bias"},
    ("dx", "dx", "dw", "db"),
)
"""LayerNorm of x + residual, and that sum, which is rounded first."""


def _gated(name: str):
    """Make a gated activation of the kernel library an operator."""

    def forward(gate: Tensor, up: Tensor) -> Tensor:
        return getattr(kernels, name)(gate, up)

    def backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        return getattr(kernels, f"{name}_backward")(dy, gate, up)

    forward.__name__ = name
    activation = {"swiglu": "silu", "geglu": "gelu"}[name]
    forward.__doc__ = f"Return `{activation}(gate) * up` of `gate` and `up`, two tensors of one shape, with gradients."
    forward = _takes(_FLOATS, names="gate up")(forward)
    return _differentiable(forward, backward, _SAME, "gate up", {"dgate": "gate", "dup": "up"})


swiglu = _gated("swiglu")
"""silu(gate) * up."""
geglu = _gated("geglu")
"""gelu(gate) * up."""


@_takes(_FLOATS, names="x cos sin")
def _rotary_embedding(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    positions: Tensor | None = None,
    conjugate: bool = False,
) -> Tensor:
    """Turn pairs of elements of each head by the angles of its token's position (RoPE), with a gradient of `x`.

    Args:
        x: (batch, tokens, heads, head_dim) or (tokens, heads, head_dim), f16, bf16 or f32.
        cos: (positions, pairs), with at most head_dim / 2 pairs: elements behind them stay as they are.
        sin: the same for sines.
        interleaved: pairs are neighbours; by default the first half goes with the second.
        positions: the position of each token; by default its number in the sequence.
        conjugate: turn back.
    """
    return kernels.rotary_embedding(x, cos, sin, interleaved, positions=positions, conjugate=conjugate)


def _rotary_gradients(
    cos: Tensor, sin: Tensor, interleaved: bool, positions: Tensor | None, conjugate: bool, dy: Tensor
) -> tuple[Any, ...]:
    return (rotary_embedding(dy, cos, sin, interleaved, positions, not conjugate),)


rotary_embedding = Operator(
    "kiln::rotary_embedding",
    _rotary_embedding,
    outputs={"y": _like},
    backward=_rotary_gradients,
    save=("cos", "sin", "interleaved", "positions", "conjugate"),
)
"""RoPE of heads (batch, tokens, heads, head_dim) by the angles of their positions; cos and sin have no gradients."""


# --- linear ----------------------------------------------------------------------------------------------------------


@_takes(_FLOATS, names="x weight bias", alike=2)
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "") -> Tensor:
    """Return `activation(x @ weight.T + bias)`, with gradients.

    Args:
        x: (..., in_features), f16, bf16 or f32.
        weight: (out_features, in_features), of the type of `x`.
        bias: (out_features,), or None.
        activation: "relu", "silu", "gelu", or "" for none.
    """
    rows = x.reshape(-1, x.shape[-1])
    y = kernels.gemm(rows, weight.T, bias=bias, activation=activation or None)
    return y.reshape(*x.shape[:-1], weight.shape[0])


def _linear_like(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _linear_gradients(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, dy: Tensor) -> tuple[Any, ...]:
    if activation:
        before = linear(x, weight, bias)
        dy = _ACTIVATION_BACKWARD[activation](dy, before)
    rows = x.reshape(-1, x.shape[-1])
    gradients = dy.reshape(-1, dy.shape[-1])
    dx = linear(gradients, weight.T.contiguous()).reshape(x.shape)
    dw = linear(gradients.T.contiguous(), rows.T.contiguous())
    return dx, dw, None if bias is None else gradients.sum(0)


_ACTIVATION_BACKWARD = {
    "relu": lambda dy, x: torch.ops.aten.threshold_backward(dy, x, 0),
    "silu": torch.ops.aten.silu_backward,
    "gelu": torch.ops.aten.gelu_backward,
}
"""The gradient of the input of an activation."""

linear = Operator(
    "kiln::linear",
    _linear,
    outputs={"y": _linear_like},
    backward=_linear_gradients,
    save=("x", "weight", "bias", "activation"),
    autocast=True,
)
"""activation(x @ weight.T + bias)."""


# --- loss ------------------------------------------------------------------------------------------------------------


@_takes(_FLOATS, names="logits")
def _cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> tuple[Tensor, Tensor]:
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    return kernels.cross_entropy(logits.contiguous(), target, return_lse=True, **options)


def _loss_like(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: str) -> Tensor:
    return logits.new_empty(target.shape if reduction == "none" else (), dtype=torch.float32)


def _lse_like(logits: Tensor, target: Tensor, *_: object) -> Tensor:
    return logits.new_empty(target.shape, dtype=torch.float32)


def _cross_entropy_backward(
    dloss: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Tensor:
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    return kernels.cross_entropy_backward(dloss.contiguous(), logits.contiguous(), target, lse, **options)


_cross_entropy_operator = _differentiable(
    _cross_entropy,
    _cross_entropy_backward,
    {"loss": _loss_like, "lse": _lse_like},
    "logits target lse ignore_index label_smoothing reduction",
    {"dx": "logits"},
)


def cross_entropy(
    logits: Tensor, target: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return the cross-entropy of logits along the last axis, in f32, with a gradient.

    Args:
        logits: (..., classes), f16, bf16 or f32.
        target: (...), the class of each row, int32 or int64.
        ignore_index: rows of this class have loss 0 and do not count in the mean.
        label_smoothing: the part of a label that is spread evenly over all classes.
        reduction: "mean" over the rows that count, "sum", or "none" for the loss of each row.
    """
    return _cross_entropy_operator(logits, target, ignore_index, label_smoothing, reduction)[0]


# --- attention -------------------------------------------------------------------------------------------------------


def _attention_options(
    causal: bool,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    longest_q: int,
    longest_k: int,
    slopes: Tensor | None,
    sinks: Tensor | None,
) -> dict[str, Any]:
    """Return the options of `kernels.flash_attention`: 0, and -1 in a window, stand for options that are not set."""
    return {
        "causal": causal,
        "scale": scale or None,
        "softcap": softcap,
        "window": (left, right),
        "cu_seqlens_q": starts_q,
        "cu_seqlens_k": starts_k,
        "max_seqlen_q": longest_q or None,
        "max_seqlen_k": longest_k or None,
        "alibi_slopes": None if slopes is None else slopes.float(),
        "sinks": None if sinks is None else sinks.float(),
    }


@_takes(_HALVES, names="q k v", alike=3)
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float = 0.0,
    softcap: float = 0.0,
    left: int = -1,
    right: int = -1,
    starts_q: Tensor | None = None,
    starts_k: Tensor | None = None,
    longest_q: int = 0,
    longest_k: int = 0,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    options = _attention_options(
        causal, scale, softcap, left, right, starts_q, starts_k, longest_q, longest_k, slopes, sinks
    )
    return kernels.flash_attention(q, k, v, return_lse=True, **options)


def _attention_backward_with_sinks(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    longest_q: int,
    longest_k: int,
    slopes: Tensor | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = _attention_options(
        causal, scale, softcap, left, right, starts_q, starts_k, longest_q, longest_k, slopes, sinks
    )
    return kernels.flash_attention_backward(dy.contiguous(), q, k, v, out, lse, **options)  # type: ignore[return-value]


def _attention_backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    longest_q: int,
    longest_k: int,
    slopes: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _attention_backward_with_sinks(
        dy,
        q,
        k,
        v,
        out,
        lse,
        causal,
        scale,
        softcap,
        left,
        right,
        starts_q,
        starts_k,
        longest_q,
        longest_k,
        slopes,
        None,
    )  # type: ignore[return-value]


_ATTENTION_GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}
_attention_gradient = _backward_operator("attention_backward", _attention_backward, _ATTENTION_GRADIENTS)
_attention_gradient_with_sinks: Operator[..., Any] = Operator(
    "kiln::attention_backward_with_sinks",
    _attention_backward_with_sinks,
    outputs={
        **{gradient: _like_input(place) for place, gradient in enumerate(_ATTENTION_GRADIENTS, 1)},
        "dsinks": lambda dy, *rest: rest[-1].new_empty(rest[-1].shape, dtype=torch.float32),
    },
)


def _attention_gradients(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: object) -> tuple[Any, ...]:
    *options, sinks, dy, _ = rest
    if sinks is None:
        return (*_attention_gradient(dy, q, k, v, out, lse, *options), None, None, None, None)
    dq, dk, dv, dsinks = _attention_gradient_with_sinks(dy, q, k, v, out, lse, *options, sinks)
    return dq, dk, dv, None, None, None, dsinks


_attention_operator = Operator(
    "kiln::attention",
    _attention,
    outputs={
        "out": lambda q, k, v, *_: q.new_empty((*q.shape[:-1], v.shape[-1])),
        "lse": lambda q, *_: q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=torch.float32),
    },
    backward=_attention_gradients,
    save=(
        "q",
        "k",
        "v",
        "out",
        "lse",
        "causal",
        "scale",
        "softcap",
        "left",
        "right",
        "starts_q",
        "starts_k",
        "longest_q",
        "longest_k",
        "slopes",
        "sinks",
    ),
    autocast=True,
)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    window: tuple[int | None, int | None] | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return softmax(scale * q k^T) v, with gradients of q, k, v and the sinks.

    Args:
        q: queries (batch, tokens, heads, head_dim), f16 or bf16; varlen (tokens, heads, head_dim).
        k: keys, of fewer heads for GQA.
        v: values, with the heads of `k`.
        causal: hide the keys after a query; the last query is aligned with the last key.
        scale: a positive factor of the scores, by default head_dim ** -0.5.
        softcap: c > 0 makes a score s into c tanh(s / c).
        window: (left, right), the farthest visible keys on both sides; None or -1 for no limit.
        cu_seqlens_q: (batch + 1), int32, the first query of every sequence, and their number: varlen.
        cu_seqlens_k: (batch + 1), int32, the same for keys.
        max_seqlen_q: at least the queries of the longest sequence; saves computing it.
        max_seqlen_k: likewise for keys.
        alibi_slopes: (heads) or (batch, heads), f32, without a gradient.
        sinks: (heads), f32, logits of one more key for each head, which has no value.
    """
    left, right = (-1 if x is None else x for x in window or (None, None))
    return _attention_operator(
        q,
        k,
        v,
        causal,
        scale or 0.0,
        softcap,
        left,
        right,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        alibi_slopes,
        sinks,
    )[0]


# --- modules ---------------------------------------------------------------------------------------------------------


class Linear(nn.Linear):
    """`torch.nn.Linear` in f16, bf16 or f32, with an activation ("relu", "silu" or "gelu") in the same kernel."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, activation: str = "", **options: object
    ) -> None:
        super().__init__(in_features, out_features, bias, **options)
        if activation and activation not in _ACTIVATION_BACKWARD:
            names = ", ".join(_ACTIVATION_BACKWARD)
            raise ValueError(f"Linear got activation={activation!r}, which must be one of {names}")
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", activation={self.activation}" if self.activation else "")


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` along the last axis, in f16, bf16 or f32."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, torch.finfo(x.dtype).eps if self.eps is None else self.eps)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` along the last axis, in f16, bf16 or f32."""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias, self.eps)


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with the batch first, in f16 or bf16 (f32 by `torch.autocast`).

    It has no dropout, no mask but the causal one, and returns no attention weights.
    """

    def __init__(self, embed_dim: int, num_heads: int, bias: bool = True, batch_first: bool = True, **options: object):
        super().__init__(embed_dim, num_heads, bias=bias, batch_first=batch_first, **options)
        has_bias = self.bias_k is not None
        has_kdim = self.in_proj_weight is None
        if not batch_first or self.dropout or has_bias or has_kdim or self.add_zero_attn:
            others = "dropout, kdim, vdim, add_bias_kv nor add_zero_attn"
            raise ValueError(f"MultiheadAttention takes batch_first=True, and neither {others}")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: object = None,
        need_weights: bool = False,
        attn_mask: object = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Compute as torch does; an `attn_mask` with `is_causal` is taken for the causal one."""
        if need_weights or key_padding_mask is not None or (attn_mask is not None and not is_causal):
            raise ValueError(
                "MultiheadAttention has no masks but is_causal=True, and returns no weights: need_weights=False"
            )
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        projected = (linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)) for x in projected)
        wrong = _wrong_type("MultiheadAttention", _HALVES, query=q, key=k, value=v)
        if wrong is not None:
            raise wrong
        heads = attention(q, k, v, causal=is_causal)
        return linear(heads.flatten(-2), self.out_proj.weight, self.out_proj.bias), None


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` of logits (f16, bf16 or f32) along the last axis; the loss is f32."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        options = {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing}
        return cross_entropy(input, target, reduction=self.reduction, **options)
