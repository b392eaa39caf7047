"""What a matrix product cut by a `Sm90GemmConfig` is expected to take: waves of tiles, as in `sm80_cost.py`.

A multiprocessor computes its tiles one after the other, a stage of K at a time, and a stage takes as long as its products, or as its operands
take to come: from the L2 cache, whose lines are asked for once for all blocks of a cluster, and into the multiprocessor. Where warp groups take
turns, all but the last of its results are written beside the next tile. No product is faster than memory. There are no figures of single
tiles: what is said of one that was never measured is as good as what is said of others. The figures are in `sm90_coefficients.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

from .... import Float32
from .sm90_coefficients import MODEL
from .sm90_config import MAX_ACC_REGISTERS, Sm90GemmConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .problem import GemmProblem

_ROWS = 2048
"""Of the result that are computed side by side."""
_MOST_STAGES, _LEAST_STAGES = 12, 3
_MOST_OF_FEW = 20
"""Stages where rows are few, and stages small: what counts is how much memory is asked for ahead."""
_LEAST_PART = 4
"""Stages of a part of K: fewer cost more to add than they save."""
_LEAST_SUM = 6
"""The same of a part that a second kernel adds."""
_MOST_SHARED = 96
"""Sums of a thread where blocks share a tile: they are sent from registers."""
_BUFFERS = 4
"""For pieces of results where nothing is multiplied meanwhile: none waits for the one before."""
_COLUMNS = (8, 16, 24, 32, 48, 64, 80, 96, 128, 144, 160, 192, 224, 256)
"""N of tiles with operands swapped: the least that has all rows of the result is taken."""
_L2 = 38e6
"""Bytes that stay in the L2 cache from one product to the next, with sums that a second kernel adds."""
_HOT = 8e10
"""Operations of a product that is large enough for the power limit to be felt."""
_WAVES = (1, 2, 3, 4)
"""Rounds of tiles for which N of a tile is made as small as it can be."""
_BESIDE = 8
"""How little what is done beside something that takes longer adds to it: the power of a norm."""
_OWN = 1.03
"""How much better a tile has to be that is compiled for one shape alone."""
_LINE, _SECTOR = 128, 32
"""Bytes of K of a stage, and of a line of the L2 cache; of what it reads at a time."""
_SLOTS = (1.0, 1.0, 0.886, 0.909, 0.833, 0.773, 0.795, 0.909)
"""The share of multiprocessors that clusters of 1, 2, ... blocks can have: they lie within groups of multiprocessors."""


class Tile(NamedTuple):
    """A tile to choose from, in clusters of so many; K may be cut into so many parts."""

    tile_shape_mn: tuple[int, int]
    cluster_shape_mn: tuple[int, int] = (1, 1)
    pingpong: bool = False
    parts: tuple[int, ...] = (1,)


_ANY = (1, 2, 4, 8)
TILES = (
    Tile((128, 256), (2, 1)),
    Tile((128, 256)),
    Tile((256, 128), (1, 2)),
    Tile((256, 128)),
    Tile((256, 160), (1, 2)),
    Tile((256, 192), (1, 2)),
    Tile((128, 224), (2, 1)),
    Tile((128, 224)),
    Tile((128, 192), (2, 1)),
    Tile((128, 192)),
    Tile((128, 192), (2, 1), True),
    Tile((128, 160), (2, 1), True),
    Tile((128, 160), (1, 1), True),
    Tile((128, 160)),
    Tile((192, 128), (2, 1), True),
    Tile((192, 112), (1, 1), True),
    Tile((192, 96), (1, 2), True),
    Tile((192, 64), (1, 1), True, (1, 2, 4, 8)),
    Tile((128, 128), (2, 1), True),
    Tile((128, 128), (1, 1), True),
    Tile((128, 128), (2, 1)),
    Tile((128, 128), (1, 1), False, _ANY),
    Tile((128, 96), (1, 1), True),
    Tile((128, 96), (1, 1), False, _ANY),
    Tile((128, 64), (2, 1)),
    Tile((128, 64), (1, 1), False, _ANY),
    Tile((128, 32), (1, 2)),
    Tile((128, 32), (1, 1), False, _ANY),
    Tile((128, 16), (1, 1), False, _ANY),
    Tile((64, 256), (2, 1), True),
    Tile((64, 256), (1, 1), True),
    Tile((64, 224), (1, 1), True),
    Tile((64, 192), (1, 1), True),
    Tile((64, 160), (1, 1), True),
    Tile((64, 128), (2, 1), True),
    Tile((64, 128), (1, 1), True, _ANY),
    Tile((64, 96), (1, 1), True, (1, 2, 4)),
    Tile((64, 64), (1, 2), True),
    Tile((64, 64), (1, 1), True, _ANY),
    Tile((64, 32), (1, 2), True),
    Tile((64, 32), (1, 1), True),
)
_SWAPPED = ((64, True), (128, False), (192, True), (256, False))
"""M of tiles with operands swapped, and whether warp groups take turns."""


def candidates(problem: GemmProblem, device: Device, grouped: bool = False) -> Iterator[Sm90GemmConfig]:
    """Configs to choose from, each with as many stages as fit. `grouped`: of groups, behind whose rows others lie."""
    turning = not grouped and all(kind.width == 16 for kind in problem.out_types)
    able, (_, rows, columns) = not (problem.block_scales or problem.reduces_rows), problem.shape
    swapped = [(tile, True) for tile in _swapped(problem, device, turning)] if able else []
    for tile, swap in [*((tile, False) for tile in TILES), *swapped]:
        (m, n), (_, along_n) = tile.tile_shape_mn, tile.cluster_shape_mn
        if able and not (swap or grouped) and 2 * rows <= m:
            continue  # rows that are not there are slow to fill in
        if along_n > 1 and n < 128 and columns > along_n * n:
            continue  # these are for all columns at once, so that rows are read once
        for splits in tile.parts:
            config = _config(problem, device, tile, swap, splits, turning)
            if config is not None:
                yield config
                yield from _second_kernels(problem, config, device)


def _config(
    problem: GemmProblem, device: Device, tile: Tile, swapped: bool, splits: int, turning: bool
) -> Sm90GemmConfig | None:
    """The config of a tile, if there is one."""
    bits, (out_bits, *more) = problem.dtype.width, (kind.width for kind in problem.out_types)
    (m, n), stages = tile.tile_shape_mn, _ceil(problem.k, 8 * _LINE // bits)
    if splits > 1 and (problem.reduces_rows or stages < splits * _LEAST_PART or n % (8 * splits)):
        return None
    turned = turning and swapped and splits == 1
    _, rows, columns = problem.shape
    # Where all rows are computed side by side, blocks that read the same tile of the larger operand are neighbours.
    beside = swapped and n < rows <= min(_ROWS, columns // 2)
    group = 1 if beside else max(1, _ROWS // (m * tile.cluster_shape_mn[0]))
    config = Sm90GemmConfig(
        (m, n, 8 * _LINE // bits), tile.cluster_shape_mn, 1, group, tile.pingpong, splits, swapped,
        epi_stages=_BUFFERS if out_bits <= 16 and not (tile.pingpong or turned) else 2, transpose_out=turned,
    )  # fmt: skip
    if config.acc_registers(problem.promoted) > (_MOST_SHARED if splits > 1 else MAX_ACC_REGISTERS):
        return None
    if not (config.smem_epilogue or config.epi_tile_n(out_bits, bool(more), tuple(more))):
        return None
    blocks = bool(problem.block_scales)
    ahead = (device.smem - config.smem_bytes(bits, out_bits, tuple(more), blocks)) // config.stage_bytes(bits, blocks)
    stages = min(_MOST_OF_FEW if swapped else _MOST_STAGES, 1 + ahead)
    return dataclasses.replace(config, ab_stages=stages) if stages >= _LEAST_STAGES else None


def _swapped(problem: GemmProblem, device: Device, turning: bool) -> Iterator[Tile]:
    """Tiles with operands swapped: all rows of the result in one, if they are few; otherwise as narrow as some rounds of tiles allow."""
    batches, rows, columns = problem.shape
    own = [n for n in _COLUMNS if n >= rows][:1]
    for m, pingpong in _SWAPPED:
        across = batches * _ceil(columns, m)
        unit = 16 if problem.dtype.is_integer else 8  # the tensor cores have no others
        fit = [n for waves in _WAVES if (n := _narrowest(rows, waves * device.multiprocessors // across, unit)) >= 64]
        for n in own:
            yield Tile((m, n), (1, 1), pingpong, (*_ANY, 3) if n % 24 == 0 else _ANY)
        if rows > 64 and turning and (m, pingpong) != (64, True):
            for n in set(fit) - set(own):
                yield Tile((m, n), (1, 1), pingpong)
                if (
                    n % 16 == 0 and across % 2 == 0 and any(x % _LINE for x, _ in _facts(problem)[0])
                ):  # more lines are asked for
                    yield Tile((m, n), (2, 1), pingpong)


def _narrowest(rows: int, tiles: int, unit: int) -> int:
    """Columns of tiles, a multiple of a unit, so many of which have all rows; 0: none has."""
    n = _ceil(_ceil(rows, tiles), unit) * unit if tiles else 0
    return n if n <= 256 else 0


def _second_kernels(problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> Iterator[Sm90GemmConfig]:
    """The same with K cut into products of their own, as many as there are multiprocessors for, or half as many."""
    (batches, m, n), (tile_m, tile_n, tile_k) = problem.shape, config.tile_shape_mnk
    if (
        config.cluster_shape_mn != (1, 1)
        or batches > 1
        or n % 4
        or problem.block_scales
        or problem.reduces_rows
        or problem.acc_dtype is not Float32
    ):
        return
    if config.swap_ab:
        m, n = n, m
    tiles, stages = _ceil(m, tile_m) * _ceil(n, tile_n) * config.split_k_cluster, _ceil(problem.k, tile_k)
    bits, counts = problem.dtype.width, set[int]()
    for blocks in (device.multiprocessors, device.multiprocessors // 2):
        if most := min(blocks // tiles, stages // (_LEAST_SUM * config.split_k_cluster)):
            counts.add(_ceil(stages, _ceil(stages, most * config.split_k_cluster) * config.split_k_cluster))
    counts.discard(1)
    if not counts:
        return
    config = dataclasses.replace(config, transpose_out=False)
    more = config.smem_bytes(bits, 32) - device.smem  # of f32
    ahead = config.ab_stages - max(0, _ceil(more, config.stage_bytes(bits)))
    if ahead >= _LEAST_STAGES and (config.smem_epilogue or config.epi_tile_n(32)):
        yield from (dataclasses.replace(config, split_k=sums, ab_stages=ahead) for sums in counts)


def expected(problem: GemmProblem, config: Sm90GemmConfig, device: Device, model: dict[str, float] = MODEL) -> float:
    """Microseconds that a product takes."""
    own = _OWN if config.transpose_out and config.tile_shape_mnk[1] not in _COLUMNS else 1.0
    return own * _besides(problem, config, device, model) * total(bounds(problem, config, device, model), model)


def _besides(problem: GemmProblem, config: Sm90GemmConfig, device: Device, model: dict[str, float]) -> float:
    """How many times as long configs of a kind take as their bounds say, where each block has one tile, and where it has several."""
    (batches, m, n), (tile_m, tile_n, _) = problem.shape, config.tile_shape_mnk
    if config.swap_ab:
        m, n = n, m
    tiles = batches * _ceil(m, tile_m) * _ceil(n, tile_n) * config.split_k_cluster * config.split_k
    rounds = "once" if tiles <= device.multiprocessors else "often"
    found = model[f"{rounds}_rows"] ** math.log2(tile_m / 128) * model[f"{rounds}_columns"] ** math.log2(tile_n / 128)
    for name, has in (("turns", config.pingpong), ("swapped", config.swap_ab), ("turned", config.transpose_out)):
        found *= model[f"{rounds}_{name}"] if has else 1.0
    return found


def total(found: dict[str, float], model: dict[str, float] = MODEL) -> float:
    """Microseconds of what is spent side by side, and of a launch."""
    return model["launch"] + sum(us**_BESIDE for us in found.values()) ** (1 / _BESIDE)


def bounds(
    problem: GemmProblem, config: Sm90GemmConfig, device: Device, model: dict[str, float] = MODEL, grouped: bool = False
) -> dict[str, float]:
    """Microseconds that are spent side by side: on MMA, on what comes from the L2 cache and into multiprocessors, on waiting for stages, and on
    memory; and what the power limit lets large ones take."""
    (batches, m, n), k, bits = problem.shape, problem.k, problem.dtype.width
    rows_apart, moved, wide, large = _facts(problem)
    sides = reversed(config.tile_shape_mnk[:2]) if config.swap_ab else config.tile_shape_mnk[:2]
    a, b = (_lines(*apart, tile * bits // 8, model) for tile, apart in zip(sides, rows_apart))
    if config.swap_ab:
        m, n, a, b = n, m, b, a
    if config.split_k > 1:
        batches, wide, moved = config.split_k, 32, moved + config.split_k * m * n * 4
    (tile_m, tile_n, tile_k), (along_m, along_n) = config.tile_shape_mnk, config.cluster_shape_mn
    down, across = _ceil(m, tile_m * along_m) * along_m, _ceil(n, tile_n * along_n) * along_n
    tiles = batches * down * across * config.split_k_cluster
    slots = at_once(config, device)
    each = _ceil(tiles, slots)
    steps = each * _ceil(_ceil(k, tile_k), config.split_k_cluster * config.split_k)
    area = tile_m * tile_n / 128**2
    # A stage: products read rows of 64 from shared memory for all columns; the copy engine asks for lines, and fills in rows that are not there.
    faster = model["promoted" if problem.promoted else "bytes"] if bits == 8 else 1.0
    if problem.promoted and config.pingpong:  # nothing is multiplied while sums are added
        faster *= model["alone"]
    # From shared memory, beside products; a warp group that multiplies by itself waits between them.
    fed = (model["asked" if config.pingpong else "operands"] + tile_n / 4) / (tile_n / 2)
    speed = model["turns" if config.pingpong else "shared"] * faster / (1 + fed**_BESIDE) ** (1 / _BESIDE)
    busy = (tiles / (each * slots)) ** model["busy"]  # the fewer ask, the sooner each has what it asks for
    beyond = (down * tile_m - m) * _ceil(each, down) / each + (across * tile_n - n) * _ceil(each, across) / each
    lines = a * tile_m / along_n + b * tile_n / along_m
    arrival = max(lines / model["lines"], (tile_m + tile_n) / model["arrival"])
    arrival += 0.0 if grouped else beyond * model["beyond"] / model["arrival"]
    fixed = model["start"] + (model["meet"] if along_m * along_n > 1 else 0.0)
    if config.pingpong:  # nobody multiplies beside the last tile
        fixed += model["single"]
    if tile_n <= 16 and moved <= _L2:  # stages of so few rows are slower than their bytes
        fixed += model["small"]
    if config.smem_epilogue:
        store = model["staged"] + (model["staged_area"] + model["others"] * large) * area / config.split_k_cluster
    else:
        alone = 2 if config.pingpong else 1  # a warp group writes the tile by itself
        store = model["store"] + (model["store_area"] * alone * wide / 16 + model["others"] * large) * area
        if config.transpose_out:  # 8 columns at a time, if no more divide the tile
            store += model["pieces"] * tile_n / config.epi_tile_n(16)
    if not (problem.fusion.plain or config.pingpong):  # nothing is multiplied meanwhile
        store += model["followed"] * area
    fixed += store * (1 if config.pingpong else each)
    after = 0.0  # when everything has come
    if config.split_k_cluster > 1:
        after = model["parts"] + model["parts_area"] * area * (config.split_k_cluster - 1) / config.split_k_cluster
        fixed += (model["start"] + after) * (each - 1)  # blocks do not take one tile after the other
    if config.split_k > 1:
        after += (
            model["second"] + model["round"] * config.split_k / 8 + config.split_k * m * n * 8 / 1e6 / model["added"]
        )
        if tiles > 0.75 * device.multiprocessors:  # its blocks find no room beside those of the first
            after += model["crowded"]
    apart = model["apart"] ** math.log2(config.split_k_cluster)
    paired = model["paired"] if config.pingpong and along_m * along_n > 1 else 1.0
    found = {
        "MMA": fixed + paired * apart * steps * 2 * tile_m * tile_n * 64 / 1e6 / speed,
        "L2 cache": fixed + apart * steps * busy * arrival * _LINE / 1e6,
        "latency": fixed + steps * busy * model["stage"] / (config.ab_stages - 1),
    }
    read = tiles * (tile_m / along_n + tile_n / along_m) * steps / each * _LINE / 1e6
    if problem.flops > _HOT:
        found["power"] = problem.flops / 1e6 / (model["power"] * faster * 16 / bits) + read / model["power_cache"]
    if moved > _L2:
        rest, own = (
            tiles - (each - 1) * slots,
            config.stage_bytes(bits) * (config.ab_stages - 1) / 1e6 / model["latency"],
        )
        rates = [min(model["memory"], blocks * own) for blocks in (slots, rest)]
        again = max(0.0, read - moved / 1e6)  # from the L2 cache, at some cost
        came = moved / 1e6 + model["again"] * again
        found["memory"] = fixed + apart * came / tiles * ((tiles - rest) / rates[0] + rest / rates[1])
    return {name: us + after for name, us in found.items()}


def at_once(config: Sm90GemmConfig, device: Device) -> int:
    """Blocks of a config that run at a time, in whole clusters, of which there is one at least."""
    return (
        max(1, round(device.multiprocessors * _SLOTS[config.cluster_size - 1]) // config.cluster_size)
        * config.cluster_size
    )


@functools.lru_cache(64)
def _facts(problem: GemmProblem) -> tuple[tuple[tuple[int, bool], ...], int, int, int]:
    """Bytes from one row of an operand to the next, and whether those are rows of K; bytes of all arrays; bits of a result of each; other tensors that
    are as large."""
    rows_apart = tuple(
        ((problem.k if x.k_major else extent) * x.dtype.width // 8, x.k_major)
        for x, extent in zip(problem.operands(), problem.shape[1:], strict=True)
    )
    large = sum(all(step for step, extent in zip(x.strides, x.shape) if extent > 1) for x in problem.epilogue_inputs)
    return rows_apart, problem.bytes, sum(kind.width for kind in problem.out_types), large


def _lines(apart: int, k_major: bool, tile: int, model: dict[str, float]) -> float:
    """How much longer the L2 cache takes for lines of an operand with so many bytes from row to row. Where those are not rows of K, a tile that is no whole
    number of lines is asked for in shorter pieces."""
    if apart % _SECTOR or not (k_major or tile % _LINE == 0):
        return model["between"]
    return model["cut"] if apart % _LINE else 1.0


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
