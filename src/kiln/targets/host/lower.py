"""The lowering of host code: from a module with `cute` operations to LLVM IR text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...base_dsl.compiler import Compilation, report_at
from ...base_dsl.diagnostics import CompilerDiagnosticError, DSLRuntimeError
from ...base_dsl.numeric.expand import expand_narrow_floats
from ...base_dsl.target import slot_layout
from ...dialects.cute import LAYOUT
from ...mlir import context, ir
from ..lowering import arithmetic as shared_arithmetic
from ..lowering import memory
from ..lowering.builder import Builder, function, int_type, operations, ptr_type, symbol, translate
from ..lowering.expansion import combined
from ..lowering.llvm_text import bf16_as_integers, fix_float_literals
from ..lowering.memory import carrier_type, from_carrier, to_carrier
from ..lowering.vector_legalisation import LONGEST_ON_HOST, legalise_vectors
from . import arithmetic, call_context, loops, math, ops, splitting, tensor_map_encode
from .call_context import WRAPPER
from .expand import Expansion, expand_module, host_type
from .process_symbols import has_symbol

HANDLERS = combined(
    shared_arithmetic.HANDLERS,
    memory.HANDLERS,
    arithmetic.HANDLERS,
    math.HANDLERS,
    loops.HANDLERS,
    ops.HANDLERS,
    tensor_map_encode.HANDLERS,
)
"""How host code expands operations."""

# Passes that find nothing to do still walk the module, so their number is kept small.
TO_LLVM = (
    "convert-math-to-funcs{min-width-of-fpowi-exponent=33},convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-index-to-llvm,convert-ub-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)


_MOST_INLINED = 2000
"""Operations of a kernel that is inlined in the loop over its threads, where LLVM may do several threads at a time.

To find out whether it can takes time with the square of their number: 0.7 s for 2,000.
"""


def lower(compilation: Compilation, expansion: Expansion) -> str:
    """Return the LLVM IR text of a module whose entry the compilation names, by way of an expansion."""
    entry = compilation.name
    with context():
        compilation.run("narrow-floats", expand_narrow_floats)
        compilation.run("vector-legalisation", lambda module: legalise_vectors(module, LONGEST_ON_HOST))
        signature = _signature(compilation.module, entry)
        compilation.run("expansion", lambda _: expand_module(expansion))
        compilation.run("wrap-entry", lambda module: _wrap(expansion, module, entry, *signature))
        compilation.run("splitting", splitting.group_structured)
        compilation.run("llvm-conversion", TO_LLVM)
        compilation.run("finish", expansion.finish_lowered)
        compilation.run("attributes", lambda module: _attributes(expansion, module))
        missing = _missing_functions(compilation.module)
        compilation.check_lowered(lambda op: _legal(op, missing, expansion.target))
        with compilation.stage("translate"):
            return bf16_as_integers(fix_float_literals(translate(compilation.module)))


def lower_library(module: ir.Module, name: str, exports: Sequence[str]) -> str:
    """Return the LLVM IR text of a module of native functions; only `exports` are visible."""
    compilation = Compilation(module, name)
    with context():
        module.operation.verify()
        compilation.run("llvm-conversion", TO_LLVM)
        for op in operations(module):
            if op.name == "llvm.func" and symbol(op) not in exports:
                _set_internal(op)
        compilation.check_lowered(lambda op: _legal(op, set(), "the runtime"))
        return fix_float_literals(translate(module))


def _set_internal(func: ir.Operation) -> None:
    if len(func.regions[0].blocks):
        func.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")


def _signature(module: ir.Module, entry: str) -> tuple[list[ir.Type], list[ir.Type], ir.Location, list[str | None]]:
    """Return argument types, result types, location, and the layouts of arrays for instrumented builds."""
    for func in operations(module):
        if func.name == "func.func" and symbol(func) == entry:
            type_ = func.attributes["function_type"].value
            layouts: list[str | None] = []
            if "arg_attrs" in func.attributes:
                for described in func.attributes["arg_attrs"]:
                    layouts.append(described[LAYOUT].value if LAYOUT in described else None)
                del func.attributes["arg_attrs"]
            return list(type_.inputs), list(type_.results), func.location, layouts
    raise CompilerDiagnosticError(f"the module has no function {entry}")


def _wrap(
    expansion: Expansion,
    module: ir.Module,
    entry: str,
    inputs: Sequence[ir.Type],
    results: Sequence[ir.Type],
    location: ir.Location,
    layouts: Sequence[str | None],
) -> None:
    """Make `ptr kiln_entry(slots)`: read the arguments, call the entry, write the results; null, or what to report."""
    try:
        offsets, _ = slot_layout([*inputs, *results])
    except DSLRuntimeError as reason:
        raise report_at(location, CompilerDiagnosticError, reason.message) from None
    ptr = ptr_type()
    i32 = int_type(32)
    i64 = int_type(64)
    expansion.declare("kiln_cpu_finish", [ptr], [ptr])

    def body(b: Builder, slots: ir.Value, ctx: ir.Value) -> None:
        arguments = [_read(b, slots, offset, type_) for offset, type_ in zip(offsets, inputs)]
        expansion.announce(b, inputs, arguments, layouts)
        call = b.call(entry, [host_type(t) for t in results], [*arguments, ctx])
        for offset, value in zip(offsets[len(inputs) :], call.results, strict=True):
            _write(b, slots, offset, value)

    wrapper = function(module, WRAPPER, [ptr], [ptr])
    block = wrapper.regions[0].blocks[0]
    slots = block.arguments[0]
    b = Builder(ir.InsertionPoint(block), location)
    ctx = b.alloca(i64, call_context.SIZE // 8)
    for field, type_ in (("status", i32), ("lock", i32), ("stream", i64), ("stop", i32), ("details", i64)):
        b.store(b.const(type_, 0), b.byte_gep(ctx, call_context.offset(field)))
    host = [state for state in expansion.functions.values() if not state.is_kernel]
    may_be_long = any(state.loops for state in host)
    if may_be_long:  # Ctrl-C stops its loops
        expansion.declare("kiln_cpu_watch", [], [])
        b.call("kiln_cpu_watch", [], [])
    if any(state.accesses for state in host):
        _guarded(expansion, b, body, entry, slots, ctx)
    else:
        body(b, slots, ctx)
    if may_be_long:
        expansion.declare("kiln_cpu_unwatch", [], [])
        b.call("kiln_cpu_unwatch", [], [])
    report = b.call("kiln_cpu_finish", [ptr], [ctx]).results[0]
    b.op("func.return", (), (report,))


def _guarded(
    expansion: Expansion,
    b: Builder,
    body: Callable[[Builder, ir.Value, ir.Value], None],
    entry: str,
    slots: ir.Value,
    ctx: ir.Value,
) -> None:
    """Emit a guarded call of host code: an access outside memory is a fault of the call (`signal_handler.py`)."""
    ptr = ptr_type()
    i32 = int_type(32)
    i64 = int_type(64)
    inner = f"{WRAPPER}.guarded"
    block = function(expansion.module, inner, [ptr], []).regions[0].blocks[0]
    inside = Builder(ir.InsertionPoint(block), b.location)
    both = block.arguments[0]
    body(inside, inside.load(ptr, both), inside.load(ptr, inside.byte_gep(both, 8)))
    inside.op("func.return", (), ())
    pair = b.alloca(i64, 2)
    caught = b.alloca(i64, 3)
    b.store(slots, pair)
    b.store(ctx, b.byte_gep(pair, 8))
    site = expansion.site(expansion.functions[entry].operation, "host", "", "")
    expansion.declare("kiln_cpu_guarded", [ptr] * 4, [i32])
    operands = [b.address_of_function(inner, [ptr], []), pair, b.address_of(expansion.string(entry)), caught]
    signalled = b.call("kiln_cpu_guarded", [i32], operands).results[0]
    failed = b.if_(b.compare("ne", signalled, 0))
    expansion.declare("kiln_cpu_fault", [ptr, i32, *[i32] * 6, i32, ptr], [])
    where = [failed.i32(-1)] * 6
    failed.call(
        "kiln_cpu_fault", [], [ctx, failed.i32(site | call_context.MEMORY_FAULT), *where, failed.i32(3), caught]
    )


def _slot_type(type_: ir.Type) -> ir.Type:
    """Return how a value lies in its slot: integers of a width that is no machine width are widened."""
    carrier = carrier_type(host_type(type_))
    if isinstance(carrier, ir.IntegerType):
        bytes_ = 1 << (((carrier.width + 7) // 8) - 1).bit_length()
        return int_type(8 * bytes_)
    return carrier


def _read(b: Builder, slots: ir.Value, offset: int, type_: ir.Type) -> ir.Value:
    stored = _slot_type(type_)
    carrier = carrier_type(host_type(type_))
    value = b.load(stored, b.byte_gep(slots, offset), 8)
    if stored != carrier:
        value = b.value("arith.trunci", carrier, (value,))
    return from_carrier(b, value, host_type(type_))


def _write(b: Builder, slots: ir.Value, offset: int, value: ir.Value) -> None:
    stored = _slot_type(value.type)
    value = to_carrier(b, value)
    if stored != value.type:
        value = b.value("arith.extui", stored, (value,))
    b.store(value, b.byte_gep(slots, offset), 8)


def _attributes(expansion: Expansion, module: ir.Module) -> None:
    """Make only the wrapper visible, and mark functions to inline or not."""
    for func in operations(module):
        if func.name != "llvm.func":
            continue
        name = symbol(func)
        if name != WRAPPER:
            _set_internal(func)
        if name in expansion.inlined and splitting.size_of(func) <= _MOST_INLINED:
            func.attributes["always_inline"] = ir.UnitAttr.get()
        elif name in expansion.inlined or name in expansion.outlined:
            func.attributes["no_inline"] = ir.UnitAttr.get()
        passed: list[ir.Attribute] = []
        if func.regions[0].blocks:  # a large frame touches every page, so that none skips the stack's guard page
            passed.append(ir.ArrayAttr.get([ir.StringAttr.get("probe-stack"), ir.StringAttr.get("inline-asm")]))
        if name in ("kiln_cpu_fault", call_context.WARN):
            passed.append(ir.StringAttr.get("cold"))
        if passed:
            func.attributes["passthrough"] = ir.ArrayAttr.get(passed)


def _missing_functions(module: ir.Module) -> set[str]:
    """Return declared C functions that this process lacks, for a better message than the linker's."""
    return {
        symbol(op)
        for op in operations(module)
        if op.name == "llvm.func"
        and not len(op.regions[0].blocks)
        and not symbol(op).startswith(("llvm.", "kiln_"))
        and not has_symbol(symbol(op))
    }


def _legal(op: ir.Operation, missing: set[str], who: str) -> str:
    """Return why an operation must not reach LLVM, whose code generators abort on what they cannot select; empty if it
    may."""
    name = op.name
    if name == "llvm.inline_asm":
        return "inline assembly is only possible in a kernel, as PTX"
    if name == "llvm.call_intrinsic":
        intrinsic = op.attributes["intrin"].value
        if intrinsic.startswith(("llvm.nvvm.", "llvm.amdgcn.")):
            return f"{who} has no intrinsic {intrinsic}"
    if missing and name == "llvm.call" and "callee" in op.attributes and op.attributes["callee"].value in missing:
        return f"this process has no function {op.attributes['callee'].value}"
    if name.startswith("llvm.") or name == "builtin.module":
        return ""
    return f"{who} cannot lower {name}"
