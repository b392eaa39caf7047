"""tcgen05: tensor memory, and the asynchronous MMAs and copies of Blackwell's tensor cores (sm_100, sm_103, sm_110).

Addresses of tensor memory are i32 (`tensor_memory.py` says where operands lie), operands in shared memory are
descriptors (`tcgen05_matrix_descriptor`). One thread issues `tcgen05_mma`, `tcgen05_cp`, `tcgen05_shift` and
`tcgen05_commit`; all threads of a warp execute the others together. They are unordered, also in one thread, except
MMAs into the same accumulator and a copy or shift before an MMA; a commit covers all that its thread issued before.
With `cta_group` 2 an instruction works on the tensor memory of both CTAs of a pair; a kernel has one `cta_group`.
"""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...base_dsl.trace import emit_value
from ...hardware import features, mma_shapes
from ...hardware.engines import TCGEN05, TCGEN05_CP, TCGEN05_LD, TCGEN05_ST
from ...mlir import context, ir
from ...ptx import tcgen05 as forms
from ..declaration import PURE, Access, Alias, Build, Operand, Operands, OptionalAttr, Result, attributes
from ..definition import I1, I16, I32, I64, Integer, Pointer, constant, int_type, one_of
from . import tcgen05_descriptors, tensor_memory
from .dialect import CuteNvgpu, wrong_space

CtaGroup: Any = one_of(1, 2)
Shape: Any = one_of(*tensor_memory.LD_SHAPES)
Collector: Any = one_of("fill", "use", "lastuse", "discard")


class _Tcgen05(CuteNvgpu.Operation):
    """Base of the operations on tensor memory."""

    def needs(self) -> "Iterator[tuple[features.Feature, str]]":
        yield features.TCGEN05, ""


# --- allocation ------------------------------------------------------------------------------------------------------


def _wrong_columns(columns: ir.Value) -> str:
    count = constant(columns)
    least = tensor_memory.LEAST_COLUMNS
    most = tensor_memory.COLUMNS
    if count is None or (least <= count <= most and count & (count - 1) == 0):
        return ""
    return f"is of {count} columns: a power of two from {least} to {most}"


class Tcgen05Alloc(_Tcgen05, name="tcgen05_alloc", writes=Access("pointer", 4), converged="warp", waits=True):
    """Allocate `columns` columns of tensor memory for a CTA, or for both of a pair, and write the address to shared
    memory.

    One warp executes it, in a pair one warp of each CTA. `columns` is a power of two from 32 to 512, the same in all
    threads. It waits while other CTAs of the SM have the columns. The contents are arbitrary.
    """

    pointer: Operand[Pointer]
    columns: Operand[I32]
    cta_group: CtaGroup

    def check(self) -> str:
        return _wrong_columns(self.columns) or wrong_space(self.pointer, "address", "smem")


tcgen05_alloc: Build = Tcgen05Alloc.build


class Tcgen05Dealloc(_Tcgen05, name="tcgen05_dealloc", converged="warp", waits=True):
    """Free the tensor memory at `address`, which an allocation of `columns` columns returned.

    One warp executes it, in a pair one warp of each CTA. All of it must be freed before the CTA exits.
    """

    address: Operand[I32]
    columns: Operand[I32]
    cta_group: CtaGroup

    def check(self) -> str:
        return _wrong_columns(self.columns)


tcgen05_dealloc: Build = Tcgen05Dealloc.build


class Tcgen05RelinquishAllocPermit(
    _Tcgen05, name="tcgen05_relinquish_alloc_permit", ptx=forms.RELINQUISH, converged="warp", waits=True
):
    """Give up the right to allocate: the CTA allocates no more, so that another CTA of the SM can."""

    cta_group: CtaGroup


tcgen05_relinquish_alloc_permit: Build = Tcgen05RelinquishAllocPermit.build


# --- MMA -------------------------------------------------------------------------------------------------------------


class Tcgen05MatrixDescriptor(
    _Tcgen05, name="tcgen05_matrix_descriptor", traits=PURE, alias=Alias("pointer", "descriptor")
):
    """Return the sm_100 descriptor (i64) of an operand in shared memory.

    Bits 0 to 13 are the address, 16 to 29 `leading` and 32 to 45 `stride`, all in units of 16 bytes; bits 46 to 48 are
    1; bits 61 to 63 are the number of `swizzle` ("128b_32b": 128 bytes in atoms of 32). Adding n moves the operand by
    16 n bytes. `next_chunk` (sm_103a, none or one) is where a row of 48 bytes (K = 96) continues that starts in another
    buffer of 128-byte rows: its address takes the place of `leading`, which is 0, and bit 52 is set.
    `matrix_descriptor` returns the descriptor of WGMMA, which is another one.
    """

    pointer: Operand[Pointer]
    next_chunk: Operands[Pointer]
    result: Result[I64]
    leading: ir.IntegerAttr
    stride: ir.IntegerAttr
    swizzle: one_of(*tcgen05_descriptors.SWIZZLES)

    def check(self) -> str:
        for name, size in (("leading", self.leading), ("stride", self.stride)):
            if size % 16 or not 0 <= size < 1 << 18:
                return f"has {name}={size}: a multiple of 16 below {1 << 18}"
        if len(self.next_chunk) > 1:
            return f"has {len(self.next_chunk)} next chunks: none or one"
        for pointer in self.next_chunk:
            if self.leading or self.swizzle != "128b":
                return f"has a next chunk with leading={self.leading} and swizzle {self.swizzle}: they are 0 and 128b"
            if rule := wrong_space(pointer, "next chunk", "smem"):
                return rule
        return wrong_space(self.pointer, "operand", "smem")

    def needs(self) -> "Iterator[tuple[features.Feature, str]]":
        yield from super().needs()
        if self.next_chunk:
            yield features.TCGEN05_K96, "a descriptor with a next chunk"


def tcgen05_matrix_descriptor(
    pointer: ir.Value, leading: int, stride: int, swizzle: str, next_chunk: "ir.Value | None" = None
) -> ir.Value:
    """Return the descriptor of an operand; `leading` and `stride` in bytes."""
    operands = (pointer,) if next_chunk is None else (pointer, next_chunk)
    attrs = attributes(leading=leading, stride=stride, swizzle=swizzle)
    return emit_value("cute_nvgpu.tcgen05_matrix_descriptor", int_type(64), operands, attrs)


class _PlainMma(_Tcgen05):
    """Base of MMAs of the kinds without scale factors."""

    d: Operand[I32]
    a: Operand[Integer]
    b: Operand[I64]
    idesc: Operand[I32]
    accumulate: Operand[I1]
    kind: one_of(*tcgen05_descriptors.KINDS)
    cta_group: CtaGroup
    collector: OptionalAttr[Collector]
    scale_input_d: OptionalAttr[ir.IntegerAttr]
    a_shift: OptionalAttr[ir.BoolAttr]
    collector_b: OptionalAttr[Collector]
    sparse = False

    if TYPE_CHECKING:
        disable_output_lane: Operands[I32]

    def check(self) -> str:
        masks = len(self.disable_output_lane)
        if masks not in (0, 4 * self.cta_group):
            return (
                f"has {masks} masks of disable_output_lane: with cta_group {self.cta_group} it has {4 * self.cta_group}"
            )
        scale = self.scale_input_d
        if scale is not None and not 0 <= scale <= forms.MOST_SCALE_D:
            return f"has scale_input_d={scale}: 0 to {forms.MOST_SCALE_D}"
        if scale is not None and not forms.scales_d(self.kind, self.sparse):
            return f"has scale_input_d with kind {self.kind}: it is for f16, tf32 and, with a dense A, i8"
        if self.a_shift and not _in_tensor_memory(self.a):
            return "has a_shift and A in shared memory: it shifts an A in tensor memory"
        if self.a_shift and self.collector in ("fill", "use"):
            return f"has a_shift and the collector {self.collector!r}: lastuse or discard"
        return _wrong_idesc(self.idesc, self.kind, self.cta_group, sparse=self.sparse)

    def needs(self) -> "Iterator[tuple[features.Feature, str]]":
        yield from super().needs()
        if self.kind == "i8":
            yield features.TCGEN05_I8, ""
        elif self.scale_input_d is not None:
            yield features.TCGEN05_SCALE_D, ""
        if self.collector_b is not None:
            yield features.TCGEN05_COLLECTOR_B, ""


class Tcgen05Mma(
    _PlainMma, name="tcgen05_mma", ptx=(forms.MMA, forms.MMA_TMEM), reads=("a", "b", "d"), writes="d", engine=TCGEN05
):
    """Issue D = A B + D, or D = A B if `accumulate` is false, with D in tensor memory.

    `d` is the address of D; `a` is a descriptor (i64), or the address of A in tensor memory (i32); `b` is a
    descriptor. `idesc` has shape, element types and majors (`tcgen05_descriptors.instruction_descriptor`); one that is
    known is checked against `hardware/mma_shapes.py`.
    `disable_output_lane` are no or 4 masks (8 with `cta_group` 2): rows of D whose bits are set are not written. D is
    multiplied by 2^-`scale_input_d` before the addition (kinds f16, tf32 and i8). `collector` and
    `collector_b` (sm_107a) say what becomes of A and B in the collector buffers. `a_shift` moves row i + 1 of an A in tensor memory to row i.
    """

    disable_output_lane: Operands[I32]


tcgen05_mma: Build = Tcgen05Mma.build


class Tcgen05MmaSp(
    _PlainMma,
    name="tcgen05_mma_sp",
    ptx=(forms.MMA_SP, forms.MMA_SP_TMEM),
    reads=("a", "b", "d", "metadata"),
    writes="d",
    engine=TCGEN05,
):
    """Issue D = A B + D, or D = A B if `accumulate` is false, with a sparse A.

    Of each 4 elements of A along K two are there, of each 2 of tf32 one, so that a row of A has 32 bytes and K is twice that
    of `tcgen05_mma`. `metadata` is the address of metadata in tensor memory that say which (`tensor_memory.metadata_part`);
    its column is even. `idesc` has the sparsity selector. The other fields are those of `tcgen05_mma`.
    """

    metadata: Operand[I32]
    disable_output_lane: Operands[I32]
    sparse = True


tcgen05_mma_sp: Build = Tcgen05MmaSp.build


def _in_tensor_memory(a: ir.Value) -> bool:
    return str(a.type) == "i32"


def _wrong_idesc(
    idesc: ir.Value, kind: str, cta_group: int, block: "int | None" = None, *, ws: bool = False, sparse: bool = False
) -> str:
    """Return what is wrong with an instruction descriptor that is known."""
    bits_of_idesc = constant(idesc)
    if bits_of_idesc is None:
        return ""
    return tcgen05_descriptors.wrong_instruction(
        kind, bits_of_idesc & 0xFFFFFFFF, cta_group, block, ws=ws, sparse=sparse
    )


class Tcgen05MmaWs(
    _Tcgen05,
    name="tcgen05_mma_ws",
    ptx=(forms.MMA_WS, forms.MMA_WS_TMEM),
    reads=("a", "b", "d"),
    writes="d",
    engine=TCGEN05,
):
    """Issue a weight-stationary D = A B + D of one CTA, with M of 32, 64 or 128 and N of 64, 128 or 256.

    B is kept in one of four collector buffers: `collector` names it and what becomes of B ("b0::fill").
    `zero_column_mask` is no or one descriptor (i64) of columns of B that count as zero. The other fields are those of
    `tcgen05_mma`.
    """

    d: Operand[I32]
    a: Operand[Integer]
    b: Operand[I64]
    idesc: Operand[I32]
    accumulate: Operand[I1]
    zero_column_mask: Operands[I64]
    kind: one_of(*tcgen05_descriptors.KINDS)
    collector: OptionalAttr[one_of(*(f"b{n}::{what}" for n in range(4) for what in Collector.values))]

    def check(self) -> str:
        masks = len(self.zero_column_mask)
        if masks > 1:
            return f"has {masks} zero-column masks: none or one"
        return _wrong_idesc(self.idesc, self.kind, 1, ws=True)

    def needs(self) -> "Iterator[tuple[features.Feature, str]]":
        yield from super().needs()
        if self.kind == "i8":
            yield features.TCGEN05_I8, ""


tcgen05_mma_ws: Build = Tcgen05MmaWs.build


BLOCKS = {
    kind: tuple(sorted({row.scale_vector for row in mma_shapes.TCGEN05_ROWS if row.kind == kind and row.scale_vector}))
    for kind in tcgen05_descriptors.BLOCK_SCALE_KINDS
}
"""Elements along K that share a scale factor, by kind."""


class Tcgen05MmaBlockScale(
    _Tcgen05,
    name="tcgen05_mma_block_scale",
    ptx=(forms.MMA_BLOCK_SCALE, forms.MMA_BLOCK_SCALE_TMEM),
    reads=("a", "b", "d", "sfa", "sfb"),
    writes="d",
    engine=TCGEN05,
):
    """Issue D = A B + D, or D = A B if `accumulate` is false, with scale factors for `block` elements of A and B each.

    `sfa` and `sfb` are the addresses of the scale factors in tensor memory. `idesc` comes from
    `tcgen05_descriptors.block_scaled_instruction_descriptor`. The other fields are those of `tcgen05_mma`.
    """

    d: Operand[I32]
    a: Operand[Integer]
    b: Operand[I64]
    idesc: Operand[I32]
    sfa: Operand[I32]
    sfb: Operand[I32]
    accumulate: Operand[I1]
    kind: one_of(*tcgen05_descriptors.BLOCK_SCALE_KINDS)
    block: one_of(16, 32)
    cta_group: CtaGroup
    collector: OptionalAttr[Collector]
    collector_b: OptionalAttr[Collector]

    def check(self) -> str:
        blocks = BLOCKS[self.kind]
        if self.block not in blocks:
            return (
                f"has scales for {self.block} elements: kind {self.kind} has them for {' or '.join(map(str, blocks))}"
            )
        return _wrong_idesc(self.idesc, self.kind, self.cta_group, self.block)

    @property
    def scaling(self) -> tuple[str, int]:
        """Kind and elements that share a scale factor, as the form of the instruction has them."""
        return self.kind, self.block

    def needs(self) -> "Iterator[tuple[features.Feature, str]]":
        yield from super().needs()
        yield features.TCGEN05_BLOCK_SIZES, ""
        idesc = constant(self.idesc)
        if idesc is not None and tcgen05_descriptors.decode(self.kind, idesc & 0xFFFFFFFF).k96:
            yield features.TCGEN05_K96, ""
        if self.collector_b is not None:
            yield features.TCGEN05_COLLECTOR_B, ""


tcgen05_mma_block_scale: Build = Tcgen05MmaBlockScale.build


# --- copy, shift, commit ---------------------------------------------------------------------------------------------


class Tcgen05Cp(_Tcgen05, name="tcgen05_cp", ptx=forms.CP, reads="descriptor", writes="address", engine=TCGEN05_CP):
    """Copy rows of shared memory, by a matrix descriptor, to tensor memory at `address`.

    `shape` counts rows and their bits; warpx2 and warpx4 write rows to the lanes of several warps
    (`tensor_memory.cp_lanes`). With `format` each 16 bytes of a row are 16 packed elements of 4 or 6 bits and padding,
    which become 16 bytes.
    """

    address: Operand[I32]
    descriptor: Operand[I64]
    shape: one_of(*tensor_memory.CP_SHAPES)
    cta_group: CtaGroup
    format: OptionalAttr[one_of("b6x16_p32", "b4x16_p64")]


tcgen05_cp: Build = Tcgen05Cp.build


class Tcgen05Shift(_Tcgen05, name="tcgen05_shift", ptx=forms.SHIFT, reads="address", writes="address", engine=TCGEN05):
    """Copy 8 columns of each of the 32 lanes at `address` to the lane before it; the last lane keeps its own."""

    address: Operand[I32]
    cta_group: CtaGroup

    def needs(self) -> "Iterator[tuple[features.Feature, str]]":
        yield from super().needs()
        yield features.TCGEN05_SHIFT, ""


tcgen05_shift: Build = Tcgen05Shift.build


class Tcgen05Commit(
    _Tcgen05, name="tcgen05_commit", ptx=forms.COMMIT, mbarrier="mbarrier", commits=(TCGEN05, TCGEN05_CP)
):
    """Arrive once at an mbarrier when all that the thread issued before is complete: MMAs, copies and shifts.

    With a `mask` (i16) it arrives at the mbarrier with the same offset in each CTA of the cluster whose bit is set.
    """

    mbarrier: Operand[Pointer]
    mask: Operands[I16]
    cta_group: CtaGroup

    def check(self) -> str:
        if len(self.mask) > 1:
            return f"has {len(self.mask)} masks: none or one"
        return wrong_space(self.mbarrier, "mbarrier", "smem")


tcgen05_commit: Build = Tcgen05Commit.build


# --- registers -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _wrong_access(shape: str, repeat: int, split: "int | None", type_: ir.Type, further: int = 0) -> str:
    options = tensor_memory.repeats(shape)
    if repeat not in options:
        return f"repeats {shape} {repeat} times: {', '.join(map(str, options))}"
    if (split is not None) != (shape == "16x32bx2"):
        return f"has {'no split' if split is None else f'split={split}'} with {shape}: 16x32bx2 alone has one"
    if split is not None and split < 0:
        return f"has split={split}: the columns from one half to the other, not negative"
    count = tensor_memory.ld_registers(shape, repeat) + further
    words = isinstance(type_, ir.VectorType) and str(type_.element_type) == "i32"
    return "" if words and list(type_.shape) == [count] else f"has registers of {type_}: a vector of {count} i32"


class Tcgen05Ld(
    _Tcgen05,
    name="tcgen05_ld",
    reads=Access("address", value="result"),
    engine=TCGEN05_LD,
    converged="warp",
    waits=True,
):
    """Load registers of a warp from tensor memory: a vector of i32, valid after `tcgen05_wait` of "ld".

    All threads give the same address; warp w accesses lanes 32 (w % 4) to 32 (w % 4) + 31. `tensor_memory.ld_cell`
    says which cell is in which register; `repeat` repeats `shape` along columns. With `pack` a register has the lower
    halves of two neighbouring cells. `split` is the distance in columns between the halves of 16x32bx2.
    """

    address: Operand[I32]
    result: Result[Any]
    shape: Shape
    repeat: ir.IntegerAttr
    split: OptionalAttr[ir.IntegerAttr]
    pack: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return _wrong_access(self.shape, self.repeat, self.split, self.result.type)


@functools.lru_cache(maxsize=64)
def _registers(count: int) -> ir.Type:
    return ir.VectorType.get([count], int_type(32), loc=ir.Location.unknown(context()))


def tcgen05_ld(
    address: ir.Value, shape: str, repeat: int, *, split: "int | None" = None, pack: bool = False
) -> ir.Value:
    """Return a thread's registers, a vector of i32."""
    attrs = attributes(shape=shape, repeat=repeat, split=split, pack=pack or None)
    type_ = _registers(tensor_memory.ld_registers(shape, repeat))
    return emit_value("cute_nvgpu.tcgen05_ld", type_, (address,), attrs)


class Tcgen05LdRed(
    _Tcgen05,
    name="tcgen05_ld_red",
    reads=Access("address", value="result"),
    engine=TCGEN05_LD,
    converged="warp",
    waits=True,
):
    """Load as `tcgen05_ld` does, and reduce a lane's columns: a vector of the loaded registers, then the reduction.

    `type` is that of the cells. Of f32, `abs` takes absolute values, and with `nan` a NaN makes the reduction NaN.
    """

    address: Operand[I32]
    result: Result[Any]
    shape: one_of("32x32b", "16x32bx2")
    repeat: ir.IntegerAttr
    reduction: one_of("min", "max")
    type: one_of("f32", "u32", "s32")
    split: OptionalAttr[ir.IntegerAttr]
    abs: OptionalAttr[ir.BoolAttr]
    nan: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        if self.repeat == 1:
            return "repeats 1 time: a reduction is over 2 columns or more"
        if self.type != "f32" and (self.abs or self.nan):
            return f"has abs or nan with {self.type}: they are for f32"
        return _wrong_access(self.shape, self.repeat, self.split, self.result.type, 1)

    def needs(self) -> "Iterator[tuple[features.Feature, str]]":
        yield features.TCGEN05_LOAD_REDUCE, ""


def tcgen05_ld_red(
    address: ir.Value,
    shape: str,
    repeat: int,
    reduction: str,
    type: str,
    *,
    split: "int | None" = None,
    abs: bool = False,
    nan: bool = False,
) -> ir.Value:
    """Return a thread's registers and then their reduction, a vector of i32."""
    attrs = attributes(
        shape=shape, repeat=repeat, reduction=reduction, type=type, split=split, abs=abs or None, nan=nan or None
    )
    type_ = _registers(tensor_memory.ld_registers(shape, repeat) + 1)
    return emit_value("cute_nvgpu.tcgen05_ld_red", type_, (address,), attrs)


class Tcgen05St(
    _Tcgen05,
    name="tcgen05_st",
    writes=Access("address", value="value"),
    engine=TCGEN05_ST,
    converged="warp",
    waits=True,
):
    """Store registers of a warp, a vector of i32, to tensor memory; complete after `tcgen05_wait` of "st".

    Fields are those of `tcgen05_ld`; with `unpack` the halves of a register go to the lower halves of two cells.
    """

    address: Operand[I32]
    value: Operand[Any]
    shape: Shape
    repeat: ir.IntegerAttr
    split: OptionalAttr[ir.IntegerAttr]
    unpack: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return _wrong_access(self.shape, self.repeat, self.split, self.value.type)


tcgen05_st: Build = Tcgen05St.build


class Tcgen05Wait(
    _Tcgen05, name="tcgen05_wait", ptx=forms.WAIT, awaits=(TCGEN05_LD, TCGEN05_ST), converged="warp", waits=True
):
    """Wait until all loads ("ld") or stores ("st") of tensor memory that the thread has issued are complete."""

    kind: one_of("ld", "st")


tcgen05_wait: Build = Tcgen05Wait.build


class Tcgen05Fence(_Tcgen05, name="tcgen05_fence", ptx=forms.FENCE, orders="accesses"):
    """Order asynchronous tcgen05 operations before a synchronization of threads, or after it."""

    kind: one_of("before_thread_sync", "after_thread_sync")


tcgen05_fence: Build = Tcgen05Fence.build
