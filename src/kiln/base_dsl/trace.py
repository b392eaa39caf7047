"""The trace of one thread: the module being built, and the only way operations get into it (`emit`).

A trace is active on a thread from the outermost call of a jit function until its module is complete.
Outside a trace nothing here touches MLIR.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

from .diagnostics import is_internal, positions

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator, Mapping, Sequence

    from ..mlir import ir


class Trace:
    """What is known while a function is traced.

    `dsl` is the language being traced, `module` the MLIR module under construction. Operations go to the
    bindings' current insertion point, so code that calls the bindings directly mixes freely with `emit`.
    """

    def __init__(self, dsl: Any, module: ir.Module) -> None:
        self.dsl = dsl
        self.module = module
        self.functions: list[FunctionFrame] = []
        self.options: Any = None
        self.inlining: list[Any] = []
        self.unavailable: dict[tuple[str, str, str], Any] = {}
        self._locations: dict[tuple[types.CodeType, int, int], ir.Location] = {}
        self._callsites: list[tuple[ir.Location, int]] = []
        self._callsite_ids: dict[ir.Location, int] = {}

    @property
    def function(self) -> FunctionFrame:
        """The function that operations are being added to."""
        return self.functions[-1]

    def location(self, depth: int = 1) -> ir.Location:
        """The user's source line on the stack now, with the chain of inlined calls that led to it."""
        frame = sys._getframe(depth + 1)
        while is_internal(frame.f_code):
            if frame.f_back is None:
                break
            frame = frame.f_back
        callsite = self._callsites[-1] if self._callsites else None
        key = (frame.f_code, frame.f_lasti, callsite[1] if callsite else -1)
        found = self._locations.get(key)
        if found is None:
            found = self._locations[key] = self._make_location(frame, callsite[0] if callsite else None)
        return found

    def _make_location(self, frame: types.FrameType, caller: ir.Location | None) -> ir.Location:
        from ..mlir import context, ir

        line, _, column, _ = positions(frame.f_code, frame.f_lasti)
        if line < 0:
            line = frame.f_lineno or frame.f_code.co_firstlineno
        here = ir.Location.file(frame.f_code.co_filename, line, max(column, 0) + 1, context())
        return here if caller is None else ir.Location.callsite(here, [caller], context())

    @contextlib.contextmanager
    def inlined_call(self) -> Iterator[None]:
        """While open, locations say that the code was inlined at the line that is calling now."""
        here = self.location(3)
        number = self._callsite_ids.setdefault(here, len(self._callsite_ids))
        self._callsites.append((here, number))
        try:
            yield
        finally:
            self._callsites.pop()


class FunctionFrame:
    """A function under construction: its entry block holds the constants, each made once."""

    def __init__(self, entry: ir.Block, kind: str) -> None:
        self.entry = entry
        self.kind = kind
        self.constants: dict[tuple[ir.Type, Any], ir.Value] = {}


class _State(threading.local):
    trace: Trace | None = None


_state = _State()


def current() -> Trace | None:
    """The trace of this thread, or None outside one."""
    return _state.trace


def require(what: str) -> Trace:
    """The trace of this thread; an error that names `what` outside one."""
    if _state.trace is None:
        from .diagnostics import DSLRuntimeError, error

        raise error(
            DSLRuntimeError,
            f"{what} is only possible inside a function that is being traced",
            hint="call it from a function decorated with @jit or @kernel",
        )
    return _state.trace


@contextlib.contextmanager
def activate(trace: Trace) -> Iterator[Trace]:
    """Make `trace` the trace of this thread."""
    from ..mlir import context, ir

    outer, _state.trace = _state.trace, trace
    try:
        with context(), ir.Location.unknown():
            yield trace
    finally:
        _state.trace = outer


@contextlib.contextmanager
def inside_function(trace: Trace, entry: ir.Block, kind: str) -> Iterator[FunctionFrame]:
    """Operations go to the end of `entry` while open."""
    from ..mlir import ir

    frame = FunctionFrame(entry, kind)
    trace.functions.append(frame)
    try:
        with ir.InsertionPoint(entry):
            yield frame
    finally:
        trace.functions.pop()


def emit(
    name: str,
    results: Sequence[ir.Type] = (),
    operands: Sequence[ir.Value] = (),
    attributes: Mapping[str, ir.Attribute] | None = None,
    regions: int = 0,
) -> ir.Operation:
    """Add an operation at the insertion point, located at the user's source line.

    Built by name through `Operation.create`: the generated builders cost three times as much.
    Unknown attribute names are accepted silently by MLIR, so spellings need tests.
    """
    from ..mlir import ir

    trace = _state.trace
    assert trace is not None, f"{name} emitted outside a trace"
    return ir.Operation.create(name, results, operands, attributes, None, regions, trace.location(1))


def emit_value(
    name: str,
    result: ir.Type,
    operands: Sequence[ir.Value] = (),
    attributes: Mapping[str, ir.Attribute] | None = None,
) -> ir.Value:
    """`emit` for an operation with one result; returns that result."""
    from ..mlir import ir

    trace = _state.trace
    assert trace is not None, f"{name} emitted outside a trace"
    return ir.Operation.create(name, (result,), operands, attributes, None, 0, trace.location(1)).result


def constant(type_: ir.Type, value: int | float) -> ir.Value:
    """An `arith.constant`, one for each type and value of a function, in its entry block.

    Integers take any value that fits the width, signed or unsigned; floats are rounded by MLIR.
    """
    from ..mlir import ir

    trace = _state.trace
    assert trace is not None
    function = trace.function
    # 0.0 and -0.0, 1 and 1.0 and True are equal as keys; NaN is unequal to itself
    key = (type_, repr(value))
    found = function.constants.get(key)
    if found is None:
        if isinstance(value, float):
            attribute = ir.FloatAttr.get(type_, value)
        else:
            attribute = _integer_attribute(type_, int(value))
        at_start = ir.InsertionPoint.at_block_begin(function.entry)
        found = ir.Operation.create(
            "arith.constant", (type_,), (), {"value": attribute}, None, 0, ir.Location.unknown(), at_start
        ).result
        function.constants[key] = found
    return found


def _integer_attribute(type_: ir.Type, value: int) -> ir.Attribute:
    from ..mlir import ir

    if isinstance(type_, ir.IntegerType) and type_.width > 64:
        return ir.Attribute.parse(f"{value} : {type_}")
    if isinstance(type_, ir.IntegerType) and not -(1 << (type_.width - 1)) <= value < 1 << (type_.width - 1):
        value = (value + (1 << (type_.width - 1))) % (1 << type_.width) - (1 << (type_.width - 1)) if type_.width > 1 else value
        if type_.width == 1:
            value = -(value & 1)
    return ir.IntegerAttr.get(type_, value)
