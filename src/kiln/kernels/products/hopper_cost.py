"""What a matrix product cut by a `HopperTiling` is expected to take: waves of tiles, as in `cost.py`.

A multiprocessor computes its tiles one after the other; where warp groups take turns, all but the last of its results are written
beside the next tile. No product is faster than its operands come from the caches or from memory. The figures are in `hopper_model.py`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ... import Float32
from .hopper_model import MODEL, TILES, Tile
from .hopper_plan import MOST_SUMS, HopperTiling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..devices import Device
    from .problem import Product

_ROWS = 2048
"""Of the result that are computed side by side."""
_MOST_STAGES, _LEAST_STAGES = 12, 3
_MOST_OF_FEW = 20
"""Stages where rows are few, and stages small: what counts is how much memory is asked for ahead."""
_LEAST_PART = 4
"""Stages of a part of K: fewer cost more to add than they save."""
_LEAST_SUM = 1024
"""K of a product whose sums a second kernel adds."""
_MOST_OF_SEVERAL = 160
"""Sums of a thread where three values or more are made of each."""
_BUFFERS = 4
"""For pieces of results where nothing is multiplied meanwhile: none waits for the one before."""
_COLUMNS = (8, 16, 24, 32, 48, 64, 96, 128)
"""N of tiles with operands swapped: the least that has all rows of the result is taken."""
_COARSE = (8, 16, 32, 64, 96)
"""The same where K is cut into parts."""
_L2 = 45e6
"""Bytes that stay in the L2 cache from one product to the next."""
_HOT = 8e10
"""Operations of a product that is large enough for the power limit to be felt."""
_FEW = 128
"""Rows that are a tile, or two."""
_KNOWN = {(tile.block_mn, tile.cluster_mn, tile.pingpong, tile.swapped): tile for tile in TILES}
_BESIDE = 0.05
"""What is left of the time of what is done beside something that takes longer."""
_SLOTS = (1.0, 1.0, 0.886, 0.909, 0.833, 0.773, 0.795, 0.909)
"""The share of multiprocessors that clusters of 1, 2, ... blocks can have: they lie within groups of multiprocessors."""


def candidates(problem: Product, device: Device) -> Iterator[HopperTiling]:
    """Plans to choose from, each with as many stages as fit."""
    (_, rows, _), k, bits = problem.shape, problem.k, problem.dtype.width
    (out_bits, *more), promoted = (kind.width for kind in problem.out_types), problem.promoted
    stages = _ceil(k, 1024 // bits)
    most = MOST_SUMS if len(problem.results) + problem.summed < 3 else _MOST_OF_SEVERAL
    columns = [n for n in _COLUMNS if n >= rows][:1] + [n for n in _COARSE if n >= rows][:1]
    for tile in TILES:
        if tile.swapped and (problem.blocks or problem.summed or tile.block_mn[1] not in columns):
            continue
        if (
            tile.cluster_mn[1] > 1
            and tile.block_mn[1] < 128
            and problem.shape[2] > tile.cluster_mn[1] * tile.block_mn[1]
        ):
            continue  # these are for all columns at once, so that rows are read once
        group = max(1, _ROWS // (tile.block_mn[0] * tile.cluster_mn[0]))
        for splits in tile.parts:
            if splits > 1 and (problem.summed or stages < splits * _LEAST_PART or tile.block_mn[1] % (8 * splits)):
                continue
            plan = HopperTiling(
                (*tile.block_mn, 1024 // bits), tile.cluster_mn, 1, group, tile.pingpong, splits, tile.swapped,
                buffers=_BUFFERS if out_bits <= 16 and not tile.pingpong else 2,
            )  # fmt: skip
            if plan.registers(promoted) > most or not (plan.staged or plan.piece(out_bits, bool(more), tuple(more))):
                continue
            blocks = bool(problem.blocks)
            spare = device.smem - plan.smem_bytes(bits, out_bits, tuple(more), blocks)
            ahead = spare // plan.stage_bytes(bits, blocks)
            plan = dataclasses.replace(plan, stages=min(_MOST_OF_FEW if tile.swapped else _MOST_STAGES, 1 + ahead))
            if plan.stages >= _LEAST_STAGES:
                yield plan
                yield from _second_kernels(problem, plan, device)


def _second_kernels(problem: Product, plan: HopperTiling, device: Device) -> Iterator[HopperTiling]:
    """The same with K cut into products of their own, as many as there are multiprocessors for."""
    (batches, m, n), (tile_m, tile_n, tile_k) = problem.shape, plan.block_mnk
    if batches > 1 or n % 4 or plan.staged or problem.blocks or problem.summed or problem.acc_dtype is not Float32:
        return
    tiles = _ceil(m, tile_m) * _ceil(n, tile_n)
    for sums in (4, 8, 16, 32):
        if (
            tiles * sums <= device.multiprocessors
            and problem.k % (sums * tile_k) == 0
            and problem.k >= sums * _LEAST_SUM
        ):
            more = plan.smem_bytes(problem.dtype.width, 32) - device.smem  # of f32
            stages = plan.stages - max(0, _ceil(more, plan.stage_bytes(problem.dtype.width)))
            if stages >= _LEAST_STAGES and plan.piece(32):
                yield dataclasses.replace(plan, sums=sums, stages=stages)


def expected(
    problem: Product, plan: HopperTiling, device: Device, model: dict[str, float] = MODEL, speed: float | None = None
) -> float:
    """Microseconds that a product takes; `speed`: that of the tile, instead of the measured one."""
    return total(bounds(problem, plan, device, model, speed), model)


def total(found: dict[str, float], model: dict[str, float] = MODEL) -> float:
    """Microseconds of what is spent side by side, and of a launch."""
    most = max(found.values())
    return model["launch"] + most + _BESIDE * (sum(found.values()) - most)


def bounds(
    problem: Product, plan: HopperTiling, device: Device, model: dict[str, float] = MODEL, speed: float | None = None
) -> dict[str, float]:
    """Microseconds that are spent side by side: on products and results, on what comes from the L2 cache, and from memory; and what the power
    limit lets large ones take."""
    (batches, m, n), k, bits = problem.shape, problem.k, problem.dtype.width
    moved, wide = problem.bytes, sum(kind.width for kind in problem.out_types)
    if plan.swapped:
        m, n = n, m
    if plan.sums > 1:
        batches, k, wide = plan.sums, k // plan.sums, 32
        moved += 2 * plan.sums * m * n * 4
    (tile_m, tile_n, tile_k), (along_m, along_n) = plan.block_mnk, plan.cluster_mn
    tiles = batches * _ceil(m, tile_m * along_m) * _ceil(n, tile_n * along_n) * plan.blocks
    slots = int(device.multiprocessors * _SLOTS[plan.blocks - 1]) // plan.blocks * plan.blocks
    each = _ceil(tiles, max(slots, plan.blocks))
    depth = _ceil(_ceil(k, tile_k), plan.splits) * tile_k
    faster = 0.5 if bits == 32 else model["promoted" if problem.promoted else "bytes"] if bits == 8 else 1.0
    speed = (speed or tile_of(plan).speed) * faster
    area = tile_m * tile_n / 128**2
    large = sum(all(step for step, extent in zip(x.strides, x.shape) if extent > 1) for x in problem.others)
    if plan.staged:
        store = model["staged"] + (model["staged_area"] + model["others"] * large) * area
    else:
        alone = 2 if plan.pingpong else 1  # a warp group writes the tile by itself
        store = model["store"] + (model["store_area"] * alone * wide / 16 + model["others"] * large) * area
    if not (problem.follow.plain or plan.pingpong):  # nothing is multiplied meanwhile
        store += model["followed"] * area
    start = model["start"]
    took = start + each * 2 * tile_m * tile_n * depth / 1e6 / speed + store * (1 if plan.pingpong else each)
    after = 0.0  # when everything has come
    if plan.splits > 1:  # blocks do not take one tile after the other
        took += start * (each - 1) + (model["parts"] + model["parts_area"] * area) * (each - 1)
        after = model["parts"] + model["parts_area"] * area
    read = tiles * (tile_m / along_n + tile_n / along_m) * depth * bits / 8 / 1e6
    if plan.sums > 1:
        after = model["second"] + plan.sums * m * n * 4 / 1e6 / model["cache"] * 2
        if 2 * tiles > slots:  # its blocks find no room beside those of the first
            after += model["crowded"]
    if any(x.k_major and x.dtype.width * k % 1024 for x in problem.operands()):  # rows begin between lines of 128 bytes
        read *= model["between"]
    if m < _FEW and m % tile_m:  # rows beyond the last are slow to fill in
        read *= model["beyond"]
    most = each * slots * read / tiles  # if all had as many tiles as those that have most: each can read so much
    found = {"products": took, "L2 cache": start + most * device.multiprocessors / slots / model["cache"]}
    if problem.flops > _HOT:
        found["power"] = problem.flops / 1e6 / (model["power"] * faster) + read / model["power_cache"]
    if moved > _L2:
        waiting = min(tiles, slots) * plan.stage_bytes(bits) * (plan.stages - 1) / 1e6
        found["memory"] = start + moved / 1e6 / min(model["memory"], waiting / model["latency"])
    return {name: us + after for name, us in found.items()}


def tile_of(plan: HopperTiling) -> Tile:
    """The measured one that is like that of a plan, or most like it."""
    same = _KNOWN.get((plan.block_mnk[:2], plan.cluster_mn, plan.pingpong, plan.swapped))
    if same is not None and plan.splits in same.parts:
        return same

    def unlike(found: Tile) -> Any:
        (m, n), (x, y) = found.block_mn, plan.block_mnk[:2]
        return (
            found.swapped != plan.swapped,
            plan.splits not in found.parts,
            max(m, x) / min(m, x) * max(n, y) / min(n, y),
            found.pingpong != plan.pingpong,
            found.cluster_mn != plan.cluster_mn,
        )

    return min(TILES, key=unlike)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
