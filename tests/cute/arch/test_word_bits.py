"""Instructions on the bits of words, special registers, matches and stores to a CTA of the cluster."""

from __future__ import annotations

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute import arch


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


WORDS = np.array([0, 1, 0x80000000, 0xFFFFFFFF, 0x12345678, 0xF0F0A5A5, 7, 0x7FFFFFFF], np.uint32)


@cute.kernel
def of_bits(x: cute.Tensor, out: cute.Tensor):
    t = arch.thread_idx()[0]
    word = x[t]
    signed = cute.Int32(word)
    wide = cute.Uint64(word) << 32 | cute.Uint64(x[7 - t])
    out[0, t] = arch.brev(word)
    out[1, t] = arch.bfind(word)
    out[2, t] = arch.bfind(signed)
    out[3, t] = arch.bfind(word, shiftamt=True)
    out[4, t] = arch.bfe(word, 4, 9)
    out[5, t] = cute.Uint32(arch.bfe(signed, 4, 9))
    out[6, t] = arch.bfi(0x155, word, 4, 9)
    out[7, t] = arch.shf(word, x[7 - t], 36)
    out[8, t] = arch.shf(word, x[7 - t], 36, direction="r", mode="clamp")
    out[9, t] = arch.mul24(word, x[7 - t])
    out[10, t] = cute.Uint32(arch.mul24(signed, cute.Int32(x[7 - t]), hi=True))
    out[11, t] = arch.mad24(word, x[7 - t], 5)
    out[12, t] = cute.Uint32(arch.add_sat_int(signed, 2))
    out[13, t] = cute.Uint32(arch.sub_sat_int(signed, 2))
    out[14, t] = cute.Uint32(arch.brev(wide) >> 7)
    out[15, t] = arch.bfind(wide)


@cute.jit
def bits(x: cute.Tensor, out: cute.Tensor):
    of_bits(x, out).launch(grid=1, block=8)


def in_python(x, other):
    """Return what `of_bits` computes of two words, as numbers of Python."""
    signed = x - (x >> 31 << 32)
    wide = x << 32 | other
    differs = signed ^ (signed >> 31)
    low24 = lambda v: (v & 0xFFFFFF) - ((v >> 23 & 1) << 24)
    clamp = lambda v: max(-(1 << 31), min((1 << 31) - 1, v))
    field = x >> 4 & 0x1FF
    return [
        int(f"{x:032b}"[::-1], 2),
        x.bit_length() - 1,
        differs.bit_length() - 1,
        32 - x.bit_length() if x else -1,
        field,
        field - (field >> 8 << 9),
        x & ~(0x1FF << 4) | 0x155 << 4,
        (other << 32 | x) << 4 >> 32,
        other,
        (x & 0xFFFFFF) * (other & 0xFFFFFF),
        low24(x) * low24(other) >> 16,
        (x & 0xFFFFFF) * (other & 0xFFFFFF) + 5,
        clamp(signed + 2),
        clamp(signed - 2),
        int(f"{wide:064b}"[::-1], 2) >> 7,
        wide.bit_length() - 1,
    ]


def test_bits_of_words():
    out = np.zeros((16, 8), np.uint32)
    bits(WORDS, out)
    wanted = np.array([in_python(int(x), int(y)) for x, y in zip(WORDS, WORDS[::-1], strict=True)], object).T
    np.testing.assert_array_equal(out, (wanted & 0xFFFFFFFF).astype(np.uint32))


@cute.kernel
def of_registers(out: cute.Tensor):
    t = arch.thread_idx()[0]
    lane = t % 32
    masks = (arch.lanemask_eq(), arch.lanemask_lt(), arch.lanemask_le(), arch.lanemask_gt(), arch.lanemask_ge())
    for n, mask in enumerate(masks):
        out[n, t] = mask
    out[5, t] = arch.activemask()
    out[6, t] = cute.Int32(arch.smid() < arch.nsmid()) + 2 * cute.Int32(arch.physical_warp_id() < arch.nwarpid())
    out[7, t] = arch.warpsize() + cute.Int32(arch.gridid() >= 0)
    out[8, t] = arch.get_dyn_smem_size()
    memory = kiln.Array(cute.Int32, 64, space=cute.AddressSpace.smem)
    memory[t] = arch.globaltimer_lo() * 0
    out[9, t] = arch.total_smem_size() + memory[t]
    out[10, t] = cute.Int32(arch.aggr_smem_size() >= arch.total_smem_size())
    out[11, t] = arch.match_sync(arch.FULL_MASK, lane % 3)
    every, agree = arch.match_sync(0xF if lane < 4 else 0xFFFFFFF0, cute.Float32(lane // 4 * 4 // 8), kind="all")
    out[12, t] = every * cute.Int32(agree)


@cute.jit
def registers(out: cute.Tensor):
    of_registers(out).launch(grid=1, block=64, smem=512)


def test_special_registers_and_matches():
    out = np.zeros((13, 64), np.int32)
    registers(out)
    lane = np.arange(64, dtype=np.int64) % 32
    here = 1 << lane
    masks = (here, here - 1, here | here - 1, 0xFFFFFFFF ^ (here | here - 1), 0xFFFFFFFF ^ (here - 1))
    for row, mask in zip(out, masks, strict=False):
        np.testing.assert_array_equal(row.view(np.uint32), mask)
    assert (out[5] == -1).all()
    assert (out[6] == 3).all()
    assert (out[7] == 33).all()
    assert (out[8] == 512).all()
    assert (out[9] >= 512 + 256).all()  # what each allocation is rounded up to counts, too
    assert (out[10] == 1).all()
    np.testing.assert_array_equal(out[11].view(np.uint32), [sum(1 << k for k in range(n % 3, 32, 3)) for n in lane])
    np.testing.assert_array_equal(out[12], np.where(lane < 4, 0xF, 0))


@cute.kernel
def of_stores_to_a_cta(out: cute.Tensor):
    t = arch.thread_idx()[0]
    rank = arch.block_idx_in_cluster()
    mailbox = kiln.Array(cute.Int32, 32, space=cute.AddressSpace.smem, alignment=16)
    wide = kiln.Array(cute.Float64, 32, space=cute.AddressSpace.smem, alignment=16)
    barrier = kiln.Array(cute.Int64, 1, space=cute.AddressSpace.smem).data_ptr()
    if t == 0:
        arch.mbarrier_init(barrier, 1)
        arch.mbarrier_init_fence()
        arch.mbarrier_arrive_and_expect_tx(barrier, 32 * 12)
    arch.cluster_arrive()
    arch.cluster_wait()
    arch.store_async_dsmem(mailbox.data_ptr() + t, 100 * rank + t, barrier, rank ^ 1)
    arch.store_async_dsmem(wide.data_ptr() + t, cute.Float64(rank) + 0.5, barrier, rank ^ 1)
    arch.mbarrier_wait(barrier, 0)
    out[rank, t] = mailbox[t] + cute.Int32(wide[t] * 2)
    arch.cluster_arrive()
    arch.cluster_wait()


@cute.jit
def stores_to_a_cta(out: cute.Tensor):
    of_stores_to_a_cta(out).launch(grid=2, block=32, cluster=(2, 1, 1))


def test_stores_to_a_cta_of_the_cluster():
    out = np.zeros((2, 32), np.int32)
    with kiln.sanitize():
        stores_to_a_cta(out)
    np.testing.assert_array_equal(out, np.arange(32) + np.array([[103], [1]]))


@needs_ptxas
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100a"])
def test_gpus_have_them(architecture):
    text = compile_for(bits, WORDS, np.zeros((16, 8), np.uint32), arch=architecture).__ptx__
    for name in ("brev.b32", "bfind.shiftamt.u32", "bfe.s32", "bfi.b32", "shf.l.wrap", "mul24.hi.s32", "add.sat.s32"):
        assert name in text
    if architecture != "sm_80":
        assert "%lanemask_ge" in compile_for(registers, np.zeros((13, 64), np.int32), arch=architecture).__ptx__
        out = np.zeros((2, 32), np.int32)
        assert "st.async" in compile_for(stores_to_a_cta, out, arch=architecture).__ptx__


@pytest.mark.parametrize(
    ("match", "call"),
    [
        (r"brev\(\) takes integers of 32 or 64 bits, not Int8", lambda: arch.brev(cute.Int8(1))),
        (r"bfind\(\) takes integers of 32 or 64 bits, not Float32", lambda: arch.bfind(1.0)),
        (r"mul24\(\) takes integers of 32 bits, not Int64", lambda: arch.mul24(cute.Int64(1), 2)),
        ("direction='up'", lambda: arch.shf(1, 2, 3, direction="up")),
        (r"match_sync\(\) of Int16", lambda: arch.match_sync(1, cute.Int16(1))),
        ("kind is 'most'", lambda: arch.match_sync(1, 1, "most")),
        (r"store_async_dsmem\(\) of Float16", lambda: arch.store_async_dsmem(None, cute.Float16(1), None, 0)),
    ],
)
def test_what_they_do_not_take_is_refused(match, call):
    @cute.kernel
    def kernel():
        call()

    @cute.jit
    def main():
        kernel().launch(grid=1, block=1)

    with pytest.raises(DSLBaseError, match=match):
        main()
    with pytest.raises(DSLBaseError, match="outside a kernel|called outside"):
        cute.jit(lambda: arch.brev(1))()
