"""Long loops poll now and then whether they have to stop, so that Ctrl-C ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...analysis import values
from ...mlir import ir
from ..lowering.builder import Builder, constant_values, int_type
from ..lowering.expansion import KEEP, Handlers
from .call_context import offset
from .reports import stop

if TYPE_CHECKING:
    from .expand import Expander, Expansion

HANDLERS = Handlers()

LOOP_CHUNK = 1 << 14
"""Iterations of a plain loop between polls."""


def stopped(expansion: Expansion, b: Builder, ctx: ir.Value) -> ir.Value:
    """Return bits (i32) that say why loops have to stop, or that steps are counted; the load is volatile."""

    def volatile(address: ir.Value) -> ir.Value:
        return b.value("llvm.load", int_type(32), (address,), {"volatile_": ir.UnitAttr.get()})

    expansion.declare_variable(stop.symbol, int_type(32))
    return b.binary("ori", volatile(b.address_of(stop.symbol)), volatile(b.byte_gep(ctx, offset("stop"))))


@HANDLERS.expands("scf.while")
def _open_loop(x: Expander, op: ir.Operation, _b: Builder) -> object:
    """Let a loop without a trip count poll in each iteration."""
    x.stop_if_asked(op, Builder(ir.InsertionPoint.at_block_begin(op.regions[1].blocks[0]), op.location), None)
    return KEEP


@HANDLERS.expands("scf.for")
def _plain_loop(x: Expander, op: ir.Operation, b: Builder) -> object:
    """Split a long loop in which nothing waits into chunks, and poll before each."""
    _stay_in_type(x, op, b)
    lower, upper, step, *inits = op.operands
    if _surely_short(lower, upper, step) or x.suspends(op):
        return KEEP
    strides = constant_values(step)
    stride = strides[0] if strides else 0
    wide = 64 if isinstance(step.type, ir.IndexType) else step.type.width  # pyright: ignore[reportAttributeAccessIssue]
    if stride < 1 or stride * LOOP_CHUNK >= 1 << (wide - 1):
        return KEEP
    types = [lower.type, *(value.type for value in inits)]
    around = b.op("scf.while", types, [lower, *inits], None, 2)
    locations = [op.location] * len(types)
    before = around.regions[0].blocks.append(*types, arg_locs=locations)
    after = around.regions[1].blocks.append(*types, arg_locs=locations)
    test = Builder(ir.InsertionPoint(before), op.location)
    more = test.compare("ult" if "unsignedCmp" in op.attributes else "slt", before.arguments[0], upper)

    def steps(c: Builder) -> ir.Value:
        left = c.binary("subi", upper, before.arguments[0])
        least = c.binary("minui", left, c.const(left.type, stride * LOOP_CHUNK))
        count = c.binary("divui", c.binary("addi", least, c.const(left.type, stride - 1)), c.const(left.type, stride))
        if isinstance(count.type, ir.IndexType):
            return c.value("arith.index_cast", int_type(32), (count,))
        return count if wide == 32 else c.value("arith.trunci" if wide > 32 else "arith.extui", int_type(32), (count,))

    x.stop_if_asked(op, test.if_(more), steps)
    test.op("scf.condition", (), (more, *before.arguments))
    piece = Builder(ir.InsertionPoint(after), op.location)
    start, *values = after.arguments
    left = piece.binary("subi", upper, start)
    most = piece.const(left.type, stride * LOOP_CHUNK)
    end = piece.select(piece.compare("ugt", left, most), piece.binary("addi", start, most), upper)
    last = piece.op("scf.yield", (), ())
    op.move_before(last)
    for old, new in zip(op.results, list(around.results)[1:], strict=True):
        old.replace_all_uses_with(new)
    for number, value in enumerate([start, end, step, *values]):
        op.operands[number] = value
    Builder(ir.InsertionPoint(last), op.location).op("scf.yield", (), (end, *op.results))
    last.erase()
    return KEEP


def _stay_in_type(x: Expander, op: ir.Operation, b: Builder) -> None:
    """Make it a fault, without an iteration, if the counter of a signed loop would overflow after the last one."""
    lower, upper, step = values.bounds(op)
    bounds = [constant_values(value) for value in (lower, upper, step)]
    stride = bounds[2][0] if bounds[2] else 0
    if stride <= 1 or "unsignedCmp" in op.attributes or not isinstance(step.type, ir.IntegerType):
        return
    width = step.type.width
    greatest = (1 << (width - 1)) - 1
    if all(bounds) and bounds[1][0] <= greatest - stride:  # pyright: ignore[reportOptionalSubscript]
        return
    one = b.const(step.type, 1)
    turns = b.binary("divui", b.binary("subi", b.binary("subi", upper, lower), one), step)
    last = b.binary("addi", lower, b.binary("muli", turns, step))
    passes = b.compare("sgt", last, b.const(step.type, greatest - stride))
    passes = b.binary("andi", passes, b.compare("slt", lower, upper))
    says = f"a range with the step {stride} passes the largest integer of {width} bits"
    x.fault(b.if_(passes), x.module.site(op, "range", says, x.function.kernel))
    op.operands[1] = b.select(passes, lower, upper)


def _surely_short(*bounds: ir.Value) -> bool:
    """Return whether a loop's bounds are constants with few iterations."""
    numbers = [constant_values(value) for value in bounds]
    if any(number is None for number in numbers):
        return False
    lower, upper, step = (number[0] for number in numbers if number)
    return step > 0 and (upper - lower) // step <= LOOP_CHUNK
