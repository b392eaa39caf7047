"""Tables of handlers, and the walk that applies one."""

from __future__ import annotations

from typing import Any

import pytest
from ir_testing import after, check

from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.mlir import ir
from kiln.targets.lowering import expansion
from kiln.targets.lowering.builder import ptr_type
from kiln.targets.lowering.expansion import Handlers, begin, combined, expand_operations, find_work
from kiln.targets.lowering.memory import lowered_type


class Expander(expansion.Expander):
    target = "this test"

    def __init__(self, func: ir.Operation, handlers: Handlers) -> None:
        self.entry, self.handlers = func.regions[0].blocks[0], handlers

    def handler(self, op: ir.Operation, name: str) -> Any:
        return self.handlers.get(name)

    def lowered(self, type_: ir.Type) -> ir.Type:
        return lowered_type(type_, lambda _: ptr_type())


def expanded(source: str, handlers: Handlers) -> str:
    def run(module: ir.Module) -> None:
        func = module.body.operations[0].operation
        x = Expander(func, handlers)
        expand_operations(x, begin(x, find_work(x, func)))

    return after(source, run)


KERNEL = (
    'func.func @f() -> i32 {{ %i = "cute.thread_idx"() {{dim = 0 : i32}} : () -> i32\n func.return %i : i32 }}'.format()
)


def test_results_are_replaced_in_order():
    table = Handlers()

    @table.expands("cute.thread_idx", "cute.block_idx")
    def _index(x, op, _o, _r, b):
        return [b.i32(7)]

    check(expanded(KERNEL, table), "%seven = arith.constant 7\nnot: cute.thread_idx\nreturn %seven")


def test_none_leaves_an_operation():
    table = Handlers()
    table.expands("cute.thread_idx")(lambda x, op, _o, _r, b: None)
    assert "cute.thread_idx" in expanded(KERNEL, table)


def test_an_operation_that_no_table_has_is_refused():
    with pytest.raises(DSLNotImplemented, match=r"this test does not implement cute\.thread_idx"):
        expanded(KERNEL, Handlers())


def test_types_are_those_of_the_dialect_and_only_for_who_asks():
    seen: list[Any] = []
    table = Handlers()

    @table.expands("cute.ptr_to_int")
    def _address(x, op, operands, results, b):
        seen.append(([str(t) for t in operands], [str(t) for t in results], str(op.operands[0].type)))
        return [b.i64(0)]

    @table.expands("cute.thread_idx")
    def _index(x, op, _operands, _results, b):
        seen.append((_operands, _results))
        return [b.i32(0)]

    source = """
    func.func @f(%c: i1, %p: P<f32>, %q: P<f32>) {
      %i = "cute.thread_idx"() {dim = 0 : i32} : () -> i32
      %r = arith.select %c, %p, %q : P<f32>
      %a = "cute.ptr_to_int"(%r) : (P<f32>) -> i64
      func.return
    }"""
    with pytest.raises(Exception, match="match|type"):  # its arguments are retyped, its type is the target's business
        expanded(source, table)
    assert seen[0] == ([], [])
    assert seen[1] == (['!cute.ptr<f32, "gmem", 1 : i64>'], ["i64"], "!llvm.ptr")


def test_two_handlers_of_an_operation_are_a_mistake():
    one, other = Handlers(a=print), Handlers(a=repr, b=repr)
    with pytest.raises(AssertionError, match="two handlers of a"):
        combined(one, other)
    assert combined(one, Handlers(b=repr)) == {"a": print, "b": repr}
