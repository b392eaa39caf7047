"""Primitives of tensor memory and the tensor cores of Blackwell (sm_100a)."""

from __future__ import annotations

import enum
from typing import Any

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import (
    BFloat16,
    Float4E2M1FN,
    Float6E2M3FN,
    Float6E3M2FN,
    Float8E4M3FN,
    Float8E5M2,
    Float16,
    Float32,
    Int8,
    Int16,
    Int32,
    Int64,
    Numeric,
    TFloat32,
    Uint8,
    Uint32,
)
from ...cute.arch.values import choice, i1, i32, kernel_only
from ...cute.deferred_dialects import nvgpu
from ...cute.tensor.array import Array
from ...cute.tensor.pointer import AddressSpace
from ...cute.tensor.raw_pointer import inttoptr
from ...cute.tensor.tensor_ssa import TensorSSA
from ...dialects.nvgpu import tcgen05_descriptors
from ...dialects.nvgpu.tcgen05_descriptors import Field
from .addresses import absent, shared
from .matrix_names import Tcgen05CpMulticast, Tcgen05CpShape


class Tcgen05MMAKind(enum.Enum):
    """The kind of a tcgen05 MMA, by the types of its operands."""

    F16 = "f16"
    TF32 = "tf32"
    F8F6F4 = "f8f6f4"
    I8 = "i8"
    INT8 = I8
    MXF8F6F4 = "mxf8f6f4"
    MXF4 = "mxf4"
    MXF4NVF4 = "mxf4nvf4"


class MMABlockScaleKind(enum.Enum):
    """The kind of an MMA with block scales."""

    MXF8F6F4 = "mxf8f6f4"
    MXF4 = "mxf4"
    MXF4NVF4 = "mxf4nvf4"


class Tcgen05MMABlockScale(enum.Enum):
    """How many elements along K share a scale factor."""

    DEFAULT = "default"
    BLOCK16 = "block16"
    BLOCK32 = "block32"


class Tcgen05MMACollectorOp(enum.Enum):
    """What a tcgen05 MMA does with the buffer that keeps A."""

    FILL = "fill"
    USE = "use"
    LASTUSE = "lastuse"
    DISCARD = "discard"


class Tcgen05Wait(enum.Enum):
    """Whether to wait for loads from tensor memory or for stores."""

    LOAD = "load"
    STORE = "store"


class Tcgen05Fence(enum.Enum):
    """The side of a thread synchronization on which tcgen05 operations are ordered."""

    BEFORE_THREAD_SYNC = "before_thread_sync"
    AFTER_THREAD_SYNC = "after_thread_sync"


class Tcgen05CpSrcFormat(enum.Enum):
    """The format of narrow elements that `tcgen05.cp` expands."""

    B4X16_P64 = "b4x16_p64"
    B6X16_P32 = "b6x16_p32"


class Tcgen05LdStShape(enum.Enum):
    """The shape of a load or store of tensor memory."""

    SHAPE_32X32B = "32x32b"
    SHAPE_16X64B = "16x64b"
    SHAPE_16X128B = "16x128b"
    SHAPE_16X256B = "16x256b"
    SHAPE_16X32BX2 = "16x32bx2"


class Tcgen05SmemSwizzle(enum.IntEnum):
    """The swizzle of an operand in shared memory, as its number in descriptors."""

    NONE = 0
    SWIZZLE_128B_ATOM_32B = 1
    SWIZZLE_128B = 2
    SWIZZLE_64B = 4
    SWIZZLE_32B = 6


class S2TCopyMode:
    """Shapes of copies from shared to tensor memory, each with its multicast: `shape, multicast = S2TCopyMode.X`."""

    S2T_128x128b = (Tcgen05CpShape.SHAPE_128X128B, None)
    S2T_128x256b = (Tcgen05CpShape.SHAPE_128X256B, None)
    S2T_4x256b = (Tcgen05CpShape.SHAPE_4X256B, None)
    S2T_32x128b_WARPX4 = (Tcgen05CpShape.SHAPE_32X128B, Tcgen05CpMulticast.WARPX4)
    S2T_64x128b_WARPX2_01_23 = (Tcgen05CpShape.SHAPE_64X128B, Tcgen05CpMulticast.WARPX2_01_23)
    S2T_64x128b_WARPX2_02_13 = (Tcgen05CpShape.SHAPE_64X128B, Tcgen05CpMulticast.WARPX2_02_13)


_OPERANDS = {
    None: 0,
    Float16: 0,
    BFloat16: 1,
    Float32: 2,
    TFloat32: 2,
    Uint8: 0,
    Int8: 1,
    Float8E4M3FN: 0,
    Float8E5M2: 1,
    Float6E2M3FN: 3,
    Float6E3M2FN: 4,
    Float4E2M1FN: 5,
}
_ACCUMULATORS = {None: 0, Float16: 0, Float32: 1, Int32: 2}


def _code(what: str, dtype: object, codes: dict[Any, int]) -> int:
    if dtype not in codes:
        raise type_error(f"{what} is {getattr(dtype, '__name__', dtype)}", "a type of tcgen05.mma")
    return codes[dtype]


def _shape(m_dim: int, n_dim: int) -> int:
    if m_dim % 16 or n_dim % 8:
        raise type_error(f"an MMA of m_dim={m_dim} and n_dim={n_dim}", "multiples of 16 and of 8")
    return n_dim // 8 << 17 | m_dim // 16 << 24


class _Field:
    """A field of a descriptor, as an attribute."""

    def __init__(self, field: tcgen05_descriptors.Field) -> None:
        self.field = field

    def __get__(self, owner: object, kind: Any = None) -> Any:
        if owner is None:
            return self
        number = Int64 if kind.width == 64 else Int32
        return self.field.of(number(owner))


class _InstrDesc(Int32):
    """The fields that all instruction descriptors have at the same bits."""

    sparse_flag = _Field(tcgen05_descriptors.SPARSE)
    a_format = _Field(tcgen05_descriptors.A_TYPE)
    b_format = _Field(tcgen05_descriptors.B_TYPE)
    a_negate = _Field(tcgen05_descriptors.NEGATE_A)
    b_negate = _Field(tcgen05_descriptors.NEGATE_B)
    a_major = _Field(tcgen05_descriptors.A_MAJOR)
    b_major = _Field(tcgen05_descriptors.B_MAJOR)
    n_dim = _Field(tcgen05_descriptors.N)
    m_dim = _Field(tcgen05_descriptors.M)


class Tcgen05InstrDesc(_InstrDesc):
    """The instruction descriptor of `tcgen05_mma`, an Int32."""

    sparse_id2 = _Field(tcgen05_descriptors.SPARSE_ID)
    saturate = _Field(tcgen05_descriptors.SATURATE)
    c_format = _Field(tcgen05_descriptors.ACCUMULATOR)
    max_shift = _Field(tcgen05_descriptors.MAX_SHIFT)

    @classmethod
    def build(
        cls,
        sparse_id2: int = 0,
        sparse_flag: int = 0,
        saturate: int = 0,
        sparse_format: int = 0,
        c_dtype: object = None,
        a_dtype: object = None,
        b_dtype: object = None,
        a_negate: int = 0,
        b_negate: int = 0,
        a_major: int = 0,
        b_major: int = 0,
        n_dim: int = 0,
        m_dim: int = 0,
        k_dim: int = 0,
        max_shift: int = 0,
    ) -> Tcgen05InstrDesc:
        """Return the descriptor of an MMA of `m_dim` x `n_dim` (of both CTAs of a pair); a major of 1 is MN."""
        absent("Tcgen05InstrDesc.build", sparse_format=sparse_format, k_dim=k_dim)
        return cls(
            sparse_id2
            | sparse_flag << 2
            | saturate << 3
            | _code("c_dtype", c_dtype, _ACCUMULATORS) << 4
            | _code("a_dtype", a_dtype, _OPERANDS) << 7
            | _code("b_dtype", b_dtype, _OPERANDS) << 10
            | a_negate << 13
            | b_negate << 14
            | a_major << 15
            | b_major << 16
            | _shape(m_dim, n_dim)
            | max_shift << 30
        )


class Tcgen05MxInstrDesc(_InstrDesc):
    """The instruction descriptor of `tcgen05_mma_block_scale`, an Int32."""

    b_sf_id = _Field(tcgen05_descriptors.SFB_ID)
    scale_format = _Field(tcgen05_descriptors.SCALE_TYPE)
    a_sf_id = _Field(tcgen05_descriptors.SFA_ID)
    k_dim = _Field(tcgen05_descriptors.K96)

    @classmethod
    def build(
        cls,
        sparse_flag: int = 0,
        b_sf_id: object = 0,
        a_sf_id: object = 0,
        a_dtype: object = None,
        b_dtype: object = None,
        scale_format: int = 1,
        a_negate: int = 0,
        b_negate: int = 0,
        a_major: int = 0,
        b_major: int = 0,
        n_dim: int = 0,
        m_dim: int = 0,
        k_dim: int = 0,
        a_sf_layout: int = 0,
    ) -> Any:
        """Return the descriptor of a block-scaled MMA; `scale_format` 1 is UE8M0, 0 is UE4M3; `k_dim` 1 is K = 96."""
        absent(f"{cls.__name__}.build", a_sf_layout=a_sf_layout)
        bits = (
            sparse_flag << 2
            | _code("a_dtype", a_dtype, cls.operands()) << 7
            | _code("b_dtype", b_dtype, cls.operands()) << 10
            | a_negate << 13
            | b_negate << 14
            | a_major << 15
            | b_major << 16
            | scale_format << 23
            | _shape(m_dim, n_dim)
            | k_dim << 31
        )
        return cls(bits - (bits >> 31 << 32)).set_sf_ids(a_sf_id=a_sf_id, b_sf_id=b_sf_id)

    @staticmethod
    def operands() -> dict[Any, int]:
        """Return the numbers of element types."""
        return _OPERANDS

    def set_sf_ids(self, a_sf_id: object = 0, b_sf_id: object = 0) -> Any:
        """Return the descriptor with the bytes of the scale factors' cells that the MMA takes."""
        rest = Int32(self) & Int32(~(3 << 4 | 3 << 29))
        return type(self)(rest | Int32(b_sf_id) << 4 | Int32(a_sf_id) << 29)


class Tcgen05MxOmmaInstrDesc(Tcgen05MxInstrDesc):
    """The instruction descriptor of block-scaled MMAs of fp4 (mxf4, mxf4nvf4), whose E2M1 is 1."""

    @classmethod
    def build(
        cls,
        sparse_flag: int = 0,
        a_sf_id: object = 0,
        a_sf_layout: int = 0,
        b_sf_id: object = 0,
        a_dtype: object = None,
        b_dtype: object = None,
        scale_format: int = 1,
        a_negate: int = 0,
        b_negate: int = 0,
        a_major: int = 0,
        b_major: int = 0,
        n_dim: int = 0,
        m_dim: int = 0,
        k_dim: int = 0,
        sparsity_version: int = 1,
    ) -> Any:
        """Return the descriptor, as `Tcgen05MxInstrDesc.build` does; MMAs of fp4 here are dense."""
        absent("Tcgen05MxOmmaInstrDesc.build", sparse_flag=sparse_flag, other_sparsity_version=sparsity_version != 1)
        return super().build(
            0,
            b_sf_id,
            a_sf_id,
            a_dtype,
            b_dtype,
            scale_format,
            a_negate,
            b_negate,
            a_major,
            b_major,
            n_dim,
            m_dim,
            k_dim,
            a_sf_layout,
        )

    @staticmethod
    def operands() -> dict[Any, int]:
        return {None: 1, **_OPERANDS, Float4E2M1FN: 1}


class Tcgen05SmemDesc(Int64):
    """The descriptor of an operand in shared memory, an Int64; adding n moves it by 16 n bytes."""

    start_address = _Field(Field(0, 14, 16))
    leading_byte_offset = _Field(Field(16, 14, 16))
    stride_byte_offset = _Field(Field(32, 14, 16))
    version = _Field(Field(46, 2))
    base_offset = _Field(Field(49, 3))
    layout_type = _Field(Field(61, 3))

    @classmethod
    def build(
        cls,
        start_address: object,
        leading_byte_offset: int | Numeric = 0,
        stride_byte_offset: int | Numeric = 0,
        version: int = 1,
        base_offset: int = 0,
        layout: Any = 0,
        leading_dim_mode: int = 0,
        k_segment_offset: int = 0,
    ) -> Tcgen05SmemDesc:
        """Return the descriptor of an operand at an address; offsets are in bytes, `layout` is its swizzle.

        An offset that only the program knows goes into its field as it is: bits 4 to 17 of it.
        """
        absent("Tcgen05SmemDesc.build", leading_dim_mode=leading_dim_mode, k_segment_offset=k_segment_offset)
        if isinstance(start_address, (int, Numeric)):
            start_address = inttoptr(start_address, AddressSpace.smem, Int8)
        where = shared(start_address, "Tcgen05SmemDesc.build").ir_value()
        swizzles = {number: name for name, number in tcgen05_descriptors.SWIZZLES.items()}
        offsets: dict[str, int] = {}
        in_program = Int64(base_offset << 49) if base_offset in range(8) else Int64(0)
        for name, number, bit in (("leading", leading_byte_offset, 16), ("stride", stride_byte_offset, 32)):
            static = number.value if isinstance(number, Numeric) and number.is_static else number
            if isinstance(static, Numeric):
                in_program |= ((Int64(static) >> 4) & 0x3FFF) << bit
                static = 0
            if static % 16 or not 0 <= static < 1 << 18:
                raise type_error(
                    f"the {name}_byte_offset of an operand is {static}", f"a multiple of 16 below {1 << 18}"
                )
            offsets[name] = static
        if int(layout) not in swizzles or version != 1:
            raise type_error(
                f"the layout of an operand is {layout!r}, version {version}", "a Tcgen05SmemSwizzle, version 1"
            )
        if base_offset not in range(8):
            raise type_error(f"the base_offset of an operand is {base_offset!r}", "0 to 7")
        descriptor = nvgpu.tcgen05.tcgen05_matrix_descriptor(
            where, offsets["leading"], offsets["stride"], swizzles[int(layout)]
        )
        return cls(Int64._make(descriptor) | in_program)

    def advance_start_address(self, byte_increment: Any) -> Tcgen05SmemDesc:
        """Return the descriptor of what lies `byte_increment` bytes further on."""
        return self + (byte_increment >> 4)


class TmemAddr(Int32):
    """An address in tensor memory, an Int32: the row (lane) in bits 16 to 31, the column in bits 0 to 15."""

    @property
    def row_id(self) -> Int32:
        """The lane of tensor memory that the address names."""
        return (Int32(self) >> 16) & 0xFFFF

    @property
    def col_id(self) -> Int32:
        """The column of tensor memory that the address names."""
        return Int32(self) & 0xFFFF

    @classmethod
    def from_row_col(cls, row: object, col: object) -> TmemAddr:
        """Return the address of a lane and a column."""
        return cls(Int32(row) << 16 | Int32(col))

    def as_ptr(self, dtype: object) -> Array:
        """Return the address as an Array of a type, without extents."""
        return make_tmem_ptr(self, dtype)


def make_tmem_ptr(tmem_addr: object, dtype: object, *, loc: object = None, ip: object = None) -> Array:
    """Return an address in tensor memory as an Array of a type, without extents."""
    return Array(inttoptr(Int32(_word(tmem_addr)), AddressSpace.tmem, dtype))


def make_tmem_ptr_from_warp_row_col(
    tmem_base: Any, warp: Any, base_col: object, dtype: object, *, loc: object = None, ip: object = None
) -> Array:
    """Return the part of tensor memory of a warp, 32 lanes, from column `base_col`, which counts from 0, not from the base."""
    row = TmemAddr(_word(tmem_base)).row_id + 32 * (warp % 4)
    return TmemAddr.from_row_col(row, base_col).as_ptr(dtype)


def _word(addr: Any) -> Any:
    """Return an address in tensor memory as 32 bits."""
    if isinstance(addr, (int, Numeric)):
        return addr
    where = addr.data_ptr() if hasattr(addr, "data_ptr") else addr
    if getattr(where, "memspace", None) is not AddressSpace.tmem:
        raise type_error(f"an address in tensor memory is {addr}", "make_tmem_ptr(address, dtype)")
    return where.toint()


def _tmem(addr: object) -> ir.Value:
    return i32(_word(addr))


def _group(group: object) -> int:
    return 1 if group is None else int(choice("group", group, ("cta_1", "cta_2"))[-1])


def _columns(n_cols: object) -> ir.Value:
    if isinstance(n_cols, int) and (not 32 <= n_cols <= 512 or n_cols & (n_cols - 1)):
        raise type_error(f"{n_cols} columns of tensor memory", "a power of two from 32 to 512")
    return i32(n_cols)


def tcgen05_alloc(
    addr: object,
    n_cols: object,
    *,
    is_exclusive: bool | None = None,
    group: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Allocate columns of tensor memory and write their address to a word of shared memory. A whole warp calls it."""
    where = shared(addr, "tcgen05_alloc").ir_value()
    absent("tcgen05_alloc", is_exclusive=is_exclusive)
    nvgpu.tcgen05.tcgen05_alloc(where, _columns(n_cols), cta_group=_group(group))


def tcgen05_dealloc(
    taddr: object,
    n_cols: object,
    *,
    is_exclusive: bool | None = None,
    group: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Free the columns of an allocation. A whole warp calls it."""
    kernel_only("tcgen05_dealloc")
    absent("tcgen05_dealloc", is_exclusive=is_exclusive)
    nvgpu.tcgen05.tcgen05_dealloc(_tmem(taddr), _columns(n_cols), cta_group=_group(group))


def tcgen05_relinquish_alloc_permit(*, group: object = None, loc: object = None, ip: object = None) -> None:
    """Give up the right to allocate, so that another CTA of the SM can."""
    kernel_only("tcgen05_relinquish_alloc_permit")
    nvgpu.tcgen05.tcgen05_relinquish_alloc_permit(cta_group=_group(group))


def _operand(x: object) -> ir.Value:
    """Return an operand of an MMA: a descriptor, 64 bits, or an address in tensor memory, 32 bits."""
    return x.ir_value() if isinstance(x, Numeric) and type(x).width == 64 else _tmem(x)


def _masks(mask: Any) -> list[ir.Value]:
    parts = () if mask is None else mask.to_elements() if isinstance(mask, TensorSSA) else tuple(mask)
    return [i32(part) for part in parts]


def _collectors(a: object, b: object) -> dict[str, str | None]:
    uses = ("fill", "use", "lastuse", "discard")
    return {
        "collector": None if a is None else choice("collector_op", a, uses),
        "collector_b": None if b is None else choice("b_collector_op", b, uses),
    }


def tcgen05_mma(
    mma_kind: object,
    cta_group: object,
    d: object,
    a: object,
    b: object,
    idesc: object,
    enable_input_d: object,
    *,
    collector_op: object = None,
    b_collector_op: object = None,
    a_shift: bool | None = None,
    scale_input_d: int | None = None,
    write_disable_mask: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Issue D = A B + D, or D = A B, with D in tensor memory; one thread calls it.

    A is a descriptor or lies in tensor memory. `scale_input_d` n divides D by 2^n before the addition,
    `write_disable_mask` has a bit for each row that is not written. `collector_op` and `b_collector_op` (sm_107a) keep A
    and B in the tensor core for the next MMA.
    """
    kernel_only("tcgen05_mma")
    operands = (_tmem(d), _operand(a), _operand(b), i32(_word(idesc)), i1(enable_input_d), *_masks(write_disable_mask))
    options = _mma_options(mma_kind, cta_group, collector_op, b_collector_op, a_shift, scale_input_d)
    nvgpu.tcgen05.tcgen05_mma(*operands, **options)


def _mma_options(
    mma_kind: object,
    cta_group: object,
    collector_op: object,
    b_collector_op: object,
    a_shift: bool | None,
    scale_input_d: int | None,
) -> dict[str, str | int | None]:
    """Return the fields of the MMAs without scale factors."""
    return {
        "kind": choice("mma_kind", mma_kind, ("f16", "tf32", "f8f6f4", "i8")),
        "cta_group": _group(cta_group),
        **_collectors(collector_op, b_collector_op),
        "scale_input_d": scale_input_d,
        "a_shift": a_shift or None,
    }


def tcgen05_mma_sp(
    mma_kind: object,
    cta_group: object,
    d: object,
    a: object,
    b: object,
    metadata: object,
    idesc: object,
    enable_input_d: object,
    *,
    collector_op: object = None,
    b_collector_op: object = None,
    a_shift: bool | None = None,
    scale_input_d: int | None = None,
    write_disable_mask: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Issue D = A B + D, or D = A B, with a sparse A: of 4 elements along K two are there (of 2 of tf32 one).

    `metadata` is the address in tensor memory of the indices that say which, at an even column. `idesc` has
    `sparse_flag=1`, and `sparse_id2` for the second column. The other arguments are those of `tcgen05_mma`.
    """
    kernel_only("tcgen05_mma_sp")
    operands = (_tmem(d), _operand(a), _operand(b), i32(_word(idesc)), i1(enable_input_d), _tmem(metadata))
    options = _mma_options(mma_kind, cta_group, collector_op, b_collector_op, a_shift, scale_input_d)
    nvgpu.tcgen05.tcgen05_mma_sp(*operands, *_masks(write_disable_mask), **options)


_SCALE_BLOCKS = {"default": 32, "block16": 16, "block32": 32, "x1": 32, "x2": 32, "x4": 16}
"""Elements of K that share a scale factor, by the names of `Tcgen05MMABlockScale` and `Tcgen05MMAScaleVecSize`."""
_SCALE_VECTORS = {"mxf8f6f4": "x1", "mxf4": "x2", "mxf4nvf4": "x2 or x4"}


def tcgen05_mma_block_scale(
    mma_kind: object,
    cta_group: object,
    d: object,
    a: object,
    b: object,
    idesc: object,
    enable_input_d: object,
    scale_a: object,
    scale_b: object,
    *,
    scale_vec_size: object = None,
    collector_op: object = None,
    b_collector_op: object = None,
    a_shift: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Issue D = A B + D with scale factors of A and B in tensor memory, one for 16 or 32 (DEFAULT) elements along K."""
    kernel_only("tcgen05_mma_block_scale")
    absent("tcgen05_mma_block_scale", a_shift=a_shift)
    how = choice("mma_kind", mma_kind, ("mxf8f6f4", "mxf4", "mxf4nvf4"))
    size = choice("scale_vec_size", scale_vec_size or "default", tuple(_SCALE_BLOCKS))
    if size[0] == "x" and size not in _SCALE_VECTORS[how]:
        raise type_error(f"tcgen05_mma_block_scale() of {how} with scale_vec_size {size}", _SCALE_VECTORS[how])
    nvgpu.tcgen05.tcgen05_mma_block_scale(
        _tmem(d),
        _operand(a),
        _operand(b),
        i32(_word(idesc)),
        _tmem(scale_a),
        _tmem(scale_b),
        i1(enable_input_d),
        kind=how,
        block=_SCALE_BLOCKS[size],
        cta_group=_group(cta_group),
        **_collectors(collector_op, b_collector_op),
    )


_CP_SHAPES = tuple(f"{start}{x.value.removeprefix('shape_')}" for start in ("", "shape_") for x in Tcgen05CpShape)
_CP_MULTICASTS = tuple(x.value for x in Tcgen05CpMulticast)


def tcgen05_cp(
    shape: object,
    taddr: object,
    smem_desc: object,
    *,
    group: object = None,
    multicast: object = None,
    src_format: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy rows of shared memory, by a descriptor, to tensor memory; one thread calls it."""
    kernel_only("tcgen05_cp")
    rows = choice("shape", shape, _CP_SHAPES).removeprefix("shape_")
    name = rows if multicast is None else f"{rows}.{choice('multicast', multicast, _CP_MULTICASTS)}"
    format_ = None if src_format is None else choice("src_format", src_format, ("b4x16_p64", "b6x16_p32"))
    nvgpu.tcgen05.tcgen05_cp(_tmem(taddr), _operand(smem_desc), shape=name, cta_group=_group(group), format=format_)


def tcgen05_commit(
    addr: object,
    *,
    multicast_mask: object = None,
    smem_a_read: bool | None = None,
    group: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Arrive at an mbarrier when all MMAs and copies that the thread issued are complete."""
    absent("tcgen05_commit", smem_a_read=smem_a_read)
    masks = [] if multicast_mask is None else [Int16(multicast_mask).ir_value()]
    where = shared(addr, "tcgen05_commit").ir_value()
    nvgpu.tcgen05.tcgen05_commit(where, *masks, cta_group=_group(group))


_SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")


def tcgen05_ld(
    shape: object,
    tmem_addr: Any,
    *,
    num: int = 1,
    pack: bool | None = None,
    offset: int | None = None,
    loc: object = None,
    ip: object = None,
) -> TensorSSA:
    """Return a thread's elements of tensor memory, `num` repetitions of the shape; valid after `tcgen05_wait`."""
    kernel_only("tcgen05_ld")
    loaded = nvgpu.tcgen05.tcgen05_ld(
        _tmem(tmem_addr), choice("shape", shape, _SHAPES), num, split=offset, pack=bool(pack)
    )
    words = TensorSSA(loaded, (loaded.type.shape[0],), Int32)  # pyright: ignore[reportAttributeAccessIssue]
    return words if tmem_addr.dtype is Int32 else words.bitcast(tmem_addr.dtype)


def tcgen05_st(
    shape: object,
    tmem_addr: Any,
    val: Any,
    *,
    unpack: bool | None = None,
    offset: int | None = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Store a thread's elements to tensor memory; complete after `tcgen05_wait`."""
    kernel_only("tcgen05_st")
    name = choice("shape", shape, _SHAPES)
    if not isinstance(val, TensorSSA):
        val = TensorSSA.from_elements((val,), type(val) if isinstance(val, Numeric) else tmem_addr.dtype)
    words = val.to_vector() if val.dtype is Int32 else val.to_vector().bitcast(Int32)
    each = {"16x128b": 2, "16x256b": 4}.get(name, 1)
    attrs: dict[str, Any] = {"shape": name, "repeat": words.numel() // each, "split": offset, "unpack": unpack or None}
    nvgpu.tcgen05.tcgen05_st(_tmem(tmem_addr), words.value, **attrs)


def tcgen05_wait(kind: object, *, loc: object = None, ip: object = None) -> None:
    """Wait for this thread's loads (LOAD) or stores (STORE) of tensor memory."""
    kernel_only("tcgen05_wait")
    nvgpu.tcgen05.tcgen05_wait({"load": "ld", "store": "st"}[choice("kind", kind, ("load", "store"))])


def tcgen05_fence(kind: object, *, loc: object = None, ip: object = None) -> None:
    """Order asynchronous operations of the tensor cores before or after a synchronisation of threads.

    Args:
        kind: a `Tcgen05Fence`, or its name, also in NVVM's spelling: "before" or "after".
    """
    kernel_only("tcgen05_fence")
    kind = f"{kind}_thread_sync" if kind in ("before", "after") else kind
    nvgpu.tcgen05.tcgen05_fence(choice("kind", kind, ("before_thread_sync", "after_thread_sync")))


def tcgen05_ld_red(
    shape: object,
    tmem_addr: Array,
    op: object,
    *,
    num: int = 2,
    offset: int | None = None,
    abs: bool | None = None,
    nan: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> tuple[TensorSSA, Int32]:
    """Return a thread's words of tensor memory, and their MIN or MAX as a word (sm_103a); valid after `tcgen05_wait`.

    The cells are numbers of the address's type: Float32, Int32 or Uint32. Of floats, `abs` takes magnitudes, and with
    `nan` a NaN makes the result NaN.
    """
    kernel_only("tcgen05_ld_red")
    kind = {Float32: "f32", Int32: "s32", Uint32: "u32"}.get(tmem_addr.dtype)
    if kind is None:
        raise type_error(f"tcgen05_ld_red() of {tmem_addr.dtype.__name__}", "Float32, Int32 or Uint32")
    name = choice("shape", shape, ("32x32b", "16x32bx2"))
    how = choice("op", op, ("min", "max"))
    flags = {"abs": bool(abs), "nan": bool(nan)}
    loaded = nvgpu.tcgen05.tcgen05_ld_red(_tmem(tmem_addr), name, num, how, kind, split=offset, **flags)
    count = loaded.type.shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    words = TensorSSA(loaded, (count,), Int32)
    elements = words.to_elements()
    return TensorSSA.from_elements(elements[:-1], Int32), elements[-1]


def tcgen05_mma_ws(
    mma_kind: object,
    d: object,
    a: object,
    b: object,
    idesc: object,
    enable_input_d: object,
    *,
    collector_b_buffer: object = None,
    collector_op: object = None,
    col_b_zero_mask: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Issue a weight-stationary D = A B + D, or D = A B, of one CTA; one thread calls it.

    B stays in a `Tcgen05MMACollectorBBuffer`, of which `collector_op` says what becomes. `col_b_zero_mask` describes
    columns of B that count as zero, 64 bits. The other arguments are those of `tcgen05_mma`.
    """
    kernel_only("tcgen05_mma_ws")
    collector = None
    if collector_b_buffer is not None or collector_op is not None:
        buffer = choice("collector_b_buffer", collector_b_buffer or "b0", ("b0", "b1", "b2", "b3"))
        what = choice("collector_op", collector_op or "discard", ("fill", "use", "lastuse", "discard"))
        collector = f"{buffer}::{what}"
    masks = [] if col_b_zero_mask is None else [Int64(col_b_zero_mask).ir_value()]
    operands = (_tmem(d), _operand(a), _operand(b), i32(_word(idesc)), i1(enable_input_d), *masks)
    kind = choice("mma_kind", mma_kind, ("f16", "tf32", "f8f6f4", "i8"))
    nvgpu.tcgen05.tcgen05_mma_ws(*operands, kind=kind, collector=collector)


def tcgen05_shift(taddr: object, *, group: object = None, loc: object = None, ip: object = None) -> None:
    """Copy 32 bytes of each of the 32 lanes at an address to the lane before it; one thread calls it."""
    kernel_only("tcgen05_shift")
    nvgpu.tcgen05.tcgen05_shift(_tmem(taddr), cta_group=_group(group))
