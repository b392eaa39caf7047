"""Forms of MMAs of a warp with a sparse A (`mma.sp`). `hardware/mma_shapes.py` has shapes and types."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from ..hardware import mma_shapes
from .form import Form, Values
from .syntax import Immediate


def _words(matrix: str, fields: Values) -> int:
    """Return the registers of a lane for its part of a matrix: of A half of the elements are there."""
    if matrix in "cd":
        return 2 if fields["d_type"] == "f16" else 4
    bits = mma_shapes.BITS[str(fields[f"{matrix}_type"])]
    return int(str(fields["k"])) * bits // 128


def _wrong(fields: Mapping[str, object]) -> str:
    a, b, c, d = (str(fields[f"{matrix}_type"]) for matrix in "abcd")
    k = int(str(fields["k"]))
    if c != d:
        return f"accumulators of {c} and {d}: C and D are alike"
    if fields.get("saturates") and d != "s32":
        return f".satfinite with accumulators of {d}"
    if rule := mma_shapes.refusal("mma.sync", (16, 8, k), a, b, d, sparse=True):
        return rule
    selector = fields.get("selector")
    count = mma_shapes.sparse_selectors(a, k)
    if isinstance(selector, Immediate) and not 0 <= selector.value < count:
        return f"a sparsity selector that is not {' or '.join(map(str, range(count)))}"
    return ""


_ELEMENTS = "f16 bf16 tf32 e4m3 e5m2 s8 u8 s4 u4"
_ACCUMULATORS = "f32 f16 s32"


def _sparse(opcode: str) -> Form:
    return Form(
        opcode,
        ".sync.aligned.m16n8k<k>.row.col{.<saturates>}.<d_type>.<a_type>.<b_type>.<c_type>"
        " {d: out b32}, {a: b32}, {b: b32}, {c: b32}, metadata: b32, selector: imm",
        {matrix: functools.partial(_words, matrix) for matrix in "dabc"},
        _wrong,
        k=(8, 16, 32, 64, 128),
        saturates="satfinite",
        d_type=_ACCUMULATORS,
        a_type=_ELEMENTS,
        b_type=_ELEMENTS,
        c_type=_ACCUMULATORS,
    )


MMA = _sparse("mma.sp::ordered_metadata")
MMA_UNORDERED = _sparse("mma.sp")
"""With metadata whose second number may be the smaller one."""
