"""Host code that encodes a tensor map: it fills a request and hands it to the target's encoder.

A tensor map is a pointer to its bytes in host code. They are stack memory, one for each operation that encodes: a map
must not outlive the iteration or function that made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import CompilerDiagnosticError
from ...dialects import cute, nvgpu
from ...hardware.tensor_maps import ELEMENTS, SWIZZLES
from ...mlir import ir
from ..lowering.builder import Builder, int_type, ptr_type
from ..lowering.expansion import AnyOp, Handlers
from .tensor_maps import KNOWN_BYTES, Finding, Request

if TYPE_CHECKING:
    from .expand import Expander

HANDLERS = Handlers()

MAP_BYTES = 128
_INTERLEAVES = ("none", "16b", "32b")
_PROMOTIONS = ("none", "64b", "128b", "256b")
_FILLS = ("zeros", "nan")


@HANDLERS.expands(nvgpu.tma.TensorMapEncode)
def _encode(x: Expander, op: nvgpu.tma.TensorMapEncode, b: Builder) -> ir.Value:
    if x.function.is_kernel:
        raise refused_in_kernel(op)
    _refuse_outliving(op.result, op)
    i64 = int_type(64)
    ptr = ptr_type()
    map_ = x.at_entry(op.location).alloca(i64, MAP_BYTES // 8, MAP_BYTES)
    request, finding = (x.scratch(kind.__name__, _words(kind), op.location) for kind in (Request, Finding))
    b.store(op.base, request)
    for field, values in ((Request.sizes, cute.unpack(op.sizes)), (Request.strides, cute.unpack(op.strides))):
        for number in range(field.size // 8):
            value = values[number] if number < len(values) else b.i64(0)
            b.store(value, b.byte_gep(request, field.offset + 8 * number))
    fixed = b.address_of(x.module.constant(bytes(_fixed_part(op))[-KNOWN_BYTES:]))
    x.module.declare(x.module.encoder, [ptr] * 4, [int_type(32)])
    rule = b.call(x.module.encoder, [int_type(32)], [request, fixed, map_, finding]).results[0]
    failed = b.if_(b.compare("ne", rule, 0))
    x.fault_with(failed, x.module.site(op, "tensor_map", op.tensor, ""), _words(Finding), finding)
    x.end(failed)
    return map_


def refused_in_kernel(op: AnyOp) -> Exception:
    """Return the error for a map that a kernel makes."""
    return report_at(
        op.location,
        CompilerDiagnosticError,
        "a kernel makes a tensor map, which only host code can",
        hint="make it in the @jit function and pass it to the kernel, which may edit a copy: cpasync.update_tma_descriptor",
    )


def _words(record: Any) -> int:
    return len(bytes(record())) // 8


def _fixed_part(op: nvgpu.tma.TensorMapEncode) -> Any:
    """Return a request with what is known when compiling."""
    request: Any = Request()
    request.box[: len(op.box)] = op.box
    request.element_strides[: len(op.element_strides)] = op.element_strides
    corners = op.pixel_box or ()
    for number, corner in enumerate(corners):
        half = len(corners) // 2
        request.corners[number if number < half else 3 + number - half] = corner
    request.rank = len(cute.unpack(op.sizes))
    request.im2col = bool(corners)
    request.element = list(ELEMENTS).index(op.element)
    request.swizzle = list(SWIZZLES).index(op.swizzle)
    request.interleave = _INTERLEAVES.index(op.interleave)
    request.promotion = _PROMOTIONS.index(op.promotion)
    request.fill = _FILLS.index(op.fill)
    return request


def _refuse_outliving(value: ir.Value, encode: AnyOp) -> None:
    for use in value.uses:
        user = use.owner.operation
        if user.name in ("scf.yield", "scf.condition", "func.return"):
            holder = user.parent
            if holder is not None and holder.name in ("scf.if", "scf.execute_region", "scf.index_switch"):
                _refuse_outliving(holder.results[use.operand_number], encode)
                continue
            raise report_at(
                encode.location,
                CompilerDiagnosticError,
                "a tensor map outlives the round of the loop, or the function, that makes it",
                hint="make it where it is used: a map that was made before costs next to nothing",
            )
