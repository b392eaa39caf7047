"""The gradients of attention, computed block by block without ever storing the scores."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...dispatch import arrays, devices
from ...dispatch.recorder import cannot_repeat, kernel_function
from .bwd.implementations import REGISTRY, Given
from .bwd.preprocess import Sinks
from .bwd.problem import AttentionBackwardProblem
from .bwd.score_mod import check_gradient
from .flash_attention import Asked, _as_rows, _check_rows
from .fwd.sm80 import Lengths
from .problem import MAX_GRID_Z

__all__ = ["flash_attention_backward"]

_NAME = "flash_attention_backward"


@kernel_function(
    "dout", "q", "k", "v", "out", "lse", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "alibi_slopes", "sinks", "dq", "dk", "dv",
    "dsinks", written=("dq", "dk", "dv", "dsinks"),
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
    alibi_slopes: Any = None,
    score: Any = None,
    score_gradient: Any = None,
    sinks: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    deterministic: bool = True,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    dsinks: Any = None,
    config: Any = None,
) -> tuple[Any, ...]:
    """The gradients of q, k and v, and of `sinks` if there are any, given that of the outputs, `dout`, and what
    `flash_attention(..., return_lse=True)` gave.

    Arrays and options are those of `flash_attention`; `dq`, `dk`, `dv` and `dsinks` are arrays for the gradients, or None. With a function
    `score`, `score_gradient(s, b, h, q, k)` is its derivative at s: 1.0 where something is added to s. A query that sees no
    key, and a key that no query sees, has gradient 0. Sums are in f32; scores and their gradients are rounded to the type of the arrays
    before they are multiplied. `max_seqlen_q` and `max_seqlen_k` are at least the queries and keys of the longest of sequences that lie one after
    another, as frameworks know them, and save looking that up: what a sequence has beyond them gets no gradients. The same
    call gives the same bits; with `deterministic=False` only nearly, which may be faster.
    """
    given = (q, k, v, None, cu_seqlens_q, cu_seqlens_k, seqused_k, None, alibi_slopes, sinks)
    functions = check_gradient(score, score_gradient)
    asked = Asked(given, causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, True, None, score)
    _check(asked, dout, out, lse)
    read = (dout, q, k, v, out, lse, *(x for x in (alibi_slopes, sinks) if x is not None))
    wanted = (("dq", dq, q), ("dk", dk, k), ("dv", dv, v), ("dsinks", dsinks, sinks))
    arrays.require(sinks is not None or dsinks is None, f"{_NAME} with dsinks and without sinks")
    made = tuple(_result(name, x, like, read) for name, x, like in wanted if like is not None)
    if 0 in out.shape or 0 in k.shape:
        for x in made:
            arrays.fill(x, 0)
        return made
    for x in (dout, q, k, v, out, *made[:3]):
        _check_rows(x)
    lse = lse if lse.ndim == 3 else arrays.with_batch(lse)
    longest = asked.longest(), _longest_keys(asked)
    rows, written = _as_rows((dout, q, k, v, out)), _as_rows(made[:3])
    if alibi_slopes is not None and alibi_slopes.ndim == 1:
        alibi_slopes = arrays.with_batch(alibi_slopes)
    ends = Sinks(sinks, made[3]) if sinks is not None else None
    taken = Given(*rows, lse, *written, Lengths(*given[4:7]), longest, asked.factor, float(softcap), alibi_slopes, ends)  # type: ignore
    of = asked.problem(longest[0])
    if cu_seqlens_k is None:
        of = dataclasses.replace(of, seqlen_k=longest[1])  # that there are gradients of, whatever max_seqlen_k says
    problem = AttentionBackwardProblem(of, deterministic, functions)
    REGISTRY.run(problem, devices.current(), taken, config)
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
    require(asked.batches <= MAX_GRID_Z, f"{_NAME} of {asked.batches} sequences: {MAX_GRID_Z} at most")


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
        not any(arrays.overlap(given, x) for x in read),
        f"{_NAME}: {name} has memory in common with an array that is read after parts of it are written",
        hint="another array",
    )
    return given
