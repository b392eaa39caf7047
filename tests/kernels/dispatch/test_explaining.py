"""What bounds a call, and what the configs are expected to take, as `kernels.explain` tells it of every function."""

from __future__ import annotations

import dataclasses

import pytest
from family_calls import CALLS, F16, blank

from kiln import kernels
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.explaining import LAUNCH_US, lower_bounds
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.attention.problem import AttentionProblem
from kiln.kernels.impl.gemm.implementations import REGISTRY as PRODUCTS
from kiln.kernels.impl.gemm.problem import GemmProblem

H200 = dataclasses.replace(device_of("sm_90a"), name="H200")


@pytest.fixture(autouse=True)
def _hopper(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")


@pytest.mark.parametrize("name", CALLS)
def test_what_bounds_a_function(name):
    bound, call = CALLS[name]
    found = call(kernels.explain)
    assert found.bound == bound
    assert f"bound by {bound}: " in str(found)
    first, *others = found.choices
    assert first.cost >= LAUNCH_US
    assert all(choice.cost >= first.cost for choice in others)


def test_what_a_problem_needs_at_least():
    """Counted by hand: 2 x 16 heads of 2048 x 2048 pairs, two products of 128, in 989.4 TFLOP/s; four arrays in 0.88 of 4.8 TB/s."""
    found = lower_bounds(AttentionProblem(2, 2048, 2048, 16, 16, 128, 128), H200)
    assert found["tensor cores"] == pytest.approx(4 * 2 * 16 * 2048 * 2048 * 128 / 989.4e6)
    assert found["memory"] == pytest.approx(4 * 2 * 2048 * 16 * 128 * 2 / (0.88 * 4.8e6))
    unknown = dataclasses.replace(H200, name="a GPU of nobody")
    assert set(lower_bounds(AttentionProblem(2, 2048, 2048, 16, 16, 128, 128), unknown)) == {"memory", "launch"}


@pytest.mark.parametrize(("rows", "measured"), [(4096, True), (4224, False)])
def test_measured_choices_are_named(rows, measured):
    """A config of the measured table may be listed above others that the model expects to be faster."""
    a, b = blank(rows, 4096, dtype=F16), blank(4096, 4096, dtype=F16).T
    found = kernels.explain(kernels.gemm, a, b)
    assert found.measured is measured
    assert ("  measured choice: " in str(found)) is measured
    assert (found.choices[0].cost > found.choices[1].cost) is measured
    assert not kernels.explain(kernels.gemm, a, b, config=found.config).measured


def test_parts_one_after_the_other_bound_nothing():
    """Copies before and after a product add up to what is expected."""
    from kiln import Float16

    odd = TensorLayout.dense(Float16, 1, 4001, 4001)
    found = PRODUCTS.explain(GemmProblem(odd, odd, odd), H200)
    assert sum(found.terms.values()) == pytest.approx(found.choices[0].cost)
    assert found.bound == "tensor cores"
    assert "in sequence" in str(found)
