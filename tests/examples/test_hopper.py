"""The steps of `examples/hopper`: every one computes what it says, on the CPU target."""

import numpy as np
import pytest
from example_running import EXAMPLES, load
from nvidia_testing import compile_for, needs_nvdisasm
from sass import check_products

import kiln

STEPS = {
    "step_2_gemm": (256, 128, 128),
    "step_3_pipeline": (128, 128, 384),
    "step_4_roles": (128, 256, 384),
    "step_5_stores": (136, 264, 72),
    "step_6_persistent": (264, 264, 72),
}


def test_the_copy():
    x = np.random.default_rng(0).standard_normal((72, 200)).astype(np.float16)
    y = np.zeros_like(x)
    load("hopper/step_1_copy.py").copy(x, y)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("step", STEPS)
def test_products(step: str):
    module = load(f"hopper/{step}.py")
    a, b, c = load("hopper/harness.py").matrices(*STEPS[step])
    module.gemm(a, b, c, *([2] if step == "step_6_persistent" else []))
    assert load("hopper/harness.py").check(a, b, c) < 1


STEPS_OF_A_CONTRACT = """
import sys
import numpy as np
from kiln.workbench.core import loading

case = loading.load(sys.argv[1])
assert [problem["step"] for problem in case.problems] == [2, 3, 4, 5, 6]
problem = case.problem({"step": 3, "n": 128})
inputs = case.inputs(problem, 0)
assert case.flops_bytes(problem) == (2 * 128**3, 6 * 128**2)
np.testing.assert_allclose(case.kernel(*inputs).cpu(), case.reference(*inputs).cpu(), atol=0.1, rtol=0.01)
"""


def test_the_steps_are_one_contract_to_compare_them(child):
    """Without a GPU the contract serves CUDA to its process."""
    done = child("-c", STEPS_OF_A_CONTRACT, EXAMPLES / "hopper" / "steps.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.quick(1)
@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
@pytest.mark.parametrize("step", STEPS)
def test_products_run_asynchronously_on_gpus(step: str):
    """Sums stay in their registers, products do not wait for each other, and no turn waits for memory of the GPU."""
    a, b, c = load("hopper/harness.py").matrices(*STEPS[step])
    made = compile_for(load(f"hopper/{step}.py").gemm, a, b, c, *([2] if step == "step_6_persistent" else []))
    loops = check_products(made)
    assert loops and not any(i.name.startswith("MEMBAR.ALL.GPU") for i in loops[0].instructions)


def test_attention():
    """Several tiles of queries, and more tiles of keys than there are stages."""
    module = load("hopper/attention_slide.py")
    operands = module.tensors(2, 256, 384)
    with kiln.target("cpu"), kiln.sanitize():
        module.attention(*operands)
    assert module.check(*operands) < 1


def test_the_check_of_attention_refuses_a_tile_too_few():
    module = load("hopper/attention_slide.py")
    q, k, v, o = module.tensors(1, 128, 256)
    with kiln.target("cpu"):
        module.attention(q, k[:, :128], v[:, :128], o)
    assert module.check(q, k, v, o) > 1


@needs_nvdisasm
@pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")
def test_attention_runs_asynchronously_on_gpus():
    """Eight instructions for S and eight for P V, in one loop; of S, one register moves: what its maximum begins with."""
    module = load("hopper/attention_slide.py")
    loops = check_products(compile_for(module.attention, *module.tensors(1, 128, 256)), 16, moves=1)
    assert [len(loop.products) for loop in loops] == [16]
