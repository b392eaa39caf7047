"""The rules of tensor maps, and the messages about broken ones."""

from __future__ import annotations

import re

from ...hardware import limits
from ...hardware.tensor_maps import ELEMENTS

(
    RANK,
    BASE,
    SIZE,
    PACKED_SIZE,
    STRIDE,
    STRIDE_RANGE,
    BOX,
    BOX_BYTES,
    PACKED_BOX,
    SWIZZLE_SPAN,
    ELEMENT_STRIDE,
    INTERLEAVE_RANK,
    INTERLEAVE_SWIZZLE,
    PACKED_INTERLEAVE,
    PACKED_SWIZZLE,
    FILL,
    IM2COL_RANK,
    PIXELS,
    CORNER,
    REFUSED,
) = range(1, 21)
"""Numbers of the rules; the last one means that the driver refused a map that keeps all others."""

_TEXTS = {
    RANK: ("it has {value} modes", f"a tensor map has 1 to {limits.TENSOR_MAP_RANK}"),
    BASE: ("it starts at {address}", "its address is a multiple of {mode} bytes"),
    SIZE: ("mode {mode} has the size {value}", "sizes are 1 to 2^32"),
    PACKED_SIZE: ("mode 0 has the size {value}", "packed elements come in multiples of 128, those without gaps of 2"),
    STRIDE: (
        "mode {mode} has a stride of {value} bytes",
        f"strides are multiples of {limits.TENSOR_MAP_UNIT} bytes, of {limits.TENSOR_MAP_WIDE_UNIT} for packed elements and layouts interleaved by 32: pad the tensor",
    ),
    STRIDE_RANGE: ("mode {mode} has a stride of {value} bytes", "strides are not negative and less than 2^40"),
    BOX: (
        "the box has the size {value} in mode {mode}",
        f"boxes are 1 to {limits.TENSOR_MAP_BOX} elements long: copy the tile in several pieces",
    ),
    BOX_BYTES: (
        "rows of the box have {value} bytes",
        f"multiples of {limits.TENSOR_MAP_UNIT}: make the tile wider in the contiguous mode",
    ),
    PACKED_BOX: ("rows of the box have {value} elements", "128 where packed elements have gaps in shared memory"),
    SWIZZLE_SPAN: ("rows of the box have {value} bytes", "at most those of a row of the swizzle, {mode}"),
    ELEMENT_STRIDE: ("mode {mode} has elements taken in steps of {value}", f"steps are 1 to {limits.TENSOR_MAP_STEP}"),
    INTERLEAVE_RANK: (
        "it has {value} modes and is interleaved",
        f"interleaved layouts have 3 to {limits.TENSOR_MAP_RANK} modes",
    ),
    INTERLEAVE_SWIZZLE: ("it is interleaved by 32 bytes, with a swizzle of {value} bytes", "a swizzle of 32 bytes"),
    PACKED_INTERLEAVE: ("it has elements of 6 bits and is interleaved by {value} bytes", "no interleaving"),
    PACKED_SWIZZLE: ("it has packed elements and a swizzle of {value} bytes", "none, or 128 bytes"),
    FILL: ("it is filled with NaN and has elements of {element}", "integers are filled with zeros"),
    IM2COL_RANK: ("it has {value} modes", f"im2col takes 3 to {limits.TENSOR_MAP_RANK}"),
    PIXELS: ("a copy takes {value} pixels", f"1 to {limits.TENSOR_MAP_PIXELS}"),
    CORNER: ("a corner of the pixels' box is {value}", "from -{mode} to {mode} - 1"),
    REFUSED: (
        "the driver refused it with error {value}",
        "tensor maps need a GPU of compute capability 9.0 and a driver of CUDA 12",
    ),
}


def forms() -> list[str]:
    """Return the texts of the rules for native code: the order of mode (m) and value (v), then "|" and a format."""
    texts: list[str] = []
    for what, hint in _TEXTS.values():
        text = f"{what}, expected: {hint}"
        order = "".join("m" if name == "mode" else "v" for name in re.findall(r"{(\w+)}", text))
        text = text.replace("{element}", "number {value}").replace("{address}", "0x%x")
        texts.append(f"{order}|" + text.replace("{mode}", "%d").replace("{value}", "%d"))
    return texts


def explained(tensor: str, rule: int, mode: int, value: int) -> tuple[str, str]:
    """Return what is wrong with the request for the map of a tensor, and a hint."""
    what, hint = _TEXTS[rule]
    numbers = {
        "mode": mode,
        "value": value,
        "address": hex(value % 2**64),
        "element": tuple(ELEMENTS)[value] if rule == FILL else "",
    }
    of = f" of {tensor}" if tensor else ""
    if "{mode}" in what:
        hint += "; modes count from the contiguous one, which is 0"
    return f"cannot make the tensor map{of}: {what.format(**numbers)}", hint.format(**numbers)
