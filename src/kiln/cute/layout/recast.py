# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# pyright: reportReturnType=false, reportUnnecessaryIsInstance=false
"""Layouts of the same memory seen as elements of another width."""

from __future__ import annotations

from math import gcd
from typing import Any, TypeVar

from .algebra import cached
from .basis import ScaledBasis
from .composed_layout import ComposedLayout
from .int_tuple import flatten_to_tuple, pretty_str, shape_div, wrap
from .layout import Layout, fast_layout, layouts_of
from .leaf import LayoutError, is_zero, leaf_floordiv, leaf_mul
from .swizzle import Swizzle, downcast_swizzle, upcast_swizzle

__all__ = ["recast_layout"]

T = TypeVar("T")


_BASIS_RECAST = (
    "a layout with basis strides cannot be recast by itself, but the layout is {}: its coordinates say nothing about which "
    "mode elements are adjacent in; compose it with a layout, make_composed_layout(layout, coordinate, {})"
)


def _upcast(shape: Any, stride: Any, factor: int, layout: Layout) -> tuple[Any, Any]:
    if isinstance(shape, tuple):
        pairs = [_upcast(s, d, factor, layout) for s, d in zip(shape, stride)]
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    if isinstance(stride, ScaledBasis):
        raise LayoutError(_BASIS_RECAST.format(layout, layout))
    if is_zero(stride):
        return shape, stride
    if not isinstance(stride, int):
        return shape, leaf_floordiv(stride, factor)
    try:
        return shape_div(shape, shape_div(factor, abs(stride))), shape_div(stride, factor)
    except LayoutError:
        raise LayoutError(
            f"the layout {layout} cannot be recast to elements {factor} times as wide: the mode {pretty_str(shape)}:{stride} "
            "does not split into whole new elements"
        ) from None


def _downcast(shape: Any, stride: Any, factor: int, layout: Layout) -> tuple[Any, Any]:
    if isinstance(shape, tuple):
        pairs = [_downcast(s, d, factor, layout) for s, d in zip(shape, stride)]
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    if isinstance(stride, ScaledBasis):
        raise LayoutError(_BASIS_RECAST.format(layout, layout))
    if isinstance(stride, int) and abs(stride) == 1:
        return leaf_mul(shape, factor), stride
    return shape, leaf_mul(stride, factor)


@cached
def _recast(layout: Layout, up: int, down: int) -> Layout:
    shape = layout._shape
    stride = layout._stride
    if up != 1:
        shape, stride = _upcast(shape, stride, up, layout)
    if down != 1:
        if not any(isinstance(d, int) and abs(d) == 1 for d in flatten_to_tuple(stride)):
            raise LayoutError(
                f"the layout {layout} cannot be recast to narrower elements: no mode has stride 1, so an element has no "
                "mode to be split along"
            )
        shape, stride = _downcast(shape, stride, down, layout)
    return fast_layout(shape, stride)


def recast_layout(new_type_bits: int, old_type_bits: int, src_layout: T, *, loc: object = None, ip: object = None) -> T:
    """Return the layout of the same memory seen as elements of another width.

    To wider elements, strides shrink and the modes of stride 1 hold fewer elements; to narrower ones, the reverse.

    Args:
        new_type_bits: bits of an element of the result.
        old_type_bits: bits of an element of ``src_layout``.
        src_layout: the layout. LayoutError is raised if an element would straddle two runs; dynamic strides are trusted
            to divide.
    """
    common = gcd(new_type_bits, old_type_bits)
    up = new_type_bits // common
    down = old_type_bits // common
    if up == 1 and down == 1:
        return src_layout
    if isinstance(src_layout, Swizzle):
        return _recast_swizzle(src_layout, up, down)
    if isinstance(src_layout, ComposedLayout):
        inner = src_layout.inner
        if isinstance(inner, Swizzle):
            inner = _recast_swizzle(inner, up, down)
        elif isinstance(inner, Layout):
            if isinstance(src_layout.offset, tuple):
                return _recast_coordinates(src_layout, up, down)
            inner = _recast(inner, up, down)
        else:
            raise LayoutError(f"a composed layout around a function cannot be recast, but the layout is {src_layout}")
        offset = src_layout.offset
        if isinstance(offset, tuple) or (isinstance(offset, int) and offset % up):
            raise LayoutError(f"the offset {pretty_str(offset)} of {src_layout} is not a whole number of new elements")
        offset = leaf_mul(leaf_floordiv(offset, up), down)
        return ComposedLayout(inner, offset, _recast(src_layout.outer, up, down))
    return layouts_of(src_layout, lambda x: _recast(x, up, down), "recast_layout")


def _recast_coordinates(layout: ComposedLayout, up: int, down: int) -> ComposedLayout:
    """Return a layout after one with basis strides: coordinates change in the mode of stride 1."""
    inner = layout.inner
    modes = [i for i, d in enumerate(wrap(inner.stride)) if isinstance(d, int) and abs(d) == 1]
    if len(modes) != 1 or len(layout.offset) != len(wrap(inner.shape)):
        raise LayoutError(f"the layout {layout} cannot be recast: one mode of {inner} has to have stride 1")
    mode = modes[0]

    def recast(s: Any, d: Any) -> tuple[Any, Any]:
        if isinstance(s, tuple):
            pairs = [recast(x, y) for x, y in zip(s, d)]
            return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
        if not isinstance(d, ScaledBasis) or d.mode != [mode]:
            return s, d
        scaled = _recast(fast_layout((s, 1), (d.value, 1)), up, down)  # the second mode stands for the elements
        return scaled._shape[0], ScaledBasis(scaled._stride[0], mode)

    offset = layout.offset[mode]
    if isinstance(offset, tuple) or (isinstance(offset, int) and offset % up):
        raise LayoutError(f"the offset {pretty_str(layout.offset)} of {layout} is not a whole number of new elements")
    moved = list(layout.offset)
    moved[mode] = leaf_mul(leaf_floordiv(offset, up), down)
    outer = fast_layout(*recast(layout.outer._shape, layout.outer._stride))
    return ComposedLayout(_recast(inner, up, down), tuple(moved), outer)


def _recast_swizzle(swizzle: Swizzle, up: int, down: int) -> Swizzle:
    if up != 1:
        swizzle = upcast_swizzle(swizzle, up)
    return downcast_swizzle(swizzle, down) if down != 1 else swizzle
