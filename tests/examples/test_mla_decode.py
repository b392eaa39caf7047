"""The plan of attention to latents: what it says of itself, and that it is right."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

import kiln

pytest.importorskip("torch")
FILE = Path(__file__).parents[2] / "examples" / "mla_decode.py"
LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")


@pytest.fixture
def plan_class():
    spec = importlib.util.spec_from_file_location("mla_decode", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MlaDecode


def test_what_it_says(plan_class):
    plan = plan_class(b=128, s=1, t=4096, h=128)
    assert plan.problem == {"b": 128, "s": 1, "t": 4096, "h": 128, "cache": "bfloat16"}
    flops, size = plan._algorithmic_flops_bytes()
    assert flops == 2 * 128 * 128 * 4096 * 1088
    assert size > 2 * 128 * 4096 * 576
    narrow = plan_class(b=128, s=1, t=4096, h=128, cache="float8_e4m3fn")
    assert narrow._algorithmic_flops_bytes() == (flops, size - 128 * 4096 * 576)
    assert all(tiling.validate(plan) for tiling in plan._autotune_configs())
    few = plan_class(b=128, s=1, t=4096, h=16)
    assert [tiling.early for tiling in few._autotune_configs() if not tiling.validate(few)] == [8, 0]


@pytest.mark.skipif(not LONG, reason="latents of full size on the CPU target; set KILN_LONG_TESTS=1")
@pytest.mark.parametrize(("heads", "cache"), [(8, "bfloat16"), (40, "float8_e4m3fn")])
def test_it_is_right(plan_class, heads, cache):
    plan = plan_class(b=2, s=2, t=70, h=heads, cache=cache)
    inputs = plan.prepare_inputs()
    with kiln.target("cpu"):
        got = plan.plan(*inputs).run()
    wanted = plan.reference_fn(*inputs)
    assert (got - wanted).abs().max() < 2e-2
