"""Tensor-core operations as host code: `mma_sync`, `ldmatrix`, `stmatrix`.

The lanes of a warp meet; the first that goes on does the work of all, in a function of the module that is made once for each
kind of operation. A lane's slot (`threads.PAYLOAD`) holds what it brings and finds what it gets.

Fragments follow the PTX manual ("Matrix Fragments for mma.m16n8k16" and its neighbours). With g = lane / 4 and t = lane % 4,
and e elements to a register, element i of register r of a lane is

    A   row g + 8 (r % 2), column t e + i + 4 e (r / 2)
    B   row t e + i + 4 e r, column g
    C   row g + 8 (n / 2), column 2 t + n % 2, for its n-th element
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import DSLNotImplemented
from ...mlir import context, ir
from ..llvm_build import Builder, function, global_, int_type, parsed_type, ptr_type
from .expand import Expander
from .hardware import frame_of, hardware
from .lanes import lane_of, meet, once, slot
from .sanitizer.hooks import Hooks
from .threads import PAYLOAD, leave

if TYPE_CHECKING:
    from collections.abc import Callable

A_AT, B_AT, C_AT = 0, 16, 32
"""Where fragments lie in a lane's slot."""


@dataclasses.dataclass(frozen=True)
class Element:
    """An element type of A or B: its bits, and the type sums are made in."""

    bits: int
    sum: str


ELEMENTS = {
    "f16": Element(16, "f32"), "bf16": Element(16, "f32"), "tf32": Element(32, "f32"), "f64": Element(64, "f64"),
    "s8": Element(8, "i32"), "u8": Element(8, "i32"), "e4m3": Element(8, "f32"), "e5m2": Element(8, "f32"),
}  # fmt: skip

SHAPES = {
    "f16": {(16, 8, 8), (16, 8, 16)}, "bf16": {(16, 8, 8), (16, 8, 16)}, "tf32": {(16, 8, 4), (16, 8, 8)},
    "f64": {(8, 8, 4)}, "s8": {(16, 8, 16), (16, 8, 32)}, "u8": {(16, 8, 16), (16, 8, 32)},
    "e4m3": {(16, 8, 32)}, "e5m2": {(16, 8, 32)},
}  # fmt: skip
"""Shapes (m, n, k) by the type of A."""


@dataclasses.dataclass(frozen=True)
class Mma:
    """One kind of `mma_sync`."""

    m: int
    n: int
    k: int
    a: str
    b: str
    d: str

    @property
    def name(self) -> str:
        return f"kiln.mma.m{self.m}n{self.n}k{self.k}.{self.a}.{self.b}.{self.d}"

    @property
    def sum(self) -> str:
        return ELEMENTS[self.a].sum


@dataclasses.dataclass(frozen=True)
class Position:
    """Row `row + row_g * g + row_t * t`, and the column alike."""

    row: int
    row_g: int
    row_t: int
    column: int
    column_g: int
    column_t: int


def fragment_a(m: int, k: int, bits: int) -> list[Position]:
    """The elements of A that a lane holds, in the order of its registers."""
    per_register = max(1, 32 // bits)
    count = m * k // 32
    made: list[Position] = []
    for number in range(count):
        register, i = divmod(number, per_register)
        made.append(
            Position(
                8 * (register % 2) if m == 16 else 0, 1, 0, i + 4 * per_register * (register // 2), 0, per_register
            )
        )
    return made


def fragment_b(n: int, k: int, bits: int) -> list[Position]:
    """The elements of B that a lane holds."""
    per_register = max(1, 32 // bits)
    made: list[Position] = []
    for number in range(n * k // 32):
        register, i = divmod(number, per_register)
        made.append(Position(i + 4 * per_register * register, 0, per_register, 0, 1, 0))
    return made


def fragment_c(m: int, n: int) -> list[Position]:
    """The elements of C and D that a lane holds."""
    return [Position(8 * (i // 2), 1, 0, i % 2, 0, 2) for i in range(m * n // 32)]


# --- mma.sync --------------------------------------------------------------------------------------------------------


def _outlined(x: Expander, name: str, body: Callable[[Builder, ir.Value], None]) -> None:
    """Make a function of a pointer to the lanes' slots, once for the module."""
    if name in x.module.declared:
        return
    x.module.declared.add(name)
    x.module.outlined.add(name)
    made = function(x.module.module, name, [ptr_type()], [])
    entry = made.regions[0].blocks[0]
    b = Builder(ir.InsertionPoint(entry), ir.Location.unknown(context()))
    body(b, entry.arguments[0])
    b.op("func.return", (), ())


def _sum_type(name: str) -> ir.Type:
    return parsed_type(name)


def _vector(count: int, element: ir.Type) -> ir.Type:
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context()))


def _table(x: Expander, name: str) -> str:
    """The name of a global constant with the 256 values of an 8-bit float as f32."""
    symbol = f"kiln.{name}"
    if symbol not in x.module.declared:
        x.module.declared.add(symbol)
        dtype = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[name]
        values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
        f32 = ir.F32Type.get(context())
        tensor = ir.RankedTensorType.get([256], f32, loc=ir.Location.unknown(context()))
        value = ir.DenseElementsAttr.get(values, type=tensor, context=context())
        global_(
            x.module.module, symbol, parsed_type("!llvm.array<256 x f32>"), value, linkage="internal", constant=True
        )
    return symbol


def _element(x: Expander, b: Builder, address: ir.Value, kind: str) -> ir.Value:
    """An element of A or B in the type of the sum."""
    f32, i32 = ir.F32Type.get(context()), int_type(32)
    if kind == "f16":
        return b.value("arith.extf", f32, (b.load(ir.F16Type.get(context()), address),))
    if kind == "bf16":
        wide = b.value("arith.extui", i32, (b.load(int_type(16), address),))
        return b.value("arith.bitcast", f32, (b.binary("shli", wide, b.i32(16)),))
    if kind == "tf32":  # the lowest 13 bits of a register are ignored
        bits = b.binary("andi", b.load(i32, address), b.i32(0xFFFFE000 - (1 << 32)))
        return b.value("arith.bitcast", f32, (bits,))
    if kind == "f64":
        return b.load(ir.F64Type.get(context()), address)
    byte = b.load(int_type(8), address)
    if kind in ("s8", "u8"):
        return b.value("arith.extsi" if kind == "s8" else "arith.extui", i32, (byte,))
    number = b.value("arith.extui", int_type(64), (byte,))
    return b.load(f32, b.gep(b.address_of(_table(x, kind)), f32, number))


def _at(
    b: Builder, matrix: ir.Value, columns: int, type_: ir.Type, place: Position, g: ir.Value, t: ir.Value
) -> ir.Value:
    """The address of an element of a matrix stored by rows."""
    offset = b.i32(place.row * columns + place.column)
    for factor, value in ((place.row_g * columns + place.column_g, g), (place.row_t * columns + place.column_t, t)):
        if factor:
            offset = b.binary("addi", offset, b.binary("muli", value, b.i32(factor)))
    return b.gep(matrix, type_, offset)


def _multiply(x: Expander, b: Builder, slots: ir.Value, kind: Mma) -> None:
    """Gather A, B and C, multiply, and put D where C was."""
    type_ = _sum_type(kind.sum)
    is_integer = kind.sum == "i32"
    sizes = {"a": kind.m * kind.k, "b": kind.k * kind.n, "c": kind.m * kind.n}
    matrix = {name: b.alloca(type_, size, 64) for name, size in sizes.items()}
    fragments = {
        "a": (fragment_a(kind.m, kind.k, ELEMENTS[kind.a].bits), kind.k, A_AT, ELEMENTS[kind.a].bits // 8),
        "b": (fragment_b(kind.n, kind.k, ELEMENTS[kind.b].bits), kind.n, B_AT, ELEMENTS[kind.b].bits // 8),
    }
    d_type = parsed_type(kind.d)
    d_bytes = d_type.width // 8

    each, lane = b.for_(b.i32(0), b.i32(32), b.i32(1))
    g, t = each.binary("shrui", lane, each.i32(2)), each.binary("andi", lane, each.i32(3))
    own = each.byte_gep(slots, each.binary("muli", lane, each.i32(PAYLOAD)))
    for name, (places, columns, start, size) in fragments.items():
        for number, place in enumerate(places):
            value = _element(x, each, each.byte_gep(own, start + number * size), kind.a if name == "a" else kind.b)
            each.store(value, _at(each, matrix[name], columns, type_, place, g, t))
    c_places = fragment_c(kind.m, kind.n)
    for number, place in enumerate(c_places):
        value = each.load(d_type, each.byte_gep(own, C_AT + number * d_bytes))
        if d_type != type_:
            value = each.value("arith.extf", type_, (value,))
        each.store(value, _at(each, matrix["c"], kind.n, type_, place, g, t))

    row_type = _vector(kind.n, type_)
    rows, i = b.for_(b.i32(0), b.i32(kind.m), b.i32(1))
    row = rows.gep(matrix["c"], type_, rows.binary("muli", i, rows.i32(kind.n)))
    total = rows.load(row_type, row, 16)
    for k in range(kind.k):
        left = rows.load(
            type_,
            rows.gep(matrix["a"], type_, rows.binary("addi", rows.binary("muli", i, rows.i32(kind.k)), rows.i32(k))),
        )
        spread = rows.value("vector.broadcast", row_type, (left,))
        right = rows.load(row_type, rows.gep(matrix["b"], type_, k * kind.n), 16)
        if is_integer:
            total = rows.binary("addi", total, rows.binary("muli", spread, right))
        else:
            total = rows.value("math.fma", row_type, (spread, right, total))
    rows.store(total, row, 16)

    each, lane = b.for_(b.i32(0), b.i32(32), b.i32(1))
    g, t = each.binary("shrui", lane, each.i32(2)), each.binary("andi", lane, each.i32(3))
    own = each.byte_gep(slots, each.binary("muli", lane, each.i32(PAYLOAD)))
    for number, place in enumerate(c_places):
        value = each.load(type_, _at(each, matrix["c"], kind.n, type_, place, g, t))
        if d_type != type_:
            value = each.value("arith.truncf", d_type, (value,))
        each.store(value, each.byte_gep(own, C_AT + number * d_bytes))


_RESULTS = {
    "f16": ("f32", "f16"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",), "s8": ("i32",), "u8": ("i32",),
    "e4m3": ("f32", "f16"), "e5m2": ("f32", "f16"),
}  # fmt: skip


def checked(op: ir.Operation, kind: Mma) -> Mma:
    """A kind of `mma_sync`; refused if the hardware has no such instruction."""
    a, b = kind.a, kind.b
    same_family = a == b or {a, b} <= {"s8", "u8"} or {a, b} <= {"e4m3", "e5m2"}
    shapes = SHAPES.get(a, set[tuple[int, int, int]]())
    if not same_family or (kind.m, kind.n, kind.k) not in shapes or kind.d not in _RESULTS[a]:
        raise report_at(
            op.location,
            DSLNotImplemented,
            f"there is no mma.sync m{kind.m}n{kind.n}k{kind.k} of {a} and {b} with sums in {kind.d}",
            f"shapes for {a}: {', '.join(f'm{m}n{n}k{k}' for m, n, k in sorted(shapes))}",
        )
    return kind


def mma(x: Expander, op: ir.Operation, b: Builder, kind: Mma, a: ir.Value, right: ir.Value, c: ir.Value) -> ir.Value:
    """A lane's part of D = A B + C; vectors, as in `mma_sync`."""
    meeting = meet(x, op, b, f"mma_sync.{kind.name}", b.i32(-1), [(a, A_AT), (right, B_AT), (c, C_AT)])
    first = once(b, meeting)
    _outlined(x, kind.name, lambda inner, slots: _multiply(x, inner, slots, kind))
    first.call(kind.name, [], [meeting.inside(first).at("payload")])
    result = b.load(c.type, b.byte_gep(slot(b, meeting, lane_of(x, b)), C_AT), 4)
    leave(b, meeting)
    return result


@hardware("mma_sync")
def _mma_sync(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    a, right, c = op.operands
    m, n, k = (op.attributes[name].value for name in "mnk")
    d = str(c.type.element_type)  # pyright: ignore[reportAttributeAccessIssue]
    kind = Mma(m, n, k, op.attributes["a_type"].value, op.attributes["b_type"].value, d)
    return [mma(x, op, b, checked(op, kind), a, right, c)]


# --- ldmatrix, stmatrix ----------------------------------------------------------------------------------------------

_POINTER_AT, _REGISTERS_AT = 0, 16


def _matrix_access(count: int, transpose: bool, stores: bool) -> Callable[[Builder, ir.Value], None]:
    """Move the registers of all lanes from or to the rows whose addresses they brought."""

    def body(b: Builder, slots: ir.Value) -> None:
        i16 = int_type(16)
        each, lane = b.for_(b.i32(0), b.i32(32), b.i32(1))
        g, t = each.binary("shrui", lane, each.i32(2)), each.binary("andi", lane, each.i32(3))
        own = each.byte_gep(slots, each.binary("muli", lane, each.i32(PAYLOAD)))

        def row(matrix: int, number: ir.Value) -> ir.Value:
            """The address of a row of a matrix."""
            who = each.binary("addi", number, each.i32(8 * matrix))
            return each.load(ptr_type(), each.byte_gep(slots, each.binary("muli", who, each.i32(PAYLOAD))))

        for matrix in range(count):
            register = each.byte_gep(own, _REGISTERS_AT + 4 * matrix)
            # the two elements of the register: (row, column) in the matrix
            first = each.binary("muli", t, each.i32(2))
            second = each.binary("addi", first, each.i32(1))
            places = [(first, g), (second, g)] if transpose else [(g, first), (g, second)]
            for half, (r, c) in enumerate(places):
                inside = each.gep(row(matrix, r), i16, c)
                part = each.byte_gep(register, 2 * half)
                source, target = (part, inside) if stores else (inside, part)
                each.store(each.load(i16, source), target)

    return body


def _matrix_name(op: ir.Operation, name: str, count: int, transpose: bool) -> str:
    if count not in (1, 2, 4):
        raise report_at(op.location, DSLNotImplemented, f"{name} of {count} matrices: 1, 2 or 4 are possible")
    return f"{name}.x{count}{'.trans' * transpose}"


def _rows(x: Expander, op: ir.Operation, b: Builder, address: ir.Value, count: int, stores: bool) -> None:
    """In an instrumented build: eight lanes for each matrix give the address of a row."""
    Hooks(x, op).rows(b, address, 8 * count, stores)
    if x.module.banks is not None:
        frame_of(x, op)
        gives = b.if_(b.compare("ult", lane_of(x, b), b.i32(8 * count)))
        x.module.banks.access(x, op, gives, address, 16, 16, "stmatrix" if stores else "ldmatrix")


def load_matrices(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, count: int, transpose: bool
) -> ir.Value:
    """A lane's registers of `count` matrices, as a vector of i32."""
    name = _matrix_name(op, "ldmatrix", count, transpose)
    _rows(x, op, b, pointer, count, stores=False)
    meeting = meet(x, op, b, name, b.i32(-1), [(pointer, _POINTER_AT)])
    first = once(b, meeting)
    _outlined(x, f"kiln.{name}", _matrix_access(count, transpose, stores=False))
    first.call(f"kiln.{name}", [], [meeting.inside(first).at("payload")])
    made = b.load(_vector(count, int_type(32)), b.byte_gep(slot(b, meeting, lane_of(x, b)), _REGISTERS_AT), 4)
    leave(b, meeting)
    return made


def store_matrices(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, value: ir.Value, count: int, transpose: bool
) -> None:
    """The inverse of `load_matrices`."""
    name = _matrix_name(op, "stmatrix", count, transpose)
    _rows(x, op, b, pointer, count, stores=True)
    meeting = meet(x, op, b, name, b.i32(-1), [(pointer, _POINTER_AT), (value, _REGISTERS_AT)])
    first = once(b, meeting)
    _outlined(x, f"kiln.{name}", _matrix_access(count, transpose, stores=True))
    first.call(f"kiln.{name}", [], [meeting.inside(first).at("payload")])
    leave(b, meeting)


def transpose_matrix(x: Expander, op: ir.Operation, b: Builder, register: ir.Value) -> ir.Value:
    """`movmatrix`: a lane's register of the transpose of an 8x8 matrix of 16-bit elements."""
    meeting = meet(x, op, b, "movmatrix", b.i32(-1), [(register, 0)])
    lane, i16 = lane_of(x, b), int_type(16)
    g, t = b.binary("shrui", lane, b.i32(2)), b.binary("andi", lane, b.i32(3))
    made = b.i32(0)
    for half in range(2):
        # element (g, 2 t + half) of the transpose: row 2 t + half, column g
        row = b.binary("addi", b.binary("muli", t, b.i32(2)), b.i32(half))
        holder = b.binary("addi", b.binary("muli", row, b.i32(4)), b.binary("shrui", g, b.i32(1)))
        part = b.gep(slot(b, meeting, holder), i16, b.binary("andi", g, b.i32(1)))
        wide = b.value("arith.extui", int_type(32), (b.load(i16, part),))
        made = b.binary("ori", made, b.binary("shli", wide, b.i32(16 * half)))
    leave(b, meeting)
    return made


@hardware("ldmatrix")
def _ldmatrix(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [load_matrices(x, op, b, op.operands[0], op.attributes["count"].value, "transpose" in op.attributes)]


@hardware("stmatrix")
def _stmatrix(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, value = op.operands
    store_matrices(x, op, b, pointer, value, op.attributes["count"].value, "transpose" in op.attributes)
    return []
