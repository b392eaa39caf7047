"""Some random GEMMs of each kind, with random configs; `tests/helpers/random_gemms.py` goes on for as long as it is told."""

from __future__ import annotations

import os

import pytest
import random_gemms

SEEDS = range(40 if os.environ.get("KILN_LONG_TESTS") else 2)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", random_gemms.KINDS)
def test_random_gemms(kind, seed):
    random_gemms.attempt(kind, seed)
