"""Some random problems of each kind; `tests/helpers/random_rows.py` goes on for as long as it is told."""

from __future__ import annotations

import os

import pytest
import random_rows

SEEDS = range(40 if os.environ.get("KILN_LONG_TESTS") else 1)


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", random_rows.KINDS)
def test_random_problems(kind, seed):
    random_rows.attempt(kind, seed)


def test_a_step_too_many_is_noticed():
    with pytest.raises(AssertionError, match="1 of 2; at \\(1,\\)"):
        random_rows.near([1.0, 1.0 + 2**-9], [1.0, 1.0], 0.0, random_rows.F16)
    with pytest.raises(AssertionError):
        random_rows.near([float("nan")], [1.0], 0.0, random_rows.F32)
