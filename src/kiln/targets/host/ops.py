"""Operations of `cute` in host code, besides those on memory: calls, text, assertions."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects import cute
from ...mlir import ir
from ..lowering.builder import Builder, int_type, parsed_type, ptr_type
from ..lowering.expansion import Handlers
from .expand import Expander, Expansion, host_type

HANDLERS = Handlers()


@HANDLERS.expands("func.call")
def _call(x: Expander, op: ir.Operation, b: Builder) -> list[ir.Value]:
    callee = op.attributes["callee"].value
    types = [host_type(result.type) for result in op.results]
    if callee not in x.module.functions:  # an external C function
        return list(b.call(callee, types, list(op.operands)).results)
    x.function.calls.add(callee)
    return list(b.call(callee, types, [*op.operands, x.function.context]).results)


@HANDLERS.expands("llvm.addrspacecast")
def _addrspacecast(_x: Expander, op: ir.Operation, _b: Builder) -> ir.Value:
    return op.operands[0]  # the host has one address space


@HANDLERS.expands(cute.Printf)
def _printf(x: Expander, op: cute.Printf, b: Builder) -> None:
    ptr = ptr_type()
    i32 = int_type(32)
    x.function.prints = True
    x.module.declare("kiln_cpu_stream", [ptr], [ptr])
    declare_variadic(x.module, "fprintf", i32, [ptr, ptr])
    text = op.format
    stream = b.call("kiln_cpu_stream", [ptr], [x.function.context]).results[0]
    format_ = b.address_of(x.module.string(text))
    signature = parsed_type("!llvm.func<i32 (ptr, ptr, ...)>")
    b.call_variadic("fprintf", signature, i32, [stream, format_, *cute.unpack(op.arguments)])


def declare_variadic(expansion: Expansion, name: str, result: ir.Type, inputs: Sequence[ir.Type]) -> None:
    """Make a C function with variable arguments known to the module, once."""
    if name in expansion.declared:
        return
    expansion.declared.add(name)
    spelled = ", ".join("ptr" if t == ptr_type() else str(t) for t in inputs)
    ir.Operation.create(
        "llvm.func",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "function_type": ir.TypeAttr.get(parsed_type(f"!llvm.func<{result} ({spelled}, ...)>")),
            "linkage": ir.Attribute.parse("#llvm.linkage<external>"),
            "CConv": ir.Attribute.parse("#llvm.cconv<ccc>"),
            "visibility_": ir.IntegerAttr.get(int_type(64), 0),
            "unnamed_addr": ir.IntegerAttr.get(int_type(64), 0),
        },
        regions=1,
        loc=ir.Location.unknown(),
        ip=ir.InsertionPoint(expansion.module.body),
    )


@HANDLERS.expands(cute.Assert)
def _assert(x: Expander, op: cute.Assert, b: Builder) -> None:
    arguments = cute.unpack(op.arguments)
    message = op.message
    site = x.module.site(op, "assert", message, x.function.kernel, tuple(str(a.type) for a in arguments))
    failed = b.if_(b.binary("xori", op.condition, b.const(int_type(1), 1)))
    x.fault(failed, site, arguments)
    x.end(failed)
