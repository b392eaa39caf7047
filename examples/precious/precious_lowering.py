"""From `precious` to `scf`, `arith` and `llvm`, which the CPU target compiles: a plain walk over the module.

Cells and matrices become pointers where they stand; operations are then replaced one by one, outermost first.
"""

from typing import Any

from precious_dialect import CellType, MatrixType, parameters

from kiln.mlir import ir
from kiln.targets.lowering.builder import Builder, int_type, ptr_type

RENAMED = {
    "precious.if": "scf.if",
    "precious.for": "scf.for",
    "precious.while": "scf.while",
    "precious.test": "scf.condition",
    "precious.end": "scf.yield",
    "precious.get": "llvm.load",
    "precious.set": "llvm.store",
}


def lower(module: ir.Module) -> None:
    """The pass."""
    with module.context:
        for op in operations(module, "precious.gemm"):
            expand_gemm(op)
        todo = [(op, [v.type for v in [*op.operands, *op.results]]) for op in operations(module, "precious.")]
        for op in operations(module, ""):
            retype(op)
        for op, types in todo:
            b = Builder(ir.InsertionPoint(op), op.location)
            values = rename(b, op) if op.name in RENAMED else HANDLERS[op.name](b, op, types)
            for old, new in zip(op.results, values, strict=True):
                old.replace_all_uses_with(new)
            op.erase()


def operations(module: ir.Module, prefix: str) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> Any:
        if op.name.startswith(prefix):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def retype(op: ir.Operation) -> None:
    """Let cells and matrices be pointers: results, block arguments and the signatures of functions."""

    def lowered(type_: ir.Type) -> ir.Type:
        return ptr_type() if isinstance(type_, (CellType, MatrixType)) else type_

    for value in [*op.results, *(a for region in op.regions for block in region for a in block.arguments)]:
        value.set_type(lowered(value.type))
    if op.name == "func.func":
        signature = op.attributes["function_type"].value  # pyright: ignore[reportAttributeAccessIssue]
        inputs, results = (list(map(lowered, types)) for types in (signature.inputs, signature.results))
        op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))


def rename(b: Builder, op: ir.Operation) -> Any:
    """The same operation of another dialect."""
    attributes = {name: op.attributes[name] for name in op.attributes}
    types = [r.type for r in op.results]
    made = b.op(RENAMED[op.name], types, list(op.operands), attributes, len(op.regions))
    for old, new in zip(op.regions, made.regions, strict=True):
        old.blocks[0].append_to(new)
    return made.results


def make_cell(b: Builder, op: ir.Operation, types: list[ir.Type]) -> list[ir.Value]:
    """Memory of the function's call, reserved at its start so that a loop does not take more and more."""
    function: Any = op.parent
    while function.name != "func.func":
        function = function.parent
    entry = Builder(ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0]), op.location)
    return [entry.alloca(parameters(types[0])[0])]


def address(b: Builder, type_: ir.Type, matrix: ir.Value, row: ir.Value, column: ir.Value) -> ir.Value:
    element, _, columns = parameters(type_)
    return b.gep(matrix, element, b.binary("addi", b.binary("muli", row, b.i64(columns)), column))


def load(b: Builder, op: ir.Operation, types: list[ir.Type]) -> list[ir.Value]:
    return [b.load(types[3], address(b, types[0], *op.operands))]


def store(b: Builder, op: ir.Operation, types: list[ir.Type]) -> list[ir.Value]:
    value, *place = op.operands
    b.store(value, address(b, types[1], *place))
    return []


HANDLERS: dict[str, Any] = {
    "precious.make_cell": make_cell,
    "precious.view": lambda b, op, types: op.operands,
    "precious.load": load,
    "precious.store": store,
}


def expand_gemm(op: ir.Operation) -> None:
    """Three loops, still in `precious`; the innermost runs along the rows of b and c."""
    a, b, c = op.operands
    (element, rows, inner), columns = parameters(a.type), parameters(b.type)[2]
    build = Builder(ir.InsertionPoint(op), op.location)
    counters: list[ir.Value] = []
    for extent in (rows, inner, columns):
        loop = build.op("precious.for", (), [build.i64(0), build.i64(extent), build.i64(1)], None, 1)
        body = loop.regions[0].blocks.append(int_type(64), arg_locs=[op.location])
        end = Builder(ir.InsertionPoint(body), op.location).op("precious.end")
        build = Builder(ir.InsertionPoint(end), op.location)
        counters.append(body.arguments[0])
    i, k, j = counters
    x, y, z = (build.value("precious.load", element, at) for at in ((a, i, k), (b, k, j), (c, i, j)))
    build.op("precious.store", (), [build.binary("addf", z, build.binary("mulf", x, y)), c, i, j])
    op.erase()
