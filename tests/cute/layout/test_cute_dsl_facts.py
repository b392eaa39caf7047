"""Agreement with CuTe DSL on random layouts, by answers it printed.

The first line of `cute_dsl_facts.json` names what a line holds: two layouts `a` and `b`, a tile, an index, then one answer
to each question below; null where the question was refused.
"""

import json
from itertools import chain, count, repeat
from pathlib import Path

import pytest

from kiln.cute import layout as cute

NAMES, *LINES = json.loads((Path(__file__).parent / "cute_dsl_facts.json").read_text())


def tree(x):
    return tuple(tree(v) for v in x) if isinstance(x, list) else x


def by_mode(shape, values):
    """One of the values for each mode of a tuple, the first for a leaf."""
    return tuple(value for _, value in zip(shape, values)) if isinstance(shape, tuple) else next(iter(values))


def first_mode(shape, first, others):
    return by_mode(shape, chain([first], repeat(others)))


def through_index(c):
    coord = cute.idx2crd(c.index, c.shape)
    return coord, cute.crd2idx(coord, c.a)


class Case:
    """The inputs of one line."""

    def __init__(self, shape, stride, shape2, stride2, tile, index):
        self.shape, self.shape2, self.tile, self.index = shape, shape2, tile, index
        self.a = cute.make_layout(shape, stride=stride)
        self.b = cute.make_layout(shape2, stride=stride2)


QUESTIONS = {
    "layout": lambda c: c.a,
    "coalesce": lambda c: cute.coalesce(c.a),
    "coalesce_by_mode": lambda c: cute.coalesce(c.a, target_profile=by_mode(c.shape, repeat(1))),
    "size_cosize": lambda c: (cute.size(c.a), cute.cosize(c.a), cute.rank(c.a), cute.depth(c.a)),
    "composition": lambda c: cute.composition(c.a, c.b),
    "composition_tile": lambda c: cute.composition(c.a, c.tile),
    "complement": lambda c: cute.complement(c.b, 4 * cute.size(c.shape)),
    "right_inverse": lambda c: cute.right_inverse(c.a),
    "left_inverse": lambda c: cute.left_inverse(c.a),
    "logical_divide": lambda c: cute.logical_divide(c.a, c.b),
    "logical_divide_tile": lambda c: cute.logical_divide(c.a, c.tile),
    "zipped_divide_tile": lambda c: cute.zipped_divide(c.a, c.tile),
    "tiled_divide_tile": lambda c: cute.tiled_divide(c.a, c.tile),
    "flat_divide_tile": lambda c: cute.flat_divide(c.a, c.tile),
    "logical_product": lambda c: cute.logical_product(c.b, c.a),
    "zipped_product": lambda c: cute.zipped_product(c.b, c.a),
    "tiled_product": lambda c: cute.tiled_product(c.b, c.a),
    "flat_product": lambda c: cute.flat_product(c.b, c.a),
    "blocked_product": lambda c: cute.blocked_product(c.b, c.a),
    "raked_product": lambda c: cute.raked_product(c.b, c.a),
    "crd": through_index,
    "flatten": lambda c: cute.flatten(c.a),
    "filter_zeros": lambda c: cute.filter_zeros(c.a),
    "filter": lambda c: cute.filter(c.a),
    "group_modes": lambda c: cute.group_modes(c.a, 0, min(2, cute.rank(c.a))),
    "select": lambda c: cute.select(c.a, mode=[0]),
    "get": lambda c: cute.get(c.a, mode=[0]),
    "append": lambda c: cute.append(c.a, c.b),
    "prepend": lambda c: cute.prepend(c.a, c.b),
    "recast_down": lambda c: cute.recast_layout(16, 32, c.a),
    "recast_up": lambda c: cute.recast_layout(32, 16, c.a),
    "ordered": lambda c: cute.make_ordered_layout(c.shape, by_mode(c.shape, count())),
    "tile_to_shape": lambda c: cute.tile_to_shape(c.b, tuple(16 * n for n in c.tile), tuple(range(len(c.tile)))),
    "ceil_div": lambda c: cute.ceil_div(c.shape, c.tile if isinstance(c.shape, tuple) else 3),
    "shape_div": lambda c: cute.shape_div(c.shape, c.tile),
    "max_common_layout": lambda c: cute.max_common_layout(c.a, c.b),
    "max_common_vector": lambda c: cute.max_common_vector(c.a, c.b),
    "slice": lambda c: cute.slice_(c.a, first_mode(c.shape, None, 0)),
    "dice": lambda c: cute.dice(c.a, first_mode(c.shape, 1, None)) if isinstance(c.shape, tuple) else None,
    "is_static_congruent": lambda c: (
        cute.is_congruent(c.shape, c.shape2),
        cute.is_weakly_congruent(c.shape, c.shape2),
    ),
}

# What is answered here although CuTe DSL refuses it, as docs/layouts.md says.
ANSWERED = {"blocked_product", "raked_product", "shape_div", "max_common_layout", "max_common_vector"}


@pytest.mark.parametrize("question", NAMES[6:])
def test_agreement_with_cute_dsl(question):
    ask, column = QUESTIONS[question], NAMES.index(question)
    for line in LINES:
        case, expected = Case(*map(tree, line[:6])), line[column]
        if expected is not None:
            assert str(ask(case)) == expected, f"{question} of {line[:6]}"
        elif question not in ANSWERED:
            with pytest.raises(cute.LayoutError):
                ask(case)
