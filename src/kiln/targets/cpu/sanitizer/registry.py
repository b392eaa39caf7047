"""The functions of the detector's library, by name; memory; and how they call each other."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ....mlir import context, ir
from ...lowering.builder import declare, global_, int_type, parsed_type, ptr_type
from .native import Code, Value, define
from .state import STATE, Cell, Clock, State

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "kiln_cpu_san_"
CLOCK_HEADER = ctypes.sizeof(Clock)
CELL = ctypes.sizeof(Cell)

_functions: dict[str, tuple[list[int], int, Callable[..., Any]]] = {}


def exported(inputs: list[int], result: int = 0) -> Callable[[Any], Any]:
    """Register a function of the library by the widths of its arguments and result."""

    def register(body: Any) -> Any:
        _functions[PREFIX + body.__name__.strip("_")] = (inputs, result, body)
        return body

    return register


def exports() -> dict[str, tuple[list[int], int]]:
    """Every function of the library: the widths of its arguments and of its result."""
    return {name: (inputs, result) for name, (inputs, result, _) in _functions.items()}


def build() -> ir.Module:
    """The library as a module."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
        for name, inputs, results in (
            ("calloc", [i64, i64], [ptr]),
            ("free", [ptr], []),
            ("memset", [ptr, i32, i64], [ptr]),
        ):
            declare(module, name, inputs, results)
        array = parsed_type(f"!llvm.array<{-(-ctypes.sizeof(State) // 8)} x i64>")
        zero = ir.DenseElementsAttr.get_splat(
            ir.RankedTensorType.get([-(-ctypes.sizeof(State) // 8)], i64), ir.IntegerAttr.get(i64, 0)
        )
        global_(module, STATE, array, zero, linkage="external")
        for name, (inputs, result, body) in _functions.items():
            define(module, name, inputs, result, body)
        return module


def state_of(c: Code) -> Any:
    return c.struct(c.symbol(STATE), State)


def call(c: Code, name: str, *arguments: Any) -> Value:
    inputs, result, _ = _functions[PREFIX + name]
    values = [
        (c.i64(a) if w == 64 else c.i32(a)) if isinstance(a, int) else a for a, w in zip(arguments, inputs, strict=True)
    ]
    return c.call(PREFIX + name, values, result)


def maximum(a: Value, b: Value) -> Value:
    return a._binary("maxui", b)


@exported([64], 64)
def alloc(c: Code, size: Value) -> Value:
    """Zeroed memory until the end of the launch."""
    st = state_of(c)
    made = c.call_c("calloc", [c.i64(1), size + 16])
    c.store(st.memory, made)
    st.memory = made
    st.allocated = st.allocated + size
    return made + 16


@exported([])
def free_all(c: Code) -> None:
    st = state_of(c)
    at = c.variable(st.memory)
    with c.repeat(lambda: at.get() != 0):
        following = c.load(at.get())
        c.call_c("free", [(at.get(),)], result=False)
        at.set(following)
    st.memory = 0
    st.allocated = 0
