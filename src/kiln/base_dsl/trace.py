"""The trace of one thread: the module being built, and the only way operations get into it (`emit`).

A trace is active on a thread from the outermost call of a jit function until its module is complete.
Outside a trace nothing here touches MLIR.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .._support import fork_safe
from .bindings import context, file_location, ir
from .diagnostics import Positions, is_internal, position_table, positions, runtime_error

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Mapping, Sequence


_internal_modules: set[str | None] = set()
"""Names of modules all of whose code is machinery."""
_places: dict[int, tuple[weakref.ref[types.CodeType], dict[int, ir.Location]]] = {}
"""Where instructions stand, by the address of their code, as long as that lives (hashing code objects is slow), and
their number in it."""


def _places_in(code: types.CodeType) -> dict[int, ir.Location]:
    number = id(code)
    cached = _places.get(number)
    if cached is None:
        cached = _places[number] = weakref.ref(code, lambda _: _places.pop(number, None)), {}
    return cached[1]


class Trace:
    """The state of the trace of one function.

    `dsl` is the language being traced, `module` the MLIR module under construction. Operations go to the
    bindings' current insertion point, so code that calls the bindings directly mixes freely with `emit`.
    """

    def __init__(self, dsl: Any, module: ir.Module) -> None:
        self.dsl = dsl
        self.wraps: bool = getattr(dsl, "wraps", False)
        self.module = module
        self.functions: list[FunctionFrame] = []
        self.options: Any = None
        self.inlining: list[Any] = []
        self.unavailable: dict[tuple[str, str, str], Any] = {}
        self.watched: list[Any] = []
        """Objects that must not change any more; see `frontend/merged_objects.py`."""
        self.reach: Any = None
        """What the user's functions and classes reach; see `frontend/hidden_state.py`."""
        self.merged: dict[int, tuple[Any, list[Any]]] = {}
        """Objects that were merged of two, by identity."""
        self.choices: dict[Any, Any] = {}
        """The choices of loops, learned while they were traced; see `frontend/loops.py`."""
        self.broken: Exception | None = None
        """The error that ended this trace, although the program caught the exception."""
        self.broken_by: Exception | None = None
        self.ambient_stream: Any = None
        """The stream of launches that name none; None: the default one."""
        self.workspace: Any = None
        """The memory that the caller passes for kernels that need some; None: none."""
        self.multiplies = False
        """Whether a kernel has WGMMAs: `cute/program/overwritten.py` then looks at their accumulators."""
        self.complaints: list[Exception] = []
        """Errors found where nothing could be raised: the first is raised when the function has been traced."""
        self.numbers: list[Any] = []
        """Typed scalars that hold a value of this module."""
        self.holders: list[Any] = []
        """Other Python objects that do, in an attribute `_value` or `_base`."""
        self.multiplies_extents = False
        """Whether 32-bit extents of arguments have been multiplied."""
        self.rebuilding = 0
        """How many objects are being rebuilt of other values; see `tree.rebuilt`."""
        self._scratch: ir.Operation | None = None
        # Keyed by the address of the code object, which is kept alive here: hashing code objects is slow.
        self._locations: dict[int, dict[tuple[int, int], ir.Location]] = {}
        self._here = self._locations.setdefault(-1, {})
        """Those under the call that is inlined now."""
        self._fixed: ir.Location | None = None
        """The location of all operations, while it is known to stay the same."""
        self._codes: dict[int, types.CodeType] = {}
        self._positions: dict[int, Positions] = {}
        self._callsites: list[tuple[ir.Location, int]] = []
        self._callsite_ids: dict[ir.Location, int] = {}

    def detached_block(self, types_: Sequence[ir.Type]) -> ir.Block:
        """Return a block outside any function, for code whose operation is made later.

        All of them hang below one operation until they are moved: operations of one block use values of others, and
        what is never moved, because the trace failed, must be freed together with what it uses.
        """
        unknown = _ir.Location.unknown()
        scratch = self._scratch
        if scratch is None:
            scratch = self._scratch = _create("builtin.module", regions=1, loc=unknown, ip=False)
        return _ir.Block.create_at_start(scratch.regions[0], list(types_), [unknown] * len(types_))

    @contextlib.contextmanager
    def detached(self) -> Iterator[None]:
        """Add operations to a block that will not be part of the program, while open."""
        with _ir.InsertionPoint(self.detached_block([])):
            yield

    def close(self, failed: bool) -> None:
        """Free what was never moved out of detached blocks; after a failure with the module itself.

        Objects that outlive the trace lose their values: those point into memory that compiling frees.
        """
        for number in self.numbers:
            number._value = STALE
        for holder in self.holders:
            name = "_base" if hasattr(holder, "_base") else "_value"
            if isinstance(getattr(holder, name), ir.Value):
                setattr(holder, name, STALE)
        self.numbers = []
        self.holders = []
        scratch = self._scratch
        self._scratch = None
        if scratch is None:
            return
        if failed:
            ir.InsertionPoint(self.module.body).insert(scratch)
        else:
            scratch.erase()

    def has_operation(self, holds: Callable[[ir.Operation], bool]) -> bool:
        """Return whether an operation was added of which something holds, also to a block that is not moved yet."""
        holds_one = False

        def visit(operation: ir.Operation) -> ir.WalkResult:
            nonlocal holds_one
            holds_one = holds(operation)
            return _ir.WalkResult.INTERRUPT if holds_one else _ir.WalkResult.ADVANCE

        for root in (self.module.operation, self._scratch):
            if root is not None and not holds_one:
                root.walk(visit)
        return holds_one

    def is_merged(self, x: object) -> bool:
        """Return whether an object was made of two between which a region chose."""
        return id(x) in self.merged

    @property
    def function(self) -> FunctionFrame:
        """The function that operations are being added to."""
        return self.functions[-1]

    def location(self, depth: int = 1) -> ir.Location:
        """Return the user's source line on the stack now, with the chain of inlined calls that led to it."""
        if self._fixed is not None:
            return self._fixed
        frame = sys._getframe(depth + 1)
        locations = self._here
        while True:
            name = frame.f_globals.get("__name__")
            if name not in _internal_modules:
                code = frame.f_code
                cached = locations.get((id(code), frame.f_lasti))
                if cached is not None:
                    return cached
                if not is_internal(code):
                    break
                if name != "__main__":  # what is run by `python -m` shares this name with the user's program
                    _internal_modules.add(name)
            back = frame.f_back
            if back is None:
                code = frame.f_code
                break
            frame = back
        caller = self._callsites[-1][0] if self._callsites else None
        cached = locations[id(code), frame.f_lasti] = self._make_location(frame, caller)
        return cached

    def _make_location(self, frame: types.FrameType, caller: ir.Location | None) -> ir.Location:
        code = frame.f_code
        self._codes[id(code)] = code
        places = _places_in(code)
        here = places.get(frame.f_lasti)
        if here is None:
            table = self._positions.get(id(code))
            if table is None:
                table = self._positions[id(code)] = position_table(code)
            line, _, column, _ = positions(code, frame.f_lasti, table)
            if line < 0:
                line = frame.f_lineno or code.co_firstlineno
            here = places[frame.f_lasti] = file_location(code.co_filename, line, max(column, 0) + 1)
        return here if caller is None else _ir.Location.callsite(here, [caller])

    @contextlib.contextmanager
    def inlined_call(self) -> Iterator[None]:
        """Locate operations as inlined at the line that is calling now, while open."""
        here = self.location(3)
        number = self._callsite_ids.setdefault(here, len(self._callsite_ids))
        self._callsites.append((here, number))
        before = self._here
        self._here = self._locations.setdefault(number, {})
        fixed = self._fixed
        self._fixed = None
        try:
            yield
        finally:
            self._callsites.pop()
            self._here = before
            self._fixed = fixed


class _Stale:
    """The stand-in for the value of an object of an earlier trace."""

    def __getattr__(self, name: str) -> Any:
        raise stale_use()

    def __repr__(self) -> str:
        return "a value of an earlier trace"

    def _used(self) -> Any:
        raise stale_use()

    __float__ = __int__ = __index__ = _used


STALE = _Stale()


def stale_use() -> Exception:
    """Return the error for a use of a value that has outlived its trace."""

    return runtime_error(
        "a value is used here that was computed while another function was traced",
        "a global variable, a closure or an object has kept it from there: pass it as an argument, or compute it "
        "in the function that uses it",
    )


def outside_use(what: str, has_values: bool) -> Exception:
    """Return the error for an operation where nothing is traced.

    Its operands can only be values of a trace that has ended, or that another thread makes.
    """

    if has_values:
        return runtime_error(
            "a value is used here that was computed while another function was traced, and this thread traces nothing",
            "a global variable, a closure or an object has kept it: pass it as an argument, or compute it in the function that "
            "uses it; a trace belongs to the thread that calls the function, and threads that traced code starts can compile and call functions "
            "of their own, and not compute with its values",
        )
    return runtime_error(
        f"{what} is only possible inside a function that is being traced",
        "call it from a function decorated with @jit or @kernel",
    )


class FunctionFrame:
    """A function under construction: its entry block holds the constants, each made once."""

    def __init__(self, entry: ir.Block, kind: str) -> None:
        self.entry = entry
        self.kind = kind
        self.passed: Sequence[ir.Value] = ()
        """What a launch passes, in the order of the kernel's arguments."""
        self.constants: dict[tuple[ir.Type, Any], ir.Value] = {}
        self.at_end: list[Callable[[], None]] = []
        """Called when the function has been traced, or has failed to be."""
        self.notes: dict[str, Any] = {}
        """What the language keeps for this function, by names of its own."""


class _State(threading.local):
    trace: Trace | None = None


_state = _State()
state = _state
"""For code that runs for every value: calling `current` costs as much as the rest of it."""
_Function = TypeVar("_Function", bound="Callable[..., Any]")
active: fork_safe.Count = fork_safe.Count()
"""How many traces there are in all threads: native code reads it."""
_ir: Any = None
_create: Any = None
"""The bindings and their `Operation.create`, bound by the first trace: importing them in every call is slow."""


entry_codes: list[types.CodeType] = []
"""The code of the methods of languages that run a user's function: a search of the stack ends there."""
kernel_codes: list[types.CodeType] = []
"""The code of the methods of languages that run a user's kernel."""


def current() -> Trace | None:
    """Return the trace of this thread, or None outside one."""
    return _state.trace


def at_one_location(function: _Function) -> _Function:
    """Decorate a function of the language that runs no user code: all its operations are located at the line that calls
    it.

    Looking for that line takes a fourth of the time of adding an operation.
    """

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> Any:
        trace = _state.trace
        if trace is None or trace._fixed is not None:
            return function(*args, **kwargs)
        trace._fixed = trace.location(1)
        try:
            return function(*args, **kwargs)
        finally:
            trace._fixed = None

    return cast("_Function", run)


def taking_apart(extract: Any) -> Any:
    """Decorate an `__extract_mlir_values__` that emits operations: none are emitted while an object is rebuilt."""

    @functools.wraps(extract)
    def run(x: Any) -> Any:
        trace = _state.trace
        if trace is None or not trace.rebuilding:
            return extract(x)
        with trace.detached():
            return extract(x)

    return run


def hold(holder: object) -> None:
    """Register an object, other than a scalar, that holds a value of the current trace in `_value` or `_base`."""
    current = _state.trace
    if current is not None:
        current.holders.append(holder)


def require(what: str) -> Trace:
    """Return the trace of this thread; an error that names `what` outside one."""
    if _state.trace is None:
        raise outside_use(what, False)
    return _state.trace


@contextlib.contextmanager
def activate(trace: Trace) -> Iterator[Trace]:
    """Make `trace` the trace of this thread."""
    global _ir, _create
    _ir = ir
    _create = ir.Operation.create
    outer = _state.trace
    _state.trace = trace
    active.add(1)
    try:
        with context(), ir.Location.unknown():
            failed = True
            try:
                yield trace
                failed = False
            finally:
                trace.close(failed)
    finally:
        _state.trace = outer
        active.add(-1)


@contextlib.contextmanager
def inside_function(trace: Trace, entry: ir.Block, kind: str) -> Iterator[FunctionFrame]:
    """Add operations to the end of `entry` while open."""
    frame = FunctionFrame(entry, kind)
    trace.functions.append(frame)
    try:
        with ir.InsertionPoint(entry):
            yield frame
    finally:
        trace.functions.pop()
        for call in frame.at_end:
            call()


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
    trace = _state.trace
    if trace is None:
        raise outside_use(f"an operation ({name})", bool(operands))
    try:
        return _create(name, results, operands, attributes, None, regions, trace.location(1))
    except TypeError:
        if any(operand is STALE for operand in operands):
            raise stale_use() from None
        raise


def emit_value(
    name: str,
    result: ir.Type,
    operands: Sequence[ir.Value] = (),
    attributes: Mapping[str, ir.Attribute] | None = None,
    depth: int = 1,
) -> ir.Value:
    """Add an operation with one result as `emit` does, and return that result.

    The user's line is looked for from `depth` frames up: more than 1 where those before are known to be Kiln's, as
    every frame looked at costs 0.3 us.
    """
    trace = _state.trace
    if trace is None:
        raise outside_use(f"an operation ({name})", bool(operands))
    try:
        return _create(name, (result,), operands, attributes, None, 0, trace.location(depth)).result
    except TypeError:
        if any(operand is STALE for operand in operands):
            raise stale_use() from None
        raise


def constant(type_: ir.Type, value: int | float) -> ir.Value:
    """Return an `arith.constant`, one for each type and value of a function, in its entry block.

    Integers take any value that fits the width, signed or unsigned; floats are rounded by MLIR.
    """
    trace = _state.trace
    if trace is None:
        raise outside_use("a constant of the program", True)
    function = trace.function
    # 0.0 and -0.0, 1 and 1.0 and True are equal as keys; NaN is unequal to itself
    key = (type_, value if type(value) is int else repr(value))
    cached = function.constants.get(key)
    if cached is None:
        if isinstance(value, float):
            attribute = _ir.FloatAttr.get(type_, value)
        else:
            attribute = _integer_attribute(type_, int(value))
        at_start = _ir.InsertionPoint.at_block_begin(function.entry)
        cached = _create(
            "arith.constant", (type_,), (), {"value": attribute}, None, 0, _ir.Location.unknown(), at_start
        ).result
        function.constants[key] = cached
    return cached


def _integer_attribute(type_: Any, value: int) -> ir.Attribute:
    if isinstance(type_, _ir.IntegerType):
        width = type_.width
        if width > 64:
            return _ir.Attribute.parse(f"{value} : {type_}")
        half = 1 << (width - 1)
        value = -(value & 1) if width == 1 else (value + half) % (2 * half) - half
    return _ir.IntegerAttr.get(type_, value)
