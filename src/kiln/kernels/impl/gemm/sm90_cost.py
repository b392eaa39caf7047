"""The configs that GEMM on sm_90a chooses among, and the model that chooses.

The model is a roofline of one SM, which computes its tiles one after the other, a stage of K at a time. A stage takes
as long as its MMAs, or as its operands take to come: out of the L2 cache, once for all CTAs of a cluster, and into
shared memory. Only pingpong warpgroups hide the epilogue of a tile. No GEMM is faster than DRAM, or, if it is large,
than the power limit. Terms that overlap are joined by a norm that is little more than the longest of them (`total`).

Coefficients and tile shapes are in `kernels/tuned/h200.json`; `python benchmarks/fit.py fit gemm` fits the coefficients
to measurements. None belongs to a single tile shape, so that shapes that were never measured are judged like the
others. The table also has the problems whose best measured config is more than 2 % faster than the model's
(`measured_choice`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32
from ...tuned import coefficients
from .sm80_cost import CLUSTER_OCCUPANCY, LAUNCH_US
from .sm90_config import MAX_ACC_REGISTERS, Sm90GemmConfig
from .split_k import MAX_LOADS_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from ...dispatch.problem import TensorLayout
    from .problem import GemmProblem

_LINE_BYTES, _SECTOR_BYTES = 128, 32
"""Bytes of a line of the L2 cache, which are the K of a stage, and of what the cache reads at a time."""
_L2_RESIDENT_BYTES = 38e6
"""Bytes that stay in the L2 cache from one GEMM to the next."""
_POWER_LIMITED_FLOPS = 8e10
"""The operations from which on a GEMM is long enough for the power limit to be felt."""
_OVERLAP_NORM = 8
"""The exponent of the norm that joins terms which overlap."""
_RASTER_ROWS = 2048
"""Rows of the result that are computed side by side, for reuse in the L2 cache."""
_MIN_STAGES, _MAX_STAGES = 3, 12
_MAX_SWAP_AB_STAGES = 20
"""The most stages with swap-AB, whose stages are small: the bytes in flight count."""
_MIN_CLUSTER_SPLIT_STAGES = 4
"""Stages of K for each CTA of a split-K cluster; fewer cost more to reduce than they save."""
_MIN_SPLIT_STAGES = 6
"""Stages of K for each split whose partials a second kernel adds."""
_SPLIT_K_CLUSTER = (1, 2, 4, 8)
_MAX_SPLIT_ACC_REGISTERS = 96
"""Accumulators of a thread with split-K in a cluster, which sends them from registers."""
_EPI_STAGES = 4
"""Stages of the epilogue where no MMA runs beside it: none waits for the one before."""
_SWAP_AB_TILE_N = (8, 16, 24, 32, 48, 64, 80, 96, 128, 144, 160, 192, 224, 256)
"""N of tiles with swap-AB: the least that holds all rows of the result is taken."""
_SWAP_AB_WAVES = (1, 2, 3, 4)
"""Waves of tiles for which N of a swap-AB tile is made as small as it can be."""
_SWAP_AB_TILE_M = ((64, True), (128, False), (192, True), (256, False))
"""M of tiles with swap-AB, and whether they are computed by pingpong warpgroups."""


@dataclasses.dataclass(frozen=True)
class Coefficients:
    """The fitted constants of the model. Rates are of one SM, unless said; slowdowns multiply times."""

    cooperative_tflops: float
    """TFLOP/s of f16 WGMMA with two warpgroups on one tile."""
    pingpong_tflops: float
    """TFLOP/s of f16 WGMMA with pingpong warpgroups."""
    mma_operand_cycles: float
    """Cycles of shared memory for the A operand (64 rows) of a cooperative WGMMA, beside those for B."""
    mma_issue_cycles: float
    """The same of a pingpong warpgroup, which also waits between its instructions."""
    pingpong_cluster_slowdown: float
    """MMA of pingpong warpgroups in clusters, whose CTAs wait for each other."""
    swap_ab_slowdown: float
    """All of a GEMM with swap-AB."""
    fp8_promotion_rate: float
    """The rate of MMA whose accumulators are added up in f32 registers; squared with pingpong, where nothing runs
    beside that."""
    l2_tbps: float
    """TB/s out of the L2 cache."""
    smem_fill_tbps: float
    """TB/s into shared memory, with multicast and the zeros that TMA fills in."""
    misaligned_slowdown: float
    """L2 reads of rows that begin within a line; squared for those within a sector."""
    idle_sm_exponent: float
    """The power of the share of busy SMs with which each one's L2 reads get longer."""
    cluster_sync_us: float
    """Microseconds in which the CTAs of a cluster with multicast wait for each other, at the begin and at the end."""
    epilogue_us: float
    """Microseconds to write a tile."""
    fused_epilogue_us: float
    """Microseconds of a fused epilogue, for 128 x 128 of a tile."""
    cluster_reduce_us: float
    """Microseconds to reduce the accumulators of a split-K cluster, for 128 x 128 of a tile."""
    split_k_kernel_us: float
    """Microseconds of the kernel that adds split-K partials."""
    split_k_tbps: float
    """TB/s of the GPU for partials, written and read."""
    dram_tbps: float
    """TB/s of the GPU's DRAM."""
    power_tflops: float
    """TFLOP/s of the GPU that the power limit leaves to MMA alone."""
    power_l2_tbps: float
    """TB/s of the GPU that it leaves to L2 reads alone."""


COEFFICIENTS = Coefficients(**coefficients("gemm_sm90"))


# --- configs ---------------------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A tile shape to choose from, with its cluster, its schedule, and each `split_k_cluster` that it may have."""

    tile_shape_mn: tuple[int, int]
    cluster_shape_mn: tuple[int, int] = (1, 1)
    pingpong: bool = False
    split_k_cluster: tuple[int, ...] = (1,)


TILES = tuple(Tile(**row) for row in coefficients("gemm_sm90_tiles")["tiles"])


def candidates(problem: GemmProblem, device: Device, grouped: bool = False) -> Iterator[Sm90GemmConfig]:
    """Yield the configs to choose from, each with as many stages as fit. `grouped`: of a grouped GEMM."""
    # TMA would write rows of the next group
    transposes = not grouped and all(kind.width == 16 for kind in problem.out_types)
    swaps = not (problem.block_scales or problem.reduces_rows)
    _, rows, columns = problem.shape
    swap_ab = [(tile, True) for tile in _swap_ab_tiles(problem, device, transposes)] if swaps else []
    for tile, swap in [*((tile, False) for tile in TILES), *swap_ab]:
        (tile_m, tile_n), (_, cluster_n) = tile.tile_shape_mn, tile.cluster_shape_mn
        if swaps and not (swap or grouped) and 2 * rows <= tile_m:
            continue  # TMA is slow to fill in rows that are not there
        if cluster_n > 1 and tile_n < 128 and columns > cluster_n * tile_n:
            continue  # these are for clusters that have all columns, so that rows are read once
        for splits in tile.split_k_cluster:
            config = _config(problem, device, tile, swap, splits, transposes)
            if config is not None:
                yield config
                yield from _split_k_configs(problem, config, device)


def _config(
    problem: GemmProblem, device: Device, tile: Tile, swap_ab: bool, splits: int, transposes: bool
) -> Sm90GemmConfig | None:
    """Return the config of a tile; None: there is none."""
    bits, out_bits = problem.dtype.width, problem.out_bits
    (tile_m, tile_n), tile_k = tile.tile_shape_mn, 8 * _LINE_BYTES // bits
    too_short = _ceil(problem.k, tile_k) < splits * _MIN_CLUSTER_SPLIT_STAGES
    if splits > 1 and (problem.reduces_rows or too_short or tile_n % (8 * splits)):
        return None
    transpose_out = transposes and swap_ab and splits == 1
    _, rows, columns = problem.shape
    # where all rows are computed side by side, CTAs that read the same tile of the larger operand are neighbours
    one_wide = swap_ab and tile_n < rows <= min(_RASTER_ROWS, columns // 2)
    raster_group = 1 if one_wide else max(1, _RASTER_ROWS // (tile_m * tile.cluster_shape_mn[0]))
    config = Sm90GemmConfig(
        (tile_m, tile_n, tile_k), tile.cluster_shape_mn, 1, raster_group, tile.pingpong, splits, swap_ab,
        epi_stages=_EPI_STAGES if out_bits[0] <= 16 and not (tile.pingpong or transpose_out) else 2,
        transpose_out=transpose_out,
    )  # fmt: skip
    if config.acc_registers(problem.promoted) > (_MAX_SPLIT_ACC_REGISTERS if splits > 1 else MAX_ACC_REGISTERS):
        return None
    if not (config.smem_epilogue or config.epi_tile_n(*out_bits, fused=len(out_bits) > 1)):
        return None
    scaled = bool(problem.block_scales)
    free = device.smem - config.smem_bytes(bits, *out_bits, block_scaled=scaled)
    stages = min(_MAX_SWAP_AB_STAGES if swap_ab else _MAX_STAGES, 1 + free // config.stage_bytes(bits, scaled))
    return dataclasses.replace(config, ab_stages=stages) if stages >= _MIN_STAGES else None


def _swap_ab_tiles(problem: GemmProblem, device: Device, transposes: bool) -> Iterator[Tile]:
    """Yield tiles with swap-AB: all rows of the result in one, if they are few; else as narrow as some waves allow."""
    batches, rows, columns = problem.shape
    all_rows = [n for n in _SWAP_AB_TILE_N if n >= rows][:1]
    unit = 16 if problem.dtype.is_integer else 8  # of N of WGMMA
    for tile_m, pingpong in _SWAP_AB_TILE_M:
        tiles_m = batches * _ceil(columns, tile_m)
        tiles_n = (waves * device.sm_count // tiles_m for waves in _SWAP_AB_WAVES)
        narrow = {n for count in tiles_n if (n := _narrowest(rows, count, unit)) >= 64}
        for n in all_rows:
            yield Tile((tile_m, n), (1, 1), pingpong, _SPLIT_K_CLUSTER)
        if rows > 64 and transposes and (tile_m, pingpong) != (64, True):
            misaligned = any(pitch % _LINE_BYTES for pitch, _ in _pitches(problem))
            for n in narrow - set(all_rows):
                yield Tile((tile_m, n), (1, 1), pingpong)
                if n % 16 == 0 and tiles_m % 2 == 0 and misaligned:  # multicast saves the additional lines
                    yield Tile((tile_m, n), (2, 1), pingpong)


def _narrowest(rows: int, tiles: int, unit: int) -> int:
    """Return the least N, a multiple of a unit, with which so many tiles have all rows; 0: there is none."""
    n = _ceil(_ceil(rows, tiles), unit) * unit if tiles else 0
    return n if n <= 256 else 0


def _split_k_configs(problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> Iterator[Sm90GemmConfig]:
    """Yield a config with K split for a second kernel, among all SMs or half of them."""
    (batches, m, n), (tile_m, tile_n, tile_k) = problem.shape, config.tile_shape_mnk
    refused = problem.block_scales or problem.reduces_rows or problem.acc_dtype is not Float32
    if config.cluster_shape_mn != (1, 1) or batches > 1 or n % 4 or refused:
        return
    if config.swap_ab:
        m, n = n, m
    clusters, splits = _ceil(m, tile_m) * _ceil(n, tile_n) * config.split_k_cluster, config.split_k_cluster
    bits, stages, counts = problem.dtype.width, _ceil(problem.k, tile_k), set[int]()
    for ctas in (device.sm_count, device.sm_count // 2):
        if most := min(ctas // clusters, stages // (_MIN_SPLIT_STAGES * splits)):
            counts.add(_ceil(stages, _ceil(stages, most * splits) * splits))
    counts.discard(1)
    if not counts:
        return
    config = dataclasses.replace(config, transpose_out=False)
    missing = config.smem_bytes(bits, 32) - device.smem  # partials are f32
    stages = config.ab_stages - max(0, _ceil(missing, config.stage_bytes(bits)))
    if stages >= _MIN_STAGES and (config.smem_epilogue or config.epi_tile_n(32)):
        yield from (dataclasses.replace(config, split_k=count, ab_stages=stages) for count in counts)


def measured_choice(problem: GemmProblem) -> Sm90GemmConfig | None:
    """Return the config that was measured to be better than the model's choice for a problem; None: there is none."""
    batches, m, n = problem.shape
    dense = all(x.dtype is problem.dtype for x in (problem.b, *problem.outs)) and problem.fusion.plain
    if batches > 1 or not dense or problem.extra_outs or problem.epilogue_inputs:
        return None
    a, b = problem.operands()
    layout = ("N" if a.k_major else "T") + ("T" if b.k_major else "N")
    return _measured_choices().get((problem.dtype.__name__, layout, m, n, problem.k))


_PROBLEM_FIELDS = "dtype", "layout", "m", "n", "k"


@functools.cache
def _measured_choices() -> dict[tuple[Any, ...], Sm90GemmConfig]:
    rows = coefficients("gemm_sm90_choices")["problems"]
    return {tuple(row[name] for name in _PROBLEM_FIELDS): Sm90GemmConfig(**row["config"]) for row in rows}


# --- the model -------------------------------------------------------------------------------------------------------


def expected(problem: GemmProblem, config: Sm90GemmConfig, device: Device, c: Coefficients = COEFFICIENTS) -> float:
    """Return the microseconds that a GEMM is expected to take."""
    return (c.swap_ab_slowdown if config.swap_ab else 1.0) * total(cost_terms(problem, config, device, c))


def total(terms: dict[str, float]) -> float:
    """Return the microseconds of a launch, and of terms that overlap."""
    return LAUNCH_US + sum(us**_OVERLAP_NORM for us in terms.values()) ** (1 / _OVERLAP_NORM)


def cost_terms(
    problem: GemmProblem,
    config: Sm90GemmConfig,
    device: Device,
    c: Coefficients = COEFFICIENTS,
    grouped: bool = False,
) -> dict[str, float]:
    """Return the microseconds of the model's terms, which overlap: each with the epilogues that nothing hides."""
    work = _Work.of(problem, config, device)
    mma_us, l2_us = _mma_us(problem, config, c), _operand_us(problem, config, work, c, grouped)
    reduce_us = c.cluster_reduce_us * work.area * (1 - 1 / config.split_k_cluster)
    # with pingpong only the last epilogue is not hidden; CTAs of a split-K cluster reduce each tile before the next
    fixed_us = _epilogue_us(problem, config, work, c) * (1 if config.pingpong else work.waves)
    fixed_us += reduce_us * work.waves + (c.cluster_sync_us if config.cluster_shape_mn != (1, 1) else 0.0)
    partials = config.split_k * work.m * work.n * 4 if config.split_k > 1 else 0
    if partials:
        rounds = _ceil(config.split_k, MAX_LOADS_AHEAD)
        fixed_us += rounds * c.split_k_kernel_us + 2 * partials / (c.split_k_tbps * 1e6)
    terms = {"MMA": work.steps * mma_us, "L2 cache": work.steps * l2_us}
    moved = problem.bytes + partials
    if moved > _L2_RESIDENT_BYTES:
        terms["DRAM"] = moved / (c.dram_tbps * 1e6)
    terms = {name: us + fixed_us for name, us in terms.items()}
    if problem.flops > _POWER_LIMITED_FLOPS:
        tflops = c.power_tflops * _fp8_rate(problem, config, c) * 16 / problem.dtype.width
        l2_bytes = work.tiles * work.steps / work.waves * sum(_tile_rows(config)) * _LINE_BYTES
        terms["power"] = (problem.flops / tflops + l2_bytes / c.power_l2_tbps) / 1e6
    return terms


class _Work(NamedTuple):
    """How a config divides a problem: M and N after swap-AB, tiles, and what the SM with most of them does."""

    m: int
    n: int
    tiles: int
    """Tiles of all CTAs, those that split K and the padding to whole clusters included."""
    ctas: int
    """CTAs that run at once."""
    waves: int
    """Tiles of the SM."""
    steps: int
    """Stages of K that it loads for them."""
    padding: float
    """Rows and columns beyond the problem, of one of its tiles on average."""
    area: float
    """The area of a tile, in units of 128 x 128."""

    @classmethod
    def of(cls, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> _Work:
        (batches, m, n), (tile_m, tile_n, tile_k) = problem.shape, config.tile_shape_mnk
        cluster_m, cluster_n = config.cluster_shape_mn
        if config.swap_ab:
            m, n = n, m
        tiles_m = _ceil(m, tile_m * cluster_m) * cluster_m
        tiles_n = _ceil(n, tile_n * cluster_n) * cluster_n
        tiles = batches * config.split_k * tiles_m * tiles_n * config.split_k_cluster
        ctas = at_once(config, device)
        waves = _ceil(tiles, ctas)
        steps = waves * _ceil(_ceil(problem.k, tile_k), config.split_k_cluster * config.split_k)
        padding = (tiles_m * tile_m - m) * _ceil(waves, tiles_m) + (tiles_n * tile_n - n) * _ceil(waves, tiles_n)
        return cls(m, n, tiles, ctas, waves, steps, padding / waves, tile_m * tile_n / 128**2)


def _mma_us(problem: GemmProblem, config: Sm90GemmConfig, c: Coefficients) -> float:
    """Return the microseconds of MMA of a tile and a stage."""
    tile_m, tile_n, _ = config.tile_shape_mnk
    # of a WGMMA with 16 elements of K: tensor cores take tile_n / 2 cycles; shared memory tile_n / 4 for B, more for A
    operand_cycles = (c.mma_issue_cycles if config.pingpong else c.mma_operand_cycles) + tile_n / 4
    stalls = (1 + (operand_cycles / (tile_n / 2)) ** _OVERLAP_NORM) ** (1 / _OVERLAP_NORM)
    if config.pingpong and config.cluster_shape_mn != (1, 1):
        stalls *= c.pingpong_cluster_slowdown
    tflops = (c.pingpong_tflops if config.pingpong else c.cooperative_tflops) * _fp8_rate(problem, config, c)
    return 2 * tile_m * tile_n * (_LINE_BYTES // 2) * stalls / (tflops * 1e6)


def _fp8_rate(problem: GemmProblem, config: Sm90GemmConfig, c: Coefficients) -> float:
    """Return the rate of MMA with accumulators that are promoted, relative to others."""
    return c.fp8_promotion_rate ** (2 if config.pingpong else 1) if problem.promoted else 1.0


def _operand_us(problem: GemmProblem, config: Sm90GemmConfig, work: _Work, c: Coefficients, grouped: bool) -> float:
    """Return the microseconds in which the operands of a tile and a stage come into shared memory."""
    tile_m, tile_n, _ = config.tile_shape_mnk
    element_bytes = problem.dtype.width // 8
    sides = (tile_n, tile_m) if config.swap_ab else (tile_m, tile_n)
    slowdowns = [
        c.misaligned_slowdown ** _misalignment(pitch, k_major, tile * element_bytes)
        for tile, (pitch, k_major) in zip(sides, _pitches(problem), strict=True)
    ]
    if config.swap_ab:
        slowdowns.reverse()
    lines = sum(rows * slowdown for rows, slowdown in zip(_tile_rows(config), slowdowns, strict=True))
    filled = 0.0 if grouped else work.padding  # rows that TMA fills in; those of a grouped GEMM are the next group's
    us_per_row = _LINE_BYTES / 1e6
    us = us_per_row * max(lines / c.l2_tbps, (tile_m + tile_n) / c.smem_fill_tbps)
    # the fewer SMs read, the sooner each has its operands
    busy = (work.tiles / (work.waves * work.ctas)) ** c.idle_sm_exponent
    return busy * (us + us_per_row * filled / c.smem_fill_tbps)


def _tile_rows(config: Sm90GemmConfig) -> tuple[float, float]:
    """Return the rows of M and of N that a CTA reads from the L2 cache for a tile: multicast brings the others."""
    (tile_m, tile_n, _), (cluster_m, cluster_n) = config.tile_shape_mnk, config.cluster_shape_mn
    return tile_m / cluster_n, tile_n / cluster_m


def _epilogue_us(problem: GemmProblem, config: Sm90GemmConfig, work: _Work, c: Coefficients) -> float:
    """Return the microseconds of the epilogue of a tile."""
    us = c.epilogue_us
    input_bytes = sum(2 * 128**2 for x in problem.epilogue_inputs if not _broadcast(x))
    us += work.area * input_bytes / (c.smem_fill_tbps * 1e6) / config.split_k_cluster
    if not (problem.fusion.plain or config.pingpong):
        us += c.fused_epilogue_us * work.area
    return us


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
