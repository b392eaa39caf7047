"""Dynamic leaves of layouts and coordinates as IR values, and descriptions that two layouts or coordinates share."""

from __future__ import annotations

from math import gcd
from typing import Any

from ...base_dsl.bindings import ir
from ...base_dsl.typing import Int32, Int64
from ..layout.basis import ScaledBasis
from ..layout.composed_layout import ComposedLayout
from ..layout.layout import Layout
from ..layout.leaf import get_divisibility
from ..layout.offset_width import leaf_width


def leaf_value(leaf: object) -> ir.Value:
    """Return a dynamic leaf as an IR value of the width that the layout's text states."""
    kind = Int64 if leaf_width(leaf) == 64 else Int32
    return (leaf if type(leaf) is kind else kind(leaf)).ir_value()


def leaf_like(leaf: Any, value: ir.Value) -> Any:
    """Return the same leaf with another IR value."""
    kind = Int64 if leaf_width(leaf) == 64 else Int32
    return kind._make(value, leaf.nonneg, leaf.divisibility)


def _join_leaf(a: Any, b: Any) -> tuple[Any, Any] | None:
    """Return two leaves under one description: equal static ones, or dynamic of the wider width and common divisor."""
    if isinstance(a, int) or isinstance(b, int):
        return (a, b) if isinstance(a, int) and isinstance(b, int) and a == b else None
    kind = Int64 if 64 in (leaf_width(a), leaf_width(b)) else Int32
    common = gcd(get_divisibility(a), get_divisibility(b))
    nonneg = a.nonneg and b.nonneg
    first, second = (x if type(x) is kind else kind(x) for x in (a, b))
    return (first._assume(nonneg=nonneg, divisibility=common), second._assume(nonneg=nonneg, divisibility=common))


def _join_trees(a: object, b: object) -> tuple[Any, Any] | None:
    if isinstance(a, tuple) or isinstance(b, tuple):
        if not (isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)):
            return None
        pairs = [_join_trees(x, y) for x, y in zip(a, b, strict=True)]
        if any(p is None for p in pairs):
            return None
        return tuple(p[0] for p in pairs if p), tuple(p[1] for p in pairs if p)
    if isinstance(a, ScaledBasis) or isinstance(b, ScaledBasis):
        if not (isinstance(a, ScaledBasis) and isinstance(b, ScaledBasis)) or a.mode != b.mode:
            return None
        scales = _join_leaf(a.value, b.value)
        return None if scales is None else (ScaledBasis(scales[0], a.mode), ScaledBasis(scales[1], b.mode))
    return _join_leaf(a, b)


def join_layouts(a: Any, b: Any) -> tuple[Any, Any] | None:
    """Return two layouts under one description; None if their static parts differ."""
    if type(a) is not type(b):
        return None
    if isinstance(a, ComposedLayout):
        if a.inner is not b.inner and a.inner != b.inner:
            return None
        offsets = join_coords(a.offset, b.offset)
        outers = join_layouts(a.outer, b.outer)
        if offsets is None or outers is None:
            return None
        return ComposedLayout(a.inner, offsets[0], outers[0]), ComposedLayout(b.inner, offsets[1], outers[1])
    shapes = _join_trees(a.shape, b.shape)
    strides = _join_trees(a.stride, b.stride)
    if shapes is None or strides is None:
        return None
    return Layout(shapes[0], strides[0]), Layout(shapes[1], strides[1])


def join_coords(a: object, b: object) -> tuple[Any, Any] | None:
    """Return two coordinates under one description: leaves that differ become dynamic."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        if not (isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)):
            return None
        pairs = [join_coords(x, y) for x, y in zip(a, b, strict=True)]
        if any(p is None for p in pairs):
            return None
        return tuple(p[0] for p in pairs if p), tuple(p[1] for p in pairs if p)
    if isinstance(a, int) and isinstance(b, int) and a == b:
        return a, b
    return _join_leaf(Int32(a) if isinstance(a, int) else a, Int32(b) if isinstance(b, int) else b)
