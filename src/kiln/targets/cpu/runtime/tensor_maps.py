"""Tensor maps of the CPU target: 128 bytes with the fields of the hardware's, and edits of them by kernels.

Sizes, steps and the like are counted from the contiguous mode on. A record begins with a magic number: other data in
place of a map is a fault.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ....native import Array, Library, Ptr, i16, i32, i64, size_of, struct, u8, u16, u64
from ...host.libc import memset
from ...host.tensor_maps import Finding, Request, broken_rule, complete

MAGIC = int.from_bytes(b"tensrmap", "little")
MODES = 5

accelerator: Library = Library("accelerator", prefix="kiln_cpu_")
"""Tensor maps and the copies that use them."""


@struct
class TensorMap:
    """A tensor in global memory, and the box of it that is copied at a time."""

    magic: u64
    base: u64
    sizes: Array[u64, MODES]
    strides: Array[u64, MODES - 1]  # bytes, of all modes but the first
    box: Array[u16, MODES]  # of im2col: channels, pixels
    steps: Array[u8, MODES]  # in which elements are taken; the first one's does not count
    rank: u8
    element: u8  # numbers as in the dialect's lists, of each of these
    swizzle: u8
    interleave: u8
    fill: u8
    im2col: u8
    lower: Array[i16, MODES - 2]  # corners of the box of pixels, from the tensor's own
    upper: Array[i16, MODES - 2]


BYTES = 128
assert size_of(TensorMap) <= BYTES

FIELDS = (
    "global_address",
    "rank",
    "box_dim",
    "global_dim",
    "global_stride",
    "element_stride",
    "elemtype",
    "interleave_layout",
    "swizzle_mode",
    "fill_mode",
    "swizzle_atomicity",
)
"""The fields of the dialect, whose lists are not loaded with the runtime; a test compares them."""
_SWIZZLE_128B = 3
_ATOMS_OF_32 = 4
_ELEMENTS = (0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12, 13, 14, 15)
"""The driver's numbers, by those of PTX."""


@accelerator.export
def encode_tensor_map(request: Ptr[Request], fixed_part: Ptr, map: Ptr[TensorMap], finding: Ptr[Finding]) -> i32:
    """Write a record; return the broken rule, or 0 (`host/tensor_maps.py`)."""
    complete(request, fixed_part)
    rule = broken_rule(request, finding)
    if rule != 0:
        return rule
    memset(map, 0, BYTES)
    map.magic = MAGIC
    map.base = request.base
    for mode in range(MODES):
        map.sizes[mode] = request.sizes[mode]
        map.box[mode] = u16(request.box[mode])
        map.steps[mode] = u8(request.element_strides[mode])
    for mode in range(MODES - 1):
        map.strides[mode] = request.strides[mode]
    for mode in range(MODES - 2):
        map.lower[mode] = i16(request.corners[mode])
        map.upper[mode] = i16(request.corners[MODES - 2 + mode])
    map.rank = u8(request.rank)
    map.element = u8(request.element)
    map.swizzle = u8(request.swizzle)
    map.interleave = u8(request.interleave)
    map.fill = u8(request.fill)
    map.im2col = u8(request.im2col)
    return 0


@accelerator.export
def tensor_map_replace(map: Ptr[TensorMap], field: i32, ordinal: i32, value: i64) -> i32:
    """Replace a field; return 1 if it is no tensor map, 2 for values that are not emulated. A map may start as zeros and get all fields so."""
    if map.magic == 0:
        map.magic = MAGIC
        for mode in range(MODES):
            map.steps[mode] = 1
    if map.magic != MAGIC:
        return 1
    if field == FIELDS.index("global_address"):
        map.base = value
    elif field == FIELDS.index("rank"):  # the hardware counts from 0
        map.rank = u8(value + 1)
    elif field == FIELDS.index("box_dim"):
        map.box[ordinal] = u16(value)
    elif field == FIELDS.index("global_dim"):
        map.sizes[ordinal] = u64(value) & 0xFFFFFFFF
    elif field == FIELDS.index("global_stride"):
        map.strides[ordinal] = value
    elif field == FIELDS.index("element_stride"):
        map.steps[ordinal] = u8(value)
    elif field == FIELDS.index("elemtype"):
        for number, element in tuple(enumerate(_ELEMENTS)):
            if value == number:
                map.element = element
    elif field == FIELDS.index("interleave_layout"):
        map.interleave = u8(value)
    elif field == FIELDS.index("swizzle_mode"):
        map.swizzle = u8(_ATOMS_OF_32 if value == _SWIZZLE_128B and map.swizzle == _ATOMS_OF_32 else value)
    elif field == FIELDS.index("swizzle_atomicity"):  # of 16 and of 32 bytes
        if value > 1:
            return 2
        if map.swizzle == _SWIZZLE_128B or map.swizzle == _ATOMS_OF_32:
            map.swizzle = u8(_SWIZZLE_128B + value)
    elif field == FIELDS.index("fill_mode"):
        map.fill = u8(value)
    return 0
