"""What bounds a call, and what the configs are expected to take, as `kernels.explain` tells it of every function."""

from __future__ import annotations

import dataclasses

import pytest
from family_calls import CALLS, problem_of

from kiln import kernels
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.dispatch.roofline import LAUNCH_US, lower_bounds, norm, us
from kiln.kernels.impl.attention.fwd.implementations import REGISTRY as ATTENTION
from kiln.kernels.impl.attention.problem import AttentionProblem
from kiln.kernels.impl.gemm.implementations import REGISTRY as PRODUCTS
from kiln.kernels.impl.gemm.problem import GemmProblem
from kiln.kernels.impl.rowwise import REGISTRY as ROWS

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


def test_phases_bound_nothing():
    """Copies before and after a GEMM add to what its slowest unit takes."""
    from kiln import Float16

    odd = TensorLayout.dense(Float16, 1, 4001, 4001)
    found = PRODUCTS.explain(GemmProblem(odd, odd, odd), H200)
    roofline = found.roofline
    assert {"copy of a", "copy of b", "copy of the result"} < set(roofline.phases)
    assert roofline.us == pytest.approx(found.choices[0].cost)
    assert roofline.us >= sum(roofline.phases.values()) + max(roofline.units.values())
    assert found.bound in roofline.units
    assert "in sequence" in str(found)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_nothing_is_expected_below_what_bounds_it(arch, monkeypatch):
    """Of each architecture's GPUs, whose peaks the fitted models do not know; and a slower choice has a reason."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    for name in CALLS:
        found = CALLS[name][1](kernels.explain)
        first, *others = found.choices
        least = max(lower_bounds(found.problem, found.device).values())
        assert min(choice.cost for choice in found.choices) >= least, name
        assert first.cost >= max(found.bounds.values()), name
        slower = any(choice.cost < first.cost for choice in others)
        assert not slower or "chooses among its configs by a rule" in found.notes[0], name


def test_notes():
    """Figures of another GPU, and architectures whose tensor cores need other instructions, are named."""
    _, problem = problem_of("flash_attention")
    explained = {
        name: str(ATTENTION.explain(problem, device))
        for name, device in (("H200", H200), ("H100", device_of("sm_90a")), ("B200", device_of("sm_100a")))
    }
    assert "note" not in explained["H200"]
    scaled = "note: expected times are scaled from H200 figures: memory bandwidth x "
    assert f"{scaled}0.70, clock x 1.00, SMs x 1.00\n" in explained["H100"]
    assert f"{scaled}1.67, clock x 1.01, SMs x 1.12\n" in explained["B200"]
    assert "note: on sm_100 and later the library has mma.sync kernels, no tcgen05 kernel for this" in explained["B200"]
    assert "mma.sync kernels" not in str(ROWS.explain(problem_of("softmax")[1], device_of("sm_100a")))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_every_implementation_says_what_takes_time(arch, monkeypatch):
    """Units or phases by name, which make the cost; of unaligned rows the one that was not measured takes longer."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    for name in CALLS:
        registry, problem = problem_of(name)
        for choice in registry.choices(problem, device_of(arch)):
            roofline = choice.implementation.roofline(problem, choice.config, device_of(arch))
            assert roofline.terms, name
            assert choice.cost >= roofline.us, name


def test_a_norm_is_little_more_than_the_longest():
    assert norm(4, 1.0, 10.0) == pytest.approx(10.0, rel=1e-4)
    assert norm(4, 10.0, 10.0) == pytest.approx(10.0 * 2**0.25)
    assert us(3e6, 1.5) == 2.0  # bytes at TB/s
