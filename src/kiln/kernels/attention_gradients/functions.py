"""The gradients of attention, computed block by block without ever storing the scores."""

from __future__ import annotations

from typing import Any

from .. import devices
from ..attentions.forward import Lengths
from ..attentions.functions import Asked, _as_rows, _check_rows
from ..attentions.problem import MOST_LAYERS
from ..common import arrays
from ..common.calls import cannot_repeat, kernel_function
from .implementations import FAMILY, Given
from .problem import AttentionGradient

__all__ = ["flash_attention_backward"]

_NAME = "flash_attention_backward"


@kernel_function(
    "dout", "q", "k", "v", "out", "lse", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "dq", "dk", "dv"
)  # fmt: skip
def flash_attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    deterministic: bool = True,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    plan: Any = None,
) -> tuple[Any, Any, Any]:
    """The gradients of q, k and v, given that of the outputs, `dout`, and what `flash_attention(..., return_lse=True)` gave.

    Arrays and options are those of `flash_attention`; `dq`, `dk` and `dv` are arrays for the gradients, or None. A query that sees no
    key, and a key that no query sees, has gradient 0. Sums are in f32; scores and their gradients are rounded to the type of the arrays
    before they are multiplied. The same call gives the same bits; with `deterministic=False` only nearly, which may be faster.
    """
    given = (q, k, v, None, cu_seqlens_q, cu_seqlens_k, seqused_k)
    asked = Asked(given, causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, True, None)
    _check(asked, dout, out, lse)
    made = tuple(
        _result(name, x, like, (dout, q, k, v, out, lse))
        for name, x, like in (("dq", dq, q), ("dk", dk, k), ("dv", dv, v))
    )
    if 0 in out.shape or 0 in k.shape:
        for x in made:
            arrays.fill(x, 0)
        return made
    for x in (dout, q, k, v, out, *made):
        _check_rows(x)
    lse = lse if lse.ndim == 3 else arrays.with_batch(lse)
    longest = asked.longest(), _longest_keys(asked)
    read, written = _as_rows((dout, q, k, v, out)), _as_rows(made)
    taken = Given(*read, lse, *written, Lengths(*given[4:]), longest, asked.factor, float(softcap))  # type: ignore
    FAMILY.run(AttentionGradient(asked.problem(longest[0]), deterministic), devices.current(), taken, plan)
    return made


def _check(asked: Asked, dout: Any, out: Any, lse: Any) -> None:
    """Refuse arrays that do not go together."""
    asked.check()
    require = arrays.require
    q, _, v, *_ = asked.given
    for name, x in (("dout", dout), ("out", out), ("lse", lse)):
        require(x is not None, f"{_NAME}: {name} is None")
        arrays.require_usable(x, f"{_NAME}: {name}")
        require(
            arrays.is_torch(x) == arrays.is_torch(q) and getattr(x, "device", None) == getattr(q, "device", None),
            f"{_NAME}: {name} and q are on different devices, or of different libraries",
        )
    shape = (*q.shape[:-1], v.shape[-1])
    for name, x in (("dout", dout), ("out", out)):
        require(
            tuple(x.shape) == shape and x.dtype == q.dtype,
            f"{_NAME}: {name} is {tuple(x.shape)} of {x.dtype}: it is {shape} of {q.dtype}",
        )
    queries = tuple(q.shape[:-2])
    wanted = (q.shape[-2], *queries) if len(queries) == 1 else (queries[0], q.shape[-2], queries[1])
    require(
        tuple(lse.shape) == wanted and str(lse.dtype).endswith("float32") and arrays.strides(lse)[-1] == 1,
        f"{_NAME}: lse is {tuple(lse.shape)} of {lse.dtype}: it is {wanted} of float32, contiguous, as flash_attention gives it",
    )
    require(asked.batches <= MOST_LAYERS, f"{_NAME} of {asked.batches} sequences: {MOST_LAYERS} at most")


def _longest_keys(asked: Asked) -> int:
    """Keys of the longest sequence, or more."""
    starts = asked.given[5]
    if starts is None:
        return asked.given[1].shape[1]
    if asked.max_k is not None:
        return max(1, int(asked.max_k))
    cannot_repeat("the longest sequence is looked up in the array")
    return max(1, int((starts[1:] - starts[:-1]).max()))


def _result(name: str, given: Any, like: Any, read: tuple[Any, ...]) -> Any:
    """An array for a gradient."""
    if given is None:
        return arrays.empty(like, tuple(like.shape), None)
    arrays.require_usable(given, f"{_NAME}: {name}", written=True)
    arrays.require(
        tuple(given.shape) == tuple(like.shape) and given.dtype == like.dtype,
        f"{_NAME}: {name} is {tuple(given.shape)} of {given.dtype}: it is {tuple(like.shape)} of {like.dtype}",
    )
    arrays.require(
        all(s != 0 or n == 1 for s, n in zip(arrays.strides(given), given.shape, strict=True)) or 0 in given.shape,
        f"{_NAME}: {name} has strides {arrays.strides(given)}: its elements lie apart",
    )
    arrays.require(
        not any(arrays.overlap(given, x) for x in read),
        f"{_NAME}: {name} has memory in common with an array that is read after parts of it are written",
        hint="another array",
    )
    return given
