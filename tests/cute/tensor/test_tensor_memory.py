"""Elements, slices, loads and stores of tensors in memory, against numpy."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tensor_testing import DTYPES, aligned, bits, copy_elements, copy_values, sample

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_every_element_type_by_element(dtype, static):
    src = sample(dtype, (3, 5))
    dst = np.zeros_like(src)
    if static:
        copy_elements(from_dlpack(src), from_dlpack(dst))
    else:
        copy_elements(src, dst)
    assert (bits(src) == bits(dst)).all()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_element_type_as_a_vector(dtype):
    src, dst = aligned((4, 8), dtype), aligned((4, 8), dtype)
    src[:] = sample(dtype, (4, 8))
    copy_values(from_dlpack(src, assumed_align=16), from_dlpack(dst, assumed_align=16))
    assert (bits(src) == bits(dst)).all()


def test_the_linear_index_runs_through_the_first_mode_fastest():
    a = np.arange(40, dtype=np.float32).reshape(8, 5)
    out = np.zeros(2, np.float32)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor):
        out[0] = a[9]
        out[1] = a[(2, 4)]

    f(from_dlpack(a), from_dlpack(out))
    assert out.tolist() == [a[1, 1], a[2, 4]]


def test_slices_and_dynamic_indices():
    a = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    out = np.zeros((3, 4), np.int32)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor, i: cute.Int32, j: cute.Int32):
        part = a[i, None, None]
        assert part.shape == (3, 4)
        out[j, None].store(part[j, None].load())
        out[None, 0] = part[None, 0].load() + 1
        out[0, 3] = a[i, 0, 3] - 100

    f(from_dlpack(a), from_dlpack(out), 1, 2)
    want = np.zeros((3, 4), np.int32)
    want[2] = a[1, 2]
    want[:, 0] = a[1, :, 0] + 1
    want[0, 3] = a[1, 0, 3] - 100
    assert (out == want).all()


def test_hierarchical_coordinates():
    a = np.arange(24, dtype=np.int32)
    out = np.zeros(3, np.int32)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor, i: cute.Int32):
        t = cute.make_tensor(a.iterator, cute.make_layout(((2, 3), 4), stride=((12, 4), 1)))
        out[0] = t[(1, 2), 3]
        out[1] = t[i, 2]
        out[2] = t[(i - 4, None), 1][2]

    f(from_dlpack(a), from_dlpack(out), 5)
    assert out.tolist() == [23, 12 + 8 + 2, 12 + 8 + 1]


layouts = st.lists(st.integers(1, 4), min_size=1, max_size=3).flatmap(
    lambda shape: st.tuples(st.just(tuple(shape)), st.permutations(range(len(shape))), st.integers(0, 2))
)


@settings(max_examples=25, deadline=None)
@given(layouts, st.sampled_from([1, 2, 4, 16]))
def test_values_of_any_strides(case, alignment):
    """A load through any layout gives the elements in the order of the indices; a store puts them back."""
    shape, order, gap = case
    strides, step = [0] * len(shape), 1
    for mode in order:
        strides[mode] = step
        step = step * shape[mode] + gap
    size = step + 16
    src, dst, flat = aligned(size, np.int16), aligned(size, np.int16), aligned(size, np.int16)
    src[:] = np.arange(size)
    count = int(np.prod(shape))
    alignment = max(alignment, 2)

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor, flat: cute.Tensor):
        layout = cute.make_layout(shape, stride=tuple(strides))
        value = cute.make_tensor(src.iterator, layout).load()
        assert value.shape == shape
        cute.make_tensor(dst.iterator, layout).store(value)
        cute.make_tensor(flat.iterator, cute.make_layout(count)).store(value.reshape(count))

    f(*(from_dlpack(x, assumed_align=alignment) for x in (src, dst, flat)))
    offsets = [
        sum(c * d for c, d in zip(np.unravel_index(i, shape, order="F"), strides, strict=True)) for i in range(count)
    ]
    assert flat[:count].tolist() == [src[o] for o in offsets]
    want = np.zeros(size, np.int16)
    want[offsets] = src[offsets]
    assert (dst == want).all()


def test_dynamic_strides_are_loaded_row_by_row():
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    out = np.zeros((2, 4), np.float32)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor):
        tile = cute.local_tile(a, (2, 4), (1, 1))
        assert tile.shape == (2, 4)
        out.store(tile.load() * 2)

    f(a, from_dlpack(out))
    assert (out == a[2:4, 4:8] * 2).all()


def test_wide_aligned_access_is_one_operation():
    a, out = aligned(8, np.float32), aligned(8, np.float32)

    def count(align):
        done = cute.compile(copy_values, from_dlpack(a, assumed_align=align), from_dlpack(out, assumed_align=align))
        return done.__mlir__.count("cute.load")

    assert count(16) == 2
    assert count(4) == 8


def test_a_swizzled_layout():
    src, dst = np.arange(64, dtype=np.int32), np.zeros((8, 8), np.int32)

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor):
        layout = cute.make_composed_layout(cute.make_swizzle(2, 1, 3), 0, cute.make_layout((8, 8), stride=(8, 1)))
        dst.store(cute.make_tensor(src.iterator, layout).load())

    f(from_dlpack(src), from_dlpack(dst))
    swizzle = cute.make_swizzle(2, 1, 3)
    assert dst.tolist() == [[swizzle(8 * i + j) for j in range(8)] for i in range(8)]


def test_a_swizzled_layout_at_a_dynamic_row():
    src, dst = np.arange(64, dtype=np.int32), np.zeros(8, np.int32)

    @cute.jit
    def f(src: cute.Tensor, dst: cute.Tensor, row: cute.Int32):
        layout = cute.make_composed_layout(cute.make_swizzle(2, 1, 3), 0, cute.make_layout((8, 8), stride=(8, 1)))
        t = cute.make_tensor(src.iterator, layout)
        dst.store(t[row, None].load())
        dst[7] = t[row, 7] + 1000

    f(from_dlpack(src), from_dlpack(dst), 5)
    swizzle = cute.make_swizzle(2, 1, 3)
    assert dst.tolist() == [swizzle(40 + j) + 1000 * (j == 7) for j in range(8)]


def test_fill_and_register_tensors():
    out = np.zeros((2, 3), np.float32)

    @cute.jit
    def f(out: cute.Tensor, x: cute.Float32):
        r = cute.make_rmem_tensor((2, 3), cute.Float32)
        r.fill(x)
        r[1, 2] = 7
        for i in range(2):
            r[i, 0] = r[i, 1] + i.to(cute.Float32)
        out.store(r.load())

    f(from_dlpack(out), 2.5)
    assert out.tolist() == [[2.5, 2.5, 2.5], [3.5, 2.5, 7.0]]


def test_pointers():
    a = np.arange(16, dtype=np.float32)
    out = np.zeros(6, np.float32)

    @cute.jit
    def f(p: cute.Pointer, out: cute.Tensor, n: cute.Int32):
        assert p.dtype is cute.Float32 and p.alignment == 16 and p.memspace == cute.AddressSpace.gmem
        out[0] = (p + 3).load()
        out[1] = (p + n + 1).load()
        assert (p + 3).alignment == 4 and (p + 4).alignment == 16 and (p + n).alignment == 4
        q = (p + n).align(16)
        out[2] = q.load()
        out[3] = cute.make_tensor(p + 8, 4)[1]
        out[4] = (q - 2).load()
        bytes_ = cute.recast_ptr(p + 1, dtype=cute.Uint8)
        out[5] = bytes_.load().to(cute.Float32) + (bytes_ + 3).load().to(cute.Float32)

    p = cute.runtime.make_ptr(kiln.Float32, a.ctypes.data, cute.AddressSpace.gmem, assumed_align=4)
    assert "Ptr<0x" in str(p)
    memory = aligned(16, np.float32)
    memory[:] = a
    p = cute.runtime.make_ptr(kiln.Float32, memory.ctypes.data, cute.AddressSpace.gmem, assumed_align=16)
    f(p, from_dlpack(out), 5)
    assert out.tolist() == [3, 6, 8, 9, 6, 0x3F]  # 1.0 is 0x3F800000


def test_tensors_cross_branches_and_loops():
    a, b = np.arange(8, dtype=np.int32), np.arange(100, 108, dtype=np.int32)
    out = np.zeros(8, np.int32)

    @cute.jit
    def f(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, n: cute.Int32):
        t = a
        if n > 3:
            t = b
        for i in range(n):
            out[i] = t[0]
            t = cute.domain_offset(1, t)

    f(from_dlpack(a), from_dlpack(b), from_dlpack(out), 5)
    assert out.tolist() == [100, 101, 102, 103, 104, 0, 0, 0]
    f(a, b, out, 2)
    assert out.tolist() == [0, 1, 102, 103, 104, 0, 0, 0]


def test_tensors_of_different_shape_cannot_be_joined():
    a, b = np.zeros(8, np.int32), np.zeros(9, np.int32)

    @cute.jit
    def f(a: cute.Tensor, b: cute.Tensor, n: cute.Int32):
        t = a
        if n > 3:
            t = b
        t[0] = 1

    with pytest.raises(kiln.DSLUserCodeError, match="t"):
        f(from_dlpack(a), from_dlpack(b), 1)


def test_kernel_arguments_keep_their_layout():
    a = np.arange(32, dtype=np.float32).reshape(4, 8)
    out = np.zeros_like(a)

    @cute.kernel
    def k(
        a: cute.Tensor, out: cute.Tensor, crd: cute.Tensor, shape: cute.Shape, layout: cute.Layout, tile: cute.Constexpr
    ):
        assert a.shape == ((2, 4), (2, 2)) and isinstance(shape[0], int) and layout.shape == (2, 4)
        bid, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        part, where = a[(None, bid)], crd[(None, bid)]
        at = where[tid]
        out[at] = part[tid] + 10.0 * bid.to(cute.Float32)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor):
        tile = (2, 4)
        crd = cute.zipped_divide(cute.make_identity_tensor(a.shape), tile)
        k(cute.zipped_divide(a, tile), out, crd, a.shape, cute.make_layout(tile), tile).launch(grid=4, block=8)

    f(from_dlpack(a), from_dlpack(out))
    blocks = np.array([[0, 2], [1, 3]]).repeat(2, 0).repeat(4, 1)
    assert (out == a + 10 * blocks).all()


def test_recast():
    a = np.array([1.0, 2.0, -1.0], np.float32)
    out = np.zeros(6, np.uint16)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor):
        halves = cute.recast_tensor(a, cute.Uint16)
        assert halves.shape == (6,)
        out.store(halves.load())

    f(from_dlpack(a), from_dlpack(out))
    assert out.tolist() == a.view(np.uint16).tolist()


def test_packed_elements():
    src = np.arange(16, dtype=np.uint8) * 17 % 251
    dst = np.zeros_like(src)
    a, b = from_dlpack(src), from_dlpack(dst)
    a.element_type = b.element_type = kiln.Uint4
    assert a.shape == (32,) and a.element_type is kiln.Uint4
    copy_elements(a, b)
    assert (src == dst).all()
    dst[:] = 0
    copy_values(a, b)
    assert (src == dst).all()


def test_packed_elements_at_odd_places():
    src = (np.arange(8) * 37 % 256).astype(np.uint8)
    low_high = np.stack([src & 15, src >> 4], axis=1).reshape(-1)
    out = np.zeros(12, np.uint8)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor, i: cute.Int32):
        t = cute.make_tensor(a.iterator, cute.make_layout((4, 4), stride=(4, 1)))
        column = t[None, i]
        for k in kiln.range_constexpr(4):
            out[k] = column[k].to(cute.Uint8)
            out[4 + k] = t[None, 3][k].to(cute.Uint8)
            out[8 + k] = t[i, None][k].to(cute.Uint8)
        column[0] = cute.Uint4(9)

    a = from_dlpack(src)
    a.element_type = kiln.Uint4
    f(a, from_dlpack(out), 1)
    matrix = low_high.reshape(4, 4)
    assert out.tolist() == [*matrix[:, 1], *matrix[:, 3], *matrix[1]]
    assert src[0] >> 4 == 9 and src[0] & 15 == low_high[0]

    @cute.jit
    def g(a: cute.Tensor, i: cute.Int32):
        t = cute.domain_offset(i, a)
        if i > 1:
            t = a
        t[0] = cute.Uint4(1)

    with pytest.raises(kiln.DSLUserCodeError, match="middle of a byte"):
        g(a, 1)


def test_offsets_beyond_32_bits():
    memory = np.zeros(4, np.int8)
    base = memory.ctypes.data
    rows, columns = 1 << 20, 1 << 13  # 8 GiB of addresses; only the last byte is touched

    @cute.jit
    def f(p: cute.Pointer, i: cute.Int32, j: cute.Int32):
        t = cute.make_tensor(p, cute.make_layout((rows, columns), stride=(columns, 1)))
        t[i, j] = 42
        t[i, None][j - 1] = 43

    end = (rows - 1) * columns + columns - 1
    f(cute.runtime.make_ptr(kiln.Int8, (base + 3 - end) % (1 << 64)), rows - 1, columns - 1)
    assert memory.tolist() == [0, 0, 43, 42]


STORED = [
    (cute.Int32, -3, cute.Int64, -3),
    (cute.Int32, -3, cute.Uint32, (1 << 32) - 3),
    (cute.Uint8, 200, cute.Int16, 200),
    (cute.Int8, -3, cute.Int32, -3),
    (cute.Boolean, True, cute.Int32, 1),
    (cute.Float16, 1.5, cute.Float32, 1.5),
    (cute.BFloat16, 1.5, cute.Float32, 1.5),
    (cute.Float32, 1.5, cute.Float64, 1.5),
]


def test_numbers_that_the_element_type_holds_are_converted():
    @cute.jit
    def f(*tensors: cute.Tensor):
        for t, (kind, value, _, _) in zip(tensors, STORED, strict=True):
            t[0] = kind(value)
            t[cute.Int32(1)] = kind(value)
            t[None] = t[1]

    arrays = [np.zeros(2, dtype.__name__.lower()) for _, _, dtype, _ in STORED]
    f(*map(from_dlpack, arrays))
    assert [a.tolist() for a in arrays] == [[expected] * 2 for *_, expected in STORED]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (cute.Int64(1), cute.Int32),
        (cute.Float32(1), cute.Float16),
        (cute.Float16(1), cute.BFloat16),
        (cute.BFloat16(1), cute.Float16),
        (cute.Int8(1), cute.Float32),
        (cute.Float16(1), cute.Int32),
        (cute.Int8(1), cute.Boolean),
    ],
)
def test_numbers_that_it_may_not_hold_are_refused(value, dtype):
    @cute.jit
    def f():
        cute.make_rmem_tensor(2, dtype)[0] = value

    with pytest.raises(
        kiln.DSLUserCodeTypeError, match=f"{type(value).__name__} is stored in a tensor of {dtype.__name__}"
    ):
        f()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("t[0, 0] = cute.Int32(1)", "Int32 is stored in a tensor of Float32"),
        ("t[1:2]", "slice"),
        ("t[...]", r"\.\.\."),
        ("t[0.5]", "indexed by float"),
        ("t.store(1.0)", "store\\(\\) takes the value"),
        ("t.store(t.load().to(cute.Float16))", "Float16 elements is stored in a tensor of Float32"),
        ("t.store(t[None, 0].load())", "shape"),
        ("cute.make_identity_tensor((2, 2))[0, 0] = 1", "holds coordinates"),
        ("cute.make_rmem_tensor((2, n), cute.Float32)", "static layout"),
        ("cute.make_rmem_tensor((2, 2), float)", "numeric type"),
        ("cute.make_tensor(3.5, 4)", "pointer or a coordinate"),
        ("cute.make_tensor(t.iterator, cute.make_layout(n)).load()", "static shape"),
        ("t.mark_layout_dynamic()", "before the call"),
        ("t[0, 0] = 'a'", "set to str"),
    ],
)
def test_refused(statement, message, tmp_path):
    (tmp_path / "prog.py").write_text(
        "from kiln import cute\n@cute.jit\ndef f(t: cute.Tensor, n: cute.Int32):\n    " + statement + "\n"
    )
    space: dict = {}
    exec(compile((tmp_path / "prog.py").read_text(), str(tmp_path / "prog.py"), "exec"), space)
    import linecache

    linecache.checkcache()
    with pytest.raises(kiln.DSLUserCodeError, match=message) as caught:
        space["f"](from_dlpack(np.zeros((2, 3), np.float32)), 2)
    assert caught.value.span is not None and caught.value.span.line == 4


def test_addresses_as_integers():
    """Shared memory has 32-bit addresses on every target, other memory 64-bit ones; both lead back to the element."""
    kinds = []

    @cute.kernel
    def f(t: cute.Tensor):
        shared = kiln.utils.SmemAllocator().allocate_array(cute.Float32, 8, byte_alignment=128)
        there, here = (shared + 5).toint(), (t.iterator + 1).toint()
        kinds.append((type(there), type(here), type(shared.toint() + 4)))
        cute.make_ptr(cute.Float32, there, cute.AddressSpace.smem).store(cute.Float32(2.5))
        cute.make_ptr(cute.Float32, shared.toint() + 24, cute.AddressSpace.smem).store(cute.Float32(4.0))
        cute.make_ptr(cute.Float32, here, t.memspace).store((shared + 5).load() + (shared + 6).load())
        t[2] = cute.Float32(shared.toint() & 127)

    @cute.jit
    def run(t: cute.Tensor):
        f(t).launch(grid=1, block=1)

    x = np.ones(3, np.float32)
    run(from_dlpack(x))
    assert kinds == [(kiln.Int32, kiln.Int64, kiln.Int32)]
    assert x.tolist() == [1, 6.5, 0]


def test_a_layout_that_looks_offsets_up():
    """A composed layout around a function: here the offsets are elements of another tensor."""
    rng = np.random.default_rng(0)
    where, data = rng.integers(0, 32, 8).astype(np.int32), np.arange(32, dtype=np.float32) * 2
    out = np.zeros((4, 8), np.float32)

    @cute.jit
    def gather(where: cute.Tensor, data: cute.Tensor, out: cute.Tensor):
        table = cute.make_composed_layout(lambda c: where[c], 0, cute.make_layout(8))
        t = cute.make_tensor(data.iterator, table)
        for i in range(8):
            out[0, i] = t[i]
        out[1, None].store(t.load())
        cute.autovec_copy(t, out[2, None])
        squares = cute.make_composed_layout(lambda c: c * c, 0, cute.make_layout(5))
        cute.basic_copy(cute.make_tensor(data.iterator, squares), cute.make_tensor(out[3, None].iterator, 5))

    gather(where, data, from_dlpack(out))
    assert (out[:3] == data[where]).all() and out[3].tolist() == [0, 2, 8, 18, 32, 0, 0, 0]


@pytest.mark.parametrize(
    "shape, stride, accesses",
    [(64, 1, 1), ((8, 8), (1, 8), 1), ((8, 8), (8, 1), 16), ((2, 32), (1, 4), 32), (16, 1, 4), (18, 1, 5)],
)
def test_long_rows_of_registers_are_read_and_written_at_once(shape, stride, accesses):
    @cute.jit
    def program(x: cute.Tensor):
        kept = cute.make_rmem_tensor(128, cute.Float32)
        for i in kiln.range_constexpr(128):
            kept[i] = x[i]
        part = cute.make_tensor(kept.iterator, cute.make_layout(shape, stride=stride))
        part.store(part.load() * 2.0)
        for i in kiln.range_constexpr(128):
            x[i] = kept[i]

    x = np.arange(128, dtype=np.float32)
    with kiln.target("cpu"):
        compiled = cute.compile(program, from_dlpack(x))
        compiled(from_dlpack(x))
    places = [cute.make_layout(shape, stride=stride)(i) for i in range(cute.size(shape))]
    expected = np.arange(128, dtype=np.float32)
    expected[places] *= 2
    np.testing.assert_array_equal(x, expected)
    assert compiled.__mlir__.count("cute.load") == compiled.__mlir__.count("cute.store") == 256 + accesses
