"""Functions made of blocks: straight-line code with early exits, as one would write it in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mlir import context, ir
from ...targets.lowering.builder import Builder, function, int_type, ptr_type

if TYPE_CHECKING:
    from collections.abc import Sequence


class Body(Builder):
    """A new function of a module. Operations go to the end of the current block, at first the entry."""

    def __init__(self, module: ir.Module, name: str, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
        self._region = function(module, name, inputs, results).regions[0]
        entry = self._region.blocks[0]
        super().__init__(ir.InsertionPoint(entry), ir.Location.unknown(context()))
        self.arguments = list(entry.arguments)

    # blocks

    def block(self, *types: ir.Type) -> ir.Block:
        """A new block, with arguments of these types."""
        return self._region.blocks.append(*types, arg_locs=[self.location] * len(types))

    def at(self, block: ir.Block) -> list[ir.Value]:
        """Go on in a block; its arguments."""
        self.point = ir.InsertionPoint(block)
        return list(block.arguments)

    def goto(self, block: ir.Block, *values: ir.Value) -> None:
        """Leave the current block."""
        ir.Operation.create("cf.br", (), values, None, [block], 0, self.location, self.point)

    def branch(self, condition: ir.Value, yes: ir.Block, no: ir.Block, values: Sequence[ir.Value] = ()) -> None:
        """Leave the current block; `values` go to `yes`."""
        sizes = ir.DenseI32ArrayAttr.get([1, len(values), 0], context())
        ir.Operation.create(
            "cf.cond_br",
            (),
            (condition, *values),
            {"operandSegmentSizes": sizes},
            [yes, no],
            0,
            self.location,
            self.point,
        )

    def require(self, condition: ir.Value, otherwise: ir.Block) -> None:
        """Go on only if a condition holds."""
        more = self.block()
        self.branch(condition, more, otherwise)
        self.at(more)

    def when(self, condition: ir.Value, block: ir.Block, *values: ir.Value) -> None:
        """Leave for another block if a condition holds, else go on."""
        more = self.block()
        self.branch(condition, block, more, values)
        self.at(more)

    def give(self, *values: ir.Value) -> None:
        """Return."""
        self.op("func.return", (), values)

    # words and addresses

    def word(self, base: ir.Value, number: ir.Value | int = 0) -> ir.Value:
        """The word `number` words after an address."""
        return self.load(int_type(64), self.gep(base, int_type(64), number), 8)

    def pointer(self, base: ir.Value, number: ir.Value | int = 0) -> ir.Value:
        """The same as an address."""
        return self.load(ptr_type(), self.gep(base, int_type(64), number), 8)

    def as_pointer(self, value: ir.Value) -> ir.Value:
        """A word as an address."""
        return self.value("llvm.inttoptr", ptr_type(), (value,))

    def as_word(self, value: ir.Value) -> ir.Value:
        """An address as a word."""
        return self.value("llvm.ptrtoint", int_type(64), (value,))

    def is_(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Whether two addresses are the same."""
        return self.compare("eq", self.as_word(a), self.as_word(b))

    def is_null(self, a: ir.Value) -> ir.Value:
        """Whether an address is null."""
        return self.compare("eq", self.as_word(a), self.i64(0))

    # conditions

    def both(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """And."""
        return self.binary("andi", a, b)

    def either(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Or."""
        return self.binary("ori", a, b)

    def negation(self, a: ir.Value) -> ir.Value:
        """Not."""
        return self.binary("xori", a, self.const(int_type(1), 1))

    def has_bit(self, value: ir.Value, bit: int) -> ir.Value:
        """Whether a bit is set in a word."""
        return self.compare("ne", self.binary("andi", value, self.i64(bit)), self.i64(0))

    def equals(self, value: ir.Value, number: int) -> ir.Value:
        """Whether an integer is a number."""
        return self.compare("eq", value, self.const(value.type, number))

    def wide(self, value: ir.Value) -> ir.Value:
        """An unsigned 32-bit integer as a word."""
        return self.value("arith.extui", int_type(64), (value,))

    def result(self, callee: str, type_: ir.Type, *operands: ir.Value) -> ir.Value:
        """What a function with one result returns."""
        return self.call(callee, [type_], operands).results[0]

    def run_code(self, entry: ir.Value, slots: ir.Value, reports: ir.Value, done: ir.Block, failed: ir.Block) -> None:
        """Run compiled code while other threads run Python. A report of it is given to `reports`, which may raise: then to `failed`."""
        ptr, reported = ptr_type(), self.block()
        thread = self.result("PyEval_SaveThread", ptr)
        report = self.call_pointer(entry, [slots], ptr)
        self.call("PyEval_RestoreThread", [], [thread])
        self.branch(self.is_null(report), done, reported)
        self.at(reported)
        number = self.result("PyLong_FromUnsignedLongLong", ptr, self.as_word(report))
        self.require(self.negation(self.is_null(number)), failed)
        returned = self.result("kiln_leave", ptr, reports, number, self.null(), self.i64(0), self.null())
        self.call("Py_DecRef", [], [number])
        self.require(self.negation(self.is_null(returned)), failed)
        self.call("Py_DecRef", [], [returned])
        self.goto(done)
