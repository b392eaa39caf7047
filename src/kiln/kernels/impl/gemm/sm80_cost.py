"""What a matrix product cut by a `Sm80GemmConfig` is expected to take.

An SM computes its tiles in waves of as many blocks as fit on it. A wave takes a start and an end, in which nothing
is multiplied, and its multiplications, at a speed measured for each config; and no product is faster than its operands come
from the caches or from memory. The constants were fitted to some 450 combinations of configs and shapes in f16, measured on an
H200: half of them are met within 4 %, nine in ten within 11 %.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from .problem import INTEGERS
from .sm80_config import Sm80GemmConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...dispatch.devices import Device
    from .problem import GemmProblem


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A config to choose from: K in steps of an instruction, and how many TFLOP/s an SM of an H200 does with it.

    The speeds are of one block alone, and of as many as fit; there are registers for `most` of them.
    """

    tile_shape_mn: tuple[int, int]
    steps: int
    warp_layout_mn: tuple[int, int]
    stages: int
    speed: tuple[float, float]
    most: int = 1

    def config(self, step: int) -> Sm80GemmConfig:
        """The config for instructions of so much K."""
        return Sm80GemmConfig((*self.tile_shape_mn, self.steps * step), self.warp_layout_mn, self.stages)


TENSOR_CORE = (
    Candidate((128, 256), 4, (2, 4), 3, (4.2, 4.2)),
    Candidate((192, 192), 4, (2, 4), 3, (4.25, 4.25)),
    Candidate((128, 192), 4, (2, 4), 3, (4.0, 4.0)),
    Candidate((128, 128), 4, (2, 2), 3, (3.9, 4.0), 2),
    Candidate((128, 64), 8, (2, 2), 4, (3.1, 3.1), 2),
    Candidate((64, 128), 4, (2, 2), 3, (3.0, 3.2), 3),
    Candidate((64, 96), 4, (2, 2), 5, (2.7, 2.9), 3),
    Candidate((64, 64), 8, (2, 2), 3, (2.45, 2.55), 4),
    Candidate((32, 64), 8, (2, 2), 4, (1.5, 1.65), 4),
    Candidate((32, 64), 4, (2, 2), 6, (1.5, 1.8), 4),
    Candidate((16, 64), 8, (1, 4), 5, (1.05, 1.2), 4),
)
"""Configs for tensor cores."""
TENSOR_CORE_INTEGERS = (
    Candidate((128, 256), 4, (2, 4), 3, (6.6, 6.6)),
    Candidate((128, 128), 4, (2, 2), 3, (6.8, 7.2), 2),
    Candidate((128, 64), 8, (2, 2), 4, (5.0, 5.0), 2),
    Candidate((64, 128), 4, (2, 2), 3, (5.0, 5.4), 3),
    Candidate((64, 64), 8, (2, 2), 3, (4.0, 4.2), 4),
    Candidate((32, 64), 4, (2, 2), 6, (2.5, 3.0), 4),
    Candidate((16, 64), 8, (1, 4), 5, (1.8, 2.0), 4),
)
"""The same for integers of 8 bits."""
TENSOR_CORE_FLOAT8 = (
    Candidate((64, 128), 2, (2, 2), 3, (2.4, 3.4), 3),
    Candidate((64, 64), 2, (2, 2), 4, (2.0, 2.8), 4),
    Candidate((32, 64), 4, (2, 2), 4, (2.0, 2.4), 4),
)
"""The same for floats of 8 bits, which most GPUs convert to f16 in registers."""
TENSOR_CORE_32 = (
    Candidate((128, 128), 4, (2, 2), 3, (1.8, 1.9), 2),
    Candidate((64, 64), 4, (2, 2), 4, (1.0, 1.2), 3),
    Candidate((32, 64), 4, (2, 2), 4, (0.6, 0.8), 4),
)
"""The same for elements of 32 bits, which are rounded in registers."""
TENSOR_CORE_WEIGHTS = (
    (
        Candidate((8, 64), 8, (1, 4), 4, (0.76, 1.0), 2),
        Candidate((8, 128), 4, (1, 4), 5, (0.6, 0.65), 2),
        Candidate((16, 64), 4, (1, 4), 6, (1.2, 0.9), 3),
        Candidate((16, 128), 4, (1, 4), 4, (1.0, 1.15), 2),
        Candidate((32, 128), 4, (1, 4), 4, (2.1, 1.83), 2),
        Candidate((64, 256), 2, (1, 8), 5, (2.78, 2.78)),
    ),
    (
        Candidate((8, 64), 8, (1, 4), 5, (0.8, 1.03), 3),
        Candidate((8, 128), 8, (1, 4), 5, (0.8, 1.09), 2),
        Candidate((8, 256), 8, (1, 8), 4, (1.3, 1.3)),
        Candidate((16, 64), 8, (1, 4), 5, (1.35, 1.4), 2),
        Candidate((16, 128), 8, (1, 4), 3, (1.2, 1.67), 2),
        Candidate((16, 256), 8, (1, 4), 3, (1.75, 1.75)),
        Candidate((32, 128), 4, (1, 4), 4, (1.6, 2.12), 2),
        Candidate((32, 256), 4, (1, 4), 4, (2.42, 2.42)),
        Candidate((64, 256), 4, (1, 8), 4, (3.0, 3.0)),
    ),
)
"""The same for weights of 8 and of 4 bits."""
SIMT = (
    Candidate((128, 128), 16, (2, 4), 3, (0.36, 0.4), 2),
    Candidate((64, 64), 16, (2, 2), 4, (0.22, 0.26), 4),
    Candidate((32, 32), 16, (1, 2), 4, (0.07, 0.12), 8),
)
"""Configs without tensor cores."""


def tensor_core_candidates(dtype: Any) -> tuple[Candidate, ...]:
    """What to choose from for operands of a type."""
    if dtype.width == 8:
        return TENSOR_CORE_INTEGERS if dtype.is_integer else TENSOR_CORE_FLOAT8
    return TENSOR_CORE_32 if dtype.width == 32 else TENSOR_CORE


# Microseconds, and TB/s, of an H200.
LAUNCH_US = 0.5
_WAVE = (1.7, 1.0)
"""A wave's start and end, and what is added for each 128 x 128 of a tile."""
_CACHE = 10.0
"""What SMs read of the L2 cache; half of that where lines are cut."""
_COPIES = 3700
"""Accesses of less than 16 bytes in a microsecond of an SM."""
_L2 = 45e6
"""Bytes that stay in the L2 cache from one product to the next."""
_MEMORY = 4.25
_LATENCY = 1.5
"""After which memory that is busy has what it was asked for: so much must be asked for ahead."""
_CLUSTER = (0.8, 1.7)
"""The sums of a cluster, and what is added for each 128 x 128 of them."""
_SECOND_KERNEL = 4.0
_BESIDE = 0.05
"""What is left of the time of what is done beside something that takes longer."""
_LEAST_PART = 128
_LEAST_PART_ALONE = 512
"""A shorter part of K costs more to add than it saves: in a cluster, and by a second kernel."""
_MOST_SUMS = 1 << 15
"""Larger tiles have no registers left to tell parts of K apart."""
CLUSTER_OCCUPANCY = (1.0, 1.0, 0.886, 0.909, 0.833, 0.773, 0.795, 0.909)
"""The share of SMs that clusters of 1, 2, ... blocks can have: they lie within groups of SMs."""


def cuts(
    problem: GemmProblem, candidates: Iterable[Candidate], step: int, device: Device
) -> Iterator[tuple[Candidate, Sm80GemmConfig]]:
    """Candidates with instructions of so much K, and as many parts of K as may be worth it."""
    for candidate in candidates:
        whole = candidate.config(step)
        yield candidate, whole
        m, n, _ = whole.tile_shape_mnk
        for splits in (2, 3, 4, 5, 6, 7, 8, 16) if m * n <= _MOST_SUMS and problem.k >= 2 * _LEAST_PART else ():
            config = dataclasses.replace(whole, split_k=splits)
            if _may_cut(problem, config, device):
                yield candidate, config


def nearest(config: Sm80GemmConfig, candidates: Iterable[Candidate]) -> Candidate:
    """The candidate whose tile is most like that of any config."""
    m, n, _ = config.tile_shape_mnk
    return min(candidates, key=lambda c: abs(math.log(c.tile_shape_mn[0] / m)) + abs(math.log(c.tile_shape_mn[1] / n)))


def expected(problem: GemmProblem, candidate: Candidate, config: Sm80GemmConfig, used: int, device: Device) -> float:
    """Microseconds that a product takes whose blocks use so much shared memory; infinite if that is too much."""
    (batches, m, n), k, (bits, bits_b) = problem.shape, problem.k, problem.bits
    if used > device.smem:
        return float("inf")
    tile_m, tile_n, tile_k = config.tile_shape_mnk
    clustered = config.in_clusters(device)
    slots = int(device.sm_count * (CLUSTER_OCCUPANCY[config.split_k - 1] if clustered else 1))
    slots = max(1, slots - slots % config.split_k if clustered else slots)
    blocks = batches * _ceil(m, tile_m) * _ceil(n, tile_n) * config.split_k
    each = _ceil(blocks, slots)  # on the SM that has most
    resident = max(1, min(candidate.most, (device.smem + 1024) // (used + 1024)))
    depth = _ceil(_ceil(k, tile_k), config.split_k) * tile_k
    work, area = 2 * tile_m * tile_n * depth / 1e6, tile_m * tile_n / 128**2
    alone, together = candidate.speed
    waves, rest = divmod(each, resident)
    took = waves * max(work / alone, resident * work / together)
    if rest:
        took += work / alone if rest == 1 else max(work / alone, rest * work / together)
    took += _ceil(each, resident) * (_WAVE[0] + _WAVE[1] * area)
    read = blocks * (min(tile_m, m) * bits + min(tile_n, n) * bits_b) * depth / 8 / 1e6
    bounds = [took, _WAVE[0] + read / (_CACHE if problem.aligned else _CACHE / 2)]
    width = min(x.width for x in problem.operands())
    if width * bits < 128:  # copied in more pieces than threads can ask for
        elements = blocks * (tile_m + tile_n) * depth
        bounds.append(_WAVE[0] + elements / (device.sm_count * _COPIES * width))
    moved = batches * ((m * bits + n * bits_b) * k + m * n * problem.out.dtype.width) / 8
    if moved > _L2:
        ahead = (tile_m * bits + tile_n * bits_b) * tile_k * (config.stages - 1) / 8
        waiting = min(blocks, resident * slots) * ahead / 1e6
        bounds.append(_WAVE[0] + moved / 1e6 / min(_MEMORY, waiting / _LATENCY))
    took = max(bounds) + _BESIDE * (sum(bounds) - max(bounds))
    if clustered:
        took += _CLUSTER[0] + _CLUSTER[1] * area * each
    elif config.split_k > 1:
        took += _SECOND_KERNEL + 2 * config.split_k * m * n * 4 / _MEMORY / 1e6
    return LAUNCH_US + took


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _may_cut(problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> bool:
    part, rest = divmod(problem.k, config.split_k)
    if config.in_clusters(device):
        return part >= _LEAST_PART
    whole = rest == 0 and part % config.tile_shape_mnk[2] == 0 and part >= _LEAST_PART_ALONE
    return problem.dtype not in INTEGERS and problem.shape[0] == 1 and whole and config.split_k in (2, 4, 8, 16)
