"""tcgen05 on a GPU with tensor memory: each kind of MMA against its definition, and the programs of `examples/blackwell`.

The bodies of the tests are those of the CPU target (`tests/targets/cpu/ops/test_umma_kernels.py`,
`tests/examples/test_blackwell.py`), with more kinds of MMAs and larger sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from blackwell_examples import SIZES, case, check_results
from kernel_testing import launcher
from umma_cases import CASES
from umma_kernels import KERNELS, check_kernel
from umma_testing import Case

import kiln
from kiln.base_dsl.diagnostics import DSLArchitectureError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] not in (10, 11),
    reason="needs tcgen05: compute capability 10.0, 10.3 or 11.0",
)

LARGE = {
    "step_2_pipeline": (1024, 1024, 1024),
    "step_3_roles": (1000, 1000, 520),
    "step_4_persistent": (2000, 2000, 520),
    "step_5_pairs": (2000, 2000, 520),
    "step_6_clc": (8200, 8200, 136),  # more clusters than run at a time
    "NVFP4": (1024, 1024, 2048),
    "MXFP8": (1024, 1024, 2048),
    "attention": (16, 1024, 2048),
}


def launched(kernel: Any, *arrays: np.ndarray, **options: Any) -> Iterator[list[np.ndarray]]:
    """Launch a kernel on the GPU; return copies of the arrays, afterwards."""
    tensors = [torch.from_numpy(array).cuda() for array in arrays]
    try:
        launcher(kernel, len(arrays), **options)(*tensors)
    except DSLArchitectureError as lacked:  # i8, K = 96 and scaled accumulators are of some chips only
        pytest.skip(str(lacked))
    yield [tensor.cpu().numpy() for tensor in tensors]


MMAS = {**CASES, **{f"kernel-{number}": each for number, each in enumerate(KERNELS)}}


@pytest.mark.parametrize("mma", MMAS.values(), ids=MMAS)
def test_sums_are_those_of_the_definition(mma: Case):
    """Random operands, bit for bit: the model of how the hardware adds and rounds."""
    check_kernel(mma, launched)


@pytest.mark.parametrize("name", SIZES)
def test_results(name: str):
    check_results(name, "cuda")


@pytest.mark.parametrize("name", SIZES)
def test_results_equal_those_of_the_cpu_target(name: str):
    """Sums of tcgen05 are the same bit for bit, but for the exponential function of the attention."""
    device, host = case(name, "cuda"), case(name)
    device.function(*device.arguments)
    with kiln.target("cpu"):
        host.function(*host.arguments)
    results = [next(x for x in reversed(each.arguments) if hasattr(x, "shape")) for each in (device, host)]
    got, expected = results[0].cpu(), torch.from_numpy(results[1])
    if name == "attention":
        torch.testing.assert_close(got, expected, rtol=2**-9, atol=1e-3)
    else:
        assert torch.equal(got.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("name", LARGE)
def test_large(name: str):
    check_results(name, "cuda", LARGE[name])
