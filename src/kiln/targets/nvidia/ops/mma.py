"""Tensor-core operations, matrix loads and stores."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ....hardware import features, mma_shapes
from ....mlir import context, ir
from ...lowering.arithmetic import element_of
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers, Types
from ..device_builder import DeviceBuilder, shared_address
from ..passes import store_forwarding

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()

_LETTERS = {"i32": "r", "f32": "f", "f64": "d", "i64": "l"}
_SUMS = {"i32": "s32"}
"""Types of sums whose names in PTX are others."""


@functools.lru_cache(maxsize=64)
def _vector(count: int, element: ir.Type) -> ir.Type:
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context()))


def _registers(x: Expander, b: DeviceBuilder, vector: ir.Value, as_bits: bool) -> list[ir.Value]:
    """A fragment as registers of PTX: f16 in pairs, and words where the instruction wants bits.

    Those of a fragment that an operation made, or a part of one, are known. Another goes into many products, and is taken apart
    for the first of them in a block: operations of a block are expanded in their order.
    """
    wanted = _as_words(vector.type, as_bits)
    found = _made_registers(x, vector)
    if found is not None and found[0].type == wanted.element_type:
        return found
    key = (vector, b.point.block, as_bits)
    found = x.taken_apart.get(key)
    if found is None:
        words = vector if vector.type == wanted else b.value("llvm.bitcast", wanted, (vector,))
        found = x.taken_apart[key] = x.elements(b, words)
    return found


@functools.lru_cache(maxsize=64)
def _as_words(type_: Any, as_bits: bool) -> Any:
    """The vector of registers that a fragment is."""
    element = type_.element_type
    if isinstance(element, ir.F16Type):
        return _vector(type_.shape[0] // 2, int_type(32))
    return _vector(type_.shape[0], int_type(32)) if as_bits and isinstance(element, ir.F32Type) else type_


def _made_registers(x: Expander, vector: ir.Value) -> list[ir.Value] | None:
    """The registers of a fragment that an operation made, or of a part of one."""
    found = x.results.get(vector)
    if found is not None or (op := store_forwarding.part_of(vector)) is None:
        return found
    source = op.operands[0]
    found = _made_registers(x, source)
    if found is None:
        return None
    whole: Any = source.type
    type_: Any = vector.type
    register: Any = found[0].type
    first, rest = divmod(store_forwarding.first_element(op) * whole.element_type.width, register.width)
    count, more = divmod(type_.shape[0] * type_.element_type.width, register.width)
    return None if rest or more else found[first : first + count]


@HANDLERS.expands("cute_nvgpu.mma_sync")
def _mma_sync(x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> None:
    m, n, k = (op.attributes[name].value for name in "mnk")
    left, right = op.attributes["a_type"].value, op.attributes["b_type"].value
    a, second, c = op.operands
    d_type = _name(element_of(results[0]))
    sums = _SUMS.get(d_type, d_type)
    product = _product((m, n, k), left, right, sums)
    x.require(op, product.feature)
    groups = [
        _registers(x, b, a, as_bits=left == "tf32"), _registers(x, b, second, as_bits=right == "tf32"),
        _registers(x, b, c, as_bits=False),
    ]  # fmt: skip
    operands = [part for group in groups for part in group]
    outputs = [part.type for part in groups[2]]
    kinds = tuple((len(group), _name(group[0].type)) for group in (groups[2], *groups))
    # All threads of the warp take part: it must not be moved into a branch. LLVM's intrinsics compile faster, but they do not
    # touch memory: LLVM moves what was read a step ahead down to where they need it.
    x.results[op.results[0]] = b.asm(*_mma_text(m, n, k, left, right, sums, kinds), operands, outputs)


@functools.lru_cache(maxsize=64)
def _product(shape: mma_shapes.Shape, left: str, right: str, sums: str) -> mma_shapes.Product:
    found = mma_shapes.find("mma.sync", shape, left, right, sums)
    assert found is not None, "the verifier lets no other pass"
    return found


@functools.lru_cache(maxsize=64)
def _name(type_: ir.Type) -> str:
    return str(type_)


@functools.lru_cache(maxsize=256)
def _mma_text(
    m: int, n: int, k: int, left: str, right: str, sums: str, kinds: tuple[tuple[int, str], ...]
) -> tuple[str, str]:
    """The instruction and its constraints; `kinds` are how many registers of which type the result and the operands are."""
    names: list[str] = []
    letters: list[str] = []
    for place, (count, kind) in enumerate(kinds):
        names.append("{" + ", ".join(f"${len(letters) + i}" for i in range(count)) + "}")
        letters += [_LETTERS[kind] if place else f"={_LETTERS[kind]}"] * count
    code = f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{sums}.{left}.{right}.{sums} {', '.join(names)};"
    return code, ",".join(letters)


def _matrices(op: ir.Operation) -> tuple[int, str]:
    return op.attributes["count"].value, ".trans" if "transpose" in op.attributes else ""


def _source_format(x: Expander, op: ir.Operation, plain: str) -> str:
    """What elements are: as they are, or unpacked into bytes."""
    if "unpack" not in op.attributes:
        return plain
    bits = op.attributes["unpack"].value
    x.require(op, features.BYTE_MATRICES, f"ldmatrix that unpacks elements of {bits} bits")
    return f"b8x16.b{bits}x16_p{128 - 16 * bits}"


def _load(x: Expander, b: DeviceBuilder, op: ir.Operation, code: str, count: int) -> None:
    names = ", ".join(f"${n}" for n in range(count))
    words = [int_type(32)] * count
    pointer = shared_address(b, op.operands[0])
    x.results[op.results[0]] = b.asm(
        f"{code} {{{names}}}, [${count}];", ",".join(["=r"] * count + ["r"]), [pointer], words
    )


@HANDLERS.expands("cute_nvgpu.ldmatrix")
def _ldmatrix(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> None:
    count, transpose = _matrices(op)
    shape = "m8n16" if "unpack" in op.attributes else "m8n8"
    code = f"ldmatrix.sync.aligned.{shape}.x{count}{transpose}.shared.{_source_format(x, op, 'b16')}"
    _load(x, b, op, code, count)


@HANDLERS.expands("cute_nvgpu.ldmatrix_bytes")
def _ldmatrix_bytes(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> None:
    x.require(op, features.BYTE_MATRICES, "ldmatrix of 16x16 matrices of bytes")
    count = op.attributes["count"].value
    code = f"ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.{_source_format(x, op, 'b8')}"
    _load(x, b, op, code, 2 * count)


@HANDLERS.expands("cute_nvgpu.stmatrix_bytes")
def _stmatrix_bytes(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BYTE_MATRICES, "stmatrix of 16x8 matrices of bytes")
    count, _ = _matrices(op)
    _store(x, b, op, f"stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8", count)
    return []


def _store(x: Expander, b: DeviceBuilder, op: ir.Operation, code: str, count: int) -> None:
    names = ", ".join(f"${n + 1}" for n in range(count))
    operands = [shared_address(b, op.operands[0]), *x.elements(b, op.operands[1])]
    b.asm(f"{code} [$0], {{{names}}};", ",".join(["r"] * (count + 1)), operands)


@HANDLERS.expands("cute_nvgpu.stmatrix")
def _stmatrix(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.STMATRIX)
    count, transpose = _matrices(op)
    _store(x, b, op, f"stmatrix.sync.aligned.m8n8.x{count}{transpose}.shared.b16", count)
    return []
