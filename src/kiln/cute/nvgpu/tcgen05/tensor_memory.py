"""Layouts of operands in tensor memory: accumulators, and A.

Tensor memory of a CTA has 128 lanes of 512 columns, each of 32 bits, and the address `lane << 16 | column`. A pointer
counts elements: with elements of w bits a lane is `65536 * 32 / w` of them further on, a column `32 / w`.
"""

from __future__ import annotations

from typing import Any

from ....base_dsl.diagnostics import type_error
from ...layout.algebra import composition
from ...layout.int_tuple import pretty_str, product
from ...layout.layout import Layout, cosize, make_layout
from ...layout.leaf import LayoutError
from ...layout.recast import recast_layout
from ...tensor.pointer import AddressSpace, element_bits
from ...tensor.tensor import TracedTensor

__all__ = ["find_tmem_tensor_col_offset"]

LANES = 128
COLUMNS = 512
_LANE = 1 << 16
_WORD = 32


def lane_stride(dtype: object) -> int:
    """Return the elements from one lane to the next."""
    return _LANE * _WORD // element_bits(dtype)


def accumulator_layout(op: Any, shape: Any) -> Layout:
    """Return the layout of an accumulator ((M, N) of one CTA, rest of M, rest of N, ...) in tensor memory.

    An element takes a whole column, also one of 16 bits. 128 rows of a CTA are in 128 lanes. 64 rows of one CTA are in
    16 of each 32 lanes; the next MMA or stage is in the other 16. 64 rows of a CTA of a pair are in the lower 64 lanes,
    and the second half of the columns is in the upper 64.
    """
    m, n, _ = op.shape_mnk
    ctas = op.cta_group.value
    rows = m // ctas
    _check_first(shape, (rows, n), "C", op)
    lane = lane_stride(op.acc_dtype)
    column = _WORD // element_bits(op.acc_dtype)
    if rows == LANES:
        return _with_rest(make_layout((rows, n), stride=(lane, column)), shape, n * column)
    if ctas == 2:
        half = n // 2
        first = make_layout((rows, (half, 2)), stride=(lane, (column, 64 * lane)))
        return _with_rest(first, shape, half * column)
    first = make_layout(((16, rows // 16), n), stride=((lane, 32 * lane), column))
    return _with_rest(first, shape, n * column, 16 * lane if op.a_src.name == "SMEM" else 0)


def operand_layout(op: Any, shape: Any) -> Layout:
    """Return the layout of A ((M, K) of one CTA, rest of M, rest of K, ...) in tensor memory: rows in the lanes of the
    accumulator's rows, elements packed into columns. 64 rows of a CTA of a pair are there twice, in all 128 lanes."""
    m, _, k = op.shape_mnk
    ctas = op.cta_group.value
    rows = m // ctas
    _check_first(shape, (rows, k), "A", op)
    lane = lane_stride(op.a_dtype)
    if rows == LANES or ctas == 2:
        first = make_layout((LANES, k), stride=(lane, 1))
    else:
        first = make_layout(((16, rows // 16), k), stride=((lane, 32 * lane), 1))
    return _with_rest(first, shape, k)


def _check_first(shape: object, expected: tuple[int, int], operand: str, op: object) -> None:
    first = shape[0] if isinstance(shape, tuple) else shape
    if not isinstance(first, tuple) or tuple(product(x) for x in first) != expected:
        raise type_error(
            f"make_fragment_{operand} of {type(op).__name__} takes the shape {pretty_str(shape)}",
            f"mode 0 is {pretty_str(expected)}, as in what partition_shape_{operand} returns",
        )


def _with_rest(first: Layout, shape: tuple[object, ...], step: int, other_lanes: int = 0) -> Layout:
    """Return a layout with further modes, each call `step` elements after the one before; with `other_lanes` each
    second one is as far away."""
    rest = make_layout(tuple(shape[1:]))
    if not other_lanes:
        stepped = composition(make_layout(product(rest.shape), stride=step), rest)
        return make_layout([first, *stepped])
    count = product(rest.shape)
    places = make_layout((2, (count + 1) // 2), stride=(other_lanes, step))
    try:
        stepped = composition(places, rest)
    except LayoutError:  # an odd number of calls before the next mode
        return _with_rest(first, shape, step)
    return make_layout([first, *stepped])


def find_tmem_tensor_col_offset(tmem_tensor: object, *, loc: object = None, ip: object = None) -> int:
    """Return how many columns `tmem_tensor`, a tensor in tensor memory, takes: the next one can begin there."""
    if not isinstance(tmem_tensor, TracedTensor) or tmem_tensor.memspace is not AddressSpace.tmem:
        raise type_error(f"find_tmem_tensor_col_offset takes a tensor in tensor memory, got {tmem_tensor}")
    words = recast_layout(_WORD, element_bits(tmem_tensor.element_type), tmem_tensor.layout)
    return cosize(words) & (_LANE - 1)
