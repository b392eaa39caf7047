"""Tensor maps made by hand in host code, for kernels that call TMA with coordinates (`primitives`).

    @cute.jit
    def host(a: cute.Tensor):
        map_a = cuda.create_tensor_map_tiled_from_view(a, box_dims=(64, 64), stride_order=(1, 0))
        kernel(map_a).launch(grid=1, block=32)

A kernel takes a map as `cutlass.GridConstant[cuda.TensorMap]`: 128 bytes in constant memory, encoded at every call.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import prod
from typing import Any

from .._support import lazy
from ..base_dsl import trace as tracing
from ..base_dsl.bindings import ir
from ..base_dsl.diagnostics import runtime_error, type_error
from ..base_dsl.typing import (
    BFloat16,
    Float4E2M1FN,
    Float6E2M3FN,
    Float6E3M2FN,
    Float16,
    Float32,
    Float64,
    Int4,
    Int8,
    Int32,
    Int64,
    NumericMeta,
    TFloat32,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
)
from ..cute.arch.values import kernel_only
from ..cute.deferred_dialects import nvgpu
from ..cute.layout.int_tuple import flatten_to_tuple
from ..cute.nvgpu.tensor_map import element_kind
from ..cute.nvgpu.tma_atom import tensor_in_gmem
from ..cute.tensor.array import Array
from ..cute.tensor.pointer import AddressSpace, Pointer, pointer_from_address
from ..cute.tensor.raw_pointer import RawPointer, raw_pointer
from ..hardware.limits import TENSOR_MAP_BOX, TENSOR_MAP_RANK, TENSOR_MAP_UNIT
from ..hardware.tensor_maps import ELEMENTS, SWIZZLES

__dir__ = lazy.listing(__name__)
__all__ = [
    "TensorMap",
    "TensorMapDataFormat",
    "TensorMapDataType",
    "TensorMapFloatOOBFill",
    "TensorMapInterleave",
    "TensorMapL2Promotion",
    "TensorMapSwizzle",
    "create_tensor_map_im2col",
    "create_tensor_map_tiled",
    "create_tensor_map_tiled_from_view",
    "get_dsl_type_to_tensormap_type",
    "get_tensormap_type_to_dsl_type",
]


class TensorMapSwizzle(enum.Enum):
    """How the 16-byte units of a box are permuted in shared memory."""

    none = "none"
    s32b = "32b"
    s64b = "64b"
    s128b = "128b"
    s128b_atom_32b = "128b_32b"
    s128b_atom_32b_flip_8b = "128b_atom_32b_flip_8b"
    s128b_atom_64b = "128b_atom_64b"

    @classmethod
    def from_name(cls, name: str) -> TensorMapSwizzle:
        """Return the swizzle of a name, such as `s128b`."""
        return cls[name]

    def to(self, target_type: Any) -> Any:
        """Return the same swizzle as a member of another enumeration, `Tcgen05SmemSwizzle`."""
        name = "NONE" if self is TensorMapSwizzle.none else f"SWIZZLE_{self.name[1:].upper()}"
        return target_type[name]


class TensorMapDataFormat(enum.IntEnum):
    """The elements of a map in memory; DEFAULT: those of the type."""

    DEFAULT = 0
    BYTE = 1
    B4X16 = 2
    B4X16_P64 = 3
    B6X16_P32 = 4
    F32_FTZ = 5
    TF32_FTZ = 6


class TensorMapDataType(enum.IntEnum):
    """The elements of a map, by the driver's numbers; newer programs give a numeric type and a `TensorMapDataFormat`."""

    uint8 = 0
    uint16 = 1
    uint32 = 2
    int32 = 3
    uint64 = 4
    int64 = 5
    float16 = 6
    float32 = 7
    float64 = 8
    bfloat16 = 9
    float32_ftz = 10
    tfloat32 = 11
    tfloat32_ftz = 12
    f416u4_align8b = 13
    f416u4_align16b = 14
    f416u6_align16b = 15

    @property
    def bit_width(self) -> int:
        """The bits of an element."""
        return _TYPES[self].width


_TYPES: dict[TensorMapDataType, NumericMeta] = {
    TensorMapDataType.uint8: Uint8,
    TensorMapDataType.uint16: Uint16,
    TensorMapDataType.uint32: Uint32,
    TensorMapDataType.int32: Int32,
    TensorMapDataType.uint64: Uint64,
    TensorMapDataType.int64: Int64,
    TensorMapDataType.float16: Float16,
    TensorMapDataType.float32: Float32,
    TensorMapDataType.float64: Float64,
    TensorMapDataType.bfloat16: BFloat16,
    TensorMapDataType.float32_ftz: Float32,
    TensorMapDataType.tfloat32: TFloat32,
    TensorMapDataType.tfloat32_ftz: TFloat32,
    TensorMapDataType.f416u4_align8b: Float4E2M1FN,
    TensorMapDataType.f416u4_align16b: Float4E2M1FN,
    TensorMapDataType.f416u6_align16b: Float6E3M2FN,
}


def get_tensormap_type_to_dsl_type(tensormap_type: TensorMapDataType) -> NumericMeta:
    """Return the numeric type of the elements of a map."""
    return _TYPES[TensorMapDataType(tensormap_type)]


def get_dsl_type_to_tensormap_type(dsl_type: NumericMeta) -> TensorMapDataType:
    """Return the elements of a map for a numeric type: types of 8 bits are bytes."""
    for data_type, kind in _TYPES.items():
        if kind is dsl_type:
            return data_type
    if dsl_type.width == 8:
        return TensorMapDataType.uint8
    if dsl_type is Float6E2M3FN:
        return TensorMapDataType.f416u6_align16b
    raise type_error(f"a tensor map has no elements of type {dsl_type.__name__}")


class TensorMapInterleave(enum.Enum):
    """How channels of 16 or 32 bytes are interleaved in global memory."""

    none = "none"
    i16b = "16b"
    i32b = "32b"


class TensorMapL2Promotion(enum.Enum):
    """The bytes that are fetched into the L2 cache together."""

    none = "none"
    l2_64b = "64b"
    l2_128b = "128b"
    l2_256b = "256b"


class TensorMapFloatOOBFill(enum.Enum):
    """What a copy reads outside the tensor."""

    none = "zeros"
    nan = "nan"
    nan_request_zero_fma = nan


_FORMATS = {
    "BYTE": "u8",
    "B4X16": "16u4_align8b",
    "B4X16_P64": "16u4_align16b",
    "B6X16_P32": "16u6_align16b",
    "F32_FTZ": "f32_ftz",
    "TF32_FTZ": "tf32_ftz",
}
_PADDED = {
    Int4: "16u4_align16b",
    Float4E2M1FN: "16u4_align16b",
    Float6E2M3FN: "16u6_align16b",
    Float6E3M2FN: "16u6_align16b",
}
"""Formats of types with less than 8 bits: 16 elements get 16 bytes of shared memory, as MMAs with A in bytes want them.
Types with several elements (`Float4E2M1FNx2`) are packed in shared memory too."""
_FIRST_BOX = {"16u4_align16b": 64, "16u6_align16b": 96}
"""Bytes of a row of a box in global memory that formats with padding prescribe."""


class TensorMap:
    """A tensor map: in host code what a kernel is launched with, in the kernel its address and its facts. Immutable."""

    __kiln_immutable__ = True
    __slots__ = ("_map", "_steps", "box_dims", "dtype", "element", "swizzle", "tma_format")

    def __init__(
        self,
        map_: ir.Value,
        dtype: object,
        box_dims: tuple[int, ...],
        swizzle: TensorMapSwizzle,
        tma_format: TensorMapDataFormat,
        element: str,
        steps: tuple[int, ...] = (),
    ) -> None:
        self._map = map_
        self.dtype: Any = dtype
        self.box_dims: tuple[int, ...] = box_dims
        self.swizzle: TensorMapSwizzle = swizzle
        self.tma_format: TensorMapDataFormat = tma_format
        self.element: str = element
        self._steps = steps or (1,) * len(box_dims)

    def get_ptr(self, *, loc: object = None, ip: object = None) -> RawPointer:
        """Return the address of the map, generic, in a kernel that has it as a parameter."""
        kernel_only("TensorMap.get_ptr")
        address = nvgpu.tma.tensor_map_address(self._map)
        return raw_pointer(Pointer(address, Int64, AddressSpace.generic, 128, readonly=True))

    @property
    def box_volume(self) -> int:
        """The elements that a copy of a box takes, by its steps."""
        return prod(-(-extent // step) for extent, step in zip(self.box_dims, self._steps, strict=True))

    @property
    def element_type(self) -> Any:
        """The type that the map was made with."""
        return self.dtype

    def global_tx_bytes(self) -> int:
        """Return the bytes of global memory that one box adds to the tx-count of an mbarrier."""
        return self.box_volume * ELEMENTS[self.element] // 8

    @property
    def shared_storage_dtype(self) -> Any:
        """The type whose elements a box has in shared memory: bytes, for formats with padding."""
        return Uint8 if self.element in _FIRST_BOX else self.dtype

    @property
    def shared_storage_bytes(self) -> int:
        """The bytes that a box takes in shared memory, padding included."""
        return self.box_volume if self.element in _FIRST_BOX else self.global_tx_bytes()

    def __repr__(self) -> str:
        return f"TensorMap(box={self.box_dims}, {self.element}, {self.swizzle})"

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [self._map]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> TensorMap:
        facts = self.dtype, self.box_dims, self.swizzle, self.tma_format, self.element, self._steps
        return TensorMap(values[0], *facts)

    def __kiln_static_key__(self) -> Any:
        return (self.dtype, self.box_dims, self.swizzle, self.tma_format, self._steps)


def _member(kind: Any, value: Any, otherwise: object) -> Any:
    """Return a member of an enumeration, given by itself, by its name or by None."""
    if value is None:
        return otherwise
    if isinstance(value, str) and value in kind.__members__:
        return kind[value]
    if not isinstance(value, kind):
        raise type_error(f"{value!r} is no {kind.__name__}", f"one of {', '.join(kind.__members__)}")
    return value


def _format(value: object) -> TensorMapDataFormat:
    """Return a format, given by itself, by its number or name, or by None."""
    if isinstance(value, int) and value in set(TensorMapDataFormat):
        return TensorMapDataFormat(value)
    return _member(TensorMapDataFormat, value, TensorMapDataFormat.DEFAULT)


def _element(format_: TensorMapDataFormat, dtype: object, tensor: object) -> str:
    """Return the elements of a format, as the dialect names them; DEFAULT: those of a type."""
    if format_:
        return _FORMATS[format_.name]
    return _PADDED[dtype] if dtype in _PADDED else element_kind(dtype, tensor)


def _static(what: str, values: Any, count: int, most: int) -> tuple[int, ...]:
    numbers = tuple(values)
    if len(numbers) != count or not all(isinstance(v, int) and 1 <= v <= most for v in numbers):
        raise type_error(f"{what} is {numbers}", f"{count} Python integers from 1 to {most}")
    return numbers


def _encode(
    what: str,
    base: ir.Value,
    dtype: object,
    dims: Any,
    strides: Any,
    box: tuple[int, ...],
    steps: Any,
    interleave: object,
    swizzle: object,
    promotion: object,
    fill: object,
    tma_format: object,
    name: str,
    pixel_box: tuple[int, ...] | None = None,
) -> TensorMap:
    """Encode a map, modes innermost first, strides in bytes; raise an error for what no map describes."""
    if tracing.require(f"{what}()").function.kind == "kernel":
        raise runtime_error(
            f"{what}() was called in a kernel", "maps are made in the @jit function and passed to the kernel"
        )
    if not isinstance(dtype, NumericMeta):
        raise type_error(f"dtype of {what}() is {dtype!r}", "a numeric type such as Float16")
    how = _member(TensorMapSwizzle, swizzle, TensorMapSwizzle.none)
    format_ = _format(tma_format)
    element = _element(format_, dtype, name)
    if how.value not in SWIZZLES:
        raise type_error(f"the swizzle of {what}() is {how.name}", f"Kiln encodes {', '.join(SWIZZLES)}")
    row = box[0] * ELEMENTS[element]
    span = 8 * SWIZZLES[how.value]
    if row % (8 * TENSOR_MAP_UNIT):
        raise type_error(f"a row of the box {box} of {what}() has {row / 8:g} bytes", "a multiple of 16")
    if span and row > span and element not in _FIRST_BOX:
        raise type_error(
            f"a row of the box {box} of {what}() has {row // 8} bytes", f"at most the {span // 8} of {how.name}"
        )
    if element in _FIRST_BOX and row != 8 * _FIRST_BOX[element]:
        raise type_error(
            f"a row of the box {box} of {what}() has {row / 8:g} bytes", f"{format_.name}: {_FIRST_BOX[element]}"
        )
    taken = () if steps is None else _static("traversal_strides", steps, len(dims), 8)
    map_ = nvgpu.tma.tensor_map_encode(
        base,
        [Int64(s).ir_value() for s in dims],
        [Int64(s).ir_value() for s in strides],
        element=element,
        box=box,
        element_strides=taken,
        swizzle=how.value,
        interleave=_member(TensorMapInterleave, interleave, TensorMapInterleave.none).value,
        promotion=_member(TensorMapL2Promotion, promotion, TensorMapL2Promotion.l2_128b).value,
        fill=_member(TensorMapFloatOOBFill, fill, TensorMapFloatOOBFill.none).value,
        tensor=name,
        pixel_box=pixel_box,
    )
    return TensorMap(map_, dtype, box, how, format_, element, () if pixel_box is not None else taken)


def _at_address(what: str, address: Any, dims: Any, strides: Any) -> tuple[ir.Value, tuple[Any, ...], list[Any]]:
    """Return the base, the extents and the strides in bytes of a tensor, given as the raw builders take them."""
    dims = tuple(dims)
    units = tuple(strides)
    if not 1 <= len(dims) <= TENSOR_MAP_RANK or len(units) != len(dims) - 1:
        raise type_error(
            f"{what}() of {len(dims)} global_dims and {len(units)} global_strides",
            f"1 to {TENSOR_MAP_RANK} extents, innermost first, and a stride (in 16 bytes) of each but the first",
        )
    address = address.toint() if hasattr(address, "toint") else address
    base = pointer_from_address(address, Int8, AddressSpace.gmem, TENSOR_MAP_UNIT).ir_value()
    return base, dims, [(u if isinstance(u, int) else Int64(u)) * TENSOR_MAP_UNIT for u in units]


def create_tensor_map_tiled(
    global_address: object,
    dtype: object,
    global_dims: object,
    global_strides: object,
    box_dims: object,
    *,
    traversal_strides: object = None,
    interleave: object = None,
    swizzle: object = None,
    l2_promotion: object = None,
    oob_fill: object = None,
    tma_format: object = None,
    loc: object = None,
    ip: object = None,
) -> TensorMap:
    """Return the map of a tensor at an address, modes innermost first; strides are in 16 bytes, of all but the first.

    Extents, strides and the box are in elements of the format. `traversal_strides` are the steps by which a box takes
    elements.
    """
    base, dims, strides = _at_address("create_tensor_map_tiled", global_address, global_dims, global_strides)
    return _encode(
        "create_tensor_map_tiled",
        base,
        dtype,
        dims,
        strides,
        _static("box_dims", box_dims, len(dims), TENSOR_MAP_BOX),
        traversal_strides,
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
        tma_format,
        f"a tensor of {len(dims)} modes",
    )


def create_tensor_map_tiled_from_view(
    tensor: object,
    box_dims: object,
    *,
    stride_order: object = None,
    traversal_strides: Any = None,
    interleave: object = None,
    swizzle: object = None,
    l2_promotion: object = None,
    oob_fill: object = None,
    dtype: object = None,
    tma_format: object = None,
    loc: object = None,
    ip: object = None,
) -> TensorMap:
    """Return the map of a tensor, whose modes `box_dims` follows.

    `stride_order` names the modes from the innermost out; without it static strides tell. `dtype` is another type of the
    same elements. With a `tma_format` extents and strides count elements of the format.
    """
    what = "create_tensor_map_tiled_from_view"
    tensor = tensor_in_gmem(tensor.tensor() if isinstance(tensor, Array) else tensor, what)
    shape = flatten_to_tuple(tensor.shape)
    steps = flatten_to_tuple(tensor.stride)
    kind = dtype or tensor.element_type
    format_ = _format(tma_format)
    order = _order(what, shape, steps, stride_order)
    bits = ELEMENTS[_element(format_, kind, tensor)]
    box = _static("box_dims", box_dims, len(shape), TENSOR_MAP_BOX)
    return _encode(
        what,
        tensor.iterator.ir_value(),
        kind,
        [shape[m] for m in order],
        [(steps[m] if isinstance(steps[m], int) else Int64(steps[m])) * bits // 8 for m in order[1:]],
        tuple(box[m] for m in order),
        None if traversal_strides is None else [traversal_strides[m] for m in order],
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
        tma_format,
        str(tensor),
    )


def _order(what: str, shape: tuple[object, ...], steps: tuple[object, ...], order: Any) -> list[int]:
    """Return the modes of a tensor from the innermost out."""
    if order is not None:
        modes = list(order)
        if sorted(modes) != list(range(len(shape))):
            raise type_error(
                f"stride_order of {what}() is {tuple(modes)}", f"each mode from 0 to {len(shape) - 1} once"
            )
    elif all(isinstance(s, int) for s in (*steps, *shape)):
        modes = sorted(range(len(shape)), key=lambda m: (steps[m], shape[m] != 1, m))
    else:
        raise type_error(f"{what}() of a tensor with dynamic strides needs a stride_order", "(1, 0) for rows")
    if isinstance(steps[modes[0]], int) and steps[modes[0]] != 1:
        raise type_error(
            f"mode {modes[0]} of the tensor has the stride {steps[modes[0]]}", "the innermost has stride 1"
        )
    return modes


def create_tensor_map_im2col(
    global_address: object,
    dtype: object,
    global_dims: object,
    global_strides: object,
    lower_corner: Any,
    upper_corner: Any,
    channels_per_pixel: int,
    pixels_per_column: int,
    *,
    traversal_strides: object = None,
    interleave: object = None,
    swizzle: object = None,
    l2_promotion: object = None,
    oob_fill: object = None,
    tma_format: object = None,
    loc: object = None,
    ip: object = None,
) -> TensorMap:
    """Return the im2col map of images (channels innermost, images outermost) at an address.

    A copy takes `channels_per_pixel` channels of `pixels_per_column` pixels of the box between the corners, which are
    given for the modes between channels and images. Otherwise as `create_tensor_map_tiled`.
    """
    what = "create_tensor_map_im2col"
    base, dims, strides = _at_address(what, global_address, global_dims, global_strides)
    corners = (*lower_corner, *upper_corner)
    if len(dims) < 3 or len(corners) != 2 * (len(dims) - 2) or not all(isinstance(c, int) for c in corners):
        raise type_error(
            f"{what}() of {len(dims)} modes has the corners {corners}", "a Python integer for each inner mode"
        )
    box = _static("channels_per_pixel, pixels_per_column", (channels_per_pixel, pixels_per_column), 2, 1024)
    return _encode(
        what,
        base,
        dtype,
        dims,
        strides,
        box,
        traversal_strides,
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
        tma_format,
        f"images of {len(dims)} modes",
        corners,
    )
