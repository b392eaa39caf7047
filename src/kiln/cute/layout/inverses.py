# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# pyright: reportReturnType=false, reportUnnecessaryIsInstance=false
"""Inverses of layouts, the contiguous runs that two layouts have in common, and the null space of a layout."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import gcd
from typing import Any

from .algebra import cached, coalesce_layout, compose_layouts, composition, flat_modes, from_modes, sort_extent
from .basis import ScaledBasis
from .composed_layout import ComposedLayout
from .int_tuple import prefix_product, pretty_str, signum, wrap
from .layout import Layout, fast_layout, make_layout, merge_modes, plain_layout, size
from .leaf import LayoutError, is_dynamic_leaf, is_one, is_zero, leaf_mul
from .modes import UNIT
from .swizzle import Swizzle

__all__ = ["left_inverse", "max_common_layout", "max_common_vector", "nullspace", "right_inverse"]


@cached
def right_inverse_layout(layout: Layout) -> Layout:
    shapes, strides = merge_modes(*flat_modes(layout))
    places = prefix_product(tuple(shapes))
    by_stride: dict[int, int] = {}
    for i, d in enumerate(strides):
        if isinstance(d, int) and abs(d) not in by_stride:
            by_stride[abs(d)] = i
    out_shape: list[Any] = []
    out_stride: list[Any] = []
    expected = 1
    while expected in by_stride:
        i = by_stride[expected]
        s = shapes[i]
        d = strides[i]
        out_shape.append(s)
        out_stride.append(leaf_mul(signum(d), places[i]))
        if not isinstance(s, int) or s * abs(d) == expected:
            break
        expected = s * abs(d)
    return from_modes(*merge_modes(out_shape, out_stride))


def right_inverse(input: object, *, loc: object = None, ip: object = None) -> Layout:
    """Return the longest layout R with ``input(R(i)) == i`` for every i below its size; ``1:0`` if no stride is 1.

    Modes with dynamic strides cannot take part; a mode with a dynamic extent ends the chain.

    Args:
        input: a layout; None stays None, an int n stands for ``n:1``.
    """
    if input is None:
        return None
    if isinstance(input, int) or is_dynamic_leaf(input):
        return make_layout(input)
    if isinstance(input, ComposedLayout):
        inverse = _inverse_of_composed(input, right_inverse)
        run = size(inverse)
        if isinstance(run, int) and any(input.inner(1 << bit) >= run for bit in range((run - 1).bit_length())):
            raise LayoutError(
                f"the right inverse of {input} is not known: without its swizzle the layout reaches every offset below {run}, "
                "and the swizzle moves some of them past the others"
            )
        return inverse
    return right_inverse_layout(plain_layout(input, "right_inverse"))


@cached
def _left_inverse(layout: Layout) -> Layout:
    shapes, strides = merge_modes(*flat_modes(layout))
    places = prefix_product(tuple(shapes))
    modes = [(d, s, p) for s, d, p in zip(shapes, strides, places) if not is_zero(d)]
    if not modes:
        return UNIT
    for d, _, _ in modes:
        if isinstance(d, ScaledBasis) or (not isinstance(d, int) and len(modes) > 1) or (isinstance(d, int) and d < 0):
            raise LayoutError(
                f"the left inverse of {layout} is not known: the strides {pretty_str(tuple(strides))} cannot be sorted; all of "
                "them have to be static and positive, or only one mode left"
            )
    modes.sort(key=lambda m: (m[0], sort_extent(m[1])) if isinstance(m[0], int) else (0, 0))
    # Each stride counts the one before: what an offset holds of it is the coordinate of the mode before.
    out_shape = [modes[0][0]]
    out_stride = [0]
    for (d, s, place), (after, _, _) in pairwise(modes):
        if isinstance(s, int) and d * s > after:
            raise LayoutError(
                f"the left inverse of {layout} does not exist: the mode {s}:{d} runs past the stride {after} of another, "
                "so the layout is not injective, or its modes interleave"
            )
        if after % d:
            raise LayoutError(
                f"the left inverse of {layout} is not a layout: the stride {after} is not a multiple of the stride {d}"
            )
        out_shape.append(after // d)
        out_stride.append(place)
    out_shape.append(modes[-1][1])
    out_stride.append(modes[-1][2])
    return from_modes(*merge_modes(out_shape, out_stride))


def left_inverse(input: object, *, loc: object = None, ip: object = None) -> Layout:
    """Return a layout L with ``L(input(i)) == i`` for every i below the size of ``input``, which must be injective.

    Only modes of stride 0 may repeat offsets: of the indices with one offset L gives the first. None stays None, an
    int n stands for ``n:1``. Raises LayoutError if other indices have the same offset, or where no layout does it.
    """
    if input is None:
        return None
    if isinstance(input, int) or is_dynamic_leaf(input):
        return make_layout(input)
    if isinstance(input, ComposedLayout):
        return _inverse_of_composed(input, left_inverse)
    return _left_inverse(plain_layout(input, "left_inverse"))


def _inverse_of_composed(layout: ComposedLayout, invert: Callable[[Any], Any]) -> Any:
    if not isinstance(layout.inner, Swizzle) or not is_zero(layout.offset):
        raise LayoutError(f"only a swizzled layout with offset 0 has an inverse, but the layout is {layout}")
    return composition(invert(layout.outer), layout.inner)  # a swizzle is its own inverse


def max_common_layout(a: object, b: object, *, loc: object = None, ip: object = None) -> Layout:
    """Return the longest layout R with ``a(R(i)) == b(R(i)) == i`` for every i below its size.

    It is what two layouts or tensors, ``a`` and ``b``, both hold in one contiguous run; ``1:0`` if that is a single
    element. Only static extents count.
    """
    limit = min(_swizzle_base(a), _swizzle_base(b))
    inverse = right_inverse_layout(plain_layout(b, "max_common_layout"))
    length = _common_run(plain_layout(a, "max_common_layout"), inverse, limit)
    return UNIT if length == 1 else compose_layouts(inverse, length)


def max_common_vector(a: object, b: object, *, loc: object = None, ip: object = None) -> int:
    """Return how many elements lie in one run in both ``a`` and ``b``, at the same coordinates: at least 1.

    ``a`` and ``b`` are layouts or tensors. Post-condition: with R the right inverse of ``b``, ``a(R(i)) == i`` for
    every i below the result. Only static extents count. A swizzle limits the run to its unmoved low bits.
    """
    limit = min(_swizzle_base(a), _swizzle_base(b))
    inverse = right_inverse_layout(plain_layout(b, "max_common_vector"))
    return _common_run(plain_layout(a, "max_common_vector"), inverse, limit)


def _swizzle_base(x: object) -> int:
    x = getattr(x, "layout", x)
    if isinstance(x, ComposedLayout):
        return 1 << x.inner.num_base if isinstance(x.inner, Swizzle) else 1
    return 1 << 62


@cached
def _common_run(a: Layout, inverse: Layout, limit: int) -> int:
    """Return the largest static n <= limit so that ``composition(a, inverse)`` starts with ``n:1``."""
    try:
        common = coalesce_layout(compose_layouts(a, inverse), None)
    except LayoutError:
        # The whole inverse does not fit into a. The first mode may, in part.
        s = wrap(inverse._shape)[0]
        d = wrap(inverse._stride)[0]
        if not isinstance(s, int):
            return 1
        for n in sorted((n for n in range(2, s) if s % n == 0), reverse=True):
            try:
                part = coalesce_layout(compose_layouts(a, fast_layout(n, d)), None)
            except LayoutError:
                continue
            if not isinstance(part._shape, tuple) and is_one(part._stride):
                return _largest_divisor(n, limit)
        return 1
    s = wrap(common._shape)[0]
    d = wrap(common._stride)[0]
    return _largest_divisor(s, limit) if isinstance(s, int) and is_one(d) else 1


def _largest_divisor(n: int, limit: int) -> int:
    return n if n <= limit else gcd(n, limit)


def nullspace(layout: object, *, loc: object = None, ip: object = None) -> Layout:
    """Return the layout of the indices that ``layout`` maps to 0 through modes of static stride 0.

    Post-conditions: ``layout(result(i)) == 0``, and its size is that of those modes.
    """
    shapes, strides = flat_modes(plain_layout(layout, "nullspace"))
    places = prefix_product(shapes)
    zero = [i for i, d in enumerate(strides) if is_zero(d)]
    return from_modes([shapes[i] for i in zero], [places[i] for i in zero])
