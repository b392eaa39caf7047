"""Links device functions from outside: bitcode of `cute.extern`, of `LinkLibraries`, and libdevice.

A call passes values as its declaration in Python says. clang passes structures in memory (`byval`), `__half` too, and a
pointer may be declared as an integer: so calls are changed to the signature that the bitcode has.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import CompilerDiagnosticError, DSLRuntimeError
from ...base_dsl.options import CompileOptions
from ...dialects.cute import external
from ...hardware import toolchain
from ...llvm import binding as llvm
from ...mlir import context, ir
from ..lowering.builder import Builder, int_type, operations, parsed_type, ptr_type, symbol, translate
from . import codegen

_DATA_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
"""That of device code, for sizes of structures."""


class Parameter(NamedTuple):
    """A parameter of a function in bitcode; types are texts of MLIR."""

    type_: str
    attributes: str
    """Its attributes in MLIR."""
    value: str = ""
    """The type of the value in memory that a pointer passes."""
    size: int = 0
    """The bytes of that."""


class Signature(NamedTuple):
    """A function that bitcode defines."""

    result: str
    parameters: tuple[Parameter, ...]
    text: str
    """It in LLVM's words."""


class Library(NamedTuple):
    """A file of bitcode."""

    path: str
    digest: str


class Part(NamedTuple):
    """Functions of a file of bitcode, and what they need."""

    bitcode: bytes
    functions: dict[str, Signature]
    """The functions that were asked for and are there."""
    names: tuple[str, ...]
    """All functions that the file defines."""
    missing: frozenset[str]
    """The functions that are called and not defined."""


def of_options(options: CompileOptions) -> list[Library]:
    """Return the bitcode of `LinkLibraries`."""
    libraries: list[Library] = []
    for path in filter(None, map(str.strip, options.link_libraries.split(","))):
        try:
            libraries.append(Library(os.path.abspath(path), external.digest(path)))
        except OSError as reason:
            raise DSLRuntimeError(f"LinkLibraries: {reason}", hint="paths of LLVM bitcode files") from None
    return libraries


def resolve(device: ir.Module, libraries: list[Library]) -> list[bytes]:
    """Let calls of device functions from outside have the signatures of the bitcode that defines them.

    Returns the bitcode to link: of the libraries of the options, and of those that the calls name or need.
    """
    calls = external.calls_in(device)
    if not calls:
        return [_content(library.path) for library in libraries]
    linked = dict.fromkeys(libraries)
    linked.update({Library(call.library, call.digest): None for call in calls if call.library})
    needed = {call.symbol for call in calls} | {
        symbol(op) for op in operations(device) if not len(op.regions[0].blocks)
    }
    parts: dict[Library, Part] = {}
    while missing := needed - {name for part in parts.values() for name in part.functions}:
        if any(name.startswith("__nv_") for name in missing):
            linked.update(dict.fromkeys(_libdevice(calls)))
        before = {library: part.functions for library, part in parts.items()}
        for library in linked:
            if library not in parts or missing & {*parts[library].names}:
                parts[library] = _part(library, frozenset(needed), calls[0])
        needed = needed.union(*(part.missing for part in parts.values()))
        if before == {library: part.functions for library, part in parts.items()}:
            break
    with context():
        for call in calls:
            _adapt(device, call, _signature(call, parts))
        external.drop_declarations(device)
    return [part.bitcode for part in parts.values()]


def refuse_on_host(module: ir.Module) -> None:
    """Refuse calls of device functions from outside in host code, and drop what kernels needed of them."""
    for call in external.calls_in(module):
        raise report_at(
            call.operation.location,
            CompilerDiagnosticError,
            f"{call.symbol} is a device function, called in host code",
            hint="call it in a function decorated with @kernel",
        )
    external.drop_declarations(module)


def _libdevice(calls: Sequence[external.Call]) -> list[Library]:
    path = toolchain.libdevice()
    if path is not None:
        return [Library(str(path), external.digest(path))]
    of_libdevice = [call for call in calls if call.symbol.startswith("__nv_")]
    call = [*of_libdevice, *calls][0]
    message = f"{call.symbol} needs libdevice.10.bc, which was not found"
    hint = "pip install nvidia-nvvm, or set CUDA_HOME"
    raise report_at(call.operation.location, CompilerDiagnosticError, message, hint=hint)


def _signature(call: external.Call, parts: Mapping[Library, Part]) -> Signature:
    """Return the signature of the function that is called."""
    import difflib

    for library in sorted(parts, key=lambda library: library.path != call.library):  # its own library first
        if call.symbol in parts[library].functions:
            return parts[library].functions[call.symbol]
    where = call.library or ", ".join(library.path for library in parts)
    message = f"{where} does not define {call.symbol}" if where else f"no library defines {call.symbol}"
    near = difflib.get_close_matches(call.symbol, [name for part in parts.values() for name in part.names], 3)
    hint = "source=cute.BitCode(path), or LinkLibraries(path), names bitcode"
    if near:
        hint = f"it defines {', '.join(near)}"
    raise report_at(call.operation.location, CompilerDiagnosticError, message, hint=hint)


def _part(library: Library, symbols: frozenset[str], call: external.Call) -> Part:
    try:
        return part_of(library, symbols)
    except RuntimeError as reason:
        raise report_at(
            call.operation.location,
            CompilerDiagnosticError,
            f"{library.path} is not LLVM bitcode that LLVM {'.'.join(map(str, llvm.llvm_version_info))} reads: {reason}",
            hint="clang -emit-llvm -c makes such a file; text (.ll) and objects of nvcc are none",
        ) from None


# --- what bitcode defines ----------------------------------------------------------------------------------------------


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@functools.lru_cache(maxsize=64)
def part_of(library: Library, symbols: frozenset[str]) -> Part:
    """Return functions of a file of bitcode, with what they need; raises RuntimeError with LLVM's message if it is none.

    The 53 MB of NVSHMEM take LLVM ten seconds to read: the part is kept, for further compilations with the same functions.
    """
    module = llvm.parse_bitcode(_content(library.path), llvm.create_context())
    layout = llvm.create_target_data(_DATA_LAYOUT)
    structures = {str(structure.name): structure for structure in module.struct_types}
    functions: dict[str, Signature] = {}
    names: list[str] = []
    for function in module.functions:
        if function.is_declaration:
            continue
        names.append(function.name)
        if function.name not in symbols:
            function.linkage = "internal"
            continue
        type_ = function.global_value_type
        result, *_ = type_.elements
        parameters = tuple(_parameter(argument, structures, layout) for argument in function.arguments)
        functions[function.name] = Signature(_mlir(result), parameters, str(type_))
    codegen.drop_unused(module)
    declared = {function.name for function in module.functions if function.is_declaration}
    missing = frozenset(name for name in declared if not name.startswith("llvm."))
    return Part(module.as_bitcode(), functions, tuple(names), missing)


def _parameter(argument: llvm.ValueRef, structures: dict[str, llvm.TypeRef], layout: llvm.TargetData) -> Parameter:
    attributes = [text.decode() for text in argument.attributes]
    said = [f"llvm.{name}" for name in ("zeroext", "signext") if name in attributes]
    value = ""
    size = 0
    for text in attributes:
        name, _, inside = text.partition("(")
        if name == "byval":
            type_ = structures[inside[:-1].strip('%"')]
            value = _mlir(type_)
            size = layout.get_abi_size(type_)
            said.append(f"llvm.byval = {value}")
        elif text.startswith("align "):
            said.append(f"llvm.align = {text.split()[1]} : i64")
    return Parameter(_mlir(argument.type), f"{{{', '.join(said)}}}", value, size)


_KINDS = {"void": "!llvm.void", "half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def _mlir(type_: llvm.TypeRef) -> str:
    """Return a type of LLVM as MLIR writes it."""
    text = str(type_)
    if type_.is_pointer:
        space = text.partition("addrspace(")[2].rstrip(")")
        return f"!llvm.ptr<{space}>" if space else "!llvm.ptr"
    if type_.is_struct:
        fields = ", ".join(map(_mlir, type_.elements))
        body = f"<({fields})>" if type_.is_packed_struct else f"({fields})"
        body = f"packed {body}" if type_.is_packed_struct else body
        return f'!llvm.struct<"{type_.name}", {body}>' if type_.name else f"!llvm.struct<{body}>"
    if type_.is_array:
        (element,) = set(type_.elements)
        return f"!llvm.array<{type_.element_count} x {_mlir(element)}>"
    if type_.is_vector:
        (element,) = set(type_.elements)
        return f"vector<{type_.element_count}x{_mlir(element)}>"
    return _KINDS.get(text, text)


# --- calls -------------------------------------------------------------------------------------------------------------


def _adapt(device: ir.Module, call: external.Call, signature: Signature) -> None:
    """Replace a call by one with the signature of the bitcode."""
    op = call.operation
    operands = list(op.operands)
    if len(operands) != len(signature.parameters):
        raise _mismatch(
            call, signature, f"it takes {len(signature.parameters)} arguments, the declaration has {len(operands)}"
        )
    b = Builder(ir.InsertionPoint(op), op.location)
    passed: list[ir.Value] = []
    for number, (value, parameter) in enumerate(zip(operands, signature.parameters, strict=True), 1):
        converted = _converted(b, value, parameter)
        if converted is None:
            what = f"argument {number} is declared as {value.type}, and is {parameter.value or parameter.type_}"
            raise _mismatch(call, signature, what)
        passed.append(converted)
    _declare(device, call.symbol, signature)
    attributes = {
        "callee": ir.FlatSymbolRefAttr.get(call.symbol, context()),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(passed), 0], context()),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([], context()),
        **_argument_attributes(signature),  # without `byval` here LLVM takes stores to what is passed for dead
    }
    has_result = signature.result != "!llvm.void"
    linked = b.op("llvm.call", [parsed_type(signature.result)] if has_result else [], passed, attributes)
    if len(op.results):
        result = _converted(b, linked.results[0], Parameter(str(op.results[0].type), "")) if has_result else None
        if result is None:
            said = f"the result is declared as {op.results[0].type}, and is {signature.result.removeprefix('!llvm.')}"
            raise _mismatch(call, signature, said)
        op.results[0].replace_all_uses_with(result)
    op.erase()


def _mismatch(call: external.Call, signature: Signature, what: str) -> Exception:
    message = f"{call.symbol} is {signature.text} in the bitcode: {what}"
    hint = "declare it with the types of its definition"
    return report_at(call.operation.location, CompilerDiagnosticError, message, hint=hint)


def _declare(device: ir.Module, name: str, signature: Signature) -> None:
    if any(symbol(op) == name and external.LIBRARY not in op.attributes for op in operations(device)):
        return
    for op in operations(device):  # the declaration of Python has the name
        if symbol(op) == name:
            op.attributes["sym_name"] = ir.StringAttr.get(f"{name}.declared")
    taken = ", ".join(parameter.type_ for parameter in signature.parameters)
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(parsed_type(f"!llvm.func<{signature.result} ({taken})>")),
    }
    attributes.update(_argument_attributes(signature))
    point = ir.InsertionPoint.at_block_begin(device.body)
    ir.Operation.create("llvm.func", attributes=attributes, regions=1, loc=ir.Location.unknown(), ip=point)


def _argument_attributes(signature: Signature) -> dict[str, ir.Attribute]:
    texts = [parameter.attributes for parameter in signature.parameters]
    return {"arg_attrs": ir.Attribute.parse(f"[{', '.join(texts)}]")} if texts else {}


def _converted(b: Builder, value: ir.Value, parameter: Parameter) -> ir.Value | None:
    """Return a value as a parameter takes it, None if that is of another kind or size."""
    type_ = parsed_type(parameter.type_)
    if parameter.value:
        return _in_memory(b, value, parameter, type_)
    if value.type == type_:
        return value
    pair = (value.type, type_)
    if external.is_llvm_pointer(*pair):
        return b.value("llvm.addrspacecast", type_, (value,))
    if value.type == int_type(64) and external.is_llvm_pointer(type_):
        return b.value("llvm.inttoptr", type_, (value,))
    if type_ == int_type(64) and external.is_llvm_pointer(value.type):
        return b.value("llvm.ptrtoint", type_, (value,))
    if pair == (int_type(1), int_type(8)):
        return b.value("arith.extui", type_, (value,))
    if pair == (int_type(8), int_type(1)):
        return b.compare("ne", value, 0)
    if {str(one) for one in pair} in ({"i16", "f16"}, {"i16", "bf16"}):
        return b.value("arith.bitcast", type_, (value,))
    structures = [one for one in pair if str(one).startswith("!llvm.struct")]
    if not structures or _size(value.type) != _size(type_):
        return None
    memory = _slot(b, type_)
    b.store(value, memory)
    return b.load(type_, memory)


def _in_memory(b: Builder, value: ir.Value, parameter: Parameter, type_: ir.Type) -> ir.Value | None:
    """Return the address of a value; of a pointer to one, where it is larger than a pointer, the pointer."""
    size = _size(value.type)
    if size != parameter.size:
        is_address = external.is_llvm_pointer(value.type)
        return value if is_address and value.type == type_ else None
    memory = _slot(b, parsed_type(parameter.value))
    b.store(value, memory)
    return memory


def _slot(b: Builder, type_: ir.Type) -> ir.Value:
    """Return the address of memory for a value, at the start of the function: it is allocated once."""
    block = b.point.block
    while block.owner.name not in ("func.func", "llvm.func"):
        block = block.owner.operation.block
    entry = block.region.blocks[0]
    first = Builder(ir.InsertionPoint.at_block_begin(entry), b.location)
    one = first.value("llvm.mlir.constant", int_type(64), (), {"value": ir.IntegerAttr.get(int_type(64), 1)})
    return first.value("llvm.alloca", ptr_type(), (one,), {"elem_type": ir.TypeAttr.get(type_)})


def _size(type_: ir.Type) -> int:
    """Return the bytes of a type in memory."""
    return _size_of(str(type_))


@functools.lru_cache(maxsize=1024)
def _size_of(text: str) -> int:
    with context(), ir.Location.unknown():
        module = ir.Module.parse(f"llvm.mlir.global external @x() : {text}")
        parsed = llvm.parse_assembly(translate(module), llvm.create_context())
    (variable,) = parsed.global_variables
    return llvm.create_target_data(_DATA_LAYOUT).get_abi_size(variable.global_value_type)
