"""Slices that `cute.experimental` copies by TMA on a GPU: maps of the launch, and maps that the kernel writes."""

from __future__ import annotations

import pytest
from slice_kernels import compiled_with_workspace, double, number

from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("announced", [False, True])
def test_copies_of_slices(announced):
    x = torch.arange(1000 * 1032, device="cuda").reshape(1000, 1032).remainder(1000).half()
    out = torch.zeros_like(x)
    double(*(from_dlpack(t, assumed_align=16).mark_layout_dynamic(leading_dim=1) for t in (x, out)), announced)
    assert torch.equal(out, 2 * x)


def test_kernels_write_maps():
    shape, count = (120, 136), 50
    out = torch.full((count, *shape), -1.0, device="cuda", dtype=torch.float16)
    addresses = from_dlpack(torch.tensor([t.data_ptr() for t in out], device="cuda"))
    compiled, size = compiled_with_workspace(number, addresses, constants=(shape,))
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    for _ in range(20):
        out.fill_(-1)
        compiled(addresses, from_dlpack(workspace))
        expected = torch.arange(count, device="cuda").half()[:, None, None].expand_as(out)
        assert torch.equal(out, expected)
