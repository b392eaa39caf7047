"""The configs that multistage GEMM kernels choose among, and the model that chooses.

The model is a roofline of one SM, which computes its tiles in waves of as many CTAs as fit on it. A wave takes a
prologue and an epilogue, in which nothing is multiplied, and its MMAs at a rate that was measured for each tile shape.
No GEMM is faster than its operands come from the L2 cache or from DRAM.

Tile shapes and figures are in `kernels/tuned/h200.json`. Figures were fitted to some 450 pairs of config and problem in
f16 on an H200: half of them are predicted within 4 %, nine in ten within 11 %.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

from ...dispatch.roofline import Roofline, us
from ...tuned import Coefficients, coefficients
from .problem import INTEGERS
from .sm80_config import Sm80GemmConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...dispatch.devices import Device
    from .problem import GemmProblem

_NOT_OVERLAPPED = 0.05
"""The part of a term that a longer, concurrent one does not hide."""
_SPLIT_K = (2, 3, 4, 5, 6, 7, 8, 16)
_MIN_CLUSTER_SPLIT_K = 128
_MIN_KERNEL_SPLIT_K = 512
"""The least K of a split whose partials a cluster, or a second kernel, adds."""
_MAX_SPLIT_K_TILE = 1 << 15
"""The most accumulators of a tile with split-K; beyond, threads have no registers left for the K range."""
CLUSTER_OCCUPANCY = (1.0, 1.0, 0.886, 0.909, 0.833, 0.773, 0.795, 0.909)
"""The fraction of SMs that clusters of 1, 2, ... CTAs can occupy: each lies within a GPC."""


@dataclasses.dataclass(frozen=True)
class Sm80Coefficients(Coefficients):
    """The figures of the model."""

    table = "gemm_sm80"

    launch_us: float
    """Microseconds of a launch, and until the first loads have come from DRAM."""
    wave_us: float
    wave_area_us: float
    """Prologue and epilogue of a wave, and what each 128 x 128 of a tile adds to them."""
    gpu_l2_tbps: float
    """TB/s of all SMs out of the L2 cache; half of it for rows that begin within a cache line."""
    copies_per_us: float
    """Copies of less than 16 bytes that an SM issues in a microsecond."""
    dram_tbps: float
    dram_latency_us: float
    """DRAM bandwidth, and the latency that bytes in flight have to cover."""
    cluster_reduce_us: float
    cluster_reduce_area_us: float
    """Reduction of split-K partials in a cluster, and what each 128 x 128 of a tile adds to it."""
    split_k_kernel_us: float
    """The kernel that adds split-K partials."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A measured tile shape, with K in MMA instructions, and its TFLOP/s on an SM.

    `tflops` are those of one CTA alone, and of as many as fit, for which there are registers up to `max_ctas_per_sm`.
    """

    tile_shape_mn: tuple[int, int]
    k_instructions: int
    warp_layout_mn: tuple[int, int]
    stages: int
    tflops: tuple[float, float]
    max_ctas_per_sm: int

    def config(self, instruction_k: int) -> Sm80GemmConfig:
        """Return the config for MMA instructions of some K."""
        tile = *self.tile_shape_mn, self.k_instructions * instruction_k
        return Sm80GemmConfig(tile, self.warp_layout_mn, self.stages)


@functools.lru_cache(maxsize=256)
def candidates(kind: str, device: Device) -> tuple[Candidate, ...]:
    """Return the candidates of the tuned table for operands of a kind: "f16", "f16_i4", "simt"."""
    return tuple(Candidate(**row) for row in coefficients(Sm80Coefficients.table, device)[kind])


def configs(
    problem: GemmProblem, candidates: Iterable[Candidate], instruction_k: int, device: Device
) -> Iterator[tuple[Candidate, Sm80GemmConfig]]:
    """Yield candidates with their configs, without split-K and with each that may be worth it."""
    for candidate in candidates:
        config = candidate.config(instruction_k)
        yield candidate, config
        if math.prod(candidate.tile_shape_mn) <= _MAX_SPLIT_K_TILE and problem.k >= 2 * _MIN_CLUSTER_SPLIT_K:
            for count in _SPLIT_K:
                split = dataclasses.replace(config, split_k=count)
                if _may_split(problem, split, device):
                    yield candidate, split


def _may_split(problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> bool:
    k, rest = divmod(problem.k, config.split_k)
    if config.in_clusters(device):
        return k >= _MIN_CLUSTER_SPLIT_K
    whole = rest == 0 and k % config.tile_shape_mnk[2] == 0 and k >= _MIN_KERNEL_SPLIT_K
    return problem.dtype not in INTEGERS and problem.shape[0] == 1 and whole and config.split_k in (2, 4, 8, 16)


def nearest(config: Sm80GemmConfig, candidates: Iterable[Candidate]) -> Candidate:
    """Return the candidate whose tile shape is most like that of a config."""
    m, n, _ = config.tile_shape_mnk
    return min(candidates, key=lambda c: abs(math.log(c.tile_shape_mn[0] / m)) + abs(math.log(c.tile_shape_mn[1] / n)))


def roofline(problem: GemmProblem, candidate: Candidate, config: Sm80GemmConfig, smem: int, device: Device) -> Roofline:
    """Return what a GEMM whose CTAs take `smem` bytes of shared memory is expected to spend time on."""
    c = Sm80Coefficients.on(device)
    batches, m, n = problem.shape
    bits_a, bits_b = problem.bits
    split_k = config.split_k
    tile_m, tile_n, tile_k = config.tile_shape_mnk
    clustered = config.in_clusters(device)
    sms = device.sm_count
    if clustered:  # whole clusters of them
        sms = max(1, int(sms * CLUSTER_OCCUPANCY[split_k - 1]) // split_k * split_k)
    ctas = batches * _ceil(m, tile_m) * _ceil(n, tile_n) * split_k
    sm_ctas = _ceil(ctas, sms)  # of the SM that has most
    resident = max(1, min(candidate.max_ctas_per_sm, (device.smem + 1024) // (smem + 1024)))
    cta_k = _ceil(_ceil(problem.k, tile_k), split_k) * tile_k
    area = tile_m * tile_n / 128**2
    alone, together = (us(2 * tile_m * tile_n * cta_k, tflops) for tflops in candidate.tflops)
    waves, rest = divmod(sm_ctas, resident)
    mma = waves * max(alone, resident * together) + _ceil(sm_ctas, resident) * (c.wave_us + c.wave_area_us * area)
    if rest:
        mma += max(alone, rest * together) if rest > 1 else alone
    l2_bytes = ctas * (min(tile_m, m) * bits_a + min(tile_n, n) * bits_b) * cta_k / 8
    dram_bytes = batches * ((m * bits_a + n * bits_b) * problem.k + m * n * problem.out.dtype.width) / 8
    ahead = (tile_m * bits_a + tile_n * bits_b) * tile_k * (config.stages - 1) / 8
    in_flight = min(ctas, resident * sms) * ahead
    units = {
        "tensor cores" if problem.mma_dtype else "arithmetic": mma,
        "L2 cache": c.wave_us + us(l2_bytes, c.gpu_l2_tbps if problem.aligned else c.gpu_l2_tbps / 2),
        "memory": c.wave_us + us(dram_bytes, min(c.dram_tbps, in_flight / 1e6 / c.dram_latency_us)),
    }
    width = min(x.width for x in problem.operands())
    if width * bits_a < 128:
        copies = ctas * (tile_m + tile_n) * cta_k / width
        units["copies"] = c.wave_us + copies / (device.sm_count * c.copies_per_us)
    longest = max(units.values())
    phases = {"launch": c.launch_us}
    if clustered:
        phases["cluster reduction"] = c.cluster_reduce_us + c.cluster_reduce_area_us * area * sm_ctas
    elif split_k > 1:
        phases["split-K reduction"] = c.split_k_kernel_us + us(2 * split_k * m * n * 4, c.dram_tbps)
    return Roofline(units, phases, longest + _NOT_OVERLAPPED * (sum(units.values()) - longest))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
