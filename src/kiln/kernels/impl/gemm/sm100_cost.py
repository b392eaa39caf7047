"""The configs that GEMM with tcgen05 chooses among, and the model that chooses.

Nothing in it was measured: all times are predicted. The model is a roofline of one SM, a stage of K at a time. A stage
takes as long as the slowest of: its MMAs; the port of shared memory, by which MMAs read operands and TMA writes them;
the L2 cache; the latency of DRAM, shared by the stages in flight; and the least time from stage to stage. So a pair of
CTAs, each of which has half of B, is worth it, and two accumulators that share B again. The epilogue of a tile is hidden
behind the next one if tensor memory has room for both.

Figures and their sources are in `kernels/tuned/b200.json`; clock, SMs and bandwidth are the device's.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

from .... import Float32
from ...dispatch.roofline import Roofline, norm, us
from ...tuned import predicted
from .sm100_config import CTA_M, EPI_N, Sm100GemmConfig
from .split_k import MAX_LOADS_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from ...dispatch.problem import TensorLayout
    from .problem import GemmProblem

_K_BYTES = 128
"""Bytes of K of a stage."""
_MMA_CYCLES = 2
"""Cycles that the tensor cores of an SM take for 128 rows, one column and these bytes, whatever the type."""
_STAGE_NORM = 6
_DRAM_NORM = 4
"""The exponents of the norms that join what limits a stage, and the SMs and DRAM."""
_CLOCK_MHZ = 1850
"""Of a GPU that is not known."""
_BANDWIDTH_GBS = 8000
_RASTER_ROWS = 2048
"""Rows of the result that are computed side by side, for reuse in the L2 cache."""
_MIN_STAGES = 3
_MAX_STAGES = 12
_MIN_SPLIT_STAGES = 6
"""Stages of K for each split whose partials a second kernel adds."""
_EPI_STAGES = (4, 2)
_WIDE = (64, 96, 128, 160, 192, 224, 256)
_MAX_N = 256
_TILES_ALONG_N = (1, 2, 3, 4)


class Family(NamedTuple):
    """Configs to choose from that differ in N of the tile."""

    accumulators: int
    pair: bool
    swap_ab: bool = False
    clusters: tuple[tuple[int, int], ...] = ((1, 1),)


FAMILIES = (
    Family(1, False),
    Family(1, True, clusters=((2, 1), (4, 1), (2, 2))),
    Family(2, True, clusters=((2, 1),)),
    Family(1, False, True),
    Family(1, True, True, ((2, 1),)),
)


def candidates(problem: GemmProblem, device: Device, vector: int = 0) -> Iterator[Sm100GemmConfig]:
    """Yield the configs to choose from, each with as many stages as fit. `vector`: elements with one scale factor."""
    if vector:
        yield from _scaled_configs(problem, device, vector)
        return
    for family in FAMILIES:
        if family.swap_ab and problem.reduces_rows:
            continue
        for tile_n in _tile_n(problem, family):
            for cluster in family.clusters:
                for dynamic in (False, True):
                    config = _config(problem, device, family, tile_n, cluster, dynamic)
                    if config is not None:
                        yield config
                        if not dynamic and cluster == family.clusters[0]:
                            yield from _split_k_configs(problem, config, device)


def _scaled_configs(problem: GemmProblem, device: Device, vector: int) -> Iterator[Sm100GemmConfig]:
    """Yield the configs for operands with scale factors, whose tiles are whole atoms of them."""
    for family in FAMILIES:
        if family.swap_ab or family.accumulators > 1:
            continue
        for tile_n in (CTA_M, 2 * CTA_M):
            for dynamic in (False, True):
                config = _config(problem, device, family, tile_n, family.clusters[0], dynamic)
                if config is not None:
                    config = dataclasses.replace(config, acc_stages=2 if tile_n == CTA_M else 1)
                    config = _with_stages(problem, config, device, problem.out_bits, vector)
                if config is not None:
                    yield config
                    if not dynamic:
                        yield from _split_k_configs(problem, config, device, vector)


def _tile_n(problem: GemmProblem, family: Family) -> list[int]:
    """Return N of tiles: as small as a few tiles have all of it, and some large ones."""
    _, rows, columns = problem.shape
    along_n = rows if family.swap_ab else columns
    if family.accumulators > 1:
        return [_MAX_N]
    unit = 32 if family.pair or not family.swap_ab else 16
    equal = {_ceil(along_n, count * unit) * unit for count in _TILES_ALONG_N}
    wide = {*_WIDE} if along_n > _MAX_N else set[int]()
    return sorted(n for n in equal | wide if n <= _MAX_N)


def _config(
    problem: GemmProblem, device: Device, family: Family, tile_n: int, cluster: tuple[int, int], dynamic: bool
) -> Sm100GemmConfig | None:
    """Return a config of a family; None: there is none."""
    tile_m = CTA_M * (2 if family.pair else 1) * family.accumulators
    tile_k = 8 * _K_BYTES // problem.dtype.width
    rows = tile_m * cluster[0] // (2 if family.pair else 1)
    config = Sm100GemmConfig(
        (tile_m, tile_n, tile_k),
        cluster,
        1,
        1 if family.accumulators * tile_n * 2 > 2 * _MAX_N else 2,
        2,
        max(1, _RASTER_ROWS // rows),
        family.pair,
        dynamic,
        family.swap_ab,
    )
    if tile_n // cluster[0] % 8:
        return None
    return _with_stages(problem, config, device, problem.out_bits)


def _with_stages(
    problem: GemmProblem, config: Sm100GemmConfig, device: Device, out_bits: tuple[int, ...], vector: int = 0
) -> Sm100GemmConfig | None:
    """Return a config with as many stages as fit beside results with some bits; None: too few do."""
    bits = problem.dtype.width
    for epi_stages in _EPI_STAGES:
        one = dataclasses.replace(config, ab_stages=1, epi_stages=epi_stages)
        free = device.smem - one.smem_bytes(bits, *out_bits, vector=vector)
        stages = min(_MAX_STAGES, 1 + free // config.stage_bytes(bits, vector))
        if stages > _MIN_STAGES or (epi_stages == _EPI_STAGES[-1] and stages == _MIN_STAGES):
            return dataclasses.replace(one, ab_stages=stages)
    return None


def _split_k_configs(
    problem: GemmProblem, config: Sm100GemmConfig, device: Device, vector: int = 0
) -> Iterator[Sm100GemmConfig]:
    """Yield a config with K split for a second kernel, among all SMs or half of them."""
    batches, _, n = problem.shape
    if batches > 1 or n % 4 or problem.reduces_rows or problem.acc_dtype is not Float32:
        return
    work = _Work.of(problem, config, device)
    counts = set[int]()
    for part in (1, 2):
        if most := min(int(1 / (part * work.waves)), work.steps // _MIN_SPLIT_STAGES):
            counts.add(_ceil(work.steps, _ceil(work.steps, most)))
    counts.discard(1)
    for count in sorted(counts):
        split = dataclasses.replace(config, split_k=count)
        if (split := _with_stages(problem, split, device, (32,), vector)) is not None:  # partials are f32
            yield split


def roofline(problem: GemmProblem, config: Sm100GemmConfig, device: Device, growth: float = 1.0) -> Roofline:
    """Return what a GEMM is predicted to spend time on, with so many times the tiles that its shape has."""
    c = predicted("gemm_sm100")
    work = _Work.of(problem, config, device)
    clock = device.model.clock_mhz if device.model and device.model.clock_mhz else _CLOCK_MHZ
    bandwidth = device.model.bandwidth_gbs if device.model and device.model.bandwidth_gbs else _BANDWIDTH_GBS
    _, tile_n, _ = config.tile_shape_mnk
    cluster_m, cluster_n = config.cluster_shape_mn
    rows_a = config.accumulators * CTA_M
    rows_b = tile_n // config.ctas
    reads = config.accumulators * (CTA_M + rows_b)
    # multicast brings what the other CTAs of a cluster read
    loaded = rows_a / cluster_n + rows_b * config.ctas / cluster_m
    cycles = {
        "tensor cores": config.accumulators * tile_n * _MMA_CYCLES / c["tensor_share"],
        "shared memory": (reads + rows_a + rows_b) * _K_BYTES / c["smem_bytes_per_cycle"],
        "L2 cache": work.busy * loaded * _K_BYTES / c["l2_bytes_per_cycle"],
        "stage": c["stage_cycles"],
    }
    stage = {name: count / clock for name, count in cycles.items()}
    stage["DRAM latency"] = c["dram_latency_us"] / (config.ab_stages - 1)
    memory = us(problem.bytes, c["dram_share"] * bandwidth / 1e3)
    fused = 0 if problem.fusion.plain else c["fused_epilogue_tile_cycles"]
    inputs = sum(not _broadcast(x) for x in problem.epilogue_inputs)
    epilogue = tile_n / EPI_N * (c["epilogue_tile_cycles"] + fused * (1 + inputs)) / clock
    main = work.steps * norm(_STAGE_NORM, *stage.values())
    waves = math.ceil(growth * work.waves)
    tile = max(main, epilogue) if config.acc_stages > 1 else main + epilogue
    busy = (waves - 1) * tile + main
    if waves > 1 and not config.dynamic:
        busy *= c["static_slowdown"]
    phases = {"launch": c["launch_us"], "epilogue": epilogue}
    if config.split_k > 1:
        partials = config.split_k * work.m * work.n * 4
        kernels = _ceil(config.split_k, MAX_LOADS_AHEAD) * c["split_k_kernel_us"]
        tbps = device.sm_count * c["l2_bytes_per_cycle"] * clock / 1e6
        phases["split-K reduction"] = kernels + 2 * us(partials, tbps)
    units = {**{name: waves * work.steps * time for name, time in stage.items()}, "memory": memory}
    return Roofline(units, phases, norm(_DRAM_NORM, busy, memory))


class _Work(NamedTuple):
    """How a config divides a problem: M and N after swap-AB, and what a CTA does."""

    m: int
    n: int
    waves: float
    """Clusters of tiles, those that split K included, by the clusters that run at once."""
    busy: float
    """The share of SMs that have a tile."""
    steps: int
    """Stages of K of a tile."""

    @classmethod
    def of(cls, problem: GemmProblem, config: Sm100GemmConfig, device: Device) -> _Work:
        batches, m, n = problem.shape
        if config.swap_ab:
            m, n = n, m
        rows, columns = config.cta_tile_mn
        cluster_m, cluster_n = config.cluster_shape_mn
        clusters = batches * _ceil(m, rows * cluster_m) * _ceil(n, columns * cluster_n) * config.split_k
        at_once = max(1, device.active_clusters(config.cluster_size))
        waves = clusters / at_once
        busy = min(1.0, waves) * at_once * config.cluster_size / device.sm_count
        tile_k = config.tile_shape_mnk[2]
        return cls(m, n, waves, min(1.0, busy), _ceil(_ceil(problem.k, tile_k), config.split_k))


def _broadcast(x: TensorLayout) -> bool:
    """Return whether a tensor has fewer elements than its shape says."""
    return not all(step for step, extent in zip(x.strides, x.shape, strict=True) if extent > 1)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
