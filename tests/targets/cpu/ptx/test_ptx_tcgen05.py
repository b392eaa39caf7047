"""Inline PTX with tensor memory and `tcgen05.mma`, in the forms that attention programs write."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm, run, runs
from tcgen05_testing import holder, mbarriers, wait, word

from kiln import cute
from kiln.base_dsl import trace as tracing
from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.cute import arch
from kiln.dialects.nvgpu import mbarrier
from kiln.dialects.nvgpu import tcgen05_descriptors as descriptors
from kiln.mlir import ir

N, K = 32, 16
REGISTERS = 32
IDESC = descriptors.instruction_descriptor("f16", "f16", "f16", "f32", 128, N)
WS = descriptors.instruction_descriptor("f16", "f16", "f16", "f32", 32, 64, ws=True)
HIGH = descriptors.matrix_descriptor_fields(16, 1024, "128b") >> 32
MULTIPLY = f"""{{
    .reg .pred leader, p, come;
    .reg .b32 idesc, low;
    .reg .b64 a, b;
    elect.sync _|leader, -1;
    mov.b32 idesc, {IDESC:#x};
    mov.b64 a, {{$1, {HIGH:#x}}};
    add.u32 low, $2, 0x0;
    mov.b64 b, {{low, {HIGH:#x}}};
    setp.ne.b32 p, $3, 0;
    @leader tcgen05.mma.cta_group::1.kind::f16 [$0], a, b, idesc, p;
    @leader tcgen05.mma.cta_group::1.kind::f16.collector::a::discard [$0], a, b, idesc, 1;
    WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 come, [$7], 0, 10000000;
    @come bra DONE;
    bra WAIT;
    DONE:
    @leader tcgen05.mma.cta_group::1.kind::f16 [$0 + 32], [$0 + 0x60], b, idesc, {{$4, $5, $5, $5}}, 0, 1;
    @leader tcgen05.mma.ws.cta_group::1.kind::f16.collector::b0::fill [$0 + 64], a, b, {WS:#x}, 0;
    @leader tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [$6];
}}"""
"""Two MMAs of an A in shared memory; when another warp has come, one of an A in tensor memory without lane 0, and one
that is weight stationary."""


def registers(count: int) -> ir.Type:
    return ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * count)})>")


def test_an_attention_program_in_ptx():
    names = [f"${n}" for n in range(REGISTERS)]
    load = f"tcgen05.ld.sync.aligned.32x32b.x{REGISTERS}.b32 {{{', '.join(names)}}}, [${REGISTERS} + 0x0];"
    sources = ", ".join(f"${n}" for n in range(1, 9))
    store = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [$0 + 0x60], {{{sources}}};"
    width = ",".join(["=r"] * REGISTERS)

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, 8192, 1024)
        words = cute.make_tensor(smem, cute.make_layout(8192))
        bar, place = mbarriers(2), holder()
        t = arch.thread_idx()[0]
        for row, matrix, start in ((t, a, 0), (t % 64, b, 4096)):
            for i in range(8):  # 16 elements: two of the 16-byte chunks, in the order of the swizzle
                words[start + row * 32 + ((i // 4) ^ (row % 8)) * 4 + i % 4] = matrix[row, i]
        if t == 0:
            for each in (bar, bar + 1):
                mbarrier.mbarrier_init(each.ir_value(), word(1))
        arch.fence_view_async_shared()
        if t < 32:
            asm(
                None,
                [place.iterator.toint()],
                "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [$0], 128;",
                "r",
            )
            asm(None, [], "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", "")
        arch.sync_threads()
        address = place[0]
        mine = address + (t // 32 << 21)
        asm(None, [mine, *(a[t, i] for i in range(8))], store, "r,r,r,r,r,r,r,r,r")
        asm(None, [], "tcgen05.wait::st.sync.aligned;", "")
        asm(None, [], "tcgen05.fence::before_thread_sync;", "")
        arch.sync_threads()
        asm(None, [], "tcgen05.fence::after_thread_sync;", "")
        if t // 32 == 1:
            low = [(cute.Int32(smem.toint()) + at & 0x3FFFF) >> 4 for at in (0, 16384)]
            low[0] = low[0] | 1 << 16
            zero = cute.Int32(0)
            operands = [address, *low, zero, cute.Int32(1), zero, bar.toint(), (bar + 1).toint()]
            asm(None, operands, MULTIPLY, "r,r,r,r,r,r,r,r")
        if t == 64:
            arch.mbarrier_arrive(bar + 1)
        wait(bar)
        for part in range(3):
            loaded = asm(registers(REGISTERS), [mine + part * 32], load, f"{width},r")
            asm(None, [], "tcgen05.wait::ld.sync.aligned;", "")
            for n in tuple(range(REGISTERS)):
                position = {"position": ir.DenseI64ArrayAttr.get([n])}
                value = tracing.emit_value("llvm.extractvalue", cute.Int32.mlir_type, (loaded,), position)
                out[t, part * 32 + n] = cute.Int32._make(value)
        arch.sync_threads()
        if t < 32:
            asm(None, [address], "tcgen05.dealloc.cta_group::1.sync.aligned.b32 $0, 128;", "r")

    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (rows, K)).astype(np.float16) for rows in (128, 64))
    given = [a.view(np.int32), b.view(np.int32), np.zeros((128, 96), np.int32)]
    product = a.astype(np.float32) @ b[:N].T.astype(np.float32)
    for _, _, out in runs(kernel, *given, block=128, schedules=[(1, 0), (1, 3)]):
        found = out.view(np.float32)
        np.testing.assert_array_equal(found[:, :32], 2 * product)
        np.testing.assert_array_equal(found[1:, 32:64], product[1:])
        assert (out[0, 32:64] == -1).all()  # as after the allocation
        stationary = a[:32].astype(np.float32) @ b.T.astype(np.float32)
        for part in range(4):
            np.testing.assert_array_equal(found[32 * part : 32 * part + 32, 64:80], stationary[:, 16 * part :][:, :16])


REFUSED = {
    "tcgen05.mma.sp.cta_group::1.kind::f16 [$0], $1, $1, $0, 1;": "tcgen05.mma.sp",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [$0], $1, $1, $0, [$0], [$0], 1;": "modifier .kind::mxf4nvf4 where",
    "tcgen05.mma.cta_group::2.kind::f16 [$0], $1, $1, $0, {$0, $0, $0, $0}, 1;": "4 registers of disable_output_lane where there are 8",
    "tcgen05.mma.cta_group::1.kind::f8f6f4 [$0], $1, $1, $0, 1, 3;": "kind::f8f6f4 has no scale of D",
    "tcgen05.mma.kind::f16 [$0], $1, $1, $0, 1;": ".cta_group::1 or .cta_group::2 is missing",
    "tcgen05.cp.cta_group::1.32x128b [$0], $1;": "the modifier .32x128b where .128x256b, .* is expected",
    "tcgen05.ld.sync.aligned.16x256b.x64.b32 {$0}, [$0];": "16x256b x64 are 256 registers, more than 128",
    "tcgen05.alloc.exclusive.cta_group::1.sync.aligned.shared::cta.b32 [$0], 32;": "an exclusive allocation",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [$0], 3;": "its operands are `\\[mbarrier: shared\\]",
    "tcgen05.wait::mma.sync.aligned;": "the modifier .wait::mma where .wait::ld or .wait::st is expected",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(text):
    @cute.kernel
    def kernel(x: cute.Tensor):
        asm(None, [x[0], cute.Int64(x[0])], text, "r,l")

    with pytest.raises(DSLNotImplemented, match=REFUSED[text]):
        run(kernel, np.zeros(1, np.int32))


def test_a_cluster_takes_over_tiles_by_ptx():
    request = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [$0], [$1];"
    read = """{
        .reg .pred p;
        .reg .b128 answer;
        ld.shared.b128 answer, [$4];
        clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, answer;
        selp.u32 $3, 1, 0, p;
        @p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {$0, $1, $2, _}, answer;
        @p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 $0, answer;
    }"""

    @cute.kernel
    def kernel(out: cute.Tensor, owners: cute.Tensor):
        response, bar = arch.alloc_smem(cute.Int32, 4, 16), mbarriers(1)
        mbarrier.mbarrier_init(bar.ir_value(), word(1))
        own = cute.Int32(arch.block_idx()[0])
        x, goes_on = own, cute.Boolean(True)
        for i in range(cute.Int32(8)):  # a loop that ends: one that waits for memory would let all blocks be resident
            if goes_on:
                out[x] += 1
                owners[x] = own
                arch.mbarrier_arrive_and_expect_tx(bar, 16)
                asm(None, [response.toint(), bar.toint()], request, "r,r")
                wait(bar, i % 2)
                made = asm(registers(4), [response.toint()], read, "=r,=r,=r,=r,r")
                found = []
                for n in (0, 3):
                    position = {"position": ir.DenseI64ArrayAttr.get([n])}
                    value = tracing.emit_value("llvm.extractvalue", cute.Int32.mlir_type, (made,), position)
                    found.append(cute.Int32._make(value))
                x, goes_on = found[0], found[1] != 0
                arch.fence_view_async_shared()

    taken = 0
    schedules = [(1, 0), (1, 1), (2, 2), (1, 3)]
    for out, owners in runs(kernel, np.zeros(8, np.int32), np.zeros(8, np.int32), grid=8, block=1, schedules=schedules):
        assert (out == 1).all()
        taken += int((owners != np.arange(8)).sum())
    assert taken
