"""The matrix products that tensor cores have: shapes, element types, sums, and the architectures they came with.

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
    "f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "s4": 4, "u4": 4, "b1.and": 1,
    "b1.xor": 1,
}  # fmt: skip
"""Bits an element of A or B takes in a register."""


@dataclasses.dataclass(frozen=True)
class Product:
    """D = A B + C of one instruction, in all shapes and types that go together."""

    instruction: str
    inputs: tuple[str, ...]
    """What elements of A and of B can be, in any combination."""
    sums: tuple[str, ...]
    """What elements of C and D can be, both alike."""
    shapes: tuple[Shape, ...]
    feature: Feature
    """The architectures that have it."""


_MMA, _WGMMA = "mma.sync", "wgmma"


def _since(number: int, what: str) -> Feature:
    return Feature(f"mma.sync of {what}", number)


WARP_GROUP_MMA = Feature("wgmma", 90, specific=True, before=100)


def _warp_group(k: int, columns: Iterable[int] = range(8, 257, 8)) -> tuple[Shape, ...]:
    return tuple((64, n, k) for n in columns)


PRODUCTS = (
    Product(_MMA, ("f16",), ("f32", "f16"), ((16, 8, 8),), _since(75, "f16")),
    Product(_MMA, ("f16",), ("f32", "f16"), ((16, 8, 16),), _since(80, "f16")),
    Product(_MMA, ("bf16",), ("f32",), ((16, 8, 8), (16, 8, 16)), _since(80, "bf16")),
    Product(_MMA, ("tf32",), ("f32",), ((16, 8, 4), (16, 8, 8)), _since(80, "tf32")),
    Product(_MMA, ("f64",), ("f64",), ((8, 8, 4),), _since(80, "f64")),
    Product(_MMA, ("f64",), ("f64",), ((16, 8, 4), (16, 8, 8), (16, 8, 16)), _since(90, "f64 with 16 rows")),
    Product(_MMA, ("s8", "u8"), ("s32",), ((8, 8, 16),), _since(75, "s8 or u8")),
    Product(_MMA, ("s8", "u8"), ("s32",), ((16, 8, 16), (16, 8, 32)), _since(80, "s8 or u8")),
    # sums in f16, and m16n8k16, since PTX 8.7 only
    Product(_MMA, ("e4m3", "e5m2"), ("f32", "f16"), ((16, 8, 16), (16, 8, 32)), _since(89, "e4m3 or e5m2")),
    Product(_MMA, ("s4", "u4"), ("s32",), ((8, 8, 32),), _since(75, "s4 or u4")),
    Product(_MMA, ("s4", "u4"), ("s32",), ((16, 8, 32), (16, 8, 64)), _since(80, "s4 or u4")),
    Product(_MMA, ("b1.xor",), ("s32",), ((8, 8, 128),), _since(75, "b1.xor")),
    Product(_MMA, ("b1.xor",), ("s32",), ((16, 8, 128), (16, 8, 256)), _since(80, "b1.xor")),
    Product(_MMA, ("b1.and",), ("s32",), ((8, 8, 128), (16, 8, 128), (16, 8, 256)), _since(80, "b1.and")),
    Product(_WGMMA, ("f16",), ("f32", "f16"), _warp_group(16), WARP_GROUP_MMA),
    Product(_WGMMA, ("bf16",), ("f32",), _warp_group(16), WARP_GROUP_MMA),
    Product(_WGMMA, ("tf32",), ("f32",), _warp_group(8), WARP_GROUP_MMA),
    Product(_WGMMA, ("e4m3", "e5m2"), ("f32", "f16"), _warp_group(32), WARP_GROUP_MMA),
    Product(_WGMMA, ("s8", "u8"), ("s32",), _warp_group(32, (8, 16, 24, *range(32, 257, 16))), WARP_GROUP_MMA),
)


def products(instruction: str, element: str) -> Iterator[Product]:
    """The products of an instruction whose A can have elements of a type."""
    return (row for row in PRODUCTS if row.instruction == instruction and element in row.inputs)


def find(instruction: str, shape: Shape, a: str, b: str, sums: str) -> Product | None:
    """The product of a shape and of types, or None: there is no such instruction."""
    for row in products(instruction, a):
        if b in row.inputs and sums in row.sums and shape in row.shapes:
            return row
    return None


def shapes(instruction: str, element: str) -> list[Shape]:
    """The shapes for A of a type, smallest first."""
    return sorted({shape for row in products(instruction, element) for shape in row.shapes})


def sums(instruction: str, element: str) -> tuple[str, ...]:
    """What sums can be made in for A of a type."""
    return tuple(dict.fromkeys(kind for row in products(instruction, element) for kind in row.sums))


def refusal(instruction: str, shape: Shape, a: str, b: str, sum_: str) -> str:
    """Why there is no such product: what was asked for and what there is; empty if there is one."""
    if find(instruction, shape, a, b, sum_) is not None:
        return ""
    return (
        f"there is no {instruction} m{shape[0]}n{shape[1]}k{shape[2]} of {a} and {b} with sums in {sum_} "
        f"(shapes of {a}: {_listed(instruction, a) or 'none'}; sums: {', '.join(sums(instruction, a)) or 'none'})"
    )


def _listed(instruction: str, a: str) -> str:
    """The shapes for A of a type; those of warp groups, of which there are many, by their steps in N."""
    found = shapes(instruction, a)
    if instruction != _WGMMA or not found:
        return ", ".join("m{}n{}k{}".format(*s) for s in found)
    columns, k = [n for _, n, _ in found], found[0][2]
    step = columns[-1] - columns[-2]
    first = next(n for i, n in enumerate(columns) if columns[i:] == list(range(n, columns[-1] + 1, step)))
    others = "".join(f"n{n}, " for n in columns if n < first)
    return f"m64, {others}n{first} to n{columns[-1]} in steps of {step}, k{k}"
