"""Guards taken out of the loop over threads change nothing but the speed."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_testing import CONSTANTS, SIZES, Compiled, indices, launch
from ir_testing import after, check

from kiln.mlir import ir
from kiln.targets.cpu.passes.loop_versioning import Versions, guarded_versions


def guarded(condition: str, index: str = "%i") -> Compiled:
    """A kernel that writes 1 where the condition (`%c` from %x, %y, %z, %n, %m, %l) holds."""
    return Compiled(f"""
    func.func @k(%out: P<i32>, %n: i32, %m: i32, %l: i64) attributes {{cute.kernel}} {{
      {indices("tx", "ty", "tz", "bx", "by", "bz", "bdx", "bdy", "bdz", "gdx")}
      %one = arith.constant 1 : i32
      %b0 = arith.muli %bx, %bdx : i32
      %x = arith.addi %b0, %tx : i32
      %b1 = arith.muli %by, %bdy : i32
      %y = arith.addi %b1, %ty : i32
      %w = arith.muli %gdx, %bdx : i32
      %r = arith.muli %y, %w : i32
      %xy = arith.addi %r, %x : i32
      {condition}
      scf.if %c {{
        %v = "cute.load"(%out, %xy) : (P<i32>, i32) -> i32
        %u = arith.addi %v, %one : i32
        "cute.store"(%u, %out, %xy) : (i32, P<i32>, i32) -> ()
      }}
      func.return
    }}
    func.func @f(%out: P<i32>, %n: i32, %m: i32, %l: i64, {SIZES}) {{
      {CONSTANTS}
      {launch("k", [("%out", "P<i32>"), ("%n", "i32"), ("%m", "i32"), ("%l", "i64")])}
      func.return
    }}""")


def run(compiled: Compiled, n: int, m: int, l: int, grid: tuple[int, int], block: tuple[int, int]) -> np.ndarray:
    out = np.zeros((grid[1] * block[1], grid[0] * block[0]), np.int32)
    compiled(out, n, m, l, *grid, 1, *block, 1)
    return out


WRAP = 1 << 32


def wrapped(value: np.ndarray) -> np.ndarray:
    return (value + (1 << 31)) % WRAP - (1 << 31)


CONDITIONS = {
    "x < n": ("%c = arith.cmpi slt, %x, %n : i32", lambda x, y, n, m, l: x < n),
    "x <= n": ("%c = arith.cmpi sle, %x, %n : i32", lambda x, y, n, m, l: x <= n),
    "n > x (unsigned)": ("%c = arith.cmpi ugt, %n, %x : i32", lambda x, y, n, m, l: x < n % WRAP),
    "x >= n": ("%c = arith.cmpi sge, %x, %n : i32", lambda x, y, n, m, l: x >= n),
    "both": (
        "%a = arith.cmpi slt, %x, %n : i32\n%b = arith.cmpi slt, %y, %m : i32\n%c = arith.andi %a, %b : i1",
        lambda x, y, n, m, l: (x < n) & (y < m),
    ),
    "either": (
        "%a = arith.cmpi slt, %x, %n : i32\n%b = arith.cmpi slt, %y, %m : i32\n%c = arith.ori %a, %b : i1",
        lambda x, y, n, m, l: (x < n) | (y < m),
    ),
    "x != n": ("%c = arith.cmpi ne, %x, %n : i32", lambda x, y, n, m, l: x != n),
    "x == n": ("%c = arith.cmpi eq, %x, %n : i32", lambda x, y, n, m, l: x == n),
    "uniform": ("%c = arith.cmpi slt, %bx, %n : i32", None),
    "wide": (
        "%x6 = arith.extsi %x : i32 to i64\n%y6 = arith.extsi %y : i32 to i64\n%p = arith.muli %x6, %y6 : i64\n"
        "%c = arith.cmpi slt, %p, %l : i64",
        lambda x, y, n, m, l: x * y < l,
    ),
    "x * x": ("%p = arith.muli %x, %x : i32\n%c = arith.cmpi sgt, %p, %n : i32", lambda x, y, n, m, l: x * x > n),
    "even": (
        "%p = arith.andi %x, %one : i32\n%z0 = arith.constant 0 : i32\n%c = arith.cmpi eq, %p, %z0 : i32",
        lambda x, y, n, m, l: x % 2 == 0,
    ),
    "wraps": (
        "%p = arith.muli %x, %m : i32\n%c = arith.cmpi sge, %p, %n : i32",
        lambda x, y, n, m, l: wrapped(x * m) >= n,
    ),
    "from the end": (
        "%p = arith.subi %n, %x : i32\n%z0 = arith.constant 0 : i32\n%c = arith.cmpi sgt, %p, %z0 : i32",
        lambda x, y, n, m, l: n - x > 0,
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_same_threads_pass(name: str) -> None:
    text, reference = CONDITIONS[name]
    compiled = guarded(text)
    for grid, block in (((4, 1), (64, 1)), ((3, 2), (16, 8)), ((1, 1), (1, 1))):
        width, height = grid[0] * block[0], grid[1] * block[1]
        x, y = np.meshgrid(np.arange(width, dtype=np.int64), np.arange(height, dtype=np.int64))
        for n, m in (
            (0, 0),
            (1, 1),
            (63, 5),
            (64, 8),
            (100, 1 << 30),
            (width, height),
            (-1, 3),
            (1 << 31 - 1, 1 << 28),
        ):
            n, m = n if n < 1 << 31 else n - WRAP, m
            got = run(compiled, n, m, n * 3, grid, block)
            want = np.broadcast_to(x // block[0] < n, x.shape) if reference is None else reference(x, y, n, m, n * 3)
            np.testing.assert_array_equal(got, want.astype(np.int32), str((grid, block, n, m)))


@pytest.mark.parametrize("name", ["x < n", "both", "wide", "uniform", "from the end"])
def test_bounds_are_taken_out(name: str) -> None:
    assert "k.guard" in guarded(CONDITIONS[name][0]).executable.artifacts["mlir_lowered"]


@pytest.mark.parametrize("name", ["either", "x != n", "x * x", "even"])
def test_what_corners_do_not_decide_stays(name: str) -> None:
    assert "k.guard" not in guarded(CONDITIONS[name][0]).executable.artifacts["mlir_lowered"]


def test_the_loop_over_threads_is_vectorized() -> None:
    assert "vector.body" in guarded(CONDITIONS["x < n"][0]).executable.artifacts["llvm"]


# --- as IR -----------------------------------------------------------------------------------------------------------


def versioned(condition: str, rest: str = "}") -> str | None:
    """The module after the pass, or None if the kernel has no guard of the kind; thread indices are %x, %y, %z."""
    source = f"""
    func.func @k(%n: i32, %m: i32, %flag: i1, %x: i32, %y: i32, %z: i32, %base: i32) {{
      {condition}
      scf.if %c {{ func.call @work(%x) : (i32) -> ()
      {rest}
      func.return
    }}
    func.func private @work(i32)
    """
    found: list[Versions | None] = []

    def run(module: ir.Module) -> None:
        kernel = next(op.operation for op in module.body.operations if op.operation.attributes["sym_name"].value == "k")
        found.append(guarded_versions(module, kernel, "k", 3))

    text = after(source, run)
    return None if found[0] is None else text


def test_a_guard_becomes_a_function_and_the_kernel_a_version_without_it() -> None:
    text = versioned("%i = arith.addi %base, %x : i32\n%c = arith.cmpi slt, %i, %n : i32")
    assert text is not None
    check(
        text,
        """
        func.func @k(
        %c = arith.cmpi slt
        scf.if %c {
        func.func private @k.guard(%n: i32, %m: i32, %flag: i1, %x: i32, %y: i32, %z: i32, %base: i32) -> i1
        %t = arith.extsi %x : i32 to i64
        %s = arith.addi
        %fits = arith.cmpi slt, %s
        %inside = arith.cmpi slt, %s, %limit : i64
        %holds = arith.andi %all, %inside
        return %holds
        func.func @k.inside(
        %true = arith.constant true
        scf.if %true {
        """,
    )


@pytest.mark.parametrize(
    ("condition", "rest"),
    [
        ("%c = arith.cmpi ne, %x, %n : i32", "}"),  # its ends do not decide it
        ("%s = arith.muli %x, %x : i32\n%c = arith.cmpi slt, %s, %n : i32", "}"),  # not linear
        ("%a = arith.cmpi slt, %x, %n : i32\n%c = arith.ori %a, %flag : i1", "}"),
        ("%c = arith.cmpi slt, %x, %n : i32", "} else { func.call @work(%y) : (i32) -> () }"),
    ],
    ids=["not equal", "square", "either", "else"],
)
def test_other_branches_make_no_versions(condition: str, rest: str) -> None:
    assert versioned(condition, rest) is None
