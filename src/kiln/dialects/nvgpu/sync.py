"""Barriers of a CTA and of a warp, and fences."""

from ...hardware.limits import BARRIERS, THREADS_PER_BLOCK, WARP
from ...ptx.sync import FENCES
from ..declaration import Build, Operand
from ..definition import I32, constant, one_of
from .dialect import CuteNvgpu


def _wrong_barrier(op: "Barrier | BarrierArrive", least: int) -> str:
    which = constant(op.id)
    threads = constant(op.threads)
    if which is not None and not 0 <= which < BARRIERS:
        return f"is of barrier {which}: a block has the barriers 0 to {BARRIERS - 1}"
    if threads is not None and (threads % WARP or not least <= threads <= THREADS_PER_BLOCK):
        return f"is for {threads} threads: a multiple of {WARP} from {max(least, WARP)} to {THREADS_PER_BLOCK}"
    return ""


class Barrier(CuteNvgpu.Operation, name="barrier", orders="cta", converged="warp", waits=True):
    """Wait at barrier `id` (0 to 15) of the block until `threads` threads, a multiple of 32, have arrived there.

    `threads` 0 means all threads of the block that have not exited. What any of them wrote to memory before is visible
    to all of them after. All threads of a warp arrive together.
    """

    id: Operand[I32]
    threads: Operand[I32]

    def check(self) -> str:
        return _wrong_barrier(self, least=0)


barrier: Build = Barrier.build


class BarrierArrive(CuteNvgpu.Operation, name="barrier_arrive", orders="cta", converged="warp"):
    """Arrive at a barrier as `barrier` does, without waiting. `threads` is not 0."""

    id: Operand[I32]
    threads: Operand[I32]

    def check(self) -> str:
        return _wrong_barrier(self, least=1)


barrier_arrive: Build = BarrierArrive.build


class SyncWarp(CuteNvgpu.Operation, name="sync_warp", orders="warp", converged="mask", waits=True):
    """Wait until the threads of the warp whose bits are set in `mask` are here; orders their memory accesses."""

    mask: Operand[I32]

    def check(self) -> str:
        return "has an empty mask: it has the bit of each thread that waits" if constant(self.mask) == 0 else ""


sync_warp: Build = SyncWarp.build


class Fence(CuteNvgpu.Operation, name="fence", orders="accesses"):
    """Order memory accesses of this thread; `kind` is the PTX name of the fence without `fence.`."""

    kind: one_of(*FENCES)


fence: Build = Fence.build
