# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# pyright: reportReturnType=false, reportUnnecessaryIsInstance=false
"""Layouts: functions from coordinates to offsets, given by a shape and a congruent stride.

Functions here also take composed layouts and tensors. Those take part through two methods:
``_map_layout(f)``, the same object with its plain layout ``l`` replaced by ``f(l)``, and ``_slice(coord)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import gcd
from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import DSLUserCodeTypeError
from .basis import ScaledBasis, add_coords, basis_coord, basis_like
from .int_tuple import (
    as_int_tuple,
    dynamic_leaves,
    filter_modes,
    flatten_to_tuple,
    has_underscore,
    is_congruent,
    is_static_tree,
    is_weakly_congruent,
    prefix_product,
    pretty_str,
    product,
    repeat_like,
    same_nesting,
    tree_depth,
    tree_equal,
    tree_get,
    tree_hash,
    tree_rank,
    with_dynamic_leaves,
    wrap,
)
from .leaf import (
    DynamicInt,
    LayoutError,
    ModeError,
    as_leaf,
    get_divisibility,
    is_dynamic_leaf,
    is_one,
    is_zero,
    leaf_abs,
    leaf_add,
    leaf_ceil_div,
    leaf_floordiv,
    leaf_mod,
    leaf_mul,
    leaf_sub,
)
from .picture import Drawn

if TYPE_CHECKING:
    from ...base_dsl.numeric.operator_types import Extent

__all__ = [
    "Layout",
    "Stride",
    "Tile",
    "coshape",
    "cosize",
    "crd2idx",
    "depth",
    "idx2crd",
    "is_major",
    "is_static",
    "leading_dim",
    "make_identity_layout",
    "make_layout",
    "make_layout_like",
    "make_ordered_layout",
    "rank",
    "shape",
    "size",
    "size_in_bytes",
    "stride",
]

Stride = int | DynamicInt | ScaledBasis | tuple[Any, ...]


class Layout(Drawn):
    """A function from coordinates to offsets: ``layout(c)`` is the inner product of ``c`` with the strides.

    ``(4,8):(8,1)`` is a 4 by 8 row-major layout. Any coordinate that fits the shape is accepted: a tuple,
    a nested tuple, or one index that counts through the shape with the first mode fastest.
    Made by :func:`make_layout`. Immutable, hashable; ``layout[i]`` is mode ``i``, ``len`` the number of modes.

    ``==`` is a bool when it can be decided without dynamic values, otherwise a dynamic Boolean.
    """

    __kiln_immutable__ = True
    __slots__ = ("_hash", "_shape", "_static", "_stride", "_text")

    _shape: Any
    _stride: Any
    _hash: int | None
    _static: bool | None
    _text: str | None

    def __init__(self, shape: Any, stride: Any = None) -> None:
        shape = as_int_tuple(shape, "a shape")
        if stride is None:
            stride = prefix_product(shape)
        elif not same_nesting(shape, stride := _as_stride(stride)):
            raise LayoutError(
                f"shape and stride must be congruent (nested the same way), but got the shape {pretty_str(shape)} "
                f"and the stride {pretty_str(stride)}"
            )
        for s in flatten_to_tuple(shape):
            if isinstance(s, int) and s < 0:
                raise LayoutError(f"an extent cannot be negative, but the shape is {pretty_str(shape)}")
        self._shape = shape
        self._stride = stride
        self._hash = None
        self._static = None
        self._text = None

    @property
    def shape(self) -> tuple[Extent, ...]:
        """The extents, as a tree; an int for a layout of one mode that is none."""
        return self._shape

    @property
    def stride(self) -> tuple[Extent, ...]:
        """The strides, congruent to the shape."""
        return self._stride

    @property
    def value(self) -> Layout:
        """The layout itself: what programs hand to functions of the IR."""
        return self

    @property
    def type(self) -> str:
        """The type as it is printed in the intermediate representation."""
        return f'!cute.layout<"{self}">'

    @property
    def max_alignment(self) -> int:
        """The largest number of elements by which offsets are known to be aligned when tiled by vectors.

        Recasting to elements up to this many times as wide is possible. Dynamic leaves count with
        their divisibility.
        """
        flat_shape, flat_stride = merge_modes(flatten_to_tuple(self._shape), flatten_to_tuple(self._stride))
        modes = list(zip(flat_shape, flat_stride))
        width = 1
        while (i := next((i for i, m in enumerate(modes) if isinstance(m[1], int) and abs(m[1]) == width), -1)) >= 0:
            extent, _ = modes.pop(i)
            width *= get_divisibility(extent)
            if not isinstance(extent, int):
                break
        for _, d in modes:
            if not isinstance(d, ScaledBasis):
                width = gcd(width, get_divisibility(d))
        return width

    def is_static(self) -> bool:
        """Return whether every extent and every stride is known."""
        static = self._static
        if static is None:
            static = self._static = is_static_tree(self._shape) and is_static_tree(self._stride)
        return static

    def __call__(self, *coord: object) -> Any:
        """Return the offset at a coordinate, or the layout that is left if the coordinate has None in it."""
        c = coord[0] if len(coord) == 1 else coord
        if has_underscore(c):
            return fast_layout(filter_modes(c, self._shape, True), filter_modes(c, self._stride, True))
        return crd2idx(c, self)

    def __getitem__(self, mode: int | slice, *, loc: object = None, ip: object = None) -> Layout:
        shape = wrap(self._shape)
        stride = wrap(self._stride)
        if isinstance(mode, slice):
            return fast_layout(shape[mode], stride[mode])
        if not isinstance(mode, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DSLUserCodeTypeError(
                f"a layout is indexed by mode, an int; write layout({mode!r}) to apply it to a coordinate"
            )
        if not -len(shape) <= mode < len(shape):
            raise ModeError(f"mode {mode} is out of range for {self}, which has {len(shape)} modes")
        return fast_layout(shape[mode], stride[mode])

    def __len__(self) -> int:
        return tree_rank(self._shape)

    def __iter__(self) -> Iterator[Layout]:
        return (fast_layout(s, d) for s, d in zip(wrap(self._shape), wrap(self._stride)))

    def get_hier_coord(self, idx: object, *, loc: object = None, ip: object = None) -> tuple[Extent, ...]:
        """Return the coordinate, nested like the shape, that a compact layout maps to the offset ``idx``.

        Modes of extent 1 and of stride 0 get 0.
        """
        return _coord_at(idx, self._shape, self._stride)

    def get_flat_coord(self, idx: object, *, loc: object = None, ip: object = None) -> tuple[Extent, ...]:
        """Return :meth:`get_hier_coord` with one index per top-level mode."""
        coord = self.get_hier_coord(idx)
        if not isinstance(self._shape, tuple):
            return coord
        return tuple(crd2idx(c, s) for c, s in zip(coord, self._shape))

    def get_1d_coord(self, idx: object, *, loc: object = None, ip: object = None) -> Extent:
        """Return :meth:`get_hier_coord` as one index into the shape."""
        return crd2idx(self.get_hier_coord(idx), self._shape)

    def __eq__(self, other: object) -> Any:
        if self is other:
            return True
        if not isinstance(other, Layout):
            return False
        if self.is_static() and other.is_static():
            return self._shape == other._shape and self._stride == other._stride
        return tree_equal((self._shape, self._stride), (other._shape, other._stride))

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return not equal if isinstance(equal, bool) else equal == False  # noqa: E712  a dynamic Boolean has no "not"

    def __kiln_content__(self) -> Any:
        """Return the parts that keys compare."""
        return self._shape, self._stride

    def __hash__(self) -> int:
        h = self._hash
        if h is None:
            tree = (self._shape, self._stride)
            h = self._hash = hash(tree) if self.is_static() else tree_hash(tree)
        return h

    def __repr__(self) -> str:
        text = self._text
        if text is None:
            text = pretty_str(self._shape) + ":" + pretty_str(self._stride)
            if self.is_static():
                self._text = text
        return text

    def _leaves(self) -> tuple[Any, ...]:
        """Return the dynamic leaves, those of the shape first."""
        return () if self.is_static() else dynamic_leaves((self._shape, self._stride))

    def _with_leaves(self, leaves: Any) -> Layout:
        """Return the same layout with its dynamic leaves, in the order of :meth:`_leaves`, replaced."""
        return fast_layout(*with_dynamic_leaves((self._shape, self._stride), leaves))


def _not_a_layout(what: str, x: object) -> str:
    """Return why something cannot be taken apart or tiled."""
    if hasattr(x, "layout"):  # a tensor of the running Python program
        return f"{what} on the tensor {x!r} is only possible in a @jit function; outside one, use its layout"
    return f"{what} needs a layout, a composed layout or a tensor, but got {x!r}"


def fast_layout(shape: Any, stride: Any) -> Layout:
    """Return a layout from parts that are known to be well formed."""
    layout = Layout.__new__(Layout)
    layout._shape = shape
    layout._stride = stride
    layout._hash = None
    layout._static = None
    layout._text = None
    return layout


def _as_stride(x: object) -> Any:
    if type(x) is int or isinstance(x, ScaledBasis):
        return x
    if isinstance(x, (tuple, list)):
        return tuple(_as_stride(v) for v in x)
    return as_leaf(x, "a stride")


def layouts_of(target: object, f: Callable[[Layout], object], what: str) -> Any:
    """Return ``f`` applied to a layout, or to the layout inside a composed layout or tensor."""
    if type(target) is Layout:
        return f(target)
    mapper = getattr(target, "_map_layout", None)
    if mapper is None:
        raise DSLUserCodeTypeError(_not_a_layout(what, target))
    return mapper(lambda inner: layouts_of(inner, f, what))


def make_layout(shape: Any, *, stride: object = None, loc: object = None, ip: object = None) -> Layout:
    """Return a layout ``shape:stride``, or one whose modes are given layouts: ``make_layout((4,8), stride=(8,1))``.

    Args:
        shape: an extent, or a nested tuple of them; or a list of layouts, which become the modes.
        stride: strides, nested as ``shape`` is, else LayoutError is raised. Without it the layout is compact with the
            first mode fastest, and a static extent of 1 gets stride 0: ``make_layout((1,8,4))`` is ``(1,8,4):(0,1,8)``.
    """
    if stride is None:
        if isinstance(shape, Layout):
            return fast_layout((shape._shape,), (shape._stride,))
        if not isinstance(shape, (int, tuple, list)) and not is_dynamic_leaf(shape) and hasattr(shape, "__iter__"):
            shape = tuple(shape)
        if isinstance(shape, (tuple, list)) and any(isinstance(v, Layout) for v in shape):
            return concat(shape)
    return Layout(shape, stride)


def concat(layouts: Any) -> Layout:
    """Return the layout whose modes are ``layouts``."""
    for v in layouts:
        if not isinstance(v, Layout):
            raise DSLUserCodeTypeError(
                f"make_layout takes a shape or a sequence of layouts, but got {v!r} among layouts; "
                "write make_layout(shape) around shapes"
            )
    return fast_layout(tuple(v._shape for v in layouts), tuple(v._stride for v in layouts))


def make_ordered_layout(shape: object, order: object, *, loc: object = None, ip: object = None) -> Layout:
    """Return a compact layout whose strides grow in a given order.

    ``make_ordered_layout((4,8), (1,0))`` is ``(4,8):(8,1)``.

    Args:
        shape: an extent, or a nested tuple of them.
        order: a number for each mode, the smallest for the fastest. A number may stand for a nested mode, which is then
            compact inside. Equal numbers, and dynamic ones (which come last), go left to right.
    """
    shape = as_int_tuple(shape, "a shape")
    order = as_int_tuple(order, "an order")
    return Layout(shape, compact_order(shape, order))


def compact_order(shape: object, order: object) -> Any:
    """Return the strides of :func:`make_ordered_layout`."""
    if not is_weakly_congruent(order, shape):
        raise LayoutError(
            f"an order needs one number per mode of the shape, but got the order {pretty_str(order)} for the shape "
            f"{pretty_str(shape)}"
        )
    groups: list[Any] = []

    def collect(s: Any, o: Any) -> None:
        if isinstance(o, tuple):
            for x, y in zip(s, o):
                collect(x, y)
        else:
            groups.append(s)

    collect(shape, order)
    keys = flatten_to_tuple(order)
    strides: list[Any] = [None] * len(groups)
    current: Any = 1
    before: Any = 1
    # sorted() is stable, so equal keys stay in order.
    for i in sorted(range(len(groups)), key=lambda i: (0, keys[i]) if isinstance(keys[i], int) else (1, 0)):
        current = leaf_mul(current, before)
        strides[i] = prefix_product(groups[i], current)
        before = product(groups[i])
    rest = iter(strides)

    def build(o: object) -> Any:
        return tuple(build(v) for v in o) if isinstance(o, tuple) else next(rest)

    return build(order)


def make_layout_like(input: object, *, loc: object = None, ip: object = None) -> Layout:
    """Return a compact layout of the shape of ``input`` whose strides have the same order; static strides of 0 stay
    0.
    """
    if not isinstance(input, Layout):
        return make_layout_like(plain_layout(input, "make_layout_like"))
    flat_stride = flatten_to_tuple(input._stride)
    extents = [1 if is_zero(d) else s for s, d in zip(flatten_to_tuple(input._shape), flat_stride)]
    strides = iter(compact_order(tuple(extents), flat_stride) if flat_stride else ())
    return fast_layout(input._shape, _fill(input._shape, strides))


def _fill(profile: object, items: Iterator[object]) -> Any:
    return tuple(_fill(v, items) for v in profile) if isinstance(profile, tuple) else next(items)


def make_identity_layout(shape: object, *, loc: object = None, ip: object = None) -> Layout:
    """Return the layout that maps the coordinates of ``shape`` to themselves.

    ``make_identity_layout((4,8))`` is ``(4,8):(1@0,1@1)``.
    """
    shape = as_int_tuple(shape, "a shape")
    return Layout(shape, basis_like(shape))


def plain_layout(x: object, what: str) -> Layout:
    """Return the plain layout of a layout, a composed layout (its outer one) or a tensor."""
    while not isinstance(x, Layout):
        inner = getattr(x, "outer", None)
        if inner is None:
            inner = getattr(x, "layout", None)
        if inner is None:
            raise DSLUserCodeTypeError(_not_a_layout(what, x))
        x = inner
    return x


def mode_path(mode: Any) -> tuple[int, ...]:
    if mode is None:
        return ()
    return (mode,) if isinstance(mode, int) else tuple(mode)


def shape(input: object, *, mode: object = None, loc: object = None, ip: object = None) -> Any:
    """Return the shape of a layout, a tensor or a tiler (its layouts count with their shapes), or of one mode of it.

    Args:
        input: the layout, tensor or tiler.
        mode: the path of a mode: ``[1]`` is the second one, ``[1,0]`` the first one inside of that.
    """
    return tree_get(_shape_of(input), mode_path(mode))


def _shape_of(x: object) -> Any:
    if isinstance(x, tuple):
        return tuple(_shape_of(v) for v in x)
    if isinstance(x, int) or x is None or is_dynamic_leaf(x):
        return x
    return getattr(x, "shape", x)


def stride(input: Any, *, mode: Any = None, loc: object = None, ip: object = None) -> Any:
    """Return the stride of a layout or tensor, or of one mode of it.

    Args:
        input: the layout or tensor.
        mode: the path of a mode: ``[1]`` is the second one, ``[1,0]`` the first one inside of that.
    """
    return tree_get(input.stride, mode_path(mode))


def size(obj: object, mode: object = (), **kwargs: object) -> Extent:
    """Return the number of elements of a shape, layout, tensor or tiled atom, or of one mode of it.

    Args:
        obj: what to count in; of a tiled copy or MMA, its threads.
        mode: the path of a mode: ``[1]`` is the second one, ``[1,0]`` the first one inside of that.
    """
    s = _shape_of(obj)
    if not isinstance(s, (int, tuple)) and not is_dynamic_leaf(s):
        own = getattr(s, "size", None)
        if own is None:
            raise DSLUserCodeTypeError(f"size needs a shape, a layout or a tensor, but got {obj!r}")
        s = own() if callable(own) else own
    return product(tree_get(s, mode_path(mode)) if mode != () else s)


def rank(obj: object, mode: object = (), **kwargs: object) -> int:
    """Return the number of modes of a tuple, layout or tensor, or of one mode of it; 1 for a leaf.

    Args:
        obj: the tuple, layout or tensor.
        mode: the path of a mode: ``[1]`` is the second one, ``[1,0]`` the first one inside of that.
    """
    return tree_rank(tree_get(_shape_of(obj), mode_path(mode)))


def depth(a: object, *, loc: object = None, ip: object = None) -> int:
    """Return how deeply ``a`` (a tuple, or a layout or tensor by its shape) is nested; 0 for a leaf."""
    return tree_depth(_shape_of(a))


def coshape(obj: object, mode: object = (), **kwargs: object) -> Extent:
    """Return the smallest box that holds all values of a layout: its cosize, or a shape for basis strides.

    Args:
        obj: a layout or tensor.
        mode: the path of a mode, to look at that mode alone.
    """
    layout = plain_layout(obj, "coshape")
    path = mode_path(mode)
    flat_shape = flatten_to_tuple(tree_get(layout._shape, path))
    flat_stride = flatten_to_tuple(tree_get(layout._stride, path))
    if any(isinstance(d, ScaledBasis) for d in flat_stride):
        last = basis_coord(
            (leaf_sub(s, 1), ScaledBasis(leaf_abs(d.value), d.mode) if isinstance(d, ScaledBasis) else d)
            for s, d in zip(flat_shape, flat_stride)
        )
        return add_coords(last, repeat_like(1, last))
    if any(is_zero(s) for s in flat_shape):
        return 0
    # Constants are kept apart so that ?{div=8}:1 has cosize ?{div=8}, and nothing is emitted for it.
    static = 1
    dynamic = 0
    for s, d in zip(flat_shape, flat_stride):
        d = leaf_abs(d)
        if not isinstance(d, int):
            dynamic = leaf_add(dynamic, leaf_mul(leaf_sub(s, 1), d))
        elif isinstance(s, int):
            static += (s - 1) * d
        else:
            dynamic = leaf_add(dynamic, leaf_mul(s, d))
            static -= d
    return leaf_add(dynamic, static)


def cosize(obj: object, mode: object = (), **kwargs: object) -> Extent:
    """Return one more than the largest offset of a layout: the number of elements to allocate for it.

    Negative strides count by their magnitude. A layout with a static extent of 0 has cosize 0. A composed layout counts
    with its outer layout.

    Args:
        obj: a layout or tensor.
        mode: the path of a mode, to look at that mode alone.
    """
    return product(coshape(obj, mode))


def size_in_bytes(dtype: Any, layout: Any, *, loc: object = None, ip: object = None) -> Extent:
    """Return the bytes that hold ``cosize(layout)`` elements of ``dtype``, rounded up; 0 if ``layout`` is None."""
    if layout is None:
        return 0
    return leaf_ceil_div(leaf_mul(cosize(layout), dtype.width), 8)


def is_static(x: object) -> bool:
    """Return whether all extents, strides, offsets and integers in ``x`` are static. True for anything not dynamic."""
    if isinstance(x, list):
        x = tuple(x)
    return is_static_tree(x if isinstance(x, tuple) else getattr(x, "layout", x))


def is_major(mode: int, stride: object, *, loc: object = None, ip: object = None) -> bool:
    """Return whether a layout is contiguous along a mode: whether the first leaf of that mode's stride is a static 1.

    Args:
        mode: the number of the mode.
        stride: the strides of the layout.
    """
    d = tree_get(stride, (mode,))
    while isinstance(d, tuple):
        d = d[0]
    return is_one(d)


def leading_dim(shape: object, stride: object) -> Any:
    """Return the mode along which elements are adjacent.

    It is the first with a static stride of 1 and an extent other than 1: an index, or a path (tuple) if the mode is
    nested; a mode of extent 1 if there is no other; None if no stride is 1.

    Args:
        shape: the shape of a layout.
        stride: its strides, nested as ``shape`` is.
    """
    if not is_congruent(shape, stride):
        raise LayoutError(
            f"leading_dim needs a congruent shape and stride, but got {pretty_str(shape)} and {pretty_str(stride)}"
        )
    candidates: list[tuple[bool, tuple[int, ...]]] = []

    def visit(s: Any, d: Any, path: tuple[int, ...]) -> None:
        if isinstance(s, tuple):
            for i, (x, y) in enumerate(zip(s, d)):
                visit(x, y, (*path, i))
        elif is_one(d):
            candidates.append((is_one(s), path or (0,)))

    visit(shape, stride, ())
    if not candidates:
        return None
    path = min(candidates, key=lambda c: c[0])[1]  # min is stable: the first that is not of extent 1
    return path[0] if len(path) == 1 else path


def merge_modes(shapes: Any, strides: Any) -> tuple[list[Any], list[Any]]:
    """Return flat modes with static 1s dropped and neighbours merged where that is known to keep the function.

    Two neighbours merge when the extent of the right one is static and its stride is known to be
    extent times stride of the left one. A static extent is never given up for a dynamic one.
    """
    out_shape: list[Any] = []
    out_stride: list[Any] = []
    for s, d in zip(shapes, strides):
        if isinstance(s, int):
            if s == 1:
                continue
            if out_shape and _follows(out_shape[-1], out_stride[-1], d):
                out_shape[-1] = leaf_mul(out_shape[-1], s)
                continue
        out_shape.append(s)
        out_stride.append(d)
    return out_shape, out_stride


def _follows(s: object, d: object, next_d: object) -> bool:
    """Return whether ``next_d`` is known to be ``s * d``."""
    if isinstance(d, int):
        if not isinstance(next_d, int):
            return False
        if d == 0:
            return next_d == 0
        return isinstance(s, int) and s * d == next_d
    if isinstance(d, ScaledBasis) and isinstance(next_d, ScaledBasis) and isinstance(s, int):
        return (
            d._mode == next_d._mode
            and isinstance(d._value, int)
            and isinstance(next_d._value, int)
            and s * d._value == next_d._value
        )
    return False


def crd2idx(coord: Any, layout: Any, *, loc: object = None, ip: object = None) -> Extent:
    """Return the offset of a coordinate in a layout; with basis strides, a coordinate.

    An index where a tuple could stand counts through that mode, first mode fastest; past the end it runs on in the last
    mode. None counts as 0.

    Args:
        coord: a coordinate, nested at most as the layout's shape is, else LayoutError is raised.
        layout: a layout, or a shape, which stands for its compact layout.
    """
    if type(layout) is not Layout:
        if not isinstance(layout, (int, tuple)) and not is_dynamic_leaf(layout):
            if hasattr(layout, "_map_layout"):
                return layout(coord)
            raise DSLUserCodeTypeError(f"crd2idx needs a layout or a shape, but got {layout!r}")
        shape = layout
        stride = prefix_product(layout)
    else:
        shape = layout._shape
        stride = layout._stride
    terms: list[tuple[Any, Any]] = []
    _collect_terms(coord, shape, stride, terms)
    static = 0
    dynamic: Any = None
    for c, d in terms:
        if isinstance(d, int) and isinstance(c, int):
            static += c * d
        elif isinstance(d, ScaledBasis):
            return basis_coord(terms)
        else:
            term = leaf_mul(c, d)
            if isinstance(term, int):
                static += term
            else:
                dynamic = term if dynamic is None else dynamic + term
    return static if dynamic is None else leaf_add(dynamic, static)


def crd2idx_apart(coord: object, layout: Layout, period: int) -> tuple[Any, Any]:
    """Return the offset of ``coord`` as two summands: what is known to be a multiple of ``period``, and the rest.

    With the period 0 or basis strides all is rest.
    """
    terms: list[tuple[Any, Any]] = []
    _collect_terms(coord, layout._shape, layout._stride, terms)
    if any(isinstance(d, ScaledBasis) for _, d in terms):
        return 0, basis_coord(terms)
    multiples: Any = 0
    rest: Any = 0
    static = 0
    for c, d in terms:
        term = leaf_mul(c, d)
        if isinstance(term, int):
            static += term
        elif period and get_divisibility(term) % period == 0:
            multiples = leaf_add(multiples, term)
        else:
            rest = leaf_add(rest, term)
    whole = static - static % period if period else 0
    return leaf_add(multiples, whole), leaf_add(rest, static - whole)


def _collect_terms(coord: Any, shape: Any, stride: Any, terms: list[tuple[Any, Any]]) -> None:
    if isinstance(coord, tuple):
        if not isinstance(shape, tuple) or len(coord) != len(shape):
            modes = len(shape) if isinstance(shape, tuple) else 1
            # what else is known of an extent, ?{div=8}, has nothing to do with the mistake
            shown = re.sub(r"\?\{.*?\}", "?", f"{pretty_str(coord)} does not fit the shape {pretty_str(shape)}")
            raise LayoutError(
                f"the coordinate {shown}: it has {len(coord)} parts, and the shape {modes} mode{'s' * (modes != 1)}",
                hint="give one part for each mode, or a single number, which counts through all of them, first mode fastest",
            )
        for c, s, d in zip(coord, shape, stride):
            _collect_terms(c, s, d, terms)
        return
    if coord is None:
        coord = 0
    elif not isinstance(coord, int) and not is_dynamic_leaf(coord):
        coord = as_leaf(coord, "a coordinate")
    if not isinstance(shape, tuple):
        terms.append((coord, stride))
        return
    shapes = flatten_to_tuple(shape)
    strides = flatten_to_tuple(stride)
    if not shapes:
        return
    if not isinstance(coord, int):
        # Merged modes need fewer divisions. The last mode runs on past its extent, so it may not vanish.
        last_stride = strides[-1]
        shapes, strides = merge_modes(shapes[:-1] + ((2,) if is_one(shapes[-1]) else shapes[-1:]), strides)
        if not shapes:
            shapes = [2]
            strides = [last_stride]
    end = len(shapes) - 1
    for i in range(end):
        s = shapes[i]
        terms.append((leaf_mod(coord, s), strides[i]))
        coord = leaf_floordiv(coord, s)
    terms.append((coord, strides[end]))


def idx2crd(idx: object, shape: Any, *, loc: object = None, ip: object = None) -> tuple[Extent, ...]:
    """Return the coordinate that an index counts to, first mode fastest: ``idx2crd(5, (4,2))`` is ``(1,1)``.

    Args:
        idx: an index; past the end it runs on in the last mode. A tuple converts mode by mode.
        shape: the shape whose coordinates are counted.
    """
    if not isinstance(shape, (int, tuple)) and hasattr(shape, "shape"):
        shape = shape.shape
    if isinstance(idx, tuple):
        if not isinstance(shape, tuple) or len(idx) != len(shape):
            raise LayoutError(f"the index {pretty_str(idx)} does not fit the shape {pretty_str(shape)}")
        return tuple(idx2crd(i, s) for i, s in zip(idx, shape))
    if not isinstance(shape, tuple):
        return idx
    leaves: list[Any] = []
    shapes = flatten_to_tuple(shape)
    for s in shapes[:-1]:
        leaves.append(leaf_mod(idx, s))
        idx = leaf_floordiv(idx, s)
    leaves.append(idx)
    return _fill(shape, iter(leaves))


def _coord_at(idx: Any, shape: Any, stride: Any) -> Any:
    if isinstance(shape, tuple):
        return tuple(_coord_at(idx, s, d) for s, d in zip(shape, stride))
    if isinstance(stride, ScaledBasis):
        raise LayoutError(f"a layout with basis strides has no coordinate for the offset {pretty_str(idx)}")
    if is_one(shape) or is_zero(stride):
        return 0
    return leaf_mod(leaf_floordiv(idx, stride), shape)


Tile = int | DynamicInt | None | Layout | tuple[Any, ...]
