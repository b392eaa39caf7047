"""Atomic operations, and loads and stores with an order or a cache hint, as PTX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import context, ir
from ....ptx import memory, tma
from ....ptx.form import Form
from ...lowering.arithmetic import element_of
from ...lowering.builder import int_type, like
from ...lowering.expansion import AnyOp, Handlers
from ...lowering.memory import carrier_type, to_carrier
from ..device_builder import DeviceBuilder, as_bits, bits_of, from_bits, is_float, l2_policy
from ..expand import Expander

HANDLERS = Handlers()


def _space(pointer: ir.Value) -> str | None:
    """Return the PTX name of a pointer's address space; None for a generic one."""
    return {"!llvm.ptr<1>": "global", "!llvm.ptr<3>": "shared"}.get(str(pointer.type))


def _atomic_type(kind: str, type_: ir.Type) -> str:
    """Return the PTX type of an atomic operation."""
    element = element_of(type_)
    bits = bits_of(type_)
    if isinstance(element, ir.FloatType):
        vector = "x2" if isinstance(type_, ir.VectorType) else ""
        return f"{element}{vector}"
    if kind in ("and", "or", "xor", "exch", "cas"):
        return f"b{bits}"
    if kind in ("min", "max"):
        return f"s{bits}"
    return f"u{bits}"  # add, umin, umax, inc, dec: the bits are the same for signed numbers


@HANDLERS.expands(nvgpu.memory.AtomicRmw)
def _atomic_rmw(x: Expander, op: nvgpu.memory.AtomicRmw, b: DeviceBuilder) -> ir.Value:
    kind = op.kind
    order = op.order
    scope = op.scope
    _check_scope(x, op, scope)
    type_ = op.value.type
    if isinstance(type_, ir.VectorType) and bits_of(type_) > 32:
        return _vector_rmw(x, op, b)
    bits = as_bits(b, op.value)
    width = bits.type.width
    if not _has_instruction(x, kind, type_):
        old = _compare_and_swap_loop(op, b, _combination(kind, op.value))
        return from_bits(b, old, op.result.type)
    ptx_type = f"b{width}" if kind == "exch" else _atomic_type(kind, type_)
    how = {"order": order, "scope": scope, "space": _space(op.pointer), "kind": kind.removeprefix("u")}
    halves = "16" in ptx_type and is_float(type_)
    (old,) = b.ptx(memory.ATOM, [bits.type], **how, noftz=halves, type=ptx_type, pointer=op.pointer, value=bits)
    return from_bits(b, old, op.result.type)


def _vector_rmw(x: Expander, op: nvgpu.memory.AtomicRmw, b: DeviceBuilder) -> ir.Value:
    """Return the old elements of a vector: one instruction on global memory from sm_90 on, else one for each word."""
    type_: Any = op.value.type
    element = type_.element_type
    count = type_.shape[0]
    words = count * bits_of(element) // 32
    packed = "f32" if bits_of(element) == 32 else f"{element}x2"
    as_words = ir.VectorType.get([words], int_type(32), loc=ir.Location.unknown(context()))
    bits = b.value("vector.bitcast", as_words, (op.value,))
    pieces = [_element(b, bits, n) for n in range(words)]
    space = _space(op.pointer)
    how = {
        "order": op.order,
        "scope": op.scope,
        "space": space,
        "kind": "add",
        "noftz": packed != "f32",
        "type": packed,
    }
    i32 = int_type(32)
    if space == "global" and features.VECTOR_ATOMICS.on(x.arch):
        previous = b.ptx(memory.ATOM_VECTOR, [i32] * words, **how, count=words, pointer=op.pointer, value=pieces)
    else:
        previous = []
        for n, piece in enumerate(pieces):
            previous += b.ptx(memory.ATOM, [i32], **how, pointer=b.byte_gep(op.pointer, 4 * n), value=piece)
    return b.value("vector.bitcast", type_, (b.value("vector.from_elements", as_words, list(previous)),))


def _element(b: DeviceBuilder, vector: ir.Value, number: int) -> ir.Value:
    position = {"static_position": ir.DenseI64ArrayAttr.get([number], context())}
    return b.value("vector.extract", element_of(vector.type), (vector,), position)


def _check_scope(x: Expander, op: AnyOp, modifiers: str) -> None:
    if "cluster" in modifiers.split("."):
        x.require(op, features.CLUSTERS, "an access at the scope of a cluster")


def _has_instruction(x: Expander, kind: str, type_: ir.Type) -> bool:
    """Return whether PTX has the operation: others are loops around a compare-and-swap."""
    if is_float(type_):
        if kind == "exch":
            return bits_of(type_) >= 32
        narrow = str(element_of(type_)) == "bf16"
        return kind == "add" and (not narrow or features.BFLOAT16_ATOMICS.on(x.arch))
    return bits_of(type_) >= 32


def _combination(kind: str, value: ir.Value) -> Callable[[DeviceBuilder, ir.Value], ir.Value]:
    """Return a function that computes the new element from the old one."""
    names = {
        "add": ("arith.addf", "arith.addi"),
        "max": ("arith.maxnumf", "arith.maxsi"),
        "min": ("arith.minnumf", "arith.minsi"),
        "umax": ("", "arith.maxui"),
        "umin": ("", "arith.minui"),
        "and": ("", "arith.andi"),
        "or": ("", "arith.ori"),
        "xor": ("", "arith.xori"),
        "exch": ("exch", "exch"),
    }
    name = names[kind][not is_float(value.type)]

    def combine(b: DeviceBuilder, old: ir.Value) -> ir.Value:
        if name == "exch":
            return value
        if str(element_of(value.type)) != "bf16":
            return b.value(name, value.type, (old, value))
        wide = like(value.type, ir.F32Type.get(context()))
        combined = b.value(name, wide, [b.value("arith.extf", wide, (part,)) for part in (old, value)])
        return b.value("arith.truncf", value.type, (combined,))

    return combine


def _compare_and_swap_loop(
    op: nvgpu.memory.AtomicRmw, b: DeviceBuilder, combine: Callable[[DeviceBuilder, ir.Value], ir.Value]
) -> ir.Value:
    """Replace an element by a function of it, atomically, and return the bits of the old one."""
    pointer = op.pointer
    value = op.value
    order = op.order
    scope = op.scope
    width = bits_of(carrier_type(value.type))
    bits = int_type(width)
    how = {"space": _space(pointer), "type": f"b{width}", "pointer": pointer}
    (first,) = b.ptx(memory.LOAD, [bits], order=f"relaxed.{scope}", **how)
    loop = b.op("scf.while", [bits], (first,), None, 2)
    before, after = (region.blocks.append(bits, arg_locs=[b.location]) for region in loop.regions)
    inner = DeviceBuilder(ir.InsertionPoint(before), b.location)
    old = before.arguments[0]
    new = as_bits(inner, combine(inner, from_bits(inner, old, value.type)))
    (current,) = inner.ptx(memory.ATOM_CAS, [bits], order=order, scope=scope, **how, compare=old, value=new)
    inner.op("scf.condition", (), (inner.compare("ne", current, old), current))
    DeviceBuilder(ir.InsertionPoint(after), b.location).op("scf.yield", (), (after.arguments[0],))
    return loop.results[0]


@HANDLERS.expands(nvgpu.memory.AtomicCas)
def _atomic_cas(x: Expander, op: nvgpu.memory.AtomicCas, b: DeviceBuilder) -> ir.Value:
    order = op.order
    scope = op.scope
    _check_scope(x, op, scope)
    bits = as_bits(b, op.value)
    expected = as_bits(b, op.compare)
    parts = {"space": _space(op.pointer), "type": f"b{bits.type.width}", "pointer": op.pointer}
    (old,) = b.ptx(memory.ATOM_CAS, [bits.type], order=order, scope=scope, **parts, compare=expected, value=bits)
    return from_bits(b, old, op.result.type)


def _access(type_: ir.Type) -> tuple[int, int]:
    """Return the width and the number of registers of an access to a value."""
    bits = bits_of(type_)
    if bits in (8, 16, 32, 64):
        return bits, 1
    return 64, bits // 64


@HANDLERS.expands(nvgpu.memory.OrderedLoad)
def _ordered_load(x: Expander, op: nvgpu.memory.OrderedLoad, b: DeviceBuilder) -> ir.Value:
    _check_scope(x, op, op.modifiers)
    width, count = _access(carrier_type(op.result.type))
    form = memory.LOAD_VECTOR if count > 1 else memory.LOAD
    registers = b.ptx(form, [int_type(16 if width == 8 else width)] * count, **_parts(op, b, form, width, count))
    value = b.vector(registers) if count > 1 else registers[0]
    if width == 8:
        value = b.value("arith.trunci", int_type(8), (value,))
    return from_bits(b, value, op.result.type)


@HANDLERS.expands(nvgpu.memory.OrderedStore)
def _ordered_store(x: Expander, op: nvgpu.memory.OrderedStore, b: DeviceBuilder) -> None:
    _check_scope(x, op, op.modifiers)
    value = to_carrier(b, op.value)
    width, count = _access(value.type)
    form = memory.STORE_VECTOR if count > 1 else memory.STORE
    parts = _parts(op, b, form, width, count)
    if count > 1:
        words = ir.VectorType.get([count], int_type(width), loc=ir.Location.unknown(context()))
        source = b.elements(value if value.type == words else b.value("llvm.bitcast", words, (value,)))
    else:
        value = as_bits(b, value)
        source = b.value("arith.extui", int_type(16), (value,)) if width == 8 else value
    b.ptx(form, **parts, value=source)


def _parts(
    op: nvgpu.memory.OrderedLoad | nvgpu.memory.OrderedStore, b: DeviceBuilder, form: Form, width: int, count: int
) -> dict[str, Any]:
    """Return the fields and operands of an access but for its value; an L2 eviction priority is a cache policy."""
    space = _space(op.pointer)
    words = [word for word in op.modifiers.split(".") if word and (word != "nc" or space)]  # not of generic addresses
    policies = [l2_policy(b, word) for word in words if word.startswith("L2::evict")]
    fields, left, _ = form.modifiers([word for word in words if not word.startswith("L2::evict")])
    assert not left, f"{form} has no {left}"
    parts = {"space": space, "type": f"b{width}", "pointer": op.pointer, "policy": policies}
    return fields | parts | ({"count": count} if count > 1 else {})


@HANDLERS.expands(nvgpu.memory.Prefetch)
def _prefetch(x: Expander, op: nvgpu.memory.Prefetch, b: DeviceBuilder) -> None:
    if op.level == "tensormap":
        x.require(op, features.TENSOR_MAP, "prefetch.tensormap")
        b.ptx(tma.MAP_PREFETCH, map=op.pointer)
    else:
        b.ptx(memory.PREFETCH, space=_space(op.pointer), level=op.level, pointer=op.pointer)
