"""The MMA instructions of tensor cores: shapes, element types, accumulators, and the architectures they came with.

Facts of the PTX manual, and the only copy of them: the language, the verifiers of the dialect and the targets read them
here. Types have their names in PTX; matrices of bits are `b1.and` and `b1.xor`, after how two bits are multiplied. A
shape (m, n, k) counts elements. `find` and `refusal` look up what PTX spells without `.kind`, `find_kind` and
`kind_refusal` the others: `tcgen05.mma`, and the warp MMA of sm_120 with narrow floats and block scales.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from .features import (
    TCGEN05,
    TCGEN05_BLOCK_SIZES,
    TCGEN05_I8,
    TCGEN05_K96,
    WARP_MMA_BLOCK_SCALE,
    WARP_MMA_NARROW_FLOATS,
    WARP_MMA_UE8M0_BY_16,
    WARPGROUP_MMA,
    Feature,
)

Shape = tuple[int, int, int]

BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f64": 64,
    "s8": 8,
    "u8": 8,
    "e4m3": 8,
    "e5m2": 8,
    "e3m2": 6,
    "e2m3": 6,
    "e2m1": 4,
    "ue8m0": 8,
    "ue4m3": 8,
    "s4": 4,
    "u4": 4,
    "b1.and": 1,
    "b1.xor": 1,
}
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
    mn_step: int = 0
    """With an MN-major B, N is a multiple of this; 0 if operands in shared memory are K-major only."""
    sparse: bool = False
    """Whether A is sparse: of each row half of the elements along K are there, and metadata say which."""


_MMA = "mma.sync"
_WGMMA = "wgmma"
_TCGEN05 = "tcgen05"
_STATIONARY = "tcgen05.ws"


def _since(number: int, what: str) -> Feature:
    return Feature(f"mma.sync of {what}", number)


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
    MmaRow(_WGMMA, ("f16",), ("f32", "f16"), _warpgroup(16), WARPGROUP_MMA, mn_step=8),
    MmaRow(_WGMMA, ("bf16",), ("f32",), _warpgroup(16), WARPGROUP_MMA, mn_step=8),
    MmaRow(_WGMMA, ("tf32",), ("f32",), _warpgroup(8), WARPGROUP_MMA),
    MmaRow(_WGMMA, ("e4m3", "e5m2"), ("f32", "f16"), _warpgroup(32), WARPGROUP_MMA),
    MmaRow(_WGMMA, ("s8", "u8"), ("s32",), _warpgroup(32, (8, 16, 24, *range(32, 257, 16))), WARPGROUP_MMA),
)


def _sparse(number: int, what: str, inputs: tuple[str, ...], accumulators: tuple[str, ...], *k: int) -> MmaRow:
    feature = Feature(f"mma.sp of {what}", number, ptx=85)
    return MmaRow(_MMA, inputs, accumulators, tuple((16, 8, depth) for depth in k), feature, sparse=True)


SPARSE_MMA_ROWS = (
    _sparse(80, "f16", ("f16",), ("f32", "f16"), 16, 32),
    _sparse(80, "bf16", ("bf16",), ("f32",), 16, 32),
    _sparse(80, "tf32", ("tf32",), ("f32",), 8, 16),
    _sparse(80, "s8 or u8", ("s8", "u8"), ("s32",), 32, 64),
    _sparse(80, "s4 or u4", ("s4", "u4"), ("s32",), 64, 128),
    _sparse(89, "e4m3 or e5m2", ("e4m3", "e5m2"), ("f32",), 64),
)
"""`mma.sp`: K counts the elements of B, of which A has half."""


def sparse_chunk(element: str) -> int:
    """Return how many elements along K of a sparse A share 4 bits of metadata; half of them are there."""
    return {"tf32": 2, "s4": 8, "u4": 8}.get(element, 4)


def sparse_selectors(element: str, k: int) -> int:
    """Return how many sparsity selectors an `mma.sp` has: 1, 2 or 4 of four threads have its metadata."""
    return 16 * sparse_chunk(element) // k


_NARROW = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")

WARP_KIND_ROWS = (
    # ptxas also takes e4m3 and e5m2 of kind::f8f6f4 on sm_100 to sm_110, where it converts them and uses f16 MMAs
    MmaRow(_MMA, _NARROW, ("f32", "f16"), ((16, 8, 32),), WARP_MMA_NARROW_FLOATS, "f8f6f4"),
    MmaRow(_MMA, _NARROW, ("f32",), ((16, 8, 32),), WARP_MMA_BLOCK_SCALE, "mxf8f6f4", "ue8m0", 32),
    MmaRow(_MMA, ("e2m1",), ("f32",), ((16, 8, 64),), WARP_MMA_BLOCK_SCALE, "mxf4", "ue8m0", 32),
    MmaRow(_MMA, ("e2m1",), ("f32",), ((16, 8, 64),), WARP_MMA_BLOCK_SCALE, "mxf4nvf4", "ue8m0", 32),
    MmaRow(_MMA, ("e2m1",), ("f32",), ((16, 8, 64),), WARP_MMA_UE8M0_BY_16, "mxf4nvf4", "ue8m0", 16),
    MmaRow(_MMA, ("e2m1",), ("f32",), ((16, 8, 64),), WARP_MMA_BLOCK_SCALE, "mxf4nvf4", "ue4m3", 16),
)
"""Warp MMA of sm_120 and sm_121 that PTX spells with `.kind`."""


def warp_kind(a: str, b: str) -> str | None:
    """Return the `.kind` that PTX wants on `mma.sync` without scale factors: "f8f6f4" with floats below 8 bits."""
    return "f8f6f4" if {a, b} & {"e2m3", "e3m2", "e2m1"} else None


def container_bits(element: str, kind: str | None) -> int:
    """Return the bits that an element of A or B takes in a register of `mma.sync`.

    The kinds f8f6f4 and mxf8f6f4 have a byte for each element: 6 bits are its lowest, and 4 bits lie in its middle.
    """
    return 8 if kind in ("f8f6f4", "mxf8f6f4") else BITS[element]


def _grid(rows: Iterable[int], columns: Iterable[int], k: int) -> tuple[Shape, ...]:
    columns = tuple(columns)
    return tuple((m, n, k) for m in rows for n in columns)


def _tcgen05_rows() -> Iterator[MmaRow]:
    """Yield the rows of `tcgen05.mma`: a shape is that of the instruction, for a pair of CTAs that of both."""
    plain = (  # kind, types of A and B, accumulators, K, feature
        ("f16", ("f16",), ("f32", "f16"), 16, TCGEN05),
        ("f16", ("bf16",), ("f32",), 16, TCGEN05),
        ("tf32", ("tf32",), ("f32",), 8, TCGEN05),
        ("f8f6f4", _NARROW, ("f32", "f16"), 32, TCGEN05),
        ("i8", ("s8", "u8"), ("s32",), 32, TCGEN05_I8),
    )
    for kind, inputs, accumulators, k, feature in plain:
        one = (8, 16, 24, *range(32, 257, 16)) if kind == "i8" else range(8, 257, 8)
        two = range(32, 257, 32) if kind == "i8" else range(16, 257, 16)
        step = 16 if kind in ("f8f6f4", "i8") else 8
        for instruction, shapes, group in (
            (_TCGEN05, _grid((64, 128), one, k), 1),
            (_TCGEN05, _grid((128, 256), two, k), 2),
            (_STATIONARY, _grid((32, 64, 128), (64, 128, 256), k), 1),
        ):
            row = MmaRow(instruction, inputs, accumulators, shapes, feature, kind)
            row = dataclasses.replace(row, cta_group=group, mn_step=step * group)
            yield row
            if instruction == _TCGEN05:
                yield dataclasses.replace(row, shapes=tuple((m, n, 2 * k) for m, n, k in shapes), sparse=True)
    scaled = (  # kind, types of A and B, K, type of scale factors, elements that share one
        ("mxf8f6f4", _NARROW, 32, "ue8m0", 32),
        ("mxf4", ("e2m1",), 64, "ue8m0", 32),
        ("mxf4nvf4", ("e2m1",), 64, "ue8m0", 32),
        ("mxf4nvf4", ("e2m1",), 64, "ue8m0", 16),
        ("mxf4nvf4", ("e2m1",), 64, "ue4m3", 16),
    )
    for kind, inputs, k, scale, vector in scaled:
        for group, m in ((1, (128,)), (2, (128, 256))):
            columns = range(8 * group, 257, 8 * group)
            shapes = _grid(m, columns, k)
            step = 16 * group if kind == "mxf8f6f4" else 0
            yield MmaRow(_TCGEN05, inputs, ("f32",), shapes, TCGEN05_BLOCK_SIZES, kind, scale, vector, group, step)
            if kind != "mxf8f6f4":
                shapes = _grid((128 * group,), columns, 96)
                yield MmaRow(_TCGEN05, inputs, ("f32",), shapes, TCGEN05_K96, kind, scale, vector, group)


TCGEN05_ROWS = tuple(_tcgen05_rows())
ALL_ROWS = (*MMA_ROWS, *SPARSE_MMA_ROWS, *WARP_KIND_ROWS, *TCGEN05_ROWS)


def rows(
    instruction: str,
    element: str,
    *,
    kind: str | None = None,
    scale_type: str | None = None,
    scale_vector: int | None = None,
    cta_group: int = 1,
    sparse: bool = False,
) -> Iterator[MmaRow]:
    """Return the rows of an instruction whose A can have elements of a type."""
    columns_asked = (kind, scale_type, scale_vector, cta_group, sparse)
    for row in ALL_ROWS:
        columns = (row.kind, row.scale_type, row.scale_vector, row.cta_group, row.sparse)
        if row.instruction == instruction and element in row.inputs and columns == columns_asked:
            yield row


def find(
    instruction: str, shape: Shape, a: str, b: str, accumulator: str, **columns: str | int | bool | None
) -> MmaRow | None:
    """Return the row of a shape and of types, None if there is no such instruction; `columns` as in `rows`."""
    for row in rows(instruction, a, **columns):  # pyright: ignore[reportArgumentType]
        if b in row.inputs and accumulator in row.accumulators and shape in row.shapes:
            return row
    return None


def shapes(instruction: str, element: str, sparse: bool = False) -> list[Shape]:
    """Return the shapes for A of a type, smallest first."""
    return sorted({shape for row in rows(instruction, element, sparse=sparse) for shape in row.shapes})


def takes_mn_major(instruction: str, element: str) -> bool:
    """Return whether an operand of a type may be contiguous along M or N in shared memory."""
    return any(row.mn_step for row in rows(instruction, element))


def accumulators(instruction: str, element: str, sparse: bool = False) -> tuple[str, ...]:
    """Return the accumulator types for A of a type."""
    return tuple(dict.fromkeys(kind for row in rows(instruction, element, sparse=sparse) for kind in row.accumulators))


def refusal(instruction: str, shape: Shape, a: str, b: str, accumulator: str, sparse: bool = False) -> str:
    """Return an error message for an instruction that does not exist, with those that do; empty if it exists."""
    if find(instruction, shape, a, b, accumulator, sparse=sparse) is not None:
        return ""
    accumulator_types = ", ".join(accumulators(instruction, a, sparse)) or "none"
    return (
        f"there is no {'mma.sp' if sparse else instruction} m{shape[0]}n{shape[1]}k{shape[2]} of {a} and {b} "
        f"with accumulators in {accumulator} "
        f"(shapes of {a}: {_listed(instruction, a, sparse) or 'none'}; accumulators: {accumulator_types})"
    )


def find_kind(
    instruction: str,
    kind: str,
    m: int,
    n: int,
    k: int,
    a: str,
    b: str,
    acc: str,
    scale: str | None = None,
    vector: int | None = None,
    cta_group: int = 1,
) -> MmaRow | None:
    """Return the row of an instruction that PTX spells with `.kind`, None if there is none; see `kind_refusal`."""
    columns = {"kind": kind, "scale_type": scale, "scale_vector": vector, "cta_group": cta_group}
    return find(instruction, (m, n, k), a, b, acc, **columns)


def kind_refusal(
    instruction: str,
    kind: str,
    m: int,
    n: int,
    k: int,
    a: str,
    b: str,
    acc: str,
    scale: str | None = None,
    vector: int | None = None,
    cta_group: int = 1,
    a_major: str = "k",
    b_major: str = "k",
    *,
    sparse: bool = False,
) -> str:
    """Return which argument of an instruction with a `.kind` is wrong and what it may be; empty if it exists.

    Instructions are "tcgen05" (`tcgen05.mma`), "tcgen05.ws" (weight stationary) and "mma.sync". `scale` is the type of
    the scale factors, `vector` the elements along K that share one; majors are "k" and "mn". `sparse` means a sparse A.
    """
    left = [row for row in ALL_ROWS if row.instruction == instruction and row.kind and row.sparse == sparse]
    named = {_TCGEN05: "tcgen05.mma", _STATIONARY: "tcgen05.mma.ws"}.get(instruction, instruction) + ".sp" * sparse
    spelled = f"{named} of kind::{kind}"
    for argument, value, options in (
        ("kind", kind, lambda row: (row.kind,)),
        ("cta_group", cta_group, lambda row: (row.cta_group,)),
        ("a", a, lambda row: row.inputs),
        ("b", b, lambda row: row.inputs),
        ("acc", acc, lambda row: row.accumulators),
        ("scale", scale, lambda row: (row.scale_type,)),
        ("vector", vector, lambda row: (row.scale_vector,)),
        ("k", k, lambda row: {shape[2] for shape in row.shapes}),
        ("m", m, lambda row: {shape[0] for shape in row.shapes if shape[2] == k}),
        ("n", n, lambda row: {shape[1] for shape in row.shapes if (shape[0], shape[2]) == (m, k)}),
    ):
        fitting = [row for row in left if value in options(row)]
        if not fitting:
            choices = list(dict.fromkeys(option for row in left for option in options(row)))
            choices = sorted(choices) if argument in ("k", "m", "n") else choices
            where = named if argument == "kind" else spelled
            where += _context(argument, a, scale, 0 if instruction == _MMA else cta_group, m, k)
            return f"{argument} is {value}: {where} takes {_options(argument, choices)}"
        left = fitting
    return _major_refusal(spelled, left[0], n, a_major, b_major)


def _context(argument: str, a: str, scale: str | None, cta_group: int, m: int, k: int) -> str:
    """Return the earlier arguments that limit what an argument may be; `cta_group` is 0 for warp MMA."""
    parts: list[str] = []
    if argument in ("b", "acc"):
        parts.append(f"A of {a}")
    if argument == "vector" and scale is not None:
        parts.append(f"scale factors of {scale}")
    if argument in ("k", "m", "n") and cta_group:
        parts.append(f"cta_group::{cta_group}")
    if argument == "n":
        parts.append(f"M = {m}")
    if argument in ("m", "n"):
        parts.append(f"K = {k}")
    return f" with {' and '.join(parts)}" if parts else ""


def _options(argument: str, choices: list[str | int | None]) -> str:
    """Return the values that an argument may have, in words."""
    if choices == [None]:
        return "no scale factors" if argument == "scale" else "none"
    if argument == "n" and len(choices) > 3:
        return _steps([n for n in choices if isinstance(n, int)])
    *first, last = map(str, choices)
    return f"{', '.join(first)} or {last}" if first else last


def _major_refusal(spelled: str, row: MmaRow, n: int, a_major: str, b_major: str) -> str:
    """Return which major mode is wrong; empty if none is."""
    for argument, major in (("a_major", a_major), ("b_major", b_major)):
        if major not in ("k", "mn"):
            return f"{argument} is {major}: it is k or mn"
        if major == "mn" and not row.mn_step:
            return f"{argument} is mn: {spelled} takes k only"
    if b_major == "mn" and n % row.mn_step:
        group = row.cta_group
        return f"n is {n}: {spelled} with an MN-major B and cta_group::{group} takes multiples of {row.mn_step}"
    return ""


def _listed(instruction: str, a: str, sparse: bool) -> str:
    """Return the shapes for A of a type; the many of WGMMA by their steps in N."""
    sizes = shapes(instruction, a, sparse)
    if instruction != _WGMMA or not sizes:
        return ", ".join("m{}n{}k{}".format(*s) for s in sizes)
    return f"m64, {_steps([n for _, n, _ in sizes], 'n')}, k{sizes[0][2]}"


def _steps(columns: list[int], letter: str = "") -> str:
    """Return sorted numbers as a range with a step, after those that are not in it."""
    step = columns[-1] - columns[-2]
    first = next(n for i, n in enumerate(columns) if columns[i:] == list(range(n, columns[-1] + 1, step)))
    others = "".join(f"{letter}{n}, " for n in columns if n < first)
    return f"{others}{letter}{first} to {letter}{columns[-1]} in steps of {step}"
