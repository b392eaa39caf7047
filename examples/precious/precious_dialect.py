"""The `precious` dialect: the control flow and the matrices of a small language, defined in Python.

Its control flow is not that of `scf`: a branch or a loop has no results. What a region changes lives in *cells*,
which are read after it.
"""

# No `from __future__ import annotations` here: the bindings read the fields' annotations as objects.

from typing import Any

from kiln.mlir import ext, ir

I1 = ir.IntegerType[1]
Int = ir.IntegerType


class Precious(ext.Dialect, name="precious"): ...


class MatrixType(Precious.Type, name="matrix"):
    """`!precious.matrix<f32, 3 : i64, 4 : i64>`: rows of numbers in memory, one after the other."""

    element: ir.TypeAttr
    rows: ir.IntegerAttr
    columns: ir.IntegerAttr


class CellType(Precious.Type, name="cell"):
    """`!precious.cell<i32>`: a variable."""

    element: ir.TypeAttr


class MakeCell(Precious.Operation, name="make_cell"):
    """A variable that holds nothing yet."""

    cell: ext.Result[CellType]


class Get(Precious.Operation, name="get"):
    """What a cell holds."""

    cell: ext.Operand[CellType]
    value: ext.Result[Any]


class Set(Precious.Operation, name="set"):
    """Let a cell hold a value."""

    value: ext.Operand[Any]
    cell: ext.Operand[CellType]


class If(Precious.Operation, name="if"):
    """Run `then` or `orelse`; both end in `precious.end`."""

    condition: ext.Operand[I1]
    then: ext.Region
    orelse: ext.Region


class For(Precious.Operation, name="for"):
    """Run `body`, which ends in `precious.end`, with a counter from `lower` up to but not including `upper`."""

    lower: ext.Operand[Int]
    upper: ext.Operand[Int]
    step: ext.Operand[Int]
    body: ext.Region


class While(Precious.Operation, name="while"):
    """Run `test`, which ends in `precious.test`, then `body`, which ends in `precious.end`, then `test`, and so on."""

    test: ext.Region
    body: ext.Region


class Test(Precious.Operation, name="test", traits=[ir.IsTerminatorTrait]):
    """Go on with the body of a `precious.while`, or leave it."""

    goes_on: ext.Operand[I1]


class End(Precious.Operation, name="end", traits=[ir.IsTerminatorTrait]):
    """The end of a region."""


class View(Precious.Operation, name="view"):
    """Memory seen as a matrix."""

    address: ext.Operand[Any]
    matrix: ext.Result[MatrixType]


class Load(Precious.Operation, name="load"):
    """An element of a matrix."""

    matrix: ext.Operand[MatrixType]
    row: ext.Operand[Int]
    column: ext.Operand[Int]
    value: ext.Result[Any]


class Store(Precious.Operation, name="store"):
    """Write an element of a matrix."""

    value: ext.Operand[Any]
    matrix: ext.Operand[MatrixType]
    row: ext.Operand[Int]
    column: ext.Operand[Int]


class Gemm(Precious.Operation, name="gemm"):
    """c += a @ b."""

    a: ext.Operand[MatrixType]
    b: ext.Operand[MatrixType]
    c: ext.Operand[MatrixType]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        (e, m, k), (f, l, n), (g, o, p) = (v.type.params for v in op.operands)
        if e == f == g and (m, k, n) == (o, l, p):
            return True
        op.location.emit_error(f"'precious.gemm' op cannot add {op.a.type} times {op.b.type} to {op.c.type}")
        return False


def parameters(type_: ir.Type) -> list[Any]:
    """The parameters of a type of the dialect, as Python values."""
    return [p.maybe_downcast().value for p in type_.params]  # pyright: ignore[reportAttributeAccessIssue]
