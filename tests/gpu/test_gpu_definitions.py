# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""The hardware does what the plain definitions of its operations say."""

from __future__ import annotations

import definition_cases as cases
import numpy as np
import pytest
from kernel_testing import launcher

import kiln.cute as cute
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")


def run(kernel, *arrays: np.ndarray, grid=1, block=32) -> None:
    """Launch a kernel on the GPU; the arrays are what it leaves."""
    tensors = [torch.from_numpy(array.copy()).cuda() for array in arrays]
    arguments = [from_dlpack(tensor) for tensor in tensors]
    cute.compile(launcher(kernel, len(arrays), grid=grid, block=block), *arguments)(*arguments)
    for array, tensor in zip(arrays, tensors, strict=True):
        array[...] = tensor.cpu().numpy()


@pytest.mark.parametrize("name", cases.EVERYWHERE)
def test_operations(name):
    cases.EVERYWHERE[name](run)


def test_matrices_in_shared_memory():
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("stmatrix is of sm_90")
    cases.matrices_in_shared_memory(run, together=True, of_bytes=False)


@pytest.mark.parametrize(("shape", "a", "b", "sums"), cases.PRODUCTS, ids=cases.NAMES)
def test_products(shape, a, b, sums):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("some products are of sm_90")
    cases.products(run, shape, a, b, sums, exact=True)


@pytest.mark.parametrize(("a", "b", "sums"), cases.NARROW_PRODUCTS)
def test_narrow_products(a, b, sums):
    if torch.cuda.get_device_capability()[0] != 12:
        pytest.skip("mma.sync of floats below 8 bits is of sm_120 and sm_121")
    cases.narrow_products(run, a, b, sums)


@pytest.mark.parametrize("case", cases.SCALED_PRODUCTS, ids=lambda case: "-".join(map(str, case[:5])))
def test_scaled_products(case):
    if torch.cuda.get_device_capability()[0] != 12:
        pytest.skip("mma.sync with block scales is of sm_120 and sm_121")
    cases.scaled_products(run, *case)
