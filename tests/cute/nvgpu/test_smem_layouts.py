"""Layouts of shared memory: each element has a place, and eight pieces in a column lie in different banks."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute, utils
from kiln.cute.nvgpu import warpgroup
from kiln.cute.nvgpu.warpgroup import SmemLayoutAtomKind

KINDS = [kind for kind in SmemLayoutAtomKind if kind is not SmemLayoutAtomKind.MN_SW128_32B]
"""All but the one for transposing 32-bit elements, which moves pieces of 32 bytes: test_tcgen05_layouts.py."""
ROW = {"INTER": 16, "SW32": 32, "SW64": 64, "SW128": 128}


@pytest.mark.parametrize("dtype", [kiln.Float16, kiln.Float32, kiln.Int8, kiln.Float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_each_element_has_a_place_and_columns_have_no_conflicts(kind, dtype):
    mode, _, permuted = kind.name.partition("_")
    size = dtype.width // 8
    row = ROW[permuted] // size
    layout = warpgroup.make_smem_layout_atom(kind, dtype)
    assert layout.shape == ((8, row) if mode == "K" else (row, 8))
    place = {}  # (row, element) -> byte, with the swizzle on bytes as pointers apply it
    for r in range(8):
        for c in range(row):
            place[r, c] = layout.inner(layout.outer((r, c) if mode == "K" else (c, r)) * size)
    assert sorted(place.values()) == list(range(0, 8 * row * size, size))
    piece = 16 // size
    for first in range(0, row, piece):
        for r in range(8):  # pieces stay together
            assert [place[r, first + i] - place[r, first] for i in range(piece)] == [i * size for i in range(piece)]
        banks = {place[r, first] % 128 // 16 for r in range(8)}
        assert len(banks) == 8  # eight rows of a column of pieces, as ldmatrix takes them


def test_a_tile_of_them_in_shared_memory():
    @cute.kernel
    def kernel(src: cute.Tensor, dst: cute.Tensor):
        layout = cute.tile_to_shape(
            warpgroup.make_smem_layout_atom(SmemLayoutAtomKind.K_SW128, kiln.Float16), (32, 128), (0, 1)
        )
        tile = utils.SmemAllocator().allocate_tensor(kiln.Float16, layout.outer, 1024, layout.inner)
        thread = cute.arch.thread_idx()[0]
        part = cute.make_tiled_copy_tv(
            cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), kiln.Float16, num_bits_per_copy=128),
            cute.make_layout((8, 4)),
            cute.make_layout((1, 8)),
        ).get_slice(thread)
        cute.copy(part, part.partition_S(src), part.partition_D(tile))
        cute.arch.sync_threads()
        cute.copy(part, part.partition_S(tile), part.partition_D(dst))

    @cute.jit
    def run(src: cute.Tensor, dst: cute.Tensor):
        kernel(src, dst).launch(grid=1, block=32)

    x = np.arange(32 * 128).reshape(32, 128).astype(np.float16)
    y = np.zeros_like(x)
    with kiln.target("cpu"), kiln.bank_conflicts() as report:
        run(*(cute.runtime.from_dlpack(a, assumed_align=16) for a in (x, y)))
    np.testing.assert_array_equal(x, y)
    assert report.conflicts == 0


def test_refused():
    with pytest.raises(kiln.DSLUserCodeTypeError, match="kind is 'K_SW128'"):
        warpgroup.make_smem_layout_atom("K_SW128", kiln.Float16)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="numeric type"):
        warpgroup.make_smem_layout_atom(SmemLayoutAtomKind.K_SW128, float)
