"""A compact way to run traced scalar code: functions of typed scalars, compiled by LLVM, called with bit patterns."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from hypothesis import settings

from kiln.base_dsl import trace
from kiln.base_dsl.numeric import host
from kiln.base_dsl.numeric.emit import bitcast, convert
from kiln.base_dsl.numeric.expand import expand_narrow_floats, saturate_float_to_int
from kiln.base_dsl.typing import Float32, Int64, TFloat32, Uint32, Uint64, Uint128, as_numeric
from kiln.mlir import context, dialect_module, ir, passmanager
from kiln.targets.host import jit
from kiln.targets.host.runtime import SOFT_FLOAT
from kiln.targets.lowering.llvm_text import fix_float_literals

if TYPE_CHECKING:
    from collections.abc import Callable

PIPELINE = (
    "builtin.module(convert-math-to-funcs{convert-ctlz=false},arith-expand,convert-vector-to-llvm,convert-math-to-llvm,"
    "convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)


def tried(count: int) -> settings:
    """How often a property is tried: a third of this by default, all with KILN_LONG_TESTS=1."""
    long = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")
    return settings(max_examples=count if long else count // 3, deadline=None)


def _unsigned(width: int) -> Any:
    """The IR type iN."""
    return ir.IntegerType.get_signless(width)


class Dsl:
    """The least a trace needs of a language."""


def begin_module() -> trace.Trace:
    with context(), ir.Location.unknown():
        return trace.Trace(Dsl(), ir.Module.create())


def _from_slots(t: Any, low: ir.Value, high: ir.Value) -> ir.Value:
    """A value of type `t` whose bits are in two 64-bit words."""
    if t.width == 128:
        wide_low, wide_high = convert(low, Uint64, Uint128), convert(high, Uint64, Uint128)
        shift = trace.constant(Uint128.mlir_type, 64)
        upper = trace.emit_value("arith.shli", Uint128.mlir_type, (wide_high, shift))
        return trace.emit_value("arith.ori", Uint128.mlir_type, (wide_low, upper))
    if t.width == 64:
        bits = low
    else:
        bits = trace.emit_value("arith.trunci", _unsigned(t.width), (low,))
    if t.is_float and str(t.mlir_type) != f"i{t.width}":
        if t is TFloat32:
            return convert(bitcast(bits, Uint32, Float32), Float32, t)
        return trace.emit_value("arith.bitcast", t.mlir_type, (bits,))
    return bits


def _to_slot(t: Any, value: ir.Value, part: ir.Value) -> ir.Value:
    """One of the two 64-bit words of a value's bits."""
    if t.is_float:
        if t is TFloat32:
            value = bitcast(convert(value, t, Float32), Float32, Uint32)
        elif str(t.mlir_type) != f"i{t.width}":
            value = trace.emit_value("arith.bitcast", _unsigned(t.width), (value,))
    if t.width == 128:
        shift = convert(
            trace.emit_value("arith.muli", Int64.mlir_type, (part, trace.constant(Int64.mlir_type, 64))),
            Uint64,
            Uint128,
        )
        value = trace.emit_value("arith.shrui", Uint128.mlir_type, (value, shift))
        return trace.emit_value("arith.trunci", Int64.mlir_type, (value,))
    if t.width == 64:
        return value
    return trace.emit_value("arith.extui", Int64.mlir_type, (value,))


class Compiled:
    """Functions compiled together. `call(name, *values)` takes plain values of the argument types."""

    def __init__(self, functions: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]], expand: bool = True) -> None:
        self.signatures: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self.trace = begin_module()
        with trace.activate(self.trace):
            for name, (function, types) in functions.items():
                self._define(name, function, types)
            self.module = self.trace.module
            self.module.operation.verify()
            self.mlir = str(self.module)
            if expand:
                expand_narrow_floats(self.module)
                saturate_float_to_int(self.module)
                self.module.operation.verify()
            passmanager.PassManager.parse(PIPELINE, context()).run(self.module.operation)
            text = dialect_module("llvm").translate_module_to_llvmir(self.module.operation)
        self._library, self._addresses = _compile(fix_float_literals(str(text)), list(functions))

    def _define(self, name: str, function: Callable[..., Any], types: tuple[Any, ...]) -> None:
        i64 = Int64.mlir_type
        inputs = [i64] * (2 * len(types) + 1)
        with ir.InsertionPoint(self.trace.module.body):
            signature = ir.TypeAttr.get(ir.FunctionType.get(inputs, [i64]))
            made = ir.Operation.create(
                "func.func", [], [], {"sym_name": ir.StringAttr.get(name), "function_type": signature}, None, 1
            )
        entry = ir.Block.create_at_start(made.regions[0], inputs)
        with trace.inside_function(self.trace, entry, "test"):
            slots = list(entry.arguments)
            arguments = [t._make(_from_slots(t, slots[2 * i], slots[2 * i + 1])) for i, t in enumerate(types)]
            result = as_numeric(function(*arguments))
            self.signatures[name] = (types, type(result))
            trace.emit("func.return", (), (_to_slot(type(result), result.ir_value(), slots[-1]),))

    def result_type(self, name: str) -> Any:
        return self.signatures[name][1]

    def bits(self, name: str, *patterns: int) -> int:
        """The bit pattern of the result for argument bit patterns."""
        call = self._addresses[name]
        slots: list[int] = []
        for pattern in patterns:
            slots += [pattern & (1 << 64) - 1, pattern >> 64]
        result = call(*slots, 0) & (1 << 64) - 1
        if self.signatures[name][1].width == 128:
            result |= (call(*slots, 1) & (1 << 64) - 1) << 64
        return result

    def call(self, name: str, *values: Any) -> Any:
        types, result = self.signatures[name]
        patterns = [host.to_bits(t, host.cast(t, v)) for t, v in zip(types, values, strict=True)]
        return host.from_bits(result, self.bits(name, *patterns))


def _compile(text: str, names: list[str]) -> tuple[Any, dict[str, Any]]:
    optimized = jit.optimize(text, 1)
    arities = {f.name: len(list(f.arguments)) for f in optimized.functions}
    library = jit.Library(jit.emit_object(optimized, 1), tuple(names), parts=[SOFT_FLOAT])
    addresses = {
        name: ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_uint64] * arities[name])(library.addresses[name])
        for name in names
    }
    return library, addresses


def function_holder(made: trace.Trace) -> ir.Operation:
    with ir.InsertionPoint(made.module.body):
        signature = ir.TypeAttr.get(ir.FunctionType.get([], []))
        return ir.Operation.create(
            "func.func", [], [], {"sym_name": ir.StringAttr.get("f"), "function_type": signature}, None, 1
        )


def argument(t: Any, **facts: Any) -> Any:
    """A dynamic value of type `t` inside the function being traced."""
    current = trace.current()
    assert current is not None
    value = current.function.entry.add_argument(t.mlir_type, ir.Location.unknown())
    return t._make(value, **facts)


def operations(made: trace.Trace) -> list[str]:
    """Names of the operations traced so far, constants left out."""
    names: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name not in ("builtin.module", "func.func", "arith.constant"):
            names.append(op.name)
        return ir.WalkResult.ADVANCE

    made.module.operation.walk(visit)
    return names
