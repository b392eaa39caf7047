"""Operations on the elements of numbers and vectors, and how they round."""

from __future__ import annotations

import enum
import functools
from typing import Any

from ..base_dsl import trace as tracing
from ..base_dsl.bindings import context, ir
from ..base_dsl.diagnostics import type_error
from ..base_dsl.numeric import emit
from ..base_dsl.numeric.emit import convert
from ..base_dsl.numeric.operators import arithmetic_type
from ..base_dsl.numeric.promotion import float_of
from ..base_dsl.typing import Float32, Float64, Numeric, common_type, plain_scalar
from . import host_math
from .arch.inline_assembly import instruction
from .arch.values import kernel_only
from .layout.int_tuple import product
from .tensor.tensor_ssa import TensorSSA, _broadcast_shape, splat


class RoundingMode(enum.Enum):
    """How an operation rounds: to nearest even, to zero, down or up."""

    RN = "rn"
    RZ = "rz"
    RM = "rm"
    RP = "rp"
    NEAREST_EVEN = RN
    ZERO = RZ
    DOWN = RM
    UP = RP


def direction_of(rounding: object) -> str:
    """Return PTX's name of a direction ("rz", "rm" or "rp"); empty for None and to nearest."""
    name = getattr(rounding, "value", rounding)
    if name is None or name in ("rn", "none"):
        return ""
    if name not in ("rz", "rm", "rp"):
        raise type_error(f"rounding is {rounding!r}", ", ".join(f"RoundingMode.{x}" for x in RoundingMode.__members__))
    return str(name)


@functools.cache
def _flags(fastmath: bool, approx: bool) -> dict[str, ir.Attribute] | None:
    if not fastmath and not approx:
        return None
    # without `reassoc`: what other operations round stays rounded
    flags = "nnan,ninf,nsz,arcp,afn" if fastmath else "afn"
    return {"fastmath": ir.Attribute.parse(f"#arith.fastmath<{flags}>", context())}


def apply(op: str, arguments: tuple[Any, ...], fastmath: bool = False, approx: bool = False, result: Any = None) -> Any:
    """Return an operation on floats of one type. `result`: the type of the result, if another."""
    traced = tracing.current() is not None and bool(tracing.current().functions)  # type: ignore[union-attr]
    if not traced:
        return _on_host(op, arguments, result)
    t = float_type(op, arguments)
    compute = t._compute
    shape = shape_of(op, arguments)
    count = None if shape is None else product(shape)
    values = [as_operand(x, compute, shape, count) for x in arguments]
    emitted = tracing.emit_value(
        op, emit.ir_type(result or compute, count), values, _flags(fastmath, approx) or emit.float_attributes()
    )
    if result is None and compute is not t:
        emitted = convert(emitted, compute, t, count)
    kind = result or t
    return kind._make(emitted) if shape is None else TensorSSA(emitted, shape, kind)


def float_type(op: str, arguments: tuple[object, ...]) -> Any:
    """Return the type the arguments meet in: Python numbers take the type of the others."""
    dtype: Any = None
    for x in arguments:
        if isinstance(x, (TensorSSA, Numeric)):
            dtype = x.dtype if dtype is None else common_type(dtype, x.dtype)
        elif plain_scalar(x) is None:
            raise type_error(
                f"{op.removeprefix('math.')}() takes a number or a vector, got {type(x).__name__}",
                "load a tensor first: t.load()",
            )
    return Float32 if dtype is None else float_of(arithmetic_type(dtype))


def shape_of(op: str, arguments: tuple[object, ...]) -> tuple[int, ...] | None:
    shape = None
    for x in arguments:
        if isinstance(x, TensorSSA):
            broadcast = x.shape if shape is None else _broadcast_shape(shape, x.shape)
            if broadcast is None:
                raise type_error(f"{op.removeprefix('math.')}(): shapes {shape} and {x.shape} do not go together")
            shape = broadcast
    return shape


def as_operand(x: object, t: type[Numeric], shape: object, count: int | None) -> ir.Value:
    if isinstance(x, TensorSSA):
        return x.broadcast_to(shape).to(t).value
    if shape is None:
        return t(x).ir_value()
    assert count is not None
    return splat(x, t, count)


def _on_host(op: str, arguments: tuple[object, ...], result: type[Numeric] | None) -> object:
    """Return a function of numbers that Python knows: of Python's own in double precision, as a number of Python."""
    t = float_type(op, arguments)
    typed = any(isinstance(x, Numeric) for x in arguments)
    values = [float(t._compute(x).value) if typed else float(plain_scalar(x)) for x in arguments]  # type: ignore[arg-type]
    on_host = host_math.function(op, typed and t._compute is Float32, len(values))(*values)
    return (result or t)(on_host) if typed else on_host


def directed(name: str, direction: str, arguments: tuple[object, ...]) -> Any:
    """Return what an instruction of PTX computes, rounded in a direction."""
    t = float_type(name, arguments)
    if t not in (Float32, Float64):
        raise type_error(f"{name}() of {t.__name__} with rounding {direction}", "Float32 or Float64")
    kernel_only(f"a directed {name}")
    shape = shape_of(name, arguments)
    opcode = f"{name}.{direction}.f{t.width}"
    if shape is None:
        return instruction(opcode, t, *(t(x) for x in arguments))
    count = product(shape)
    columns = [
        x.broadcast_to(shape).to(t).to_elements() if isinstance(x, TensorSSA) else [t(x)] * count for x in arguments
    ]
    computed = [instruction(opcode, t, *map(t, elements)) for elements in zip(*columns, strict=True)]
    return TensorSSA.from_elements(computed, t).reshape(shape)
