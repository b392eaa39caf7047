"""TMA copies in im2col mode: the pixels of images that the taps of a convolution's filter meet.

A convolution is a GEMM: a row for each output pixel, and a sum over channels and taps of the filter. The operand of the
images is never materialised: a copy takes the pixels that a tap meets for consecutive output pixels, across the ends of
rows and images, and zeros for the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32, Int64, Uint32
from ...hardware.limits import TENSOR_MAP_PIXELS, TENSOR_MAP_STEP
from ..atoms.atom import CopyAtom
from ..deferred_dialects import nvgpu
from ..layout.algebra import coalesce, composition, flat_modes
from ..layout.basis import ScaledBasis
from ..layout.int_tuple import pretty_str
from ..layout.inverses import right_inverse
from ..layout.layout import Layout, make_identity_layout
from ..layout.leaf import is_one, leaf_max
from ..tensor.iterator import Coordinates
from ..tensor.pointer import element_bits
from ..tensor.tensor import TracedTensor
from .tensor_map import (
    BOX,
    TensorMapFacts,
    check_rows,
    element_kind,
    extents,
    refuse,
    shared_out,
    swizzle_kind,
    taken_apart,
)
from .tma_atom import TmaInfo, check_request, tensor_in_gmem
from .tma_ops import IM2COL_MAKER, CopyBulkTensorIm2ColS2GOp

__all__ = ["make_im2col_tma_atom"]

_CORNERS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}
"""The range of the corners of the box of pixels, from minus this to this less one, by the number of modes between
images and channels."""
_OFFSETS = {1: (1 << 15) - 1, 2: (1 << 8) - 1, 3: (1 << 5) - 1}
"""The largest distance of a tap from the first."""


@dataclass(frozen=True)
class PixelFacts(TensorMapFacts):
    """The static part of the tensor map of images. `box` is (channels, pixels); the rest has the fastest mode first."""

    im2col = True

    lower: tuple[int, ...]
    """Where the box of the pixels that the first tap meets starts: minus the padding."""
    upper: tuple[int, ...]
    """Where it ends, from the end of the tensor."""
    steps: tuple[int, ...]
    """The strides of the convolution."""

    def place(self, coordinates: Sequence[object], images: tuple[object, ...]) -> tuple[list[Any], list[Any]]:
        """Return (channel, w, h, d, image) and offsets for (channel, output pixel, offsets of the tap)."""
        channel, pixel, *offsets = coordinates
        first = []
        for extent, step, lower in zip(images, self.steps, self.lower, strict=True):
            pixel, along = _divided(pixel, extent)
            first.append(along * step + lower)
        return [channel, *first, pixel], offsets


def _divided(number: object, by: object) -> tuple[Any, Any]:
    """Return the quotient and the rest of numbers that are not negative."""
    if isinstance(number, int) and isinstance(by, int):
        return divmod(number, by)
    number = Uint32(number)
    by = Uint32(by)
    quotient = number // by
    return Int32(quotient), Int32(number - quotient * by)


def make_im2col_tma_atom(
    op: Any,
    images: object,
    smem_layout: object,
    tile: object,
    filter: object = 1,
    *,
    lower_padding: object = 0,
    upper_padding: object = None,
    stride: object = 1,
    dilation: object = 1,
    num_multicast: int = 1,
) -> TmaInfo:
    """Return a TMA atom that copies (output pixels, channels) as a convolution multiplies them, and its coordinate
    tensor.

    The coordinate tensor is (pixels, channels, ([[T,] R,] S)): all output pixels, counted from the last mode of the
    output (N, [[Z,] P,] Q) on; the channels; the taps of the filter. It is divided by tiles, partitioned and copied as
    those of `make_tiled_tma_atom`. Stores take no filter and no padding: the coordinate tensor counts every `stride`-th
    pixel. The extents of `filter`, paddings, `stride` and `dilation` are static: a number for each mode between N and
    C, or one for all. Needs sm_90 or later.

    Args:
        op: `cpasync.CopyBulkTensorIm2ColG2SOp()`, its multicast form, or `CopyBulkTensorIm2ColS2GOp()`.
        images: a tensor (N, [[D,] H,] W, C) in global memory with contiguous channels.
        smem_layout: the layout of a tile (pixels, channels) in shared memory, contiguous along channels.
        tile: the two static extents (pixels, channels).
        filter: the extents of the filter.
        lower_padding: pixels of zeros before the first.
        upper_padding: pixels of zeros after the last; by default as many as before.
        stride: the distance of neighbouring outputs, in pixels.
        dilation: the distance of neighbouring taps, in pixels.
        num_multicast: how many CTAs share a tile; each copies an equal part of it.
    """
    check_request(op, IM2COL_MAKER, num_multicast)
    tensor = tensor_in_gmem(images, "make_im2col_tma_atom")
    shape = tensor.layout.shape
    steps = tensor.layout.stride
    if not isinstance(shape, tuple) or not 3 <= len(shape) <= 5 or any(isinstance(s, tuple) for s in shape):
        raise refuse("images are a tensor (N, W, C), (N, H, W, C) or (N, D, H, W, C)", tensor)
    if not is_one(steps[-1]):
        raise refuse("channels, the last mode of images, have the static stride 1", tensor)
    spatial = len(shape) - 2
    taps = _numbers("filter", filter, spatial, 1)
    before = _numbers("lower_padding", lower_padding, spatial, 0)
    after = before if upper_padding is None else _numbers("upper_padding", upper_padding, spatial, 0)
    step = _numbers("stride", stride, spatial, 1, TENSOR_MAP_STEP)
    apart = _numbers("dilation", dilation, spatial, 1)
    if isinstance(op, CopyBulkTensorIm2ColS2GOp) and (max(taps) > 1 or max(*before, *after, 0) > 0):
        raise refuse(
            f"a store has no filter and no padding, got the filter {taps} and the padding {before}, {after}", tensor
        )
    reach = tuple((t - 1) * d for t, d in zip(taps, apart))
    if max(reach) > _OFFSETS[spatial]:
        raise refuse(
            f"the last tap of a filter lies at most {_OFFSETS[spatial]} pixels from the first in {spatial + 2} modes, got {max(reach)} "
            f"(filter {taps}, dilation {apart})",
            tensor,
        )
    lower = tuple(-p for p in before)
    upper = tuple(p - r for p, r in zip(after, reach))
    limit = _CORNERS[spatial]
    for name, corner in (("lower", lower), ("upper", upper)):
        if not all(-limit <= c < limit for c in corner):
            raise refuse(
                f"the {name} corner of the pixels that a tap meets is {pretty_str(corner)}, and in {spatial + 2} modes corners are "
                f"{-limit} to {limit - 1}: minus the lower padding, and the upper padding less (filter - 1) * dilation",
                tensor,
            )
    outputs = tuple(_output(s, u - low, d) for s, u, low, d in zip(shape[1:-1], upper, lower, step))
    if any(isinstance(o, int) and o < 1 for o in outputs):
        raise refuse(
            f"the filter {taps} with the dilation {apart} is larger than the images with their padding", tensor
        )
    facts = _describe(tensor, smem_layout, tile, num_multicast, lower[::-1], upper[::-1], step[::-1])
    sizes, strides, _ = extents(facts, tensor)
    map_ = nvgpu.tma.tensor_map_encode(
        tensor.iterator.ir_value(),
        [Int64(s).ir_value() for s in sizes],
        [Int64(s).ir_value() for s in strides],
        element=facts.element,
        box=facts.box,
        swizzle=facts.swizzle,
        tensor=str(tensor),
        pixel_box=(*facts.lower, *facts.upper),
        element_strides=(1, *facts.steps, 1),
    )
    pixels: Any = prod(outputs, start=shape[0])
    along = tuple(ScaledBasis(d, len(shape) - 1 - i) for i, d in enumerate(apart))
    layout = Layout((pixels, shape[-1], taps), (ScaledBasis(1, 1), ScaledBasis(1, 0), along))
    atom = CopyAtom(op, op.trait(tensor.element_type, facts, map_, outputs[::-1]))
    return TmaInfo(atom, TracedTensor(Coordinates((0,) * len(shape)), layout), smem_layout)


def _numbers(name: str, value: Any, count: int, least: int, most: int | None = None) -> tuple[int, ...]:
    """Return a static number for each mode between images and channels."""
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,) * count
    if len(numbers) != count or any(
        not isinstance(x, int) or x < least or (most is not None and x > most) for x in numbers
    ):
        between = f"from {least} on" if most is None else f"from {least} to {most}"
        raise type_error(
            f"{name} is {value!r}: a static number {between} for each of the {count} modes between images and channels, or one for all"
        )
    return numbers


def _output(size: object, more: int, step: int) -> Any:
    """Return the extent of the output in a mode; none if images that a call brings are too small."""
    if isinstance(size, int):
        return -(-(size + more) // step)
    return leaf_max(Int32(size) + (more + step - 1), 0) // step


def _describe(
    tensor: TracedTensor,
    smem_layout: object,
    tile: object,
    multicast: int,
    lower: tuple[int, ...],
    upper: tuple[int, ...],
    steps: tuple[int, ...],
) -> PixelFacts:
    """Return the map of images of which tiles (pixels, channels) lie in shared memory by a layout."""
    if not isinstance(tile, (tuple, list)) or len(tile) != 2 or not all(isinstance(t, int) and t > 0 for t in tile):
        raise refuse(f"a tile is two static numbers (pixels, channels), got {tile!r}", tensor)
    whole = make_identity_layout(tuple(tile))
    plain, swizzle = taken_apart(smem_layout, whole, tensor)
    kind = swizzle_kind(swizzle, tensor)
    bits = element_bits(tensor.element_type)
    shapes, strides = flat_modes(coalesce(composition(whole, right_inverse(plain))))
    if strides[0] != ScaledBasis(1, 1):
        raise refuse(
            f"channels are contiguous in global and in shared memory, and there tiles lie by {plain}",
            tensor,
            "take a layout of (pixels, channels) whose mode 1 is contiguous: make_smem_layout_atom with K_SW128",
        )
    box = [shapes[0], shapes[1] if len(shapes) > 1 and strides[1] == ScaledBasis(1, 0) else 1]
    values = prod(box)
    box = shared_out(box, multicast, tensor)
    for what, count, most in (("channels", box[0], BOX), ("pixels", box[1], TENSOR_MAP_PIXELS)):
        if count > most:
            raise refuse(
                f"a copy takes at most {most} {what}, got {count}",
                tensor,
                "take a smaller tile, or a layout in shared memory that breaks the mode up",
            )
    modes = tuple((i,) for i in reversed(range(len(tensor.layout))))
    element = element_kind(tensor.element_type, tensor)
    facts = PixelFacts(element, bits, kind, modes, box, values, (1, 1), lower, upper, steps)
    check_rows(facts, tensor)
    return facts
