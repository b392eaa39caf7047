"""WGMMA. `runtime/wgmma.py` executes it, `runtime/tensor_core.py` has its arithmetic."""

from __future__ import annotations

from ....dialects import cute, nvgpu
from ....mlir import ir
from ...lowering.builder import Builder, int_type
from ...lowering.expansion import Handlers
from ..expand import Expander
from ..runtime.engine_table import WGMMA, WGMMA_QUEUE
from ..runtime.tensor_core import kind_of
from ..runtime.wgmma import DIFFERENT
from ..sanitizer.hooks import hooks_of
from .cute import descriptor_address

HANDLERS = Handlers()


def refused_wgmma(why: int) -> tuple[str, str]:
    """Return the message and hint for a WGMMA that `runtime/wgmma.py` refused."""
    if why == DIFFERENT:
        return (
            "is executed with operands that differ between the threads of a warpgroup",
            "all 128 threads give the same descriptors, the same shape and the same choice whether to accumulate",
        )
    return (
        "has an operand that does not lie in the block's shared memory",
        "look at start, leading and stride of the descriptor: operands end where the block's shared memory does",
    )


def _frame(x: Expander, op: ir.Operation) -> ir.Value:
    x.function.copies = True
    return x.frame_of(op)


@HANDLERS.expands(nvgpu.wgmma.MatrixDescriptor)
def _matrix_descriptor(x: Expander, op: nvgpu.wgmma.MatrixDescriptor, b: Builder) -> ir.Value:
    """Return a descriptor whose address counts from the start of the block's shared memory, which is aligned for
    swizzles."""
    from ....dialects.nvgpu.wgmma import SWIZZLES

    x.kernel_only(op)
    leading = op.leading
    stride = op.stride
    swizzle = op.swizzle
    address = descriptor_address(x, b, op.pointer)
    rest = (leading >> 4) << 16 | (stride >> 4) << 32 | SWIZZLES[swizzle] << 62
    return b.binary("ori", address, rest - (rest >> 63 << 64))


@HANDLERS.expands(nvgpu.wgmma.Wgmma, types=True)
def _wgmma(x: Expander, op: nvgpu.wgmma.Wgmma, b: Builder) -> None:
    a = op.a
    n = op.n
    a_type = op.a_type
    b_type = op.b_type
    a_major = op.a_major
    b_major = op.b_major
    in_registers = str(a.type) != "i64"
    element = cute.info(op.types.d).element
    kind = kind_of(a_type, b_type, str(element), n, in_registers, a_major, b_major)
    bytes_ = n // 2 * cute.element_bits(element) // 8
    hooks_of(x, op).wgmma(b, (op.d, bytes_), (a, 16 if in_registers else 0), op.b, kind)
    if in_registers:
        a = b.value("llvm.ptrtoint", int_type(64), (a,))
    site = x.module.site(op, "wgmma", f"wgmma m64n{n}k{op.k}", x.function.name)
    adds = b.value("arith.extui", int_type(32), (op.accumulate,))
    x.call(b, "kiln_cpu_wgmma", [_frame(x, op), op.d, a, op.b, adds, b.i32(kind), b.i32(site)])


@HANDLERS.calls(nvgpu.wgmma.WgmmaFence)
def fence(x: Expander, op: ir.Operation, b: Builder) -> None:
    """Tell the sanitizer: registers are memory here, and need no order."""
    hooks_of(x, op).wgmma_fence(b)


@HANDLERS.calls(nvgpu.wgmma.WgmmaCommit)
def commit(x: Expander, op: ir.Operation, b: Builder) -> None:
    """Commit the thread's WGMMAs since the last commit as a group."""
    x.call(b, "kiln_cpu_commit", [_frame(x, op), b.i32(WGMMA_QUEUE)])
    hooks_of(x, op).commit(b, WGMMA)


@HANDLERS.calls(nvgpu.wgmma.WgmmaWait, "count")
def wait(x: Expander, op: ir.Operation, b: Builder, count: int) -> None:
    """Wait for all groups of WGMMAs but the latest `count`."""
    frame = _frame(x, op)
    site = x.site_of(op, "wgmma wait")

    def again(c: Builder) -> tuple[ir.Value]:
        status = x.call(c, "kiln_cpu_wgmma_wait", [frame, c.i32(count), c.i32(site)], int_type(32))
        return (c.compare("ne", status, 0),)

    loop, _ = b.while_(again)
    x.suspend(loop)
    hooks_of(x, op).wgmma_waited(b, count)
