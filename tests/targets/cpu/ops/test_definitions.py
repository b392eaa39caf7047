"""The CPU target does what the plain definitions of the operations say, on random inputs."""

from __future__ import annotations

import definition_cases as cases
import pytest
from kernel_testing import run


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", cases.EVERYWHERE)
def test_operations(name):
    cases.EVERYWHERE[name](run)


def test_reductions_of_floats():
    cases.reductions_of_floats(run)


def test_mbarriers():
    cases.mbarriers(run)


@pytest.mark.parametrize("together", [True, False], ids=["fused", "alone"])
def test_matrices_in_shared_memory(together):
    cases.matrices_in_shared_memory(run, together, of_bytes=True)


@pytest.mark.quick(4)
@pytest.mark.parametrize(("shape", "a", "b", "sums"), cases.PRODUCTS, ids=cases.NAMES)
def test_products(shape, a, b, sums):
    cases.products(run, shape, a, b, sums, exact=False)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("a", "b", "sums"), cases.NARROW_PRODUCTS)
def test_narrow_products(a, b, sums):
    cases.narrow_products(run, a, b, sums)


@pytest.mark.quick(1)
@pytest.mark.parametrize("case", cases.SCALED_PRODUCTS, ids=lambda case: "-".join(map(str, case[:5])))
def test_scaled_products(case):
    cases.scaled_products(run, *case)
