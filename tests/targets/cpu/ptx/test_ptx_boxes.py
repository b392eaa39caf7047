"""Inline PTX that copies boxes of tensors and edits their maps."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm
from tma_testing import Box, Map, tile

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.cute import arch

BOX = Box("f32", (32, 16), (32, 8), "128b")
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3];"
ADD = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [$0, {$1, $2}], [$3];"


def program(load: str = LOAD):
    """Loads a box through a map that it has moved by a row, stores it and adds it once more."""

    @cute.kernel
    def kernel(source: Map, target: Map, workspace: cute.Tensor, a: cute.Tensor):
        t = arch.thread_idx()[0]
        shared, full = tile(BOX.bytes), arch.alloc_smem(cute.Int64, 1)
        copy = cute.make_tensor(arch.alloc_smem(cute.Int64, 16, 128), cute.make_layout(16))
        words = cute.make_ptr(cute.Int64, cute.Int64(source.number()), cute.AddressSpace.gmem)
        given = cute.make_tensor(words, cute.make_layout(16))
        if t < 16:
            copy[t] = given[t]
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        at = lambda pointer: cute.Int32(pointer.toint())
        to = workspace.iterator.toint()
        if t == 0:
            there = (a.iterator + 32).toint()
            asm(
                None,
                [at(copy.iterator), there],
                "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [$0], $1;",
                "r,l",
            )
            asm(
                None,
                [at(copy.iterator), cute.Int32(15)],
                "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [$0], 1, $1;",
                "r,r",
            )
        arch.sync_warp()
        asm(
            None,
            [to, at(copy.iterator)],
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [$0], [$1], 128;",
            "l,r",
        )
        asm(None, [to], "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "l")
        zero, row = cute.Int32(0), cute.Int32(2)
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(full, BOX.bytes)
            asm(None, [at(shared.iterator), to, zero, row, at(full)], load, "r,l,r,r,r")
        arch.mbarrier_wait(full, 0)
        if t == 0:
            for text in (STORE, ADD):
                asm(None, [target.number(), zero, cute.Int32(4), at(shared.iterator)], text, "l,r,r,r")
                asm(None, [], "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;", "")

    @cute.jit
    def main(a: cute.Tensor, b: cute.Tensor, workspace: cute.Tensor):
        kernel(BOX.encode(a), BOX.encode(b), workspace, a).launch(grid=1, block=32)

    return main


def test_boxes():
    a, b, space = np.arange(512, dtype=np.float32), np.zeros((16, 32), np.float32), np.zeros(32, np.int64)
    space = space[-space.ctypes.data % 128 // 8 :][:16]
    with kiln.sanitize(raises=False) as report:
        program()(a, b, space)
    assert report.findings == []
    want = np.zeros((16, 32), np.float32)
    want[4:12] = 2 * a.reshape(16, 32)[3:11]
    np.testing.assert_array_equal(b, want)


def test_what_is_not_executed():
    arrays = np.zeros(512, np.float32), np.zeros((16, 32), np.float32), np.zeros(16, np.int64)
    with kiln.target("cpu"), pytest.raises(DSLNotImplemented, match="wide columns of pixels"):
        wide = LOAD.replace(".2d", ".3d").replace(".global.", ".global.im2col::w.")
        program(wide.replace("$3}], [$4]", "$3, 0}], [$4], {0, 0}"))(*arrays)
