"""The MMA instructions of tensor cores: shapes, element types, accumulators, and the architectures they came with.

Facts of the PTX manual, and the only copy of them: the language, the verifiers of the dialect and the targets read them
here. Types have their names in PTX; matrices of bits are `b1.and` and `b1.xor`, after how two bits are multiplied. A
shape (m, n, k) counts elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from .features import Feature

Shape = tuple[int, int, int]

BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m3": 6,
    "e2m1": 4, "ue8m0": 8, "ue4m3": 8, "s4": 4, "u4": 4, "b1.and": 1, "b1.xor": 1,
}  # fmt: skip
"""Bits of an element of A or B, or of a scale factor."""


@dataclasses.dataclass(frozen=True)
class MmaRow:
    """D = A B + C of one instruction, in all shapes and types that go together."""

    instruction: str
    inputs: tuple[str, ...]
    """Element types of A and of B, in any combination."""
    accumulators: tuple[str, ...]
    """Element types of C and D, which are the same."""
    shapes: tuple[Shape, ...]
    feature: Feature
    """The architectures that have it."""
    kind: str | None = None
    """PTX's `.kind` (f16, tf32, f8f6f4, mxf8f6f4, mxf4, mxf4nvf4, i8) for instructions that have one."""
    scale_type: str | None = None
    """Element type of the scale factors of block-scaled A and B."""
    scale_vector: int | None = None
    """Elements along K that share a scale factor."""
    cta_group: int = 1
    """CTAs that issue it together."""


_MMA, _WGMMA = "mma.sync", "wgmma"


def _since(number: int, what: str) -> Feature:
    return Feature(f"mma.sync of {what}", number)


WARPGROUP_MMA = Feature("wgmma", 90, suffixes="a", before=100, tensor_core=True)


def _warpgroup(k: int, columns: Iterable[int] = range(8, 257, 8)) -> tuple[Shape, ...]:
    return tuple((64, n, k) for n in columns)


MMA_ROWS = (
    MmaRow(_MMA, ("f16",), ("f32", "f16"), ((16, 8, 8),), _since(75, "f16")),
    MmaRow(_MMA, ("f16",), ("f32", "f16"), ((16, 8, 16),), _since(80, "f16")),
    MmaRow(_MMA, ("bf16",), ("f32",), ((16, 8, 8), (16, 8, 16)), _since(80, "bf16")),
    MmaRow(_MMA, ("tf32",), ("f32",), ((16, 8, 4), (16, 8, 8)), _since(80, "tf32")),
    MmaRow(_MMA, ("f64",), ("f64",), ((8, 8, 4),), _since(80, "f64")),
    MmaRow(_MMA, ("f64",), ("f64",), ((16, 8, 4), (16, 8, 8), (16, 8, 16)), _since(90, "f64 with 16 rows")),
    MmaRow(_MMA, ("s8", "u8"), ("s32",), ((8, 8, 16),), _since(75, "s8 or u8")),
    MmaRow(_MMA, ("s8", "u8"), ("s32",), ((16, 8, 16), (16, 8, 32)), _since(80, "s8 or u8")),
    # accumulators in f16, and m16n8k16, since PTX 8.7 only
    MmaRow(_MMA, ("e4m3", "e5m2"), ("f32", "f16"), ((16, 8, 16), (16, 8, 32)), _since(89, "e4m3 or e5m2")),
    MmaRow(_MMA, ("s4", "u4"), ("s32",), ((8, 8, 32),), _since(75, "s4 or u4")),
    MmaRow(_MMA, ("s4", "u4"), ("s32",), ((16, 8, 32), (16, 8, 64)), _since(80, "s4 or u4")),
    MmaRow(_MMA, ("b1.xor",), ("s32",), ((8, 8, 128),), _since(75, "b1.xor")),
    MmaRow(_MMA, ("b1.xor",), ("s32",), ((16, 8, 128), (16, 8, 256)), _since(80, "b1.xor")),
    MmaRow(_MMA, ("b1.and",), ("s32",), ((8, 8, 128), (16, 8, 128), (16, 8, 256)), _since(80, "b1.and")),
    MmaRow(_WGMMA, ("f16",), ("f32", "f16"), _warpgroup(16), WARPGROUP_MMA),
    MmaRow(_WGMMA, ("bf16",), ("f32",), _warpgroup(16), WARPGROUP_MMA),
    MmaRow(_WGMMA, ("tf32",), ("f32",), _warpgroup(8), WARPGROUP_MMA),
    MmaRow(_WGMMA, ("e4m3", "e5m2"), ("f32", "f16"), _warpgroup(32), WARPGROUP_MMA),
    MmaRow(_WGMMA, ("s8", "u8"), ("s32",), _warpgroup(32, (8, 16, 24, *range(32, 257, 16))), WARPGROUP_MMA),
)


def rows(
    instruction: str, element: str, *, kind: str | None = None, scale_type: str | None = None,
    scale_vector: int | None = None, cta_group: int = 1,
) -> Iterator[MmaRow]:  # fmt: skip
    """Return the rows of an instruction whose A can have elements of a type."""
    wanted = (kind, scale_type, scale_vector, cta_group)
    for row in MMA_ROWS:
        columns = (row.kind, row.scale_type, row.scale_vector, row.cta_group)
        if row.instruction == instruction and element in row.inputs and columns == wanted:
            yield row


def find(
    instruction: str, shape: Shape, a: str, b: str, accumulator: str, **columns: str | int | None
) -> MmaRow | None:
    """Return the row of a shape and of types, None if there is no such instruction; `columns` as in `rows`."""
    for row in rows(instruction, a, **columns):  # pyright: ignore[reportArgumentType]
        if b in row.inputs and accumulator in row.accumulators and shape in row.shapes:
            return row
    return None


def shapes(instruction: str, element: str) -> list[Shape]:
    """Return the shapes for A of a type, smallest first."""
    return sorted({shape for row in rows(instruction, element) for shape in row.shapes})


def accumulators(instruction: str, element: str) -> tuple[str, ...]:
    """Return the accumulator types for A of a type."""
    return tuple(dict.fromkeys(kind for row in rows(instruction, element) for kind in row.accumulators))


def refusal(instruction: str, shape: Shape, a: str, b: str, accumulator: str) -> str:
    """Return an error message for an instruction that does not exist, with those that do; empty if it exists."""
    if find(instruction, shape, a, b, accumulator) is not None:
        return ""
    known = ", ".join(accumulators(instruction, a)) or "none"
    return (
        f"there is no {instruction} m{shape[0]}n{shape[1]}k{shape[2]} of {a} and {b} "
        f"with accumulators in {accumulator} "
        f"(shapes of {a}: {_listed(instruction, a) or 'none'}; accumulators: {known})"
    )


def _listed(instruction: str, a: str) -> str:
    """Return the shapes for A of a type; the many of WGMMA by their steps in N."""
    known = shapes(instruction, a)
    if instruction != _WGMMA or not known:
        return ", ".join("m{}n{}k{}".format(*s) for s in known)
    columns, k = [n for _, n, _ in known], known[0][2]
    step = columns[-1] - columns[-2]
    first = next(n for i, n in enumerate(columns) if columns[i:] == list(range(n, columns[-1] + 1, step)))
    others = "".join(f"n{n}, " for n in columns if n < first)
    return f"m64, {others}n{first} to n{columns[-1]} in steps of {step}, k{k}"
