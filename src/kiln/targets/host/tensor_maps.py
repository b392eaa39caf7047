"""Requests for tensor maps, and checks against the rules of the hardware.

Each target has a native function `i32 encode_tensor_map(Request *, known, map, Finding *)`, under a prefix of its own.
It checks a request, writes 128 bytes, and returns 0 or the broken rule: what is in the bytes is the target's own. The map
is aligned to 128 bytes. `known` are the fields of the request from `box` on, which are known when compiling; the function
copies them there.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ...hardware import limits
from ...hardware.tensor_maps import ELEMENTS, SWIZZLES
from ...native import Array, Ptr, i32, i64, native, ref, size_of, struct, u32, u64
from .libc import memcpy
from .tensor_map_rules import (
    BASE,
    BOX,
    BOX_BYTES,
    CORNER,
    ELEMENT_STRIDE,
    FILL,
    IM2COL_RANK,
    INTERLEAVE_RANK,
    INTERLEAVE_SWIZZLE,
    PACKED_BOX,
    PACKED_INTERLEAVE,
    PACKED_SIZE,
    PACKED_SWIZZLE,
    PIXELS,
    RANK,
    SIZE,
    STRIDE,
    STRIDE_RANGE,
    SWIZZLE_SPAN,
)


@struct
class Request:
    """A tensor in global memory, and how it is copied: names as the driver has them, modes from the contiguous one on.

    What is not used is zero, so that equal requests have equal bytes.
    """

    base: u64
    sizes: Array[i64, limits.TENSOR_MAP_RANK]
    strides: Array[i64, limits.TENSOR_MAP_RANK - 1]  # bytes, from the second mode on
    box: Array[u32, limits.TENSOR_MAP_RANK]  # im2col: channels and pixels
    element_strides: Array[u32, limits.TENSOR_MAP_RANK]
    corners: Array[i32, 6]  # im2col: three lower ones, three upper ones
    rank: i32
    element: i32  # index into ELEMENTS
    interleave: i32  # none, 16 bytes, 32 bytes
    swizzle: i32  # index into SWIZZLES
    promotion: i32
    fill: i32  # zeros, NaN
    im2col: i32
    unused: i32


KNOWN_BYTES = size_of(Request) - Request.box.offset


@struct
class Finding:
    """A broken rule, the mode that breaks it, and with which number."""

    rule: i64
    mode: i64
    value: i64


_NAMES = tuple(ELEMENTS)
_BITS = tuple(enumerate(ELEMENTS.values()))
_SPANS = tuple(enumerate(SWIZZLES.values()))
HALF_PACKED = _NAMES.index("16u4_align8b")
PACKED = _NAMES.index("16u4_align16b")
"""The first element type whose elements are packed with gaps in shared memory."""
SIX_BITS = _NAMES.index("16u6_align16b")
_FIRST_FLOAT = _NAMES.index("f16")
_LAST_FLOAT = _NAMES.index("tf32_ftz")
_INTERLEAVE_32B = 2
_SWIZZLE_32B = 1
_SWIZZLE_128B = 3


@native
def element_bits(element: i32) -> i32:
    """Return the bits of an element of global memory."""
    bits = i32(0)
    for number, width in _BITS:
        if element == number:
            bits = i32(width)
    return bits


@native
def swizzle_span(swizzle: i32) -> i32:
    """Return the bytes of a row of a swizzle's pattern."""
    bytes_ = i32(0)
    for number, span in _SPANS:
        if swizzle == number:
            bytes_ = i32(span)
    return bytes_


@native
def broken(finding: Ptr[Finding], rule: i32, mode: i64, value: i64) -> i32:
    """Note a rule that is broken."""
    finding.rule = rule
    finding.mode = mode
    finding.value = value
    return rule


@native
def complete(request: Ptr[Request], fixed_part: Ptr) -> None:
    """Copy the fields that are known when compiling, and align the strides of modes of one element: nothing takes such a step."""
    memcpy(ref(request).box, fixed_part, KNOWN_BYTES)
    for mode in range(1, request.rank):
        if request.sizes[mode] == 1:
            request.strides[mode - 1] = request.strides[mode - 1] & -i64(limits.TENSOR_MAP_UNIT)


@native
def broken_rule(request: Ptr[Request], finding: Ptr[Finding]) -> i32:
    """Return the rule that a request breaks, which is then noted; or 0."""
    rank = request.rank
    element = request.element
    interleave = request.interleave
    if rank < 1 or rank > limits.TENSOR_MAP_RANK:
        return broken(finding, RANK, 0, rank)
    if interleave != 0 and rank < 3:
        return broken(finding, INTERLEAVE_RANK, 0, rank)
    if request.im2col != 0 and rank < 3:
        return broken(finding, IM2COL_RANK, 0, rank)
    unit = i64(limits.TENSOR_MAP_UNIT)
    if interleave == _INTERLEAVE_32B or element >= PACKED:
        unit = i64(limits.TENSOR_MAP_WIDE_UNIT)
    if request.base & u64(unit - 1) != 0:
        return broken(finding, BASE, unit, i64(request.base))
    for mode in range(rank):
        if request.sizes[mode] < 1 or request.sizes[mode] > limits.TENSOR_MAP_EXTENT:
            return broken(finding, SIZE, mode, request.sizes[mode])
        if request.element_strides[mode] < 1 or request.element_strides[mode] > limits.TENSOR_MAP_STEP:
            return broken(finding, ELEMENT_STRIDE, mode, request.element_strides[mode])
    if (element >= PACKED and request.sizes[0] & 127 != 0) or (element == HALF_PACKED and request.sizes[0] & 1 != 0):
        return broken(finding, PACKED_SIZE, 0, request.sizes[0])
    for mode in range(1, rank):
        stride = request.strides[mode - 1]
        if stride < 0 or stride >= limits.TENSOR_MAP_STRIDE:
            return broken(finding, STRIDE_RANGE, mode, stride)
        if stride & (unit - 1) != 0:
            return broken(finding, STRIDE, mode, stride)
    if request.im2col != 0:
        rule = _broken_im2col(request, finding)
        if rule != 0:
            return rule
    else:
        for mode in range(rank):
            if request.box[mode] < 1 or request.box[mode] > limits.TENSOR_MAP_BOX:
                return broken(finding, BOX, mode, request.box[mode])
    if element >= PACKED and request.box[0] != 128:
        return broken(finding, PACKED_BOX, 0, request.box[0])
    bits = i64(request.box[0]) * element_bits(element)
    if interleave == 0:
        if bits & 8 * limits.TENSOR_MAP_UNIT - 1 != 0:
            return broken(finding, BOX_BYTES, 0, bits >> 3)
        if request.swizzle != 0 and bits > 8 * swizzle_span(request.swizzle):
            return broken(finding, SWIZZLE_SPAN, swizzle_span(request.swizzle), bits >> 3)
    if interleave == _INTERLEAVE_32B and request.swizzle != _SWIZZLE_32B:
        return broken(finding, INTERLEAVE_SWIZZLE, 0, swizzle_span(request.swizzle))
    if element == SIX_BITS and interleave != 0:
        return broken(finding, PACKED_INTERLEAVE, 0, 16 * interleave)
    if element >= PACKED and request.swizzle != 0 and request.swizzle != _SWIZZLE_128B:
        return broken(finding, PACKED_SWIZZLE, 0, swizzle_span(request.swizzle))
    if request.fill != 0 and (element < _FIRST_FLOAT or element > _LAST_FLOAT):
        return broken(finding, FILL, 0, element)
    return 0


@native
def _broken_im2col(request: Ptr[Request], finding: Ptr[Finding]) -> i32:
    if request.box[0] < 1 or request.box[0] > limits.TENSOR_MAP_BOX:
        return broken(finding, BOX, 0, request.box[0])
    if request.box[1] < 1 or request.box[1] > limits.TENSOR_MAP_PIXELS:
        return broken(finding, PIXELS, 0, request.box[1])
    limit = i32(1 << 15)
    if request.rank == 4:
        limit = i32(1 << 7)
    if request.rank == 5:
        limit = i32(1 << 4)
    for mode in range(request.rank - 2):
        for corner in (0, 3):
            value = request.corners[corner + mode]
            if value < -limit or value >= limit:
                return broken(finding, CORNER, limit, value)
    return 0
