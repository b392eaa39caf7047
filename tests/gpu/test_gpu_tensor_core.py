# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""Tensor-core operations on a GPU, against the CPU target's definition of the same operations."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import kiln.cute as cute
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "targets" / "cpu"))
from kernel_testing import launcher  # noqa: E402
from test_tensor_core import CASES, a_places, b_places, c_places, mma_kernel, random_matrix, spread  # noqa: E402


@pytest.mark.parametrize(("a_kind", "b_kind", "k", "d_kind"), CASES)
def test_mma(a_kind, b_kind, k, d_kind):
    kernel, m = mma_kernel(a_kind, b_kind, k, d_kind)
    rng = np.random.default_rng(k)
    register = None if a_kind == "f64" else np.int32
    arrays = [
        spread(random_matrix(a_kind, (1, m, k), rng), lambda lane: a_places(a_kind, k, lane), 1, register),
        spread(random_matrix(b_kind, (1, k, 8), rng), lambda lane: b_places(b_kind, k, lane), 1, register),
        spread(random_matrix(d_kind, (1, m, 8), rng), lambda lane: c_places(a_kind, lane), 1, None),
    ]
    arrays.append(np.zeros_like(arrays[2]))
    results = []
    for target, device in (("cpu", "cpu"), ("nvidia", "cuda")):
        tensors = [torch.from_numpy(array.copy()).to(device) for array in arrays]
        arguments = [from_dlpack(tensor) for tensor in tensors]
        cute.compile(launcher(kernel, 4, grid=1, block=32), *arguments, target=target)(*arguments)
        results.append(tensors[3].cpu().double().numpy())
    if d_kind in ("i32", "f64"):
        np.testing.assert_array_equal(*results)
    else:  # the hardware adds in another order, and not all of it in f32
        tolerance = 2e-3 if d_kind == "f16" or a_kind in ("e4m3", "e5m2") else 1e-5
        np.testing.assert_allclose(*results, rtol=tolerance, atol=tolerance * np.abs(results[0]).max())
