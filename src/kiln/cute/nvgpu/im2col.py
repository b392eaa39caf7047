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
from ...base_dsl.typing import Int32, Int64, NumericMeta, Uint32
from ...hardware.limits import TENSOR_MAP_PIXELS, TENSOR_MAP_STEP
from ..atoms.atom import CopyAtom
from ..deferred_dialects import nvgpu
from ..layout.algebra import coalesce, composition, flat_modes
from ..layout.basis import ScaledBasis
from ..layout.int_tuple import pretty_str, product
from ..layout.inverses import right_inverse
from ..layout.layout import Layout, make_identity_layout, make_layout
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
    unpacked_kind,
)
from .tma_atom import TmaInfo, check_request, multicast_of, numeric, operand_values, tensor_in_gmem, with_internal_type
from .tma_ops import IM2COL_MAKER, CopyBulkTensorIm2ColG2SMulticastOp, CopyBulkTensorIm2ColS2GOp, TmaCopyOp

__all__ = ["make_im2col_tma_atom", "make_im2col_tma_atom_A"]

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
    op: TmaCopyOp,
    gmem_tensor: object,
    smem_layout: object,
    cta_tiler: object,
    lower_corner_whd: object = None,
    upper_corner_whd: object = None,
    lower_padding_whd: object = None,
    upper_padding_whd: object = None,
    stride_whd: object = None,
    lower_srt: object = None,
    stride_srt: object = None,
    num_multicast: int = 1,
    *,
    internal_type: object = None,
    filter: object = 1,
    lower_padding: object = 0,
    upper_padding: object = None,
    stride: object = 1,
    dilation: object = 1,
    loc: object = None,
    ip: object = None,
) -> TmaInfo:
    """Return a TMA atom that copies (output pixels, channels) as a convolution multiplies them, and its coordinate
    tensor.

    Of images ((W, [[H,] D,] N), C) the coordinate tensor is (pixels, (C, S, [[R,] T])), and the parameters with `whd`
    and `srt` describe the convolution. Of images (N, [[D,] H,] W, C) it is (pixels, channels, ([[T,] R,] S)), and
    `filter`, paddings, `stride` and `dilation` do, in the order of the modes. Pixels are all those of the output,
    counted from Q on; S, R and T are the taps of the filter. The coordinate tensor is divided by tiles, partitioned and
    copied as those of `make_tiled_tma_atom`. Stores take no filter and no padding: the coordinate tensor counts every
    `stride`-th pixel. Parameters are static: a number for each mode between N and C, or one for all. Needs sm_90 or
    later.

    Args:
        op: `cpasync.CopyBulkTensorIm2ColG2SOp()`, its multicast form, or `CopyBulkTensorIm2ColS2GOp()`.
        gmem_tensor: the images in global memory, with contiguous channels.
        smem_layout: the layout of a tile (pixels, channels) in shared memory, contiguous along channels.
        cta_tiler: the two static extents (pixels, channels).
        lower_corner_whd: where the pixels that the first tap meets start: minus the padding; by default 0.
        upper_corner_whd: where they end, from the end of the images; by default 0.
        lower_padding_whd: less `lower_corner_whd`, how far a filter reaches whose taps run backwards.
        upper_padding_whd: less `upper_corner_whd`, how far a filter reaches.
        stride_whd: the distance of neighbouring outputs, in pixels; by default 1.
        lower_srt: the offset of the first tap; by default 0.
        stride_srt: the distance of neighbouring taps, negative if they run backwards; by default 1.
        num_multicast: how many CTAs share a tile; each copies an equal part of it.
        internal_type: the element type of the descriptor, if not that of the tensor.
        filter: the extents of the filter.
        lower_padding: pixels of zeros before the first.
        upper_padding: pixels of zeros after the last; by default as many as before.
        stride: the distance of neighbouring outputs, in pixels.
        dilation: the distance of neighbouring taps, in pixels.
    """
    check_request(op, IM2COL_MAKER, num_multicast)
    tensor = tensor_in_gmem(gmem_tensor, "make_im2col_tma_atom")
    corners = {
        "lower_corner_whd": lower_corner_whd,
        "upper_corner_whd": upper_corner_whd,
        "lower_padding_whd": lower_padding_whd,
        "upper_padding_whd": upper_padding_whd,
        "stride_whd": stride_whd,
        "lower_srt": lower_srt,
        "stride_srt": stride_srt,
    }
    if isinstance(tensor.layout.shape, tuple) and isinstance(tensor.layout.shape[0], tuple):
        if (filter, lower_padding, upper_padding, stride, dilation) != (1, 0, None, 1, 1):
            raise refuse("images ((W, H, D, N), C) take the parameters with whd and srt", tensor)
        images = _by_image(tensor)
        walk = Walk.of_corners(images, **corners)
    else:
        if passed := [name for name, value in corners.items() if value is not None]:
            raise refuse(
                f"{passed[0]} belongs to images ((W, H, D, N), C)",
                tensor,
                "filter=, lower_padding=, upper_padding=, stride= and dilation= for images (N, D, H, W, C), or "
                "cute.group_modes(cute.make_tensor(x.iterator, cute.select(x.layout, mode=[3, 2, 1, 0, 4])), 0, 4)",
            )
        images = _check_images(tensor, tensor)
        walk = Walk.of_filter(images, filter, lower_padding, upper_padding, stride, dilation)
    tiler = tuple(map(product, cta_tiler)) if isinstance(cta_tiler, (tuple, list)) else cta_tiler
    if not isinstance(tiler, tuple) or len(tiler) != 2 or not all(isinstance(t, int) and t > 0 for t in tiler):
        raise refuse(f"a tile is two static numbers (pixels, channels), got {cta_tiler!r}", tensor)
    info = _atom(op, images, walk, smem_layout, make_identity_layout(tiler), num_multicast, numeric(internal_type))
    return info if images is tensor else _by_tap(info)


def make_im2col_tma_atom_A(
    op: TmaCopyOp,
    gmem_tensor: object,
    smem_layout: object,
    mma_tiler_mnk: Sequence[int],
    tiled_mma: object,
    filter_trs: object,
    upper_padding_dhw: object,
    lower_padding_dhw: object,
    stride_dhw: object,
    dilation_dhw: object,
    cluster_shape_vmnk: object = None,
    *,
    internal_type: object = None,
    loc: object = None,
    ip: object = None,
) -> TmaInfo:
    """Return a TMA atom for operand A of a tiled MMA, the pixels that the filter of a convolution meets, and its
    coordinate tensor (pixels, (C, S, [[R,] T])). Needs sm_90 or later.

    Args:
        op: `cpasync.CopyBulkTensorIm2ColG2SOp()` or its multicast form.
        gmem_tensor: images ((W, [[H,] D,] N), C) in global memory, with contiguous channels.
        smem_layout: the layout of one stage in shared memory, (MMA, MMA_M, MMA_K).
        mma_tiler_mnk: the tile (M, N, K) of the MMAs.
        tiled_mma: the tiled MMA.
        filter_trs: the extents of the filter.
        upper_padding_dhw: pixels of zeros after the last.
        lower_padding_dhw: pixels of zeros before the first.
        stride_dhw: the distance of neighbouring outputs, in pixels.
        dilation_dhw: the distance of neighbouring taps, in pixels.
        cluster_shape_vmnk: the CTAs of the cluster as (V, M, N, K), of which those along N share A by multicast.
        internal_type: the element type of the descriptor, if not that of the tensor.
    """
    name = "make_im2col_tma_atom_A"
    check_request(op, IM2COL_MAKER, 1)
    images = _by_image(tensor_in_gmem(gmem_tensor, name))
    walk = Walk.of_filter(images, filter_trs, lower_padding_dhw, upper_padding_dhw, stride_dhw, dilation_dhw)
    rows = TracedTensor(images.iterator, Layout((prod(walk.outputs(images)), images.shape[-1]), (0, 1)))
    multicast = multicast_of("A", isinstance(op, CopyBulkTensorIm2ColG2SMulticastOp), cluster_shape_vmnk, name)
    tile = operand_values("A", rows, mma_tiler_mnk, tiled_mma)
    return _by_tap(_atom(op, images, walk, smem_layout, tile, multicast, numeric(internal_type)))


def _by_image(tensor: TracedTensor) -> TracedTensor:
    """Return images ((W, H, D, N), C) as (N, D, H, W, C)."""
    layout = tensor.layout
    if not isinstance(layout.shape, tuple) or len(layout.shape) != 2 or not isinstance(layout.shape[0], tuple):
        raise refuse("images are a tensor ((W, N), C), ((W, H, N), C) or ((W, H, D, N), C)", tensor)
    flat = make_layout([*reversed([layout[0][i] for i in range(len(layout.shape[0]))]), layout[1]])
    return _check_images(TracedTensor(tensor.iterator, flat), tensor)


def _check_images(images: TracedTensor, tensor: TracedTensor) -> TracedTensor:
    shape = images.layout.shape
    if not isinstance(shape, tuple) or not 3 <= len(shape) <= 5 or any(isinstance(s, tuple) for s in shape):
        raise refuse("images are a tensor (N, W, C), (N, H, W, C) or (N, D, H, W, C)", tensor)
    if not is_one(images.layout.stride[-1]):
        raise refuse("channels, the last mode of images, have the static stride 1", tensor)
    return images


def _by_tap(info: TmaInfo) -> TmaInfo:
    """Return the atom with its coordinate tensor (pixels, C, (T, R, S)) as (pixels, (C, S, R, T))."""
    pixels, channels, taps = info.tma_tensor.layout.shape
    along, unit, apart = info.tma_tensor.layout.stride
    layout = Layout((pixels, (channels, *taps[::-1])), (along, (unit, *apart[::-1])))
    return TmaInfo(info.atom, TracedTensor(info.tma_tensor._iterator, layout), info.smem_layout)


@dataclass(frozen=True)
class Walk:
    """Which pixels a convolution meets: a number for each mode between images and channels, in their order."""

    lower: tuple[int, ...]
    """Where the pixels that the first tap meets start."""
    upper: tuple[int, ...]
    """Where they end, from the end of the images."""
    steps: tuple[int, ...]
    """From an output to the next."""
    taps: tuple[int, ...]
    apart: tuple[int, ...]
    """From a tap to the next, negative if they run backwards."""
    first: tuple[int, ...]
    """The offset of the first tap."""

    @classmethod
    def of_filter(
        cls, images: TracedTensor, filter: object, before: object, after: object, stride: object, dilation: object
    ) -> Walk:
        """Return the walk of a filter over images with zeros around them."""
        count = len(images.layout) - 2
        taps = _numbers("filter", filter, count, 1)
        low = _numbers("lower_padding", before, count, 0)
        high = low if after is None else _numbers("upper_padding", after, count, 0)
        steps = _numbers("stride", stride, count, 1, TENSOR_MAP_STEP)
        apart = _numbers("dilation", dilation, count, 1)
        upper = tuple(p - (t - 1) * d for p, t, d in zip(high, taps, apart))
        return cls(tuple(-p for p in low), upper, steps, taps, apart, (0,) * count)

    @classmethod
    def of_corners(cls, images: TracedTensor, **corners: object) -> Walk:
        """Return the walk between corners, which are parameters of `make_im2col_tma_atom`; taps follow from paddings."""
        count = len(images.layout) - 2

        def numbers(name: str, default: object, least: int | None = None, most: int | None = None) -> tuple[int, ...]:
            value = default if corners[name] is None else corners[name]
            return _numbers(name, value, count, least, most)[::-1]

        lower = numbers("lower_corner_whd", 0)
        upper = numbers("upper_corner_whd", 0)
        before = numbers("lower_padding_whd", lower[::-1])
        after = numbers("upper_padding_whd", upper[::-1])
        apart = numbers("stride_srt", 1)
        if 0 in apart:
            raise type_error(f"stride_srt is {corners['stride_srt']!r}: the distance of taps is not 0")
        taps = tuple(
            1 + (high - end if d > 0 else start - low) // d
            for low, high, start, end, d in zip(before, after, lower, upper, apart)
        )
        if min(taps) < 1:
            raise type_error(
                f"stride_srt={corners['stride_srt']!r}, upper_padding_whd={corners['upper_padding_whd']!r} and "
                f"upper_corner_whd={corners['upper_corner_whd']!r} leave a filter of {taps[::-1]} taps",
                "upper_corner_whd is upper_padding_whd less (filter - 1) * stride_srt",
            )
        steps = numbers("stride_whd", 1, 1, TENSOR_MAP_STEP)
        return cls(lower, upper, steps, taps, apart, numbers("lower_srt", 0, 0))

    @property
    def reach(self) -> tuple[int, ...]:
        """The largest offset of a tap in each mode, or -1 where one is negative."""
        ends = [(f, f + (t - 1) * d) for f, t, d in zip(self.first, self.taps, self.apart)]
        return tuple(max(end) if min(end) >= 0 else -1 for end in ends)

    def outputs(self, images: TracedTensor) -> tuple[int | Int32, ...]:
        """Return the extents of the output, static or dynamic."""
        parts = zip(images.layout.shape[1:-1], self.upper, self.lower, self.steps)
        return tuple(_output(size, high - low, step) for size, high, low, step in parts)


def _atom(
    op: TmaCopyOp,
    images: TracedTensor,
    walk: Walk,
    smem_layout: object,
    tile: Layout,
    multicast: int,
    internal_type: NumericMeta | None,
) -> TmaInfo:
    """Return the atom of tiles of images (N, D, H, W, C), with a coordinate tensor (pixels, C, (T, R, S)).

    `tile` maps coordinates of a tile to (pixel, channel)."""
    shape = images.layout.shape
    spatial = len(shape) - 2
    if isinstance(op, CopyBulkTensorIm2ColS2GOp) and (max(walk.taps) > 1 or any(walk.lower) or any(walk.upper)):
        raise refuse(
            f"a store has no filter and no padding, got the filter {walk.taps} and the corners {walk.lower}, {walk.upper}",
            images,
        )
    if not all(0 <= r <= _OFFSETS[spatial] for r in walk.reach):
        raise refuse(
            f"offsets of taps are at most {_OFFSETS[spatial]} pixels in {spatial + 2} modes and not negative: the filter {walk.taps} "
            f"starts at {walk.first} and goes on by {walk.apart}",
            images,
        )
    limit = _CORNERS[spatial]
    for name, corner in (("lower", walk.lower), ("upper", walk.upper)):
        if not all(-limit <= c < limit for c in corner):
            raise refuse(
                f"the {name} corner of the pixels that a tap meets is {pretty_str(corner)}, and in {spatial + 2} modes corners are "
                f"{-limit} to {limit - 1}: minus the lower padding, and the upper padding less (filter - 1) * dilation",
                images,
            )
    outputs = walk.outputs(images)
    if any(isinstance(o, int) and o < 1 for o in outputs):
        raise refuse(
            f"the filter {walk.taps} with the dilation {walk.apart} is larger than the images with their padding",
            images,
        )
    facts = _describe(images, smem_layout, tile, multicast, internal_type, walk)
    sizes, strides, _ = extents(facts, images)
    map_ = nvgpu.tma.tensor_map_encode(
        images.iterator.ir_value(),
        [Int64(s).ir_value() for s in sizes],
        [Int64(s).ir_value() for s in strides],
        element=facts.element,
        box=facts.box,
        swizzle=facts.swizzle,
        tensor=str(images),
        pixel_box=(*facts.lower, *facts.upper),
        element_strides=(1, *facts.steps, 1),
    )
    pixels: Any = prod(outputs, start=shape[0])
    along = tuple(ScaledBasis(d, len(shape) - 1 - i) for i, d in enumerate(walk.apart))
    layout = Layout((pixels, shape[-1], walk.taps), (ScaledBasis(1, 1), ScaledBasis(1, 0), along))
    trait = op.trait(images.element_type, facts, map_, outputs[::-1])
    atom = CopyAtom(op, with_internal_type(trait, images.element_type, internal_type))
    return TmaInfo(atom, TracedTensor(Coordinates((0, 0, *walk.first[::-1])), layout), smem_layout)


def _numbers(name: str, value: Any, count: int, least: int | None, most: int | None = None) -> tuple[int, ...]:
    """Return a static number for each mode between images and channels."""
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,) * count
    if len(numbers) != count or any(
        not isinstance(x, int) or (least is not None and x < least) or (most is not None and x > most) for x in numbers
    ):
        between = f"from {least} to {most}" if most is not None else f"from {least} on" if least is not None else ""
        raise type_error(
            f"{name} is {value!r}: a static number{between and ' '}{between} for each of the {count} modes between images and channels, or one for all"
        )
    return numbers


def _output(size: object, more: int, step: int) -> int | Int32:
    """Return the extent of the output in a mode; none if images that a call brings are too small."""
    if isinstance(size, int):
        return -(-(size + more) // step)
    return leaf_max(Int32(size) + (more + step - 1), 0) // step


def _describe(
    tensor: TracedTensor,
    smem_layout: object,
    tile: Layout,
    multicast: int,
    internal_type: NumericMeta | None,
    walk: Walk,
) -> PixelFacts:
    """Return the map of images of which tiles lie in shared memory by a layout. `tile` maps coordinates of a tile to
    (pixel, channel)."""
    plain, swizzle = taken_apart(smem_layout, tile, tensor)
    kind = swizzle_kind(swizzle, tensor)
    bits = element_bits(tensor.element_type)
    shapes, strides = flat_modes(coalesce(composition(tile, right_inverse(plain))))
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
    element = unpacked_kind(tensor.element_type, internal_type)
    if not element:
        own = tensor.element_type if internal_type is None else internal_type
        if element_bits(own) != bits:
            raise type_error(
                f"internal_type is {own.__name__}: images of {tensor.element_type.__name__} take a type as wide"
            )
        element = element_kind(own, tensor)
    facts = PixelFacts(
        element, bits, kind, modes, box, values, (1, 1), walk.lower[::-1], walk.upper[::-1], walk.steps[::-1]
    )
    check_rows(facts, tensor)
    return facts
