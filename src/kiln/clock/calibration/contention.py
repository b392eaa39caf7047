"""WGMMA beside TMA loads, beside accesses of threads and beside their arithmetic: what units that share memory and registers give."""

from __future__ import annotations

from collections.abc import Iterator

from ... import cute, utils
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.typing import Float16, Float32, Int32, Int64
from ...cute import arch
from ...cute.nvgpu import cpasync, warpgroup
from ...utils import LayoutEnum, sm90
from .board import Board, Row, row

LOOPS = (64, 320)
COLUMNS = 64
ROW_BYTES = 2 * COLUMNS
BOX_ROWS = 128
DEPTH = 4
CHAINS = 8
ARITHMETIC = {
    "ffma": "fma.rn.f32 {x}, {x}, {y}, {z};",
    "ffma same": "fma.rn.f32 {x}, {x}, {x}, {x};",
    "fmul": "mul.rn.f32 {x}, {x}, 0f3F800001;",
    "mufu": "ex2.approx.ftz.f32 {x}, {x};",
    "cvt": "cvt.rn.f16x2.f32 {x}, {x}, {y};",
    "lop3": "lop3.b32 {x}, {x}, {y}, {z}, 0x96;",
    "max": "max.f32 {x}, {x}, {y};",
}
"""What warps compute, in several chains at a time."""


class Beside:
    """A kernel in which one warpgroup issues WGMMAs while another warp loads boxes, or warps read or write shared memory.

    It writes the cycles of the MMAs, the boxes or accesses of a warp meanwhile, and their cycles.
    """

    def __init__(self, n: int, what: str) -> None:
        self.n = n
        self.what = what

    @cute.jit
    def __call__(
        self, results: cute.Pointer, data: cute.Pointer, boxes: Int32, ctas: Int32, loops: Int32, stream: Int64
    ):
        """Issue `loops` groups of four MMAs."""
        tile = (64, self.n, 64)
        layout_a = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, tile, Float16, 1)
        layout_b = sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, Float16, 1)
        major = LayoutEnum.ROW_MAJOR.sm90_mma_major_mode()
        mma = sm90.make_trivial_tiled_mma(Float16, Float16, major, major, Float32, (1, 1, 1), (64, self.n))
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, Float16)
        layout = cute.tile_to_shape(atom, (BOX_ROWS, COLUMNS, DEPTH), order=(0, 1, 2))
        pointer = cute.recast_ptr(data, dtype=Float16)
        x = cute.make_tensor(pointer, cute.make_layout((boxes * BOX_ROWS, COLUMNS), stride=(COLUMNS, 1)))
        box = (BOX_ROWS, COLUMNS)
        copy, view = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), x, cute.slice_(layout, (None, None, 0)), box
        )
        self.kernel(mma, layout_a, layout_b, copy, view, layout, results, boxes, loops).launch(
            grid=(ctas, 1, 1), block=(256, 1, 1), min_blocks_per_mp=1, stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        copy: cute.CopyAtom,
        view: cute.Tensor,
        layout: cute.ComposedLayout,
        results: cute.Pointer,
        boxes: Int32,
        loops: Int32,
    ):
        thread = arch.thread_idx()[0]
        cta = arch.block_idx()[0]
        warp_number = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
        b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
        tiles = smem.allocate_tensor(Float16, layout.outer, 1024, layout.inner)
        words = smem.allocate_tensor(Int32, cute.make_layout(2048), 128)
        full = smem.allocate_array(Int64, DEPTH)
        over = smem.allocate_array(Int32, 1)
        if thread == 0:
            for stage in range_constexpr(DEPTH):
                arch.mbarrier_init(full + stage, 1)
            cute.make_tensor(over, cute.make_layout(1))[0] = 0
        for word in range(thread, 2048, 256):
            words[word] = 0
        for tensor in (a, b):
            pointer = cute.recast_ptr(tensor.iterator, dtype=Int32)
            values = cute.make_tensor(pointer, cute.make_layout(cute.cosize(tensor) // 2))
            for word in range(thread, cute.size(values), 256):
                values[word] = 0
        arch.mbarrier_init_fence()
        arch.fence_view_async_shared()
        arch.sync_threads()
        times = cute.make_tensor(results, cute.make_layout(4))
        if warp_number < 4:
            part = mma.get_slice(0)
            left = mma.make_fragment_A(part.partition_A(a))
            right = mma.make_fragment_B(part.partition_B(b))
            accumulators = cute.make_rmem_tensor(mma.partition_shape_C((64, self.n)), Float32)
            accumulators.fill(0.0)
            mma.set(warpgroup.Field.ACCUMULATE, True)
            begun = arch.clock64()
            for _ in range(loops):
                warpgroup.fence()
                for k in range_constexpr(4):
                    cute.gemm(mma, accumulators, left[None, None, k, 0], right[None, None, k, 0], accumulators)
                warpgroup.commit_group()
                warpgroup.wait_group(1)
            warpgroup.wait_group(0)
            ended = arch.clock64()
            if thread == 0:
                arch.inline_ptx(
                    "st.volatile.shared.b32 [{$r0}], {$r1};", read_only_args=[Int32(over.toint()), Int32(1)]
                )
                if cta == 0:
                    times[0] = ended - begun
            if accumulators.load().reduce(cute.ReductionOp.ADD, 0.0, 0) == 1.0:
                times[3] = Int64(1)
        else:
            begun = arch.clock64()
            count = Int32(0)
            seen = Int32(0)
            if const_expr(self.what == "tma"):
                if warp_number == 4:
                    to, source = cpasync.tma_partition(
                        copy,
                        0,
                        cute.make_layout(1),
                        cute.group_modes(tiles, 0, 2),
                        cute.group_modes(cute.local_tile(view, (BOX_ROWS, COLUMNS), (None, 0)), 0, 2),
                    )
                    while seen == 0 or count % DEPTH != 0:
                        stage = count % DEPTH
                        phase = count // DEPTH % 2
                        if count >= DEPTH:
                            arch.mbarrier_wait(full + stage, 1 - phase)
                        if thread == 128:
                            arch.mbarrier_arrive_and_expect_tx(full + stage, BOX_ROWS * ROW_BYTES)
                        place = (cta * 64 + count) % boxes
                        cute.copy(copy, source[None, place], to[None, stage], tma_bar_ptr=full + stage)
                        count += 1
                        seen = self.done(over)
                    for stage in range_constexpr(DEPTH):
                        arch.mbarrier_wait(full + stage, (count // DEPTH - 1) % 2)
            else:
                address = Int32(words.iterator.toint()) + (thread % 128) * 16
                total = [Int32(thread + chain) for chain in range_constexpr(CHAINS)]
                while seen == 0:
                    for number in range_constexpr(16):
                        if const_expr(self.what in ARITHMETIC):
                            total = self.compute(total, [address, cta + 5])
                        else:
                            total[number % CHAINS] = self.access(address, total[number % CHAINS])
                    count += 16
                    seen = self.done(over)
                for chain in range_constexpr(CHAINS):
                    if total[chain] == 1:
                        times[3] = Int64(2)
            if thread == 128 and cta == 0:
                times[1] = Int64(count)
                times[2] = arch.clock64() - begun

    def access(self, address: Int32, total: Int32) -> Int32:
        """Read or write 16 bytes of shared memory."""
        if self.what == "sts":
            arch.inline_ptx(
                "st.volatile.shared.v4.b32 [{$r0}], {{$r1}, {$r1}, {$r1}, {$r1}};", read_only_args=[address, total]
            )
            return total
        read = "{ .reg .b32 t<4>; ld.volatile.shared.v4.b32 {t0, t1, t2, t3}, [{$r0}]; xor.b32 {$w0}, {$r1}, t3; }"
        return arch.inline_ptx(read, write_only_types=[Int32], read_only_args=[address, total])

    def compute(self, values: list[Int32], others: list[Int32]) -> list[Int32]:
        """Do one operation in each chain."""
        line = ARITHMETIC[self.what].replace("{y}", "{$r0}").replace("{z}", "{$r1}")
        lines = [line.replace("{x}", f"{{$rw{chain}}}") for chain in range(CHAINS)]
        return list(arch.inline_ptx("\n".join(lines), read_write_args=values[:CHAINS], read_only_args=others))

    def done(self, over: cute.Pointer) -> Int32:
        """Return whether the MMAs are done."""
        read = "ld.volatile.shared.b32 {$w0}, [{$r0}];"
        return arch.inline_ptx(read, write_only_types=[Int32], read_only_args=[Int32(over.toint())])


def measure(board: Board) -> Iterator[Row]:
    """Yield the cycles of an MMA and of what runs beside it."""
    for what in ("tma", "lds", "sts", *ARITHMETIC):
        for n in (128, 256) if what in ARITHMETIC else (64, 128, 256):
            compiled = cute.compile(Beside(n, what), board.results, board.data, 1, 1, 1, 0)
            boxes = board.device.l2_cache // 4 // (BOX_ROWS * ROW_BYTES)
            for ctas in (1, board.device.sm_count):
                mma, count, took = board.differences(compiled, (board.data, boxes, ctas), 3, LOOPS)
                where = "1 cta" if ctas == 1 else "all sms"
                yield row(f"wgmma f16 n{n} beside {what}, {where}", [each / 4 for each in mma], "cycles")
                rates = [cycles / max(number, 1e-9) for cycles, number in zip(took, count, strict=True)]
                yield row(f"{what} beside wgmma f16 n{n}, {where}", rates, "cycles")
