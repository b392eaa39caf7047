# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportReturnType=false, reportUnnecessaryIsInstance=false
"""Integer trees: the shapes, strides and coordinates every layout is made of.

A tree is a leaf (see :mod:`.leaf`) or a tuple of trees. Functions here take Python ints and dynamic
leaves alike and keep static what is static.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import gcd
from typing import TYPE_CHECKING, Any

from .leaf import (
    DynamicInt,
    LayoutError,
    ModeError,
    as_leaf,
    get_divisibility,
    is_dynamic_leaf,
    is_integer,
    is_one,
    leaf_add,
    leaf_and,
    leaf_ceil_div,
    leaf_equal,
    leaf_mul,
    leaf_select,
    leaf_str,
    multiplied_extents,
    surely_equal,
)

if TYPE_CHECKING:
    from ...base_dsl.numeric.operator_types import Extent
    from ...base_dsl.typing import Boolean, Integer

__all__ = [
    "Coord",
    "IntTuple",
    "LayoutError",
    "Shape",
    "XTuple",
    "elem_less",
    "elem_scale",
    "find",
    "find_if",
    "flatten_to_tuple",
    "front",
    "get_divisibility",
    "get_leaves",
    "has_underscore",
    "increment_coord",
    "inner_product",
    "is_congruent",
    "is_int_tuple",
    "is_integer",
    "is_weakly_congruent",
    "product",
    "product_each",
    "product_like",
    "repeat",
    "repeat_as_tuple",
    "repeat_like",
    "round_up",
    "shape_div",
    "signum",
    "transform_apply",
    "transform_leaf",
    "tuple_cat",
    "unflatten",
    "unwrap",
    "wrap",
]


# Programs use these names in annotations, and a name inside quotes would be looked up in the program's own module.
# So the nested part is not spelled out.
if TYPE_CHECKING:
    IntTuple = int | Integer | tuple[Any, ...]
    Shape = int | Integer | tuple[Any, ...] | list[Any]
    Coord = int | Integer | None | tuple[Any, ...] | list[Any]
else:
    IntTuple = int | DynamicInt | tuple[Any, ...]
    Shape = int | DynamicInt | tuple[Any, ...]
    Coord = int | DynamicInt | None | tuple[Any, ...]
XTuple = Any


def as_int_tuple(x: object, what: str = "an integer tuple") -> Any:
    """Return ``x`` as a tree: lists become tuples, leaves are checked by :func:`as_leaf`."""
    if type(x) is int:
        return x
    if isinstance(x, (tuple, list)):
        return tuple([v if type(v) is int else as_int_tuple(v, what) for v in x])
    return as_leaf(x, what)


def flatten_to_tuple(a: object) -> tuple[Any, ...]:
    """Return the leaves of ``a`` as a flat tuple: ``(1,(2,3))`` gives ``(1,2,3)``, ``4`` gives ``(4,)``."""
    if not isinstance(a, tuple):
        return (a,)
    for v in a:
        if isinstance(v, tuple):
            leaves: list[Any] = []
            _collect_leaves(a, leaves)
            return tuple(leaves)
    return a


def _collect_leaves(a: tuple[object, ...], leaves: list[Any]) -> None:
    # a list that is appended to: a generator costs three times as much, and every trace is full of this
    for v in a:
        if isinstance(v, tuple):
            _collect_leaves(v, leaves)
        else:
            leaves.append(v)


def flatten_tree(a: object) -> Any:
    """Return :func:`flatten_to_tuple`'s tuple, but a leaf stays a leaf."""
    return flatten_to_tuple(a) if isinstance(a, tuple) else a


def get_leaves(value: object) -> tuple[Any, ...]:
    """Return the leaves of ``value``, a nested tuple, from left to right as a flat tuple."""
    return flatten_to_tuple(value)


def unflatten(sequence: object, profile: object, *, loc: object = None, ip: object = None) -> tuple[Any, ...]:
    """Return the items of a flat sequence, nested as ``profile`` is.

    ``unflatten((1,2,3), (0,(0,0)))`` is ``(1,(2,3))``.

    Args:
        sequence: the items; anything that can be iterated.
        profile: a nested tuple with as many leaves as there are items, else LayoutError is raised.
    """
    items = tuple(sequence) if isinstance(sequence, (tuple, list)) else (sequence,)
    rest = iter(items)

    def build(p: object) -> Any:
        return tuple(build(v) for v in p) if isinstance(p, tuple) else next(rest)

    count = len(flatten_to_tuple(profile))
    if len(items) != count:
        raise LayoutError(
            f"unflatten needs one item per leaf of the profile, but got {len(items)} items for "
            f"{pretty_str(profile)}, which has {count} leaves"
        )
    return build(profile)


def pretty_str(t: object) -> str:
    """Return a tree `t` as CuTe prints it: ``(1,(2,?{div=8}))``; None is ``_``."""
    if isinstance(t, tuple):
        return "(" + ",".join(pretty_str(v) for v in t) + ")"
    return leaf_str(t)


def is_int_tuple(a: object) -> bool:
    """Return whether ``a`` is a tree of integers, static or dynamic."""
    return all(is_integer(v) for v in flatten_to_tuple(a))


def is_static_tree(t: object) -> bool:
    """Return whether every leaf is static. None, strings and other non-integer leaves count as static."""
    if isinstance(t, tuple):
        for v in t:  # noqa: SIM110  a generator costs twice as much
            if type(v) is not int and not is_static_tree(v):
                return False
        return True
    if isinstance(t, int):
        return True
    if is_dynamic_leaf(t):
        return False
    query = getattr(t, "is_static", None)
    return bool(query()) if callable(query) else True


def has_underscore(a: object) -> bool:
    """Return whether the coordinate ``a`` has a None leaf, that is, whether it slices."""
    if isinstance(a, tuple):
        return any(has_underscore(v) for v in a)
    return a is None


def tree_rank(t: object) -> int:
    """Return the number of modes of a tree: 1 for a leaf."""
    return len(t) if isinstance(t, tuple) else 1


def tree_depth(t: object) -> int:
    """Return 0 for a leaf, 1 more than the deepest element for a tuple."""
    if not isinstance(t, tuple):
        return 0
    return 1 + max((tree_depth(v) for v in t), default=0)


def tree_get(t: object, path: Iterable[int]) -> Any:
    """Return the subtree at ``path``; index 0 of a leaf is the leaf itself."""
    for i in path:
        if isinstance(t, tuple):
            if not -len(t) <= i < len(t):
                raise ModeError(f"mode {i} is out of range for {pretty_str(t)}, which has {len(t)} modes")
            t = t[i]
        elif i not in (0, -1):
            raise ModeError(f"mode {i} is out of range for {leaf_str(t)}, which has 1 mode")
    return t


def tree_equal(a: Any, b: Any) -> Any:
    """Return whether two trees are equal: a bool where it is known, otherwise a dynamic Boolean."""
    if isinstance(a, tuple) != isinstance(b, tuple):
        return False
    if not isinstance(a, tuple):
        if is_integer(a) and is_integer(b):
            return leaf_equal(a, b)
        return a is b or a == b
    if len(a) != len(b):
        return False
    result: Any = True
    dynamic: list[Any] = []
    for x, y in zip(a, b):
        # Static differences first: they decide without emitting any comparison.
        if not may_be_equal(x, y):
            return False
        dynamic.append((x, y))
    for x, y in dynamic:
        result = leaf_and(result, tree_equal(x, y))
    return result


def may_be_equal(a: object, b: object) -> bool:
    """Return False if two trees are known to differ in structure or in a static leaf."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(may_be_equal(x, y) for x, y in zip(a, b))
    if isinstance(a, tuple) or isinstance(b, tuple):
        return False
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if is_dynamic_leaf(a) or is_dynamic_leaf(b):
        return True
    if isinstance(a, int) or isinstance(b, int):
        return False
    match = getattr(a, "_may_be_equal", None)
    return bool(match(b)) if match is not None else a == b


def tree_hash(t: object) -> int:
    """Return a hash of a tree; a dynamic leaf hashes by identity, because its value is not known."""
    if isinstance(t, tuple):
        return hash(tuple(tree_hash(v) for v in t))
    if is_dynamic_leaf(t):
        return hash(("?", id(t)))
    return hash(t)


def dynamic_leaves(t: object) -> tuple[Any, ...]:
    """Return the dynamic leaves of a tree, left to right (those inside scaled basis elements too)."""
    leaves: list[Any] = []
    for v in flatten_to_tuple(t):
        if is_dynamic_leaf(v):
            leaves.append(v)
        elif not isinstance(v, int):
            inner = getattr(v, "_leaves", None)
            if inner is not None:
                leaves.extend(inner())
    return tuple(leaves)


def with_dynamic_leaves(t: object, leaves: Iterable[object]) -> Any:
    """Return the tree with its dynamic leaves, left to right, replaced by ``leaves``."""
    rest = leaves if isinstance(leaves, Iterator) else iter(leaves)

    def replace(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(replace(x) for x in v)
        if is_dynamic_leaf(v):
            return next(rest)
        if not isinstance(v, int) and hasattr(v, "_with_leaves"):
            return v._with_leaves(rest)
        return v

    return replace(t)


def product(a: object, *, loc: object = None, ip: object = None) -> Extent:
    """Return all leaves of ``a`` multiplied: ``product((2,(3,4)))`` is 24, ``product(())`` is 1."""
    if isinstance(a, int):
        return a
    if not isinstance(a, tuple):
        return a
    static = 1
    dynamic: Any = None
    for v in flatten_to_tuple(a):
        if isinstance(v, int):
            static *= v
        else:
            dynamic = v if dynamic is None else multiplied_extents(dynamic, v)
    return static if dynamic is None else multiplied_extents(dynamic, static)


def product_each(a: object, *, loc: object = None, ip: object = None) -> tuple[Extent, ...]:
    """Return every mode of ``a`` multiplied: ``product_each((2,(3,4)))`` is ``(2,12)``; ``5`` gives ``(5,)``."""
    return tuple(product(v) for v in a) if isinstance(a, tuple) else (product(a),)


def product_like(a: object, target_profile: object, *, loc: object = None, ip: object = None) -> Any:
    """Return ``a`` multiplied below each leaf of ``target_profile``: ``product_like(((2,3),4),(0,0))`` is
    ``(6,4)``."""
    if not isinstance(target_profile, tuple):
        return product(a)
    if not isinstance(a, tuple) or len(a) != len(target_profile):
        raise LayoutError(
            f"product_like needs {pretty_str(a)} to have the modes of the profile {pretty_str(target_profile)}"
        )
    return tuple(product_like(x, p) for x, p in zip(a, target_profile))


def inner_product(a: Any, b: Any, *, loc: object = None, ip: object = None) -> Extent:
    """Return the inner product of the leaves of ``a`` and ``b``, two tuples of the same nesting."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        _same_rank("inner_product", a, b)
        total: Any = 0
        for x, y in zip(a, b):
            total = leaf_add(total, inner_product(x, y))
        return total
    return leaf_mul(a, b)


def round_up(a: object, b: object, *, loc: object = None, ip: object = None) -> Extent:
    """Return ``a`` rounded up to a multiple of ``b``, leaf by leaf: ``round_up((5,8), (4,4))`` is ``(8,8)``.

    Modes that ``b`` lacks stay as they are. A divisor of 0 or below raises LayoutError.
    """
    if isinstance(a, tuple) or isinstance(b, tuple):
        if not isinstance(a, tuple) or not isinstance(b, tuple) or len(b) > len(a):
            raise LayoutError(f"round_up needs one divisor per mode, but got {pretty_str(a)} and {pretty_str(b)}")
        head = tuple(round_up(x, y) for x, y in zip(a, b))
        return head + a[len(head) :]
    if isinstance(b, int):
        if b <= 0:
            raise LayoutError(f"round_up needs a positive divisor, but got {b}")
        if get_divisibility(a) % b == 0:
            return a
    return leaf_mul(leaf_ceil_div(a, b), b)


def shape_div(lhs: object, rhs: object, *, loc: object = None, ip: object = None) -> Extent:
    """Return the quotient of shapes: ``shape_div(12, 4)`` is 3 and ``shape_div(4, 12)`` is 1, away from 0.

    Tuples divide mode by mode. A tuple over an int folds the divisor through the modes: ``shape_div((4,5,6), 40)`` is
    ``(1,1,3)``. An int over a tuple divides by its size.

    Args:
        lhs: the shape to divide, an int or a nested tuple.
        rhs: the divisor. Of two static leaves one must divide the other, else LayoutError is raised.
    """
    if isinstance(lhs, tuple):
        if isinstance(rhs, tuple):
            _same_rank("shape_div", lhs, rhs)
            return tuple(shape_div(x, y) for x, y in zip(lhs, rhs))
        result: list[Any] = []
        for x in lhs:
            result.append(shape_div(x, rhs))
            rhs = shape_div(rhs, product(x))
        return tuple(result)
    if isinstance(rhs, tuple):
        return shape_div(lhs, product(rhs))
    if isinstance(lhs, int) and isinstance(rhs, int):
        if rhs == 0 or (lhs % rhs != 0 and rhs % lhs != 0):
            raise LayoutError(f"shape_div needs one of two extents to divide the other, but got {lhs} and {rhs}")
        quotient = abs(lhs) // abs(rhs) or (1 if lhs else 0)
        return quotient if (lhs < 0) == (rhs < 0) else -quotient
    return leaf_ceil_div(lhs, rhs)


def elem_scale(a: Any, b: Any, *, loc: object = None, ip: object = None) -> Any:
    """Return every leaf of ``a`` times the size of the corresponding subtree of ``b``."""
    if isinstance(a, tuple):
        _same_rank("elem_scale", a, b)
        return tuple(elem_scale(x, y) for x, y in zip(a, b))
    return leaf_mul(a, product(b))


def elem_less(lhs: Any, rhs: Any, *, loc: object = None, ip: object = None) -> Boolean:
    """Return whether every leaf of ``lhs`` is below the one of ``rhs``: a bool if known, else a dynamic Boolean.

    Used as a bounds check: ``elem_less(coord, shape)``. The two must have the same modes.
    """
    if isinstance(lhs, tuple) or isinstance(rhs, tuple):
        _same_rank("elem_less", lhs, rhs)
        result: Any = True
        for x, y in zip(lhs, rhs):
            result = leaf_and(result, elem_less(x, y))
            if result is False:
                return False
        return result
    if lhs is rhs:
        return False
    return lhs < rhs if not isinstance(lhs, int) or isinstance(rhs, int) else rhs > lhs


def signum(a: object, *, loc: object = None, ip: object = None) -> int:
    """Return -1, 0 or 1 by the sign of ``a``, a static leaf; 1 for a dynamic one, which is assumed to be positive."""
    return (a > 0) - (a < 0) if isinstance(a, int) else 1


def _filter_tree(coord: object, t: object, keep_none: bool) -> tuple[Any, ...]:
    if isinstance(coord, tuple):
        if not isinstance(t, tuple) or len(coord) != len(t):
            raise LayoutError(f"the slice coordinate {pretty_str(coord)} does not fit {pretty_str(t)}")
        leaves: list[Any] = []
        for c, x in zip(coord, t):
            if isinstance(c, tuple):
                leaves += _filter_tree(c, x, keep_none)
            elif (c is None) == keep_none:
                leaves.append(x)
        return tuple(leaves)
    return (t,) if (coord is None) == keep_none else ()


def filter_modes(coord: object, t: object, keep_none: bool) -> Any:
    """Return the modes of a tree where ``coord`` has None (``keep_none``) or a number; nested ones are spliced in."""
    if isinstance(coord, tuple):
        return _filter_tree(coord, t, keep_none)
    return t if (coord is None) == keep_none else ()


def prefix_product(a: object, init: object = 1) -> Any:
    """Return compact strides for the shape ``a`` that start at ``init``, first mode fastest.

    A static extent of 1 gets stride 0, as in CuTe.
    """
    pending: Any = 1  # the extent of the last mode, multiplied in only when another mode needs it

    def visit(t: object) -> Any:
        nonlocal init, pending
        if isinstance(t, tuple):
            return tuple([visit(v) for v in t])
        if isinstance(t, int) and t == 1:
            return 0
        init = multiplied_extents(init, pending)
        pending = t
        return init

    return visit(a)


def increment_coord(coord: object, shape: object, *, loc: object = None, ip: object = None) -> tuple[Extent, ...]:
    """Return the coordinate after ``coord`` in ``shape``, first mode fastest; the last one wraps to all zeros.

    Works without branches on dynamic coordinates. ``coord`` and ``shape`` must be congruent.
    """
    if not is_congruent(coord, shape):
        raise LayoutError(
            f"increment_coord needs a coordinate congruent to the shape, but got {pretty_str(coord)} for {pretty_str(shape)}"
        )
    result: list[Any] = []
    carry: Any = True
    for c, s in zip(flatten_to_tuple(coord), flatten_to_tuple(shape)):
        if carry is False:
            result.append(c)
            continue
        wraps = True if is_one(s) else leaf_equal(leaf_add(c, 1), s)
        bumped = leaf_select(wraps, 0, leaf_add(c, 1))
        result.append(leaf_select(carry, bumped, c))
        carry = leaf_and(carry, wraps)
    return unflatten(result, shape)


def _same_rank(what: str, a: object, b: object) -> None:
    if not isinstance(a, tuple) or not isinstance(b, tuple) or len(a) != len(b):
        raise LayoutError(f"{what} needs two operands with the same modes, but got {pretty_str(a)} and {pretty_str(b)}")


def shape_of(x: object) -> Any:
    """Return the shape of a layout, tensor or vector; a tree as it is."""
    return x if isinstance(x, (tuple, int)) or x is None else getattr(x, "shape", x)


def is_congruent(a: object, b: object) -> bool:
    """Return whether ``a`` and ``b`` (tuples, or layouts and tensors by their shapes) have the same nesting."""
    return same_nesting(shape_of(a), shape_of(b))


def same_nesting(a: object, b: object) -> bool:
    """Return :func:`is_congruent` for trees alone."""
    if not isinstance(a, tuple):
        return not isinstance(b, tuple)
    if not isinstance(b, tuple) or len(a) != len(b):
        return False
    for x, y in zip(a, b):  # noqa: SIM110  a generator costs twice as much
        if (isinstance(x, tuple) or isinstance(y, tuple)) and not same_nesting(x, y):
            return False
    return True


def is_weakly_congruent(a: object, b: object) -> bool:
    """Return whether ``b`` refines the nesting of ``a``: every leaf of ``a`` meets a leaf or a subtree of ``b``."""
    a = shape_of(a)
    b = shape_of(b)
    if not isinstance(a, tuple):
        return True
    return isinstance(b, tuple) and len(a) == len(b) and all(is_weakly_congruent(x, y) for x, y in zip(a, b))


def transform_leaf(f: Callable[..., object], *args: object) -> Any:
    """Return ``f`` of the leaves of ``args``, congruent tuples: ``transform_leaf(max, (1,(5,2)), (3,(4,9)))``."""
    if isinstance(args[0], tuple):
        for other in args[1:]:
            _same_rank("transform_leaf", args[0], other)
        return tuple(transform_leaf(f, *items) for items in zip(*args))
    if any(isinstance(other, tuple) for other in args):
        raise LayoutError(
            "transform_leaf needs congruent operands, but got " + " and ".join(pretty_str(a) for a in args)
        )
    return f(*args)


def transform_apply(*args: object, f: Callable[..., object], g: Callable[..., object]) -> Any:
    """Return ``g(f(a0, b0), f(a1, b1), ...)`` over the modes of the tuples ``args``; a leaf counts as one mode.

    Args:
        args: tuples with the same number of modes.
        f: called with mode i of every tuple.
        g: called with all results of ``f``.
    """
    if isinstance(args[0], tuple):
        return g(*[f(*items) for items in zip(*args)])
    return g(f(*args))


def repeat(x: object, n: int) -> Any:
    """Return ``n`` copies of ``x`` as a tuple; ``x`` itself if ``n`` is 1."""
    if n < 1:
        raise LayoutError(f"repeat needs at least one copy, but got n = {n}")
    return x if n == 1 else (x,) * n


def repeat_as_tuple(x: object, n: int) -> tuple[Any, ...]:
    """Return ``n`` copies of ``x``, always as a tuple."""
    if n < 1:
        raise LayoutError(f"repeat_as_tuple needs at least one copy, but got n = {n}")
    return (x,) * n


def repeat_like(x: object, target: object) -> Any:
    """Return a tree with the nesting of ``target`` and ``x`` at every leaf: ``repeat_like(None, (2,(3,4)))``."""
    target = shape_of(target)
    return tuple(repeat_like(x, v) for v in target) if isinstance(target, tuple) else x


def wrap(x: object) -> tuple[Any, ...]:
    """Return ``x`` as it is if it is a tuple, else as a tuple of one."""
    return x if isinstance(x, tuple) else (x,)


def unwrap(x: object) -> Any:
    """Return the element of ``x``, a tuple of one, repeatedly; anything else as it is."""
    while isinstance(x, tuple) and len(x) == 1:
        x = x[0]
    return x


def tuple_cat(*tuples: object) -> tuple[Any, ...]:
    """Return the modes of all of ``tuples``, one after the other; a leaf counts as one mode."""
    return tuple(v for t in tuples for v in wrap(t))


def front(input: object, *, loc: object = None, ip: object = None) -> Any:
    """Return the first leaf of ``input``, a nested tuple."""
    while isinstance(input, tuple):
        if not input:
            raise LayoutError("front of an empty tuple")
        input = input[0]
    return input


def find_if(
    t: object, pred_fn: Callable[[Any], Any], hierarchical: bool = True, *, loc: object = None, ip: object = None
) -> Any:
    """Return where the first leaf is that satisfies a predicate: an index, a path (tuple) if it is nested, or None.

    Args:
        t: a nested tuple.
        pred_fn: called with one leaf at a time, from left to right.
        hierarchical: True; False is for tuples that are not nested, and says so of others.
    """
    path = _find_path(t, pred_fn)
    if path is None:
        return None
    if not hierarchical and any(isinstance(v, tuple) for v in wrap(t)):
        raise LayoutError(f"hierarchical=False of the nested tuple {t}: cute.flatten(t) has places that are one index")
    return path[0] if len(path) == 1 else path


def _find_path(t: object, pred_fn: Callable[[Any], Any]) -> tuple[int, ...] | None:
    for i, v in enumerate(wrap(t)):
        if isinstance(v, tuple):
            inner = _find_path(v, pred_fn)
            if inner is not None:
                return (i, *inner)
        elif pred_fn(v):
            return (i,)
    return None


def find(t: object, x: object, hierarchical: bool = True, *, loc: object = None, ip: object = None) -> Any:
    """Return where ``x`` first stands among the leaves of ``t``: an index, a path (tuple) if it is nested, or None.

    Args:
        t: a nested tuple.
        x: a leaf.
        hierarchical: True; False is for tuples that are not nested, and says so of others.
    """
    return find_if(t, lambda v: surely_equal(v, x) or (not is_integer(v) and v == x), hierarchical)


def common_divisor(values: Iterable[object]) -> int:
    """Return the largest number all values are known to be multiples of; 0 if there are none or all are 0."""
    result = 0
    for v in values:
        result = gcd(result, get_divisibility(v))
    return result
