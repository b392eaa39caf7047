"""Layers of PyTorch on the kernel library: they drop into a model, train, and compile.

Their functions are operators `kiln::...` (`kiln.torch.op`). Weights have the shapes and names of `torch.nn`, so state dicts are exchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import kernels
from .torch.operators import Operator

__all__ = [
    "CrossEntropyLoss",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "attention",
    "cross_entropy",
    "layer_norm",
    "linear",
    "rms_norm",
    "softmax",
]


def _like(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _of(x: Tensor, other: Tensor | None) -> Tensor:
    """Room for the gradient of an optional input: empty without one."""
    return x.new_empty(0) if other is None else other.new_empty(other.shape)


def _or_empty(x: Tensor, gradient: Tensor | None) -> Tensor:
    return x.new_empty(0) if gradient is None else gradient


def _given(gradient: Tensor, what: Tensor | None) -> Tensor | None:
    return None if what is None else gradient


# --- norms and softmax -----------------------------------------------------------------------------------------------


def _rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    return kernels.rms_norm(x.contiguous(), weight, eps=eps)


def _rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    dx, dw = kernels.rms_norm_backward(dy.contiguous(), x.contiguous(), weight, eps=eps)
    return dx, _or_empty(x, dw)


_rms_norm_gradient = Operator(
    "kiln::rms_norm_backward",
    _rms_norm_backward,
    outputs={"dx": lambda dy, x, w, e: _like(x), "dw": lambda dy, x, w, e: _of(x, w)},
)


def _rms_norm_gradients(x: Tensor, weight: Tensor | None, eps: float, dy: Tensor) -> tuple[Any, ...]:
    dx, dw = _rms_norm_gradient(dy, x, weight, eps)
    return dx, _given(dw, weight)


rms_norm = Operator(
    "kiln::rms_norm", _rms_norm, outputs={"y": _like}, backward=_rms_norm_gradients, save=("x", "weight", "eps")
)


def _layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    return kernels.layer_norm(x.contiguous(), weight, bias, eps=eps)


def _layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dw, db = kernels.layer_norm_backward(dy.contiguous(), x.contiguous(), weight, bias=bias is not None, eps=eps)
    return dx, _or_empty(x, dw), _or_empty(x, db)


_layer_norm_gradient = Operator(
    "kiln::layer_norm_backward",
    _layer_norm_backward,
    outputs={
        "dx": lambda dy, x, w, b, e: _like(x),
        "dw": lambda dy, x, w, b, e: _of(x, w),
        "db": lambda dy, x, w, b, e: _of(x, b),
    },
)


def _layer_norm_gradients(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dy: Tensor
) -> tuple[Any, ...]:
    dx, dw, db = _layer_norm_gradient(dy, x, weight, bias, eps)
    return dx, _given(dw, weight), _given(db, bias)


layer_norm = Operator(
    "kiln::layer_norm",
    _layer_norm,
    outputs={"y": _like},
    backward=_layer_norm_gradients,
    save=("x", "weight", "bias", "eps"),
)


def _softmax(x: Tensor) -> Tensor:
    return kernels.softmax(x.contiguous())


def _softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    return kernels.softmax_backward(dy.contiguous(), y.contiguous())


_softmax_gradient = Operator("kiln::softmax_backward", _softmax_backward, outputs={"dx": _like})
softmax = Operator(
    "kiln::softmax", _softmax, outputs={"y": _like}, backward=lambda y, dy: (_softmax_gradient(dy, y),), save=("y",)
)
"""Along the last axis."""


# --- linear ----------------------------------------------------------------------------------------------------------


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "") -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    y = kernels.gemm(rows, weight.T, bias=bias, activation=activation or None)
    return y.reshape(*x.shape[:-1], weight.shape[0])


def _linear_like(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _linear_gradients(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, dy: Tensor) -> tuple[Any, ...]:
    if activation:
        before = linear(x, weight, bias)
        dy = _BEFORE[activation](dy, before)
    rows, gradients = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    dx = linear(gradients, weight.T.contiguous()).reshape(x.shape)
    dw = linear(gradients.T.contiguous(), rows.T.contiguous())
    return dx, dw, None if bias is None else gradients.sum(0)


_BEFORE = {
    "relu": lambda dy, x: torch.ops.aten.threshold_backward(dy, x, 0),
    "silu": torch.ops.aten.silu_backward,
    "gelu": lambda dy, x: torch.ops.aten.gelu_backward(dy, x, approximate="tanh"),
}
"""The gradient of what an activation was applied to."""

linear = Operator(
    "kiln::linear",
    _linear,
    outputs={"y": _linear_like},
    backward=_linear_gradients,
    save=("x", "weight", "bias", "activation"),
)


# --- loss ------------------------------------------------------------------------------------------------------------


def _cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> tuple[Tensor, Tensor]:
    return kernels.cross_entropy(
        logits.contiguous(),
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        return_lse=True,
    )


def _loss_like(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: str) -> Tensor:
    return logits.new_empty(target.shape if reduction == "none" else (), dtype=torch.float32)


def _cross_entropy_backward(
    dloss: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Tensor:
    return kernels.cross_entropy_backward(
        dloss.contiguous(), logits.contiguous(), target, lse, ignore_index=ignore_index, label_smoothing=label_smoothing,
        reduction=reduction,
    )  # fmt: skip


_cross_entropy_gradient = Operator(
    "kiln::cross_entropy_backward", _cross_entropy_backward, outputs={"dx": lambda dloss, logits, *_: _like(logits)}
)


def _cross_entropy_gradients(
    logits: Tensor, target: Tensor, lse: Tensor, ignore: int, smoothing: float, reduction: str, dloss: Tensor, _: Any
) -> tuple[Any, ...]:
    return (_cross_entropy_gradient(dloss, logits, target, lse, ignore, smoothing, reduction),)


_cross_entropy_operator = Operator(
    "kiln::cross_entropy",
    _cross_entropy,
    outputs={
        "loss": _loss_like,
        "lse": lambda logits, target, *_: logits.new_empty(target.shape, dtype=torch.float32),
    },
    backward=_cross_entropy_gradients,
    save=("logits", "target", "lse", "ignore_index", "label_smoothing", "reduction"),
)


def cross_entropy(
    logits: Tensor, target: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """The loss of logits along the last axis, in f32."""
    return _cross_entropy_operator(logits, target, ignore_index, label_smoothing, reduction)[0]


# --- attention -------------------------------------------------------------------------------------------------------


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float = 0.0) -> tuple[Tensor, Tensor]:
    return kernels.flash_attention(q, k, v, causal=causal, scale=scale or None, return_lse=True)


def _attention_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return kernels.flash_attention_backward(
        dy.contiguous(), q, k, v, out, lse, causal=causal, scale=scale or None
    )  # fmt: skip


_attention_gradient = Operator(
    "kiln::attention_backward",
    _attention_backward,
    outputs={
        "dq": lambda dy, q, k, v, *_: _like(q),
        "dk": lambda dy, q, k, v, *_: _like(k),
        "dv": lambda dy, q, k, v, *_: _like(v),
    },
)


def _attention_gradients(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float, dy: Tensor, _: Any
) -> tuple[Any, ...]:
    return _attention_gradient(dy, q, k, v, out, lse, causal, scale)


_attention_operator = Operator(
    "kiln::attention",
    _attention,
    outputs={
        "out": lambda q, k, v, c, s: q.new_empty((*q.shape[:-1], v.shape[-1])),
        "lse": lambda q, k, v, c, s: q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32),
    },
    backward=_attention_gradients,
    save=("q", "k", "v", "out", "lse", "causal", "scale"),
)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """softmax(scale * q k^T) v: (batch, tokens, heads, D) each, f16 or bf16; fewer heads of keys than of queries serve several each."""
    return _attention_operator(q, k, v, causal, scale or 0.0)[0]


# --- modules ---------------------------------------------------------------------------------------------------------


class Linear(nn.Linear):
    """`torch.nn.Linear`, with an activation ("relu", "silu" or "gelu" by tanh) in the same kernel."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, activation: str = "", **options: Any
    ) -> None:
        super().__init__(in_features, out_features, bias, **options)
        if activation and activation not in _BEFORE:
            raise ValueError(f"Linear(activation={activation!r}): one of {', '.join(_BEFORE)}")
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", activation={self.activation}" if self.activation else "")


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` along the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, torch.finfo(x.dtype).eps if self.eps is None else self.eps)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` along the last axis."""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias, self.eps)


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` of logits along the last axis."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(
            input,
            target,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )
