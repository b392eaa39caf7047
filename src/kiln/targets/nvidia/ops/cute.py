"""Operations of `cute` in kernels: indices, printf, assertions, shared memory."""

from __future__ import annotations

import re

from ....base_dsl.compiler import report_at, source_span
from ....base_dsl.diagnostics import CompilerDiagnosticError
from ....dialects import cute
from ....mlir import context, ir
from ...lowering.builder import Builder, int_type, parsed_type, ptr_type, struct_type
from ...lowering.expansion import Handlers
from ...lowering.sites import Site
from ..device_builder import DeviceBuilder, special_register
from ..expand import Expander
from ..passes.smem_allocation import DYNAMIC_SMEM, dynamic_variable

HANDLERS = Handlers()

FAULT_RECORD = "kiln_fault"
FAULT_HEADER = 8
"""Words of 32 bits before a fault's values: claimed, site, block x, y, z, thread x, y, z."""
FAULT_VALUES = 8

_REGISTERS = {cute.ThreadIdx: "tid", cute.BlockIdx: "ctaid", cute.GridDim: "nctaid"}


@HANDLERS.expands(*_REGISTERS)
def _index(_x: Expander, op: cute.ThreadIdx, b: DeviceBuilder) -> ir.Value:
    return special_register(b, f"{_REGISTERS[type(op)]}.{'xyz'[op.dim]}")


@HANDLERS.expands(cute.BlockDim)
def _block_dim_of(x: Expander, op: cute.BlockDim, b: DeviceBuilder) -> ir.Value:
    return _block_dim(x, b, op.dim)


def _block_dim(x: Expander, b: Builder, dim: int) -> ir.Value:
    block_dim = x.module.blocks.get(x.kernel.name)
    return b.i32(block_dim[dim]) if block_dim else special_register(b, f"ntid.{'xyz'[dim]}")


@HANDLERS.expands(cute.LaneIdx)
def _lane_idx(_x: Expander, _op: cute.LaneIdx, b: DeviceBuilder) -> ir.Value:
    return special_register(b, "laneid")


@HANDLERS.expands(cute.WarpIdx)
def _warp_idx(x: Expander, _op: cute.WarpIdx, b: DeviceBuilder) -> ir.Value:
    index = [special_register(b, f"tid.{axis}") for axis in "xyz"]
    return b.binary("shrui", b.linear(index, [_block_dim(x, b, dim) for dim in range(2)]), 5)


# --- reporting -------------------------------------------------------------------------------------------------------


@HANDLERS.expands(cute.Printf)
def _printf(x: Expander, op: cute.Printf, b: DeviceBuilder) -> None:
    x.kernel.prints = True
    arguments = cute.unpack(op.arguments)
    x.module.declare("vprintf", [ptr_type(), ptr_type()], [int_type(32)])
    for text, count in printf_parts(op.format):
        values = arguments[:count]
        arguments = arguments[count:]
        format_ = b.cast_space(b.address_in(x.module.string(text), 1), ptr_type())
        buffer = b.null()
        if values:
            struct = struct_type([a.type for a in values])
            buffer = x.at_entry(op.location).alloca(struct, 1, 8)
            for number, value in enumerate(values):
                b.store(value, b.field(buffer, struct, number))
        b.call("vprintf", [int_type(32)], [format_, buffer])


_CONVERSION = re.compile(r"%%|%[-+ #0]*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j)?[a-zA-Z]")
_MOST_PRINTED = 32
"""The most values of one call of the device's printf, which drops others. The text of one call is printed in one
piece."""


def printf_parts(text: str) -> list[tuple[str, int]]:
    """Return a format split into formats of at most 32 conversions, each with their number."""
    parts: list[tuple[str, int]] = []
    start = count = 0
    for match in _CONVERSION.finditer(text):
        if match.group() == "%%":
            continue
        if count == _MOST_PRINTED:
            parts.append((text[start : match.start()], count))
            start = match.start()
            count = 0
        count += 1
    return [*parts, (text[start:], count)]


@HANDLERS.expands(cute.Assert)
def _assert(x: Expander, op: cute.Assert, b: DeviceBuilder) -> None:
    """The first thread that fails fills the module's fault record; the host reads it after the kernel."""
    arguments = cute.unpack(op.arguments)
    span, calls = source_span(op.location)
    types = tuple(str(a.type) for a in arguments)
    x.module.sites.append(Site("assert", op.message, span, calls, x.kernel.name, types))
    x.kernel.asserts = True
    size = 4 * FAULT_HEADER + 8 * FAULT_VALUES
    type_ = parsed_type(f"!llvm.array<{size} x i8>")
    zero = ir.Attribute.parse("#llvm.zero", context())
    x.module.variable(FAULT_RECORD, type_, 1, 8, zero, "external")
    body = b.if_(b.binary("xori", op.condition, b.const(int_type(1), 1)))
    failed = DeviceBuilder(body.point, body.location)
    record = failed.address_in(FAULT_RECORD, 1)
    claimed = failed.atomic("xchg", record, failed.i32(1))
    inner = failed.if_(failed.compare("eq", claimed, 0))
    first = DeviceBuilder(inner.point, inner.location)
    where = [special_register(first, f"{name}.{axis}") for name in ("ctaid", "tid") for axis in "xyz"]
    for number, value in enumerate([first.i32(len(x.module.sites) - 1), *where]):
        first.store(value, first.byte_gep(record, 4 * (number + 1)))
    for number, value in enumerate(arguments):
        first.store(value, first.byte_gep(record, 4 * FAULT_HEADER + 8 * number))


@HANDLERS.expands(cute.Launch)
def _launch(_x: Expander, op: cute.Launch, _b: DeviceBuilder) -> None:
    raise report_at(op.location, CompilerDiagnosticError, "a kernel launches a kernel")


@HANDLERS.expands(cute.AllocSmem)
def _alloc_smem(x: Expander, op: cute.AllocSmem, b: DeviceBuilder) -> ir.Value:
    name = f"{x.kernel.name}_smem_{len(x.kernel.smem)}"
    x.kernel.smem.append((name, max(op.bytes, 1), max(op.alignment, 1)))
    address = b.address_in(name, 3)
    x.kernel.smem_addresses.append(address.owner.operation)
    return b.cast_space(address, x.lowered(op.result.type))


@HANDLERS.expands(cute.DynamicSmem)
def _dynamic_smem(x: Expander, op: cute.DynamicSmem, b: DeviceBuilder) -> ir.Value:
    x.kernel.dynamic = True
    dynamic_variable(x.module)
    address = b.address_in(DYNAMIC_SMEM, 3)
    x.kernel.smem_addresses.append(address.owner.operation)
    return b.cast_space(b.hidden(address), x.lowered(op.result.type))
