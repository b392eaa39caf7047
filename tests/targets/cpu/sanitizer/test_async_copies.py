"""Asynchronous copies and stores: where they may start, how long their memory must be there, when it may be used again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sanitizer_testing import found

from kiln import Constexpr, Float32, Int32, Int64, cute
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack


def aligned(array: np.ndarray) -> object:
    return from_dlpack(array, assumed_align=16)


# --- cp.async --------------------------------------------------------------------------------------------------------


@cute.kernel
def copied(x: cute.Tensor, y: cute.Tensor, source: Int32, target: Int32, bits: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    many = bits // 32
    row = cute.make_layout(many)
    smem = cute.arch.alloc_smem(Float32, 132, alignment=16)
    read = cute.make_ptr(Float32, x.iterator.toint() + source, cute.AddressSpace.gmem, assumed_align=16)
    written = cute.make_ptr(Float32, smem.toint() + target, cute.AddressSpace.smem, assumed_align=16)
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=bits)
    cute.copy(atom, cute.make_tensor(read + many * t, row), cute.make_tensor(written + many * t, row))
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    y[t] = cute.make_tensor(written, cute.make_layout(128))[many * t]


@cute.jit
def run_copied(x: cute.Tensor, y: cute.Tensor, source: Int32, target: Int32, bits: Constexpr):
    copied(x, y, source, target, bits).launch(grid=1, block=8)


@pytest.mark.parametrize("bits", [32, 64, 128])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_cp_async_starts_at_a_multiple_of_its_size(bits: int, side: str) -> None:
    bytes_ = bits // 8
    for off in (bytes_, bytes_ // 2):
        x, y = np.arange(64, dtype=np.float32), np.zeros(8, np.float32)
        findings = found(run_copied, aligned(x), aligned(y), *((off, 0) if side == "source" else (0, off)), bits)
        if off == bytes_:
            assert findings == []
            first = off // 4 if side == "source" else 0
            np.testing.assert_array_equal(y, x[first :: bits // 32][:8])
        else:
            finding = next(finding for finding in findings if finding.rule == "alignment")
            way = "from" if side == "source" else "to"
            assert f"asynchronous copy {way} of {bytes_} bytes" in finding.message
            assert f"no multiple of {bytes_}" in finding.message
            assert "cute.copy(atom" in str(finding)


# --- st.async --------------------------------------------------------------------------------------------------------


@cute.kernel
def sent(flag: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    """CTA 0 stores to the shared memory of CTA 1, whose mbarrier counts the bytes."""
    t, _, _ = cute.arch.thread_idx()
    rank = cute.arch.block_idx_in_cluster()
    box = cute.make_tensor(cute.arch.alloc_smem(Int32, 32, 128), cute.make_layout(32))
    full = cute.arch.alloc_smem(Int64, 2)
    if t == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init(full + 1, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if rank == 0:
        if wrong == "ended before":
            over = Int32(0)
            while over == 0:
                over = cute.arch.load(flag.iterator, Int32, sem="acquire", scope="gpu")
        store = cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), Int32, num_bits_per_copy=32)
        value = cute.make_rmem_tensor(1, Int32)
        value[0] = t + 1
        there = cute.make_tensor(cute.arch.map_dsmem_ptr(box.iterator + t, 1), cute.make_layout(1))
        barrier = full + (1 if wrong == "another mbarrier" else 0)
        if wrong == "mbarrier of the sender":
            if t == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(full, 128)
            cute.copy(store, value, there, mbar_ptr=cute.arch.map_dsmem_ptr(full, 0))
            cute.arch.mbarrier_wait(full, 0)
        else:
            cute.copy(store, value, there, mbar_ptr=cute.arch.map_dsmem_ptr(barrier, 1))
    elif wrong == "ended before":
        if t == 0:
            cute.arch.store(flag.iterator, Int32(1), sem="release", scope="gpu")
    elif not wrong:
        if t == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, 128)
        cute.arch.mbarrier_wait(full, 0)
        y[t] = box[31 - t]


@cute.jit
def run_sent(flag: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    sent(flag, y, wrong).launch(grid=2, block=32, cluster=(2, 1, 1))


@pytest.mark.parametrize("wrong", ["", "nobody waits", "ended before", "another mbarrier", "mbarrier of the sender"])
def test_an_asynchronous_store_needs_a_cta_that_is_there(wrong: str) -> None:
    y = np.zeros(32, np.int32)
    findings = found(run_sent, np.zeros(1, np.int32), y, wrong)
    assert ("block-exited" in [finding.rule for finding in findings]) is bool(wrong)
    if not wrong:
        assert findings == [] and y.tolist() == list(range(32, 0, -1))


# --- bulk copies -----------------------------------------------------------------------------------------------------


@cute.kernel
def stored_in_parts(y: cute.Tensor, parts: Int32, left: Constexpr):
    """Store a tile by its parts, one group each, and overwrite the first part when at most `left` groups are unread."""
    t, _, _ = cute.arch.thread_idx()
    smem = cute.arch.alloc_smem(Float32, 256, alignment=128)
    tile, part = cute.make_tensor(smem, cute.make_layout(256)), cute.make_layout(128)
    store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Float32)
    for i in range(t, 256, 32):
        tile[i] = Float32(i)
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()
    if t == 0:
        for i in range(0, 128 * parts, 128):
            cute.copy(store, cute.make_tensor(smem + i, part), cute.make_tensor(y.iterator + i, part))
            cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(left, read=True)
    cute.arch.sync_threads()
    tile[t] = Float32(0.0)
    cute.arch.sync_threads()
    if t == 0:
        cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def run_stored_in_parts(y: cute.Tensor, parts: Int32, left: Constexpr):
    stored_in_parts(y, parts, left).launch(grid=1, block=32)


def test_a_bulk_store_is_read_when_only_later_ones_are_left() -> None:
    y = np.zeros(256, np.float32)
    assert found(run_stored_in_parts, aligned(y), 2, 1) == []
    np.testing.assert_array_equal(y, np.arange(256))
    (finding,) = found(run_stored_in_parts, aligned(y), 2, 2)
    assert (finding.rule, finding.count) == ("read-write", 32)
    assert "cp_async_bulk_wait_group" in finding.hint


@cute.kernel
def left_behind(y: cute.Tensor, left: Constexpr, read: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 64, alignment=128), cute.make_layout((32, 2)))
    tile[t, 0] = Float32(1.0)
    tile[t, 1] = Float32(2.0)
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()
    if t == 0:
        for i in range(2):
            store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Float32)
            cute.copy(store, tile[None, i], cute.local_tile(y, (32,), (i,)))
            cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(left, read=read)


@cute.jit
def run_left_behind(y: cute.Tensor, left: Constexpr, read: Constexpr):
    left_behind(y, left, read).launch(grid=1, block=32)


@pytest.mark.parametrize(
    ("left", "read", "right"), [(0, False, True), (0, True, True), (1, True, False), (1, False, False)]
)
def test_the_source_of_a_bulk_store_is_there_until_it_is_read(left: int, read: bool, right: bool, recwarn: Any) -> None:
    assert found(run_left_behind, aligned(np.zeros(64, np.float32)), left, read) == []
    assert ["may still read shared memory" in str(warning.message) for warning in recwarn] == [True] * (not right)
