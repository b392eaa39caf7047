"""`cute` operations as device code: the `llvm` and `nvvm` dialects, one function for each operation.

Values of type `!cute.ptr` and `!cute.memref` are retyped in place: a pointer of the right address space, or a struct of
it and the dynamic leaves. Constants of the dialect's definitions (`dialects/cute.py`) are not repeated here.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import TYPE_CHECKING, Any

from ...base_dsl.compiler import report_at, source_span
from ...base_dsl.diagnostics import CompilerDiagnosticError, DSLArchitectureError, DSLNotImplemented
from ...dialects import cute
from ...mlir import context, ir
from ..lowering.builder import (
    Builder,
    constant_value,
    declare,
    int_type,
    like,
    parsed_type,
    ptr_type,
    struct_type,
)
from ..lowering.sites import Site
from .device_builder import DeviceBuilder, pointer_type
from .ops import wide_access
from .passes import store_forwarding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...hardware.architectures import Architecture
    from ...hardware.features import Feature

Types = list[ir.Type]
_SPACES = {"gmem": 1, "smem": 3, "tmem": 6, "rmem": 0, "generic": 0}
"""LLVM's numbers for address spaces. Memory of a thread is generic: LLVM finds out, and mostly removes it."""

MAX_STATIC_SMEM = 48 << 10
"""Bytes of static shared memory ptxas takes; a kernel with more has all of it as dynamic shared memory."""
DYNAMIC_SMEM_ALIGNMENT = 1024
DYNAMIC_SMEM = "kiln_dynamic_smem"
OUTLINED = "kiln_f64_"
"""How the names of functions begin that LLVM may inline or call, as it sees fit; others are inlined."""
FAULT_RECORD = "kiln_fault"
FAULT_HEADER = 8
"""Words of 32 bits before a fault's values: claimed, site, block x, y, z, thread x, y, z."""
FAULT_VALUES = 8


@dataclasses.dataclass
class Kernel:
    """What the expansion finds out about a kernel."""

    name: str
    operation: ir.Operation
    prints: bool = False
    asserts: bool = False
    smem: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    """Static shared memory: name, bytes, alignment of each piece."""
    smem_addresses: list[ir.Operation] = dataclasses.field(default_factory=list)
    """Operations that take the address of a piece, or of dynamic shared memory."""
    smem_sizes: list[ir.Operation] = dataclasses.field(default_factory=list)
    """Operations that ask how much dynamic shared memory there is."""
    dynamic: bool = False
    """Whether it uses dynamic shared memory."""

    merge_smem: bool = False
    """Whether branches that exclude each other share memory."""
    smem_bytes: int = 0
    """Bytes of static shared memory; known when all of the kernel is expanded."""


@dataclasses.dataclass
class Expansion:
    """The state of expanding one module of device code."""

    module: ir.Module
    arch: Architecture
    blocks: dict[str, tuple[int, int, int]] = dataclasses.field(default_factory=dict)
    """Threads of a block of each kernel, where known."""
    merged: frozenset[str] = frozenset()
    """The kernels whose branches share memory."""
    wide_accesses: bool = False
    """Whether the PTX that is written has accesses of 32 bytes."""
    sites: list[Site] = dataclasses.field(default_factory=list)
    kernels: dict[str, Kernel] = dataclasses.field(default_factory=dict)
    declared: set[str] = dataclasses.field(default_factory=set)
    strings: dict[str, str] = dataclasses.field(default_factory=dict)

    def declare(self, name: str, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
        """Make an external function known to the module, once."""
        if name not in self.declared:
            self.declared.add(name)
            declare(self.module, name, inputs, results)

    def variable(
        self,
        name: str,
        type_: ir.Type,
        space: int,
        alignment: int = 0,
        value: ir.Attribute | None = None,
        linkage: str = "internal",
    ) -> str:
        """A global variable, made once; its name."""
        if name not in self.declared:
            self.declared.add(name)
            attributes = {
                "sym_name": ir.StringAttr.get(name, context()),
                "global_type": ir.TypeAttr.get(type_),
                "linkage": ir.Attribute.parse(f"#llvm.linkage<{linkage}>", context()),
                "addr_space": ir.IntegerAttr.get(int_type(32), space),
                "visibility_": ir.IntegerAttr.get(int_type(64), 0),
            }
            if value is not None:
                attributes["value"] = value
            if alignment:
                attributes["alignment"] = ir.IntegerAttr.get(int_type(64), alignment)
            ir.Operation.create(
                "llvm.mlir.global", attributes=attributes, regions=1, loc=ir.Location.unknown(context()),
                ip=ir.InsertionPoint.at_block_begin(self.module.body),
            )  # fmt: skip
        return name

    def string(self, text: str) -> str:
        """The name of a global constant that holds a C string."""
        name = self.strings.setdefault(text, f"kiln_str_{len(self.strings)}")
        data = text.encode() + b"\0"
        type_ = parsed_type(f"!llvm.array<{len(data)} x i8>")
        return self.variable(name, type_, 1, value=ir.StringAttr.get(data, context()))


# --- types -----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def device_type(type_: ir.Type) -> ir.Type:
    """What a `cute` type is in device code; other types are themselves."""
    if cute.is_ptr(type_):
        return pointer_type(_SPACES[cute.info(type_).space])
    if cute.is_memref(type_):
        info = cute.info(type_)
        pointer = pointer_type(_SPACES[info.space])
        return struct_type([pointer, *map(int_type, info.leaves)]) if info.leaves else pointer
    return type_


def element_of(type_: ir.Type) -> ir.Type:
    """The element type of a vector; other types are themselves."""
    return type_.element_type if isinstance(type_, ir.VectorType) else type_


@functools.lru_cache(maxsize=4096)
def carrier_type(type_: ir.Type) -> ir.Type:
    """The LLVM type that holds a value of a type: narrow floats are integers of their width."""
    type_ = device_type(type_)
    element = element_of(type_)
    if isinstance(element, ir.FloatTF32Type):
        return like(type_, ir.F32Type.get(context()))
    if isinstance(element, ir.FloatType) and element.width < 16:
        return like(type_, int_type(element.width))
    if isinstance(element, ir.IndexType):
        return like(type_, int_type(64))
    return type_


def to_carrier(b: Builder, value: ir.Value) -> ir.Value:
    """A value as its `carrier_type`."""
    want = carrier_type(value.type)
    if want == value.type:
        return value
    cast = "arith.index_cast" if isinstance(element_of(value.type), ir.IndexType) else "arith.bitcast"
    return b.value(cast, want, (value,))


def from_carrier(b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """The inverse of `to_carrier`."""
    if value.type == type_:
        return value
    cast = "arith.index_cast" if isinstance(element_of(type_), ir.IndexType) else "arith.bitcast"
    return b.value(cast, type_, (value,))


# --- the pass --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Expander:
    """What an expansion may use: the module's and the kernel's state."""

    module: Expansion
    kernel: Kernel
    entry: ir.Block
    taken_apart: dict[Any, list[ir.Value]] = dataclasses.field(default_factory=dict)
    """Fragments of matrix products taken apart, by their values and the blocks where that was done."""
    results: dict[ir.Value, list[ir.Value]] = dataclasses.field(default_factory=dict)
    """Fragments that operations made, as registers: the vectors of those that are needed are put together at the end."""
    _shared: dict[Any, ir.Value] = dataclasses.field(default_factory=dict)
    """Constants at the start of the function."""

    @property
    def arch(self) -> Architecture:
        return self.module.arch

    def at_entry(self, location: ir.Location) -> DeviceBuilder:
        """A builder at the start of the function."""
        return DeviceBuilder(ir.InsertionPoint.at_block_begin(self.entry), location)

    def _once(self, key: Any, name: str, type_: ir.Type, attributes: dict[str, ir.Attribute] | None) -> ir.Value:
        """The result of an operation at the start of the function, made once."""
        found = self._shared.get(key)
        if found is None:
            b = self.at_entry(ir.Location.unknown(context()))
            found = self._shared[key] = b.value(name, type_, (), attributes)
        return found

    def _number(self, value: int) -> ir.Value:
        i32 = int_type(32)
        return self._once(value, "llvm.mlir.constant", i32, {"value": ir.IntegerAttr.get(i32, value)})

    def elements(self, b: Builder, vector: ir.Value) -> list[ir.Value]:
        """The elements of a vector. (MLIR takes five times as long to make them of operations on vectors.)"""
        type_: Any = vector.type
        element = type_.element_type
        return [b.value("llvm.extractelement", element, (vector, self._number(n))) for n in range(type_.shape[0])]

    def joined(self, b: Builder, type_: ir.Type, parts: Sequence[ir.Value]) -> ir.Value:
        """A vector of what registers hold."""
        vector = _vector_type(len(parts), parts[0].type)
        made = self._once(vector, "llvm.mlir.poison", vector, None)
        for number, part in enumerate(parts):
            made = b.value("llvm.insertelement", vector, (made, part, self._number(number)))
        return made if vector == type_ else b.value("llvm.bitcast", type_, (made,))

    def require(self, op: ir.Operation, feature: Feature, what: str = "") -> None:
        """Refuse an operation that needs a feature which the architecture lacks; `what` names the operation."""
        if not feature.on(self.arch):
            message = f"{what or feature.what} needs {feature.needs}, and this is compiled for {self.arch.name}"
            hint = "choose the architecture with --gpu-arch or CUTE_DSL_ARCH"
            raise report_at(op.location, DSLArchitectureError, message, hint=hint)


HANDLERS: dict[str, Callable[..., Any]] = {}
_WANTS: dict[Any, tuple[bool, bool]] = {}
"""Whether a handler looks at the types of operands, and of results."""
_ALL = (True, True)
_OF_NUMBERS = ("arith.", "math.", "vector.")
"""How the names begin of operations whose results are numbers; all but `arith.select`."""


def expands(*names: str) -> Callable[[Any], Any]:
    """Register the expansion of operations.

    It is given the expander, the operation (operands are device values already), the types its operands and results had
    in the dialect (nothing where its parameter's name begins with an underscore: asking for them takes a while), and a
    builder before the operation; it returns the results' replacements, or None to leave the operation as it is.
    """

    def register(handler: Any) -> Any:
        taken = handler.__code__.co_varnames
        _WANTS[handler] = (not taken[2].startswith("_"), not taken[3].startswith("_"))
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def expand_module(expansion: Expansion) -> None:
    """Replace every operation and type of `cute` and `cute_nvgpu` in a module of device functions."""
    from .math import f32  # noqa: F401 - they register expansions
    from .ops import arithmetic, atomics, mma, sync  # noqa: F401 - the same

    functions: list[Kernel] = []
    for op in expansion.module.body.operations:
        func = op.operation
        if func.name != "func.func":
            continue
        name = func.attributes["sym_name"].value
        expansion.declared.add(name)
        if len(func.regions[0].blocks):
            kernel = Kernel(name, func, merge_smem=name in expansion.merged)
            functions.append(kernel)
            if cute.KERNEL in func.attributes:
                expansion.kernels[name] = kernel
    for kernel in functions:
        _expand_function(expansion, kernel)
    for kernel in functions:
        _place_smem(expansion, kernel)


def _is_own(value: ir.Value) -> bool:
    return isinstance(value.type, (cute.Ptr, cute.Memref))


def _expand_function(expansion: Expansion, kernel: Kernel) -> None:
    func = kernel.operation
    found: list[tuple[ir.Operation, Any]] = []
    casts: list[ir.Operation] = []
    others: list[ir.Value] = []
    accesses: dict[int, tuple[ir.Operation, str]] = {}
    handlers, advance = HANDLERS, ir.WalkResult.ADVANCE

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        own = name.startswith(("cute.", "cute_nvgpu."))
        if own or name in handlers:
            if name in store_forwarding.ACCESSES:
                accesses[len(found)] = (op, name)
            found.append((op, handlers.get(name)))
        if own or (name.startswith(_OF_NUMBERS) and name != "arith.select"):
            return advance
        if name == "builtin.unrealized_conversion_cast" and any(isinstance(r.type, ir.TupleType) for r in op.results):
            casts.append(op)
            return advance
        others.extend(filter(_is_own, op.results))
        for region in op.regions:
            for block in region.blocks:
                others.extend(filter(_is_own, block.arguments))
        return advance

    func.walk(visit, ir.WalkOrder.PRE_ORDER)
    gone = store_forwarding.hand_on(accesses)
    todo = [
        (op, handler, [v.type for v in op.operands] if _WANTS.get(handler, _ALL)[0] else [])
        for number, (op, handler) in enumerate(found)
        if number not in gone
    ]
    for value in others:
        value.set_type(device_type(value.type))
    signature = func.attributes["function_type"].value
    func.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(
            [device_type(t) for t in signature.inputs], [device_type(t) for t in signature.results], context()
        )
    )
    if cute.KERNEL in func.attributes:
        _global_arguments(func, list(signature.inputs))
    expander = Expander(expansion, kernel, func.regions[0].blocks[0])
    for op, handler, operands in todo:
        if handler is None:
            raise report_at(op.location, DSLNotImplemented, f"the NVIDIA target does not implement {op.name}")
        results = [r.type for r in op.results] if _WANTS[handler][1] else []
        values = handler(expander, op, operands, results, DeviceBuilder(ir.InsertionPoint(op), op.location))
        if values is None:
            continue
        for old, new in zip(op.results, values, strict=True):
            old.replace_all_uses_with(new)
        op.erase()
    for op in casts:
        op.erase()
    _join_registers(expander)


def _join_registers(x: Expander) -> None:
    """Put together the vectors that are still needed of fragments, and erase the operations that made them."""
    for value, parts in reversed(x.results.items()):
        op = value.owner.operation
        b = DeviceBuilder(ir.InsertionPoint(op), op.location)
        for use in list(value.uses):
            _take_part(x, b, use.owner.operation, parts)
        if any(True for _ in value.uses):
            value.replace_all_uses_with(x.joined(b, value.type, parts))
        operands = list(op.operands)
        op.erase()
        for operand in operands:
            store_forwarding.erase_unused(operand)


def _take_part(x: Expander, b: Builder, user: ir.Operation, parts: list[ir.Value]) -> None:
    """Let an operation that takes elements out of a fragment be those registers, if they are elements."""
    result = user.results[0] if len(user.results) == 1 else None
    if result is None or parts[0].type != element_of(result.type):
        return
    if user.name == "vector.extract" and (position := user.attributes["static_position"][0]) >= 0:
        result.replace_all_uses_with(parts[position])
        user.erase()
    elif user.name == "vector.extract_strided_slice":
        first = store_forwarding.first_element(user)
        count = result.type.shape[0]  # pyright: ignore[reportAttributeAccessIssue]
        result.replace_all_uses_with(x.joined(b, result.type, parts[first : first + count]))
        user.erase()


@functools.lru_cache(maxsize=256)
def _vector_type(count: int, element: ir.Type) -> ir.Type:
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context()))


def _global_arguments(func: ir.Operation, types: Types) -> None:
    """What the host hands to a kernel is global memory, also where the program says only "generic".

    `types` are those the arguments had in the dialect.
    """
    entry = func.regions[0].blocks[0]
    b = DeviceBuilder(ir.InsertionPoint.at_block_begin(entry), func.location)
    for argument, type_ in zip(entry.arguments, types, strict=True):
        if not isinstance(type_, (cute.Ptr, cute.Memref)) or cute.info(type_).space != "generic":
            continue
        leaves = cute.info(type_).leaves
        if not leaves:
            made = b.value("llvm.addrspacecast", ptr_type(), (argument,))
            argument.replace_all_uses_except(made, [made.owner.operation])
            argument.set_type(pointer_type(1))
            continue
        parts = [b.extract(argument, pointer_type(1), 0)]
        parts += [b.extract(argument, int_type(width), n + 1) for n, width in enumerate(leaves)]
        own = [part.owner.operation for part in parts]
        made = b.value("llvm.mlir.undef", argument.type)
        for number, part in enumerate([b.value("llvm.addrspacecast", ptr_type(), (parts[0],)), *parts[1:]]):
            made = b.insert(made, part, number)
        argument.replace_all_uses_except(made, own)
        argument.set_type(struct_type([pointer_type(1), *map(int_type, leaves)]))
    signature = func.attributes["function_type"].value
    func.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get([a.type for a in entry.arguments], list(signature.results), context())
    )


def _place_smem(expansion: Expansion, kernel: Kernel) -> None:
    """Static shared memory as variables or, past the static limit, at the start of dynamic shared memory."""
    offsets = _smem_offsets(kernel)
    if kernel.smem_bytes > MAX_STATIC_SMEM:
        base, start_of_dynamic = _dynamic_variable(expansion), -(-kernel.smem_bytes // DYNAMIC_SMEM_ALIGNMENT)
    elif kernel.merge_smem and kernel.smem:
        size, alignment = kernel.smem_bytes, max(alignment for _, _, alignment in kernel.smem)
        name = f"{kernel.name}_smem"
        base = expansion.variable(name, parsed_type(f"!llvm.array<{size} x i8>"), 3, alignment)
        start_of_dynamic = 0
    else:
        for name, size, alignment in kernel.smem:
            expansion.variable(name, parsed_type(f"!llvm.array<{size} x i8>"), 3, alignment)
        return
    start_of_dynamic *= DYNAMIC_SMEM_ALIGNMENT
    if base == DYNAMIC_SMEM:
        offsets[DYNAMIC_SMEM] = start_of_dynamic
    todo = [op for op in kernel.smem_addresses if op.attributes["global_name"].value in offsets]
    for op in todo:
        b = DeviceBuilder(ir.InsertionPoint(op), op.location)
        start = offsets[op.attributes["global_name"].value]
        op.result.replace_all_uses_with(b.byte_gep(b.address_in(base, 3), start))
        op.erase()
    for op in kernel.smem_sizes if start_of_dynamic else ():  # the program asks for what the launch gave
        b = DeviceBuilder(ir.InsertionPoint.after(op), op.location)
        asked = b.binary("subi", op.result, b.i32(start_of_dynamic))
        op.result.replace_all_uses_except(asked, [asked.owner.operation])


def _smem_offsets(kernel: Kernel) -> dict[str, int]:
    """Where each piece of static shared memory lies; how much there is becomes known."""
    sizes = {name: (size, alignment) for name, size, alignment in kernel.smem}
    offsets: dict[str, int] = {}

    def place(name: str, end: int) -> int:
        size, alignment = sizes[name]
        offsets[name] = -(-end // alignment) * alignment
        return offsets[name] + size

    def visit(block: ir.Block, end: int) -> int:
        for item in block.operations:
            op = item.operation
            if op.name == "llvm.mlir.addressof" and op.attributes["global_name"].value in sizes.keys() - offsets.keys():
                end = place(op.attributes["global_name"].value, end)
            # the branches of an `if` begin at the same place; what comes after begins where the longer one ends
            branches = op.name == "scf.if"
            ends = [end]
            for region in op.regions:
                for inner in region.blocks:
                    ends.append(visit(inner, end if branches else ends[-1]))
            end = max(ends)
        return end

    end = visit(kernel.operation.regions[0].blocks[0], 0) if kernel.merge_smem else 0
    for name in sizes:
        if name not in offsets:
            end = place(name, end)
    kernel.smem_bytes = end
    return offsets


def _dynamic_variable(expansion: Expansion) -> str:
    return expansion.variable(
        DYNAMIC_SMEM, parsed_type("!llvm.array<0 x i8>"), 3, DYNAMIC_SMEM_ALIGNMENT, linkage="external"
    )


def attribute(op: ir.Operation, name: str) -> Any:
    """The value of an attribute."""
    return op.attributes[name].value


# --- where a thread is -----------------------------------------------------------------------------------------------

_REGISTERS = {"thread_idx": "tid", "block_idx": "ctaid", "block_dim": "ntid", "grid_dim": "nctaid"}


def special_register(b: Builder, name: str) -> ir.Value:
    """A 32-bit special register by its PTX name."""
    return b.value(f"nvvm.read.ptx.sreg.{name}", int_type(32))


@expands(*(f"cute.{name}" for name in _REGISTERS))
def _index(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    which, dim = op.name.removeprefix("cute."), attribute(op, "dim")
    return [_block_dim(x, b, dim) if which == "block_dim" else special_register(b, f"{_REGISTERS[which]}.{'xyz'[dim]}")]


def _block_dim(x: Expander, b: Builder, dim: int) -> ir.Value:
    known = x.module.blocks.get(x.kernel.name)
    return b.i32(known[dim]) if known else special_register(b, f"ntid.{'xyz'[dim]}")


@expands("cute.lane_idx")
def _lane_idx(_x: Expander, _op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [special_register(b, "laneid")]


@expands("cute.warp_idx")
def _warp_idx(x: Expander, _op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    tx, ty, tz = (special_register(b, f"tid.{axis}") for axis in "xyz")
    dx, dy = (_block_dim(x, b, dim) for dim in range(2))
    linear = b.binary("addi", tx, b.binary("muli", dx, b.binary("addi", ty, b.binary("muli", dy, tz))))
    return [b.binary("shrui", linear, b.i32(5))]


# --- reporting -------------------------------------------------------------------------------------------------------


@expands("cute.printf")
def _printf(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.kernel.prints = True
    arguments = cute.unpack(op.operands[0])
    x.module.declare("vprintf", [ptr_type(), ptr_type()], [int_type(32)])
    for text, count in printf_parts(attribute(op, "format")):
        values, arguments = arguments[:count], arguments[count:]
        format_ = b.cast_space(b.address_in(x.module.string(text), 1), ptr_type())
        buffer = b.null()
        if values:
            struct = struct_type([a.type for a in values])
            buffer = x.at_entry(op.location).alloca(struct, 1, 8)
            for number, value in enumerate(values):
                b.store(value, b.field(buffer, struct, number))
        b.call("vprintf", [int_type(32)], [format_, buffer])
    return []


_CONVERSION = re.compile(r"%%|%[-+ #0]*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j)?[a-zA-Z]")
_MOST_PRINTED = 32
"""Values that one call of the device's printf takes: it leaves out what is beyond. Text of one call comes out in one piece."""


def printf_parts(text: str) -> list[tuple[str, int]]:
    """A format cut into formats of at most 32 conversions, each with how many it has."""
    parts: list[tuple[str, int]] = []
    start = count = 0
    for found in _CONVERSION.finditer(text):
        if found.group() == "%%":
            continue
        if count == _MOST_PRINTED:
            parts.append((text[start : found.start()], count))
            start, count = found.start(), 0
        count += 1
    return [*parts, (text[start:], count)]


@expands("cute.assert_")
def _assert(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    """The first thread that fails fills the module's fault record; the host reads it after the kernel."""
    condition, packed = op.operands
    arguments = cute.unpack(packed)
    span, calls = source_span(op.location)
    types = tuple(str(a.type) for a in arguments)
    x.module.sites.append(Site("assert", attribute(op, "message"), span, calls, x.kernel.name, types))
    x.kernel.asserts = True
    size = 4 * FAULT_HEADER + 8 * FAULT_VALUES
    type_ = parsed_type(f"!llvm.array<{size} x i8>")
    zero = ir.Attribute.parse("#llvm.zero", context())
    x.module.variable(FAULT_RECORD, type_, 1, 8, zero, "external")
    body = b.if_(b.binary("xori", condition, b.const(int_type(1), 1)))
    failed = DeviceBuilder(body.point, body.location)
    record = failed.address_in(FAULT_RECORD, 1)
    claimed = failed.atomic("xchg", record, failed.i32(1))
    inner = failed.if_(failed.compare("eq", claimed, failed.i32(0)))
    first = DeviceBuilder(inner.point, inner.location)
    where = [special_register(first, f"{name}.{axis}") for name in ("ctaid", "tid") for axis in "xyz"]
    for number, value in enumerate([first.i32(len(x.module.sites) - 1), *where]):
        first.store(value, first.byte_gep(record, 4 * (number + 1)))
    for number, value in enumerate(arguments):
        first.store(value, first.byte_gep(record, 4 * FAULT_HEADER + 8 * number))
    return []


@expands("cute.launch")
def _launch(_x: Expander, op: ir.Operation, _o: Types, _r: Types, _b: DeviceBuilder) -> list[ir.Value]:
    raise report_at(op.location, CompilerDiagnosticError, "a kernel launches a kernel")


# --- pointers and memrefs --------------------------------------------------------------------------------------------


@expands("cute.int_to_ptr")
def _int_to_ptr(_x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [b.value("llvm.inttoptr", device_type(results[0]), (op.operands[0],))]


@expands("cute.ptr_to_int")
def _ptr_to_int(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [b.value("llvm.ptrtoint", int_type(64), (op.operands[0],))]


@expands("cute.cast_ptr")
def _cast_ptr(_x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [b.cast_space(op.operands[0], device_type(results[0]))]


@expands("cute.cast_memref")
def _cast_memref(_x: Expander, op: ir.Operation, operands: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    value, want = op.operands[0], device_type(results[0])
    if value.type == want:
        return [value]
    leaves = cute.info(operands[0]).leaves
    pointer = b.cast_space(pointer_of(b, value, operands[0]), pointer_type(_SPACES[cute.info(results[0]).space]))
    if not leaves:
        return [pointer]
    made = b.insert(b.value("llvm.mlir.undef", want), pointer, 0)
    for number, width in enumerate(leaves):
        made = b.insert(made, b.extract(value, int_type(width), number + 1), number + 1)
    return [made]


def element_address(b: DeviceBuilder, pointer: ir.Value, element: ir.Type, offset: ir.Value) -> ir.Value:
    """The address of the byte in which the element `offset` elements on begins."""
    bits = cute.element_bits(element)
    if bits >= 8:
        stored = int_type(bits) if bits in (8, 16, 32, 64) else parsed_type(f"!llvm.array<{bits // 8} x i8>")
        return b.gep(pointer, stored, constant_value(offset, offset))
    return b.byte_gep(pointer, b.binary("shrsi", offset, b.const(offset.type, {4: 1, 2: 2}[bits])))


@expands("cute.ptr_add")
def _ptr_add(_x: Expander, op: ir.Operation, operands: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    pointer, offset = op.operands
    return [element_address(b, pointer, cute.info(operands[0]).element, offset)]


@expands("cute.view")
def _view(_x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    pointer, *leaves = op.operands
    if not leaves:
        return [pointer]
    made = b.insert(b.value("llvm.mlir.undef", device_type(results[0])), pointer, 0)
    widths = cute.info(results[0]).leaves
    narrow, wide = iter(leaves[: widths.count(32)]), iter(leaves[widths.count(32) :])
    for number, width in enumerate(widths):
        made = b.insert(made, next(narrow if width == 32 else wide), number + 1)
    return [made]


def pointer_of(b: DeviceBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """The pointer in a device value that had type `type_`."""
    if cute.is_memref(type_) and cute.info(type_).leaves:
        return b.extract(value, pointer_type(_SPACES[cute.info(type_).space]), 0)
    return value


@expands("cute.iter")
def _iter(_x: Expander, op: ir.Operation, operands: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [b.cast_space(pointer_of(b, op.operands[0], operands[0]), device_type(results[0]))]


@expands("cute.leaf")
def _leaf(_x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [b.extract(op.operands[0], results[0], attribute(op, "index") + 1)]


def _alignment(op: ir.Operation, element: ir.Type) -> int:
    return attribute(op, "alignment") if "alignment" in op.attributes else cute.element_bytes(element)


@functools.lru_cache(maxsize=1024)
def _stored_type(element: ir.Type) -> ir.Type:
    """The LLVM type of an element in memory."""
    carrier = carrier_type(element)
    if isinstance(carrier, ir.IntegerType) and cute.element_bits(element) != carrier.width:
        return int_type(cute.element_bits(element))
    return carrier


@functools.lru_cache(maxsize=1024)
def _word_type(type_: ir.Type, alignment: int) -> ir.Type | None:
    """Words to move a vector of narrow elements in: LLVM splits vectors of many small elements into small accesses."""
    if not isinstance(type_, ir.VectorType) or len(type_.shape) != 1:
        return None
    bits = type_.shape[0] * type_.element_type.width
    if type_.element_type.width >= 32 or bits < 32 or bits % 32 or alignment < 4:
        return None
    return (
        int_type(32)
        if bits == 32
        else ir.VectorType.get([bits // 32], int_type(32), loc=ir.Location.unknown(context()))
    )


@expands("cute.load")
def _load(x: Expander, op: ir.Operation, operands: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    source, offset = op.operands
    element = cute.info(operands[0]).element
    address = element_address(b, pointer_of(b, source, operands[0]), element, offset)
    type_, stored = results[0], _stored_type(element)
    if cute.element_bits(element) < 8 and not isinstance(type_, ir.VectorType):
        byte = b.load(int_type(8), address, 1)
        value = b.value("arith.trunci", stored, (b.binary("shrui", byte, _bit_position(b, offset, element)),))
        return [from_carrier(b, value, device_type(type_))]
    memory, alignment = like(type_, stored), _alignment(op, element)
    words = _word_type(memory, alignment)
    if x.module.wide_accesses and wide_access.is_wide(memory, address, alignment):
        value = wide_access.load(b, memory, address)
    else:
        value = b.load(words or memory, address, alignment)
        if words:
            value = b.value("llvm.bitcast", memory, (value,))
    carrier = carrier_type(type_)
    if value.type != carrier:  # a byte per boolean, a byte per 6-bit float
        if str(element) == "i1":
            value = b.compare("ne", value, b.const(value.type, 0))
        else:
            value = b.value("arith.trunci", carrier, (value,))
    return [from_carrier(b, value, device_type(type_))]


@expands("cute.store")
def _store(x: Expander, op: ir.Operation, operands: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    value, target, offset = op.operands
    element = cute.info(operands[1]).element
    address = element_address(b, pointer_of(b, target, operands[1]), element, offset)
    type_, stored = operands[0], _stored_type(element)
    value = to_carrier(b, value)
    if cute.element_bits(element) < 8 and not isinstance(type_, ir.VectorType):
        position = _bit_position(b, offset, element)
        byte = b.load(int_type(8), address, 1)
        mask = b.binary("shli", b.const(int_type(8), (1 << cute.element_bits(element)) - 1), position)
        kept = b.binary("andi", byte, b.binary("xori", mask, b.const(int_type(8), 255)))
        new = b.binary("shli", b.value("arith.extui", int_type(8), (value,)), position)
        b.store(b.binary("ori", kept, new), address, 1)
        return []
    memory, alignment = like(type_, stored), _alignment(op, element)
    if value.type != memory:
        value = b.value("arith.extui", memory, (value,))
    words = _word_type(memory, alignment)
    if x.module.wide_accesses and wide_access.is_wide(memory, address, alignment):
        wide_access.store(b, value, address)
    else:
        b.store(b.value("llvm.bitcast", words, (value,)) if words else value, address, alignment)
    return []


def _bit_position(b: Builder, offset: ir.Value, element: ir.Type) -> ir.Value:
    """Where a packed element starts in its byte, as an i8."""
    bits = cute.element_bits(element)
    low = b.value("arith.trunci", int_type(8), (offset,))
    return b.binary("muli", b.binary("andi", low, b.const(int_type(8), 8 // bits - 1)), b.const(int_type(8), bits))


@expands("cute.alloc_rmem")
def _alloc_rmem(x: Expander, op: ir.Operation, _o: Types, results: Types, _b: DeviceBuilder) -> list[ir.Value]:
    pointer = cute.info(results[0])
    size = (cute.element_bits(pointer.element) * attribute(op, "count") + 7) // 8
    # at the function's entry: LLVM keeps in registers only what is allocated there
    return [x.at_entry(op.location).alloca(int_type(8), max(size, 1), max(pointer.alignment, 1))]


@expands("cute.alloc_smem")
def _alloc_smem(x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    name = f"{x.kernel.name}_smem_{len(x.kernel.smem)}"
    x.kernel.smem.append((name, max(attribute(op, "bytes"), 1), max(attribute(op, "alignment"), 1)))
    address = b.address_in(name, 3)
    x.kernel.smem_addresses.append(address.owner.operation)
    return [b.cast_space(address, device_type(results[0]))]


@expands("cute.dynamic_smem")
def _dynamic_smem(x: Expander, _op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.kernel.dynamic = True
    _dynamic_variable(x.module)
    address = b.address_in(DYNAMIC_SMEM, 3)
    x.kernel.smem_addresses.append(address.owner.operation)
    return [b.cast_space(b.hidden(address), device_type(results[0]))]


@expands("cute.bounds")
def _bounds(_x: Expander, _op: ir.Operation, _o: Types, _r: Types, _b: DeviceBuilder) -> list[ir.Value]:
    return []  # the sanitizer is the CPU target's


@expands("cute.through")
def _through(_x: Expander, op: ir.Operation, _o: Types, _r: Types, _b: DeviceBuilder) -> list[ir.Value]:
    return [op.operands[0]]


@expands("cute.undef")
def _undef(_x: Expander, _op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    # zero, not undef: what depends on it by mistake is at least the same every time
    return [from_carrier(b, b.value("llvm.mlir.zero", carrier_type(results[0])), device_type(results[0]))]
