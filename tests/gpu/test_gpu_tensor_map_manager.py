"""Tensor maps that kernels edit, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from grouped_copies import GMEM, SHAPES, SMEM, TILE, copier

from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("mode", [GMEM, SMEM])
def test_a_kernel_copies_tensors_of_several_shapes(mode):
    torch.manual_seed(0)
    given = [torch.randn(m, n, device="cuda") for m, n in SHAPES]
    found = [torch.zeros_like(x) for x in given]
    places = torch.tensor(
        [[a.data_ptr(), b.data_ptr()] for a, b in zip(given, found)], dtype=torch.int64, device="cuda"
    )
    shapes = torch.tensor(SHAPES, dtype=torch.int32, device="cuda")
    some = [
        from_dlpack(torch.zeros(16, 32, device="cuda"), assumed_align=16).mark_layout_dynamic(leading_dim=1)
        for _ in range(2)
    ]
    words = from_dlpack(torch.zeros(2, 16, dtype=torch.int64, device="cuda"), assumed_align=128)
    copier(mode)(*some, from_dlpack(shapes), from_dlpack(places), words)
    for a, b in zip(given, found):
        wanted = torch.zeros_like(a)
        wanted[: TILE[0], : TILE[1]] = a[: TILE[0], : TILE[1]]
        np.testing.assert_array_equal(b.cpu().numpy(), wanted.cpu().numpy())
