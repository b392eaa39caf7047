"""Pointers, memrefs, loads and stores, and how they cross control flow and functions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from cpu_testing import NUMPY, Compiled, run

import kiln
from kiln import cute

pytestmark = pytest.mark.isa

ELEMENTS = [
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "f16",
    "bf16",
    "f32",
    "f64",
    "f8E4M3FN",
    "f8E5M2",
    "f6E3M2FN",
    "f6E2M3FN",
    "tf32",
]


def copy_source(type_: str, count: int, offset_type: str = "i32") -> str:
    value = type_ if count == 1 else f"vector<{count}x{type_}>"
    return f"""
    func.func @f(%s: P<{type_}>, %d: P<{type_}>, %from: {offset_type}, %to: {offset_type}) {{
      %v = "cute.load"(%s, %from) : (P<{type_}>, {offset_type}) -> {value}
      "cute.store"(%v, %d, %to) : ({value}, P<{type_}>, {offset_type}) -> ()
      func.return
    }}"""


@pytest.mark.quick(30)
@pytest.mark.parametrize("offset", ["i32", "i64"])
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("type_", ELEMENTS)
def test_load_and_store(type_: str, count: int, offset: str) -> None:
    kind = np.dtype(NUMPY[type_])
    width = {"f6E3M2FN": 6, "f6E2M3FN": 6, "i1": 1}.get(type_, kind.itemsize * 8)
    random = np.random.default_rng(5)
    source = random.integers(0, 1 << width, 32, dtype=np.uint64).astype(f"u{kind.itemsize}")
    if type_ == "tf32":
        source &= np.uint32(0xFFFFE000)
        source[(source >> 23) & 0xFF == 0xFF] = 0
    target = np.full(32, 0 if type_ == "i1" else 3, source.dtype)
    want = target.copy()
    want[11 : 11 + count] = source[5 : 5 + count]
    run(copy_source(type_, count, offset), source, target, 5, 11)
    np.testing.assert_array_equal(target, want)


@pytest.mark.parametrize("type_", ["i4", "f4E2M1FN"])
def test_four_bit_elements_are_packed_low_nibble_first(type_: str) -> None:
    source = np.array([0x21, 0x43, 0x65, 0x87], np.uint8)
    copy = Compiled(copy_source(type_, 1))
    for start in range(8):
        for end in range(8):
            target = np.full(4, 0xFF, np.uint8)
            copy(source, target, start, end)
            nibbles = [x for byte in target for x in (byte & 15, byte >> 4)]
            assert nibbles == [start + 1 if n == end else 15 for n in range(8)]
    target = np.zeros(4, np.uint8)
    Compiled(copy_source(type_, 4))(source, target, 2, 4)
    np.testing.assert_array_equal(target, [0, 0, 0x43, 0x65])


def test_pointer_arithmetic() -> None:
    source = """
    func.func @f(%a: i64, %n: i32) -> (i64, i64, f32) {
      %p = "cute.int_to_ptr"(%a) : (i64) -> P<f32>
      %q = "cute.ptr_add"(%p, %n) : (P<f32>, i32) -> P<f32>
      %b = "cute.cast_ptr"(%q) : (P<f32>) -> P<i8>
      %three = arith.constant 3 : i64
      %c = "cute.ptr_add"(%b, %three) : (P<i8>, i64) -> P<i8>
      %z = arith.constant 0 : i32
      %v = "cute.load"(%q, %z) : (P<f32>, i32) -> f32
      %i = "cute.ptr_to_int"(%q) : (P<f32>) -> i64
      %j = "cute.ptr_to_int"(%c) : (P<i8>) -> i64
      func.return %i, %j, %v : i64, i64, f32
    }"""
    data = np.arange(8, dtype=np.float32)
    base = data.ctypes.data
    assert run(source, base, 5) == (base + 20, base + 23, 5.0)
    assert run(source, base + 24, -2) == (base + 16, base + 19, 4.0)


DYNAMIC = '"(?,?{i64}):(?{i64 div=4},1)"'


def test_memref_carries_its_dynamic_leaves() -> None:
    source = f"""
    func.func @f(%p: P<f32>, %m: i32, %n: i64, %s: i64) -> (i32, i64, i64, i64) {{
      %v = "cute.view"(%p, %m, %n, %s) {{operandSegmentSizes = array<i32: 1, 1, 2>}}
        : (P<f32>, i32, i64, i64) -> M<f32, {DYNAMIC}>
      %w = "cute.cast_memref"(%v) : (M<f32, {DYNAMIC}>) -> !cute.memref<f32, "gmem", 4, "(?,?{{i64}}):(?{{i64}},1)">
      %0 = "cute.leaf"(%v) {{index = 0 : i32}} : (M<f32, {DYNAMIC}>) -> i32
      %1 = "cute.leaf"(%v) {{index = 1 : i32}} : (M<f32, {DYNAMIC}>) -> i64
      %2 = "cute.leaf"(%w) {{index = 2 : i32}} : (!cute.memref<f32, "gmem", 4, "(?,?{{i64}}):(?{{i64}},1)">) -> i64
      %q = "cute.iter"(%v) : (M<f32, {DYNAMIC}>) -> P<f32>
      %3 = "cute.ptr_to_int"(%q) : (P<f32>) -> i64
      func.return %0, %1, %2, %3 : i32, i64, i64, i64
    }}"""
    assert run(source, 4096, 7, 1 << 40, -9) == (7, 1 << 40, -9, 4096)


def test_memref_through_loops_branches_and_blocks() -> None:
    """Sum rows of a matrix: the row (a memref with a dynamic leaf) is carried by a loop and chosen by a branch."""
    source = """
    func.func @f(%p: P<f32>, %rows: i32, %columns: i32, %odd: i1) -> f32 {
      %z = arith.constant 0 : i32
      %1 = arith.constant 1 : i32
      %f0 = arith.constant 0.0 : f32
      %row0 = "cute.view"(%p, %columns) {operandSegmentSizes = array<i32: 1, 1, 0>} : (P<f32>, i32) -> M<f32, "(?):(1)">
      %sum:2 = scf.for %r = %z to %rows step %1 iter_args(%row = %row0, %acc = %f0) -> (M<f32, "(?):(1)">, f32) : i32 {
        %n = "cute.leaf"(%row) {index = 0 : i32} : (M<f32, "(?):(1)">) -> i32
        %part = scf.for %c = %z to %n step %1 iter_args(%a = %acc) -> (f32) : i32 {
          %v = "cute.load"(%row, %c) : (M<f32, "(?):(1)">, i32) -> f32
          %t = arith.addf %a, %v : f32
          scf.yield %t : f32
        }
        %it = "cute.iter"(%row) : (M<f32, "(?):(1)">) -> P<f32>
        %next = scf.if %odd -> (M<f32, "(?):(1)">) {
          %two = arith.constant 2 : i32
          %skip = arith.muli %n, %two : i32
          %q = "cute.ptr_add"(%it, %skip) : (P<f32>, i32) -> P<f32>
          %w = "cute.view"(%q, %n) {operandSegmentSizes = array<i32: 1, 1, 0>} : (P<f32>, i32) -> M<f32, "(?):(1)">
          scf.yield %w : M<f32, "(?):(1)">
        } else {
          %q = "cute.ptr_add"(%it, %n) : (P<f32>, i32) -> P<f32>
          %w = "cute.view"(%q, %n) {operandSegmentSizes = array<i32: 1, 1, 0>} : (P<f32>, i32) -> M<f32, "(?):(1)">
          scf.yield %w : M<f32, "(?):(1)">
        }
        scf.yield %next, %part : M<f32, "(?):(1)">, f32
      }
      func.return %sum#1 : f32
    }"""
    compiled = Compiled(source)
    data = np.random.default_rng(6).integers(0, 100, (8, 5)).astype(np.float32)
    assert compiled(data, 8, 5, False) == data.sum()
    assert compiled(data, 4, 5, True) == data[::2].sum()


def test_memref_across_blocks_selects_and_calls() -> None:
    source = """
    func.func private @pick(%a: M<f32, "(?):(1)">, %b: M<f32, "(?):(1)">, %c: i1) -> M<f32, "(?):(1)"> {
      %r = arith.select %c, %a, %b : M<f32, "(?):(1)">
      func.return %r : M<f32, "(?):(1)">
    }
    func.func @f(%p: P<f32>, %q: P<f32>, %c: i1) -> f32 {
      %n = arith.constant 4 : i32
      %a = "cute.view"(%p, %n) {operandSegmentSizes = array<i32: 1, 1, 0>} : (P<f32>, i32) -> M<f32, "(?):(1)">
      %b = "cute.view"(%q, %n) {operandSegmentSizes = array<i32: 1, 1, 0>} : (P<f32>, i32) -> M<f32, "(?):(1)">
      %m = func.call @pick(%a, %b, %c) : (M<f32, "(?):(1)">, M<f32, "(?):(1)">, i1) -> M<f32, "(?):(1)">
      cf.br ^next(%m : M<f32, "(?):(1)">)
    ^next(%x: M<f32, "(?):(1)">):
      %k = "cute.leaf"(%x) {index = 0 : i32} : (M<f32, "(?):(1)">) -> i32
      %one = arith.constant 1 : i32
      %last = arith.subi %k, %one : i32
      %v = "cute.load"(%x, %last) : (M<f32, "(?):(1)">, i32) -> f32
      func.return %v : f32
    }"""
    a, b = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32) + 10
    compiled = Compiled(source)
    assert (compiled(a, b, True), compiled(a, b, False)) == (3.0, 13.0)


def test_register_memory() -> None:
    source = """
    func.func @f(%p: P<i32>, %n: i32) -> i32 {
      %z = arith.constant 0 : i32
      %1 = arith.constant 1 : i32
      %r = "cute.alloc_rmem"() {count = 16 : i64} : () -> !cute.ptr<i32, "rmem", 16>
      scf.for %i = %z to %n step %1 : i32 {
        %v = "cute.load"(%p, %i) : (P<i32>, i32) -> i32
        %last = arith.subi %n, %1 : i32
        %j = arith.subi %last, %i : i32
        "cute.store"(%v, %r, %j) : (i32, !cute.ptr<i32, "rmem", 16>, i32) -> ()
      }
      %v = "cute.load"(%r, %z) {alignment = 16 : i64} : (!cute.ptr<i32, "rmem", 16>, i32) -> vector<4xi32>
      "cute.store"(%v, %p, %z) : (vector<4xi32>, P<i32>, i32) -> ()
      %w = "cute.load"(%r, %z) : (!cute.ptr<i32, "rmem", 16>, i32) -> i32
      func.return %w : i32
    }"""
    data = np.arange(16, dtype=np.int32)
    assert run(source, data, 16) == 15
    np.testing.assert_array_equal(data[:5], [15, 14, 13, 12, 4])


def test_undef_is_the_same_every_time() -> None:
    source = """
    func.func @f() -> (f32, i64, f8E4M3FN) {
      %a = "cute.undef"() : () -> f32
      %b = "cute.undef"() : () -> M<f32, "(?{i64}):(1)">
      %c = "cute.leaf"(%b) {index = 0 : i32} : (M<f32, "(?{i64}):(1)">) -> i64
      %d = "cute.undef"() : () -> f8E4M3FN
      func.return %a, %c, %d : f32, i64, f8E4M3FN
    }"""
    assert run(source) == (0.0, 0, ml_dtypes.float8_e4m3fn(0))


def test_vectors_of_bytes_and_vector_arguments() -> None:
    source = """
    func.func @f(%v: vector<4xf32>) -> vector<4xf32> {
      %w = arith.addf %v, %v : vector<4xf32>
      func.return %w : vector<4xf32>
    }"""
    np.testing.assert_array_equal(run(source, [1, 2, 3, 4]), [2, 4, 6, 8])


def test_reads_past_the_end_of_a_register_tensor_wrap_around() -> None:
    """Undefined, and without a trace on a GPU, where LLVM drops the stores. FlashAttention stores log-sum-exps so."""

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, times: kiln.Int32):
        thread, _, _ = cute.arch.thread_idx()
        rows = cute.make_tensor(y.iterator + 2 * thread, cute.make_layout((2, 8), stride=(1, 0)))
        held = cute.make_rmem_tensor(2, kiln.Float32)
        while times > 0:  # carries the tensor
            held[0], held[1] = x[2 * thread], x[2 * thread + 1]
            for m in kiln.range(16, unroll_full=True):
                rows[m % 2, 0] = held[m]
            held = cute.make_tensor(held.iterator, held.layout)
            times = times - 1

    @cute.jit
    def copy(x: cute.Tensor, y: cute.Tensor, times: kiln.Int32):
        kernel(x, y, times).launch(grid=1, block=32)

    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with kiln.target("cpu"):
        copy(x, y, 2)
    np.testing.assert_array_equal(y, x)
