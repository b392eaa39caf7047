"""The implementation of rotary embeddings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64
from ...dispatch import devices, launches
from ...dispatch.registry import MemoryBound, Registry
from .config import RopeConfig
from .kernel import RopeKernel, RopeSpecialisation

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .problem import RopeProblem

REGISTRY = Registry("rotary_embedding")


class RopeArguments(NamedTuple):
    """The arrays of a rotary embedding, and the position of the first token where there is no array of positions."""

    x: Any
    out: Any
    cos: Any
    sin: Any
    index: Any = None
    first: int = 0


@REGISTRY.register
class RotatedPairs(MemoryBound):
    """A thread rotates neighbouring pairs in some heads of a token."""

    config = RopeConfig
    tried = {"threads": (128, 256, 512), "heads": (1, 2, 4, 8)}

    def supports(self, problem: RopeProblem, device: Device) -> str | None:
        if problem.x.shape[0] * problem.x.shape[1] >= 1 << 31:
            return f"{problem.x.shape[0]} sequences of {problem.x.shape[1]} tokens: more than 32 bits count"
        return None

    def run(self, problem: RopeProblem, config: RopeConfig, args: RopeArguments) -> None:
        batch, tokens, heads, head_dim = problem.x.shape
        index = problem.index
        types = tuple(None if x is None else x.dtype for x in (problem.x, problem.out, problem.cos, problem.sin, index))
        spec = RopeSpecialisation(
            types,
            0 if index is None else len(index.shape),
            heads,
            head_dim,
            problem.pairs,
            problem.width,
            problem.interleaved,
            problem.conjugate,
            problem.in_place,
            devices.current().overlaps,
            config,
        )
        threads = batch * tokens * spec.head_groups * spec.group_threads
        if threads + config.threads >= 1 << 31:
            spec = dataclasses.replace(spec, wide=True)
        strides = [*problem.x.strides[:3], *problem.out.strides[:3], problem.cos.strides[0], problem.sin.strides[0]]
        strides += [0, 0] if index is None else [*index.strides, 0][:2]
        operands = [args.x, args.out, args.cos, args.sin, *([] if index is None else [args.index])]
        launches.launch(
            launches.cached_kernel(RopeKernel, spec),
            operands,
            Int32(batch),
            Int32(tokens),
            Int32(problem.cos.shape[0]),
            Int64(args.first),
            tuple(map(Int64, strides)),
            Int32(-(-threads // config.threads)),
        )
