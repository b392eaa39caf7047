"""Decides whether results are right, and describes those that are not.

A result is right if it is as near to the same computation in fp64 as the reference is, up to a small factor; on
integers, if it is equal. `judge` decides, `findings` says where wrong elements lie and what they look like.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import input_arrays

FACTOR = 4.0
"""The error of a kernel may be this many times the reference's."""


@dataclass
class Judgement:
    """The judgement of one output."""

    wrong: Any
    """Which elements are wrong, as an array of torch or numpy."""
    error: float
    """The largest error of an element."""
    bound: float
    """The allowed error; 0 means equality."""
    how: str
    """The rule in words."""
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all elements are right."""
        return not bool(self.wrong.any())


def judge(got: object, reference: object, oracle: object, tolerance: object = None, exact: bool = False) -> Judgement:
    """Judge an output by the reference's and the oracle's of the same shape; the oracle's should be fp64.

    `exact` demands equality with the oracle, rounded once, if the oracle's and the reference's results are integers.
    All is computed where the arrays are.
    """
    xp, (mine, theirs, truth) = input_arrays.alike(got, reference, oracle)
    if not input_arrays.is_floating(reference):
        wrong = mine != theirs
        apart = xp.where(wrong, 1, 0)
        return Judgement(wrong, float(apart.max()) if 0 not in wrong.shape else 0.0, 0.0, "equal")
    with np.errstate(all="ignore"):
        if tolerance == "exact":
            wrong = ~((mine == theirs) | (xp.isnan(mine) & xp.isnan(theirs)))
            return Judgement(wrong, _largest(xp, xp.abs(mine - theirs)), 0.0, "exact")
        if isinstance(tolerance, Mapping) and "factor" not in tolerance:
            return _by_tolerance(xp, mine, theirs, **tolerance)
        expected = input_arrays.rounded(truth, reference)
        if exact and bool((truth == xp.round(truth)).all()) and bool((expected == theirs).all()):
            return Judgement(mine != expected, _largest(xp, xp.abs(mine - expected)), 0.0, "exact")
        factor = tolerance["factor"] if isinstance(tolerance, Mapping) else FACTOR
        return _by_model(xp, mine, theirs, truth, factor, input_arrays.roundoff(reference), _is_fp64(oracle))


def _is_fp64(oracle: object) -> bool:
    return input_arrays.dtype_name(oracle) in ("float64", "complex128") or not input_arrays.is_floating(oracle)


def _by_tolerance(xp: Any, mine: Any, theirs: Any, rtol: float = 0.0, atol: float = 0.0) -> Judgement:
    """Judge as `torch.testing.assert_close` does, with NaN equal to NaN."""
    difference = xp.abs(mine - theirs)
    allowed = atol + rtol * xp.abs(theirs)
    close = (mine == theirs) | (difference <= allowed) | (xp.isnan(mine) & xp.isnan(theirs))
    return Judgement(~close, _largest(xp, difference / allowed), 1.0, f"rtol {rtol:g}, atol {atol:g}")


def _by_model(xp: Any, mine: Any, theirs: Any, truth: Any, factor: float, roundoff: float, is_fp64: bool) -> Judgement:
    same = (xp.isnan(mine) & xp.isnan(theirs)) | (mine == theirs)  # NaN equals NaN, infinities of one sign are equal
    finite = xp.isfinite(theirs) & xp.isfinite(truth)
    some = truth[finite]
    scale = xp.abs(truth) + (xp.sqrt(xp.mean(some * some)) if 0 not in some.shape else 1.0)
    none = xp.zeros_like(truth)
    # 0/0, if all values are zero, is no error.
    mine_off, theirs_off = (
        xp.where(finite & (each != truth), xp.abs(each - truth), none) / xp.where(scale == 0, scale + 1, scale)
        for each in (mine, theirs)
    )
    notes: list[str] = []
    bound = factor * _largest(xp, theirs_off) + 2 * roundoff
    if not is_fp64:
        bound += 64 * 2.0**-24
        narrow = "the reference rounds to a narrower type itself, so it is not an fp64 oracle"
        notes.append(f"{narrow}: define oracle_fn for a tight bound")
    wrong = xp.where(finite, ~(mine_off <= bound), ~same)
    error = _largest(xp, xp.where(xp.isfinite(mine), mine_off, none))
    return Judgement(wrong, error, bound, f"{factor:g} times the reference's error against fp64", notes)


def _largest(xp: Any, values: Any) -> float:
    good = values[xp.isfinite(values)]
    return float(good.max()) if 0 not in good.shape else 0.0


# Describing wrong results


def findings(got: Any, reference: object, judged: Judgement, tile: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Describe the wrong elements: where they lie, the first and the worst of them, and what they look like."""
    mine, theirs, wrong = (input_arrays.numbers(each) for each in (got, reference, judged.wrong))
    places = np.argwhere(wrong)
    with np.errstate(all="ignore"):
        off = np.abs(mine.astype(np.float64) - theirs.astype(np.float64))
        off = np.where(np.isnan(off), np.inf, off)
    order = np.argsort(-off[wrong], kind="stable")[:5]

    def element(at: Any) -> dict[str, Any]:
        got, expected = (_number(array[tuple(at)]) for array in (mine, theirs))
        return {"index": [int(i) for i in at], "got": got, "expected": expected}

    return {
        "wrong": int(wrong.sum()),
        "elements": int(wrong.size),
        "first": element(places[0]),
        "worst": [element(places[number]) for number in order],
        "where": _where(wrong, tile),
        "look": _look(mine, theirs, wrong),
    }


def _number(value: Any) -> float | int | bool | str:
    """Return a number as JSON, which has no NaN."""
    plain = value.item()
    return plain if not isinstance(plain, float) or np.isfinite(plain) else str(plain)


def _where(wrong: np.ndarray, tile: tuple[int, ...] | None) -> list[str]:
    """Describe the wrong elements as rows, columns, blocks or every n-th: whatever says it shortest."""
    shape = wrong.shape
    places = []
    if wrong.all():
        return ["all elements"]
    names = _mode_names(len(shape))
    for mode, name in enumerate(names):
        others = tuple(other for other in range(len(shape)) if other != mode)
        hit = np.flatnonzero(wrong.any(axis=others) if others else wrong)
        if len(hit) == shape[mode]:
            continue
        whole = others and bool(np.take(wrong, hit, axis=mode).all())
        shown = in_words(hit, shape[mode])
        if not shown:
            continue
        text = f"{'whole ' if whole else ''}{name}{'s' if len(hit) > 1 else ''} {shown}"
        places.append(text)
    if len(shape) >= 2 and tile and len(tile) >= 2:
        places += _tiles(wrong, tile)
    return places or ["scattered over all of it"]


def _mode_names(rank: int) -> list[str]:
    if rank == 1:
        return ["element"]
    return [*(f"index {mode} =" for mode in range(rank - 2)), "row", "column"]


def in_words(hit: np.ndarray, extent: int) -> str:
    """Describe a set of numbers below `extent`; "" for most of them without order."""
    first = int(hit[0])
    last = int(hit[-1])
    if len(hit) == 1:
        end = ", the last" if last == extent - 1 and extent > 1 else ""
        return f"{first}{end} (of {extent})"
    if last - first + 1 == len(hit):
        end = f", the last {len(hit)}" if last == extent - 1 else ""
        return f"{first} to {last}{end} (of {extent})"
    steps = (2, 4, 8, 16, 32, 64, 128, 256)
    for step in reversed(steps):
        rests = np.unique(hit % step)
        if len(rests) == 1 and len(hit) >= 3:
            return f"{first}, {first + step}, ...: those that are {int(rests[0])} modulo {step} (of {extent})"
    for step in reversed(steps[2:]):
        rests = np.unique(hit % step)
        low = int(rests[0])
        high = int(rests[-1])
        whole = high - low + 1 == len(rests) < step and len(hit) == len(rests) * (extent // step) and not extent % step
        if whole and extent > step:
            return f"that are {low} to {high} modulo {step} (of {extent})"
    for step in steps[1:]:
        block = np.unique(hit // step)
        if len(block) == 1 and extent >= 2 * step:
            return f"between {block[0] * step} and {block[0] * step + step - 1} (of {extent})"
    shown = ", ".join(str(int(each)) for each in hit[:4])
    return f"{shown}, ...: {len(hit)} of {extent}" if len(hit) < extent / 2 else ""


def _tiles(wrong: np.ndarray, tile: tuple[int, ...]) -> list[str]:
    rows, columns = (part // extent for part, extent in zip(np.nonzero(wrong)[-2:], tile[-2:]))
    pairs = {(int(row), int(column)) for row, column in zip(rows, columns)}
    total = math.prod(-(-extent // size) for extent, size in zip(wrong.shape[-2:], tile[-2:]))
    if len(pairs) in (0, total):
        return []
    some = ", ".join(map(str, sorted(pairs)[:4]))
    return [f"{len(pairs)} of {total} tiles of {tile[-2]}x{tile[-1]}: {some}{', ...' if len(pairs) > 4 else ''}"]


def _look(mine: np.ndarray, theirs: np.ndarray, wrong: np.ndarray) -> list[str]:
    """Describe what the wrong values have in common."""
    got = mine[wrong].astype(np.float64)
    want = theirs[wrong].astype(np.float64)
    observations: list[str] = []
    with np.errstate(all="ignore"):
        missing = np.isnan(got) & ~np.isnan(want)
        if missing.any():
            which = "all of them" if missing.all() else f"{int(missing.sum())} of them"
            why = "never written (memory was NaN before the call), or computed from such"
            observations.append(f"{which} are NaN where a number is expected: {why}")
        swallowed = np.isnan(want) & ~np.isnan(got)
        if swallowed.any():
            why = "a comparison with NaN is false, so `where` and `max` drop it"
            observations.append(f"{int(swallowed.sum())} should be NaN and are not: {why}")
        endless = np.isinf(got) & np.isfinite(want)
        if endless.any():
            observations.append(f"{int(endless.sum())} are infinite: an overflow of the type?")
        real = np.isfinite(got) & np.isfinite(want)
        got = got[real]
        want = want[real]
        if got.size < 2 or got.size < 0.5 * wrong.sum():
            return observations
        if not got.any():
            observations.append("they are 0")
        elif np.allclose(got, -want, rtol=1e-2, atol=0):
            observations.append("they have the other sign")
        else:
            ratio = got / want
            middle = float(np.median(ratio))
            if np.isfinite(middle) and abs(middle - 1) > 0.01 and np.allclose(ratio, middle, rtol=1e-2):
                observations.append(f"they are {middle:.4g} times what is expected")
            else:
                observations += _moved(mine, theirs, wrong)
        relative = np.abs(got - want) / (np.abs(want) + np.sqrt(np.mean(np.square(want))))
        if not observations and wrong.mean() > 0.05 and np.median(relative) < 2.0**-4:
            size = f"{np.median(relative):.1e} of their size"
            observations.append(f"many are off by little, {size}: an accumulator of too narrow a type?")
    return observations


def _moved(mine: np.ndarray, theirs: np.ndarray, wrong: np.ndarray) -> list[str]:
    """Return whether wrong elements are those of a neighbour, in words."""
    for mode in range(wrong.ndim):
        for step in (1, -1):
            neighbour = np.roll(theirs, -step, axis=mode)
            if np.mean(np.isclose(mine[wrong], neighbour[wrong], rtol=1e-3)) > 0.9:
                name = _mode_names(wrong.ndim)[mode].removesuffix(" =")
                return [f"they are what is expected at the {'next' if step > 0 else 'previous'} {name}: off by one"]
    if wrong.ndim == 2 and mine.shape[0] == mine.shape[1] and np.mean(np.isclose(mine, theirs.T, rtol=1e-3)) > 0.9:
        return ["the result is transposed"]
    return []
