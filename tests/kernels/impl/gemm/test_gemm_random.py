"""Some random GEMMs of each kind, with random configs; `tests/helpers/random_products.py` goes on for as long as it is told."""

from __future__ import annotations

import os

import pytest
import random_products

SEEDS = range(40 if os.environ.get("KILN_LONG_TESTS") else 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", random_products.KINDS)
def test_random_gemms(kind, seed):
    random_products.attempt(kind, seed)
