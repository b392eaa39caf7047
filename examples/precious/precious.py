"""Precious: a small language for matrices on `kiln.base_dsl`.

The front end (rewriting, tracing, carried values, early exits, errors) is Kiln's. The dialect, its control flow, the
arguments and the lowering are the language's own. `docs/base-dsl.md` walks through this file.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import precious_dialect as dialect
import precious_lowering

from kiln.base_dsl import BaseDSL, merging
from kiln.base_dsl.arguments import Node
from kiln.base_dsl.compiled_function import CompiledFunction
from kiln.base_dsl.compiler import Compilation
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError, error, mark_internal
from kiln.base_dsl.function import JitFunction
from kiln.base_dsl.target import get_target
from kiln.base_dsl.trace import Trace, emit, emit_value, inside_function, require
from kiln.base_dsl.traced_function import TracedFunction
from kiln.base_dsl.typing import Float32, Int64
from kiln.mlir import ir

mark_internal(__file__)  # operations and errors are located in the program, not here


class PreciousDSL(BaseDSL):
    """What the front end asks of a language: how branches and loops look, what arguments are, how to compile."""

    name = "precious"

    def dialects(self) -> Any:
        return (dialect.Precious,)

    def make_if(self, condition: Any, then: Any, then_values: Any, orelse: Any, else_values: Any) -> Any:
        cells = [make_cell(v.type) for v in then_values]
        operation = emit("precious.if", [], [condition], regions=2)
        close(operation.regions[0], then, cells, then_values)
        close(operation.regions[1], orelse, cells, else_values)
        return [get(cell) for cell in cells]

    def make_for(
        self, lower: Any, upper: Any, step: Any, body: Any, inits: Any, yields: Any, *, unsigned: bool, hints: Any
    ) -> Any:
        cells = [make_cell(v.type, v) for v in inits]
        yields = use_cells(body, 1, cells, yields)
        attributes = {"unsignedCmp": ir.UnitAttr.get()} if unsigned else None
        operation = emit("precious.for", [], [lower, upper, step], attributes, regions=1)
        close(operation.regions[0], body, cells, yields)
        return [get(cell) for cell in cells]

    def make_while(self, before: Any, condition: Any, forwards: Any, after: Any, inits: Any, yields: Any) -> Any:
        cells = [make_cell(v.type, v) for v in inits]
        condition, *forwards = use_cells(before, 0, cells, [condition, *forwards])
        yields = use_cells(after, 0, cells, yields)
        operation = emit("precious.while", regions=2)
        close(operation.regions[0], before, cells, forwards, "precious.test", [condition])
        close(operation.regions[1], after, cells, yields)
        return [get(cell) for cell in cells]

    def convert(self, value: Any, annotation: Any) -> Node | None:
        return MatrixNode(value) if isinstance(value, np.ndarray) else None

    def compile_module(self, module: ir.Module, entry: str, options: Any, target: str | None) -> Any:
        compilation = Compilation(module, f"{entry}.precious", options)
        compilation.verify()
        source = module.operation.clone()
        compilation.run("lower-precious", precious_lowering.lower)
        executable: Any = get_target("cpu").compile(module, entry, options)
        executable.artifacts.add("mlir", source.get_asm)  # what `__mlir__` shows: the program as it was traced
        return executable


DSL = PreciousDSL()


def make_cell(type_: ir.Type, value: ir.Value | None = None) -> ir.Value:
    cell = emit_value("precious.make_cell", dialect.CellType.get(ir.TypeAttr.get(type_)))
    if value is not None:
        emit("precious.set", [], [value, cell])
    return cell


def get(cell: ir.Value) -> ir.Value:
    return emit_value("precious.get", dialect.parameters(cell.type)[0], [cell])


def use_cells(block: ir.Block, first: int, cells: Sequence[ir.Value], values: Sequence[ir.Value]) -> list[ir.Value]:
    """Replace the block's arguments from `first` on by what the cells hold, also where they stand in `values`."""
    arguments = list(block.arguments)[first:]
    with ir.InsertionPoint.at_block_begin(block):
        held = dict(zip(arguments, map(get, cells), strict=True))
    values = [held.get(v, v) for v in values]
    for argument in reversed(arguments):
        argument.replace_all_uses_with(held[argument])
        block.erase_argument(argument.arg_number)
    return values


def close(region: Any, block: Any, cells: Any, values: Any, end: str = "precious.end", operands: Any = ()) -> None:
    """Make a traced block a region that leaves `values` in the cells."""
    block.append_to(region)
    with ir.InsertionPoint(block):
        for cell, value in zip(cells, values, strict=True):
            emit("precious.set", [], [value, cell])
        emit(end, [], operands)


class Matrix:
    """A matrix of Float32: its shape is known while tracing, its elements are not."""

    def __init__(self, value: ir.Value) -> None:
        self.value = value
        _, self.rows, self.columns = dialect.parameters(value.type)

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [self.value]

    def __new_from_mlir_values__(self, values: list[ir.Value]) -> "Matrix":
        return Matrix(*values)

    def __getitem__(self, index: tuple[Any, Any]) -> Any:
        i, j = (Int64(x).ir_value() for x in index)
        return Float32(emit_value("precious.load", Float32.mlir_type, [self.value, i, j]))

    def __setitem__(self, index: tuple[Any, Any], value: Any) -> None:
        i, j = (Int64(x).ir_value() for x in index)
        emit("precious.store", [], [Float32(value).ir_value(), self.value, i, j])


class MatrixNode(Node):
    """A numpy array as an argument: its address is passed, its shape is compiled in."""

    formats = "Q"

    def __init__(self, array: Any) -> None:
        if array.ndim != 2 or not array.flags.c_contiguous or array.dtype != np.float32:
            raise error(
                DSLUserCodeTypeError,
                f"a matrix of {array.dtype} with shape {array.shape} and strides {array.strides}",
                hint="pass a C-contiguous array of two dimensions of float32",
            )
        self.array = array
        self.key = ("matrix", array.shape)

    def types(self) -> list[ir.Type]:
        return [ir.Type.parse("!llvm.ptr")]

    def leaves(self) -> list[int]:
        return [self.array.ctypes.data]

    def rebuild(self, values: Any) -> Matrix:
        shape = (ir.IntegerAttr.get(Int64.mlir_type, extent) for extent in self.array.shape)
        type_ = dialect.MatrixType.get(ir.TypeAttr.get(Float32.mlir_type), *shape)
        return Matrix(emit_value("precious.view", type_, [next(values)]))


class Function(TracedFunction):
    """A function that stays one: traced once for each signature in a program, then called."""

    def __init__(self, function: Any) -> None:
        super().__init__(DSL, function)
        self._traced: Any = weakref.WeakKeyDictionary()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        active = require(f"a call of {self.function.__name__}")
        arguments = self.parameters.bind(args, kwargs)
        nodes = self.parameters.nodes(DSL, arguments)
        traced = self._traced.setdefault(active, {})
        key = tuple(node.key for node in nodes)
        if key not in traced:
            traced[key] = self._trace(active, f"{self.function.__name__}_{len(traced)}", arguments, nodes)
        name, types, rebuild = traced[key]
        values = [v for node in nodes for v in node.values()]
        return rebuild(iter(emit("func.call", types, values, {"callee": ir.FlatSymbolRefAttr.get(name)}).results))

    def _trace(self, active: Trace, name: str, arguments: Any, nodes: list[Node]) -> tuple[Any, ...]:
        types = [v.type for node in nodes for v in node.values()]
        with ir.InsertionPoint(active.module.body):
            function, entry = DSL.make_function(name, types, active.location())
        with inside_function(active, entry, "function"):
            values = iter(list(entry.arguments))
            given = dict(zip(arguments, [node.rebuild(values) for node in nodes], strict=True))
            args, kwargs = self.parameters.call_arguments(given)
            _, results, rebuild = merging.open_value(self.inline(tuple(args), kwargs), promote=True)
            DSL.finish_function(function, types, results)
        return name, [r.type for r in results], rebuild


def gemm(a: Matrix, b: Matrix, c: Matrix) -> None:
    """c += a @ b"""
    emit("precious.gemm", [], [a.value, b.value, c.value])


def jit(function: Any) -> JitFunction:
    """Decorator: called from Python the function is compiled and run; called in a program it is inlined."""
    return JitFunction(DSL, function)


def compile(function: JitFunction, *args: Any) -> CompiledFunction:
    """The compiled function for arguments like these."""
    arguments = function.parameters.bind(args, {})
    return function.compile(function.parameters.nodes(DSL, arguments), arguments, None, None)
