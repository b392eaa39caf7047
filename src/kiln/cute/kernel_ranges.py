"""Ranges and moments that programs mark in kernels: `with cute.testing.range("load"): ...`.

They compile to nothing, except while a trace is open (`KernelTrace`, `kiln profile --prof-type trace`).
"""

from __future__ import annotations

import contextlib

from ..base_dsl import kernel_trace
from ..base_dsl import trace as tracing
from ..base_dsl.diagnostics import type_error, value_error
from ..base_dsl.typing import Boolean, Float, Float32, Float64, Int32, Int64, Integer, Numeric, Uint32, Uint64
from ..dialects.nvgpu.trace import trace_mark
from ..mlir import ir


class _Range(contextlib.AbstractContextManager[None]):
    """A range around what a `with` statement contains."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        add_mark(self.name, "begin")

    def __exit__(self, *_: object) -> None:
        add_mark(self.name, "end")


def kernel_range(name: str) -> contextlib.AbstractContextManager[None]:
    """Record the body as a range of this name in a trace (`kiln profile --prof-type trace`); otherwise do nothing."""
    if not isinstance(name, str) or not name:
        raise type_error(f'range() takes a name, got {name!r}: write range("load")')
    return _Range(name)


def is_recording() -> bool:
    """Return whether marks in the kernel that is being traced are to be recorded."""
    return kernel_trace.request() is not None and tracing.current() is not None


def add_mark(name: str, phase: str, payload: object = None, token: bool = False) -> None:
    """Mark a place of a kernel, if a trace is open: `phase` is `begin`, `end` or `moment`."""
    if not is_recording():
        return
    kind = "mark" if phase == "moment" else "range"
    number, values = _payload(payload)
    trace_mark(*values, event=name, phase=phase, kind=kind, token=token, number=number or None)


_INT32 = range(-(1 << 31), 1 << 32)


def _payload(payload: object) -> tuple[str, list[ir.Value]]:
    """Return the type of a payload and its value as an integer of 32 or 64 bits; nothing if there is none."""
    if payload is None:
        return "", []
    if isinstance(payload, bool):
        payload = Boolean(payload)
    elif isinstance(payload, int):
        if payload not in _INT32:
            raise value_error(f"the payload {payload} has more than 32 bits", f"write Int64({payload})")
        payload = Int32(payload if payload < 1 << 31 else payload - (1 << 32))
    elif isinstance(payload, float):
        payload = Float32(payload)
    assert isinstance(payload, Numeric)
    return _words(payload)


def _words(payload: Numeric) -> tuple[str, list[ir.Value]]:
    kind = type(payload)
    wide = kind.width > 32
    if isinstance(payload, Float):
        value = (Float64 if wide else Float32)(payload).ir_value()
        type_ = ir.IntegerType.get_signless(64 if wide else 32, value.context)
        return f"f{64 if wide else 32}", [tracing.emit_value("arith.bitcast", type_, (value,))]
    if isinstance(payload, Boolean):
        return "i1", [Int32(payload).ir_value()]
    assert isinstance(payload, Integer)
    if type(payload).signed:
        return ("i64", [Int64(payload).ir_value()]) if wide else ("i32", [Int32(payload).ir_value()])
    return ("u64", [Uint64(payload).ir_value()]) if wide else ("u32", [Uint32(payload).ir_value()])
