"""Primitives of matrices in shared memory, `ldmatrix` and `stmatrix`, and of MMAs of warps and warpgroups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32, Numeric, NumericMeta
from ...cute.arch.values import choice, i32, kernel_only
from ...cute.deferred_dialects import nvgpu
from ...cute.nvgpu.ptx_types import PTX_NAMES
from ...cute.tensor.tensor_ssa import TensorSSA
from ...hardware import mma_shapes
from .addresses import shared
from .matrix_names import MMAType


def ldmatrix(
    ptr: object,
    num: int,
    layout: object,
    *,
    shape: object = None,
    src_format: object = None,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Return `num` words of each lane (Int32, or a Vector of them) from matrices whose rows the lanes point to.

    8x8 matrices of 16 bits, COL transposed; 16x16 matrices of bytes (sm_100a) take two words each.
    """
    where = shared(ptr, "ldmatrix").ir_value()
    transposed = choice("layout", layout, ("row", "col")) == "col"
    kind = choice("shape", shape or "m8n8", ("m8n8", "m8n16", "m16n16"))
    source = choice("src_format", src_format or "b16", ("b16", "b8", "b4x16_p64", "b6x16_p32"))
    unpack = {"b4x16_p64": 4, "b6x16_p32": 6}.get(source)
    words = Int32.vector_type(num)
    if kind == "m16n16":
        if not transposed or num not in (2, 4):
            raise type_error(f"ldmatrix() of 16x16 matrices to {num} words, layout {layout}", "2 or 4 words, COL")
        loaded = nvgpu.mma.ldmatrix_bytes(where, words, num // 2, unpack)
    elif num in (1, 2, 4) and (source == "b16" or (unpack and not transposed)):
        loaded = nvgpu.mma.ldmatrix(where, words, num, transposed, unpack)
    else:
        raise type_error(f"ldmatrix() of {num} words of {kind} matrices of {source}", "1, 2 or 4 words of b16")
    matrix = TensorSSA(loaded, (num,), Int32)
    return matrix[0] if num == 1 else matrix


def mma_sp_sync(
    a: TensorSSA,
    b: TensorSSA,
    c: TensorSSA,
    metadata: object,
    selector: int = 0,
    *,
    loc: object = None,
    ip: object = None,
) -> TensorSSA:
    """Return a lane's part of A B + C of a warp with a sparse A (`mma.sp::ordered_metadata`), with M = 16 and N = 8.

    `a` and `b` are Vectors with k / 4 elements each, as fragments of `mma.sync`: of each 4 elements of A along K two are
    there, of each 2 of TFloat32 one. `metadata` is a word of indices that say which; the lanes that have them follow from
    `selector` where not all do. `c` has 4 elements of Float32, Float16 or Int32.
    """
    kernel_only("mma_sp_sync")
    a_type = PTX_NAMES.get(a.dtype, str(a.dtype))
    b_type = PTX_NAMES.get(b.dtype, str(b.dtype))
    accumulator = PTX_NAMES.get(c.dtype, str(c.dtype))
    shape = (16, 8, 4 * b.numel())
    if rule := mma_shapes.refusal("mma.sync", shape, a_type, b_type, accumulator, sparse=True):
        raise type_error(f"mma_sp_sync(): {rule}", "Vectors of k / 4 elements of A and of B")
    if a.numel() != b.numel() or c.numel() != 4:
        raise type_error(
            f"mma_sp_sync() of {a.numel()} elements of A and {c.numel()} of C", f"{b.numel()} and 4 elements"
        )
    words = [x.bitcast(Int32).value for x in (a, b)]
    d = nvgpu.mma.mma_sp(shape, a_type, b_type, words[0], words[1], c.value, i32(metadata), selector)
    return TensorSSA(d, c.shape, c.dtype)


def stmatrix(
    ptr: object, sources: object, layout: object, *, shape: object = None, loc: object = None, ip: object = None
) -> None:
    """Store the words of each lane to matrices whose rows the lanes point to, as the inverse of `ldmatrix` (sm_90)."""
    where = shared(ptr, "stmatrix").ir_value()
    if not isinstance(sources, TensorSSA):
        parts = sources if isinstance(sources, (list, tuple)) else [sources]
        sources = TensorSSA.from_elements([Int32(x) for x in parts], Int32)
    words = sources.bitcast(Int32) if sources.dtype is not Int32 else sources
    count = words.numel()
    transposed = choice("layout", layout, ("row", "col")) == "col"
    if count not in (1, 2, 4):
        raise type_error(f"stmatrix() of {count} words", "1, 2 or 4")
    if choice("shape", shape or "m8n8", ("m8n8", "m16n8")) == "m8n8":
        nvgpu.mma.stmatrix(where, words.value, count, transposed or None)
    elif transposed:
        nvgpu.mma.stmatrix_bytes(where, words.value, count)
    else:
        raise type_error("stmatrix() of 16x8 matrices of bytes in ROW layout", "they are stored transposed: COL")


def mma_sync(
    res: ir.Type,
    *,
    shape: Sequence[int],
    layout_a: object,
    layout_b: object,
    operand_a: Sequence[object],
    operand_b: Sequence[object],
    operand_c: Sequence[object],
    multiplicand_a_ptx_type: object,
    multiplicand_b_ptx_type: object,
    loc: object = None,
    ip: object = None,
) -> ir.Value:
    """Return a lane's part of A B + C of a warp (`mma.sync`), as a structure of the type `res`.

    Operands are the registers of a lane: words of A and of B, numbers of C. A is row-major and B column-major, `shape`
    is (m, n, k), and the types are `MMAType`s.
    """
    kernel_only("mma_sync")
    if (choice("layout_a", layout_a, ("row", "col")), choice("layout_b", layout_b, ("row", "col"))) != ("row", "col"):
        raise type_error("mma_sync() takes a row-major A and a column-major B", "layout_a ROW, layout_b COL")
    kinds = tuple(x.value for x in MMAType)
    a_type, b_type = (choice("type", x, kinds) for x in (multiplicand_a_ptx_type, multiplicand_b_ptx_type))
    a, b = (TensorSSA.from_elements([_register(x, Int32) for x in xs], Int32).value for xs in (operand_a, operand_b))
    numbers = [x.ir_value() if isinstance(x, Numeric) else x for x in operand_c]
    element = NumericMeta.from_mlir_type(numbers[0].type)  # pyright: ignore[reportAttributeAccessIssue]
    c = TensorSSA.from_elements([element._make(x) for x in numbers], element)
    m, n, k = shape
    if rule := mma_shapes.refusal("mma.sync", (m, n, k), a_type, b_type, PTX_NAMES.get(element, str(element))):
        raise type_error(f"mma_sync(): {rule}", "a shape and types of mma.sync")
    d = TensorSSA(nvgpu.mma.mma_sync((m, n, k), a_type, b_type, a, b, c.value), c.shape, element)
    whole = tracing.emit_value("llvm.mlir.undef", res)
    for position, value in enumerate(d.to_elements()):
        at = {"position": ir.DenseI64ArrayAttr.get([position])}
        whole = tracing.emit_value("llvm.insertvalue", res, (whole, value.ir_value()), at)
    return whole


def _register(x: object, kind: type[Numeric]) -> Numeric:
    value = x.ir_value() if isinstance(x, Numeric) else x
    if str(getattr(value, "type", "")) == "i32":
        return kind._make(value)
    return kind._make(tracing.emit_value("llvm.bitcast", kind.mlir_type, (value,)))


def wgmma_fence_aligned(*, loc: object = None, ip: object = None) -> None:
    """Order accesses to registers before later WGMMAs of the warpgroup (sm_90a)."""
    kernel_only("wgmma_fence_aligned")
    nvgpu.wgmma.wgmma_fence()


def wgmma_commit_group_sync_aligned(*, loc: object = None, ip: object = None) -> None:
    """Commit the warpgroup's WGMMAs since the last commit as a group (sm_90a)."""
    kernel_only("wgmma_commit_group_sync_aligned")
    nvgpu.wgmma.wgmma_commit()


def wgmma_wait_group_sync_aligned(group: int, *, loc: object = None, ip: object = None) -> None:
    """Wait until at most `group` of the warpgroup's latest groups are pending (sm_90a)."""
    kernel_only("wgmma_wait_group_sync_aligned")
    nvgpu.wgmma.wgmma_wait(count=group)
