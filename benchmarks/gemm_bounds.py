"""Bounds of large GEMMs on Hopper, beside cuBLAS: MMAs alone, MMAs with loads, whole GEMMs; speed, clock and energy.

    python benchmarks/gemm_bounds.py [--only f16,zeros,bf16,e4m3,kinds,one_wave] [--seconds 1] [--rounds 3]
                                     [--clock MHZ] [--public FOLDER] [--save]

All run back to back, one after the other, `--rounds` times; of the `--seconds` of each the last half counts. Watts come
from NVML's energy counter. `--clock` holds the clock (which needs an administrator): below the power limit energies are
exact and comparable. "MMAs alone" fills shared memory once, with normal data, and then multiplies four stages of A with
each of four stages of B, so that no two successive MMAs share an operand; accumulators restart after a K of 8192.
"MMAs and loads" is the library's kernel without its epilogue; "L2 loads" are of operands that the L2 cache holds.
FOLDER is `examples/python/CuTeDSL` of a checkout of NVIDIA's public repository, for `dense_gemm_persistent`.
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
from results import Page, Table

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
)
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync, warp, warpgroup
from kiln.cute.runtime import from_dlpack
from kiln.hardware import driver, nvml
from kiln.kernels.dispatch import arrays
from kiln.kernels.impl.gemm import sm90_implementation
from kiln.kernels.impl.gemm.arguments import GemmArguments
from kiln.kernels.impl.gemm.problem import GemmProblem
from kiln.kernels.impl.gemm.sm90_epilogue import TmaGemmEpilogue
from kiln.measure import clocks
from kiln.utils import LayoutEnum, sm90

if TYPE_CHECKING:
    from collections.abc import Callable

F16, BF16, E4M3 = torch.float16, torch.bfloat16, torch.float8_e4m3fn
BLOCKS, ROWS, SPAN = 132, 128, 256
"""CTAs, M of each, and the K that it holds in shared memory (16-bit elements; twice as many of 8 bits)."""
TURNS = 4
"""Stages of B that each stage of A is multiplied with."""
FLOPS_OF_A_CYCLE = 4096
"""FLOPs of an SM in a cycle, 16-bit floats."""

F16_TABLE = Table(
    "float16, 8192 cubed",
    ("kernel", "burst TFLOP/s", "sustained TFLOP/s", "of cuBLAS", "MHz", "tensor cores busy", "W", "pJ per FLOP"),
)
F16_LOCKED = Table(
    "float16, 8192 cubed, clock held at 1305 MHz",
    ("kernel", "burst TFLOP/s", "sustained TFLOP/s", "of cuBLAS", "MHz", "tensor cores busy", "W", "pJ per FLOP"),
)
ZEROS = Table(
    "float16, 8192 cubed, zeros",
    ("kernel", "burst TFLOP/s", "sustained TFLOP/s", "of cuBLAS", "MHz", "tensor cores busy", "W", "pJ per FLOP"),
)
BF16_TABLE = Table(
    "bfloat16, 8192 cubed",
    ("kernel", "burst TFLOP/s", "sustained TFLOP/s", "of cuBLAS", "MHz", "tensor cores busy", "W", "pJ per FLOP"),
)
E4M3_TABLE = Table(
    "float8_e4m3fn, 8192 cubed",
    ("kernel", "burst TFLOP/s", "sustained TFLOP/s", "of cuBLAS", "MHz", "tensor cores busy", "W", "pJ per FLOP"),
)
E4M3_LOCKED = Table(
    "float8_e4m3fn, 8192 cubed, clock held at 1305 MHz",
    ("kernel", "burst TFLOP/s", "sustained TFLOP/s", "of cuBLAS", "MHz", "tensor cores busy", "W", "pJ per FLOP"),
)
KIND_TABLE = Table(
    "MMAs alone",
    ("kernel", "burst TFLOP/s", "sustained TFLOP/s", "of cuBLAS", "MHz", "tensor cores busy", "W", "pJ per FLOP"),
)
WAVE_TABLE = Table(
    "One wave, 2048 x 2048", ("kernel", "K 1024 us", "K 2048 us", "K 4096 us", "K 8192 us", "1024 more K us")
)
PAGE = Page(
    __file__,
    "Bounds of large GEMMs on Hopper",
    F16_TABLE,
    F16_LOCKED,
    ZEROS,
    BF16_TABLE,
    E4M3_TABLE,
    E4M3_LOCKED,
    KIND_TABLE,
    WAVE_TABLE,
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """MMAs of 64 x `n` by each of two warpgroups: dtype, K of a stage, operand layouts, A in registers or smem,
    data."""

    dtype: Any = F16
    n: int = 256
    k: int = 64
    a_rows: bool = True
    b_rows: bool = True
    held: bool = False
    data: str = "normal"

    def __str__(self) -> str:
        parts = [
            {F16: "f16", BF16: "bf16", E4M3: "e4m3"}[self.dtype],
            f"64x{self.n}",
            "A in registers" if self.held else "",
        ]
        parts += [
            "" if own else f"{name} contiguous in {mode}"
            for name, mode, own in (("A", "M", self.a_rows), ("B", "N", self.b_rows))
        ]
        parts += [f"K {self.k}" if self.k != 64 else "", self.data if self.data != "normal" else ""]
        return ", ".join(filter(None, parts))

    @property
    def wide(self) -> int:
        """Return how many elements fit into 16 bits."""
        return 2 if self.dtype is E4M3 else 1


class Alone:
    """A kernel of MMAs alone."""

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
        """Multiply A (blocks x 128, K) and B (blocks x n, K): `tiles` accumulators of `steps` times all pairs of
        stages; `shown` stores them."""
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
        self,
        load_a: cute.CopyAtom,
        a: cute.Tensor,
        load_b: cute.CopyAtom,
        b: cute.Tensor,
        out: cute.Tensor,
        mma: cute.TiledMma,
        layout_a: Any,
        layout_b: Any,
        tiles: Int32,
        steps: Int32,
        shown: Int32,
    ):
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
            cpasync.tma_partition(
                load,
                *alone,
                cute.group_modes(tile, 0, 2),
                cute.group_modes(cute.local_tile(x, (rows, k), (block, None)), 0, 2),
            )
            for load, tile, x, rows in ((load_a, tile_a, a, ROWS), (load_b, tile_b, b, kind.n))
        ]
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


class Unwritten(TmaGemmEpilogue):
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


# --- calls ---


def alone(kind: Kind, blocks: int = BLOCKS, tiles: int = 16, k: int = 8192) -> Work:
    """Return MMAs alone: `tiles` tiles of 128 x n by each of `blocks` CTAs, with K (twice that for e4m3)."""
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
    """Return a batched GEMM whose operands all batches share, so that the L2 cache holds them."""
    a, b = (torch.randn(rows, k, device="cuda").to(dtype).expand(batches, rows, k) for rows in (m, n))
    out = torch.empty(batches, m, n, device="cuda", dtype=_out(dtype))
    return Work(unwritten(a, b.mT, out, config, "fast" if dtype is E4M3 else "ieee"), 2.0 * batches * m * n * k)


def _out(dtype: Any) -> Any:
    return BF16 if dtype is E4M3 else dtype


class Square:
    """A GEMM A B^T with its calls of cuBLAS and Kiln."""

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


# --- tables ---


def fill(table: Table, works: dict[str, Work], rounds: int, seconds: float, bursts: bool = True) -> None:
    """Measure TFLOP/s in bursts and sustained, relative to the last work; clock, tensor-core utilisation, energy."""
    found = in_turns(works, rounds, seconds)
    calls = {name: work.call for name, work in works.items()}
    short = measure.compare(calls, l2="warm", rounds=3, effort=measure.BURST).measurements if bursts else {}
    peer = list(works)[-1]
    for name, turns in found.items():
        mhz, watts, speed = turns.middle.mhz, turns.middle.watts, turns.speed
        most = BLOCKS * FLOPS_OF_A_CYCLE * mhz * (2 if table in (E4M3_TABLE, E4M3_LOCKED) or "e4m3" in name else 1)
        burst = f"{turns.flops / short[name].us * 1e-6:.0f}" if bursts else None
        table.add(
            name,
            burst,
            f"{speed:.0f}",
            f"{speed / found[peer].speed:.3f}",
            f"{mhz:.0f}",
            f"{speed * 1e6 / most:.2f}",
            f"{watts:.0f}",
            f"{watts / speed:.3f}",
        )


CACHED = {
    "128x128": (2048, kernels.Sm90GemmConfig((128, 128, 64), (2, 1), 6, 8, epi_stages=4)),
    "128x192": (2304, kernels.Sm90GemmConfig((128, 192, 64), (2, 1), 4, 8, epi_stages=4)),
    "128x256": (2048, CONFIG),
    "128x256, no clusters": (2048, SINGLE),
    "256x192": (2304, WIDE),
}
"""N and configs of GEMMs whose operands the L2 cache holds."""


def of_steps(dtype: Any = F16, folder: str = "") -> dict[str, Work]:
    """Return MMAs alone, MMAs with loads, whole GEMMs of 8192 cubed, and the public program of a folder."""
    square = Square(8192, 8192, 8192, dtype)
    found = {"MMAs alone": alone(Kind(dtype))}
    if dtype is F16:
        for name, (columns, config) in CACHED.items():
            found[f"MMAs and L2 loads, {name}"] = from_cache(2048, columns, 2048, 64, config)
        found["MMAs and loads, raster group 16"] = square.unwritten(dataclasses.replace(CONFIG, raster_group=16))
        found["MMAs and loads, 256x192"] = square.unwritten(WIDE)
        found["Kiln, 256x192"] = square.kiln(WIDE)
    found |= {"MMAs and loads, 128x256": square.unwritten(), "Kiln, 128x256": square.kiln(CONFIG)}
    if folder:
        program = program_at(Path(folder) / "cute" / PUBLIC["dense_gemm_persistent"])
        found["`dense_gemm_persistent`"] = Work(public(program, square.a, square.b, square.out), square.flops)
    return {**found, "cuBLAS": square.cublas()}


E4M3_CONFIGS = {
    "128x192, pingpong": kernels.Sm90GemmConfig((128, 192, 128), (2, 1), 5, 8, pingpong=True),
    "128x256": kernels.Sm90GemmConfig((128, 256, 128), (2, 1), 4, 8, epi_stages=4),
    "256x192": kernels.Sm90GemmConfig((256, 192, 128), (1, 2), 3, 8),
    "256x168, transposed": kernels.Sm90GemmConfig((256, 168, 128), (1, 1), 4, 12, swap_ab=True, transpose_out=True),
}
"""Configs of e4m3 GEMMs with fast accumulation."""


def of_e4m3() -> dict[str, Work]:
    """Return the same for e4m3, with fast accumulation, then with f32 accumulation."""
    square = Square(8192, 8192, 8192, E4M3)
    found = {"MMAs alone": alone(Kind(E4M3))}
    for name, config in E4M3_CONFIGS.items():
        m, n = (
            (2016, 2304) if config.swap_ab else (2048, 2048) if config.tile_shape_mnk[1] == 256 else (2048, 2304)
        )  # whole tiles
        found[f"MMAs and L2 loads, {name}"] = from_cache(m, n, 4096, 32, config, E4M3)
        found[f"MMAs and loads, {name}"] = square.unwritten(config, "fast")
        found[f"Kiln, {name}"] = square.kiln(config, "fast")
    found |= {"Kiln, f32 accumulation": square.kiln(), "cuBLAS, f32 accumulation": square.cublas(False)}
    return {**found, "cuBLAS, fast accumulation": square.cublas()}


def of_zeros() -> dict[str, Work]:
    """Return GEMMs of zeros, which stay below the power limit."""
    square = Square(8192, 8192, 8192, zeros=True)
    return {"MMAs alone": alone(Kind(data="zeros")), "Kiln, 128x256": square.kiln(CONFIG), "cuBLAS": square.cublas()}


KINDS = [
    Kind(),
    Kind(n=192),
    Kind(n=128),
    Kind(held=True),
    Kind(held=True, n=128),
    Kind(b_rows=False),
    Kind(a_rows=False),
    Kind(k=32),
    Kind(data="7-bit data"),
    Kind(BF16),
    Kind(E4M3),
    Kind(data="zeros"),
]


def of_kinds() -> dict[str, Work]:
    """Return MMAs alone of all kinds."""
    return {str(kind): alone(kind) for kind in reversed(KINDS)}


DEPTHS = (1024, 2048, 4096, 8192)


def of_one_wave() -> dict[str, Work]:
    """Return GEMMs of 2048 x 2048 with several K: one tile for each of 128 CTAs."""
    found: dict[str, Work] = {}
    for k in DEPTHS:
        square = Square(2048, 2048, k)
        found |= {f"MMAs alone {k}": alone(Kind(), 128, 1, k), f"MMAs and loads {k}": square.unwritten(SINGLE)}
        found |= {f"Kiln {k}": square.kiln(SINGLE), f"cuBLAS {k}": square.cublas()}
    empty = hardware.measuring_kernels().empty
    return {**found, "an empty kernel": Work(lambda: empty(torch.cuda.current_stream().cuda_stream), 0.0)}


def one_wave(rounds: int, seconds: float) -> None:
    """Measure one wave for several K."""
    found = {name: turns.middle for name, turns in in_turns(of_one_wave(), rounds, seconds).items()}
    for name in ("MMAs alone", "MMAs and loads", "Kiln", "cuBLAS"):
        own = [found[f"{name} {k}"].us for k in DEPTHS]
        WAVE_TABLE.add(name, *(f"{x:.1f}" for x in (*own, (own[3] - own[2]) / 4)))
    print(f"an empty kernel: {found['an empty kernel'].us:.2f} us")


_folder, _locked = [""], [False]
PARTS: dict[str, Callable[[int, float], None]] = {
    "f16": lambda *pace: fill(F16_LOCKED if _locked[0] else F16_TABLE, of_steps(F16, _folder[0]), *pace),
    "zeros": lambda *pace: fill(ZEROS, of_zeros(), *pace),
    "bf16": lambda *pace: fill(BF16_TABLE, of_steps(BF16), *pace),
    "e4m3": lambda *pace: fill(E4M3_LOCKED if _locked[0] else E4M3_TABLE, of_e4m3(), *pace),
    "kinds": lambda *pace: fill(KIND_TABLE, of_kinds(), *pace, bursts=False),
    "one_wave": one_wave,
}
WORKS = {
    "f16": lambda: of_steps(F16, _folder[0]),
    "zeros": of_zeros,
    "bf16": functools.partial(of_steps, BF16),
    "e4m3": of_e4m3,
    "kinds": of_kinds,
    "one_wave": of_one_wave,
}


def compile_one(kind: Kind | None, part: str, folder: str) -> None:
    """Compile MMAs alone of a kind, or the works of a part."""
    _folder[0] = folder
    for work in WORKS[part]().values() if kind is None else [alone(kind)]:
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
    parser.add_argument("--seconds", type=float, default=1.0, help="of a work in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--clock", type=int, choices=(1305,), help="MHz to hold, below the power limit: energies are then exact"
    )
    parser.add_argument("--compile", action="store_true", help="and time nothing")
    parser.add_argument("--public", default="", help="examples/python/CuTeDSL of a checkout of the public repository")
    parser.add_argument("--save", action="store_true", help="write docs/data/gemm_bounds.md")
    given = parser.parse_args()
    _folder[0], _locked[0] = given.public, bool(given.clock)
    torch.manual_seed(0)
    if given.compile:
        compile_all(given.only)
        return
    gpu = nvml.Gpu(driver.uuid(driver.current_device()))
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, power limit {gpu.power_limit()} W")
    with clocks.locked(gpu, given.clock) if given.clock else contextlib.nullcontext():
        for part in given.only:
            PARTS[part](given.rounds, given.seconds)
    PAGE.finish(given.save)


if __name__ == "__main__":
    main()
