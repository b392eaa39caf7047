"""What bounds a call, and what the configs are expected to take, as `kernels.explain` tells it of every function."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from kiln import kernels
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.explaining import LAUNCH_US, lower_bounds
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.attention.problem import AttentionProblem
from kiln.kernels.impl.gemm.implementations import REGISTRY as PRODUCTS
from kiln.kernels.impl.gemm.problem import GemmProblem

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
H200 = dataclasses.replace(device_of("sm_90a"), name="H200")


def blank(*shape: int, dtype: type = BF16) -> np.ndarray:
    """An array that nobody reads: it takes no memory."""
    return np.zeros(shape, dtype)


ROWS, WEIGHT, LOGITS = blank(4096, 4096), blank(4096), blank(65536, 256, dtype=F32)
HEADS, TABLE = blank(2, 2048, 16, 128), blank(2048, 64, dtype=F32)
ONE, PAGES = blank(4, 1, 32, 128), blank(512, 64, 8, 128)
WHICH, LENGTHS = blank(4, 128, dtype=np.int32), np.full(4, 8192, np.int32)

CALLS = {
    "softmax": ("memory", lambda: (kernels.softmax, ROWS)),
    "layer_norm": ("memory", lambda: (kernels.layer_norm, ROWS, WEIGHT, WEIGHT)),
    "layer_norm_backward": ("memory", lambda: (kernels.layer_norm_backward, ROWS, ROWS, WEIGHT)),
    "fused_add_rms_norm": ("memory", lambda: (kernels.fused_add_rms_norm, ROWS, ROWS, WEIGHT)),
    "swiglu": ("memory", lambda: (kernels.swiglu, ROWS, ROWS)),
    "cross_entropy": ("memory", lambda: (kernels.cross_entropy, ROWS, blank(4096, dtype=np.int64))),
    "sum": ("memory", lambda: (kernels.sum, ROWS, 0)),
    "argmax": ("memory", lambda: (kernels.argmax, ROWS, 1)),
    "elementwise": ("memory", lambda: (kernels.elementwise, lambda a, b: a + b, ROWS, ROWS)),
    "rotary_embedding": ("memory", lambda: (kernels.rotary_embedding, HEADS, TABLE, TABLE)),
    "topk_softmax": ("memory", lambda: (kernels.topk_softmax, LOGITS, 8)),
    "softmax of one row": ("launch", lambda: (kernels.softmax, ROWS[:1])),
    "flash_attention": ("tensor cores", lambda: (kernels.flash_attention, HEADS, HEADS, HEADS)),
    "flash_attention of few": ("launch", lambda: (kernels.flash_attention, *[HEADS[:1, :64, :2]] * 3)),
    "flash_attention_backward": (
        "shared memory",
        lambda: (kernels.flash_attention_backward, *[HEADS] * 5, blank(2, 16, 2048, dtype=F32)),
    ),
    "paged_attention": ("memory", lambda: (kernels.paged_attention, ONE, PAGES, PAGES, WHICH, LENGTHS)),
    "mla_decode": (
        "memory",
        lambda: (kernels.mla_decode, blank(4, 1, 16, 576), blank(512, 64, 576), WHICH, LENGTHS),
    ),
    "gemm": ("MMA", lambda: (kernels.gemm, *[blank(2048, 2048)] * 2)),
    "gemm of many": ("MMA", lambda: (kernels.gemm, *[blank(8192, 8192)] * 2)),
    "gemm of f32": ("arithmetic", lambda: (kernels.gemm, *[blank(2048, 2048, dtype=F32)] * 2)),
}


@pytest.fixture(autouse=True)
def _hopper(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")


@pytest.mark.parametrize("name", CALLS)
def test_what_bounds_a_function(name):
    bound, call = CALLS[name]
    found = kernels.explain(*call())
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
