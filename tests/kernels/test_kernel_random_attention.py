"""Some random problems of attention and its gradients, by some of the configs that are offered; `tests/helpers/random_attention.py` goes on for as long as it is told."""

from __future__ import annotations

import os

import pytest
import random_attention

MANY = bool(os.environ.get("KILN_LONG_TESTS"))


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(30 if MANY else 2))
@pytest.mark.parametrize("kind", ["forward", "gradients"])
def test_random_attention(kind, seed):
    random_attention.attempt(kind, seed)


def test_configs_of_random_problems():
    for seed in range(1000 if MANY else 100):
        random_attention.attempt("configs", seed)
