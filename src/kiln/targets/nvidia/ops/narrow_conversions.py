"""Conversions from and to narrow floats for which the hardware has an instruction with the language's rounding.

Instructions convert two numbers. Narrow floats lie in words: eight of 4 bits, or four of 6 or 8 bits in bytes. Wide
floats come as f32. Narrow ones are widened to pairs of f16, which represents all of them but ue5m3 and ue8m0: these to
pairs of bf16.
"""

from __future__ import annotations

from ....hardware import features
from ....hardware.architectures import Architecture
from ....mlir import context, ir
from ...lowering.builder import int_type
from ..device_builder import DeviceBuilder

_BYTES = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2"}
_NARROWER = {"f6E2M3FN": "e2m3", "f6E3M2FN": "e3m2", "f4E2M1FN": "e2m1"}
_SCALE = "f8E8M0FNU"
_WIDE_SCALE = "f8E5M3FNU"
_WIDER = ("f32", "f16", "bf16")


def narrow_conversion(arch: Architecture, op: ir.Operation, source: str, target: str) -> ir.Value | None:
    """Return the result of a conversion, or None where there is no instruction for it."""
    value = op.operands[0]
    if isinstance(value.type, ir.VectorType) and len(value.type.shape) != 1:
        return None
    b = DeviceBuilder(ir.InsertionPoint(op), op.location)
    if (source, target) == ("f32", "tf32") and features.TFLOAT32_TO_EVEN.on(arch):
        return _to_tf32(b, value)
    if source in _WIDER and target in _BYTES and features.BYTE_FLOAT_CONVERSIONS.on(arch):
        return _to_narrow(b, value, op.results[0].type, _BYTES[target])
    if not features.NARROW_FLOAT_CONVERSIONS.on(arch):
        return None
    if source in _WIDER and target in _NARROWER:
        return _to_narrow(b, value, op.results[0].type, _NARROWER[target])
    names = {**_BYTES, **_NARROWER, _SCALE: "ue8m0"}
    if features.UE5M3_CONVERSIONS.on(arch):
        if source in _WIDER and target == _WIDE_SCALE:
            return _to_narrow(b, value, op.results[0].type, "ue5m3")
        names[_WIDE_SCALE] = "ue5m3"
    if source in names and target in _WIDER:
        return _to_wide(b, value, op.results[0].type, names[source])
    return None


def _elements(b: DeviceBuilder, value: ir.Value) -> list[ir.Value]:
    """Return the elements of a vector, or a number."""
    return b.elements(value) if isinstance(value.type, ir.VectorType) else [value]


def _vector(count: int, element: ir.Type, b: DeviceBuilder) -> ir.Type:
    return ir.VectorType.get([count], element, loc=b.location)


def _first(b: DeviceBuilder, vector: ir.Value, count: int) -> ir.Value:
    """Return the first elements of a vector."""
    return vector if vector.type.shape[0] == count else b.vector(b.elements(vector)[:count])  # pyright: ignore


def _to_tf32(b: DeviceBuilder, value: ir.Value) -> ir.Value:
    """Round f32 to tf32, kept in an f32."""
    kind = ir.F32Type.get(context())
    elements: list[ir.Value] = []
    for x in _elements(b, value):
        (bits,) = b.asm("cvt.rn.tf32.f32 $0, $1;", "=r,f", [x], [int_type(32)], pure=True)
        elements.append(b.value("arith.bitcast", kind, (bits,)))
    return b.vector(elements) if isinstance(value.type, ir.VectorType) else elements[0]


def _to_narrow(b: DeviceBuilder, value: ir.Value, type_: ir.Type, name: str) -> ir.Value:
    """Convert to narrow floats, a word of them at a time."""
    parts = _elements(b, value)
    kind = ir.F32Type.get(context())
    parts = [x if x.type == kind else b.value("arith.extf", kind, (x,)) for x in parts]
    cvt = f"cvt.rn.satfinite.{name}x2.f32"
    bits = 4 if name == "e2m1" else 8
    if not isinstance(type_, ir.VectorType) and bits == 8:
        (pair,) = b.asm(f"{cvt} $0, 0f00000000, $1;", "=h,f", parts, [int_type(16)], pure=True)
        return b.value("arith.bitcast", type_, (b.value("arith.trunci", _bits(b, type_), (pair,)),))
    count = len(parts)
    each = 32 // bits
    parts += [parts[-1]] * (-count % each)
    pairs = [f"p{n}" for n in range(each // 2)]  # the first source of an instruction becomes the upper half
    code = " ".join(f"{cvt} {pair}, ${2 * n + 2}, ${2 * n + 1};" for n, pair in enumerate(pairs))
    code = f"{{ .reg .b{2 * bits} {', '.join(pairs)}; {code} mov.b32 $0, {{{', '.join(pairs)}}}; }}"
    letters = ",".join(["=r", *["f"] * each])
    words = [
        b.asm(code, letters, parts[n : n + each], [int_type(32)], pure=True)[0] for n in range(0, len(parts), each)
    ]
    packed = b.value("vector.bitcast", _vector(len(parts), int_type(bits), b), (b.vector(words),))
    packed = _first(b, packed, count)
    if not isinstance(type_, ir.VectorType):
        packed = _elements(b, packed)[0]
    want = _bits(b, type_)
    packed = packed if packed.type == want else b.value("arith.trunci", want, (packed,))
    return b.value("arith.bitcast", type_, (packed,))


def _bits(b: DeviceBuilder, type_: ir.Type) -> ir.Type:
    """Return integers as wide as narrow floats."""
    if not isinstance(type_, ir.VectorType):
        return int_type(type_.width)  # pyright: ignore[reportAttributeAccessIssue]
    return _vector(type_.shape[0], int_type(type_.element_type.width), b)  # pyright: ignore[reportAttributeAccessIssue]


def _to_wide(b: DeviceBuilder, value: ir.Value, type_: ir.Type, name: str) -> ir.Value:
    """Convert from narrow floats, a word of them at a time."""
    bits, each = (4, 8) if name == "e2m1" else (8, 4)
    field = b.value("arith.bitcast", _bits(b, value.type), (value,))
    if not isinstance(value.type, ir.VectorType):
        field = b.vector([field])
    count = field.type.shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    bytes_ = _vector(count, int_type(bits), b)
    field = field if field.type == bytes_ else b.value("arith.extui", bytes_, (field,))
    if count % each:
        parts = b.elements(field)
        field = b.vector([*parts, *[parts[-1]] * (-count % each)])
    whole = -(-count // each)
    words = b.elements(b.value("vector.bitcast", _vector(whole, int_type(32), b), (field,)))
    middle = "bf16" if name in ("ue8m0", "ue5m3") else "f16"
    pairs = [f"p{n}" for n in range(each // 2)]
    code = f"{{ .reg .b{2 * bits} {', '.join(pairs)}; mov.b32 {{{', '.join(pairs)}}}, ${each // 2}; "
    code += " ".join(f"cvt.rn.{middle}x2.{name}x2 ${n}, {pair};" for n, pair in enumerate(pairs)) + " }"
    letters = ",".join([*["=r"] * len(pairs), "r"])
    registers = [
        part for word in words for part in b.asm(code, letters, [word], [int_type(32)] * len(pairs), pure=True)
    ]
    element = ir.BF16Type.get(context()) if middle == "bf16" else ir.F16Type.get(context())
    wide = _first(b, b.value("vector.bitcast", _vector(whole * each, element, b), (b.vector(registers),)), count)
    return _as(b, wide if isinstance(value.type, ir.VectorType) else b.elements(wide)[0], type_)


def _as(b: DeviceBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Return floats of 16 bits as another type that has their values."""
    if value.type == type_:
        return value
    f32 = ir.F32Type.get(context())
    scalar = not isinstance(type_, ir.VectorType)
    middle = f32 if scalar else _vector(type_.shape[0], f32, b)  # pyright: ignore[reportAttributeAccessIssue]
    value = b.value("arith.extf", middle, (value,))
    return value if middle == type_ else b.value("arith.truncf", type_, (value,))
