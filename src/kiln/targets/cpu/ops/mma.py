"""Tensor-core operations as host code: `mma_sync`, `ldmatrix`, `stmatrix`.

The lanes of a warp meet; the first that continues does the work of all, in a function of the module that is made once
for each kind of operation. A lane's slot (`threads.PAYLOAD`) holds its operands, and its results afterwards.

Which elements a lane holds, and what is computed of them, is in the plain definitions
(`dialects/nvgpu/definitions.py`). Here g is lane / 4 and t is lane % 4.
"""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Callable, Sequence

from ....dialects import nvgpu
from ....dialects.declaration import OpView
from ....hardware import mma_shapes
from ....mlir import context, ir
from ...lowering.builder import Builder, function, global_, int_type, parsed_type, ptr_type
from ...lowering.expansion import AnyOp, Handlers
from ..expand import Expander
from ..runtime import block_scaling
from ..runtime.block_scaling import A_AT, B_AT, C_AT, SCALE_A_AT, SCALE_B_AT
from ..runtime.block_scaling import SCALE_A_AT as METADATA_AT
from ..runtime.record_access import leave
from ..runtime.records import PAYLOAD
from ..sanitizer.hooks import hooks_of
from .warp import lane_of, meet, once_for_warp, slot

HANDLERS = Handlers()


@dataclasses.dataclass(frozen=True)
class Mma:
    """One kind of `mma_sync`."""

    m: int
    n: int
    k: int
    a: str
    b: str
    d: str
    saturates: bool = False
    """Whether integer accumulators saturate."""
    selector: int | None = None
    """The sparsity selector of a sparse A."""

    @property
    def name(self) -> str:
        sparse = "" if self.selector is None else f".sp{self.selector}"
        return f"kiln.mma{sparse}.m{self.m}n{self.n}k{self.k}.{self.a}.{self.b}.{self.d}{'.sat' * self.saturates}"

    @property
    def stored(self) -> int:
        """The elements of a row of A."""
        return self.k if self.selector is None else self.k // 2

    @property
    def sum(self) -> str:
        """The type of the accumulator."""
        return "i32" if self.d == "i32" else _compute_type(self.a)

    def bits_of(self, element: str) -> int:
        """Return the bits of an element of A or B in a register.

        Matrices of bits are matrices of words whose MMA counts the bits that both (`and`) or only one
        (`xor`) has.
        """
        if element.startswith("b1"):
            return 32
        return mma_shapes.container_bits(element, mma_shapes.warp_kind(self.a, self.b))


# --- mma.sync --------------------------------------------------------------------------------------------------------


def _outlined(x: Expander, name: str, body: Callable[[Builder, ir.Value], None]) -> None:
    """Make a function of a pointer to the lanes' slots, once for the module."""
    if name in x.module.declared:
        return
    x.module.declared.add(name)
    x.module.outlined.add(name)
    outlined = function(x.module.module, name, [ptr_type()], [])
    entry = outlined.regions[0].blocks[0]
    b = Builder(ir.InsertionPoint(entry), ir.Location.unknown(context()))
    body(b, entry.arguments[0])
    b.op("func.return", (), ())


def _vector(count: int, element: ir.Type) -> ir.Type:
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context()))


def _table(x: Expander, name: str) -> str:
    """Return the name of a global constant with the values of the 256 bytes that hold a narrow float, as f32."""
    symbol = f"kiln.{name}"
    if symbol not in x.module.declared:
        x.module.declared.add(symbol)
        from ....dialects.nvgpu import definitions

        values = array.array("f", [definitions.decode(name, code) for code in range(256)])
        f32 = ir.F32Type.get(context())
        tensor = ir.RankedTensorType.get([256], f32, loc=ir.Location.unknown(context()))
        value = ir.DenseElementsAttr.get(values, type=tensor, context=context())
        global_(
            x.module.module, symbol, parsed_type("!llvm.array<256 x f32>"), value, linkage="internal", constant=True
        )
    return symbol


def _compute_type(kind: str) -> str:
    """Return the type in which elements are multiplied.

    Bytes are multiplied in f32: 32 terms of 16 bits and their accumulator are exact there, and faster.
    """
    if kind.startswith("b1"):
        return "i32"
    return "f64" if kind == "f64" else "f32"


def _elements(x: Expander, b: Builder, address: ir.Value, kind: str, count: int) -> ir.Value:
    """Load consecutive elements of A or B, as a vector of the type in which they are multiplied."""
    i32 = int_type(32)
    wide = _vector(count, parsed_type(_compute_type(kind)))
    words = _vector(count, i32)
    if kind == "f16":
        return b.value("arith.extf", wide, (b.load(_vector(count, ir.F16Type.get(context())), address, 8),))
    if kind == "bf16":
        raised = b.value("arith.extui", words, (b.load(_vector(count, int_type(16)), address, 8),))
        return b.value("arith.bitcast", wide, (b.binary("shli", raised, b.const(words, 16)),))
    if kind == "tf32":  # the lowest 13 bits of a register are ignored
        return b.value("arith.bitcast", wide, (b.binary("andi", b.load(words, address, 8), b.const(words, -8192)),))
    if kind == "f64":
        return b.load(wide, address, 8)
    if kind.startswith("b1"):
        return b.load(words, address, 4)
    if kind in ("s4", "u4"):  # the lower half of a byte comes first
        pairs = _vector(count // 2, i32)
        low = b.value("arith.extui", pairs, (b.load(_vector(count // 2, int_type(8)), address, 4),))
        both = [b.binary("shli", low, b.const(pairs, shift)) for shift in (28, 24)]
        even, odd = (b.binary("shrsi" if kind == "s4" else "shrui", part, b.const(pairs, 28)) for part in both)
        order = [n // 2 + count // 2 * (n % 2) for n in range(count)]
        return b.value("arith.sitofp", wide, (_shuffled(b, even, odd, order),))
    bytes_ = b.load(_vector(count, int_type(8)), address, 4)
    if kind in ("s8", "u8"):
        numbers = b.value("arith.extsi" if kind == "s8" else "arith.extui", words, (bytes_,))
        return b.value("arith.sitofp", wide, (numbers,))
    table = b.address_of(_table(x, kind))
    f32 = ir.F32Type.get(context())
    values: list[ir.Value] = []
    for number in range(count):
        code = b.element(bytes_, number)
        values.append(b.load(f32, b.gep(table, f32, b.value("arith.extui", int_type(64), (code,)))))
    return b.value("vector.from_elements", wide, values)


def _shuffled(b: Builder, first: ir.Value, second: ir.Value, order: list[int]) -> ir.Value:
    type_ = _vector(len(order), first.type.element_type)  # pyright: ignore[reportAttributeAccessIssue]
    return b.value("vector.shuffle", type_, (first, second), {"mask": ir.DenseI64ArrayAttr.get(order, context())})


def _rows_of_b(x: Expander, b: Builder, slots: ir.Value, rows: ir.Value, kind: Mma) -> None:
    """Widen B and store it by rows: lane 4 g + t holds parts of column g."""
    from ....dialects.nvgpu import definitions  # when there is an MMA: it loads the dialect

    # the rows that lane 0 holds; lane t holds those `step` t further on
    places, (next_, *_) = ([row for row, _ in definitions.b_places(kind.k, kind.bits_of(kind.b), t)] for t in range(2))
    step = next_ - places[0]
    type_ = parsed_type(_compute_type(kind.b))

    def held(c: Builder, lane: ir.Value) -> ir.Value:
        own = c.byte_gep(slots, c.binary("muli", lane, PAYLOAD))
        return _elements(x, c, c.byte_gep(own, B_AT), kind.b, len(places))

    columns, t = b.for_(b.i32(0), b.i32(4), b.i32(1))
    start = columns.gep(rows, type_, columns.binary("muli", t, step * kind.n))
    if len(places) % 4:
        each, g = columns.for_(columns.i32(0), columns.i32(8), columns.i32(1))
        widened = held(each, each.binary("addi", each.binary("muli", g, 4), t))
        for number, place in enumerate(places):
            where = each.gep(each.gep(start, type_, g), type_, place * kind.n)
            each.store(each.element(widened, number), where)
        return
    for first in (0, 4):  # four columns at a time: parts of four rows
        lanes = [held(columns, columns.binary("addi", t, 4 * (first + g))) for g in range(4)]
        for part in range(0, len(places), 4):
            whole = [
                value if len(places) == 4 else _shuffled(columns, value, value, list(range(part, part + 4)))
                for value in lanes
            ]
            low, high = (
                [_shuffled(columns, whole[n], whole[n + 1], order) for n in (0, 2)]
                for order in ([0, 4, 1, 5], [2, 6, 3, 7])
            )
            for number, (pairs, order) in enumerate(
                ((low, [0, 1, 4, 5]), (low, [2, 3, 6, 7]), (high, [0, 1, 4, 5]), (high, [2, 3, 6, 7]))
            ):
                where = columns.gep(start, type_, places[part + number] * kind.n + first)
                columns.store(_shuffled(columns, pairs[0], pairs[1], order), where, 16)


def _multiply(x: Expander, b: Builder, slots: ir.Value, kind: Mma) -> None:
    """Widen A and B, multiply, and store D in place of C.

    An accumulator starts with C and takes the terms in the order of k, each by one FMA. For integers C is added
    last, modulo 2**32.
    """
    from ....dialects.nvgpu import definitions  # when there is an MMA: it loads the dialect

    type_ = parsed_type(_compute_type(kind.a))
    is_integer = kind.sum == "i32"
    row_type = _vector(kind.n, type_)
    d_type = parsed_type(kind.d)
    in_a = [definitions.a_places(kind.m, kind.stored, kind.bits_of(kind.a), t) for t in range(4)]
    held = len(in_a[0])
    a = b.alloca(type_, kind.m * kind.stored, 64)  # as the lanes hold it
    rows = b.alloca(type_, kind.k * kind.n, 64)  # of B

    each, lane = b.for_(b.i32(0), b.i32(32), b.i32(1))
    own = each.byte_gep(slots, each.binary("muli", lane, PAYLOAD))
    widened = _elements(x, each, each.byte_gep(own, A_AT), kind.a, held)
    each.store(widened, each.gep(a, type_, each.binary("muli", lane, held)), 8)
    _rows_of_b(x, b, slots, rows, kind)

    # element (8 half + g, k) of A: element `number` of lane 4 g + t
    holder = {(row // 8, k): (t, number) for t in range(4) for number, (row, k) in enumerate(in_a[t])}
    halves = kind.m // 8
    together = 2
    outer, start = b.for_(b.i32(0), b.i32(8), b.i32(together))
    groups = [outer.binary("addi", start, n) for n in range(together)]
    pair = _vector(2, d_type)  # pyright: ignore[reportAttributeAccessIssue]
    d_bytes = d_type.width // 8  # pyright: ignore[reportAttributeAccessIssue]

    def place_of(group: ir.Value, t: int, half: int) -> ir.Value:
        """Return the address of two elements of C in a row, which a lane holds."""
        lane = outer.binary("addi", outer.binary("muli", group, 4), t)
        return outer.byte_gep(outer.byte_gep(slots, outer.binary("muli", lane, PAYLOAD)), C_AT + 2 * half * d_bytes)

    starts: dict[tuple[int, int], ir.Value] = {}
    for which, group in enumerate(groups):
        for half in range(halves):
            pairs = [outer.load(pair, place_of(group, t, half), d_bytes) for t in range(4)]
            low, high = (_shuffled(outer, pairs[n], pairs[n + 1], [0, 1, 2, 3]) for n in (0, 2))
            starts[which, half] = _shuffled(outer, low, high, list(range(8)))
    if is_integer:
        totals = dict.fromkeys(starts, outer.value("llvm.mlir.zero", row_type))
    elif d_type == type_:
        totals = dict(starts)
    else:
        totals = {place: outer.value("arith.extf", row_type, (row,)) for place, row in starts.items()}
    fragments = [outer.gep(a, type_, outer.binary("muli", group, 4 * held)) for group in groups]
    for k in range(kind.stored):
        right = outer.load(row_type, outer.gep(rows, type_, k * kind.n), 16)
        for which, half in list(totals):
            if kind.selector is not None:
                place = _sparse_place(outer, slots, groups[which], half, k, kind)
                right = outer.load(row_type, outer.gep(rows, type_, outer.binary("muli", place, kind.n)), 16)
            t, number = holder[half, k]
            left = outer.load(type_, outer.gep(fragments[which], type_, t * held + number))
            spread = outer.value("vector.broadcast", row_type, (left,))
            if kind.a.startswith("b1"):
                same = outer.binary("andi" if kind.a == "b1.and" else "xori", spread, right)
                product = outer.value("math.ctpop", row_type, (same,))
                totals[which, half] = outer.binary("addi", totals[which, half], product)
                continue
            totals[which, half] = outer.value("math.fma", row_type, (spread, right, totals[which, half]))
    for (which, half), total in totals.items():
        row = total
        if is_integer:
            whole = total if type_ == d_type else outer.value("arith.fptosi", _vector(kind.n, d_type), (total,))
            row = _sum(outer, starts[which, half], whole, kind.saturates)
        elif d_type != type_:
            row = outer.value("arith.truncf", _vector(kind.n, d_type), (total,))
        for t in range(4):
            outer.store(_shuffled(outer, row, row, [2 * t, 2 * t + 1]), place_of(groups[which], t, half), d_bytes)


def _sparse_place(b: Builder, slots: ir.Value, group: ir.Value, half: int, number: int, kind: Mma) -> ir.Value:
    """Return which element along K an element of row 8 half + g of a sparse A is; `number` counts those of the row."""
    from ....dialects.nvgpu import definitions  # when there is a sparse A: it loads the dialect

    assert kind.selector is not None
    size = mma_shapes.sparse_chunk(kind.a)
    chunk, inside = divmod(number, size // 2)
    thread, bit = definitions.metadata_place(kind.a, kind.k, 8 * half, chunk, kind.selector)
    lane = b.binary("addi", b.binary("muli", group, 4), thread)
    word = b.load(int_type(32), b.byte_gep(b.byte_gep(slots, b.binary("muli", lane, PAYLOAD)), METADATA_AT), 4)
    if kind.a == "tf32":  # 0b0100 or 0b1110
        index = b.binary("andi", b.binary("shrui", word, bit + 3), 1)
        return b.binary("addi", index, chunk * size)
    each = size // 4
    index = b.binary("andi", b.binary("shrui", word, bit + 2 * (inside // each)), 3)
    return b.binary("addi", b.binary("muli", index, each), chunk * size + inside % each)


def _wrong_metadata(b: Builder, word: ir.Value, kind: Mma, ordered: bool) -> ir.Value:
    """Return whether one of the eight indices of a word of metadata means nothing."""
    i32 = int_type(32)
    every = lambda nibble: b.const(i32, (nibble * 0x11111111) - (nibble >> 3 << 32))
    if kind.a == "tf32":  # 0b0100 or 0b1110
        mixed = b.binary("xori", word, b.binary("shrui", word, 2))
        other = b.binary("xori", b.binary("andi", word, every(5)), every(4))
        return b.compare("ne", b.binary("ori", other, b.binary("andi", mixed, every(2))), 0)
    low = b.binary("andi", word, every(3))
    high = b.binary("andi", b.binary("shrui", word, 2), every(3))
    difference = b.binary("subi", b.binary("ori", high, every(8)), low)  # 8 + high - low in each of eight places
    right = b.binary("addi", b.binary("andi", difference, every(7)), every(7))  # bit 3: they differ
    if ordered:
        right = b.binary("andi", right, difference)
    return b.compare("ne", b.binary("andi", right, every(8)), every(8))


def _sum(b: Builder, c: ir.Value, total: ir.Value, saturates: bool) -> ir.Value:
    """Return C + A B of integers."""
    if not saturates:
        return b.binary("addi", c, total)
    wide = _vector(c.type.shape[0], int_type(64))  # pyright: ignore[reportAttributeAccessIssue]
    whole = b.binary("addi", *(b.value("arith.extsi", wide, (part,)) for part in (c, total)))
    for name, limit in (("minsi", (1 << 31) - 1), ("maxsi", -(1 << 31))):
        whole = b.binary(name, whole, b.const(wide, limit))
    return b.value("arith.trunci", c.type, (whole,))


def _kind_of(op: nvgpu.mma.MmaSync) -> Mma:
    """Return the kind of an `mma_sync`."""
    return Mma(op.m, op.n, op.k, op.a_type, op.b_type, str(op.c.type.element_type))


def mma(
    x: Expander,
    op: AnyOp,
    b: Builder,
    kind: Mma,
    a: ir.Value,
    right: ir.Value,
    c: ir.Value,
    metadata: ir.Value | None = None,
) -> ir.Value:
    """Return a lane's part of D = A B + C; vectors, as in `mma_sync`, and the metadata of a sparse A."""
    operands = [(a, A_AT), (right, B_AT), (c, C_AT), *([] if metadata is None else [(metadata, METADATA_AT)])]
    meeting = meet(x, op, b, f"mma_sync.{kind.name}", b.i32(-1), operands)
    first = once_for_warp(x, op, b, "mma_sync", meeting)
    first.call(_mma_function(x, kind), [], [meeting.inside(first).at("payload")])
    result = b.load(c.type, b.byte_gep(slot(b, meeting, lane_of(x, b)), C_AT), 4)
    leave(b, meeting)
    return result


def mma_sp(
    x: Expander,
    op: AnyOp,
    b: Builder,
    kind: Mma,
    operands: Sequence[ir.Value],
    metadata: ir.Value,
    *,
    ordered: bool = True,
) -> ir.Value:
    """Return a lane's part of D = A B + C with a sparse A; `operands` are A, B and C as in `mma_sp`."""
    assert kind.selector is not None
    threads = 4 // mma_shapes.sparse_selectors(kind.a, kind.k)
    thread = b.binary("andi", lane_of(x, b), 3)
    has_metadata = b.compare("eq", b.binary("divui", thread, threads), kind.selector)
    wrong = lambda c: c.binary("andi", has_metadata, _wrong_metadata(c, metadata, kind, ordered))
    choices = "0b0100 or 0b1110" if kind.a == "tf32" else "two numbers of 2 bits, the smaller one in the lower bits"
    x.refuse(op, b, wrong, metadata, "mma.sp with metadata %d", f"each 4 bits are {choices}")
    return mma(x, op, b, kind, *operands, metadata=metadata)


@HANDLERS.expands(nvgpu.mma.MmaSp)
def _mma_sp(x: Expander, op: nvgpu.mma.MmaSp, b: Builder) -> ir.Value:
    kind = Mma(op.m, op.n, op.k, op.a_type, op.b_type, str(op.c.type.element_type), selector=op.selector)
    return mma_sp(x, op, b, kind, (op.a, op.b, op.c), op.metadata)


def _mma_function(x: Expander, kind: Mma) -> str:
    """Return the function that multiplies for all lanes."""
    _outlined(x, kind.name, lambda inner, slots: _multiply(x, inner, slots, kind))
    return kind.name


@HANDLERS.expands(nvgpu.mma.MmaSync)
def _mma_sync(x: Expander, op: nvgpu.mma.MmaSync, b: Builder) -> ir.Value:
    return mma(x, op, b, _kind_of(op), op.a, op.b, op.c)


def _scaled_kind(op: nvgpu.mma.MmaBlockScale) -> int:
    return block_scaling.kind_of(
        op.kind, op.a_type, op.b_type, op.scale_type, op.scale_vector, op.byte_a, op.thread_a, op.byte_b, op.thread_b
    )


def _scaled_function(x: Expander, kind: int) -> str:
    """Return the function that multiplies with scale factors for all lanes; `kind` as `block_scaling.kind_of` has it."""

    def body(b: Builder, slots: ir.Value) -> None:
        x.call(b, "kiln_cpu_mma_block_scale", [slots, b.i32(kind)])

    _outlined(x, f"kiln.mma_block_scale.{kind}", body)
    return f"kiln.mma_block_scale.{kind}"


def scaled_mma(
    x: Expander, op: ir.Operation, b: Builder, kind: int, operands: Sequence[tuple[ir.Value, int]], type_: ir.Type
) -> ir.Value:
    """Return a lane's part of D = (A SFA) (B SFB) + C; operands lie in the slot as those of `mma_block_scale` do."""
    meeting = meet(x, op, b, f"mma_block_scale.{kind}", b.i32(-1), operands)
    first = once_for_warp(x, op, b, "mma_block_scale", meeting)
    first.call(_scaled_function(x, kind), [], [meeting.inside(first).at("payload")])
    result = b.load(type_, b.byte_gep(slot(b, meeting, lane_of(x, b)), C_AT), 4)
    leave(b, meeting)
    return result


@HANDLERS.expands(nvgpu.mma.MmaBlockScale)
def _mma_block_scale(x: Expander, op: nvgpu.mma.MmaBlockScale, b: Builder) -> ir.Value:
    return scaled_mma(x, op, b, _scaled_kind(op), operands_at(op), op.c.type)


# --- ldmatrix, stmatrix ----------------------------------------------------------------------------------------------

_POINTER_AT = 0
_REGISTERS_AT = 16


@dataclasses.dataclass(frozen=True)
class Matrices:
    """The matrices of an `ldmatrix` or `stmatrix`: `count` of one shape.

    m8n8: 16-bit elements. m8n16: 8-bit elements that are unpacked from `unpack` bits. m16n16: bytes, perhaps unpacked,
    transposed. m16n8: bytes, transposed, to be stored.
    """

    stores: bool
    count: int
    transpose: bool = False
    shape: str = "m8n8"
    unpack: int = 0

    @property
    def name(self) -> str:
        kind = "stmatrix" if self.stores else "ldmatrix"
        return f"{kind}.{self.shape}.x{self.count}{'.trans' * self.transpose}{f'.b{self.unpack}' * (self.unpack > 0)}"

    @property
    def lanes(self) -> int:
        """How many lanes give the address of a row of memory."""
        return self.count * (16 if self.shape == "m16n16" else 8)

    @property
    def registers(self) -> int:
        """How many registers of a lane take part."""
        return self.count * (2 if self.shape == "m16n16" else 1)


def matrices_of(operation: type[OpView], count: int, fields: object) -> Matrices:
    """Return the matrices of an operation; `fields` has its other attributes."""
    transpose = bool(getattr(fields, "transpose", False))
    unpack = getattr(fields, "unpack", None) or 0
    if operation is nvgpu.mma.StMatrix:
        return Matrices(True, count, transpose)
    if operation is nvgpu.mma.StMatrixBytes:
        return Matrices(True, count, True, "m16n8")
    if operation is nvgpu.mma.LdMatrixBytes:
        return Matrices(False, count, True, "m16n16", unpack)
    return Matrices(False, count, transpose, "m8n16" if unpack else "m8n8", unpack)


def _matrix_access(kind: Matrices) -> Callable[[Builder, ir.Value], None]:
    """Move the registers of all lanes from or to the rows whose addresses they brought."""
    move = {"m8n8": _move_words, "m8n16": _move_bytes, "m16n16": _move_bytes, "m16n8": _move_bytes}[kind.shape]

    def body(b: Builder, slots: ir.Value) -> None:
        each, lane = b.for_(b.i32(0), b.i32(32), b.i32(1))
        g = each.binary("shrui", lane, 2)
        t = each.binary("andi", lane, 3)
        own = each.byte_gep(slots, each.binary("muli", lane, PAYLOAD))

        def row(first: int, number: ir.Value) -> ir.Value:
            """Return the address that lane `first + number` brought."""
            who = each.binary("addi", number, first)
            return each.load(ptr_type(), each.byte_gep(slots, each.binary("muli", who, PAYLOAD)))

        move(each, kind, g, t, each.byte_gep(own, _REGISTERS_AT), row)

    return body


def _move_words(
    b: Builder, kind: Matrices, g: ir.Value, t: ir.Value, registers: ir.Value, row: Callable[[int, ir.Value], ir.Value]
) -> None:
    i16 = int_type(16)
    for matrix in range(kind.count):
        register = b.byte_gep(registers, 4 * matrix)
        # the two elements of the register: (row, column) in the matrix
        first = b.binary("muli", t, 2)
        second = b.binary("addi", first, 1)
        places = [(first, g), (second, g)]
        if not kind.transpose:  # they lie side by side
            inside = b.gep(row(8 * matrix, g), i16, first)
            source, target = (register, inside) if kind.stores else (inside, register)
            b.store(b.load(int_type(32), source, 4), target, 4)
            continue
        for half, (r, c) in enumerate(places):
            inside = b.gep(row(8 * matrix, r), i16, c)
            part = b.byte_gep(register, 2 * half)
            source, target = (part, inside) if kind.stores else (inside, part)
            b.store(b.load(i16, source), target)


def _move_bytes(
    b: Builder, kind: Matrices, g: ir.Value, t: ir.Value, registers: ir.Value, row: Callable[[int, ir.Value], ir.Value]
) -> None:
    i8 = int_type(8)

    def line(value: ir.Value, factor: int, further: int) -> ir.Value:
        return b.binary("addi", b.binary("muli", value, factor), further)

    for register in range(kind.registers):
        for i in range(4):
            if kind.shape == "m8n16":  # four neighbours of row g
                memory = row(8 * register, g)
                place = line(t, 4, i)
            elif kind.shape == "m16n16":  # four rows of column g or g + 8
                matrix, half = divmod(register, 2)
                memory = row(16 * matrix, line(t, 4, i))
                place = line(g, 1, 8 * half)
            else:  # two rows of the memory, of which each has the bytes g and g + 8
                memory = row(8 * register, line(t, 2, i % 2))
                place = line(g, 1, 8 * (i // 2))
            part = b.byte_gep(registers, 4 * register + i)
            if kind.stores:
                b.store(b.load(i8, part), b.byte_gep(memory, place))
            else:
                b.store(_element(b, memory, place, kind.unpack), part)


def _element(b: Builder, memory: ir.Value, number: ir.Value, bits: int) -> ir.Value:
    """Return an element of a row as a byte; elements have `bits` bits, or 8 if that is 0."""
    i8 = int_type(8)
    i32 = int_type(32)
    if not bits:
        return b.load(i8, b.byte_gep(memory, number))
    place = b.binary("muli", number, bits)
    first = b.byte_gep(memory, b.binary("shrui", place, 3))
    low, high = (b.value("arith.extui", i32, (b.load(i8, b.byte_gep(first, n)),)) for n in range(2))
    both = b.binary("ori", low, b.binary("shli", high, 8))
    element = b.binary("andi", b.binary("shrui", both, b.binary("andi", place, 7)), (1 << bits) - 1)
    return b.value("arith.trunci", i8, (element,))


def _rows(x: Expander, op: ir.Operation, b: Builder, address: ir.Value, lanes: int, stores: bool) -> ir.Value:
    """Let instrumented builds check the rows whose addresses the first lanes give; return the address to use."""
    used = hooks_of(x, op).rows(b, address, lanes, stores)
    if x.module.counter is not None:
        x.frame_of(op)
        gives = b.if_(b.compare("ult", lane_of(x, b), lanes))
        x.module.counter.access(x, op, gives, "smem", address, 16, 16, "stmatrix" if stores else "ldmatrix")
    return used


def _movement(x: Expander, kind: Matrices) -> str:
    """Return the function that moves matrices for all lanes."""
    name = f"kiln.{kind.name}"
    _outlined(x, name, _matrix_access(kind))
    return name


def load_matrices(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, kind: Matrices) -> ir.Value:
    """Return a lane's registers of some matrices, as a vector of i32."""
    movement = _movement(x, kind)
    pointer = _rows(x, op, b, pointer, kind.lanes, stores=False)
    meeting = meet(x, op, b, kind.name, b.i32(-1), [(pointer, _POINTER_AT)])
    first = once_for_warp(x, op, b, kind.name, meeting)
    first.call(movement, [], [meeting.inside(first).at("payload")])
    registers = b.load(
        _vector(kind.registers, int_type(32)), b.byte_gep(slot(b, meeting, lane_of(x, b)), _REGISTERS_AT), 4
    )
    leave(b, meeting)
    return registers


def store_matrices(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, value: ir.Value, kind: Matrices
) -> None:
    """Store a lane's registers of some matrices, given as a vector of i32."""
    movement = _movement(x, kind)
    pointer = _rows(x, op, b, pointer, kind.lanes, stores=True)
    meeting = meet(x, op, b, kind.name, b.i32(-1), [(pointer, _POINTER_AT), (value, _REGISTERS_AT)])
    first = once_for_warp(x, op, b, kind.name, meeting)
    first.call(movement, [], [meeting.inside(first).at("payload")])
    leave(b, meeting)


def transpose_matrix(x: Expander, op: ir.Operation, b: Builder, register: ir.Value) -> ir.Value:
    """Return a lane's register of the transpose of an 8x8 matrix of 16-bit elements (`movmatrix`)."""
    meeting = meet(x, op, b, "movmatrix", b.i32(-1), [(register, 0)])
    lane = lane_of(x, b)
    i16 = int_type(16)
    g = b.binary("shrui", lane, 2)
    t = b.binary("andi", lane, 3)
    rows = b.i32(0)
    for half in range(2):
        # element (g, 2 t + half) of the transpose: row 2 t + half, column g
        row = b.binary("addi", b.binary("muli", t, 2), half)
        holder = b.binary("addi", b.binary("muli", row, 4), b.binary("shrui", g, 1))
        part = b.gep(slot(b, meeting, holder), i16, b.binary("andi", g, 1))
        wide = b.value("arith.extui", int_type(32), (b.load(i16, part),))
        rows = b.binary("ori", rows, b.binary("shli", wide, 16 * half))
    leave(b, meeting)
    return rows


@HANDLERS.expands(nvgpu.mma.LdMatrix, nvgpu.mma.LdMatrixBytes)
def _ldmatrix(x: Expander, op: nvgpu.mma.LdMatrix | nvgpu.mma.LdMatrixBytes, b: Builder) -> ir.Value:
    return load_matrices(x, op, b, op.pointer, matrices_of(type(op), op.count, op))


@HANDLERS.expands(nvgpu.mma.StMatrix, nvgpu.mma.StMatrixBytes)
def _stmatrix(x: Expander, op: nvgpu.mma.StMatrix | nvgpu.mma.StMatrixBytes, b: Builder) -> None:
    store_matrices(x, op, b, op.pointer, op.value, matrices_of(type(op), op.count, op))


WarpOperation = nvgpu.mma.MmaSync | nvgpu.mma.MmaBlockScale | nvgpu.mma.LdMatrix | nvgpu.mma.StMatrix
"""Operations that `passes/matrix_fusion.py` executes for a whole warp at once."""


# --- a whole warp at once (`matrix_fusion.py`)
# ------------------------------------------------------------------------------------


def warp_operation(x: Expander, op: WarpOperation) -> str:
    """Return the function that does an operation for all lanes, given their slots."""
    if isinstance(op, nvgpu.mma.MmaSync):
        return _mma_function(x, _kind_of(op))
    if isinstance(op, nvgpu.mma.MmaBlockScale):
        return _scaled_function(x, _scaled_kind(op))
    return _movement(x, matrices_of(type(op), op.count, op))


def operands_at(op: WarpOperation) -> list[tuple[ir.Value, int]]:
    """Return the operands of an operation, and where a lane leaves them in its slot."""
    if isinstance(op, nvgpu.mma.MmaSync):
        return [(op.a, A_AT), (op.b, B_AT), (op.c, C_AT)]
    if isinstance(op, nvgpu.mma.MmaBlockScale):
        return [(op.a, A_AT), (op.b, B_AT), (op.c, C_AT), (op.scale_a, SCALE_A_AT), (op.scale_b, SCALE_B_AT)]
    if isinstance(op, nvgpu.mma.StMatrix):
        return [(op.pointer, _POINTER_AT), (op.value, _REGISTERS_AT)]
    return [(op.pointer, _POINTER_AT)]


def result_at(op: WarpOperation) -> int:
    """Return where a lane finds the result in its slot."""
    return C_AT if isinstance(op, (nvgpu.mma.MmaSync, nvgpu.mma.MmaBlockScale)) else _REGISTERS_AT
