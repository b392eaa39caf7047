"""Finds elements of an input that a wrong kernel loses, counts twice or mixes up.

The kernel and the reference get a matrix of zeros with a single 1 in each row, in another column each time. Rows of
the output that differ name columns of the input that do not count as they should.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import input_arrays
from .judge import in_words

SECONDS = 3.0
"""The time limit of the search."""


def lost(
    inputs: Sequence[Any], kernel: Callable[..., Sequence[Any]], reference: Callable[..., Sequence[Any]]
) -> list[str]:
    """Describe the columns of matrices that are lost; nothing if all of them count, or none."""
    messages: list[str] = []
    until = time.monotonic() + SECONDS
    for number, x in enumerate(inputs):
        if input_arrays.is_floating(x) and len(x.shape) == 2 and min(x.shape) > 1:
            messages += _of_input(inputs, number, kernel, reference, until)
    return messages


def _of_input(inputs: Sequence[Any], number: int, kernel: Any, reference: Any, until: float) -> list[str]:
    rows, columns = map(int, inputs[number].shape)
    probes = [input_arrays.clone(x) for x in inputs]
    for other, x in enumerate(probes):
        if input_arrays.is_floating(x) and other != number:
            input_arrays.assign(x, np.ones(x.shape))
    wrong = np.zeros(columns, bool)
    seen = np.zeros(columns, bool)
    example = ""
    for first in range(0, columns, rows):
        if time.monotonic() > until and first:
            break
        values = np.zeros((rows, columns))
        at = [(row, first + row) for row in range(min(rows, columns - first))]
        for place in at:
            values[place] = 1.0
        input_arrays.assign(probes[number], values)
        got, want = (input_arrays.numbers(each(*map(input_arrays.clone, probes))[0]) for each in (kernel, reference))
        if got.shape != want.shape or not got.ndim:
            return []
        mode = next((mode for mode in (0, got.ndim - 1) if got.shape[mode] == rows), None)
        if mode is None:
            return []
        with np.errstate(all="ignore"):
            off = ~(np.abs(got - want) <= 0.01 * (1.0 + np.abs(want)))
        bad = np.asarray(off.any(axis=tuple(other for other in range(got.ndim) if other != mode)))
        for row, column in at:
            seen[column] = True
            wrong[column] = bad[row]
            if bad[row] and not example:
                place = (row, *[0] * (got.ndim - 1)) if mode == 0 else (*[0] * (got.ndim - 1), row)
                place = place if off[place] else tuple(int(i) for i in np.argwhere(off)[0])
                example = f"a single 1 at [{row}, {column}] gives {got[place]:.4g}, expected {want[place]:.4g}"
    hit = np.flatnonzero(wrong)
    if not seen.all() or not 0 < len(hit) < columns:
        return []
    text = in_words(hit, columns) or f"{len(hit)} of {columns}"
    return [f"columns {text} of input {number} do not count as they should: {example}"]
