"""`cutlass.Array`, `Pointer` and slices of vectors."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.layout.leaf import LayoutError
from kiln.cute.runtime import from_dlpack


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


@cute.kernel
def everything(x: kiln.Array, flags: cute.Tensor, out: kiln.Array, counts: cute.Tensor):
    tx = cute.arch.thread_idx()[0]
    tile = kiln.Array(kiln.Float32, (4, 8), space=kiln.AddressSpace.smem)
    tile[tx // 8, tx % 8] = x[tx // 8, tx % 8] + 1.0
    cute.arch.sync_threads()
    view = kiln.make_array_view(flags)
    private = kiln.Array(kiln.Boolean, 4)
    for i in kiln.range_constexpr(4):
        private[i] = view[i] != 0
    if tx == 0:
        row = tile[2, :]
        out[0, 0:4] = row[4:4] * 2.0  # start:count, of the row
        out[1, 0:4] = tile[8:4]  # counted in memory
        out.store(tile.load(3, 2), 16)
        out[2, 2] = tile.subview(9)[1]
        loaded = x.masked_load(0, 4, private, default=-1.0)
        x_ptr = x.data_ptr()
        out.store(loaded, 24, alignment=4)
        out.store((x_ptr[1], kiln.Float32(2.5)), 44, alignment=8)
        out.masked_store(28, loaded * 10.0, private)
        pair = kiln.Vector.from_elements((1.0, 2.0, 3.0, 4.0), kiln.Float32)[1:3]
        matrix = kiln.vector.outerproduct(pair, kiln.full([2], 3.0, kiln.Float32))
        out[4, 0:2] = pair
        out[4, 2] = matrix[:, 1:2].reduce("add")
        out[4, 3] = kiln.Float32(pair.numel()) + x_ptr[5] + (1 + x_ptr).load()
        out.data_ptr(36)[0] = (x_ptr + 2).tospace(kiln.AddressSpace.generic).load(count=2)[1]
        swizzle = kiln.Swizzle.from_name("s32b")
        swizzled = kiln.Array(kiln.Float32, 64, space=kiln.AddressSpace.smem, alignment=256).data_ptr()
        for i in kiln.range_constexpr(64):
            kiln.apply_swizzle(swizzled + i, swizzle).store(kiln.Float32(i))
        v = kiln.load_swizzled(swizzled + 30, swizzle, count=8)
        out[5, 0:4] = v[4:8]
        out[5, 0:1] = kiln.inttoptr(swizzled.toint(), 3, kiln.Float32)[33]  # 33 lies where 37 would
        counts[0] = tx == 0  # a Boolean is stored as an integer


@cute.jit
def main(x: cute.Tensor, flags: cute.Tensor, out: kiln.Array, counts: cute.Tensor):
    everything(x, flags, out, counts).launch(grid=1, block=32)


def test_arrays_pointers_and_vectors():
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    flags, out, counts = np.array([1, 0, 1, 0], np.int32), np.zeros((6, 8), np.float32), np.zeros(1, np.int32)
    with kiln.sanitize("memory"):
        main(x, flags, out, counts)
    assert out[0, :4].tolist() == [42, 44, 46, 48]
    assert out[1, :4].tolist() == [9, 10, 11, 12]
    assert out[2, :3].tolist() == [4, 5, 11]
    assert out[3, :4].tolist() == [0, -1, 2, -1]
    assert out[5, 4:6].tolist() == [1, 2.5]
    assert out[3, 4:].tolist() == [0, 0, 20, 0]
    assert out[4, :5].tolist() == [2, 3, 15, 8, 3]
    assert out[5, :4].tolist() == [37, 35, 36, 37]
    assert counts[0] == 1


@pytest.mark.parametrize("how", ["element", "linear", "column", "view"])
def test_the_sanitizer_finds_accesses_outside(how):
    @cute.kernel
    def kernel(x: kiln.Array, i: kiln.Int32):
        tile = kiln.Array(kiln.Int32, (4, 8), space=kiln.AddressSpace.smem)
        if kiln.const_expr(how == "element"):
            tile[i - 5, 0] = 1
        elif kiln.const_expr(how == "linear"):
            tile.store(1, i + 23)
        elif kiln.const_expr(how == "column"):
            tile[0, i] = 1  # memory of the array, and not of the row
        else:
            tile.subview(30)[i - 7] = 1 + x[i]

    @cute.jit
    def f(x: cute.Tensor, i: kiln.Int32):
        kernel(x, i).launch(grid=1, block=1)

    with kiln.sanitize("memory", raises=False) as report:
        f(np.zeros(64, np.int32), 9)
    assert "bounds" in [finding.rule for finding in report.findings]


def _wrong(body, match):
    @cute.kernel
    def kernel(x: cute.Tensor):
        body(x)

    @cute.jit
    def f(x: cute.Tensor):
        kernel(x).launch(grid=1, block=1)

    with pytest.raises((DSLBaseError, LayoutError), match=match):
        f(from_dlpack(np.zeros(8, np.float32)))


def test_misuse_is_refused():
    array = lambda: kiln.Array(kiln.Float32, (4, 4))
    _wrong(lambda x: kiln.Array(kiln.Float32, 0), "of shape")
    _wrong(lambda x: kiln.Array(kiln.Float32, 4, space=kiln.AddressSpace.gmem), "allocated in gmem")
    _wrong(lambda x: kiln.Array(kiln.Float32, 4, alignment=3), "alignment is 3")
    _wrong(lambda x: array()[0, 1, 2], "indexed by 3 numbers")
    _wrong(lambda x: array()[0 : x[0].to(kiln.Int32)], "start:count")
    _wrong(lambda x: kiln.make_array_view(x).store(kiln.Int32(1)), "Int32 is stored")
    _wrong(lambda x: kiln.make_array_view(x).store(kiln.full([2], 1, kiln.Int32)), "vector of Int32")
    _wrong(lambda x: x.iterator.raw_ptr().load(count=2, alignment=3), "alignment is 3")
    _wrong(lambda x: kiln.inttoptr(0, 9), "address space is 9")
    _wrong(lambda x: kiln.Swizzle.from_name("s16b"), "named 's16b'")


FORMS = {
    "base by name": lambda x, a: kiln.Array(base=kiln.Int32, shape=4, space=kiln.AddressSpace.smem).shape[0] + 5,
    "load of a coordinate": lambda x, a: a.load((1, 1)),
    "vector from a coordinate": lambda x, a: a.load((1, 0), vector_size=4)[1],
    "pointer to a coordinate": lambda x, a: a.data_ptr((1, 1)).load(),
    "subview of all": lambda x, a: a.subview()[9],
    "another space": lambda x, a: a.tospace(kiln.AddressSpace.generic)[1, 1],
    "masked load of a coordinate": lambda x, a: a.masked_load((1, 0), 2, kiln.full([2], True))[1],
    "default by position": lambda x, a: a.masked_load(0, 2, kiln.full([2], False, kiln.Boolean), 9)[0],
    "relaxed load": lambda x, a: x.load(9, ordering="monotonic", syncscope="cta"),
    "acquiring load": lambda x, a: (x.data_ptr() + 9).load(ordering="acquire"),
    "alignment by position": lambda x, a: (x.data_ptr() + 9).load(4),
    "gather": lambda x, a: x.data_ptr().masked_gather(kiln.full([2], 9, kiln.Int32), kiln.full([2], True))[1],
    "load with a hint": lambda x, a: (
        x.data_ptr().nvvm_load_ext(count=16, cache_modifier="cg")[9]
        if kiln.const_expr(False)
        else (x.data_ptr() + 8).nvvm_load_ext(count=4, cache_modifier="cg", evict="evict_first")[1]
    ),
    "relaxed extended load": lambda x, a: (x.data_ptr() + 9).nvvm_load_ext(scope="gpu"),
    "sum": lambda x, a: x.load(2, 3).reduce(),
    "sum with a start": lambda x, a: x.load(0, 3).reduce("add", acc=6),
    "sum of columns": lambda x, a: x.load(8, 2).broadcast_to((2, 2)).reduce("max", dim=0)[1],
    "sum of rows with starts": lambda x, a: x.load(1, 2).broadcast_to((2, 2)).reduce(dim=-1, acc=x.load(5, 2))[1],
    "natural alignment": lambda x, a: x.data_ptr().natural_alignment + 5,
    "swizzle by name": lambda x, a: kiln.Swizzle(bbits=1, mbase=0, sshift=1)(10) - 2,
}


@pytest.mark.quick(6)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_calls(form):
    """Each gives 9: the ninth element of x and of the array, or a number that says so."""

    @cute.kernel
    def kernel(x: kiln.Array, out: kiln.Array):
        a = kiln.Array(kiln.Int32, (4, 8), space=kiln.AddressSpace.smem)
        for i in kiln.range_constexpr(32):
            a.store(i, (i // 8, i % 8))
        found = FORMS[form](x, a)
        out.data_ptr().store(kiln.Int32(found), ordering="release", syncscope="gpu")
        x.data_ptr().nvvm_store_ext(kiln.full([4], 7, kiln.Int32), cache_modifier="cs")

    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor):
        kernel(x, out).launch(grid=1, block=1)

    memory, out = np.zeros(36, np.int32), np.zeros(1, np.int32)
    x = memory[-memory.ctypes.data % 16 // 4 :][:32]
    x[:] = np.arange(32)
    with kiln.sanitize():
        main(from_dlpack(x, assumed_align=16), out)
    assert out[0] == {"sum with a start": 9, "sum of rows with starts": 1 + 2 + 6}.get(form, 9)
    assert x[:5].tolist() == [7, 7, 7, 7, 4]


@pytest.mark.parametrize("writes", [False, True])
def test_masked_accesses_outside_are_found_where_the_mask_holds(writes):
    @cute.kernel
    def kernel(n: kiln.Int32):
        a = kiln.Array(kiln.Int32, 8, space=kiln.AddressSpace.smem)
        kiln.Array(kiln.Int32, 64, space=kiln.AddressSpace.smem)  # what follows is memory too
        mask = kiln.Array(kiln.Boolean, 4)
        for i in kiln.range_constexpr(4):
            a[i], a[i + 4], mask[i] = i, i, i < n
        if kiln.const_expr(writes):
            a.masked_store(6, kiln.full([4], 1, kiln.Int32), mask)
        else:
            a[0] = a.masked_load(6, 4, mask)[0]

    @cute.jit
    def main(n: kiln.Int32):
        kernel(n).launch(grid=1, block=1)

    with kiln.sanitize():
        main(2)
        with pytest.raises(Exception, match=r"a\[8\]"):
            main(3)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("ordering is 'release'", lambda x: x.load(0, ordering="release")),
        ("ordering is 'acquire'", lambda x: x.store(1, 0, ordering="acquire")),
        ("scope is 'block'", lambda x: x.load(0, ordering="acquire", syncscope="block")),
        ("volatile and has the ordering", lambda x: x.load(0, is_volatile=True, ordering="acquire")),
        ("a masked access is volatile", lambda x: x.masked_load(0, 1, kiln.full([1], True), is_volatile=True)),
        ("mask of 1 Booleans", lambda x: x.masked_load(0, 2, kiln.full([1], True))),
        ("dim of reduce", lambda x: x.load(0, 4).reduce("add", dim=1)),
        ("ReductionOp or its name", lambda x: x.load(0, 4).reduce("mean")),
    ],
)
def test_operands_that_do_not_exist_are_refused(match, call):
    @cute.kernel
    def kernel(x: kiln.Array):
        call(x)

    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=1, block=1)

    with pytest.raises(DSLBaseError, match=match):
        main(np.zeros(8, np.int32))


@cute.kernel
def masks(n: cute.Tensor, out: cute.Tensor):
    for i in kiln.range_constexpr(4):
        mask = kiln.vector.create_mask([4], [n[i]])
        row = kiln.vector.where(mask, kiln.vector.full([4], 5, kiln.Int32), kiln.vector.full([4], i, kiln.Int32))
        for j in kiln.range_constexpr(4):
            out[i, j] = row[j]
    corner = kiln.vector.create_mask([2, 4], [n[2] - 1, 3]).to(kiln.Int32)
    for j in kiln.range_constexpr(8):
        out[4 + j // 4, j % 4] = corner[j // 4, j % 4]
    words = n.iterator
    out.iterator[6 * 4] = words[3] + words[cute.arch.thread_idx()[0] + 1]
    with pytest.raises(TypeError, match="not iterable"):
        list(words)


def test_masks_and_indexed_pointers():
    n, out = np.array([-1, 0, 2, 9], np.int32), np.zeros((7, 4), np.int32)
    cute.jit(lambda n, out: masks(n, out).launch(grid=1, block=1))(n, out)
    wanted = [[5 if j < n[i] else i for j in range(4)] for i in range(4)]
    assert out.tolist() == [*wanted, [1, 1, 1, 0], [0, 0, 0, 0], [9, 0, 0, 0]]
    with pytest.raises(Exception, match="one size for each mode"):
        kiln.vector.create_mask([4, 4], [1])
