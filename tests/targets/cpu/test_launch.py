"""Kernels: every thread of every block runs once, with its indices, its arguments and its block's shared memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cpu_testing import CONSTANTS, SIZES, Compiled, indices, launch

from kiln.base_dsl.diagnostics import (
    CompilerDiagnosticError,
    DSLNotImplemented,
    DSLRuntimeError,
    DSLUserCodeRuntimeError,
    DSLWarning,
)
from kiln.targets.cpu.runtime import parts
from kiln.targets.host.faults import AssertionFault

# every thread writes its nine numbers at its place in the grid
INDEX_KERNEL = (
    """
func.func @k(%out: P<i32>) attributes {cute.kernel} {
"""
    + indices("tx", "ty", "tz", "bx", "by", "bz", "bdx", "bdy", "bdz", "gdx", "gdy", "gdz")
    + """
  %lane = "cute.lane_idx"() : () -> i32
  %warp = "cute.warp_idx"() : () -> i32
  %b0 = arith.muli %gdy, %bz : i32
  %b1 = arith.addi %b0, %by : i32
  %b2 = arith.muli %b1, %gdx : i32
  %block = arith.addi %b2, %bx : i32
  %t0 = arith.muli %bdy, %tz : i32
  %t1 = arith.addi %t0, %ty : i32
  %t2 = arith.muli %t1, %bdx : i32
  %thread = arith.addi %t2, %tx : i32
  %p0 = arith.muli %bdx, %bdy : i32
  %per = arith.muli %p0, %bdz : i32
  %q0 = arith.muli %block, %per : i32
  %linear = arith.addi %q0, %thread : i32
  %nine = arith.constant 9 : i32
  %at = arith.muli %linear, %nine : i32
  %v = vector.from_elements %tx, %ty, %tz, %bx, %by, %bz, %lane, %warp, %linear : vector<9xi32>
  "cute.store"(%v, %out, %at) : (vector<9xi32>, P<i32>, i32) -> ()
  func.return
}
func.func @f(%out: P<i32>, """
    + SIZES
    + """) {
"""
    + CONSTANTS
    + launch("k", [("%out", "P<i32>")])
    + """
  func.return
}
"""
)


@pytest.fixture(scope="module")
def index_kernel() -> Compiled:
    return Compiled(INDEX_KERNEL)


SHAPES = [
    ((1, 1, 1), (1, 1, 1)), ((1, 1, 1), (32, 1, 1)), ((5, 1, 1), (33, 1, 1)), ((1, 7, 1), (1, 5, 1)),
    ((1, 1, 6), (1, 1, 64)), ((3, 4, 5), (2, 3, 4)), ((2, 3, 1), (8, 8, 16)), ((100, 1, 1), (1024, 1, 1)),
    ((1, 65535, 1), (1, 1, 1)), ((17, 13, 2), (7, 5, 3)),
]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(("grid", "block"), SHAPES)
def test_every_thread_runs_with_its_indices(
    index_kernel: Compiled, grid: tuple[int, ...], block: tuple[int, ...], workers: int
) -> None:
    blocks, threads = math.prod(grid), math.prod(block)
    out = np.full((blocks * threads, 9), -1, np.int32)
    parts.set_workers(workers)
    try:
        index_kernel(out, *grid, *block)
    finally:
        parts.set_workers()
    linear = np.arange(blocks * threads)
    b, t = linear // threads, linear % threads
    want = np.stack([
        t % block[0], t // block[0] % block[1], t // (block[0] * block[1]),
        b % grid[0], b // grid[0] % grid[1], b // (grid[0] * grid[1]),
        t % 32, t // 32, linear,
    ], axis=1)  # fmt: skip
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(
    ("grid", "block", "words"),
    [
        ((0, 1, 1), (1, 1, 1), "grid x is 0"),
        ((1, -3, 1), (1, 1, 1), "grid y is -3"),
        ((1, 65536, 1), (1, 1, 1), "grid y is 65536"),
        ((1, 1, 70000), (1, 1, 1), "grid z is 70000"),
        ((1, 1, 1), (0, 1, 1), "block x is 0"),
        ((1, 1, 1), (1025, 1, 1), "block x is 1025"),
        ((1, 1, 1), (1, 1, 65), "block z is 65"),
        ((1, 1, 1), (32, 32, 2), "2048 threads per block"),
        ((1, 1, 1), (-1, -1, 1), "block x is -1"),
    ],
)
def test_impossible_launches_are_reported(
    index_kernel: Compiled, grid: tuple[int, ...], block: tuple[int, ...], words: str
) -> None:
    out = np.full((64, 9), -1, np.int32)
    with pytest.raises(DSLRuntimeError, match="cannot launch kernel k") as caught:
        index_kernel(out, *grid, *block)
    assert words in str(caught.value)
    assert caught.value.hint
    assert caught.value.span is not None
    assert (out == -1).all()


def test_too_much_shared_memory_is_reported() -> None:
    source = (
        "func.func @k() attributes {cute.kernel} { func.return }\nfunc.func @f(%smem: i32) {"
        + CONSTANTS
        + launch("k", [], sizes="%one, %one, %one, %one, %one, %one", smem="%smem")
        + "func.return }"
    )
    compiled = Compiled(source)
    compiled(227 * 1024)
    with pytest.raises(DSLRuntimeError, match="smem=300000: 300000 bytes of shared memory per block"):
        compiled(300_000)
    with pytest.raises(DSLRuntimeError, match="smem=-1: smem is -1"):
        compiled(-1)


def test_arguments_of_every_kind_reach_the_kernel() -> None:
    types = ["i1", "i8", "i64", "i128", "f16", "bf16", "f64", "f8E4M3FN", "index", "vector<4xf32>"]
    arguments = [(f"%a{n}", t) for n, t in enumerate(types)]
    stores = "".join(
        f"%o{n} = arith.constant {n} : i32\n%s{n} = arith.sitofp %b{n} : {t} to f32\n"
        if t in ("i1", "i8", "i64", "i128")
        else ""
        for n, t in enumerate(types)
    )
    del stores
    parameters = ", ".join(f"%a{n}: {t}" for n, t in enumerate(types))
    source = f"""
    func.func @k(%out: P<f64>, {parameters}) attributes {{cute.kernel}} {{
      %z = arith.constant 0 : i32
      %c1 = arith.uitofp %a0 : i1 to f64
      %c2 = arith.sitofp %a1 : i8 to f64
      %c3 = arith.sitofp %a2 : i64 to f64
      %c4 = arith.sitofp %a3 : i128 to f64
      %c5 = arith.extf %a4 : f16 to f64
      %c6 = arith.extf %a5 : bf16 to f64
      %t8 = arith.extf %a7 : f8E4M3FN to f32
      %c8 = arith.extf %t8 : f32 to f64
      %i = arith.index_cast %a8 : index to i64
      %c9 = arith.sitofp %i : i64 to f64
      %e = vector.extract %a9[2] : f32 from vector<4xf32>
      %c10 = arith.extf %e : f32 to f64
      %v = vector.from_elements %c1, %c2, %c3, %c4, %c5, %c6, %a6, %c8, %c9, %c10 : vector<10xf64>
      "cute.store"(%v, %out, %z) : (vector<10xf64>, P<f64>, i32) -> ()
      func.return
    }}
    func.func @f(%out: P<f64>, {parameters}) {{
      {CONSTANTS}
      {launch("k", [("%out", "P<f64>"), *arguments], sizes="%one, %one, %one, %one, %one, %one")}
      func.return
    }}"""
    out = np.zeros(10)
    Compiled(source)(out, True, -5, 1 << 40, -(1 << 100), 0.5, -2.0, 1e300, 1.5, -7, [1, 2, 3, 4])
    np.testing.assert_array_equal(out, [1, -5, 2.0**40, -(2.0**100), 0.5, -2.0, 1e300, 1.5, -7, 3])


def test_several_launches_under_control_flow() -> None:
    source = (
        """
    func.func @add(%p: P<i32>, %v: i32) attributes {cute.kernel} {
      """
        + indices("tx")
        + """
      %a = "cute.load"(%p, %tx) : (P<i32>, i32) -> i32
      %b = arith.addi %a, %v : i32
      "cute.store"(%b, %p, %tx) : (i32, P<i32>, i32) -> ()
      func.return
    }
    func.func @double(%p: P<i32>) attributes {cute.kernel} {
      """
        + indices("tx")
        + """
      %a = "cute.load"(%p, %tx) : (P<i32>, i32) -> i32
      %b = arith.addi %a, %a : i32
      "cute.store"(%b, %p, %tx) : (i32, P<i32>, i32) -> ()
      func.return
    }
    func.func @f(%p: P<i32>, %n: i32, %twice: i1) {
      %thirtytwo = arith.constant 32 : i32
      """
        + CONSTANTS
        + """
      scf.for %i = %zero to %n step %one : i32 {
        """
        + launch("add", [("%p", "P<i32>"), ("%i", "i32")], sizes="%one, %one, %one, %thirtytwo, %one, %one")
        + """
        scf.if %twice {
          """
        + launch("double", [("%p", "P<i32>")], sizes="%one, %one, %one, %thirtytwo, %one, %one").replace(
            "%args", "%more"
        )
        + """
        }
      }
      func.return
    }"""
    )
    compiled = Compiled(source)
    data = np.arange(32, dtype=np.int32)
    want = data.copy()
    compiled(data, 5, True)
    for i in range(5):
        want = (want + i) * 2
    np.testing.assert_array_equal(data, want)
    compiled(data, 3, False)
    np.testing.assert_array_equal(data, want + 3)


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("workers", [1, 4])
def test_shared_memory_is_one_per_block(workers: int) -> None:
    """Each thread adds to a counter in shared memory; the last one publishes static and dynamic memory's sums.

    The address depends on the thread, as far as the compiler sees: lanes that update one word together would all store
    the same (`passes/lane_updates.py`).
    """
    source = (
        """
    func.func @k(%out: P<i32>) attributes {cute.kernel} {
      """
        + indices("tx", "bx", "bdx")
        + """
      %z = arith.constant 0 : i32
      %1 = arith.constant 1 : i32
      %pad = "cute.alloc_smem"() {bytes = 3 : i64, alignment = 1 : i64} : () -> !cute.ptr<i8, "smem", 1>
      %s = "cute.alloc_smem"() {bytes = 4 : i64, alignment = 128 : i64} : () -> !cute.ptr<i32, "smem", 128>
      %d = "cute.dynamic_smem"() : () -> !cute.ptr<i32, "smem", 1024>
      %first = arith.cmpi eq, %tx, %z : i32
      scf.if %first {
        "cute.store"(%z, %s, %z) : (i32, !cute.ptr<i32, "smem", 128>, i32) -> ()
        "cute.store"(%bx, %d, %z) : (i32, !cute.ptr<i32, "smem", 1024>, i32) -> ()
      }
      %own = arith.muli %tx, %z : i32
      %a = "cute.load"(%s, %own) : (!cute.ptr<i32, "smem", 128>, i32) -> i32
      %b = arith.addi %a, %1 : i32
      "cute.store"(%b, %s, %own) : (i32, !cute.ptr<i32, "smem", 128>, i32) -> ()
      %x = "cute.load"(%d, %own) : (!cute.ptr<i32, "smem", 1024>, i32) -> i32
      %y = arith.addi %x, %tx : i32
      "cute.store"(%y, %d, %own) : (i32, !cute.ptr<i32, "smem", 1024>, i32) -> ()
      %at = "cute.ptr_to_int"(%s) : (!cute.ptr<i32, "smem", 128>) -> i64
      %mask = arith.constant 127 : i64
      %low = arith.andi %at, %mask : i64
      %low32 = arith.trunci %low : i64 to i32
      %last = arith.subi %bdx, %1 : i32
      %is_last = arith.cmpi eq, %tx, %last : i32
      scf.if %is_last {
        %v = vector.from_elements %b, %y, %low32 : vector<3xi32>
        %three = arith.constant 3 : i32
        %o = arith.muli %bx, %three : i32
        "cute.store"(%v, %out, %o) : (vector<3xi32>, P<i32>, i32) -> ()
      }
      func.return
    }
    func.func @f(%out: P<i32>, """
        + SIZES
        + """) {
      """
        + CONSTANTS
        + "%sixteen = arith.constant 16 : i32\n"
        + launch("k", [("%out", "P<i32>")], smem="%sixteen")
        + """
      func.return
    }"""
    )
    out = np.zeros((500, 3), np.int32)
    parts.set_workers(workers)
    try:
        Compiled(source)(out, 500, 1, 1, 100, 1, 1)
    finally:
        parts.set_workers()
    np.testing.assert_array_equal(out[:, 0], 100)
    np.testing.assert_array_equal(out[:, 1], np.arange(500) + 99 * 50)
    np.testing.assert_array_equal(out[:, 2], 0)


def divides(name: str = "divsi", kind: str = "i32") -> str:
    """Each thread divides a number by its own element."""
    return (
        f"""
func.func @k(%p: P<{kind}>, %n: {kind}) attributes {{cute.kernel}} {{
"""
        + indices("tx", "bx", "bdx")
        + f"""
  %b = arith.muli %bx, %bdx : i32
  %i = arith.addi %b, %tx : i32
  %d = "cute.load"(%p, %i) : (P<{kind}>, i32) -> {kind}
  %q = arith.{name} %n, %d : {kind} loc("kernel.py":7:13)
  "cute.store"(%q, %p, %i) : ({kind}, P<{kind}>, i32) -> ()
  func.return
}}
func.func @f(%p: P<{kind}>, %n: {kind}, """
        + SIZES
        + """) {
"""
        + CONSTANTS
        + launch("k", [("%p", f"P<{kind}>"), ("%n", kind)])
        + """
  func.return
}"""
    )


DIVIDE = divides()
CHECK = DIVIDE.replace(
    "%q = arith",
    """%zero = arith.constant 0 : i32
  %c = arith.cmpi ne, %d, %zero : i32
  %t = builtin.unrealized_conversion_cast to tuple<>
  "cute.assert_"(%c, %t) {message = "not zero"} : (i1, tuple<>) -> () loc("kernel.py":7:13)
  %q = arith""",
)


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("workers", [1, 4])
def test_a_division_by_zero_is_a_warning(workers: int) -> None:
    compiled = Compiled(DIVIDE)
    parts.set_workers(workers)
    try:
        for _ in range(5):
            data = np.full(64 * 2000, 2, np.int32)
            zeros = [64 * 1500 + 3, 64 * 700 + 9, 64 * 700 + 5, 64 * 1999]
            data[zeros] = 0
            with pytest.warns(DSLWarning) as told:
                compiled(data, 10, 2000, 1, 1, 64, 1, 1)
            (warning,) = told
            assert "by zero (kernel k, block (700, 0, 0), thread (5, 0, 0))" in str(warning.message)
            assert (warning.filename, warning.lineno) == ("kernel.py", 7)
            assert (data[zeros] == -1).all()
            data[zeros] = 5
            assert (data == 5).all()
    finally:
        parts.set_workers()


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_what_a_division_by_zero_gives_in_a_kernel(width: int) -> None:
    """As the code of ptxas does: all bits set, and what `floordivsi` and `ceildivsi` make of that."""
    names = {"divsi": (-1, -1), "remsi": (-1, -1), "divui": (-1, -1), "remui": (-1, -1), "floordivsi": (-1, -2), "ceildivsi": (0, -1), "ceildivui": (0, 0)}  # fmt: skip
    kind = getattr(np, f"int{width}")
    for name, expected in names.items():
        compiled = Compiled(divides(name, f"i{width}"))
        for number, want in zip((7, -7), expected):
            data = np.zeros(1, kind)
            with pytest.warns(DSLWarning, match="by zero"):
                compiled(data, number, 1, 1, 1, 1, 1, 1)
            assert data[0] == want, (name, number)


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("workers", [1, 4])
def test_a_fault_names_kernel_block_and_thread(workers: int) -> None:
    compiled = Compiled(CHECK)
    parts.set_workers(workers)
    try:
        for _ in range(20):
            data = np.full(64 * 2000, 2, np.int32)
            data[[64 * 1500 + 3, 64 * 700 + 9, 64 * 700 + 5, 64 * 1999]] = 0
            with pytest.raises(
                AssertionFault, match=r"kernel\.py:7: .*kernel k, block \(700, 0, 0\), thread \(5, 0, 0\)"
            ):
                compiled(data, 10, 2000, 1, 1, 64, 1, 1)
            assert (data[: 64 * 700] == 5).all()
    finally:
        parts.set_workers()
    data = np.full(64, 2, np.int32)
    compiled(data, 10, 1, 1, 1, 64, 1, 1)
    assert (data == 5).all()


def test_nothing_is_launched_after_a_fault() -> None:
    second = launch("k", [("%q", "P<i32>"), ("%n", "i32")]).replace("%args", "%more")
    source = CHECK.replace("%n: i32, %gx", "%q: P<i32>, %n: i32, %gx").replace("  func.return\n}", "", 0)
    head, tail = source.rsplit("func.return", 1)
    compiled = Compiled(head + second + "func.return" + tail)
    zeros, twos = np.zeros(32, np.int32), np.full(32, 2, np.int32)
    with pytest.raises(AssertionFault):
        compiled(zeros, twos, 10, 1, 1, 1, 32, 1, 1)
    assert (twos == 2).all()


@pytest.mark.usefixtures("in_order")
def test_assertions_carry_their_values() -> None:
    source = (
        """
    func.func @k(%limit: i32) attributes {cute.kernel} {
      """
        + indices("tx")
        + """
      %c = arith.cmpi slt, %tx, %limit : i32
      %h = arith.constant 0.5 : f64
      %w = arith.extsi %limit : i32 to i64
      %t = builtin.unrealized_conversion_cast %tx, %w, %h : i32, i64, f64 to tuple<i32, i64, f64>
      "cute.assert_"(%c, %t) {message = "x = %d of %lld (%.1f)"} : (i1, tuple<i32, i64, f64>) -> () loc("a.py":3:5)
      func.return
    }
    func.func @f(%limit: i32, """
        + SIZES
        + """) {
      """
        + CONSTANTS
        + launch("k", [("%limit", "i32")])
        + """
      func.return
    }"""
    )
    compiled = Compiled(source)
    compiled(64, 3, 1, 1, 64, 1, 1)
    with pytest.raises(
        AssertionFault,
        match=r"a\.py:3: error: assertion failed: x = 20 of 20 \(0\.5\) \(kernel k, block \(0, 0, 0\), thread \(20, 0, 0\)\)",
    ):
        compiled(20, 3, 1, 1, 64, 1, 1)
    assert issubclass(AssertionFault, DSLUserCodeRuntimeError)


def test_host_assertion_without_values() -> None:
    source = """
    func.func @f(%c: i1) {
      %t = builtin.unrealized_conversion_cast to tuple<>
      "cute.assert_"(%c, %t) {message = "100%% sure"} : (i1, tuple<>) -> ()
      func.return
    }"""
    compiled = Compiled(source)
    compiled(True)
    with pytest.raises(AssertionFault, match="assertion failed: 100% sure$"):
        compiled(False)


def test_indices_outside_a_kernel_are_refused() -> None:
    with pytest.raises(DSLNotImplemented, match="cute.thread_idx is only possible in a kernel"):
        Compiled("func.func @f() -> i32 { " + indices("tx") + "func.return %tx : i32 }")


def test_launches_that_do_not_fit_their_kernel_are_refused() -> None:
    body = (
        "func.func @f(%x: f32) {"
        + CONSTANTS
        + launch("k", [("%x", "f32")], sizes="%one, %one, %one, %one, %one, %one")
        + "func.return }"
    )
    with pytest.raises(CompilerDiagnosticError, match=r"kernel k takes \(i32\) but is launched with \(f32\)"):
        Compiled("func.func @k(%n: i32) attributes {cute.kernel} { func.return }" + body)
    with pytest.raises(CompilerDiagnosticError, match="launch of k, which is not a kernel"):
        Compiled(body)
    with pytest.raises(CompilerDiagnosticError, match="kernel g launches kernel k"):
        Compiled(
            "func.func @k(%n: f32) attributes {cute.kernel} { func.return }"
            + body.replace("@f(%x: f32)", "@g(%x: f32) attributes {cute.kernel}")
            + "func.func @f() { func.return }"
        )


@pytest.mark.parametrize("count", [0, -1, 257])
def test_the_number_of_workers_is_checked(count: int) -> None:
    with pytest.raises(DSLRuntimeError, match="expected 1 to 256"):
        parts.set_workers(count)
