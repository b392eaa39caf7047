"""tcgen05: tensor memory, and the asynchronous operations on it, which `runtime/tensor_memory.py` carries out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import CompilerDiagnosticError
from ....dialects.nvgpu import tcgen05
from ....dialects.nvgpu.tcgen05_descriptors import matrix_descriptor_fields
from ....dialects.nvgpu.tensor_memory import ld_registers
from ....mlir import ir
from ...lowering.builder import Builder, int_type, parsed_type
from ...lowering.expansion import AnyOp, Handlers
from ..expand import Expander
from ..runtime import tensor_memory, umma
from ..runtime.engine_table import TCGEN05_ST_QUEUE
from ..runtime.record_access import Fields, leave
from ..runtime.records import FrameHeader, Mma
from ..sanitizer.hooks import hooks_of
from .cute import descriptor_address
from .umma import refused_mma
from .warp import lane_of, meet_word, once

HANDLERS = Handlers()


def refused_operation(why: int, what: str) -> tuple[str, str]:
    """Return the message and hint for an operation that the runtime refused with a code."""
    if why & 255 >= umma.FIRST_CODE:
        return refused_mma(why, what)
    number = why & 0xFF
    first = why >> 8 & 0xFFFFFF
    second = why >> 32
    last = first + max(second, 1) - 1
    said = {
        tensor_memory.MISSING: (
            f"is executed by {first} lanes of a warp, the others having ended",
            "all 32 lanes execute it together: move it out of the branch, or let blocks have whole warps",
        ),
        tensor_memory.DIFFERENT: (
            "is executed with operands that differ between the lanes of a warp",
            "all 32 lanes give the same address, or the same number of columns",
        ),
        tensor_memory.SIZE: (f"is of {first} columns", "columns are allocated by powers of two from 32 to 512"),
        tensor_memory.GROWS: (
            f"of {first} columns, after the CTA allocated {second}",
            "allocate the largest part first: no allocation of a CTA is larger than an earlier one",
        ),
        tensor_memory.RELINQUISHED: (
            "by a CTA that has given up its permit to allocate",
            "call relinquish_tmem_alloc_permit() after the last allocation",
        ),
        tensor_memory.PAIR_SIZE: (
            f"of {first} columns, and the other CTA of the pair allocates {second}",
            "both CTAs of a pair allocate the same number of columns, in the same order",
        ),
        tensor_memory.NOT_ALLOCATED: (
            f"of {first} columns at address {second & 0xFFFFFFFF:#x}, where no allocation of that size starts",
            "free what alloc returned: the same address and the same number of columns, once",
        ),
        tensor_memory.COLUMNS: (
            f"accesses columns {first} to {last}, which the CTA has not allocated, or not all of them",
            "stay inside the columns from the address that alloc returned, and before dealloc",
        ),
        tensor_memory.OWNER: (
            f"accesses lanes from {first} on in warp {second}",
            f"warp {second} accesses lanes {second % 4 * 32} to {second % 4 * 32 + 31}: 32 times its number modulo 4",
        ),
        tensor_memory.LANE: (
            f"has an address with lane {first}",
            "this instruction starts at lane 0" if second == 128 else f"its lane is a multiple of {second}",
        ),
        tensor_memory.OUTSIDE: (
            f"reads up to byte {second} of shared memory, and the CTA has {first}",
            "look at start, leading and stride of the descriptor",
        ),
        tensor_memory.LEAK: (
            f"is of memory that the CTA has not freed when it ends: {first} columns",
            "call dealloc for every allocation, by a warp, before the CTA ends",
        ),
        tensor_memory.HALF: (
            "is in a pair of CTAs, one of which has given up its permit to allocate, and the other has not",
            "call relinquish_tmem_alloc_permit(is_two_cta=True) in a warp of each CTA of the pair",
        ),
        tensor_memory.RECEIVER: (
            f"has a mask with CTAs that a cluster of {first} does not have",
            "set only their bits",
        ),
    }
    if number not in said:
        return f"{what}: refused with code {why}", ""
    text, hint = said[number]
    return f"{what} {text}", hint


def _frame(x: Expander, op: AnyOp, cta_group: int = 0) -> ir.Value:
    """Return the frame of the running thread, whose block has tensor memory; a kernel has one CTA group."""
    if cta_group and x.function.cta_group not in (0, cta_group):
        message = f"{op.operation.name} has cta_group {cta_group} in a kernel with cta_group {x.function.cta_group}"
        hint = "all tcgen05 instructions of a kernel have the same one: alloc, mma, cp and commit included"
        raise report_at(op.location, CompilerDiagnosticError, message, hint=hint)
    x.function.cta_group = x.function.cta_group or cta_group
    x.function.copies = x.function.tensor_memory = True
    return x.frame_of(op)


def _site(x: Expander, op: AnyOp, what: str) -> int:
    return x.module.site(op, "tcgen05", what, x.function.name, ("i64",))


def _may_fail(x: Expander, op: AnyOp, b: Builder, why: ir.Value, what: str) -> None:
    """End the thread with a fault if a code is not 0."""
    site = _site(x, op, what)
    failed = b.if_(b.compare("ne", why, 0))
    x.fault(failed, site, [why])
    x.end(failed)


def _may_be_late(x: Expander, op: AnyOp, b: Builder, why: ir.Value, what: str) -> None:
    """End the thread with a fault if a code is not 0, or warn if it only says that the CTA has freed the columns."""
    freed = b.compare("eq", why, tensor_memory.FREED)
    result = "a GPU goes on with what they hold until they are allocated again; free them after all accesses"
    x.warn(op, b.if_(freed), f"{what} accesses columns of tensor memory that the CTA has freed", result)
    _may_fail(x, op, b, b.select(freed, b.i64(0), why), what)


# --- allocation ------------------------------------------------------------------------------------------------------


def alloc(x: Expander, op: AnyOp, b: Builder, pointer: ir.Value, columns: ir.Value, cta_group: int) -> None:
    """Allocate tensor memory for a warp, and write its address to shared memory; wait until there is some."""
    frame = _frame(x, op, cta_group)
    i64 = int_type(64)
    first = b.if_(b.compare("eq", lane_of(x, b), 0))
    hooks = hooks_of(x, op)
    hooks.before_access(first, pointer, 4, write=True, alignment=4, what="address of tensor memory")
    hooks.tensor_allocates(first, cta_group)
    meeting = meet_word(x, op, b, "tcgen05_alloc", b.i32(-1), columns)
    waits, fails = (b.i32(site) for site in (x.site_of(op, "tcgen05_alloc"), _site(x, op, "tcgen05.alloc")))
    operands = [frame, pointer, columns, b.i32(cta_group), waits, fails]

    def again(c: Builder) -> tuple[ir.Value, ...]:
        status = x.call(c, "kiln_cpu_tcgen05_alloc", operands, i64)
        return c.compare("eq", status, tensor_memory.AGAIN), status

    loop, _ = b.while_(again, [i64])
    x.suspend(loop)
    _may_fail(x, op, b, loop.point.block.owner.operation.results[0], "tcgen05.alloc")
    hooks.tensor_allocated(b, meeting.load("result"), columns)
    leave(b, meeting)


@HANDLERS.expands(tcgen05.Tcgen05Alloc)
def _alloc(x: Expander, op: tcgen05.Tcgen05Alloc, b: Builder) -> None:
    alloc(x, op, b, op.pointer, op.columns, op.cta_group)


def dealloc(x: Expander, op: AnyOp, b: Builder, address: ir.Value, columns: ir.Value, cta_group: int) -> None:
    """Free tensor memory of a warp's block. Accesses after this are an error under the sanitizer, else a warning."""
    frame = _frame(x, op, cta_group)
    sanitizer = x.module.sanitizer
    meeting = meet_word(x, op, b, "tcgen05_dealloc", b.i32(-1), address)
    operands = [frame, address, columns, b.i32(cta_group), b.i32(sanitizer is None or sanitizer.plain)]
    if sanitizer is not None:
        first = b.if_(b.compare("eq", meeting.load("computed"), 0))
        hooks_of(x, op).tensor_freed(first, address, columns, cta_group)
    _may_fail(x, op, b, x.call(b, "kiln_cpu_tcgen05_dealloc", operands, int_type(64)), "tcgen05.dealloc")
    leave(b, meeting)


@HANDLERS.expands(tcgen05.Tcgen05Dealloc)
def _dealloc(x: Expander, op: tcgen05.Tcgen05Dealloc, b: Builder) -> None:
    dealloc(x, op, b, op.address, op.columns, op.cta_group)


@HANDLERS.calls(tcgen05.Tcgen05RelinquishAllocPermit, "cta_group")
def _relinquish(x: Expander, op: AnyOp, b: Builder, cta_group: int) -> None:
    """Let the block allocate no more tensor memory."""
    frame = _frame(x, op, cta_group)
    meeting = _together(x, op, b, "tcgen05_relinquish_alloc_permit", b.i32(0))
    x.call(b, "kiln_cpu_tcgen05_relinquish", [frame, b.i32(cta_group)])
    leave(b, meeting)


def _together(x: Expander, op: AnyOp, b: Builder, name: str, word: ir.Value) -> Fields:
    """Let all lanes of a warp meet, which must bring the same word."""
    meeting = meet_word(x, op, b, name, b.i32(-1), word)
    why = x.call(b, "kiln_cpu_tcgen05_together", [_frame(x, op), word], int_type(64))
    _may_fail(x, op, b, why, name.replace("_", ".", 1))
    return meeting


# --- MMA -------------------------------------------------------------------------------------------------------------


@HANDLERS.expands(tcgen05.Tcgen05MatrixDescriptor)
def _matrix_descriptor(x: Expander, op: tcgen05.Tcgen05MatrixDescriptor, b: Builder) -> ir.Value:
    x.kernel_only(op)
    fields = matrix_descriptor_fields(op.leading, op.stride, op.swizzle, absolute_leading=bool(op.next_chunk))
    low = descriptor_address(x, b, op.pointer)
    for pointer in op.next_chunk:
        low = b.binary("ori", low, b.binary("shli", descriptor_address(x, b, pointer), 16))
    return b.binary("ori", low, fields - (fields >> 63 << 64))


def _issue_mma(
    x: Expander,
    op: AnyOp,
    b: Builder,
    mma: tcgen05.Tcgen05Mma | tcgen05.Tcgen05MmaSp | tcgen05.Tcgen05MmaWs | tcgen05.Tcgen05MmaBlockScale,
    kind: str,
    operands: Sequence[str],
    *,
    flags: int = 0,
    masks: Sequence[ir.Value] | None = None,
    cta_group: int = 1,
    **fields: ir.Value | int,
) -> None:
    """Issue an MMA; `operands` are those of `mma`, and `fields` others, that `records.Mma` has by the same names."""
    frame = _frame(x, op, cta_group)
    memory = x.at_entry(op.location).alloca(int_type(64), ctypes.sizeof(Mma) // 8)
    record = Fields(b, memory, Mma)
    values = {name: getattr(mma, name) for name in operands}
    if mma.a.type == int_type(32):
        flags |= umma.A_IN_TENSOR_MEMORY
        values["a"] = b.value("arith.extui", int_type(64), (mma.a,))
    adds = b.value("arith.extui", int_type(32), (mma.accumulate,))
    record.store("kind", umma.KINDS.index(kind))
    record.store("flags", b.binary("ori", adds, flags))
    record.store("cta_group", cta_group)
    for name in ("d", "a", "b", "idesc", "sfa", "sfb", "vector", "scale_input_d", "zero_columns", "metadata"):
        record.store(name, values.get(name, fields.get(name, 0)))
    record.store("site", _site(x, op, "tcgen05.mma"))
    masks = masks or ()
    for number in range(8):
        b.store(masks[number] if number < len(masks) else b.i32(0), record.at("masks", 4 * number))
    _may_be_late(x, op, b, x.call(b, "kiln_cpu_tcgen05_mma", [frame, memory], int_type(64)), "tcgen05.mma")
    hooks_of(x, op).tensor_mma(b, memory)


_OPERANDS = ("d", "a", "b", "idesc")


@HANDLERS.takes(tcgen05.Tcgen05Mma)
def _mma(
    x: Expander,
    op: AnyOp,
    b: Builder,
    f: tcgen05.Tcgen05Mma | tcgen05.Tcgen05MmaSp,
    operands: Sequence[str] = _OPERANDS,
    flags: int = 0,
) -> None:
    flags |= umma.SHIFTS_A * bool(f.a_shift)
    masks = f.disable_output_lane
    scale = f.scale_input_d or 0
    _issue_mma(x, op, b, f, f.kind, operands, flags=flags, masks=masks, cta_group=f.cta_group, scale_input_d=scale)


@HANDLERS.takes(tcgen05.Tcgen05MmaSp)
def _mma_sp(x: Expander, op: AnyOp, b: Builder, f: tcgen05.Tcgen05MmaSp) -> None:
    _mma(x, op, b, f, (*_OPERANDS, "metadata"), umma.SPARSE_A)


@HANDLERS.takes(tcgen05.Tcgen05MmaWs)
def _mma_ws(x: Expander, op: AnyOp, b: Builder, f: tcgen05.Tcgen05MmaWs) -> None:
    mask = f.zero_column_mask
    if isinstance(mask, list):  # of an operation: none or one
        mask = next(iter(mask), None)
    _issue_mma(x, op, b, f, f.kind, _OPERANDS, flags=umma.WS, zero_columns=0 if mask is None else mask)


@HANDLERS.takes(tcgen05.Tcgen05MmaBlockScale)
def _mma_block_scale(x: Expander, op: AnyOp, b: Builder, f: tcgen05.Tcgen05MmaBlockScale) -> None:
    kind, block = f.scaling
    _issue_mma(x, op, b, f, kind, (*_OPERANDS, "sfa", "sfb"), cta_group=f.cta_group, vector=block)


# --- copy, shift, commit ---------------------------------------------------------------------------------------------


@HANDLERS.calls(tcgen05.Tcgen05Cp, "address", "descriptor", "shape", "format", "cta_group")
def _cp(
    x: Expander,
    op: AnyOp,
    b: Builder,
    address: ir.Value,
    descriptor: ir.Value,
    shape: str,
    format_: str | None,
    cta_group: int,
) -> None:
    """Copy rows of shared memory to tensor memory."""
    form = tensor_memory.copy_form(shape, format_, cta_group)
    operands = [_frame(x, op, cta_group), address, descriptor, b.i32(form)]
    _may_be_late(x, op, b, x.call(b, "kiln_cpu_tcgen05_cp", operands, int_type(64)), "tcgen05.cp")
    hooks_of(x, op).tensor_copy(b, address, descriptor, form)


@HANDLERS.calls(tcgen05.Tcgen05Shift, "address", "cta_group")
def _shift(x: Expander, op: AnyOp, b: Builder, address: ir.Value, cta_group: int) -> None:
    """Shift 8 columns of 32 lanes of tensor memory down by a lane."""
    operands = [_frame(x, op, cta_group), address, b.i32(cta_group)]
    _may_be_late(x, op, b, x.call(b, "kiln_cpu_tcgen05_shift", operands, int_type(64)), "tcgen05.shift")
    hooks_of(x, op).tensor_shift(b, address, cta_group)


@HANDLERS.calls(tcgen05.Tcgen05Commit, "mbarrier", "mask", "cta_group")
def _commit(
    x: Expander, op: AnyOp, b: Builder, mbarrier: ir.Value, mask: list[ir.Value] | ir.Value | None, cta_group: int
) -> None:
    """Arrive at mbarriers when all that the thread issued is complete."""
    if isinstance(mask, list):  # of an operation: none or one
        mask = next(iter(mask), None)
    blocks = b.i32(-1) if mask is None else b.value("arith.extui", int_type(32), (mask,))
    operands = [_frame(x, op, cta_group), mbarrier, blocks]
    hooks = hooks_of(x, op)
    hooks.tensor_commit(b, mbarrier, blocks)
    _may_fail(x, op, b, x.call(b, "kiln_cpu_tcgen05_commit", operands, int_type(64)), "tcgen05.commit")
    hooks.mbarrier_after(b, mbarrier)


# --- registers -------------------------------------------------------------------------------------------------------


def _registers(x: Expander, op: AnyOp, count: int) -> ir.Value:
    """Return memory for registers of a thread."""
    return x.at_entry(op.location).alloca(int_type(32), count)


def _accessed(
    x: Expander, op: AnyOp, b: Builder, meeting: Fields, address: ir.Value, form: int, *, stores: bool
) -> None:
    """Let the first lane that goes on check the access of a warp, in an instrumented build."""
    if x.module.sanitizer is not None:
        hooks_of(x, op).tensor_access(once(b, meeting), address, form, stores)
        if not stores:
            hooks_of(x, op).tensor_used(b)


def _own_lanes(x: Expander, b: Builder, address: ir.Value) -> ir.Value:
    """Return an address with the lanes of the running warp where it names these in part: none, or one of two bits.

    The hardware reaches a warp's own 32 lanes only, and public programs leave out what it adds by itself: warp 3 gives lane 0, or
    lane 32 where it repeats what warp 1 does. Lanes of another warp stay as they are, and are refused.
    """
    assert x.function.frame is not None
    thread = Fields(b, x.function.frame, FrameHeader).load("thread")
    first = b.binary("shli", b.binary("andi", thread, 3 * 32), 16)
    others = b.binary("andi", b.binary("shrui", address, 21), b.binary("xori", b.binary("shrui", first, 21), -1))
    names_none = b.compare("eq", others, 0)
    return b.value("arith.select", int_type(32), (names_none, b.binary("ori", address, first), address))


def load(
    x: Expander,
    op: AnyOp,
    b: Builder,
    address: ir.Value,
    shape: str,
    repeat: int,
    split: int | None,
    packs: bool,
    reduction: int | None = None,
) -> ir.Value:
    """Return the registers of a thread, a vector of i32; with a `reduction`, one more.

    A thread loads when it comes; none goes on before all have loaded.
    """
    frame = _frame(x, op)
    form = tensor_memory.form_of(shape, repeat, split or 0, packs)
    address = _own_lanes(x, b, address)
    count = ld_registers(shape, repeat) + (reduction is not None)
    name = "tcgen05_ld" if reduction is None else "tcgen05_ld_red"
    memory = _registers(x, op, count)
    operands = [frame, address, b.i32(form), *([] if reduction is None else [b.i32(reduction)]), memory]
    what = name.replace("_", ".")
    _may_be_late(x, op, b, x.call(b, f"kiln_cpu_{name}", operands, int_type(64)), what)
    meeting = _together(x, op, b, name, address)
    _accessed(x, op, b, meeting, address, form, stores=False)
    leave(b, meeting)
    return b.load(parsed_type(f"vector<{count}xi32>"), memory, 4)


@HANDLERS.expands(tcgen05.Tcgen05Ld)
def _ld(x: Expander, op: tcgen05.Tcgen05Ld, b: Builder) -> ir.Value:
    return load(x, op, b, op.address, op.shape, op.repeat, op.split, bool(op.pack))


@HANDLERS.expands(tcgen05.Tcgen05LdRed)
def _ld_red(x: Expander, op: tcgen05.Tcgen05LdRed, b: Builder) -> ir.Value:
    reduction = tensor_memory.reduction_of(op.reduction, op.type, bool(op.abs), bool(op.nan))
    return load(x, op, b, op.address, op.shape, op.repeat, op.split, False, reduction)


def store(
    x: Expander,
    op: AnyOp,
    b: Builder,
    address: ir.Value,
    value: ir.Value,
    shape: str,
    repeat: int,
    split: int | None,
    unpacks: bool,
) -> None:
    """Store the registers of a thread, a vector of i32."""
    frame = _frame(x, op)
    form = tensor_memory.form_of(shape, repeat, split or 0, unpacks)
    address = _own_lanes(x, b, address)
    memory = _registers(x, op, ld_registers(shape, repeat))
    meeting = _together(x, op, b, "tcgen05_st", address)
    _accessed(x, op, b, meeting, address, form, stores=True)
    leave(b, meeting)
    b.store(value, memory, 4)
    operands = [frame, address, b.i32(form), memory]
    _may_be_late(x, op, b, x.call(b, "kiln_cpu_tcgen05_st", operands, int_type(64)), "tcgen05.st")


@HANDLERS.expands(tcgen05.Tcgen05St)
def _st(x: Expander, op: tcgen05.Tcgen05St, b: Builder) -> None:
    store(x, op, b, op.address, op.value, op.shape, op.repeat, op.split, bool(op.unpack))


@HANDLERS.calls(tcgen05.Tcgen05Wait, "kind")
def _wait(x: Expander, op: AnyOp, b: Builder, kind: str) -> None:
    """Wait until the warp's loads or stores are complete."""
    frame = _frame(x, op)
    hooks_of(x, op).tensor_waits(b, kind == "st")
    if kind == "st":
        x.call(b, "kiln_cpu_commit", [frame, b.i32(TCGEN05_ST_QUEUE)])
        x.call(b, "kiln_cpu_wait_for_groups", [frame, b.i32(TCGEN05_ST_QUEUE), b.i32(0)])
    leave(b, _together(x, op, b, f"tcgen05_wait.{kind}", b.i32(0)))


@HANDLERS.calls(tcgen05.Tcgen05Fence, "kind")
def _fence(x: Expander, op: AnyOp, b: Builder, kind: str) -> None:
    x.kernel_only(op)
    hooks_of(x, op).tensor_fence(b, kind == "before_thread_sync")
