"""Vector registers, bulk reductions and packed conversions in inline PTX."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Int32, cute
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.ptx.syntax import Register, Vector, parse


def run(kernel, *arrays, threads=32, **more):
    @cute.jit
    def f(*tensors):
        kernel(*tensors).launch(grid=1, block=threads, **more)

    with kiln.target("cpu"):
        f(*(from_dlpack(x, assumed_align=16) for x in arrays))


def aligned(count, dtype):
    memory = np.zeros(count + 4, dtype)
    return memory[(-memory.ctypes.data // 4) % 4 :][:count]


def test_the_elements_of_a_vector_are_registers():
    program = parse(".reg .v2 .f32 v; mov.f32 v.x, $0; st.global.v2.f32 [$1], v;")
    assert program.registers == {"v.x": "f32", "v.y": "f32"}
    assert program.statements[1].operands[1] == Vector((Register("v.x"), Register("v.y")))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_vector_register_is_stored_whole(asynchronous):
    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = kiln.utils.SmemAllocator()
        record = smem.allocate_tensor(Int32, cute.make_layout(4), 16)
        barrier, thread = smem.allocate_array(kiln.Int64, 1), arch.thread_idx()[0]
        if thread == 0:
            arch.mbarrier_init(barrier, 1)
        arch.mbarrier_init_fence()
        arch.cluster_arrive()
        arch.cluster_wait()
        if thread == 0:
            moves = "".join(f"mov.s32 v.{axis}, {{$r{n}}};\n" for n, axis in enumerate("xyzw", 2))
            store = "st.global.v4.s32 [{$r0}], v;"
            to, at = out.iterator.toint(), kiln.Int64(0)
            if kiln.const_expr(asynchronous):
                arch.mbarrier_arrive_and_expect_tx(barrier, 16)
                store = "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [{$r0}], v, [{$r1}];"
                to = arch.map_dsmem_ptr(record.iterator, 0).toint()
                at = arch.map_dsmem_ptr(barrier, 0).toint()
            arch.inline_ptx(
                "{\n.reg .v4 .s32 v;\n" + moves + store + "\n}",
                read_only_args=[to, at, *(Int32(i) for i in (1, 2, 3, 4))],
            )
        if kiln.const_expr(asynchronous):
            arch.mbarrier_wait(barrier, 0)
            if thread < 4:
                out[thread] = record[thread]

    out = aligned(4, np.int32)
    run(kernel, out, cluster=(1, 1, 1))
    assert out.tolist() == [1, 2, 3, 4]


def test_bulk_reduction():
    @cute.kernel
    def kernel(out: cute.Tensor):
        thread = arch.thread_idx()[0]
        tile = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout(4), 16)
        if thread < 4:
            tile[thread] = kiln.Float32(thread + 1)
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        if thread == 0:
            for _ in kiln.range_constexpr(2):
                arch.inline_ptx(
                    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{$r0}], [{$r1}], {$r2};",
                    read_only_args=[out.iterator.toint(), tile.iterator.toint(), Int32(16)],
                )
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)

    out = aligned(4, np.float32)
    run(kernel, out)
    assert out.tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("code", "more", "expected"),
    [
        ("cvt.pack.sat.s16.s32 {$w0}, {$r0}, {$r1};", (), 0x7FFF8000),
        ("cvt.pack.sat.u16.s32 {$w0}, {$r0}, {$r1};", (), 0xFFFF0000),
        ("cvt.pack.sat.s8.s32.b32 {$w0}, {$r0}, {$r1}, {$r2};", (0x1234,), 0x12347F80),
    ],
)
def test_packed_conversions(code, more, expected):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        reads = [x[0], x[1], *(Int32(word) for word in more)]
        out[0] = arch.inline_ptx(code, write_only_types=[Int32], read_only_args=reads)

    x, out = aligned(4, np.int32), aligned(4, np.int32)
    x[:2] = 100000, -100000
    run(kernel, x, out, threads=1)
    assert int(out[0]) & 0xFFFFFFFF == expected
