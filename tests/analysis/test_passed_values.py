"""Values through branches and loops: what each may have been before, and what each may become."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cpu_testing import parse

from kiln.analysis import values
from kiln.mlir import find, ir, terminator

PROGRAM = """
func.func @f(%low: index, %high: index, %step: index, %a: i32, %b: i32, %yes: i1) -> (i32, i32, i32, i32) {
  %for:2 = scf.for %n = %low to %high step %step iter_args(%x = %a, %y = %b) -> (i32, i32) {
    %next = arith.addi %x, %y : i32
    scf.yield %y, %next : i32, i32
  }
  %while:2 = scf.while (%p = %a, %q = %b) : (i32, i32) -> (i32, i32) {
    %more = arith.cmpi slt, %p, %q : i32
    scf.condition(%more) %q, %p : i32, i32
  } do {
  ^bb0(%r: i32, %s: i32):
    %doubled = arith.addi %r, %r : i32
    scf.yield %s, %doubled : i32, i32
  }
  %if = scf.if %yes -> i32 {
    scf.yield %for#0 : i32
  } else {
    scf.yield %while#1 : i32
  }
  %switch = scf.index_switch %low -> i32
  case 2 { scf.yield %a : i32 }
  default { scf.yield %if : i32 }
  return %for#1, %while#0, %if, %switch : i32, i32, i32, i32
}
"""


@pytest.fixture
def function() -> Iterator[ir.Operation]:
    module = parse(PROGRAM)
    module.operation.verify()
    (op,) = module.body.operations
    yield op.operation


def test_sources_are_what_stands_in_the_program(function: ir.Operation) -> None:
    a, b = list(function.regions[0].blocks[0].arguments)[3:5]
    (loop,) = find(function, ("scf.for",))
    _, x, y = loop.regions[0].blocks[0].arguments
    after = terminator(loop.regions[0].blocks[0]).operands[1]
    assert values.sources(x) == [a, y]
    assert values.sources(y) == [b, after]
    assert values.sources(loop.results[0]) == [a, y]
    (loop,) = find(function, ("scf.while",))
    p, q = loop.regions[0].blocks[0].arguments
    r, s = loop.regions[1].blocks[0].arguments
    doubled = terminator(loop.regions[1].blocks[0]).operands[1]
    assert values.sources(p) == [a, s]
    assert values.sources(q) == [b, doubled]
    assert values.sources(r) == values.sources(loop.results[0]) == [q]
    assert values.sources(s) == values.sources(loop.results[1]) == [p]


def test_a_counter_and_an_argument_have_no_sources(function: ir.Operation) -> None:
    (loop,) = find(function, ("scf.for",))
    assert values.sources(loop.regions[0].blocks[0].arguments[0]) == []
    assert values.sources(function.regions[0].blocks[0].arguments[0]) == []
    assert values.sources(loop.regions[0].blocks[0].operations[0].results[0]) == []


def test_targets_are_the_other_direction_of_sources(function: ir.Operation) -> None:
    every: list[ir.Value] = []
    forwards: set[tuple[ir.Value, ir.Value]] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        every.extend(op.results)
        for region in op.regions:
            for block in region.blocks:
                every.extend(block.arguments)
        forwards.update((value, target) for n, value in enumerate(op.operands) for target in values.targets(op, n))
        return ir.WalkResult.ADVANCE

    function.walk(visit, ir.WalkOrder.PRE_ORDER)
    assert forwards == {(source, value) for value in every for source in values.sources(value)}
    assert len(forwards) == 20
