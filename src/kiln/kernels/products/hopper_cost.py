"""What a matrix product cut by a `HopperTiling` is expected to take: waves of tiles, as in `cost.py`.

A multiprocessor computes its tiles one after the other; where warp groups take turns, all but the last of its results are written
beside the next tile. No product is faster than its operands come from the caches or from memory.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .hopper_plan import MOST_SUMS, HopperTiling
from .problem import FLOATS8

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..devices import Device
    from .problem import Product


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A tile to choose from, and how many TFLOP/s a multiprocessor of an H200 does with it in f16."""

    block_mn: tuple[int, int]
    cluster_mn: tuple[int, int]
    speed: float
    pingpong: bool = False


CANDIDATES = (
    Candidate((128, 256), (2, 1), 5.85),
    Candidate((128, 256), (1, 1), 5.6),
    Candidate((256, 128), (1, 2), 5.8),
    Candidate((128, 192), (2, 1), 5.6),
    Candidate((128, 192), (2, 1), 5.6, pingpong=True),
    Candidate((128, 192), (1, 1), 5.4),
    Candidate((128, 128), (2, 1), 5.3, pingpong=True),
    Candidate((128, 128), (2, 1), 5.2),
    Candidate((128, 128), (1, 1), 5.0),
    Candidate((64, 256), (2, 1), 5.0, pingpong=True),
    Candidate((128, 64), (1, 1), 3.6),
    Candidate((64, 128), (1, 1), 3.6, pingpong=True),
    Candidate((64, 64), (1, 1), 2.6, pingpong=True),
)
_BYTES, _PROMOTED = 1.8, 1.65
"""How much faster 8-bit integers are multiplied, and 8-bit floats whose sums are added outside of the tensor cores."""
_ROWS = 2048
"""Of the result that are computed side by side."""
_MOST_STAGES = 8

# Microseconds, and TB/s, of an H200.
_LAUNCH = 0.5
_START = 2.2
"""Before the first product: barriers, the first tiles on their way."""
_STORE = (0.5, 0.5)
"""The results of a tile, and what is added for each 128 x 128 of them."""
_OTHERS = 0.5
"""The same for each of the other tensors that is as large as the result."""
_CACHE = 10.0
"""What multiprocessors read of the L2 cache."""
_L2 = 45e6
"""Bytes that stay in the L2 cache from one product to the next."""
_MEMORY = 4.2
_LATENCY = 1.5
"""After which memory that is busy has what it was asked for: so much must be asked for ahead."""
_BESIDE = 0.05
"""What is left of the time of what is done beside something that takes longer."""
_CLUSTERS = {1: 1.0, 2: 1.0, 4: 0.909, 8: 0.909}
"""The share of multiprocessors that clusters of so many blocks can have: they lie within groups of multiprocessors."""


def candidates(problem: Product, device: Device) -> Iterator[HopperTiling]:
    """Plans to choose from, each with as many stages as fit."""
    bits, out_bits, promoted = problem.dtype.width, problem.out.dtype.width, problem.dtype in FLOATS8
    for found in CANDIDATES:
        group = max(1, _ROWS // (found.block_mn[0] * found.cluster_mn[0]))
        plan = HopperTiling((*found.block_mn, 1024 // bits), found.cluster_mn, 1, group, found.pingpong)
        if plan.sums(promoted) > MOST_SUMS or not plan.piece(out_bits):
            continue
        more = (device.smem - plan.smem_bytes(bits, out_bits)) // plan.stage_bytes(bits)
        plan = dataclasses.replace(plan, stages=min(_MOST_STAGES, 1 + more))
        if plan.stages >= 3:
            yield plan


def expected(problem: Product, plan: HopperTiling, device: Device) -> float:
    """Microseconds that a product takes."""
    (batches, m, n), k, bits = problem.shape, problem.k, problem.dtype.width
    (tile_m, tile_n, tile_k), (along_m, along_n) = plan.block_mnk, plan.cluster_mn
    tiles = batches * _ceil(m, tile_m * along_m) * _ceil(n, tile_n * along_n) * plan.blocks
    slots = int(device.multiprocessors * _CLUSTERS.get(plan.blocks, 0.9)) // plan.blocks * plan.blocks
    each = _ceil(tiles, max(slots, plan.blocks))
    depth = _ceil(k, tile_k) * tile_k
    speed = _speed(plan) * (1.0 if bits == 16 else _PROMOTED if problem.dtype in FLOATS8 else _BYTES)
    area = tile_m * tile_n / 128**2
    large = sum(all(step for step, extent in zip(x.strides, x.shape) if extent > 1) for x in problem.others)
    store = _STORE[0] + (_STORE[1] * problem.out.dtype.width / 16 + _OTHERS * large) * area
    took = _START + each * 2 * tile_m * tile_n * depth / 1e6 / speed + store * (1 if plan.pingpong else each)
    read = tiles * (tile_m / along_n + tile_n / along_m) * depth * bits / 8 / 1e6
    bounds = [took, _START + read / _CACHE]
    moved = problem.bytes
    if moved > _L2:
        waiting = min(tiles, slots) * plan.stage_bytes(bits) * (plan.stages - 1) / 1e6
        bounds.append(_START + moved / 1e6 / min(_MEMORY, waiting / _LATENCY))
    return _LAUNCH + max(bounds) + _BESIDE * (sum(bounds) - max(bounds))


def _speed(plan: HopperTiling) -> float:
    """That of the candidate with the same tile, or of one whose tile is most like it."""

    def unlike(found: Candidate) -> Any:
        (m, n), (x, y) = found.block_mn, plan.block_mnk[:2]
        return (
            max(m, x) / min(m, x) * max(n, y) / min(n, y),
            found.pingpong != plan.pingpong,
            found.cluster_mn != plan.cluster_mn,
        )

    return min(CANDIDATES, key=unlike).speed


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
