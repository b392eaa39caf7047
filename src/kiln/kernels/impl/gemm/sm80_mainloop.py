"""The main loop of products whose threads copy and multiply in turn (`cp.async`, `mma.sync` or single multiplications).

A block of threads computes a tile of D. Tiles of A and B stream through a ring of buffers in shared memory, several steps ahead;
what a thread multiplies is loaded from there a step ahead of the multiplications. Which tile that is the scheduler says; what
becomes of the sums is the epilogue's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, Int64, const_expr, cute, range_constexpr, utils
from ....cute import arch
from ...dispatch import devices
from .smem_stages import SmemStages

if TYPE_CHECKING:
    from .operand_copies import OperandCopy
    from .problem import Operand
    from .sm80_config import Sm80GemmConfig
    from .sm80_epilogue import Sm80Epilogue
    from .tile_scheduler import Sm80TileScheduler


class MultistageGemmKernel:
    """The kernel for operands of some kinds. A subclass says how tiles are copied, lie in shared memory, and are multiplied."""

    def __init__(
        self, a: Operand, b: Operand, config: Sm80GemmConfig, scheduler: Sm80TileScheduler, epilogue: Sm80Epilogue
    ) -> None:
        self.a = a
        self.b = b
        self.config = config
        self.scheduler = scheduler
        self.epilogue = epilogue

    kernel: Any
    swapped = False
    """Whether rows of B are those of the tensor cores' A: sums are those of the transpose."""

    def tile_mn(self) -> tuple[int, int]:
        """Of sums."""
        m, n, _ = self.config.tile_shape_mnk
        return (n, m) if self.swapped else (m, n)

    def blocks_together(self) -> int:
        """How many blocks at least are to fit on a multiprocessor; 0: as many as do. (Told 1, ptxas takes 255 registers for
        8-bit floats, and runs out of them, where it needs 178.)
        """
        return 0

    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        raise NotImplementedError

    def feed(self, operand: Operand, rows: int) -> OperandCopy:
        """How the threads copy tiles of an operand."""
        raise NotImplementedError

    def fragments(self, side: int) -> Any:
        """How tiles of A (0) or B (1) lie in the ring, and come into registers from there."""
        raise NotImplementedError

    def mma(self, fragments: Any, half: bool) -> Any:
        """The tiled MMA; with `half`, for 8-bit floats that have become f16."""
        raise NotImplementedError

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: Any, rest: Any, alpha: Float32, beta: Float32, stream: Int64):
        """Launch it for (L, M, K), (L, K, N) and (L, M, N): the first result, then the others and what the epilogue reads."""
        a = self.arranged(a, [1, 2, 0], self.a.width)  # (M, K, L)
        b = self.arranged(b, [2, 1, 0], self.b.width)  # (N, K, L)
        factors, rest = self.factors(rest)
        more = len(self.epilogue.out_types) - 1
        d = [self.arranged(x, [1, 2, 0], self.epilogue.out_width) for x in (d, *rest[:more])]  # (M, N, L)
        extras = [self.arranged(x, [1, 2, 0], w) for x, w in zip(rest[more:], self.epilogue.other_widths or ())]
        self.kernel(a, b, d, factors, extras, self.scheduler.divisors(d[0]), alpha, beta).launch(
            grid=self.scheduler.grid(d[0]),
            block=(self.config.threads, 1, 1),
            cluster=self.scheduler.cluster(),
            stream=stream,
            min_blocks_per_mp=self.blocks_together(),
            use_pdl=devices.current().overlaps,
        )

    def factors(self, given: Any) -> tuple[Any, Any]:
        """Factors of groups of K, and the rest of what is given."""
        return [], given

    def group_sums(self, part: Any, acc: Any, factors: Any, memory: Any, where: Any, thread: Any) -> Any:
        """What multiplies sums of groups of K by factors; None: there are none. `memory`: behind the rings; `where`: which tile is the block's."""
        return None

    def arranged(self, x: Any, modes: list[int], width: int) -> Any:
        """A tensor with its modes in another order, strides known to be multiples of the width of an access."""
        layout = cute.select(x.layout, mode=modes)
        stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=width) for s in layout.stride)
        return cute.make_tensor(x.iterator, cute.make_layout(layout.shape, stride=stride))

    @cute.jit
    def compute(
        self, a: cute.Tensor, b: cute.Tensor, d: Any, factors: Any, extras: Any, divisors: Any, alpha: Float32, beta: Float32,
    ):  # fmt: skip
        """What a block does: the body of the kernel."""
        thread = arch.thread_idx()[0]
        where, batch, rank = self.scheduler.work(d[0], divisors)
        block_m, block_n, depth = self.config.tile_shape_mnk
        stages = self.config.stages
        a_frag, b_frag = self.fragments(0), self.fragments(1)
        mma = self.mma((a_frag, b_frag), self.a.half)
        loaded = self.mma((a_frag, b_frag), False)

        # Shared memory: the ring of A, then that of B; later D in the same place.
        memory = utils.SmemAllocator().allocate(self.smem_bytes(), 128)
        a_ring = cute.make_tensor(cute.recast_ptr(memory, dtype=self.a.dtype), a_frag.ring_layout())
        b_ring = cute.make_tensor(
            cute.recast_ptr(memory + a_frag.ring_bytes(), dtype=self.b.dtype), b_frag.ring_layout()
        )
        feeds = self.feed(self.a, block_m), self.feed(self.b, block_n)
        ring = SmemStages(feeds, stages, depth, self.config.split_k)
        producer, consumer = ring.pipe.make_participants()
        if const_expr(devices.current().overlaps):  # up to here a block may run beside the end of the kernel before it
            arch.griddepcontrol_wait()
            across, down, _ = arch.grid_dim()
            if across * down <= devices.current().multiprocessors:  # else those of the next would not be spread evenly
                arch.griddepcontrol_launch_dependents()
        # What this thread multiplies: fragments loaded one step in K ahead.
        part = mma.get_slice(thread)
        acc = cute.make_rmem_tensor(mma.partition_shape_C(self.tile_mn()), self.epilogue.acc_dtype)
        acc.fill(0)
        behind = memory + (a_frag.ring_bytes() + b_frag.ring_bytes())
        sums = self.group_sums(part, acc, [x[None, None, batch] for x in factors], behind, where[1], thread)
        a_next, b_next, first, tiles = ring.begin(
            producer, a[None, None, batch], b[None, None, batch], (a_ring, b_ring), where, thread, rank, sums
        )
        steps = a_frag.start(loaded, a_ring, thread)
        b_frag.start(loaded, b_ring, thread)

        consumer.wait()
        reading = consumer.current_handle().index
        a_frag.load(0, 0)
        b_frag.load(0, 0)
        for tile in range(tiles):
            current = reading
            for step in range_constexpr(steps):
                if const_expr(step == steps - 1):
                    consumer.advance()
                    consumer.wait()
                    reading = consumer.current_handle().index
                following = (step + 1) % steps
                a_frag.load(following, reading)
                b_frag.load(following, reading)
                if const_expr(step == 0):
                    if const_expr(sums is not None):
                        sums.take(current)
                    a_next, b_next = ring.fill(
                        producer, a_next, b_next, tile + (stages - 1) < tiles, sums, first + tile + (stages - 1)
                    )
                taken = [a_frag.taken(step), b_frag.taken(step)]
                pairs = zip(*(reversed(taken) if const_expr(self.swapped) else taken))
                if const_expr(sums is not None):
                    sums.multiply(mma, acc, pairs, step)
                else:
                    for left, right in pairs:
                        cute.gemm(mma, acc, left, right, acc)

        rest = ([x[None, None, batch] for x in extras], alpha, beta)
        producer.tail()
        arch.sync_threads()
        self.epilogue.write(part, thread, rank, acc, memory, [x[None, None, batch] for x in d], rest, where)
