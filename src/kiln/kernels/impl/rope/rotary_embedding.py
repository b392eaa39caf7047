"""`rotary_embedding`."""

from __future__ import annotations

from typing import Any

from ...dispatch import arrays, devices
from ...dispatch.arrays import AnyArray
from ...dispatch.recorder import kernel_function
from .implementations import REGISTRY, RopeArguments
from .problem import RopeProblem

__all__ = ["rotary_embedding"]


@kernel_function("x", "cos", "sin", "out", other_arrays=("seqlen_offsets", "positions"), may_overlap=("x",))
def rotary_embedding(
    x: AnyArray,
    cos: Any,
    sin: Any,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Any = 0,
    *,
    positions: Any = None,
    conjugate: bool = False,
    out: Any = None,
    config: Any = None,
) -> AnyArray:
    """Turn pairs of elements of each head by the angles of its token's position (RoPE), computed in f32.

    Args:
        x: (batch, tokens, heads, D) or (tokens, heads, D), contiguous along D.
        cos: (positions, pairs), with at most D / 2 pairs: elements behind them stay as they are.
        sin: the same for sines.
        interleaved: pairs are neighbours; by default the first half of what is turned goes with the second.
        inplace: write the result to `x`.
        seqlen_offsets: what is added to a token's number for its position: a number, or an array of one for each
            sequence.
        positions: an array with the position of each token instead. Positions outside of the table are taken as the
            nearest inside.
        conjugate: turn back, which is also the gradient.
        out: an array for the result.
        config: a config of the implementation; by default the library chooses.
    """
    arrays.require(x.ndim in (3, 4), f"rotary_embedding of shape {tuple(x.shape)}", hint="(batch, tokens, heads, D)")
    arrays.require(
        not (inplace and out is not None), "rotary_embedding: inplace is True, and out is passed", hint="one of them"
    )
    if out is None:
        out = x if inplace else arrays.empty(x, tuple(x.shape), None)
    index = positions
    first = 0
    if arrays.is_array(seqlen_offsets) and not arrays.is_number(seqlen_offsets):
        arrays.require(positions is None, "rotary_embedding of positions and of seqlen_offsets", hint="one of them")
        index = seqlen_offsets
    else:
        first = int(seqlen_offsets)
        arrays.require(
            positions is None or first == 0, "rotary_embedding of positions and of seqlen_offsets", hint="one of them"
        )
    source, target = (arrays.with_batch(t) if t.ndim == 3 else t for t in (x, out))
    if positions is not None:
        arrays.require(
            tuple(positions.shape) in (tuple(x.shape[:-2]), tuple(source.shape[1:2])),
            f"rotary_embedding: positions of shape {tuple(positions.shape)} for {tuple(x.shape)}",
            hint=f"one for each token: {tuple(x.shape[:-2])}",
        )
        index = arrays.broadcast_to(positions, tuple(source.shape[:2]))
    for tensor in (source, cos, sin, *([] if index is None else [index])):
        arrays.require_usable(tensor, "an array of rotary_embedding")
    arrays.require_usable(target, "out", written=True)
    if inplace:
        arrays.require_distinct_elements(x, "rotary_embedding in place: x")
        for name, tensor in (("cos", cos), ("sin", sin), ("positions", index)):
            arrays.require(
                tensor is None or not arrays.overlap(x, tensor),
                f"rotary_embedding in place: x has memory in common with {name}, which is read after parts of x are written",
                hint="an array of its own",
            )
    layouts = [None if t is None else arrays.layout_of(t) for t in (source, target, cos, sin, index)]
    problem = RopeProblem(*layouts, bool(interleaved), bool(conjugate), bool(inplace))  # type: ignore[arg-type]
    arrays.require(0 in x.shape or cos.shape[0] > 0, "rotary_embedding with a table of no positions")
    if 0 not in x.shape:
        REGISTRY.run(problem, devices.current(), RopeArguments(source, target, cos, sin, index, first), config)
    return out
