"""Copies: plain, vectorized, predicated, with atoms and tiled copies; shared memory and structures."""

from __future__ import annotations

import warnings

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from tensor_testing import DTYPES, aligned, bits, sample

import kiln
from kiln import cute, utils
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute.runtime import from_dlpack


def run_copy(copy, src, dst, align=16):
    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor):
        copy(src, dst)

    f(from_dlpack(src, assumed_align=align), from_dlpack(dst, assumed_align=align))


@pytest.mark.parametrize("copy", [cute.basic_copy, cute.autovec_copy], ids=["basic", "autovec"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_plain_copies(copy, dtype):
    src, dst = aligned((4, 8), dtype), aligned((4, 8), dtype)
    src[:] = sample(dtype, (4, 8))
    run_copy(copy, src, dst, max(16, src.itemsize))
    assert (bits(src) == bits(dst)).all()


@settings(max_examples=25, deadline=None)
@given(st.permutations([0, 1, 2]), st.permutations([0, 1, 2]), st.sampled_from([4, 8, 16]), st.integers(0, 1))
def test_any_order_of_modes(first, second, alignment, gap):
    shape = (4, 2, 3)

    def made(order):
        strides, step = [0, 0, 0], 1
        for mode in order:
            strides[mode] = step
            step = step * shape[mode] + gap
        return strides, step

    (a, m), (b, n) = made(first), made(second)
    src, dst = aligned(m + 8, np.int32), aligned(n + 8, np.int32)
    src[:] = np.arange(m + 8) + 1

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor):
        cute.autovec_copy(
            cute.make_tensor(src.iterator, cute.make_layout(shape, stride=tuple(a))),
            cute.make_tensor(dst.iterator, cute.make_layout(shape, stride=tuple(b))),
        )

    f(from_dlpack(src, assumed_align=alignment), from_dlpack(dst, assumed_align=alignment))
    want = np.zeros_like(dst)
    for c in np.ndindex(*shape):
        want[np.dot(c, b)] = src[np.dot(c, a)]
    assert (dst == want).all()


def test_dynamic_shapes_are_copied_by_a_loop():
    src, dst = np.arange(15, dtype=np.float32).reshape(3, 5), np.zeros((3, 5), np.float32)

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor):
        cute.autovec_copy(src, dst)

    f(src, dst)
    assert (src == dst).all()
    assert "scf.for" in cute.compile(f, src, dst).__mlir__


def test_predicates():
    src, dst = np.arange(1, 13, dtype=np.int32).reshape(3, 4), np.zeros((3, 4), np.int32)

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor, n: cute.Int32):
        pred = cute.make_rmem_tensor(src.shape, cute.Boolean)
        for i in range(3):
            for j in range(4):
                pred[i, j] = i + j < n
        cute.basic_copy_if(pred, src, dst)

    f(from_dlpack(src), from_dlpack(dst), 3)
    i, j = np.indices((3, 4))
    assert (dst == np.where(i + j < 3, src, 0)).all()


def test_one_predicate_for_a_whole_row():
    """Modes of stride 0 repeat a predicate: one branch for all of them, and wide accesses in it."""
    src, dst = aligned((2, 8), np.float32), aligned((2, 8), np.float32)
    src[:] = sample(np.float32, (2, 8))

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor, row: cute.Int32):
        pred = cute.make_rmem_tensor(cute.make_layout((2, 8), stride=(1, 0)), cute.Boolean)
        pred[0, 0] = row == 0
        pred[1, 0] = row == 1
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32)
        cute.copy(atom, src, dst, pred=pred)

    f(from_dlpack(src, assumed_align=16), from_dlpack(dst, assumed_align=16), 1)
    assert (dst[0] == 0).all() and (dst[1] == src[1]).all()
    text = cute.compile(f, from_dlpack(src, assumed_align=16), from_dlpack(dst, assumed_align=16), 1).__mlir__
    assert text.count("scf.if") == 2 and text.count("vector<4xf32>") >= 4


@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 3), 6, (2, 2, 3), (4, 2, 3)], ids=str)
def test_one_predicate_for_all_calls_in_mode_0(shape):
    """Mode 0 is (4, 2), two calls of the atom for each of its repetitions: a predicate holds for the whole of mode 0, for
    one of its repetitions, or for a call."""
    src, dst = aligned((48,), np.float32), aligned((48,), np.float32)
    src[:] = np.arange(1, 49)

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor, wanted: cute.Int32):
        pred = cute.make_rmem_tensor(shape, cute.Boolean)
        for i in kiln.range_constexpr(cute.size(pred)):
            pred[i] = (wanted >> i) & 1 == 1
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32, num_bits_per_copy=64)
        layout = cute.make_layout(((4, 2), 2, 3))
        src, dst = (cute.make_tensor(x.iterator, layout) for x in (src, dst))
        cute.copy(atom, src, dst, pred=pred)

    count, wanted = int(np.prod(shape)), 0b101100111010010111000110
    f(from_dlpack(src, assumed_align=16), from_dlpack(dst, assumed_align=16), wanted)
    kept = np.array([wanted >> i & 1 for i in range(count)]).repeat(48 // count)
    assert (dst == src * kept).all()


def test_predicates_that_fit_no_modes_are_refused():
    src, dst = aligned((48,), np.float32), aligned((48,), np.float32)

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor):
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32, num_bits_per_copy=64)
        layout = cute.make_layout(((4, 2), 2, 3))
        src, dst = (cute.make_tensor(x.iterator, layout) for x in (src, dst))
        cute.copy(atom, src, dst, pred=cute.make_rmem_tensor(3, cute.Boolean))

    with pytest.raises(DSLUserCodeTypeError, match=r"3 predicates of shape 3 for 24 parts of 2 elements"):
        f(from_dlpack(src, assumed_align=16), from_dlpack(dst, assumed_align=16))


@cute.kernel
def tiled_scale(
    gA: cute.Tensor,
    gC: cute.Tensor,
    cC: cute.Tensor,
    shape: cute.Shape,
    thr: cute.Layout,
    val: cute.Layout,
    bits: cute.Constexpr,
):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    block = ((None, None), bidx)
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), gA.element_type, num_bits_per_copy=bits)
    mine = cute.make_tiled_copy_tv(atom, thr, val).get_slice(tidx)
    tA, tC, tX = mine.partition_S(gA[block]), mine.partition_D(gC[block]), mine.partition_S(cC[block])
    registers = cute.make_fragment_like(tA)
    values = tA.shape[0][0]
    count = cute.size(tA) // values
    pred = cute.make_rmem_tensor(count, cute.Boolean)
    for i in kiln.range_constexpr(count):
        pred[i] = cute.elem_less(tX[i * values], shape)
    registers.fill(0)
    cute.copy(atom, tA, registers, pred=pred)
    registers.store((registers.load() * 2).to(gA.element_type))
    cute.copy(atom, registers, tC, pred=pred)


@cute.jit
def scale(a: cute.Tensor, c: cute.Tensor, bits: cute.Constexpr):
    thr = cute.make_ordered_layout((2, 4), order=(1, 0))
    val = cute.make_ordered_layout((2, max(bits // a.element_type.width, 1)), order=(1, 0))
    tiler, tv = cute.make_layout_tv(thr, val)
    gA, gC = cute.zipped_divide(a, tiler), cute.zipped_divide(c, tiler)
    cC = cute.zipped_divide(cute.make_identity_tensor(c.shape), tiler)
    tiled_scale(gA, gC, cC, c.shape, thr, val, bits).launch(grid=cute.size(gC, mode=[1]), block=cute.size(tv, mode=[0]))


@pytest.mark.filterwarnings("ignore::kiln.DSLOptimizationWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize(("m", "n", "bits"), [(8, 32, 128), (7, 24, 128), (5, 13, 0), (9, 16, 64)])
@pytest.mark.parametrize("static", [True, False])
def test_tiled_copies_with_a_tail(dtype, m, n, bits, static):
    a, c = aligned((m, n), dtype), aligned((m, n), dtype)
    a[:] = sample(dtype, (m, n))
    if static:
        scale(from_dlpack(a, assumed_align=16), from_dlpack(c, assumed_align=16), bits)
    else:
        scale(a, c, bits)
    assert (c == a * dtype(2)).all()


def test_a_copy_narrower_than_asked_for_is_warned_of():
    a = aligned((4, 8), np.float32)

    @cute.jit
    def f(a: cute.Tensor):
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32, num_bits_per_copy=128)
        registers = cute.make_rmem_tensor(4, cute.Float32)
        cute.copy(atom, cute.local_tile(a, (1, 4), (0, 0)), registers)
        cute.copy(atom, registers, cute.local_tile(a, (1, 4), (1, 0)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(from_dlpack(a, assumed_align=16))
    with pytest.warns(kiln.DSLOptimizationWarning, match="accesses of 32 bits") as caught:
        f(from_dlpack(a, assumed_align=4))
    assert caught[0].filename == __file__


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([((2, 4), (1, 0)), ((4, 2), (0, 1)), ((8, 1), (0, 1))]),
    st.sampled_from([((2, 4), (1, 0)), ((4, 1), (0, 1)), ((1, 4), (1, 0))]),
    st.sampled_from([0, 32, 64]),
)
def test_every_element_of_a_tile_has_one_owner(threads, values, bits):
    seen = []

    @cute.jit
    def f():
        thr, val = (cute.make_ordered_layout(*x) for x in (threads, values))
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32, num_bits_per_copy=bits)
        tiled = cute.make_tiled_copy_tv(atom, thr, val)
        tile = cute.make_identity_tensor(cute.shape(tiled.tiler_mn))
        for t in kiln.range_constexpr(tiled.size):
            part = tiled.get_slice(t).partition_S(tile)
            assert part.shape[0][0] == max(bits // 32, 1)
            seen.extend(part[i] for i in kiln.range_constexpr(cute.size(part)))
        again = cute.make_tiled_copy_S(atom, tiled)
        assert cute.size(again.layout_tv_tiled) == cute.size(tiled.layout_tv_tiled)

    f()
    rows, columns = threads[0][0] * values[0][0], threads[0][1] * values[0][1]
    assert sorted(seen) == [(i, j) for i in range(rows) for j in range(columns)]


def test_retile_keeps_the_values():
    """Registers partitioned one value at a time, seen as calls of an atom of two."""
    seen = []

    @cute.jit
    def f():
        thr, val = cute.make_layout((4, 1)), cute.make_layout((1, 4))
        one = cute.make_tiled_copy_tv(cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32), thr, val)
        two = cute.make_tiled_copy_S(
            cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32, num_bits_per_copy=64), one
        )
        registers = cute.make_fragment_like(
            one.get_slice(0).partition_S(cute.make_identity_tensor((4, 8))), cute.Float32
        )
        seen.append((registers.layout, two.retile(registers).layout))

    f()
    before, after = seen[0]
    assert after.shape[0][0] == 2 and cute.size(after) == cute.size(before)
    assert [after(i) for i in range(8)] == [before(i) for i in range(8)]


@cute.struct
class Pair:
    real: cute.Float32
    imag: cute.Float32


@cute.struct
class Storage:
    a: cute.struct.MemRange[cute.Float32, 32]
    b: cute.Int64
    c: Pair
    x: cute.struct.Align[cute.struct.MemRange[cute.Float32, 32], 128]
    y: cute.struct.Align[cute.Int32, 8]
    z: cute.struct.Align[Pair, 16]


@cute.union
class Either:
    words: cute.struct.MemRange[cute.Uint32, 2]
    wide: cute.Uint64


def test_structures_place_their_fields():
    assert Storage.size_in_bytes() == 512 and Storage.__alignof__() == 128 and Storage.__sizeof__() == 512
    assert [Storage.offset_of(n) for n in "abcxyz"] == [0, 128, 136, 256, 384, 400]
    assert Either.size_in_bytes() == 8 and Either.offset_of("wide") == 0
    assert cute.struct.align_offset(5, 8) == 8


def test_shared_memory_and_structures(capsys):
    out, word = np.zeros((8, 4), np.float32), np.zeros(6, np.int64)

    @cute.kernel
    def k(out: cute.Tensor, word: cute.Tensor):
        allocator = utils.SmemAllocator()
        number = allocator.allocate(cute.Int32)
        assert number.dtype is cute.Int32 and number.memspace == cute.AddressSpace.smem
        s = allocator.allocate(Storage)
        block = allocator.allocate(64, byte_alignment=128)
        array = allocator.allocate_array(cute.Int64, 14)
        tensor = allocator.allocate_tensor(cute.Float32, cute.make_layout((8, 4)), 32)
        print(s.a.data_ptr(), s.b.ptr, s.c.real.ptr, block, array, tensor)
        s.a[0] = 2.5
        s.b = 16
        s.c.imag = 1.5
        s.z.real = 3.0
        a = s.a.get_tensor(cute.make_layout((8, 4)))
        a[7, 3] = s.a[0] + s.c.imag.load()
        tensor.fill(1)
        tensor[7, 3] = a[7, 3] + s.z.real.load()
        out.store(tensor.load())
        number.store(7)
        (array + 13).store(99)
        word[0] = s.b.ptr.load()
        word[1] = (array + 13).load()
        word[2] = number.load().to(cute.Int64)
        e = Either(block)
        e.wide = 0x100000002
        word[3] = e.words[0].to(cute.Int64)
        word[4] = e.words[1].to(cute.Int64)
        word[5] = allocator.calculate_total_usage().to(cute.Int64)

    @cute.jit
    def f(out: cute.Tensor, word: cute.Tensor):
        k(out, word).launch(grid=1, block=1)

    f(from_dlpack(out), from_dlpack(word))
    assert capsys.readouterr().out.strip() == (
        "ptr<f32, smem, align<128>> ptr<i64, smem, align<128>> ptr<f32, smem, align<8>> ptr<i8, smem, align<128>> "
        "ptr<i64, smem> tensor<ptr<f32, smem, align<32>> o (8,4):(1,8)>"
    )
    want = np.ones((8, 4), np.float32)
    want[7, 3] = 7.0
    assert (out == want).all()
    assert word.tolist()[:5] == [16, 99, 7, 2, 1]


def test_threads_share_memory():
    src, dst = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)

    @cute.kernel
    def k(src: cute.Tensor, dst: cute.Tensor):
        shared = utils.SmemAllocator().allocate_tensor(cute.Float32, cute.make_layout(32), 16)
        t, _, _ = cute.arch.thread_idx()
        shared[t] = src[t]
        cute.arch.sync_threads()
        dst[t] = shared[31 - t]

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor):
        k(src, dst).launch(grid=1, block=32)

    f(from_dlpack(src), from_dlpack(dst))
    assert (dst == src[::-1]).all()


def test_swizzled_addresses():
    """A swizzle on a pointer permutes bytes; the same swizzle in the layout permutes elements."""
    dst, raw = np.zeros((8, 32), np.int32), np.zeros(256, np.int32)

    @cute.kernel
    def k(dst: cute.Tensor, raw: cute.Tensor):
        allocator = utils.SmemAllocator()
        base = allocator.allocate_array(cute.Int32, 256, byte_alignment=1024)
        layout = cute.make_layout((8, 32), stride=(32, 1))
        t = cute.make_tensor(cute.recast_ptr(base, cute.make_swizzle(3, 4, 3), cute.Int32), layout)
        for i in range(8):
            for j in range(32):
                t[i, j] = 100 * i + j
        dst.store(t.load())
        raw.store(cute.make_tensor(base, 256).load())

    @cute.jit
    def f(dst: cute.Tensor, raw: cute.Tensor):
        k(dst, raw).launch(grid=1, block=1)

    f(from_dlpack(dst), from_dlpack(raw))
    i, j = np.indices((8, 32))
    assert (dst == 100 * i + j).all()
    swizzle = cute.make_swizzle(3, 4, 3)
    assert all(raw[swizzle(4 * (32 * a + b)) // 4] == 100 * a + b for a in range(8) for b in range(32))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda t: cute.autovec_copy(t, cute.make_rmem_tensor(3, cute.Float32)), "6 elements.*3 elements"),
        (lambda t: cute.autovec_copy(t, cute.make_rmem_tensor(6, cute.Float16)), "Float32 to Float16"),
        (lambda t: cute.autovec_copy(t, 3), "destination of a copy"),
        (lambda t: cute.copy(t, t, t), "copy atom first"),
        (lambda t: cute.make_copy_atom(cute.nvgpu.CopyUniversalOp, cute.Float32), "CopyUniversalOp\\(\\)"),
        (lambda t: cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), 32), "numeric type"),
        (lambda t: cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32, num_bits_per_copy=48), "multiple"),
        (lambda t: cute.basic_copy_if(cute.make_rmem_tensor(5, cute.Boolean), t, t), "5 predicates"),
        (lambda t: cute.basic_copy_if(cute.make_rmem_tensor(6, cute.Int8), t, t), "Booleans"),
        (lambda t: cute.struct.MemRange[cute.Float32, 2.5], "int that is known"),
        (lambda t: cute.struct.Align[cute.Float32, 3], "power of two"),
        (lambda t: utils.SmemAllocator().allocate(64), "outside a kernel"),
    ],
)
def test_refused(body, message):
    @cute.jit
    def f(t: cute.Tensor):
        body(t)

    with pytest.raises((kiln.DSLUserCodeError, kiln.DSLRuntimeError), match=message):
        f(from_dlpack(np.zeros((2, 3), np.float32)))


def test_refused_structures():
    with pytest.raises(kiln.DSLUserCodeError, match="field 'a'"):

        @cute.struct
        class Bad:
            a: int


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32, num_bits=64), "takes no 'num_bits'"),
        (lambda: cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(), cute.Float32, bits=64), "takes no 'bits'"),
        (lambda: cute.make_mma_atom(cute.nvgpu.MmaUniversalOp(cute.Float32), shape=1), "takes no 'shape'"),
    ],
)
def test_options_of_atoms_that_do_not_exist(made, message):
    with pytest.raises(kiln.DSLUserCodeTypeError, match=message):
        made()


def test_keywords_of_copies_that_do_not_exist():
    x, y = np.zeros(4, np.float32), np.zeros(4, np.float32)
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="takes no 'predicate'"):
        run_copy(lambda src, dst: cute.copy(atom, src, dst, predicate=True), x, y, align=4)
    run_copy(lambda src, dst: cute.copy(atom, src, dst, mcast_mask=None, unroll_factor=2), x + 1, y, align=4)
    assert (y == 1).all()


def test_tiled_copies_are_made_like_what_they_are_named_after():
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cute.Float32)
    tiled = cute.make_tiled_copy_tv(atom, cute.make_layout((4, 8)), cute.make_layout((1, 1)))
    mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(cute.Float32), (4, 8, 1))
    for make, other, message in (
        (cute.make_tiled_copy_A, tiled, "tiled MMA"),
        (cute.make_tiled_copy_C, atom, "tiled MMA"),
        (cute.make_tiled_copy_S, mma, "tiled copy"),
        (cute.make_tiled_copy_D, atom, "tiled copy"),
    ):
        with pytest.raises(kiln.DSLUserCodeTypeError, match=f"takes a {message}"):
            make(atom, other)
