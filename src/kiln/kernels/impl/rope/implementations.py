"""The implementation of rotary embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64
from ...dispatch import devices, launches
from ...dispatch.registry import MemoryBound, Registry, variants
from .config import RopeConfig
from .kernel import RopeKernel, RopeSpecialisation

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    def supports(self, problem: RopeProblem, device: Device) -> str | None:
        if problem.x.shape[0] * problem.x.shape[1] >= 1 << 31:
            return f"{problem.x.shape[0]} sequences of {problem.x.shape[1]} tokens: more than 32 bits count"
        return None

    def configs(self, problem: RopeProblem, device: Device) -> Iterator[RopeConfig]:
        return variants(RopeConfig(), RopeConfig.check, threads=(128, 256, 512), heads=(1, 2, 4, 8))

    def check(self, problem: RopeProblem, config: RopeConfig, device: Device) -> None:
        config.check()

    def run(self, problem: RopeProblem, config: RopeConfig, given: RopeArguments) -> None:
        (batch, tokens, heads, size), index = problem.x.shape, problem.index
        laid = (problem.x, problem.out, problem.cos, problem.sin)

        def made(wide: bool) -> Any:
            return launches.cached_kernel(
                RopeKernel,
                RopeSpecialisation(
                    (*(x.dtype for x in laid), None if index is None else index.dtype), 0 if index is None else len(index.shape),
                    heads, size, problem.pairs, problem.width, problem.interleaved, problem.conjugate, problem.in_place, wide,
                    devices.current().overlaps, config,
                ),
            )  # fmt: skip

        kernel = made(False)
        threads = batch * tokens * kernel.groups * kernel.chunks
        if threads + config.threads >= 1 << 31:
            kernel = made(True)
        steps = [*problem.x.strides[:3], *problem.out.strides[:3], problem.cos.strides[0], problem.sin.strides[0]]
        steps += [0, 0] if index is None else [*index.strides, 0][:2]
        taken = [given.x, given.out, given.cos, given.sin, *([] if index is None else [given.index])]
        launches.launcher(
            kernel, taken, Int32(batch), Int32(tokens), Int32(problem.cos.shape[0]), Int64(given.first),
            tuple(map(Int64, steps)), Int32(-(-threads // config.threads)),
        )(taken)  # fmt: skip
