"""What attention cut by a `Sm90AttentionConfig` is expected to take, and the tilings to choose from.

A multiprocessor computes its tiles one after the other: each has steps, and a beginning and an end of its own. The figures are in
`sm90_coefficients.py`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch.explaining import copied_bytes
from ....dispatch.registry import works
from .decode_cost import READ
from .gather_pages import LEAST
from .sm90_coefficients import FIGURES, Figures
from .sm90_config import ROWS, Sm90AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from ..problem import Attention

_LAUNCH = 4.0
"""Microseconds of a launch."""
_COUNTER = 2.0
"""Microseconds that a counter of tiles takes."""
_UNKNOWN = 0.95
"""What a tiling that was not measured is taken to do, of the speed of the one that is most like it."""
_LEAST_KEYS = 16
"""Keys of a step, at least, and what others are multiples of."""


def candidates(problem: Attention, device: Device) -> Iterator[Sm90AttentionConfig]:
    """Tilings to choose from, the cheapest first."""
    found = dict.fromkeys(
        _fitting(problem, Sm90AttentionConfig(*f.tiling[:3], True, f.tiling[3], True, f.tiling[4]), device)
        for f in _figures(problem)
    )
    return iter(sorted(found, key=lambda plan: expected(problem, plan, device)))


def default_tiling(problem: Attention, device: Device) -> Sm90AttentionConfig:
    """The cheapest tiling for a problem."""
    return next(candidates(problem, device))


def expected(problem: Attention, plan: Sm90AttentionConfig, device: Device) -> float:
    """Microseconds that attention takes."""
    return sum(parts(problem, plan, device).values())


def parts(
    problem: Attention, plan: Sm90AttentionConfig, device: Device, figures: Figures | None = None
) -> dict[str, float]:
    """Microseconds one after the other: of steps, of beginning and ending tiles, of multiprocessors that wait for the last, of launches, of laying
    rows of small pages in succession and values of 8 bits by columns."""
    figures = figures or figures_of(problem, plan)
    steps, tiles, waiting = units(problem, plan, device)
    return {
        "steps": max(steps / figures.speed, problem.bytes / (READ * copied_bytes(device))),
        "tiles": tiles * figures.tile,
        "waiting": waiting[0] / figures.speed + waiting[1] * figures.tile,
        "launch": _LAUNCH + (_COUNTER if plan.counted else 0.0),
        **_of_pages(problem, device),
        **_of_values(problem, device),
    }


def _of_pages(problem: Attention, device: Device) -> dict[str, float]:
    """What laying rows in succession takes, of keys that there may be."""
    moved = 2 * laid_bytes(problem) * min(1.0, problem.keys / max(1, problem.room))
    return {"pages": 2 * _LAUNCH + moved / copied_bytes(device)} if moved else {}


def _of_values(problem: Attention, device: Device) -> dict[str, float]:
    """What laying values of 8 bits by columns takes."""
    if problem.dtype.width == 16:
        return {}
    moved = 2 * problem.batches * problem.keys * problem.heads_k * problem.head_dim_v
    return {"values": _LAUNCH + moved / copied_bytes(device)}


def laid_bytes(problem: Attention) -> int:
    """Bytes of keys, and of values of 16 bits, that are laid in succession first: those in pages that the copy engine does not take."""
    if problem.page % LEAST == 0:
        return 0
    columns = sum(problem.head_dims) if problem.dtype.width == 16 else problem.head_dim
    return problem.batches * problem.room * problem.heads_k * columns * problem.dtype.width // 8


def units(problem: Attention, plan: Sm90AttentionConfig, device: Device) -> tuple[float, float, tuple[float, float]]:
    """Of a multiprocessor on average: millions of multiplications and additions, tiles; and both of what the last ones do while others
    wait."""
    share = problem.share if plan.grouped else 1
    rows = problem.queries * share
    in_rows = -(-rows // plan.block_q)
    tiles = in_rows * (problem.heads // share) * problem.batches
    keys = _keys(problem, plan, in_rows)
    step = 2 * plan.block_q * sum(problem.head_dims) / 1e6
    each = tiles / device.multiprocessors
    if (
        plan.counted or not plan.persistent
    ):  # the last tiles, which see fewest keys, are done at the same time but for one
        ahead = 0.5 if tiles > device.multiprocessors else 1.0 - each
        return keys * step * each, each, (ahead * keys * step, ahead)
    rounds = -(-tiles // device.multiprocessors)
    return keys * step * each, each, ((rounds - each) * keys * step, rounds - each)


def _keys(problem: Attention, plan: Sm90AttentionConfig, tiles: int) -> float:
    """Keys of a tile that are multiplied, on average."""
    keys, share = problem.keys, problem.share if plan.grouped else 1
    parts = plan.groups if plan.skips else 1  # what has keys of its own
    each, seen = plan.block_q // share // parts, 0
    some = [tile * parts + part for tile in range(0, tiles, max(1, tiles // 16)) for part in range(parts)]
    for part in some:
        position = part * each + keys - problem.queries
        end = keys if problem.right is None else min(keys, position + each + problem.right)
        begin = 0 if problem.left is None else max(0, position - problem.left)
        seen += max(1, -(-end // plan.block_k) - begin // plan.block_k)
    return seen * plan.block_k / len(some)


def _figures(problem: Attention) -> tuple[Figures, ...]:
    bits, dim, dim_v = problem.dtype.width, *problem.head_dims
    return next(found for (width, k, v), found in FIGURES.items() if width == bits and dim <= k and dim_v <= v)


def figures_of(problem: Attention, plan: Sm90AttentionConfig) -> Figures:
    """The figures of a plan, or of the one that is most like it."""

    def far(figures: Figures) -> tuple[int, ...]:
        groups, block_k, stages, in_turns, held = figures.tiling
        own = (plan.groups, plan.queries_held, plan.in_turns, plan.stages)
        differs = sum(a != b for a, b in zip(own, (groups, held, in_turns, stages), strict=True))
        return abs(groups - plan.groups), abs(block_k - plan.block_k), differs

    found = min(_figures(problem), key=far)
    return found if not any(far(found)) else found._replace(speed=_UNKNOWN * found.speed)


def _fitting(problem: Attention, tiling: Sm90AttentionConfig, device: Device) -> Sm90AttentionConfig:
    """A tiling as a problem needs it."""
    block_k, width = tiling.block_k, problem.dtype.width
    need = (problem.score is not None) + problem.sloped  # registers, for functions and slopes
    if need and width == 8:
        block_k -= 32 * (4 - tiling.groups)
    elif (
        width == 8
        and problem.head_dim_v > 128
        and (problem.left is not None or problem.page % LEAST == 0 < problem.page)
    ):
        block_k -= 32  # for what windows and pages take: else loops would spill, or products wait for each other
    elif tiling.groups == 3 or tiling.queries_held:
        block_k -= 16 * need
    elif need > 1:
        block_k = min(48, block_k)
    while block_k > _LEAST_KEYS and not works(
        lambda plan: plan.check(*problem.head_dims, device.smem, width), dataclasses.replace(tiling, block_k=block_k)
    ):
        block_k -= _LEAST_KEYS  # heads of two sizes have outputs beside queries, which those that were measured put in their place
    grouped = problem.share > 1 and problem.queries < tiling.block_q and ROWS % problem.share == 0
    # where tiles are equally long, they need no counter
    uneven = problem.left is not None or problem.right is not None or problem.packed or problem.partial
    return dataclasses.replace(tiling, block_k=block_k, grouped=grouped, counted=uneven)
