"""Pointers: their roots, places and uses, through operations that say which operand's memory a result leads to."""

from __future__ import annotations

import re

from cpu_testing import parse

from kiln.analysis import effects, pointers
from kiln.dialects import cute, nvgpu
from kiln.dialects.nvgpu.wgmma import MatrixDescriptor
from kiln.mlir import find, ir


def program(body: str, arguments: str = "%p: G, %n: i32, %yes: i1") -> ir.Module:
    nvgpu.load_dialect()
    types = {"G": "gmem", "S": "smem", "R": "rmem"}
    text = f"func.func @f({arguments}) {{ {body}\n return }}"
    text = re.sub(r"\b([GSR])\b", lambda m: f'!cute.ptr<f32, "{types[m[1]]}", 4 : i64>', text)
    text = text.replace("MEMREF", '!cute.memref<f32, "gmem", 4 : i64, "(8,?):(?,1)">')
    module = parse(text)
    module.operation.verify()
    return module


def arguments(module: ir.Module) -> list[ir.Value]:
    return list(module.body.operations[0].regions[0].blocks[0].arguments)


def results(module: ir.Module, kind: type) -> list[ir.Value]:
    return [op.results[0] for op in find(module.operation, (kind.OPERATION_NAME,))]  # pyright: ignore


MOVED = """
  %three = arith.constant 3 : i32
  %a = "cute.ptr_add"(%p, %three) : (G, i32) -> G
  %v = "cute.view"(%a, %n, %n) {operandSegmentSizes = array<i32: 1, 2, 0>} : (G, i32, i32) -> MEMREF
  %i = "cute.iter"(%v) : (MEMREF) -> G
  %b = "cute.ptr_add"(%i, %three) : (G, i32) -> G
  %c = "cute.ptr_add"(%i, %n) : (G, i32) -> G
"""


def test_a_root_and_how_far_a_pointer_is_from_it() -> None:
    module = program(MOVED)
    first, moved, unknown = results(module, cute.PtrAdd)
    argument = arguments(module)[0]
    assert pointers.root(unknown) == argument
    assert pointers.place(first) == (argument, 96)
    assert pointers.place(moved) == (argument, 192)
    assert pointers.place(unknown) == (argument, None)
    assert pointers.place(moved).space == "gmem"
    assert pointers.root(moved, pointers.SAME) == moved


def test_leaves_of_a_view_are_no_memory() -> None:
    module = program(MOVED)
    number = arguments(module)[1]
    assert {op.name for op, _ in pointers.uses(number)} == {"cute.view", "cute.ptr_add"}


def test_uses_of_a_pointer_that_a_loop_carries() -> None:
    module = program(
        """
      %zero = arith.constant 0 : i32
      %low = arith.constant 0 : index
      %one = arith.constant 1 : index
      %last = scf.for %k = %low to %one step %one iter_args(%q = %p) -> (G) {
        %x = "cute.load"(%q, %zero) : (G, i32) -> f32
        %next = "cute.ptr_add"(%q, %n) : (G, i32) -> G
        scf.yield %next : G
      }
      "cute.store"(%x0, %last, %zero) : (f32, G, i32) -> ()
    """,
        "%p: G, %n: i32, %x0: f32",
    )
    pointer = arguments(module)[0]
    assert [(op.name, number) for op, number in pointers.uses(pointer)] == [("scf.for", 3)]
    assert {(op.name, number) for op, number in pointers.uses(pointer, carried=True)} == {
        ("cute.load", 0), ("cute.store", 1)
    }  # fmt: skip


def test_a_pointer_that_loops_and_branches_pass_on_unchanged() -> None:
    module = program("""
      %low = arith.constant 0 : index
      %one = arith.constant 1 : index
      %same, %other = scf.for %k = %low to %one step %one iter_args(%q = %p, %r = %p) -> (G, G) {
        %v = "cute.view"(%q, %n, %n) {operandSegmentSizes = array<i32: 1, 2, 0>} : (G, i32, i32) -> MEMREF
        %i = "cute.iter"(%v) : (MEMREF) -> G
        %either = scf.if %yes -> G { scf.yield %i : G } else { scf.yield %q : G }
        %next = "cute.ptr_add"(%r, %n) : (G, i32) -> G
        scf.yield %either, %next : G, G
      }
    """)
    pointer = arguments(module)[0]
    (loop,) = find(module.operation, ("scf.for",))
    _, q, r = loop.regions[0].blocks[0].arguments
    assert pointers.unchanged_from(q) == pointers.unchanged_from(loop.results[0]) == pointer
    assert pointers.unchanged_from(r) == r


def test_a_descriptor_leads_to_memory_but_points_nowhere() -> None:
    module = program(
        """
      %d = "cute_nvgpu.matrix_descriptor"(%s) {leading = 16 : i32, stride = 16 : i32, swizzle = "none"} : (S) -> i64
    """,
        "%s: S",
    )
    pointer = arguments(module)[0]
    (descriptor,) = results(module, MatrixDescriptor)
    assert pointers.root(descriptor) == descriptor
    assert pointers.root(descriptor, pointers.ANY) == pointer


def test_addresses_in_a_function_that_is_expanded_in_part() -> None:
    module = program(
        """
      %s = "llvm.mlir.undef"() : () -> !llvm.struct<(i64, i32)>
      %t = "llvm.insertvalue"(%s, %address) {position = array<i64: 0>} : (!llvm.struct<(i64, i32)>, i64)
        -> !llvm.struct<(i64, i32)>
      %u = "llvm.insertvalue"(%t, %n) {position = array<i64: 1>} : (!llvm.struct<(i64, i32)>, i32)
        -> !llvm.struct<(i64, i32)>
      %i = "llvm.extractvalue"(%u) {position = array<i64: 0>} : (!llvm.struct<(i64, i32)>) -> i64
      %q = "cute.int_to_ptr"(%i) : (i64) -> G
      %last = scf.if %yes -> G { scf.yield %q : G } else { scf.yield %p : G }
      %x = "cute.load"(%last, %n) : (G, i32) -> f32
    """,
        "%address: i64, %n: i32, %p: G, %yes: i1",
    )
    address, _, pointer, _ = arguments(module)
    (load,) = find(module.operation, ("cute.load",))
    assert set(pointers.roots(load.operands[0], pointers.address_sources)) == {address, pointer}
    assert pointers.address_sources(load.results[0]) == []


def test_results_that_threads_of_a_group_share() -> None:
    same = [
        *map(effects.is_same_in, ["cute.lane_idx", "cute.warp_idx", "cute.block_idx", "cute.ptr_add"], ["warp"] * 4)
    ]
    assert same == [False, True, True, True]
    assert not effects.is_same_in("cute.warp_idx", "cta")
    assert effects.is_same_in("cute.block_idx", "cta")
    assert not effects.is_same_in("cute.load", "warp")
    assert not effects.is_same_in("arith.addi", "warp")
