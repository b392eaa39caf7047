"""Conversion of the upstream dialects to `llvm`, in one pass where possible.

MLIR's conversion of vectors rewrites a whole module until nothing changes, and each other dialect has its own pass: two
thirds of the time. Vectors of one dimension are converted along with the rest; extracted and inserted parts of them
become shuffles.
"""

from __future__ import annotations

import functools
from typing import Any

from ....mlir import context, find, ir, only_has, passmanager
from ...lowering.vector_parts import make_before

AT_ONCE = "convert-scf-to-cf,convert-to-llvm,reconcile-unrealized-casts"
ONE_BY_ONE = (
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-ub-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)
_TAKEN = "vector.extract_strided_slice"
_PUT = "vector.insert_strided_slice"
_IN_ROWS = (_TAKEN, _PUT, "vector.from_elements", "vector.bitcast")
"""Operations that are converted directly, or become shuffles, if vectors have one dimension."""
_PLAIN = ("vector.broadcast", "vector.extract", "vector.shuffle", *_IN_ROWS[2:])
_DIALECTS = ("arith", "cf", "func", "index", "llvm", "math", "nvvm", "scf", "ub")


def conversion(module: ir.Module) -> str:
    """Return the passes that convert a module; parts of vectors become shuffles."""
    plain = True
    for op in find(module.operation, _IN_ROWS):
        if not _is_row(op.operands[0].type) or not _is_row(op.results[0].type):
            plain = False
        elif op.name == _TAKEN:
            _take(op)
        elif op.name == _PUT:
            _put(op)
    return AT_ONCE if plain and only_has(module.operation, _DIALECTS, ("builtin.module", *_PLAIN), ()) else ONE_BY_ONE


def convert_to_llvm(module: ir.Module) -> None:
    """Convert a module in which the operations of `cute` are expanded."""
    passmanager.PassManager.parse(f"builtin.module({conversion(module)})").run(module.operation)


@functools.lru_cache(maxsize=1024)
def _is_row(type_: ir.Type) -> bool:
    """Return whether a type is a scalar or a vector of one dimension."""
    return not isinstance(type_, ir.VectorType) or type_.rank == 1


def _take(op: ir.Operation) -> None:
    """Replace an extracted slice by a shuffle."""
    row = op.operands[0]
    result = op.results[0]
    first, count = (op.attributes[name][0].value for name in ("offsets", "sizes"))  # pyright: ignore
    taken = row if result.type == row.type else _shuffled(op, result.type, row, row, range(first, first + count))
    result.replace_all_uses_with(taken)
    op.erase()


def _put(op: ir.Operation) -> None:
    """Replace an inserted slice by shuffles."""
    part, row = op.operands
    type_: Any = row.type
    first = op.attributes["offsets"][0].value  # pyright: ignore
    count = part.type.shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    length = type_.shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    long = _shuffled(op, type_, part, part, [*range(count), *[0] * (length - count)])
    mask = [*range(first), *range(length, length + count), *range(first + count, length)]
    op.results[0].replace_all_uses_with(_shuffled(op, type_, row, long, mask))
    op.erase()


def _shuffled(before: ir.Operation, type_: ir.Type, a: ir.Value, b: ir.Value, mask: Any) -> ir.Value:
    return make_before(before, "vector.shuffle", type_, (a, b), _mask(tuple(mask)))


@functools.lru_cache(maxsize=1024)
def _mask(numbers: tuple[int, ...]) -> dict[str, ir.Attribute]:
    return {"mask": ir.DenseI64ArrayAttr.get(list(numbers), context())}
