"""The width of offsets in a tensor: 32 bits where they are known to fit, else 64.

Extents and strides of 32 bits can multiply to offsets beyond 32 bits. Two things rule that out: the static numbers of a
layout, and a promise. An argument whose extents are 32 bits wide is promised to have fewer than 2**31
elements, and offsets below 2**31 wherever 32-bit numbers make them up; every call checks that. A fake tensor whose
extents are `sym_int()` promises the offsets only: strides of 64 bits lead to more elements. A function that multiplies
such extents, as `cute.size` does, checks the number of elements itself (`check_counts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ...base_dsl.typing import Int64
from .basis import ScaledBasis
from .composed_layout import ComposedLayout
from .int_tuple import dynamic_leaves, flatten_to_tuple, with_dynamic_leaves
from .layout import Layout, fast_layout

INT32_MAX = (1 << 31) - 1
ROOM = 1 << 30
"""The most elements of an array with 32-bit extents, so that extents rounded up to whole tiles fit into 32 bits."""


def leaf_width(leaf: Any) -> int:
    """Return the bits of a dynamic leaf of a layout."""
    return 64 if type(leaf).width == 64 else 32


def needs_wide_offsets(layout: object, promised: bool) -> bool:
    """Return whether offsets (or coordinates) in a layout may need 64 bits.

    A promise says that offsets fit unless static numbers or a 64-bit extent show that they do not.
    """
    plain = layout.outer if isinstance(layout, ComposedLayout) else layout
    if not isinstance(plain, Layout):
        return False
    reach = 0
    for s, d in zip(flatten_to_tuple(plain.shape), flatten_to_tuple(plain.stride), strict=True):
        if isinstance(d, ScaledBasis):
            d = d.value
        if not isinstance(s, int):
            if leaf_width(s) == 64:
                return True
            if promised:
                continue
            s = INT32_MAX
        if not isinstance(d, int):
            if promised or leaf_width(d) == 64:  # coordinate times stride is 64 bits wide by itself
                continue
            d = INT32_MAX
        reach += (s - 1) * abs(d)
    return reach > INT32_MAX


def with_wide_strides(layout: object) -> Any:
    """Return the layout with every dynamic stride 64 bits wide, so that static coordinates give 64-bit offsets."""
    if isinstance(layout, ComposedLayout):
        outer = with_wide_strides(layout.outer)
        return layout if outer is layout.outer else ComposedLayout(layout.inner, layout.offset, outer)
    if not isinstance(layout, Layout):
        return layout
    leaves = dynamic_leaves(layout.stride)
    if all(leaf_width(leaf) == 64 for leaf in leaves):
        return layout
    wide = [leaf if leaf_width(leaf) == 64 else Int64(leaf) for leaf in leaves]
    return fast_layout(layout.shape, with_dynamic_leaves(layout.stride, wide))


def extent_width(shape: Sequence[int], narrow_strides: Sequence[int] | None = None) -> int:
    """Return the bits of the dynamic extents of an array, all alike.

    `narrow_strides` has 0 where the stride is passed in 64 bits; None: where it is more than 1.
    """
    large = prod(shape) > ROOM or (narrow_strides is not None and _reach(shape, narrow_strides) > ROOM)
    return 64 if large else 32


def broken_promise(shape: Sequence[int], narrow_strides: Sequence[int], counted: bool = True) -> str:
    """Return why an array cannot be passed where extents of 32 bits are expected; empty if it can.

    `narrow_strides` has 0 where the stride is passed in 64 bits; `counted`: the number of elements is promised as well.
    """
    advice = "compile for this tensor, or for make_fake_tensor with extents and strides of sym_int64()"
    count = prod(shape)
    if counted and count > INT32_MAX:
        return f"it has {count} elements, and code for 32-bit extents counts up to {INT32_MAX}: {advice}"
    reach = _reach(shape, narrow_strides)
    if reach > INT32_MAX:
        return f"its offsets go up to {reach}, and code for 32-bit extents counts up to {INT32_MAX}: {advice}"
    return ""


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    return sum((s - 1) * abs(d) for s, d in zip(shape, strides, strict=True))
