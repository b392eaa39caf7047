"""What the layout tests share: a dynamic integer that knows its value, and random layouts."""

from __future__ import annotations

import os
from math import gcd, prod
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kiln.cute.layout.int_tuple import flatten_to_tuple, unflatten
from kiln.cute.layout.layout import Layout

LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")


def cases(weight: int):
    """How often a property is tried: half its weight by default, six times with KILN_LONG_TESTS=1 (30,000 cases in all)."""
    return settings(
        max_examples=6 * weight if LONG else max(weight // 2, 20),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


class Undecided(Exception):
    """The code under test asked a dynamic value for a Python truth value or number."""


class SymBool:
    """A dynamic condition. It knows its value for the tests, but refuses to be a Python bool."""

    def __init__(self, value: bool):
        self.value = bool(value)

    def __bool__(self):
        raise Undecided("bool of a dynamic condition")

    def __and__(self, other):
        return SymBool(self.value & value_of(other))

    __rand__ = __and__

    def __eq__(self, other):
        return SymBool(self.value == value_of(other))

    __hash__ = None  # type: ignore[assignment]

    def _leaf_select(self, a, b):
        return SymInt(value_of(a) if self.value else value_of(b), gcd(div_of(a), div_of(b)) or 1)


class SymInt:
    """A dynamic integer: arithmetic works and is counted, but nothing may depend on its value."""

    _is_dynamic_int_leaf = True
    emitted = 0  # how many operations were performed on dynamic values

    def __init__(self, value: int, divisibility: int = 1, width: int = 32):
        assert value % divisibility == 0, f"{value} is not a multiple of {divisibility}"
        self.value = value
        self.divisibility = divisibility
        self.width = width

    def _make(self, value, divisibility=1):
        SymInt.emitted += 1
        return SymInt(value, divisibility or 1)

    def __add__(self, other):
        return self._make(self.value + value_of(other), gcd(self.divisibility, div_of(other)))

    __radd__ = __add__

    def __sub__(self, other):
        return self._make(self.value - value_of(other), gcd(self.divisibility, div_of(other)))

    def __rsub__(self, other):
        return self._make(value_of(other) - self.value, gcd(self.divisibility, div_of(other)))

    def __mul__(self, other):
        if not isinstance(other, (int, SymInt)):
            return NotImplemented
        return self._make(self.value * value_of(other), self.divisibility * div_of(other))

    __rmul__ = __mul__

    def __floordiv__(self, other):
        exact = isinstance(other, int) and self.divisibility % other == 0
        return self._make(self.value // value_of(other), self.divisibility // other if exact else 1)

    def __rfloordiv__(self, other):
        return self._make(value_of(other) // self.value)

    def __mod__(self, other):
        return self._make(self.value % value_of(other), gcd(self.divisibility, div_of(other)))

    def __rmod__(self, other):
        return self._make(value_of(other) % self.value, gcd(self.divisibility, div_of(other)))

    def __and__(self, other):
        return self._make(self.value & value_of(other))

    __rand__ = __and__

    def __or__(self, other):
        return self._make(self.value | value_of(other))

    __ror__ = __or__

    def __xor__(self, other):
        return self._make(self.value ^ value_of(other))

    def __rshift__(self, other):
        return self._make(self.value >> value_of(other))

    def __lshift__(self, other):
        return self._make(self.value << value_of(other))

    def __rlshift__(self, other):
        return self._make(value_of(other) << self.value)

    def __neg__(self):
        return self._make(-self.value, self.divisibility)

    def __lt__(self, other):
        return SymBool(self.value < value_of(other))

    def __gt__(self, other):
        return SymBool(self.value > value_of(other))

    def __eq__(self, other):
        return SymBool(self.value == value_of(other))

    __hash__ = None  # type: ignore[assignment]

    def _leaf_min(self, other):
        return self._make(min(self.value, value_of(other)), gcd(self.divisibility, div_of(other)))

    def _leaf_max(self, other):
        return self._make(max(self.value, value_of(other)), gcd(self.divisibility, div_of(other)))

    def __bool__(self):
        raise Undecided("bool of a dynamic integer")

    def __index__(self):
        raise Undecided("the value of a dynamic integer")

    __int__ = __index__

    def __repr__(self):
        return f"SymInt({self.value}, div={self.divisibility})"


def value_of(x) -> Any:
    """The value of a leaf or condition, dynamic or not."""
    return x.value if isinstance(x, (SymInt, SymBool)) else x


def div_of(x):
    return x.divisibility if isinstance(x, SymInt) else abs(x)


def concrete(x) -> Any:
    """A tree, layout or composed layout with every dynamic leaf replaced by its value."""
    if isinstance(x, tuple):
        return tuple(concrete(v) for v in x)
    if isinstance(x, (SymInt, SymBool)):
        return x.value
    if hasattr(x, "_with_leaves"):
        return x._with_leaves([v.value for v in x._leaves()])
    return x


def offsets(layout) -> list[Any]:
    """All values of a layout, by index."""
    layout = concrete(layout)
    return [layout(i) for i in range(prod(flatten_to_tuple(layout.shape)))]


# Random layouts ---------------------------------------------------------------------------------


@st.composite
def profiles(draw, leaves):
    """A nesting for `leaves` items."""
    if leaves == 1 and draw(st.integers(0, 3)):
        return 0
    modes = []
    left = leaves
    while left:
        take = draw(st.integers(1, left))
        if take == 1 or draw(st.booleans()):
            modes.extend([0] * take)
        else:
            modes.append((0,) * take)
        left -= take
    return tuple(modes)


@st.composite
def shapes(draw, max_leaves=4, max_size=96, extents=st.integers(1, 9)):
    """A nested shape with a bounded number of elements."""
    leaves = draw(st.lists(extents, min_size=1, max_size=max_leaves))
    while prod(leaves) > max_size:
        leaves[leaves.index(max(leaves))] = 1
    return unflatten(leaves, draw(profiles(len(leaves))))


@st.composite
def layouts(draw, max_leaves=4, max_size=96, extents=st.integers(1, 9), strides=st.integers(0, 40)):
    """Any layout: nested, with repeated and overlapping offsets."""
    shape = draw(shapes(max_leaves, max_size, extents))
    if draw(st.booleans()):
        return draw(compact_layouts_of(shape))
    count = len(flatten_to_tuple(shape))
    return Layout(shape, unflatten(draw(st.lists(strides, min_size=count, max_size=count)), shape))


@st.composite
def compact_layouts_of(draw, shape):
    """A permuted compact layout of the shape."""
    flat = flatten_to_tuple(shape)
    strides = [0] * len(flat)
    current = 1
    for i in draw(st.permutations(range(len(flat)))):
        strides[i] = current
        current *= flat[i]
    return Layout(shape, unflatten(strides, shape))


def compact_layouts(max_leaves=4, max_size=96, extents=st.integers(1, 9)):
    return shapes(max_leaves, max_size, extents).flatmap(compact_layouts_of)


@st.composite
def injective_layouts(draw, max_leaves=4, max_size=64, extents=st.integers(1, 6)):
    """A layout that maps different indices to different offsets, with gaps."""
    shape = draw(shapes(max_leaves, max_size, extents))
    flat = flatten_to_tuple(shape)
    strides = [0] * len(flat)
    current = 1
    for i in draw(st.permutations(range(len(flat)))):
        current *= draw(st.integers(1, 3))
        strides[i] = current
        current *= flat[i]
    return Layout(shape, unflatten(strides, shape))


@st.composite
def dynamic(draw, tree, share=None):
    """The tree or layout with some of its int leaves (all, none or a share) dynamic, with some divisibility."""
    share = draw(st.sampled_from(["none", "all", "some"])) if share is None else share

    def leaf(x):
        if not isinstance(x, int) or x < 0 or share == "none" or (share == "some" and draw(st.booleans())):
            return x
        if x == 0:
            return SymInt(0, draw(st.sampled_from([1, 2, 4])))
        divisors = [d for d in range(1, x + 1) if x % d == 0]
        return SymInt(x, draw(st.sampled_from(divisors)))

    def walk(x):
        return tuple(walk(v) for v in x) if isinstance(x, tuple) else leaf(x)

    if isinstance(tree, Layout):
        # Extents of 0 do not occur and strides of 0 stay static: that a mode repeats is part of the type.
        return Layout(walk(tree.shape), _map_strides(walk, tree.stride))
    return walk(tree)


def _map_strides(walk, stride):
    if isinstance(stride, tuple):
        return tuple(_map_strides(walk, d) for d in stride)
    return 0 if isinstance(stride, int) and stride == 0 else walk(stride)


def dynamic_layouts(base, share=None):
    return base.flatmap(lambda x: dynamic(x, share))


def admissible(extents, count, stride):
    """Whether count steps of stride through flat extents are linear in every mode, without any merging."""
    for n in extents[:-1]:
        if count == 1:
            return True
        if stride % n == 0:
            stride //= n
            continue
        if (count - 1) * stride < n:
            return True
        if n % stride or count % (n // stride):
            return False
        count //= n // stride
        stride = 1
    return True


def composable(extents, modes):
    """Whether every mode (count, stride) is admissible and their sum never carries from one extent to the next."""
    tops = [(s - 1) * d for s, d in modes]
    for n in extents[:-1]:
        if sum(t % n for t in tops) >= n:
            return False
        tops = [t // n for t in tops]
    return all(admissible(extents, s, d) for s, d in modes)
