"""Tables of handlers, and the walk that applies one."""

from __future__ import annotations

from typing import Any

import pytest
from ir_testing import after, check

from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.dialects import cute
from kiln.mlir import ir
from kiln.targets.lowering import expansion
from kiln.targets.lowering.builder import ptr_type
from kiln.targets.lowering.expansion import KEEP, Handlers, begin, combined, expand_operations, find_work
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
    def _index(x, op, b):
        return b.i32(7)

    check(expanded(KERNEL, table), "%seven = arith.constant 7\nnot: cute.thread_idx\nreturn %seven")


def test_keep_leaves_an_operation():
    table = Handlers()
    table.expands("cute.thread_idx")(lambda x, op, b: KEEP)
    assert "cute.thread_idx" in expanded(KERNEL, table)


def test_an_operation_that_no_table_has_is_refused():
    with pytest.raises(DSLNotImplemented, match=r"this test does not implement cute\.thread_idx"):
        expanded(KERNEL, Handlers())


def test_types_are_those_of_the_dialect_and_only_for_who_asks():
    seen: list[Any] = []
    table = Handlers()

    @table.expands(cute.PtrToInt, types=True)
    def _address(x, op, b):
        seen.append((str(op.types.pointer), str(op.result.type), str(op.pointer.type)))
        return b.i64(0)

    @table.expands(cute.ThreadIdx)
    def _index(x, op, b):
        seen.append((op.types, op.dim))
        return b.i32(0)

    source = """
    func.func @f(%c: i1, %p: P<f32>, %q: P<f32>) {
      %i = "cute.thread_idx"() {dim = 0 : i32} : () -> i32
      %r = arith.select %c, %p, %q : P<f32>
      %a = "cute.ptr_to_int"(%r) : (P<f32>) -> i64
      func.return
    }"""
    with pytest.raises(Exception, match="match|type"):  # its arguments are retyped, its type is the target's business
        expanded(source, table)
    assert seen[0] == (None, 0)
    assert seen[1] == ('!cute.ptr<f32, "gmem", 1 : i64>', "i64", "!llvm.ptr")


def test_two_handlers_of_an_operation_are_a_mistake():
    one, other = Handlers(a=print), Handlers(a=repr, b=repr)
    with pytest.raises(AssertionError, match="two handlers of a"):
        combined(one, other)
    assert combined(one, Handlers(b=repr)) == {"a": print, "b": repr}
