"""The configs that GEMM on sm_90a chooses among, and the model that chooses.

The model is a roofline of one SM, which computes its tiles one after the other, a stage of K at a time. A stage takes
as long as the slowest of: its MMAs; its operands, which come from the L2 cache, once for all CTAs of a cluster; the
latency of DRAM, shared by the stages in flight; and the least time in which a stage can be issued and released. The
tiles that SMs compute at a time, a wave, take no less than DRAM needs for their part of all bytes: nothing is expected
in the L2 cache at first. Only pingpong warpgroups hide the epilogue of a tile. Where several limits are near, a wave
takes longer than the slowest of them: a norm joins them.

Coefficients are in `kernels/tuned/h200.json`; `python benchmarks/fit.py fit gemm` fits them to the GEMMs of
`benchmarks/gemm_shapes.py`. None belongs to a single tile shape or problem.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

from .... import Float32
from ...dispatch.roofline import Roofline, norm, us
from ...tuned import Coefficients
from .sm80_cost import CLUSTER_OCCUPANCY
from .sm90_config import MAX_ACC_REGISTERS, Sm90GemmConfig
from .split_k import MAX_LOADS_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ...dispatch.devices import Device
    from ...dispatch.problem import TensorLayout
    from .problem import GemmProblem

_LINE_BYTES = 128
_SECTOR_BYTES = 32
"""Bytes of a line of the L2 cache, which are the K of a stage, and of what the cache reads at a time."""
_MMA_NORM = 8
_STAGE_NORM = 6
_DRAM_NORM = 4
"""The exponents of the norms that join what limits WGMMA, a stage, and the SMs and DRAM."""
_RASTER_ROWS = 2048
"""Rows of the result that are computed side by side, for reuse in the L2 cache."""
_MIN_STAGES = 3
_MAX_STAGES = 12
_MAX_SWAP_AB_STAGES = 20
"""The most stages with swap-AB, whose stages are small: the bytes in flight count."""
_MIN_CLUSTER_SPLIT_STAGES = 4
"""Stages of K for each CTA of a split-K cluster; fewer cost more to reduce than they save."""
_MIN_SPLIT_STAGES = 6
"""Stages of K for each split whose partials a second kernel adds."""
_MAX_SPLIT_ACC_REGISTERS = 96
"""Accumulators of a thread with split-K in a cluster, which sends them from registers."""
_EPI_STAGES = 4
"""Stages of the epilogue where no MMA runs beside it: none waits for the one before."""
_TILES_ALONG_N = (1, 2, 3, 4, 5)
_WAVES = (1, 2, 3, 4)
"""Numbers of tiles along N, and of waves of tiles, for which N of a tile is made as small as it can be."""
_WIDE = (128, 160, 192, 256)
_MIN_WAVE_N = 64
_MAX_N = 256
"""N of tiles of large problems; the least that is worth whole waves; the largest."""


@dataclasses.dataclass(frozen=True)
class Sm90Coefficients(Coefficients):
    """The fitted constants of the model. Rates are of one SM, unless said."""

    table = "gemm_sm90"

    launch_us: float
    """Microseconds of a launch, and until the first MMA."""
    mma_tflops: float
    """TFLOP/s of f16 WGMMA."""
    mma_issue_cycles: float
    """Cycles of 64 rows of a WGMMA in which shared memory is not read for B: those for A, and between instructions."""
    fp8_promotion_rate: float
    """The rate of MMA whose accumulators are added up in f32 registers."""
    fp8_pingpong_rate: float
    """The same for pingpong warpgroups, where nothing runs beside that."""
    stage_us: float
    """The least microseconds from one stage to the next."""
    multicast_slowdown: float
    """That, and the latency of DRAM, in clusters, whose CTAs wait for each other."""
    l2_tbps: float
    """TB/s out of the L2 cache, while all SMs read."""
    zero_fill_tbps: float
    """TB/s of the zeros that TMA fills in for rows beyond the problem, beside what is loaded."""
    idle_sm_exponent: float
    """The power of the share of SMs that read with which each one's loads get longer."""
    misaligned_slowdown: float
    """L2 reads of rows that begin within a line; squared for those within a sector."""
    split_k_cluster_slowdown: float
    """L2 reads of clusters that split K, whose CTAs are no neighbours of others with the same operands."""
    dram_latency_us: float
    """Microseconds until a load from DRAM has come, while other SMs load."""
    dram_tbps: float
    """TB/s of the GPU's DRAM."""
    epilogue_us: float
    """Microseconds to write 128 x 128 of a tile."""
    fused_epilogue_us: float
    """Microseconds of a fused epilogue, for 128 x 128 of a tile."""
    cluster_reduce_us: float
    """Microseconds to reduce the accumulators of a split-K cluster, for 128 x 128 of a tile."""
    split_k_kernel_us: float
    """Microseconds of the kernel that adds split-K partials, beside reading and writing them in the L2 cache."""


# --- configs ---------------------------------------------------------------------------------------------------------


class Family(NamedTuple):
    """Configs to choose from that differ in N of the tile. Others were never 2 % faster on a kind of layer."""

    tile_m: int
    pingpong: bool
    swap_ab: bool
    clusters: tuple[tuple[int, int], ...] = ((1, 1),)
    split_k_cluster: tuple[int, ...] = (1,)
    split_k: bool = False
    """Whether a second kernel may add partials."""


FAMILIES = (
    Family(64, True, False, split_k_cluster=(1, 2, 4), split_k=True),
    Family(128, True, False, ((1, 1), (2, 1))),
    Family(128, False, False, ((1, 1), (2, 1)), split_k_cluster=(1, 2, 4), split_k=True),
    Family(256, False, False, ((1, 1), (1, 2))),
    Family(64, True, True, split_k_cluster=(1, 2, 4), split_k=True),
    Family(128, False, True, ((1, 1), (2, 1)), split_k_cluster=(1, 2, 4), split_k=True),
    Family(192, True, True, split_k_cluster=(1, 2, 4)),
    Family(256, False, True, ((1, 1), (2, 1))),
)


def candidates(problem: GemmProblem, device: Device, grouped: bool = False) -> Iterator[Sm90GemmConfig]:
    """Yield the configs to choose from, each with as many stages as fit. `grouped`: of a grouped GEMM."""
    # TMA would write rows of the next group
    transposes = not grouped and all(kind.width == 16 for kind in problem.out_types)
    swaps = not (problem.block_scales or problem.reduces_rows)
    misaligned = any(pitch % _LINE_BYTES for pitch, _ in _pitches(problem))
    for family in FAMILIES:
        # with swap-AB multicast is worth it where it saves additional lines
        clusters = family.clusters if misaligned or not family.swap_ab else ((1, 1),)
        # TMA is slow to fill in rows that are not there
        mostly_empty = swaps and not (family.swap_ab or grouped) and 2 * problem.shape[1] <= family.tile_m
        if mostly_empty or (family.swap_ab and not swaps):
            continue
        for splits in (1,) if grouped or problem.reduces_rows else family.split_k_cluster:
            for tile_n in _tile_n(problem, family, splits, device):
                for cluster in clusters if splits == 1 else ((1, 1),):
                    config = _config(problem, device, family, tile_n, cluster, splits, transposes)
                    if config is not None:
                        yield config
                        if family.split_k and cluster == (1, 1) and not grouped:
                            yield from _split_k_configs(problem, config, device)


def _tile_n(problem: GemmProblem, family: Family, splits: int, device: Device) -> list[int]:
    """Return N of tiles: as small as a few tiles, or whole waves of tiles, have all of it; and some large ones."""
    batches, rows, columns = problem.shape
    along_m, along_n = (columns, rows) if family.swap_ab else (rows, columns)
    unit = math.lcm(8 * splits, 8 if family.swap_ab and not problem.dtype.is_integer else 16)
    tiles_m = batches * _ceil(along_m, family.tile_m) * splits
    counts = (count for waves in _WAVES if (count := waves * device.sm_count // tiles_m))
    equal = {_ceil(along_n, count * unit) * unit for count in _TILES_ALONG_N}
    narrow = {n for count in counts if (n := _ceil(along_n, count * unit) * unit) >= _MIN_WAVE_N}
    wide = {*_WIDE} if along_n > _MAX_N else set[int]()
    return sorted(n for n in equal | narrow | wide if n <= _MAX_N)


def _config(
    problem: GemmProblem,
    device: Device,
    family: Family,
    tile_n: int,
    cluster: tuple[int, int],
    splits: int,
    transposes: bool,
) -> Sm90GemmConfig | None:
    """Return a config of a family; None: there is none."""
    tile_k = 8 * _LINE_BYTES // problem.dtype.width
    tile_m = family.tile_m
    swap_ab = family.swap_ab
    if splits > 1 and _ceil(problem.k, tile_k) < splits * _MIN_CLUSTER_SPLIT_STAGES:
        return None
    if tile_n % (8 * cluster[0]):  # each CTA of a cluster loads a part for all
        return None
    transpose_out = transposes and swap_ab and splits == 1
    _, rows, columns = problem.shape
    # where all rows are computed side by side, CTAs that read the same tile of the larger operand are neighbours
    one_wide = swap_ab and tile_n < rows <= min(_RASTER_ROWS, columns // 2)
    config = Sm90GemmConfig(
        (tile_m, tile_n, tile_k),
        cluster,
        1,
        1 if one_wide else max(1, _RASTER_ROWS // (tile_m * cluster[0])),
        family.pingpong,
        splits,
        swap_ab,
        transpose_out=transpose_out,
        epi_stages=_EPI_STAGES if problem.out_bits[0] <= 16 and not (family.pingpong or transpose_out) else 2,
    )
    if config.acc_registers(problem.promoted) > (_MAX_SPLIT_ACC_REGISTERS if splits > 1 else MAX_ACC_REGISTERS):
        return None
    return _with_stages(problem, config, device, problem.out_bits)


def _split_k_configs(problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> Iterator[Sm90GemmConfig]:
    """Yield a config with K split for a second kernel, among all SMs or half of them."""
    batches, m, n = problem.shape
    tile_m, tile_n, tile_k = config.tile_shape_mnk
    refused = problem.block_scales or problem.reduces_rows or problem.acc_dtype is not Float32
    if config.cluster_shape_mn != (1, 1) or batches > 1 or n % 4 or refused:
        return
    if config.swap_ab:
        m, n = n, m
    clusters = _ceil(m, tile_m) * _ceil(n, tile_n) * config.split_k_cluster
    splits = config.split_k_cluster
    stages = _ceil(problem.k, tile_k)
    counts = set[int]()
    for ctas in (device.sm_count, device.sm_count // 2):
        if most := min(ctas // clusters, stages // (_MIN_SPLIT_STAGES * splits)):
            counts.add(_ceil(stages, _ceil(stages, most * splits) * splits))
    counts.discard(1)
    for count in sorted(counts):
        split = dataclasses.replace(config, transpose_out=False, split_k=count)
        if split := _with_stages(problem, split, device, (32,)):  # partials are f32
            yield split


def _with_stages(
    problem: GemmProblem, config: Sm90GemmConfig, device: Device, out_bits: tuple[int, ...]
) -> Sm90GemmConfig | None:
    """Return a config with as many stages as fit beside results with some bits; None: too few do."""
    if not (config.smem_epilogue or config.epi_tile_n(*out_bits, fused=len(out_bits) > 1)):
        return None
    bits = problem.dtype.width
    scaled = bool(problem.block_scales)
    one = dataclasses.replace(config, ab_stages=1)
    free = device.smem - one.smem_bytes(bits, *out_bits, block_scaled=scaled)
    most = _MAX_SWAP_AB_STAGES if config.swap_ab else _MAX_STAGES
    stages = min(most, 1 + free // config.stage_bytes(bits, scaled))
    least = max(_MIN_STAGES, config.split_k_stages(_LINE_BYTES))
    return dataclasses.replace(config, ab_stages=stages) if stages >= least else None


# --- the model -------------------------------------------------------------------------------------------------------


def roofline(
    problem: GemmProblem,
    config: Sm90GemmConfig,
    device: Device,
    c: Sm90Coefficients | None = None,
    growth: Mapping[str, float] | None = None,
) -> Roofline:
    """Return what a GEMM is expected to spend time on. `growth`: of a grouped one, how much longer units take for the
    rows that tiles of groups have besides."""
    c = c or Sm90Coefficients.on(device)
    work = _Work.of(problem, config, device)
    in_cluster = c.multicast_slowdown if config.cluster_shape_mn != (1, 1) else 1.0
    padding = work.padding if growth is None else 0.0
    stage = {
        "tensor cores": _mma_us(problem, config, c),
        "L2 cache": work.busy**c.idle_sm_exponent * _operand_us(problem, config, padding, c),
        "DRAM latency": in_cluster * c.dram_latency_us / (config.ab_stages - 1),
        "stage": in_cluster * c.stage_us,
    }
    stage = {name: time * (growth or {}).get(name, 1.0) for name, time in stage.items()}
    memory = us(problem.bytes, c.dram_tbps)
    whole, part = divmod(work.waves, 1)
    tile = work.steps * norm(_STAGE_NORM, *stage.values())
    joined = whole * norm(_DRAM_NORM, tile, memory / work.waves)
    if part:
        # a part of a wave after whole ones begins at different times, and moves fewer bytes at a time
        joined += norm(_DRAM_NORM, tile, memory / work.waves * (math.sqrt(part) if whole else part))
    steps = math.ceil(work.waves) * work.steps
    units = {**{name: steps * time for name, time in stage.items()}, "memory": memory}
    return Roofline(units, _phases(problem, config, device, work, c), joined)


def _phases(
    problem: GemmProblem, config: Sm90GemmConfig, device: Device, work: _Work, c: Sm90Coefficients
) -> dict[str, float]:
    """Return the times of the launch, of epilogues that nothing hides, and of split-K."""
    splits = config.split_k_cluster * config.split_k
    waves = math.ceil(work.waves)
    # with pingpong only the last epilogue is not hidden; with split-K a CTA has one tile
    epilogues = 1 if config.pingpong and splits == 1 else waves
    phases = {"launch": c.launch_us, "epilogue": _epilogue_us(problem, config, work, c) * epilogues}
    if config.split_k_cluster > 1:
        phases["cluster reduction"] = c.cluster_reduce_us * work.area * (1 - 1 / config.split_k_cluster) * waves
    if splits > 1:
        phases["first loads of waves"] = c.dram_latency_us * (waves - 1)
    if config.split_k > 1:
        partials = config.split_k * work.m * work.n * 4
        kernels = _ceil(config.split_k, MAX_LOADS_AHEAD) * c.split_k_kernel_us
        phases["split-K reduction"] = kernels + 2 * us(partials, device.sm_count * c.l2_tbps)
    return phases


class _Work(NamedTuple):
    """How a config divides a problem: M and N after swap-AB, and what a CTA does."""

    m: int
    n: int
    waves: float
    """Tiles of all CTAs, those that split K and the padding to whole clusters included, by the CTAs that run at once."""
    busy: float
    """The share of SMs that have a tile."""
    steps: int
    """Stages of K of a tile."""
    padding: float
    """Rows and columns of a tile beyond the problem, on average."""
    area: float
    """The area of a tile, in units of 128 x 128."""

    @classmethod
    def of(cls, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> _Work:
        batches, m, n = problem.shape
        tile_m, tile_n, tile_k = config.tile_shape_mnk
        cluster_m, cluster_n = config.cluster_shape_mn
        if config.swap_ab:
            m, n = n, m
        tiles_m = _ceil(m, tile_m * cluster_m) * cluster_m
        tiles_n = _ceil(n, tile_n * cluster_n) * cluster_n
        splits = config.split_k * config.split_k_cluster
        ctas = at_once(config, device)
        waves = batches * tiles_m * tiles_n * splits / ctas
        busy = min(1.0, waves) * ctas / device.sm_count
        padding = tile_m - m / tiles_m + tile_n - n / tiles_n
        return cls(m, n, waves, busy, _ceil(_ceil(problem.k, tile_k), splits), padding, tile_m * tile_n / 128**2)


def _mma_us(problem: GemmProblem, config: Sm90GemmConfig, c: Sm90Coefficients) -> float:
    """Return the microseconds of MMA of a tile and a stage."""
    tile_m, tile_n, _ = config.tile_shape_mnk
    # of a WGMMA with 16 elements of K: tensor cores take tile_n / 2 cycles; shared memory tile_n / 4 for B, more for A
    stalls = norm(_MMA_NORM, 1.0, (c.mma_issue_cycles + tile_n / 4) / (tile_n / 2))
    tflops = c.mma_tflops
    if problem.promoted:
        tflops *= c.fp8_pingpong_rate if config.pingpong else c.fp8_promotion_rate
    return us(2 * tile_m * tile_n * (_LINE_BYTES // 2) * stalls, tflops)


def _operand_us(problem: GemmProblem, config: Sm90GemmConfig, padding: float, c: Sm90Coefficients) -> float:
    """Return the microseconds in which the operands of a tile and a stage come into shared memory."""
    tile_m, tile_n, _ = config.tile_shape_mnk
    cluster_m, cluster_n = config.cluster_shape_mn
    element_bytes = problem.dtype.width // 8
    sides = (tile_n, tile_m) if config.swap_ab else (tile_m, tile_n)
    slowdowns = [
        c.misaligned_slowdown ** _misalignment(pitch, k_major, tile * element_bytes)
        for tile, (pitch, k_major) in zip(sides, _pitches(problem), strict=True)
    ]
    if config.swap_ab:
        slowdowns.reverse()
    # multicast brings what the other CTAs of a cluster read
    lines = tile_m / cluster_n * slowdowns[0] + tile_n / cluster_m * slowdowns[1]
    lines *= c.split_k_cluster_slowdown if config.split_k_cluster > 1 else 1.0
    return us(_LINE_BYTES * lines, c.l2_tbps) + us(_LINE_BYTES * padding, c.zero_fill_tbps)


def _epilogue_us(problem: GemmProblem, config: Sm90GemmConfig, work: _Work, c: Sm90Coefficients) -> float:
    """Return the microseconds of the epilogue of a tile."""
    area = work.area / config.split_k_cluster
    input_bytes = sum(2 * 128**2 for x in problem.epilogue_inputs if not _broadcast(x))
    fused = 0.0 if problem.fusion.plain or config.pingpong else c.fused_epilogue_us * work.area
    return c.epilogue_us * area + us(input_bytes * area, c.l2_tbps) + fused


def _broadcast(x: TensorLayout) -> bool:
    """Return whether a tensor has fewer elements than its shape says."""
    return not all(step for step, extent in zip(x.strides, x.shape, strict=True) if extent > 1)


def at_once(config: Sm90GemmConfig, device: Device) -> int:
    """Return the CTAs of a config that run at once, in whole clusters, of which there is one at least."""
    size = config.cluster_size
    return max(1, round(device.sm_count * CLUSTER_OCCUPANCY[size - 1]) // size) * size


@functools.lru_cache(64)
def _pitches(problem: GemmProblem) -> tuple[tuple[int, bool], ...]:
    """Return the bytes between rows of A and of B, and whether these are rows of K."""
    return tuple(
        ((problem.k if x.k_major else extent) * x.dtype.width // 8, x.k_major)
        for x, extent in zip(problem.operands(), problem.shape[1:], strict=True)
    )


def _misalignment(pitch: int, k_major: bool, tile_bytes: int) -> int:
    """Return 0 for an operand whose rows begin with lines of the L2 cache, 1 for sectors, 2 for neither.

    Where rows are not those of K, a tile that is no whole number of lines is read in shorter pieces.
    """
    if pitch % _SECTOR_BYTES or not (k_major or tile_bytes % _LINE_BYTES == 0):
        return 2
    return 1 if pitch % _LINE_BYTES else 0


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
