# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# pyright: reportReturnType=false, reportUnnecessaryIsInstance=false
"""Taking modes apart and putting them together: slices, selections, groups, of tuples, layouts and tensors."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from ...base_dsl.diagnostics import DSLUserCodeTypeError
from .int_tuple import filter_modes, flatten_tree, pretty_str, tree_get, wrap
from .layout import Layout, crd2idx, fast_layout, layouts_of, mode_path
from .leaf import LayoutError, is_dynamic_leaf

__all__ = [
    "append",
    "append_ones",
    "dice",
    "domain_offset",
    "flatten",
    "get",
    "group_modes",
    "prepend",
    "prepend_ones",
    "select",
    "slice_",
    "slice_and_offset",
]

T = TypeVar("T")


@overload
def slice_(src: tuple[Any, ...], coord: Any, *, loc: object = None, ip: object = None) -> Any: ...
@overload
def slice_(src: T, coord: Any, *, loc: object = None, ip: object = None) -> T: ...
def slice_(src: Any, coord: Any, *, loc: object = None, ip: object = None) -> Any:
    """Return the modes of a tuple, layout or tensor that a coordinate keeps.

    ``slice_((4,(2,3)), (0,None))`` is ``((2,3),)``. A nested slice is spliced into its parent: ``((None,0),None)`` of
    ``((2,3),4)`` is ``(2,4)``. Slicing a plain layout drops the offset; a composed layout and a tensor keep it.

    Args:
        src: the tuple, layout or tensor.
        coord: numbers for the modes to fix, None for those to keep. None alone keeps everything.
    """
    if isinstance(src, Layout):
        return fast_layout(filter_modes(coord, src._shape, True), filter_modes(coord, src._stride, True))
    if hasattr(src, "_slice"):
        return src._slice(coord)
    return filter_modes(coord, src, True)


def slice_and_offset(coord: object, src: object, *, loc: object = None, ip: object = None) -> tuple[Any, Any]:
    """Return the slice of a layout, and the offset of its first element.

    Args:
        coord: numbers for the modes to fix, None for those to keep.
        src: a layout. A composed layout keeps the offset inside, and the second result is 0.
    """
    if isinstance(src, Layout):
        return slice_(src, coord), crd2idx(coord, src)
    return slice_(src, coord), 0


def dice(src: object, dicer: object, *, loc: object = None, ip: object = None) -> Any:
    """Return the modes of a tuple or layout that have a number in ``dicer``: ``dice((128,64,32), (1,None,1))`` is
    ``(128,32)``.

    Args:
        src: the tuple or layout.
        dicer: numbers for the modes to keep, None for those to drop: the reverse of `slice_`.
    """
    if isinstance(src, (tuple, int)) or src is None or is_dynamic_leaf(src):
        return filter_modes(dicer, src, False)
    return layouts_of(
        src, lambda x: fast_layout(filter_modes(dicer, x._shape, False), filter_modes(dicer, x._stride, False)), "dice"
    )


def domain_offset(coord: object, tensor: T, *, loc: object = None, ip: object = None) -> T:
    """Return the same tensor or composed layout with its origin moved. Its shape does not change.

    Args:
        coord: the coordinate of the new origin.
        tensor: a tensor or composed layout; a plain layout has no origin, and raises TypeError.
    """
    shift = getattr(tensor, "_domain_offset", None)
    if shift is None:
        raise DSLUserCodeTypeError(
            f"domain_offset needs a tensor or a composed layout, which have an origin to move, but got {tensor!r}; "
            "for the offset alone write crd2idx(coord, layout)"
        )
    return shift(coord)


def _is_tree(x: object) -> bool:
    return isinstance(x, (tuple, int, list)) or x is None or is_dynamic_leaf(x)


def get(obj: object, mode: object = (), **kwargs: object) -> Any:
    """Return one mode of a tuple, layout or composed layout: ``get(x, mode=[1,0])``.

    Args:
        obj: the tuple or layout.
        mode: the path of the mode: ``[1]`` is the second one, ``[1,0]`` the first one inside of that. An empty path is
            all.
    """
    path = mode_path(mode)
    if not path:
        return obj
    if isinstance(obj, Layout):
        return fast_layout(tree_get(obj._shape, path), tree_get(obj._stride, path))
    if hasattr(obj, "_map_layout"):
        return layouts_of(obj, lambda x: get(x, path), "get")
    return tree_get(tuple(obj) if isinstance(obj, list) else obj, path)


def select(obj: T, mode: object = (), **kwargs: object) -> T:
    """Return some top-level modes in a given order: ``select((2,3,4), mode=[2,0])`` is ``(4,2)``.

    Args:
        obj: a tuple, layout or tensor.
        mode: the numbers of the modes, in the order of the result.
    """
    modes = mode_path(mode)
    if _is_tree(obj) or (not hasattr(obj, "_map_layout") and not isinstance(obj, Layout)):
        return tuple(tree_get(obj, (m,)) for m in modes)
    return layouts_of(
        obj,
        lambda x: fast_layout(
            tuple(tree_get(x._shape, (m,)) for m in modes), tuple(tree_get(x._stride, (m,)) for m in modes)
        ),
        "select",
    )


def flatten(a: T, *, loc: object = None, ip: object = None) -> T:
    """Return ``a``, a tuple, layout or tensor, without nesting; a leaf stays a leaf."""
    if _is_tree(a) or not (isinstance(a, Layout) or hasattr(a, "_map_layout")):
        return flatten_tree(a)
    return layouts_of(a, lambda x: fast_layout(flatten_tree(x._shape), flatten_tree(x._stride)), "flatten")


def group_modes(input: T, begin: int, end: int | None = None, *, loc: object = None, ip: object = None) -> T:
    """Return a tuple, layout or tensor with a range of its modes nested into one.

    ``group_modes((2,3,4), 0, 2)`` is ``((2,3),4)``.

    Args:
        input: the tuple, layout or tensor. A leaf becomes a tuple of one.
        begin: the first mode of the range; negative numbers count from the end.
        end: the mode after the range, None for all that follow. An empty range raises LayoutError.
    """

    def group(t: object) -> Any:
        modes = wrap(t)
        count = len(modes)
        first = begin + count if begin < 0 else begin
        last = count if end is None else end + count if end < 0 else end
        if not 0 <= first < last <= count:
            raise LayoutError(
                f"group_modes needs 0 <= begin < end <= {count}, the number of modes of {pretty_str(t)}, but got "
                f"begin = {begin} and end = {end}"
            )
        return (*modes[:first], modes[first:last], *modes[last:]) if isinstance(t, tuple) else modes

    if _is_tree(input):
        return group(input)
    return layouts_of(input, lambda x: fast_layout(group(x._shape), group(x._stride)), "group_modes")


def _extend(input: object, elem: object, up_to_rank: int | None, in_front: bool) -> Any:
    what = "prepend" if in_front else "append"

    def join(t: object, item: object) -> Any:
        modes = wrap(t)
        if up_to_rank is None:
            count = 1
        else:
            count = up_to_rank - len(modes)
            if count < 0:
                raise LayoutError(f"{what} up to rank {up_to_rank} of {pretty_str(t)}, which has {len(modes)} modes")
            if count == 0:
                return t
        return (item,) * count + modes if in_front else modes + (item,) * count

    if _is_tree(input):
        return join(input, elem)
    if not isinstance(elem, Layout):
        raise DSLUserCodeTypeError(f"{what} to a layout needs a layout as the new mode, but got {elem!r}")
    return layouts_of(input, lambda x: fast_layout(join(x._shape, elem._shape), join(x._stride, elem._stride)), what)


def append(input: T, elem: object, up_to_rank: int | None = None, *, loc: object = None, ip: object = None) -> T:
    """Return ``input`` with ``elem`` as a new last mode, or with as many of them as reach ``up_to_rank`` modes."""
    return _extend(input, elem, up_to_rank, in_front=False)


def prepend(input: T, elem: object, up_to_rank: int | None = None, *, loc: object = None, ip: object = None) -> T:
    """Return ``input`` with ``elem`` as a new first mode, or with as many of them as reach ``up_to_rank`` modes."""
    return _extend(input, elem, up_to_rank, in_front=True)


UNIT = fast_layout(1, 0)


def append_ones(t: T, up_to_rank: int | None = None, *, loc: object = None, ip: object = None) -> T:
    """Return ``t`` with one mode ``1:0`` (a tuple: with 1) added behind, or enough of them for ``up_to_rank`` modes."""
    return append(t, 1 if _is_tree(t) else UNIT, up_to_rank)


def prepend_ones(t: T, up_to_rank: int | None = None, *, loc: object = None, ip: object = None) -> T:
    """Return ``t`` with one mode ``1:0`` (a tuple: with 1) added in front, or enough of them for ``up_to_rank`` modes."""
    return prepend(t, 1 if _is_tree(t) else UNIT, up_to_rank)
