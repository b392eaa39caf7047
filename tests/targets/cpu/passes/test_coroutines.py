"""Functions with suspend points, run step by step against what they compute without them."""

from __future__ import annotations

import ctypes

import pytest
from ir_testing import after, check

from kiln.mlir import context, dialect_module, ir, passmanager
from kiln.targets.cpu.passes import coroutines
from kiln.targets.host import jit
from kiln.targets.host.runtime import SOFT_FLOAT
from kiln.targets.lowering.llvm_text import fix_float_literals

_PASSES = (
    "builtin.module(convert-scf-to-cf,convert-vector-to-llvm,convert-arith-to-llvm,convert-func-to-llvm,"
    "convert-cf-to-llvm,reconcile-unrealized-casts)"
)
_HEADER = 64


def _compile(body: str, suspends: bool):
    source = "func.func private @kiln_suspend()\nfunc.func @k(%frame: !llvm.ptr {llvm.noalias}, %out: !llvm.ptr, %n: i32) -> i32 {\n"
    source += body + "\n  %done = arith.constant 0 : i32\n  return %done : i32\n}\n"
    if not suspends:
        source = source.replace("func.call @kiln_suspend() : () -> ()", "")
    with context(), ir.Location.unknown():
        module = ir.Module.parse(source)
        passmanager.PassManager.parse(_PASSES).run(module.operation)
        frame = None
        for op in module.body.operations:
            if op.operation.name == "llvm.func" and op.operation.attributes["sym_name"].value == "k" and suspends:
                assert coroutines.has_suspends(op.operation)
                frame = coroutines.make_resumable(op.operation, 0, _HEADER)
        module.operation.verify()
        text = fix_float_literals(dialect_module("llvm").translate_module_to_llvmir(module.operation))
    library = jit.Library(jit.emit_object(jit.optimize(text, 2), 2), ("k",), parts=[SOFT_FLOAT])
    native = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(library.addresses["k"])
    return native, frame, library


def _steps(body: str, n: int) -> tuple[int, list[int]]:
    """(number of suspensions, what was written)."""
    native, frame, _library = _compile(body, True)
    memory = ctypes.create_string_buffer(frame.size + 64)
    address = -(-ctypes.addressof(memory) // 64) * 64
    out = (ctypes.c_int32 * 8)()
    count = 0
    while native(address, ctypes.addressof(out), n):
        count += 1
        assert count < 1000
    return count, list(out)


def _straight(body: str, n: int) -> list[int]:
    native, _, _library = _compile(body, False)
    out = (ctypes.c_int32 * 8)()
    native(None, ctypes.addressof(out), n)
    return list(out)


LOOP = """
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %twice = arith.addi %n, %n : i32
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %twice) -> (i32) : i32 {
    %x = arith.addi %acc, %i : i32
    %odd = arith.andi %i, %c1 : i32
    %is_odd = arith.cmpi eq, %odd, %c1 : i32
    scf.if %is_odd { func.call @kiln_suspend() : () -> () }
    %y = arith.addi %x, %c1 : i32
    scf.yield %y : i32
  }
  func.call @kiln_suspend() : () -> ()
  %z = arith.addi %r, %twice : i32
  llvm.store %z, %out : i32, !llvm.ptr
"""

STRAIGHT = """
  %a = arith.addi %n, %n : i32
  func.call @kiln_suspend() : () -> ()
  %b = arith.muli %a, %n : i32
  func.call @kiln_suspend() : () -> ()
  func.call @kiln_suspend() : () -> ()
  %c = arith.subi %b, %a : i32
  llvm.store %c, %out : i32, !llvm.ptr
"""

MEMORY = """
  %four = arith.constant 4 : i64
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %array = llvm.alloca %four x i32 : (i64) -> !llvm.ptr
  %v = vector.broadcast %n : i32 to vector<4xi32>
  llvm.store %v, %array {alignment = 4 : i64} : vector<4xi32>, !llvm.ptr
  func.call @kiln_suspend() : () -> ()
  %third = llvm.getelementptr %array[2] : (!llvm.ptr) -> !llvm.ptr, i32
  %x = llvm.load %third : !llvm.ptr -> i32
  %w = arith.addi %v, %v : vector<4xi32>
  func.call @kiln_suspend() : () -> ()
  %e = vector.extract %w[3] : i32 from vector<4xi32>
  %sum = arith.addi %x, %e : i32
  llvm.store %sum, %out : i32, !llvm.ptr
"""

BRANCHES = """
  %c0 = arith.constant 0 : i32
  %c3 = arith.constant 3 : i32
  %small = arith.cmpi slt, %n, %c3 : i32
  %r = scf.if %small -> (i32) {
    %a = arith.addi %n, %c3 : i32
    func.call @kiln_suspend() : () -> ()
    scf.yield %a : i32
  } else {
    scf.yield %n : i32
  }
  llvm.store %r, %out : i32, !llvm.ptr
"""


@pytest.mark.parametrize("body", [LOOP, STRAIGHT, MEMORY, BRANCHES], ids=["loop", "straight", "memory", "branches"])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_result_is_that_of_the_function_without_suspensions(body: str, n: int) -> None:
    assert _steps(body, n)[1] == _straight(body, n)


def test_every_suspension_is_taken() -> None:
    assert _steps(LOOP, 7)[0] == 4  # i = 1, 3, 5, and after the loop
    assert _steps(STRAIGHT, 7)[0] == 3
    assert [_steps(BRANCHES, n)[0] for n in (1, 5)] == [1, 0]


def test_only_what_crosses_is_kept() -> None:
    _, frame, _ = _compile(STRAIGHT, True)
    assert (frame.spilled, frame.suspends) == (2, 3)
    _, frame, _ = _compile(MEMORY, True)
    assert frame.size >= _HEADER + 16 + 16


VECTORS = """
  %one = arith.constant 1 : i64
  %byte = llvm.alloca %one x i8 : (i64) -> !llvm.ptr
  %four = llvm.alloca %one x vector<4xf32> : (i64) -> !llvm.ptr
  %eight = llvm.alloca %one x vector<8xi32> : (i64) -> !llvm.ptr
  func.call @kiln_suspend() : () -> ()
  %a = llvm.ptrtoint %four : !llvm.ptr to i32
  %b = llvm.ptrtoint %eight : !llvm.ptr to i32
  %mask = arith.constant 31 : i32
  %low = arith.andi %b, %mask : i32
  llvm.store %a, %out : i32, !llvm.ptr
  %second = llvm.getelementptr %out[1] : (!llvm.ptr) -> !llvm.ptr, i32
  llvm.store %low, %second : i32, !llvm.ptr
"""


def test_vectors_in_a_frame_are_aligned_as_a_plain_access_takes_them_to_be() -> None:
    count, (four, eight, *_) = _steps(VECTORS, 0)
    assert count == 1
    assert four % 16 == 0
    assert eight == 0


# --- as IR -----------------------------------------------------------------------------------------------------------


def resumable(body: str) -> str:
    """An `llvm.func` with a frame, after the pass."""
    source = f"""
    llvm.func @kiln_suspend()
    llvm.func @use(i32)
    llvm.func @make() -> i32
    llvm.func @k(%frame: !llvm.ptr, %n: i32) -> i32 {{
      %zero = llvm.mlir.constant(0 : i32) : i32
      {body}
      llvm.return %zero : i32
    }}"""

    def run(module: ir.Module) -> None:
        kernel = next(op.operation for op in module.body.operations if op.operation.attributes["sym_name"].value == "k")
        coroutines.make_resumable(kernel, 0, _HEADER)

    return after(source, run)


def test_a_suspend_point_returns_and_is_entered_again() -> None:
    text = resumable("llvm.call @kiln_suspend() : () -> ()\nllvm.call @use(%n) : (i32) -> ()")
    check(
        text,
        """
        llvm.func @k(%frame: !llvm.ptr, %n: i32) -> i32
        %resume = llvm.load %p {alignment = 4 : i64} : !llvm.ptr -> i32
        llvm.switch %resume : i32, ^
        1: ^
        not: llvm.call @kiln_suspend
        llvm.store %one, %place {alignment = 4 : i64} : i32, !llvm.ptr
        llvm.return %status : i32
        llvm.call @use(%n)
        llvm.return
        """,
    )


def test_only_what_is_needed_later_and_cannot_be_made_again_lies_in_the_frame() -> None:
    text = resumable(
        """
        %kept = llvm.call @make() : () -> i32
        %dropped = llvm.call @make() : () -> i32
        %seven = llvm.mlir.constant(7 : i32) : i32
        llvm.call @use(%dropped) : (i32) -> ()
        llvm.call @kiln_suspend() : () -> ()
        llvm.call @use(%kept) : (i32) -> ()
        llvm.call @use(%seven) : (i32) -> ()
        llvm.call @use(%n) : (i32) -> ()
        """
    )
    check(
        text,
        """
        llvm.func @k(%frame: !llvm.ptr, %n: i32) -> i32
        %kept = llvm.call @make
        %slot = llvm.getelementptr %frame[64]
        llvm.store %kept, %slot
        %dropped = llvm.call @make
        not: llvm.store %dropped
        llvm.call @use(%dropped)
        llvm.return
        %again = llvm.getelementptr %frame[64]
        %loaded = llvm.load %again
        llvm.call @use(%loaded)
        llvm.call @use(%seven)
        llvm.call @use(%n)
        """,
    )
    assert text.count("llvm.load") == 2  # where to go on, and `kept`


def test_a_function_without_suspend_points_says_so() -> None:
    assert "llvm.switch" in resumable("llvm.call @kiln_suspend() : () -> ()")
    with context(), ir.Location.unknown():
        module = ir.Module.parse("llvm.func @k() { llvm.return }")
        assert not coroutines.has_suspends(module.body.operations[0].operation)
