# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# pyright: reportReturnType=false, reportUnnecessaryIsInstance=false
"""The algebra of layouts: coalesce, composition, complement.

Every function promises a post-condition (stated in its docstring) and checks its precondition as far as
it is static: a broken one raises LayoutError with the rule and the layouts. Results on static layouts
are cached. Composed layouts and tensors are taken wherever only their plain layout changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ...base_dsl.diagnostics import DSLUserCodeTypeError
from .basis import ScaledBasis
from .composed_layout import ComposedLayout
from .int_tuple import as_int_tuple, flatten_to_tuple, prefix_product, pretty_str, product, repeat_like, signum, wrap
from .layout import Layout, concat, cosize, fast_layout, layouts_of, merge_modes, plain_layout, size
from .leaf import (
    LayoutError,
    is_dynamic_leaf,
    is_one,
    is_zero,
    leaf_abs,
    leaf_ceil_div,
    leaf_floordiv,
    leaf_min,
    leaf_mul,
)
from .modes import UNIT, get
from .swizzle import Swizzle, swizzle_from_masks

if TYPE_CHECKING:
    from ...base_dsl.numeric.operator_types import Extent

__all__ = ["ceil_div", "coalesce", "complement", "composition", "filter", "filter_zeros"]

T = TypeVar("T")

_F = TypeVar("_F", bound=Callable[..., Any])


def is_static_arg(x: object) -> bool:
    if type(x) is Layout:
        return x.is_static()
    if type(x) is tuple:
        return all(is_static_arg(v) for v in x)
    return x is None or type(x) is int


_caches: list[Callable[[], None]] = []


def cached(f: _F) -> _F:
    """Cache results where all arguments are static: layouts, ints, None and tuples of them."""
    remembered = lru_cache(maxsize=4096)(f)

    @wraps(f)
    def call(*args: object) -> Any:
        for x in args:
            if not is_static_arg(x):
                return f(*args)
        return remembered(*args)

    _caches.append(remembered.cache_clear)
    return call  # pyright: ignore[reportReturnType]


def clear_caches() -> None:
    """Clear the caches of all functions here, for measurements."""
    for clear in _caches:
        clear()


def flat_modes(layout: Layout) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return flatten_to_tuple(layout._shape), flatten_to_tuple(layout._stride)


def from_modes(shapes: Any, strides: Any) -> Layout:
    """Return flat modes as a layout: ``1:0`` for none, without a tuple for one."""
    if not shapes:
        return UNIT
    if len(shapes) == 1:
        return fast_layout(shapes[0], strides[0])
    return fast_layout(tuple(shapes), tuple(strides))


@cached
def coalesce_layout(layout: Layout, profile: object) -> Layout:
    if not isinstance(profile, tuple):
        return from_modes(*merge_modes(*flat_modes(layout)))
    if len(profile) > len(layout):
        raise LayoutError(f"coalesce: the profile {pretty_str(profile)} has more modes than the layout {layout}")
    modes = list(layout)
    return concat([coalesce_layout(m, p) for m, p in zip(modes, profile)] + modes[len(profile) :])


def coalesce(input: T, *, target_profile: object = None, loc: object = None, ip: object = None) -> T:
    """Return ``input`` with as few modes as possible, as the same function of an index.

    Post-condition: ``result(i) == input(i)`` for every index i below the size, and the size is kept. Modes do not merge
    across a dynamic stride, nor is a static extent merged into a dynamic one.

    Args:
        input: a layout or tensor.
        target_profile: a tuple at whose leaves the modes are coalesced separately: ``(1,1)`` keeps the two top-level
            modes apart. By default all modes may merge.
    """
    return layouts_of(input, lambda x: coalesce_layout(x, target_profile), "coalesce")


def ones_where_zero(stride: object, shape: object) -> Any:
    if isinstance(stride, tuple):
        if not isinstance(shape, tuple) or len(shape) != len(stride):
            raise LayoutError(
                f"filter_zeros: the profile {pretty_str(stride)} does not fit the shape {pretty_str(shape)}"
            )
        return tuple(ones_where_zero(d, s) for d, s in zip(stride, shape))
    return repeat_like(1, shape) if is_zero(stride) else shape


def filter_zeros(input: T, *, target_profile: object = None, loc: object = None, ip: object = None) -> T:
    """Return ``input`` with extent 1 in place of every mode with a static stride of 0; the nesting is kept.

    Args:
        input: a layout or tensor.
        target_profile: strides, nested like those of ``input``, whose zeros select the modes instead.
    """
    return layouts_of(
        input,
        lambda x: fast_layout(
            ones_where_zero(x._stride if target_profile is None else target_profile, x._shape), x._stride
        ),
        "filter_zeros",
    )


def filter(input: T, *, loc: object = None, ip: object = None) -> T:
    """Return ``input``, a layout or tensor, without modes of extent 1 and of static stride 0, coalesced.

    The result reaches every offset that ``input`` reaches.
    """
    return layouts_of(input, _filter_layout, "filter")


@cached
def _filter_layout(layout: Layout) -> Layout:
    shapes, strides = flat_modes(layout)
    return from_modes(*merge_modes([1 if is_zero(d) else s for s, d in zip(shapes, strides)], strides))


@overload
def composition(lhs: Layout, rhs: Layout, *, loc: object = None, ip: object = None) -> Layout: ...
@overload
def composition(lhs: Any, rhs: Any, *, loc: object = None, ip: object = None) -> Any: ...
def composition(lhs: object, rhs: object, *, loc: object = None, ip: object = None) -> Any:
    """Return ``lhs`` after ``rhs``: the layout R with ``R(c) == lhs(rhs(c))`` for every coordinate c of ``rhs``.

    Where ``rhs`` leads past the end of ``lhs``, that holds if the last extent of ``lhs`` is not 1.
    ``rhs`` is a layout, or a tiler: an int n stands for ``make_layout(n)``, None keeps the mode, a tuple applies
    mode by mode, and the result has as many modes as it (modes of ``lhs`` that it does not reach are dropped).
    ``lhs`` may be a layout, a composed layout, a tensor or a swizzle (the result is then a composed layout).

    Not every composition is a layout. Where the extents and strides are static it is checked that in
    every mode but the last of ``lhs`` the steps of ``rhs`` either stay inside the mode or cover it in whole,
    and LayoutError says where they do not. Dynamic ones are trusted.
    """
    if isinstance(lhs, Swizzle):
        if isinstance(rhs, Layout):
            return ComposedLayout(lhs, 0, rhs)
        raise DSLUserCodeTypeError(f"a swizzle is composed with a layout, but got {rhs!r}")
    if isinstance(rhs, ComposedLayout):
        return _compose_with_composed(lhs, rhs)
    if isinstance(rhs, Swizzle):
        return _compose_with_swizzle(lhs, rhs)
    return layouts_of(lhs, lambda x: compose_layouts(x, as_tiler(rhs, "composition")), "composition")


def as_tiler(tiler: object, what: str) -> Any:
    if type(tiler) is Layout or type(tiler) is int or tiler is None:
        return tiler
    if isinstance(tiler, (tuple, list)):
        return tuple(as_tiler(t, what) for t in tiler)
    if is_dynamic_leaf(tiler):
        return tiler
    try:
        return as_int_tuple(tiler)
    except TypeError:
        raise DSLUserCodeTypeError(
            f"{what}: a tiler is an int, None, a layout or a nested tuple of those, but got {tiler!r}"
        ) from None


@cached
def compose_layouts(lhs: Layout, rhs: object) -> Layout:
    if rhs is None:
        return lhs
    if isinstance(rhs, tuple):
        modes = tiled_modes(lhs, rhs, "composition")
        return concat([compose_layouts(m, t) for m, t in zip(modes, rhs)])
    if not isinstance(rhs, Layout):
        rhs = compact(rhs)
    shape = rhs._shape
    stride = rhs._stride
    profile = _coordinate_profile(flatten_to_tuple(stride))
    lhs_shape, lhs_stride = _coalesce_for_composition(lhs, profile, lhs, rhs)
    if isinstance(lhs_shape, tuple) and isinstance(shape, tuple):
        _check_no_carry(lhs, rhs)
    return fast_layout(*_compose(lhs_shape, lhs_stride, shape, stride, lhs, rhs))


def tiled_modes(layout: Layout, tiler: tuple[object, ...], what: str) -> list[Layout]:
    if len(tiler) > len(layout):
        raise LayoutError(
            f"{what}: the tiler {_tiler_str(tiler)} has {len(tiler)} modes, more than the {len(layout)} of the layout {layout}"
        )
    return list(layout)


def _tiler_str(tiler: object) -> str:
    if isinstance(tiler, tuple):
        return "<" + ", ".join(_tiler_str(t) for t in tiler) + ">"
    return "_" if tiler is None else str(tiler)


def _coordinate_profile(strides: tuple[object, ...]) -> Any:
    """Return the nesting of the coordinates that basis strides produce, None if there are no basis strides."""
    tree: dict[int, Any] | None = None
    for d in strides:
        if isinstance(d, ScaledBasis):
            node = tree = {} if tree is None else tree
            for m in d._mode:
                node = node.setdefault(m, {})
    return None if tree is None else _profile_of(tree)


def _profile_of(node: dict[int, Any]) -> Any:
    return tuple(_profile_of(node.get(i, {})) for i in range(max(node) + 1)) if node else None


def _coalesce_for_composition(layout: Layout, profile: object, lhs: Layout, rhs: Layout) -> tuple[Any, Any]:
    """Return shape and stride coalesced, with the same offsets for indices past the end.

    Composition may reach past the end of its left operand, where the last mode runs on. A last mode
    of extent 1 therefore has to survive; it gets extent 2, which is as good as any other.
    """
    if isinstance(profile, tuple):
        if len(profile) > len(layout):
            raise LayoutError(
                f"composition: the right layout {rhs} produces coordinates of {len(profile)} modes, but the left "
                f"layout {lhs} has {len(layout)}"
            )
        modes = list(layout)
        pairs = [_coalesce_for_composition(m, p, lhs, rhs) for m, p in zip(modes, profile)]
        pairs += [(m._shape, m._stride) for m in modes[len(profile) :]]
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    shapes, strides = flat_modes(layout)
    if not shapes:
        return 1, 0
    if is_one(shapes[-1]):
        shapes = (*shapes[:-1], 2)
    out_shape, out_stride = merge_modes(shapes, strides)
    if len(out_shape) == 1:
        return out_shape[0], out_stride[0]
    return tuple(out_shape), tuple(out_stride)


def _compose(lhs_shape: Any, lhs_stride: Any, shape: Any, stride: Any, lhs: Layout, rhs: Layout) -> tuple[Any, Any]:
    if isinstance(shape, tuple):
        pairs = [_compose(lhs_shape, lhs_stride, s, d, lhs, rhs) for s, d in zip(shape, stride)]
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    if isinstance(stride, ScaledBasis):
        for m in stride._mode:
            lhs_shape = wrap(lhs_shape)[m]
            lhs_stride = wrap(lhs_stride)[m]
        return _compose(lhs_shape, lhs_stride, shape, stride._value, lhs, rhs)
    if isinstance(stride, int) and stride == 0:
        return shape, 0
    if not isinstance(lhs_shape, tuple):
        return shape, leaf_mul(stride, lhs_stride)
    if any(isinstance(s, tuple) for s in lhs_shape):  # the left operand was coalesced for coordinates only
        lhs_shape = flatten_to_tuple(lhs_shape)
        lhs_stride = flatten_to_tuple(lhs_stride)

    out_shape: list[Any] = []
    out_stride: list[Any] = []
    rest_shape = shape
    rest_stride = stride
    for extent, step in zip(lhs_shape[:-1], lhs_stride[:-1]):
        if is_one(rest_shape) and isinstance(rest_stride, int) and isinstance(extent, int):
            rest_stride = leaf_ceil_div(abs(rest_stride), extent) * signum(rest_stride)
            continue
        if isinstance(rest_stride, int) and isinstance(extent, int) and isinstance(rest_shape, int):
            _check_admissible(extent, rest_shape, abs(rest_stride), lhs, rhs)
        inside = leaf_ceil_div(extent, leaf_abs(rest_stride))
        next_stride = leaf_mul(leaf_ceil_div(leaf_abs(rest_stride), extent), signum(rest_stride))
        if not is_one(inside) and not is_one(rest_shape):
            taken = leaf_min(inside, rest_shape)
            out_shape.append(taken)
            out_stride.append(leaf_mul(rest_stride, step))
            rest_shape = leaf_floordiv(rest_shape, taken)
        rest_stride = next_stride
    if not is_one(rest_shape) or not out_shape:
        out_shape.append(rest_shape)
        out_stride.append(leaf_mul(rest_stride, lhs_stride[-1]))
    if len(out_shape) == 1:
        return out_shape[0], out_stride[0]
    return tuple(out_shape), tuple(out_stride)


def _check_admissible(extent: int, count: int, stride: int, lhs: Layout, rhs: Layout) -> None:
    """Raise LayoutError unless ``count`` steps of ``stride`` through a mode of ``extent``, not the last, are linear."""
    if extent == 0 or count == 0 or stride % extent == 0 or (count - 1) * stride < extent:
        return  # passes over the mode, or stays inside it
    if stride < extent and extent % stride == 0 and count % (extent // stride) == 0:
        return  # covers the mode a whole number of times
    raise LayoutError(
        f"the composition of {lhs} with {rhs} is not a layout: {count} steps of stride {stride} neither stay inside "
        f"nor evenly cover a mode of extent {extent} of the coalesced left layout. Each stride of the right layout must "
        f"divide or be a multiple of the extents it crosses, and its extent a multiple of what it covers"
    )


def _check_no_carry(lhs: Layout, rhs: Layout) -> None:
    """Raise LayoutError if the modes of the right operand together carry from one mode of the left operand to the next.

    Each mode composes separately. Carries past the last mode of the left operand with an extent other than 1 do not
    count.
    """
    reach: dict[tuple[int, ...], list[int]] = {}
    for s, d in zip(*flat_modes(rhs)):
        path: tuple[int, ...] = ()
        if isinstance(d, ScaledBasis):
            path = d._mode
            d = d._value
        if isinstance(s, int) and isinstance(d, int) and s > 1 and d > 0:
            reach.setdefault(path, []).append((s - 1) * d)
    for path, tops in reach.items():
        if len(tops) < 2:
            continue
        extents, _ = merge_modes(*flat_modes(get(lhs, path)))
        for extent in extents[:-1]:
            if len(tops) < 2 or not isinstance(extent, int) or extent == 0:
                break
            if sum(t % extent for t in tops) >= extent:
                raise LayoutError(
                    f"the composition of {lhs} with {rhs} is not a layout: the modes of the right layout together run "
                    f"past a mode of extent {extent} of the coalesced left layout"
                )
            tops = [t // extent for t in tops if t >= extent]


def _compose_with_composed(lhs: object, rhs: ComposedLayout) -> Any:
    if isinstance(rhs.inner, Layout) and is_zero(rhs.offset):
        return composition(composition(lhs, rhs.inner), rhs.outer)
    if isinstance(rhs.inner, Swizzle) and is_zero(rhs.offset):
        return composition(composition(lhs, rhs.inner), rhs.outer)
    raise LayoutError(f"a composed layout can be composed on the right only if its offset is 0, but it is {rhs}")


def _compose_with_swizzle(lhs: object, swizzle: Swizzle) -> Any:
    """Return ``lhs`` after a swizzle, rewritten as a swizzle after ``lhs``: possible if ``lhs`` moves bits to bits."""
    if not isinstance(lhs, Layout):
        raise DSLUserCodeTypeError(f"only a plain layout is composed with a swizzle on the right, but got {lhs!r}")
    if swizzle.num_bits == 0:
        return lhs
    used = 0
    for s, d in zip(*flat_modes(lhs)):
        if (
            not isinstance(s, int)
            or not isinstance(d, int)
            or s & (s - 1)
            or d & (d - 1)
            or d < 0
            or (s - 1) * d & used
        ):
            break
        used |= (s - 1) * d
    else:
        low_source, low_target = (m & -m for m in (swizzle.source_mask, swizzle.target_mask))
        moved: list[tuple[int, int]] = []
        for source, target in ((low_source << i, low_target << i) for i in range(swizzle.num_bits)):
            y = lhs(target)
            if y and source < size(lhs):  # else lhs leaves out the bit that is xored into, or no index has the other
                overlaps = target >= size(lhs) and y & used
                moved.append((lhs(source), 0 if overlaps else y))
        if not moved:
            return lhs
        first_source, first_target = moved[0]
        if all(x and y and x * first_target == y * first_source for x, y in moved):
            return ComposedLayout(swizzle_from_masks(sum(x for x, _ in moved), sum(y for _, y in moved)), 0, lhs)
    raise LayoutError(
        f"{lhs} cannot be composed with {swizzle}: that needs static extents and strides that are powers of two and do "
        "not overlap, so that bits are moved to bits, and the swizzled bits to stay equally far apart"
    )


def complement(input: object, cotarget: object = None, *, loc: object = None, ip: object = None) -> Layout:
    """Return a layout that reaches what ``input`` leaves out of ``cotarget``, a size or shape (default: its own
    cosize).

    Post-conditions: the offsets of the result grow with the index; apart from 0 none is an offset of
    ``input``; together (``input(i) + result(j)``) they reach every offset below the size of ``cotarget`` at
    most once, and all of them if strides and extents divide each other.
    Raises LayoutError for a layout that maps two indices to one offset or has no elements, and for more than one
    mode with dynamic strides, whose order is unknown.
    """
    layout = plain_layout(input, "complement")
    if cotarget is not None and not isinstance(cotarget, (int, tuple)) and not is_dynamic_leaf(cotarget):
        cotarget = plain_layout(cotarget, "complement")._shape
    return complement_layout(layout, cotarget)


@cached
def complement_layout(layout: Layout, cotarget: object) -> Layout:
    if any(is_zero(s) for s in flatten_to_tuple(layout._shape)):
        raise LayoutError(f"the complement of {layout} does not exist: the layout has no elements")
    filtered = _filter_layout(layout)
    if cotarget is None:
        cotarget = cosize(filtered)
    if is_zero(filtered._stride):
        return compact(_merge_extents(flatten_to_tuple(cotarget)))
    shapes, strides = flat_modes(filtered)
    for d in strides:
        if not isinstance(d, int) and (len(strides) > 1 or isinstance(d, ScaledBasis)):
            raise LayoutError(
                f"the complement of {layout} is not known: more than one mode is left and {pretty_str(d)} is not a "
                "static integer stride, so the modes cannot be sorted"
            )
    if len(strides) > 1:
        order = sorted(range(len(strides)), key=lambda i: (strides[i], sort_extent(shapes[i])))
        shapes = [shapes[i] for i in order]
        strides = [strides[i] for i in order]
    out_shape: list[Any] = []
    out_stride: list[Any] = []
    current: Any = 1
    for s, d in zip(shapes, strides):
        gap = leaf_floordiv(d, current)
        if isinstance(d, int) and (d < 0 or is_zero(gap)):
            raise LayoutError(
                f"the complement of {layout} does not exist: the layout is not injective. The mode {pretty_str(s)}:{d} "
                f"overlaps the offsets below {pretty_str(current)} of the modes before it"
                if d > 0
                else f"the complement of {layout} does not exist: the stride {d} is negative"
            )
        out_shape.append(gap)
        out_stride.append(current)
        current = leaf_mul(d, s)
    rest = wrap(_merge_extents(_left_of(cotarget, current)))
    out_shape.extend(rest)
    out_stride.extend(prefix_product(rest, current))
    return from_modes(*merge_modes(out_shape, out_stride))


def _left_of(shape: object, below: object) -> list[Any]:
    """Return the extents of ``shape``, first mode fastest, without the first ``below`` indices."""
    left: list[Any] = []
    for s in flatten_to_tuple(shape):
        left.append(leaf_ceil_div(s, below))
        below = below if is_zero(s) else leaf_ceil_div(below, s)
    return left


def sort_extent(s: object) -> int:
    return s if isinstance(s, int) else 1 << 62


def _merge_extents(extents: Iterable[object]) -> Any:
    """Return flat extents as a shape, with neighbouring static ones, and neighbouring dynamic ones, multiplied."""
    merged: list[Any] = []
    for s in extents:
        if merged and isinstance(merged[-1], int) == isinstance(s, int):
            merged[-1] = leaf_mul(merged[-1], s)
        else:
            merged.append(s)
    return tuple(merged) if len(merged) > 1 else merged[0] if merged else 1


def compact(shape: object) -> Layout:
    return fast_layout(shape, prefix_product(shape))


def ceil_div(input: object, tiler: object, *, loc: object = None, ip: object = None) -> Extent:
    """Return how many tiles cover a shape: ``ceil_div(10, 4)`` is 3.

    Where only one of the two is a tuple it counts with its size: ``ceil_div((4,(3,5)), (2,4))`` is ``(2,4)``.

    Args:
        input: an extent, or a shape.
        tiler: an extent, or a tuple of extents that divide mode by mode; a mode that it lacks stays as it is. None
            keeps its mode, and a layout leaves the shape of its complement.
    """
    if isinstance(tiler, int) and isinstance(input, int):
        return leaf_ceil_div(input, tiler)
    if tiler is None:
        return input
    if isinstance(tiler, Layout):
        return complement(tiler, product(input))._shape
    if isinstance(input, tuple) and isinstance(tiler, tuple):
        if len(tiler) > len(input):
            raise LayoutError(
                f"ceil_div: the tiler {pretty_str(tiler)} has more modes than the shape {pretty_str(input)}"
            )
        head = tuple(ceil_div(x, t) for x, t in zip(input, tiler))
        return head + input[len(head) :]
    return leaf_ceil_div(product(input), product(tiler))
