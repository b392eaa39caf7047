"""Parts of mixed-input GEMMs: the host's choices, the search for groups, and the conversion of A."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Float32, Int4, Int8, Int32, cute
from kiln.cute.nvgpu import CtaGroup, OperandMajorMode, cpasync, tcgen05
from kiln.cute.runtime import from_dlpack
from kiln.utils import gemm
from kiln.utils import mixed_input_helpers as mixed


def test_choices():
    K, MN = OperandMajorMode.K, OperandMajorMode.MN
    assert [mixed.get_transform_a_source(m).name for m in (K, MN)] == ["TMEM", "SMEM"]
    pair = mixed.get_tma_atom_kind(True, True, is_b=True)
    assert isinstance(pair, cpasync.CopyBulkTensorTileG2SMulticastOp) and pair.cta_group is CtaGroup.TWO
    assert mixed.get_tma_atom_kind(False, True, False).cta_group is CtaGroup.ONE
    assert [mixed.get_divisibility(n) for n in (96, 512, 7)] == [32, 128, 1]
    assert mixed.is_shuffle_a("k", 128, Int4, kiln.BFloat16, 128)
    assert not mixed.is_shuffle_a("m", 128, Int4, kiln.BFloat16, 128)
    assert mixed.is_valid_mma_tiler_and_cluster_shape((256, 128, 64), (2, 1), True)
    assert not mixed.is_valid_mma_tiler_and_cluster_shape((256, 128, 64), (1, 1), True)
    assert mixed.is_valid_scale_granularity(1, 128, Int4, 256, 64)
    assert not mixed.is_valid_scale_granularity(1, 128, Int8, 256, 64)


def test_layouts_of_scale_factors():
    shape, one, staged = mixed.get_smem_layout_scale((256, 128, 64), True, 1, 128, OperandMajorMode.MN, Float32, 3)
    assert shape == (256, 64) and cute.cosize(one.outer) == 128 and cute.cosize(staged.outer) == 384
    layout = mixed.get_gmem_layout_scale((256, 512, 2), 1, 128, OperandMajorMode.MN)
    assert [layout(c) for c in ((5, 0, 0), (5, 130, 0), (0, 0, 1))] == [5, 256 + 5, 1024]


def test_groups_are_found_in_order():
    lengths = [5, 0, 16, 9]
    cumsum = np.array([0, *np.cumsum(lengths)], np.int32)
    found = np.zeros((8, 3), np.int32)

    @cute.jit
    def search(cumsum: cute.Tensor, found: cute.Tensor, groups: Int32):
        state = mixed.create_initial_contiguous_group_search_state()
        for tile in range(8):
            state = mixed.contiguous_group_search((64, 8, 64), groups, tile, state, cumsum, 1)
            found[tile, 0] = state.cur_group_idx
            found[tile, 1] = state.cur_start
            found[tile, 2] = state.cur_boundary

    search(from_dlpack(cumsum), from_dlpack(found), 4)
    wanted = [(g + 1, s, cumsum[g + 1]) for g in range(4) for s in range(cumsum[g], cumsum[g + 1], 8)]
    assert [tuple(row) for row in found[: len(wanted)]] == wanted
    assert all(row[0] > 4 for row in found[len(wanted) :])


def test_conversion_restores_the_order_along_k():
    values = np.arange(16, dtype=np.int8)
    out = np.zeros(16, np.float32)

    @cute.jit
    def convert(x: cute.Tensor, y: cute.Tensor):
        registers = cute.make_rmem_tensor(16, Int8)
        registers.store(x.load())
        y.store(mixed.cvt_tensor_a(registers, Float32, True))

    convert(from_dlpack(values), from_dlpack(out))
    assert out.tolist() == [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15]


def test_nibbles_get_their_signs():
    values, out = np.arange(16, dtype=np.int8), np.zeros(16, np.int8)

    @cute.jit
    def extend(x: cute.Tensor, y: cute.Tensor):
        vector = cute.arch.sext_unpacked_i4_i8_intrinsic(x.load().maybe_downcast(), 16)
        y.store(cute.TensorSSA(vector, (16,), Int8))

    extend(from_dlpack(values), from_dlpack(out))
    assert out.tolist() == [*range(8), *range(-8, 0)]


def test_partitioned_accumulators_as_tiles():
    @cute.kernel
    def kernel():
        mma = kiln.utils.sm100.make_trivial_tiled_mma(
            kiln.Float16, OperandMajorMode.K, OperandMajorMode.K, Float32, CtaGroup.ONE, (128, 64)
        )
        acc = mma.make_fragment_C(cute.append(mma.partition_shape_C((128, 128)), 2))
        tile = gemm.sm100.transform_partitioned_tensor_layout(acc)
        assert cute.product_each(tile.shape) == (128, 128, 2)
        assert tile.layout((3, 70, 1)) == acc.layout(((3, 6), 0, 1, 1))
        swizzle = cute.make_swizzle(3, 3, 3)
        swizzled = cute.make_layout(((16, 8), 2, 3, 2), stride=((1, 16), 128, 256, 768))
        composed = cute.make_composed_layout(swizzle, 0, swizzled)
        pointer = cute.arch.alloc_smem(kiln.Float16, 1536, 128)
        both = gemm.sm100.transform_partitioned_tensor_layout(cute.make_tensor(pointer, composed))
        assert cute.product_each(both.shape) == (32, 24, 2)
        assert both.layout.inner == swizzle
        assert both.layout.outer((17, 9, 1)) == swizzled(((1, 1), 1, 1, 1))
        with pytest.raises(kiln.DSLUserCodeTypeError, match="takes a tensor"):
            gemm.sm100.transform_partitioned_tensor_layout(acc[(None, None), 0, 0, 0])

    @cute.jit
    def f():
        kernel().launch(grid=1, block=32)

    cute.compile(f)


def test_a_in_tensor_memory_has_128_rows():
    shape = ((64, 16), 1, 4)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="64 rows of a CTA"):
        mixed.get_copy_atom_a_transform(kiln.BFloat16, False, tcgen05.OperandSource.TMEM, shape, Int8)
