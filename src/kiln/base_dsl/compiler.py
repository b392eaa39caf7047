"""The object stage: runs passes with timing and dumps, and reports what MLIR rejects at the user's line."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .._support import file_names, lazy
from . import settings
from .bindings import ir
from .diagnostics import CompilerDiagnosticError, DSLBaseError, DSLRuntimeError, DSLUserCodeError, Span
from .log import logger
from .options import CompileOptions

__getattr__ = lazy.names(__name__, {})  # programs look for options here


def source_span(location: ir.Location) -> tuple[Span | None, tuple[Span, ...]]:
    """Return where in the user's program an operation came from, and the calls that led there, innermost first."""
    location = ir.Location.from_attr(location.attr, location.context)  # diagnostics hand out the base class
    if isinstance(location, ir.FileLineColLoc):
        return _file_span(location), ()
    if isinstance(location, ir.CallSiteLoc):
        span, inner = source_span(location.callee)
        caller, outer = source_span(location.caller)
        return span, (*inner, *((caller,) if caller else ()), *outer)
    if isinstance(location, ir.NameLoc):
        return source_span(location.child_loc)
    if isinstance(location, ir.FusedLoc):
        for part in location.locations:
            span, calls = source_span(part)
            if span:
                return span, calls
    return None, ()


def _file_span(location: Any) -> Span | None:
    name = location.filename
    filename = file_names.from_utf8(name.value if hasattr(name, "value") else str(name))
    if not location.start_line:
        return None
    # MLIR counts columns from 1, 0 being unknown; a span counts from 0
    end_line = location.end_line
    end_column = location.end_col
    has_end = (end_line, end_column) > (location.start_line, location.start_col)
    return Span(
        filename,
        location.start_line,
        location.start_col - 1,
        end_line if has_end else location.start_line,
        end_column - 1 if has_end else -1,
    )


def report_at(location: ir.Location, kind: type[DSLBaseError], message: str, hint: str = "") -> DSLBaseError:
    """Return an error to raise, at the source line of an operation."""
    span, calls = source_span(location)
    return kind(message, hint=hint, span=span, calls=calls)


def mlir_error(failure: Exception, doing: str) -> DSLBaseError:
    """Return what MLIR rejected as a Kiln error at the user's source line."""
    diagnostics = getattr(failure, "error_diagnostics", None) or []
    if not diagnostics:
        return CompilerDiagnosticError(f"{doing}: {failure}")
    first = diagnostics[0]
    message = f"{doing}: {first.message}"
    span, calls = source_span(first.location)
    notes: list[tuple[Span, str]] = []
    for note in first.notes:
        where, _ = source_span(note.location)
        if where is not None and where != span:
            notes.append((where, note.message))
        elif note.message not in message:
            message += f"\n{note.message}"
    return CompilerDiagnosticError(message, span=span, calls=calls, notes=tuple(notes))


def misplaced_value(module: ir.Module) -> DSLBaseError | None:
    """Return the error for the first use of a value that is not available there, or None if there is no such use.

    A value is not available in another function than the one that computes it, nor after the branch or loop that does.
    """
    misplaced: list[tuple[ir.Operation, ir.Value]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        for value in op.operands:
            if not _is_computed_before(op, value):
                misplaced.append((op, value))
                return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return _misplaced(*misplaced[0]) if misplaced else None


def _block_of(value: ir.Value) -> ir.Block:
    return value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block  # pyright: ignore


def _around(op: ir.Operation) -> Iterator[tuple[ir.Operation, ir.Block]]:
    """Yield an operation with its block, then each operation around it with its block, to the outermost."""
    while op.parent is not None:
        yield op, op.block
        op = op.parent.operation


def _is_computed_before(op: ir.Operation, value: ir.Value) -> bool:
    """Return whether a value is computed before an operation, in a block that is around it in the same function."""
    home = _block_of(value)
    owner = value.owner
    for outer, block in _around(op):
        if block == home:
            if isinstance(owner, ir.Block):
                return True
            first = next(o for o in block.operations if o.operation in (outer, owner.operation))
            return first.operation == owner.operation and outer != owner.operation
        if block.owner.operation.name == "func.func":
            return False
    return False


def _misplaced(op: ir.Operation, value: ir.Value) -> DSLBaseError:
    span, calls = source_span(op.location)
    owner = value.owner
    where, _ = source_span(value.location if isinstance(owner, ir.Block) else owner.operation.location)
    start = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation
    theirs = _function_around(start)
    mine = _function_around(op)
    is_argument = isinstance(owner, ir.Block) and theirs == start
    notes = ((where, "it is an argument here" if is_argument else "it is computed here"),) if where is not None else ()
    if theirs is not None and mine is not None and theirs != mine:
        names = [f.attributes["sym_name"].value for f in (mine, theirs)]
        return DSLUserCodeError(
            f"{names[0]!r} uses {'an argument of' if is_argument else 'a value that is computed in'} {names[1]!r}",
            hint=f"{names[0]!r} is compiled by itself: pass it the value as an argument",
            span=span,
            calls=calls,
            notes=notes,
        )
    return DSLUserCodeError(
        "a value is used here that is only computed inside a branch or loop, which may not have run",
        hint="give a variable a value before the branch or loop, assign it inside, and use the variable afterwards",
        span=span,
        calls=calls,
        notes=notes,
    )


def _function_around(op: ir.Operation) -> ir.Operation | None:
    return next((o for o, _ in _around(op) if o.name == "func.func"), None)


class Watcher:
    """An observer of compilations while it is in `watchers`, for tools. The cache is not used then."""

    def state(self, compilation: Compilation, name: str) -> None:
        """Receive a module as it is now: `name` is "traced", or the pass that was just run."""

    def finished(self, entry: str, executable: Any) -> None:
        """Receive the executable of the function `entry`."""


watchers: list[Watcher] = []


class Compilation:
    """One run of the object stage over a module: its passes in order, with timing and dumps.

    `name` is used in the names of files. Every failure is a Kiln error at the user's source line.
    """

    def __init__(self, module: ir.Module, name: str, options: CompileOptions | None = None) -> None:
        self.module = module
        self.name = name
        self.options: CompileOptions = options or CompileOptions()
        self.timings: dict[str, float] = {}
        """Seconds spent in each stage."""
        self._dumps = self.options.kept()
        self._timed = settings.get("KILN_TIMING")
        self._verify_all = settings.get("KILN_VERIFY_PASSES")
        self._passes = 0

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begun
            self.timings[name] = self.timings.get(name, 0.0) + spent
            if self._timed:
                print(f"{self.name}: {name} took {spent * 1e3:.2f} ms", file=sys.stderr)
            logger().debug("%s: %s took %.2f ms", self.name, name, spent * 1e3)

    def verify(self, check: Callable[[ir.Module], None] | None = None) -> None:
        """Check the module as the front end made it, by MLIR's rules or by `check`; print and dump it if asked to."""
        with self.stage("verify"):
            try:
                if check is None:
                    self.module.operation.verify()
                else:
                    check(self.module)
            except ir.MLIRError as failure:
                raise (misplaced_value(self.module) or mlir_error(failure, "the program is not valid")) from None
        if settings.get("CUTE_DSL_PRINT_IR"):
            print(self.module.operation.get_asm(), flush=True)
        for watcher in watchers:
            watcher.state(self, "traced")
        self.dump("ir", "mlir", self.module.operation.get_asm)
        self.dump("ir-debug", "debug.mlir", lambda: self.module.operation.get_asm(enable_debug_info=True))

    def run(self, name: str, what: str | Callable[[ir.Module], None]) -> None:
        """Run a pass: a textual pipeline of upstream passes for `builtin.module`, or a function on the module."""
        from ..mlir import passmanager

        with self.stage(name):
            try:
                if isinstance(what, str):
                    with self.module.context:
                        manager = passmanager.PassManager.parse(f"builtin.module({what})")
                        manager.enable_verifier(self._verify_all)
                        manager.run(self.module.operation)
                else:
                    what(self.module)
                    if self._verify_all:
                        self.module.operation.verify()
            except (ir.MLIRError, ValueError) as failure:  # a ValueError: the pipeline does not parse
                raise mlir_error(failure, f"pass {name} failed") from None
        self._passes += 1
        for watcher in watchers:
            watcher.state(self, name)
        self.dump("passes", f"{self._passes:02}_{name}.mlir", self.module.operation.get_asm)

    @property
    def is_shown(self) -> bool:
        """Whether somebody looks at the module between passes."""
        return bool(self._dumps or watchers)

    def check_lowered(self, legal: Callable[[ir.Operation], str]) -> None:
        """Report the first operation that is not legal: `legal` returns why, or an empty string."""
        failure: list[tuple[ir.Location, str]] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            reason = legal(op)
            if reason:
                failure.append((op.location, reason))
                return ir.WalkResult.INTERRUPT
            return ir.WalkResult.ADVANCE

        with self.stage("check"):
            self.module.operation.walk(visit)
        if failure:
            raise report_at(failure[0][0], CompilerDiagnosticError, failure[0][1])

    def dump(self, kind: str, suffix: str, render: Callable[[], str | bytes]) -> str:
        """Write an artefact to a file if the environment or the options ask for its kind; return the path, or ""."""
        return self.write(suffix, render()) if kind in self._dumps else ""

    def write_rejected(self, suffix: str, data: str | bytes) -> str:
        """Write what a tool rejected to the dump directory, if set, else to a new temporary folder; return the path."""
        if settings.is_set("CUTE_DSL_DUMP_DIR") or self.options.is_set("dump_dir"):
            with contextlib.suppress(DSLRuntimeError):  # what was rejected is the error to tell
                return self.write(suffix, data)
        import tempfile

        return self.write(suffix, data, tempfile.mkdtemp(prefix="kiln-"))

    def write(self, suffix: str, data: str | bytes, directory: str = "") -> str:
        """Write a file named after the function, by default to the dump directory, and return its path."""
        directory = directory or self.options.dump_dir
        path = os.path.join(directory, f"{safe_name(self.name)}.{suffix}")
        try:
            os.makedirs(directory, exist_ok=True)
            with open(path, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
        except OSError as reason:
            raise DSLRuntimeError(
                f"{path} cannot be written: {reason.strerror or reason}",
                hint="DumpDir or CUTE_DSL_DUMP_DIR names the folder that artefacts are written to",
            ) from None
        return path


class Artifacts(Mapping[str, Any]):
    """The results of a compilation by name; each is rendered when first used."""

    def __init__(self) -> None:
        self._renderers: dict[str, Callable[[], Any]] = {}
        self._rendered: dict[str, Any] = {}

    def add(self, name: str, render: Callable[[], Any]) -> None:
        """Register how to make an artefact."""
        self._renderers[name] = render

    def __getitem__(self, name: str) -> Any:
        if name not in self._rendered:
            self._rendered[name] = self._renderers[name]()
        return self._rendered[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._renderers)

    def __len__(self) -> int:
        return len(self._renderers)

    def __repr__(self) -> str:
        return f"Artifacts({', '.join(self)})"


def safe_name(name: str) -> str:
    """Return a name as a file name: other characters replaced, cut to what file systems take."""
    return re.sub(r"[^\w.\-]+", "_", name)[:180] or "module"
