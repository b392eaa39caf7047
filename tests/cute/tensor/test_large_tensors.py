"""Tensors past 2**31 elements: offsets that need 64 bits get them. The arrays are sparse files, of which few pages exist."""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack, make_fake_tensor, sym_int, sym_int64

ROWS = COLUMNS = 1 << 16


@pytest.fixture(scope="module")
def square():
    """65536 by 65536 bytes of zeros."""
    with tempfile.TemporaryFile() as file:
        file.truncate(ROWS * COLUMNS)
        try:
            memory = mmap.mmap(file.fileno(), ROWS * COLUMNS)
        except (OSError, ValueError, OverflowError):
            pytest.skip("no room for 4 GiB of addresses")
        yield np.ndarray((ROWS, COLUMNS), np.uint8, buffer=memory)


WAYS = {
    "array": lambda x: x,
    "static": from_dlpack,
    "dynamic": lambda x: from_dlpack(x).mark_layout_dynamic(),
    "first extent": lambda x: from_dlpack(x).mark_compact_shape_dynamic(0),
    "last extent": lambda x: from_dlpack(x).mark_compact_shape_dynamic(1),
}


@cute.jit
def touch(t: cute.Tensor, value: cute.Uint8, sizes: cute.Tensor):
    m, n = t.shape
    sizes[0] = cute.Int64(cute.size(t))
    sizes[1] = cute.Int64(cute.cosize(t.layout))
    t[m - 1, n - 1] = value
    t[cute.size(t) - 2] = value
    tiles = cute.zipped_divide(t, (16, 16))
    tiles[(None, None), (4095, 4094)][15, 14] = value
    cute.local_tile(t, (32, 32), (m // 32 - 1, 2047))[1, 31] = value
    cute.domain_offset((m - 8, n - 8), t)[3, 4] = value
    part = cute.local_tile(t, (8, 8), (8191, 8191))
    part.store((part.load() + 1).to(cute.Uint8))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transposed", [False, True])
def test_offsets_beyond_32_bits(square, way, transposed):
    x = square.T if transposed else square
    before = x[-8:, -8:].copy()
    sizes = np.zeros(2, np.int64)
    value = 100 + 2 * list(WAYS).index(way) + transposed
    touch(WAYS[way](x), value, sizes)
    assert sizes.tolist() == [ROWS * COLUMNS] * 2
    assert x[ROWS - 31, COLUMNS - 1] == x[ROWS - 1, 4094 * 16 + 14] == value
    before[-1, -1] = before[-2, -1] = before[3, 4] = value
    assert np.array_equal(x[-8:, -8:], before + 1)


def test_small_arrays_keep_32_bit_extents():
    seen = []

    @cute.jit
    def look(t: cute.Tensor):
        seen.append(str(t.layout))

    x = np.zeros((4, 8), np.float32)
    look(x)
    look(from_dlpack(x).mark_layout_dynamic())
    assert set(seen) == {"(?,?{div=4}):(?{i64 div=4},1)", "(?,?):(?{i64},1)"}
    seen.clear()
    look(np.broadcast_to(np.float32(0), (1 << 16, 1 << 16)))
    assert seen == ["(?{i64},?{i64}):(0,0)"]


@cute.kernel
def mark_ends(t: cute.Tensor, first_block: cute.Int32, value: cute.Uint8):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    tile = first_block + block
    mine = cute.zipped_divide(t, (32,))[(None,), tile]
    where = cute.zipped_divide(cute.make_identity_tensor(t.shape), (32,))[(None,), tile]
    if cute.elem_less(where[thread], t.shape):
        mine[thread] = value


@cute.jit
def launch_ends(t: cute.Tensor, value: cute.Uint8, blocks: cute.Tensor):
    grid = cute.ceil_div(cute.size(t), 32)
    blocks[0] = cute.Int64(grid)
    mark_ends(t, cute.Int32(grid - 2), value).launch(grid=(grid - (grid - 2), 1, 1), block=(32, 1, 1))


@pytest.mark.parametrize("way", ["array", "static", "dynamic"])
def test_a_kernel_with_a_predicated_tail(square, way):
    count = (1 << 31) + 4096 + 5
    x = square.reshape(-1)[: count + 32]
    x[-96:] = 0
    blocks = np.zeros(1, np.int64)
    launch_ends(WAYS[way](x[:count]), 7, blocks)
    assert blocks[0] == -(-count // 32)
    first = (blocks[0] - 2) * 32
    assert not x[first - 32 : first].any() and (x[first:count] == 7).all() and not x[count:].any()


def test_layouts_made_from_32_bit_numbers(square):
    @cute.jit
    def write(p: cute.Pointer, m: cute.Int32, n: cute.Int32, value: cute.Uint8):
        t = cute.make_tensor(p, cute.make_layout((m, n), stride=(n, 1)))
        t[m - 1, n - 2] = value
        t[m - 1, None][3] = value
        four = cute.make_tensor(p, cute.make_layout((4, 2), stride=(n * 16384, 1)))
        four.fill(value)
        cute.autovec_copy(four, cute.make_tensor(p, cute.make_layout((4, 2), stride=(n * 16384, 8))))

    write(cute.runtime.make_ptr(cute.Uint8, square.ctypes.data, cute.AddressSpace.gmem), ROWS, COLUMNS, 55)
    assert square[-1, -2] == square[-1, 3] == 55
    assert (square[::16384, [0, 1, 8]] == 55).all()


def test_compiled_for_32_bits_is_not_called_with_more(square):
    @cute.jit
    def first(t: cute.Tensor):
        t[0, 0] = 1

    small = np.zeros((4, 8), np.uint8)
    for description in (from_dlpack(small).mark_layout_dynamic(), small):
        compiled = cute.compile(first, description)
        with pytest.raises(
            kiln.DSLUserCodeTypeError, match=r"argument 't'.*it has 4294967296 elements.*: compile for this tensor"
        ):
            compiled(square)
    narrow = make_fake_tensor(cute.Uint8, (sym_int(), 4), (1 << 16, 1), memspace=cute.AddressSpace.generic)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="its offsets go up to 4294901763"):
        cute.compile(first, narrow)(square[:, :4])
    wide = make_fake_tensor(
        cute.Uint8, (sym_int64(), sym_int64()), (sym_int64(), 1), memspace=cute.AddressSpace.generic
    )
    square[0, 0] = 0
    cute.compile(first, wide)(square)
    assert square[0, 0] == 1


@cute.kernel
def mark_last_row(t: cute.Tensor, tiles: cute.Shape, shape: cute.Shape, value: cute.Uint8, count: cute.Constexpr):
    m, n = t.shape
    tile = cute.local_tile(t, (1, 64), (m - 1, n // 64 - 1))
    if cute.size(tiles) > 0:  # as tile schedulers count: no product of extents
        tile[0, 7] = value
    if count == "shape":
        tile[0, 8] = cute.Uint8(cute.size(shape) // (1 << 10))
    if count == "kernel":
        tile[0, 8] = cute.Uint8(cute.size(t) // (1 << 10))


@cute.jit
def launch_last_row(t: cute.Tensor, u: cute.Tensor, value: cute.Uint8, count: cute.Constexpr):
    grid = cute.ceil_div(cute.size(t), 1 << 30) if count == "host" else 1
    tiles = (cute.ceil_div(t.shape[0], 64), cute.ceil_div(t.shape[1], 64), u.shape[1])
    mark_last_row(t, tiles, t.shape, value, count).launch(grid=(grid, 1, 1), block=(1, 1, 1))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", ["", "host", "shape", "kernel"])
def test_symbols_of_32_bits_with_strides_of_64(square, count, shared):
    """Extents of `sym_int()` say nothing of their product: only code that multiplies them has to be refused."""
    rows, space = sym_int(), cute.AddressSpace.generic
    wide = make_fake_tensor(cute.Uint8, (rows, sym_int()), (sym_int64(), 1), memspace=space)
    other = make_fake_tensor(cute.Uint8, (rows if shared else sym_int(), sym_int()), (sym_int64(), 1), memspace=space)
    compiled = cute.compile(launch_last_row, wide, other, cute.Uint8(0), count)
    few = np.zeros((4, 256), np.uint8)
    compiled(few, few[:, :4].copy(), 9)
    assert few[3, 199] == 9 and few[3, 200] == (count in ("kernel", "shape"))
    square[-1, -64:] = 0
    column = np.zeros((ROWS, 4), np.uint8)
    if count:
        with pytest.raises(kiln.DSLUserCodeValueError, match=r"argument 't' has 4294967296 elements.*sym_int64"):
            compiled(square, column, 9)
        assert not square[-1, -64:].any()
        return
    compiled(square, column, 9)
    assert square[-1, -57] == 9 and square[-1, -64:].sum() == 9
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"argument 't'.*the extent of mode 1 is 4294967296"):
        compiled(square.reshape(1, -1), column[:1], 9)


def test_a_promise_does_not_outlive_a_branch(square):
    """A tensor that may be one of two is as wide as the wider one needs."""

    @cute.jit
    def write(t: cute.Tensor, p: cute.Pointer, n: cute.Int32, other: cute.Boolean):
        layout = cute.make_layout((n, n), stride=(n, 1))
        chosen = cute.make_tensor(t.iterator, t.layout)
        for _ in range(1):
            if other:
                chosen = cute.make_tensor(p, cute.make_layout(t.shape, stride=(cute.Int64(n), 1)))
        cute.make_tensor(p, layout)[n - 1, n - 5] = 77
        chosen[chosen.shape[0] - 1, 1] = 78

    small = np.zeros((4, 8), np.uint8)
    write(small, cute.runtime.make_ptr(cute.Uint8, square.ctypes.data), ROWS, True)
    assert square[-1, -5] == 77 and square[3, 1] == 78 and not small.any()
