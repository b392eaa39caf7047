"""What bounds large GEMMs on Hopper: MMAs of shared memory alone, then with loads, then with stores, beside cuBLAS; speed, clock, energy.

    python benchmarks/gemm_bounds.py [--only steps,zeros,bf16,bytes,kinds,one_wave] [--seconds 1] [--rounds 3] [--clock MHZ] [--public FOLDER]

Everything runs back to back, one after the other, `--rounds` times; of the `--seconds` of each the last half counts. Watts are those of NVML's counter of
energy. With `--clock` the clock is held (which needs an administrator): without the power limit energies are exact, and comparable. A kernel of nothing but MMAs fills shared memory once, with normal data, and then multiplies it: four stages of A with each of four stages of B, so
that no two MMAs in a row have an operand in common, and accumulators begin anew after a K of 8192, as in a GEMM. The step after it is the library's own kernel,
which loads all it multiplies, and does not write results; then the same with results. FOLDER is `examples/python/CuTeDSL` of a checkout of NVIDIA's public
repository, whose `dense_gemm_persistent` is a step, too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from back_to_back import Work, in_turns
from compile_time import PUBLIC, program_at
from gemm_protocols import public

from kiln import (
    BFloat16,
    Float8E4M3FN,
    Float16,
    Float32,
    Int32,
    Int64,
    cute,
    hardware,
    kernels,
    measure,
    range_constexpr,
    utils,
)  # fmt: skip
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync, warp, warpgroup
from kiln.cute.runtime import from_dlpack
from kiln.hardware import driver, nvml
from kiln.kernels.dispatch import arrays
from kiln.kernels.impl.gemm import sm90_implementation
from kiln.kernels.impl.gemm.arguments import GemmArguments
from kiln.kernels.impl.gemm.problem import GemmProblem
from kiln.kernels.impl.gemm.sm90_epilogue import TmaStoreEpilogue
from kiln.measure import clocks
from kiln.utils import LayoutEnum, sm90

if TYPE_CHECKING:
    from collections.abc import Callable

F16, BF16, E4M3 = torch.float16, torch.bfloat16, torch.float8_e4m3fn
BLOCKS, ROWS, SPAN = 132, 128, 256
"""Blocks, rows of A of each, and how many elements of K it holds in shared memory (of 16 bits; twice as many of 8)."""
TURNS = 4
"""Every stage of A is multiplied with so many of B."""
FLOPS_OF_A_CYCLE = 4096
"""Of an SM, 16-bit floats."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """MMAs of 64 x `n` by each of two warpgroups; of a stage of `k` elements of 16 bits (or bytes of 8); how operands lie and where A is."""

    dtype: Any = F16
    n: int = 256
    k: int = 64
    a_rows: bool = True
    b_rows: bool = True
    held: bool = False
    data: str = "normal"

    def __str__(self) -> str:
        parts = [f"{str(self.dtype)[6:]} 64x{self.n}", "A in registers" if self.held else ""]
        parts += [
            "" if own else f"{name} contiguous in {mode}"
            for name, mode, own in (("A", "M", self.a_rows), ("B", "N", self.b_rows))
        ]
        parts += [f"rows of {self.k * 2} bytes" if self.k != 64 else "", self.data if self.data != "normal" else ""]
        return ", ".join(filter(None, parts))

    @property
    def wide(self) -> int:
        """Elements of 8 bits in the place of one of 16."""
        return 2 if self.dtype is E4M3 else 1


class Alone:
    """The kernel of nothing but MMAs of a kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.dtype = {F16: Float16, BF16: BFloat16, E4M3: Float8E4M3FN}[kind.dtype]
        self.stages = SPAN // kind.k

    def layouts(self) -> tuple[Any, Any]:
        kind = self.kind
        tile = (ROWS, kind.n, kind.k * kind.wide)
        return (
            sm90.make_smem_layout_a(_order(kind.a_rows), tile, self.dtype, self.stages),
            sm90.make_smem_layout_b(_order(kind.b_rows), tile, self.dtype, self.stages),
        )

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        blocks: Int32,
        tiles: Int32,
        steps: Int32,
        shown: Int32,
        stream: Int64,
    ):
        """A (blocks x 128, K), B (blocks x n, K); `tiles` sums of `steps` times all pairs of stages; `shown`: whether sums are written."""
        kind, dtype = self.kind, self.dtype
        layouts = self.layouts()
        load, k = cpasync.CopyBulkTensorTileG2SOp(), kind.k * kind.wide
        load_a, from_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layouts[0], (None, None, 0)), (ROWS, k))
        load_b, from_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(layouts[1], (None, None, 0)), (kind.n, k))
        source = warpgroup.OperandSource.RMEM if kind.held else warpgroup.OperandSource.SMEM
        major_a, major_b = (_order(rows).sm90_mma_major_mode() for rows in (kind.a_rows, kind.b_rows))
        mma = sm90.make_trivial_tiled_mma(dtype, dtype, major_a, major_b, Float32, (2, 1, 1), (64, kind.n), source)
        self.kernel(load_a, from_a, load_b, from_b, out, mma, *layouts, tiles, steps, shown).launch(
            grid=(blocks, 1, 1), block=(256, 1, 1), stream=stream, min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(
        self, load_a: cute.CopyAtom, a: cute.Tensor, load_b: cute.CopyAtom, b: cute.Tensor, out: cute.Tensor, mma: cute.TiledMma,
        layout_a: Any, layout_b: Any, tiles: Int32, steps: Int32, shown: Int32,
    ):  # fmt: skip
        kind, stages = self.kind, self.stages
        thread, block = arch.thread_idx()[0], arch.block_idx()[0]
        warp_number = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        tile_a = smem.allocate_tensor(self.dtype, layout_a.outer, 1024, layout_a.inner)
        tile_b = smem.allocate_tensor(self.dtype, layout_b.outer, 1024, layout_b.inner)
        full = smem.allocate_array(Int64)
        if warp_number == 0:
            with arch.elect_one():
                arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        k, alone = kind.k * kind.wide, (0, cute.make_layout(1))
        of = [
            cpasync.tma_partition(load, *alone, cute.group_modes(tile, 0, 2), cute.group_modes(cute.local_tile(x, (rows, k), (block, None)), 0, 2))
            for load, tile, x, rows in ((load_a, tile_a, a, ROWS), (load_b, tile_b, b, kind.n))
        ]  # fmt: skip
        if warp_number == 0:
            with arch.elect_one():
                arch.mbarrier_arrive_and_expect_tx(full, (ROWS + kind.n) * SPAN * 2)
            for stage in range_constexpr(stages):
                for load, (to, source) in zip((load_a, load_b), of):
                    cute.copy(load, source[None, stage], to[None, stage], tma_bar_ptr=full)
        arch.mbarrier_wait(full, 0)
        part = mma.get_slice(thread)
        same = mma.get_slice(warp_number // 4 * 128)
        if kind.held:
            left = mma.make_fragment_A(part.partition_shape_A((ROWS, SPAN)))
            copy = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), self.dtype), mma)
            into, depth = copy.retile(left), cute.size(left, mode=[2]) // stages
            for stage in range_constexpr(stages):
                own = copy.get_slice(thread).partition_S(tile_a[None, None, stage])
                for inner in range_constexpr(depth):
                    cute.copy(copy, own[None, None, inner], into[None, None, stage * depth + inner])
        else:
            left = mma.make_fragment_A(same.partition_A(tile_a))
            depth = cute.size(left, mode=[2])
        right = mma.make_fragment_B(same.partition_B(tile_b))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((ROWS, kind.n)), Float32)
        sums.fill(0.0)
        together = 64 // kind.k  # stages of a group of four MMAs
        for _ in range(tiles):
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for _ in range(steps):
                for number in range_constexpr(TURNS * stages):
                    stage, other = number % stages, (number + number // stages * (stages // TURNS)) % stages
                    if number % together == 0:
                        warpgroup.fence()
                    for inner in range_constexpr(depth):
                        at = (None, None, stage * depth + inner) if kind.held else (None, None, inner, stage)
                        cute.gemm(mma, sums, left[at], right[None, None, inner, other], sums)
                        mma.set(warpgroup.Field.ACCUMULATE, True)
                    if number % together == together - 1:
                        warpgroup.commit_group()
                        warpgroup.wait_group(1)
            warpgroup.wait_group(0)
        if shown > 0:
            out[block, thread] = sums.load().reduce(cute.ReductionOp.ADD, 0.0, 0)


def _order(rows: bool) -> LayoutEnum:
    return LayoutEnum.ROW_MAJOR if rows else LayoutEnum.COL_MAJOR


class Unwritten(TmaStoreEpilogue):
    """Writes no result, as far as the GPU can tell: only an `alpha` that is never given has them written."""

    @cute.jit
    def write(self, acc: Any, thread: Int32, consumer_idx: Int32, buffers: Any, tensors: Any, tile: Any):
        if tensors.alpha == -1.0:
            super().write(acc, thread, consumer_idx, buffers, tensors, tile)


class UnwrittenTiling(kernels.Sm90GemmConfig):
    """A config of the library's kernel, to which no result is written."""


def _make_epilogue(problem: GemmProblem, config: kernels.Sm90GemmConfig, *rest: Any) -> Any:
    made: Any = _library_make_epilogue(problem, config, *rest)
    if isinstance(config, UnwrittenTiling):
        made.__class__ = Unwritten
    return made


_library_make_epilogue, sm90_implementation.make_epilogue = sm90_implementation.make_epilogue, _make_epilogue


# --- what is called ----------------------------------------------------------------------------------------------------------


def alone(kind: Kind, blocks: int = BLOCKS, tiles: int = 16, k: int = 8192) -> Work:
    """Nothing but MMAs: of 128 x n by so many blocks, so many tiles, of a K (of 8-bit floats, twice that)."""
    a, b = (
        _data(blocks * rows, SPAN * kind.wide, kind, own) for rows, own in ((ROWS, kind.a_rows), (kind.n, kind.b_rows))
    )
    out = torch.zeros(BLOCKS, 256, device="cuda")
    given = [from_dlpack(x, assumed_align=16) for x in (a, b, out)]
    steps = k // (SPAN * TURNS)
    compiled = _compiled(kind, given)
    flops = 2.0 * blocks * ROWS * kind.n * tiles * steps * SPAN * TURNS * kind.wide
    return Work(lambda: compiled(*given, blocks, tiles, steps, 0, torch.cuda.current_stream().cuda_stream), flops)


_kept: dict[Any, Any] = {}


def _compiled(kind: Kind, given: list[Any]) -> Any:
    """Code of a kind, for arrays of some shapes."""
    kind = dataclasses.replace(kind, data="normal")
    key = kind, *(x.shape for x in given)
    if key not in _kept:
        _kept[key] = cute.compile(Alone(kind), *given, BLOCKS, 1, 1, 0, 0)
    return _kept[key]


def _data(rows: int, k: int, kind: Kind, contiguous: bool) -> Any:
    x = torch.randn((rows, k) if contiguous else (k, rows), device="cuda")
    if kind.data == "zeros":
        x.zero_()
    if kind.data == "of 7 bits":  # as exact as bf16, in the format of f16
        x = x.to(BF16)
    x = x.to(kind.dtype)
    return x if contiguous else x.T


CONFIG = kernels.Sm90GemmConfig((128, 256, 64), (2, 1), 4, 8, epi_stages=4)
SINGLE = dataclasses.replace(CONFIG, cluster_shape_mn=(1, 1))
WIDE = kernels.Sm90GemmConfig((256, 192, 64), (1, 2), 3, 8, epi_stages=4)


def unwritten(a: Any, b: Any, out: Any, config: Any = CONFIG, precision: str = "ieee") -> Callable[[], None]:
    """The library's GEMM of (L, M, K) and (L, K, N), without results."""
    given = GemmArguments(a, b, out)
    problem = GemmProblem(arrays.layout_of(a), arrays.layout_of(b), arrays.layout_of(out), precision=precision)
    config = UnwrittenTiling(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})
    return lambda: sm90_implementation.Sm90Gemm().run(problem, config, given)


def from_cache(m: int, n: int, k: int, batches: int, config: Any = CONFIG, dtype: Any = F16) -> Work:
    """The same for matrices that all batches share, and the L2 cache holds."""
    a, b = (torch.randn(rows, k, device="cuda").to(dtype).expand(batches, rows, k) for rows in (m, n))
    out = torch.empty(batches, m, n, device="cuda", dtype=_out(dtype))
    return Work(unwritten(a, b.mT, out, config, "fast" if dtype is E4M3 else "ieee"), 2.0 * batches * m * n * k)


def _out(dtype: Any) -> Any:
    return BF16 if dtype is E4M3 else dtype


class Square:
    """A GEMM of A (m, k) and B (n, k), transposed, and what computes it."""

    def __init__(self, m: int, n: int, k: int, dtype: Any = F16, zeros: bool = False) -> None:
        self.a, self.b = (torch.randn(rows, k, device="cuda").to(dtype) for rows in (m, n))
        for x in (self.a, self.b) if zeros else ():
            x.zero_()
        self.out, self.flops = torch.empty(m, n, device="cuda", dtype=_out(dtype)), 2.0 * m * n * k

    def cublas(self, fast: bool = True) -> Work:
        if self.a.dtype is E4M3:
            one = torch.ones((), device="cuda")
            options = {"out_dtype": BF16, "use_fast_accum": fast}
            return Work(lambda: torch._scaled_mm(self.a, self.b.T, one, one, **options), self.flops)
        return Work(lambda: torch.mm(self.a, self.b.T, out=self.out), self.flops)

    def kiln(self, config: Any = None, precision: str = "ieee") -> Work:
        call = functools.partial(kernels.gemm, self.a, self.b.T, out=self.out, config=config, precision=precision)
        return Work(call, self.flops)

    def unwritten(self, config: Any = CONFIG, precision: str = "ieee") -> Work:
        return Work(unwritten(self.a[None], self.b.T[None], self.out[None], config, precision), self.flops)


# --- tables --------------------------------------------------------------------------------------------------------------


def table(title: str, works: dict[str, Work], rounds: int, seconds: float, bursts: bool = True) -> None:
    """TFLOP/s in bursts and sustained, beside the last one's; the clock, how busy tensor cores are at it, watts, picojoules of a multiplication or addition."""
    found = in_turns(works, rounds, seconds)
    calls = {name: work.call for name, work in works.items()}
    short = measure.compare(calls, l2="warm", rounds=3, effort=measure.BURST).measurements if bursts else {}
    peer = list(works)[-1]
    print(f"\n| {title} | burst | sustained | of {peer} | in turns | us | MHz | busy | W | pJ | C | reasons |")
    print("|---" * 12 + "|")
    for name, turns in found.items():
        us, mhz, watts, celsius, reasons = turns.middle
        speed, (low, high) = turns.speed, turns.spread
        most = BLOCKS * FLOPS_OF_A_CYCLE * mhz * (2 if "float8" in name else 1)
        burst = f"{turns.flops / short[name].us * 1e-6:.0f}" if bursts else ""
        print(
            f"| {name} | {burst} | {speed:.0f} | {speed / found[peer].speed:.3f} | {low:.0f} to {high:.0f} | {us:.1f} | {mhz:.0f} | {speed * 1e6 / most:.2f} "
            f"| {watts:.0f} | {watts / speed:.3f} | {celsius:.0f} | {reasons:#x} |", flush=True,
        )  # fmt: skip


CACHED = {
    "128x128": (2048, kernels.Sm90GemmConfig((128, 128, 64), (2, 1), 6, 8, epi_stages=4)),
    "128x192": (2304, kernels.Sm90GemmConfig((128, 192, 64), (2, 1), 4, 8, epi_stages=4)),
    "128x256": (2048, CONFIG),
    "128x256, no clusters": (2048, SINGLE),
    "256x192": (2304, WIDE),
}
"""Columns and configs of GEMMs whose matrices the L2 cache holds."""


def of_steps(dtype: Any = F16, folder: str = "") -> dict[str, Work]:
    """From MMAs alone to a whole GEMM of 8192 cubed, and others: the public program of a folder."""
    square = Square(8192, 8192, 8192, dtype)
    found = {"MMAs alone": alone(Kind(dtype))}
    if dtype is F16:
        for name, (columns, config) in CACHED.items():
            found[f"and loads from the L2 cache, {name}"] = from_cache(2048, columns, 2048, 64, config)
        found["and loads, groups of 16"] = square.unwritten(dataclasses.replace(CONFIG, raster_group=16))
        found["and loads, 256x192"] = square.unwritten(WIDE)
        found["and results: Kiln, 256x192"] = square.kiln(WIDE)
    found |= {"and loads": square.unwritten(), "and results: Kiln": square.kiln(CONFIG)}
    if folder:
        program = program_at(Path(folder) / "cute" / PUBLIC["dense_gemm_persistent"])
        found["`dense_gemm_persistent`"] = Work(public(program, square.a, square.b, square.out), square.flops)
    return {**found, "cuBLAS": square.cublas()}


BYTES = {
    "128x192, in turns": kernels.Sm90GemmConfig((128, 192, 128), (2, 1), 5, 8, pingpong=True),
    "128x256": kernels.Sm90GemmConfig((128, 256, 128), (2, 1), 4, 8, epi_stages=4),
    "256x192": kernels.Sm90GemmConfig((256, 192, 128), (1, 2), 3, 8),
    "256x168, turned": kernels.Sm90GemmConfig((256, 168, 128), (1, 1), 4, 12, swap_ab=True, transpose_out=True),
}
"""Configs of GEMMs of 8-bit floats without additions besides."""


def of_bytes() -> dict[str, Work]:
    """The same steps for 8-bit floats: with fast sums, then with exact ones."""
    square = Square(8192, 8192, 8192, E4M3)
    found = {"float8 MMAs alone": alone(Kind(E4M3))}
    for name, config in BYTES.items():
        m, n = (
            (2016, 2304) if config.swap_ab else (2048, 2048) if config.tile_shape_mnk[1] == 256 else (2048, 2304)
        )  # whole tiles
        found[f"float8 and loads from the L2 cache, {name}"] = from_cache(m, n, 4096, 32, config, E4M3)
        found[f"float8 and loads, {name}"] = square.unwritten(config, "fast")
        found[f"float8 and results: Kiln, {name}"] = square.kiln(config, "fast")
    found |= {"float8 Kiln, exact sums": square.kiln(), "float8 cuBLAS, exact sums": square.cublas(False)}
    return {**found, "float8 cuBLAS": square.cublas()}


def of_zeros() -> dict[str, Work]:
    """What is left without the power limit."""
    square = Square(8192, 8192, 8192, zeros=True)
    return {"MMAs alone": alone(Kind(data="zeros")), "Kiln": square.kiln(CONFIG), "cuBLAS": square.cublas()}


KINDS = [
    Kind(), Kind(n=192), Kind(n=128), Kind(held=True), Kind(held=True, n=128), Kind(b_rows=False), Kind(a_rows=False), Kind(k=32), Kind(data="of 7 bits"),
    Kind(BF16), Kind(E4M3), Kind(data="zeros"),
]  # fmt: skip


def of_kinds() -> dict[str, Work]:
    """Products alone, of all kinds."""
    return {str(kind): alone(kind) for kind in reversed(KINDS)}


DEPTHS = (1024, 2048, 4096, 8192)


def of_one_wave() -> dict[str, Work]:
    """2048 x 2048 with several K: one tile for each of 128 blocks."""
    found: dict[str, Work] = {}
    for k in DEPTHS:
        square = Square(2048, 2048, k)
        found |= {f"MMAs alone {k}": alone(Kind(), 128, 1, k), f"and loads {k}": square.unwritten(SINGLE)}
        found |= {f"and results: Kiln {k}": square.kiln(SINGLE), f"cuBLAS {k}": square.cublas()}
    empty = hardware.measuring_kernels().empty
    return {**found, "an empty kernel": Work(lambda: empty(torch.cuda.current_stream().cuda_stream), 0.0)}


def one_wave(rounds: int, seconds: float) -> None:
    """Microseconds of one wave, for several K, and what is left of them for none; clock and power for 2048."""
    found = {name: turns.middle for name, turns in in_turns(of_one_wave(), rounds, seconds).items()}
    print("\n| 2048 x 2048, us for K of | " + " | ".join(map(str, DEPTHS)) + " | for 1024 more | for none | MHz | W |")
    print("|---" * (5 + len(DEPTHS)) + "|")
    for name in ("MMAs alone", "and loads", "and results: Kiln", "cuBLAS"):
        own = [found[f"{name} {k}"].us for k in DEPTHS]
        each = (own[2] - own[0]) / 3  # before the clock falls further
        at = found[f"{name} 2048"]
        cells = " | ".join(f"{x:.2f}" for x in (*own, each, own[0] - each))
        print(f"| {name} | {cells} | {at.mhz:.0f} | {at.watts:.0f} |")
    print(f"an empty kernel: {found['an empty kernel'].us:.2f} us")


_folder = [""]
PARTS: dict[str, Callable[[int, float], None]] = {
    "steps": lambda *given: table("f16, 8192 cubed", of_steps(F16, _folder[0]), *given),
    "zeros": lambda *given: table("f16, 8192 cubed, zeros", of_zeros(), *given),
    "bf16": lambda *given: table("bf16, 8192 cubed", of_steps(BF16), *given),
    "bytes": lambda *given: table("e4m3, 8192 cubed", of_bytes(), *given),
    "kinds": lambda *given: table("MMAs alone", of_kinds(), *given, bursts=False),
    "one_wave": one_wave,
}
MADE = {
    "steps": lambda: of_steps(F16, _folder[0]),
    "zeros": of_zeros,
    "bf16": functools.partial(of_steps, BF16),
    "bytes": of_bytes,
    "kinds": of_kinds,
    "one_wave": of_one_wave,
}


def compile_one(kind: Kind | None, part: str, folder: str) -> None:
    """Compile MMAs alone of a kind, or what else a part needs."""
    _folder[0] = folder
    for work in MADE[part]().values() if kind is None else [alone(kind)]:
        work.call()
    torch.cuda.synchronize()


def compile_all(parts: list[str]) -> None:
    """Compile everything, in several processes: the disk cache keeps it."""
    jobs = [(None, part, _folder[0]) for part in parts if part != "kinds"]
    jobs += [(kind, "kinds", "") for kind in KINDS if "kinds" in parts]
    workers = max(1, min(len(jobs), 8, (os.cpu_count() or 2) - 2))
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_one, *zip(*jobs, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--clock", type=int, help="MHz to hold, below what the power limit leaves: energies are then exact"
    )
    parser.add_argument("--compile", action="store_true", help="and time nothing")
    parser.add_argument("--public", default="", help="examples/python/CuTeDSL of a checkout of the public repository")
    given = parser.parse_args()
    _folder[0] = given.public
    torch.manual_seed(0)
    if given.compile:
        compile_all(given.only)
        return
    gpu = nvml.Gpu(driver.uuid(driver.current_device()))
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, power limit {gpu.power_limit()} W")
    with clocks.locked(gpu, given.clock) if given.clock else contextlib.nullcontext():
        for part in given.only:
            PARTS[part](given.rounds, given.seconds)


if __name__ == "__main__":
    main()
