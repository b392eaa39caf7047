"""`flash_attention_backward`: dQ, dK and dV of attention, tile by tile, without storing the scores."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...dispatch import arrays, devices
from ...dispatch.recorder import kernel_function
from .args import (
    AttentionArguments,
    AttentionParams,
    as_4d,
    check_aligned,
    check_array,
    check_arrays,
    longest,
    lse_shape,
)
from .bwd.implementations import REGISTRY, BackwardArguments, BackwardArrays
from .bwd.problem import AttentionBackwardProblem
from .problem import ELEMENTS, MAX_GRID_Z
from .score_mod import check_score_mod_gradient

__all__ = ["flash_attention_backward"]

_NAME = "flash_attention_backward"


@kernel_function(
    "dout",
    "q",
    "k",
    "v",
    "out",
    "lse",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_k",
    "alibi_slopes",
    "sinks",
    "dq",
    "dk",
    "dv",
    "dsinks",
    written=("dq", "dk", "dv", "dsinks"),
)
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
    """Return the gradients of q, k and v, and of `sinks` if there are any.

    A query that sees no key, and a key that no query sees, has gradient 0. Accumulators are f32; P and dS are rounded
    to the type of the arrays before they are multiplied.

    Args:
        dout: the gradient of the output.
        q: queries, as passed to `flash_attention`.
        k: keys, as passed to `flash_attention`.
        v: values, as passed to `flash_attention`.
        out: the output of `flash_attention`.
        lse: its log-sum-exp, from `return_lse=True`.
        causal: as passed to `flash_attention`.
        window: as passed to `flash_attention`.
        scale: as passed to `flash_attention`.
        softcap: as passed to `flash_attention`.
        alibi_slopes: as passed to `flash_attention`; it has no gradient.
        score: as passed to `flash_attention`.
        score_gradient: the derivative of `score` at s, a function of the same arguments: 1.0 where something is added
            to s.
        sinks: as passed to `flash_attention`.
        cu_seqlens_q: as passed to `flash_attention`.
        cu_seqlens_k: as passed to `flash_attention`.
        seqused_k: as passed to `flash_attention`.
        max_seqlen_q: at least the queries of the longest varlen sequence; saves looking it up. Rows beyond get no
            gradients.
        max_seqlen_k: likewise for keys.
        deterministic: equal calls give equal bits; False may be faster.
        dq: an array for the gradient of q, or None.
        dk: an array for the gradient of k, or None.
        dv: an array for the gradient of v, or None.
        dsinks: an array for the gradient of the sinks, or None.
        config: a config of an implementation; by default the library chooses.
    """
    functions = check_score_mod_gradient(score, score_gradient)
    params = AttentionParams(
        causal,
        window,
        scale,
        softcap,
        score,
        alibi_slopes,
        sinks,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_k=seqused_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
    )
    args = AttentionArguments(q, k, v, None, lse, params, _NAME)
    _check(args, dout, out, lse)
    read = (dout, q, k, v, out, lse, *(x for x in (alibi_slopes, sinks) if x is not None))
    arrays.require(sinks is not None or dsinks is None, f"{_NAME}: dsinks is given without sinks")
    dq, dk, dv, dsinks = (
        _gradient(name, x, like, read)
        for name, x, like in (("dq", dq, q), ("dk", dk, k), ("dv", dv, v), ("dsinks", dsinks, sinks))
    )
    results = (dq, dk, dv) if dsinks is None else (dq, dk, dv, dsinks)
    if 0 in out.shape or 0 in k.shape:
        for x in results:
            arrays.fill(x, 0)
        return results
    for label, x in (("dout", dout), ("q", q), ("k", k), ("v", v), ("out", out), ("dq", dq), ("dk", dk), ("dv", dv)):
        check_aligned(_NAME, label, x)
    longest_k = longest(cu_seqlens_k, max_seqlen_k, k)
    lse = lse if lse.ndim == 3 else arrays.with_batch(lse)
    args = dataclasses.replace(args, out=out, lse=lse).as_4d()
    attention = args.problem(args.longest_q())
    if cu_seqlens_k is None:  # there are gradients of all keys, whatever max_seqlen_k says
        attention = dataclasses.replace(attention, seqlen_k=longest_k)
    problem = AttentionBackwardProblem(attention, deterministic, functions)
    x = BackwardArrays(as_4d(dout), args.q, args.k, args.v, args.out, lse, as_4d(dq), as_4d(dk), as_4d(dv), dsinks)
    REGISTRY.run(problem, devices.current(), BackwardArguments(args, x, longest_k), config)
    return results


def _check(args: AttentionArguments, dout: Any, out: Any, lse: Any) -> None:
    """Raise if arrays do not fit together."""
    args.check(ELEMENTS)
    check_arrays(_NAME, {"q": args.q, "dout": dout, "out": out, "lse": lse}, set(), written=())
    shape = (*args.q.shape[:-1], args.v.shape[-1])
    require = arrays.require
    for label, x in (("dout", dout), ("out", out)):
        require(
            tuple(x.shape) == shape and x.dtype == args.q.dtype,
            f"{_NAME}: {label} is {x.dtype} of shape {tuple(x.shape)}; it must be {args.q.dtype} of shape {shape}",
        )
    check_array(_NAME, "lse", lse, "float32", lse_shape(args.q), note=", as flash_attention returns it")
    require(args.batch <= MAX_GRID_Z, f"{_NAME}: there are {args.batch} sequences; a call takes at most {MAX_GRID_Z}")


def _gradient(name: str, x: Any, like: Any, read: tuple[Any, ...]) -> Any:
    """Return the array for the gradient of `like`, a new one if none is given; None if `like` is None."""
    if like is None:
        return None
    if x is None:
        return arrays.empty(like, tuple(like.shape), None)
    arrays.require_usable(x, f"{_NAME}: {name}", written=True)
    arrays.require(
        tuple(x.shape) == tuple(like.shape) and x.dtype == like.dtype,
        f"{_NAME}: {name} is {x.dtype} of shape {tuple(x.shape)}; it must be {like.dtype} of shape {tuple(like.shape)}",
    )
    arrays.require(
        not any(arrays.overlap(x, y) for y in read),
        f"{_NAME}: {name} shares memory with an array that is read after parts of it are written",
        hint="pass another array",
    )
    return x
