"""Building operations of the `llvm` dialect (and a few of `arith`, `scf`, `func`) by name at an insertion point."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...mlir import PACKAGE, context, ir

_DYNAMIC = -(1 << 31)  # marks an index of a getelementptr that is an operand


@functools.lru_cache(maxsize=64)
def int_type(width: int) -> ir.Type:
    """Return the signless integer type of a width."""
    return ir.IntegerType.get_signless(width, context())


@functools.lru_cache(maxsize=1024)
def parsed_type(text: str) -> ir.Type:
    """Return a type by its spelling."""
    return ir.Type.parse(text, context())


def ptr_type() -> ir.Type:
    """Return `!llvm.ptr`."""
    return parsed_type("!llvm.ptr")


def struct_type(fields: Sequence[ir.Type]) -> ir.Type:
    """Return a literal `!llvm.struct`; one of many equal fields has a name, as every use would print them all."""
    return _struct_type(tuple(fields))


@functools.lru_cache(maxsize=1024)
def _struct_type(fields: tuple[ir.Type, ...]) -> ir.Type:
    name = f'"{len(fields)}x{fields[0]}", ' if len(fields) > 8 and len(set(fields)) == 1 else ""
    return parsed_type(f"!llvm.struct<{name}({', '.join(map(str, fields))})>")


@functools.lru_cache(maxsize=4096)
def int_attr(type_: ir.Type, value: int) -> ir.Attribute:
    """Return an integer attribute; `value` may be given signed or unsigned."""
    width = type_.width
    if width > 1:
        value = (value + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))
    if width > 64:
        return ir.Attribute.parse(f"{value} : {type_}", context())
    return ir.IntegerAttr.get(type_, value if width > 1 else value & 1)


@functools.lru_cache(maxsize=1024)
def _i32_array(values: tuple[int, ...]) -> ir.Attribute:
    return ir.DenseI32ArrayAttr.get(list(values), context())


@functools.lru_cache(maxsize=1024)
def _i64_array(values: tuple[int, ...]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(values), context())


@functools.lru_cache(maxsize=1024)
def _field(index: int) -> dict[str, ir.Attribute]:
    return {"position": _i64_array((index,))}


@functools.lru_cache(maxsize=64)
def _predicate(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(int_type(64), value)


_ATOMICS = ("xchg", "add", "sub", "_and", "nand", "_or")
_COMPARISONS = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def gep_parts(
    pointer: ir.Value, element: ir.Type, offset: ir.Value | int
) -> tuple[tuple[ir.Value, ...], dict[str, ir.Attribute]]:
    """Return operands and attributes of `llvm.getelementptr`."""
    if isinstance(offset, int):
        return (pointer,), _gep_attributes(offset, element)
    return (pointer, offset), _gep_attributes(_DYNAMIC, element)


@functools.lru_cache(maxsize=4096)
def _gep_attributes(index: int, element: ir.Type) -> dict[str, ir.Attribute]:
    return {"rawConstantIndices": _i32_array((index,)), "elem_type": ir.TypeAttr.get(element)}


class Builder:
    """Adds operations before `point`, all with one source location."""

    def __init__(self, point: ir.InsertionPoint, location: ir.Location) -> None:
        self.point = point
        self.location = location

    def op(
        self,
        name: str,
        results: Sequence[ir.Type] = (),
        operands: Sequence[ir.Value] = (),
        attributes: Mapping[str, ir.Attribute] | None = None,
        regions: int = 0,
    ) -> ir.Operation:
        """Make an operation."""
        return ir.Operation.create(name, results, operands, attributes, None, regions, self.location, self.point)

    def value(
        self,
        name: str,
        result: ir.Type,
        operands: Sequence[ir.Value] = (),
        attributes: Mapping[str, ir.Attribute] | None = None,
    ) -> ir.Value:
        """Return the result of an operation that has one."""
        return ir.Operation.create(name, (result,), operands, attributes, None, 0, self.location, self.point).result

    # constants and arithmetic

    def const(self, type_: ir.Type, value: int) -> ir.Value:
        """Return an integer constant, or the same one in every element of a vector type."""
        if isinstance(type_, ir.VectorType):
            attribute = ir.DenseElementsAttr.get_splat(type_, int_attr(type_.element_type, value))
        else:
            attribute = int_attr(type_, value)
        return self.value("arith.constant", type_, (), {"value": attribute})

    def i32(self, value: int) -> ir.Value:
        """Return a 32-bit constant."""
        return self.const(int_type(32), value)

    def i64(self, value: int) -> ir.Value:
        """Return a 64-bit constant."""
        return self.const(int_type(64), value)

    def binary(self, name: str, a: ir.Value, b: ir.Value | int) -> ir.Value:
        """Emit `arith.<name>` of two values of one type; an integer becomes a constant of it."""
        return self.value(f"arith.{name}", a.type, (a, self.const(a.type, b) if isinstance(b, int) else b))

    def compare(self, predicate: str, a: ir.Value, b: ir.Value | int) -> ir.Value:
        """Emit `arith.cmpi`, an i1 or a vector of them; an integer becomes a constant."""
        number = _predicate(_COMPARISONS.index(predicate))
        operands = (a, self.const(a.type, b) if isinstance(b, int) else b)
        return self.value("arith.cmpi", like(a.type, int_type(1)), operands, {"predicate": number})

    def select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """Return `a` where the condition holds, else `b`."""
        return self.value("arith.select", a.type, (condition, a, b))

    def linear(self, index: Sequence[ir.Value], extents: Sequence[ir.Value]) -> ir.Value:
        """Return the linear index of (x, y, z), x fastest."""
        x, y, z = index
        dx, dy, *_ = extents
        return self.binary("addi", x, self.binary("muli", dx, self.binary("addi", y, self.binary("muli", dy, z))))

    def product(self, extents: Sequence[ir.Value]) -> ir.Value:
        """Return three extents multiplied."""
        x, y, z = extents
        return self.binary("muli", x, self.binary("muli", y, z))

    # memory

    def null(self) -> ir.Value:
        """Return the null pointer."""
        return self.value("llvm.mlir.zero", ptr_type())

    def gep(self, pointer: ir.Value, element: ir.Type, offset: ir.Value | int) -> ir.Value:
        """Return the pointer `offset` elements on."""
        operands, attributes = gep_parts(pointer, element, offset)
        return self.value("llvm.getelementptr", ptr_type(), operands, attributes)

    def byte_gep(self, pointer: ir.Value, offset: ir.Value | int) -> ir.Value:
        """Return the pointer `offset` bytes on."""
        return self.gep(pointer, int_type(8), offset)

    def field(self, pointer: ir.Value, struct: ir.Type, index: int) -> ir.Value:
        """Return the address of a field of a struct."""
        return self.value(
            "llvm.getelementptr",
            ptr_type(),
            (pointer,),
            {"rawConstantIndices": _i32_array((0, index)), "elem_type": ir.TypeAttr.get(struct)},
        )

    def load(self, type_: ir.Type, pointer: ir.Value, alignment: int = 0) -> ir.Value:
        """Emit `llvm.load`; alignment 0 is the type's own."""
        return self.value("llvm.load", type_, (pointer,), _alignment(alignment))

    def store(self, value: ir.Value, pointer: ir.Value, alignment: int = 0) -> ir.Operation:
        """Emit `llvm.store`; alignment 0 is the type's own."""
        return self.op("llvm.store", (), (value, pointer), _alignment(alignment))

    def alloca(self, element: ir.Type, count: int = 1, alignment: int = 0) -> ir.Value:
        """Allocate memory of the current call for `count` elements."""
        # As one array: LLVM's first pass over memory passes by what is allocated in pieces, and those before the next one take longer.
        type_ = element if count == 1 else parsed_type(f"!llvm.array<{count} x {element}>")
        attributes = {"elem_type": ir.TypeAttr.get(type_), **(_alignment(alignment) or {})}
        return self.value("llvm.alloca", ptr_type(), (self.i64(1),), attributes)

    # structs and vectors

    def extract(self, struct: ir.Value, type_: ir.Type, index: int) -> ir.Value:
        """Return field `index` of a struct value."""
        return self.value("llvm.extractvalue", type_, (struct,), _field(index))

    def insert(self, struct: ir.Value, value: ir.Value, index: int) -> ir.Value:
        """Return the struct value with field `index` replaced."""
        return self.value("llvm.insertvalue", struct.type, (struct, value), {"position": _i64_array((index,))})

    def element(self, vector: ir.Value, number: int) -> ir.Value:
        """Return an element of a vector of one dimension."""
        position = {"static_position": _i64_array((number,))}
        return self.value("vector.extract", vector.type.element_type, (vector,), position)  # pyright: ignore

    def elements(self, vector: ir.Value) -> list[ir.Value]:
        """Return all elements of a vector of one dimension."""
        return [self.element(vector, number) for number in range(vector.type.shape[0])]  # pyright: ignore

    def vector(self, elements: Sequence[ir.Value]) -> ir.Value:
        """Return a vector of its elements."""
        type_ = ir.VectorType.get([len(elements)], elements[0].type, loc=self.location)
        return self.value("vector.from_elements", type_, elements)

    def any(self, condition: ir.Value) -> ir.Value:
        """Return whether an i1, or any element of a vector of them, is true."""
        if not isinstance(condition.type, ir.VectorType):
            return condition
        kind = ir.Attribute.parse("#vector.kind<or>", context())
        return self.value("vector.reduction", int_type(1), (condition,), {"kind": kind})

    # calls and regions

    def call(self, callee: str, results: Sequence[ir.Type], operands: Sequence[ir.Value]) -> ir.Operation:
        """Emit `func.call`."""
        return self.op("func.call", results, operands, {"callee": ir.FlatSymbolRefAttr.get(callee, context())})

    def call_pointer(self, callee: ir.Value, operands: Sequence[ir.Value], result: ir.Type | None = None) -> Any:
        """Call a function by its address, and return its result, if it has one."""
        attributes = {"operandSegmentSizes": _i32_array((len(operands) + 1, 0)), "op_bundle_sizes": _i32_array(())}
        if result is not None:
            return self.value("llvm.call", result, (callee, *operands), attributes)
        return self.op("llvm.call", (), (callee, *operands), attributes)

    def atomic(self, operation: str, pointer: ir.Value, value: ir.Value) -> ir.Value:
        """Emit a sequentially consistent `llvm.atomicrmw`, and return the old value."""
        attributes = {"bin_op": _predicate(_ATOMICS.index(operation)), "ordering": _predicate(7)}
        return self.value("llvm.atomicrmw", value.type, (pointer, value), attributes)

    def call_variadic(self, callee: str, signature: ir.Type, result: ir.Type, operands: Sequence[ir.Value]) -> ir.Value:
        """Call a variadic C function; `signature` is its `!llvm.func` type."""
        return self.value(
            "llvm.call",
            result,
            operands,
            {
                "callee": ir.FlatSymbolRefAttr.get(callee, context()),
                "var_callee_type": ir.TypeAttr.get(signature),
                "operandSegmentSizes": _i32_array((len(operands), 0)),
                "op_bundle_sizes": _i32_array(()),
            },
        )

    def address_of(self, symbol: str) -> ir.Value:
        """Return the address of an `llvm` function or global."""
        name = ir.FlatSymbolRefAttr.get(symbol, context())
        return self.value("llvm.mlir.addressof", ptr_type(), (), {"global_name": name})

    def address_of_function(self, name: str, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> ir.Value:
        """Return the address of a `func.func` of the module."""
        type_ = ir.FunctionType.get(list(inputs), list(results), context())
        constant = self.value("func.constant", type_, (), {"value": ir.FlatSymbolRefAttr.get(name, context())})
        return self.value("builtin.unrealized_conversion_cast", ptr_type(), (constant,))

    def if_(self, condition: ir.Value) -> Builder:
        """Open an `scf.if` without results, and return a builder for its body; this builder continues after it."""
        return self._branches(condition, 1)[0]

    def if_else(self, condition: ir.Value) -> tuple[Builder, Builder]:
        """Open an `scf.if` with two bodies."""
        then, otherwise = self._branches(condition, 2)
        return then, otherwise

    def choose(
        self,
        condition: ir.Value,
        then: Callable[[Builder], ir.Value],
        otherwise: Callable[[Builder], ir.Value],
        type_: ir.Type,
    ) -> ir.Value:
        """Emit an `scf.if` whose branches two functions build, and return its result."""
        branch = self.op("scf.if", (type_,), (condition,), None, 2)
        for region, make in zip(branch.regions, (then, otherwise), strict=True):
            point = ir.InsertionPoint(region.blocks.append())
            value = make(Builder(point, self.location))
            ir.Operation.create("scf.yield", (), (value,), loc=self.location, ip=point)
        return branch.results[0]

    def _branches(self, condition: ir.Value, count: int) -> list[Builder]:
        branch = self.op("scf.if", (), (condition,), None, 2)
        builders: list[Builder] = []
        for region in list(branch.regions)[:count]:
            block = region.blocks.append()
            end = ir.Operation.create("scf.yield", loc=self.location, ip=ir.InsertionPoint(block))
            builders.append(Builder(ir.InsertionPoint(end), self.location))
        return builders

    def while_(
        self, condition: Callable[[Builder], Sequence[ir.Value]], result_types: Sequence[ir.Type] = ()
    ) -> tuple[Builder, tuple[ir.Value, ...]]:
        """Open an `scf.while` without iteration arguments.

        `condition` builds the test and returns it with values for the body, of types `result_types`. Returns a builder
        for the body, and those values.
        """
        loop = self.op("scf.while", result_types, (), None, 2)
        before = loop.regions[0].blocks.append()
        passed = condition(Builder(ir.InsertionPoint(before), self.location))
        ir.Operation.create("scf.condition", (), passed, loc=self.location, ip=ir.InsertionPoint(before))
        after = loop.regions[1].blocks.append(*result_types, arg_locs=[self.location] * len(result_types))
        end = ir.Operation.create("scf.yield", loc=self.location, ip=ir.InsertionPoint(after))
        return Builder(ir.InsertionPoint(end), self.location), tuple(after.arguments)

    def repeat(self, body: Callable[[Builder], Sequence[ir.Value]], result: ir.Type) -> ir.Value:
        """Repeat `body` while the first value that it returns holds, and return the last second value."""
        _, (value,) = self.while_(body, (result,))
        return value.owner.owner.results[0]

    def for_(self, lower: ir.Value, upper: ir.Value, step: ir.Value) -> tuple[Builder, ir.Value]:
        """Open an `scf.for` without iteration arguments, and return a builder for its body and its induction
        variable."""
        loop = self.op("scf.for", (), (lower, upper, step), None, 1)
        block = loop.regions[0].blocks.append(lower.type, arg_locs=[self.location])
        end = ir.Operation.create("scf.yield", loc=self.location, ip=ir.InsertionPoint(block))
        return Builder(ir.InsertionPoint(end), self.location), block.arguments[0]


@functools.lru_cache(maxsize=64)
def _alignment_attr(bytes_: int) -> dict[str, ir.Attribute]:
    return {"alignment": ir.IntegerAttr.get(int_type(64), bytes_)}


def _alignment(bytes_: int) -> dict[str, ir.Attribute] | None:
    return _alignment_attr(bytes_) if bytes_ else None


@functools.lru_cache(maxsize=4096)
def like(shape: ir.Type, element: ir.Type) -> ir.Type:
    """Return the vector type of the same shape with another element type; `element` itself for a scalar."""
    if not isinstance(shape, ir.VectorType):
        return element
    return ir.VectorType.get(shape.shape, element, loc=ir.Location.unknown(context()))


def flat_type(type_: ir.Type) -> ir.Type:
    """Return a vector type of any rank as one of rank 1."""
    if not isinstance(type_, ir.VectorType) or len(type_.shape) == 1:
        return type_
    return ir.VectorType.get([math.prod(type_.shape)], type_.element_type, loc=ir.Location.unknown(context()))


def reshape(b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Return a vector under another shape."""
    return value if value.type == type_ else b.value("vector.shape_cast", type_, (value,))


def operations(module: ir.Module) -> list[ir.Operation]:
    """Return the operations at the top of a module.

    It walks the module: going through `module.body.operations` imports the generated Python of their dialects (`llvm`:
    44 ms).
    """
    inside: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "builtin.module":
            return ir.WalkResult.ADVANCE
        inside.append(op)
        return ir.WalkResult.SKIP

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return inside


def symbol(op: ir.Operation) -> str:
    """Return the name of a function or global."""
    return op.attributes["sym_name"].value


def translate(module: ir.Module) -> str:
    """Return the LLVM IR text of a module of the `llvm` dialect."""
    return importlib.import_module(f"{PACKAGE}._mlir_libs._mlirDialectsLLVM").translate_module_to_llvmir(
        module.operation
    )


def global_(
    module: ir.Module, name: str, type_: ir.Type, value: ir.Attribute | None, *, linkage: str, constant: bool = False
) -> None:
    """Add a global variable or constant to a module; without a value it is external."""
    attributes: dict[str, ir.Attribute] = {
        "sym_name": ir.StringAttr.get(name, context()),
        "global_type": ir.TypeAttr.get(type_),
        "linkage": ir.Attribute.parse(f"#llvm.linkage<{linkage}>", context()),
        "addr_space": int_attr(int_type(32), 0),
        "visibility_": int_attr(int_type(64), 0),
    }
    if value is not None:
        attributes["value"] = value
    if constant:
        attributes["constant"] = ir.UnitAttr.get(context())
    ir.Operation.create(
        "llvm.mlir.global",
        attributes=attributes,
        regions=1,
        loc=ir.Location.unknown(context()),
        ip=ir.InsertionPoint.at_block_begin(module.body),
    )


def constant_value(value: ir.Value, otherwise: object = None) -> Any:
    """Return the value of an integer constant that fits 32 bits; `otherwise` for other values."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return otherwise
    op = owner.operation
    if op.name != "arith.constant":
        return otherwise
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.IntegerAttr):
        return otherwise
    number = attribute.value
    return number if -(1 << 31) < number < 1 << 31 else otherwise


def constant_values(value: ir.Value) -> list[int] | None:
    """Return the elements of an integer constant, or None."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name not in ("arith.constant", "llvm.mlir.constant"):
        return None
    attribute: Any = owner.operation.attributes["value"]
    if isinstance(attribute, ir.IntegerAttr):
        return [attribute.value]
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return [attribute.get_splat_value().value] if attribute.is_splat else list(attribute)
    return None


def function(module: ir.Module, name: str, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> ir.Operation:
    """Return a new private `func.func`, with an entry block, at the end of the module."""
    func = declare(module, name, inputs, results)
    func.regions[0].blocks.append(*inputs, arg_locs=[ir.Location.unknown(context())] * len(inputs))
    return func


def declare(module: ir.Module, name: str, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> ir.Operation:
    """Return a new private `func.func` without a body, at the end of the module."""
    return ir.Operation.create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get(name, context()),
            "sym_visibility": ir.StringAttr.get("private", context()),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(list(inputs), list(results), context())),
        },
        regions=1,
        loc=ir.Location.unknown(context()),
        ip=ir.InsertionPoint(module.body),
    )
