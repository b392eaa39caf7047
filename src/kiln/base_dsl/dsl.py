"""`BaseDSL`: trace a function, own the module, call the target.

A language is a subclass. It says how branches and loops look in its dialect, which values it takes as arguments,
and which decorators it offers; this module knows only builtin, func, arith and math.
"""

from __future__ import annotations

import contextlib
import dis
import types
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from .._support import fork_safe, lazy
from . import merging, tree
from . import trace as tracing
from .arguments import ArgumentRules, JitArgAdapterRegistry, Node  # noqa: F401  # pyright: ignore[reportUnusedImport] - programs look for it here
from .bindings import context, file_location, ir
from .caller import Caller
from .diagnostics import (
    DSLBaseError,
    DSLOperationBuildError,
    DSLUserCodeError,
    DSLWarning,
    Span,
    error,
    frame_span,
    is_internal,
    positions,
    strip_internal_frames,
)
from .numeric.ir_values import have_operators
from .target import get_target
from .typing import Numeric, get_c_pointers, get_mlir_types  # noqa: F401  # pyright: ignore[reportUnusedImport] - programs look for them here
from .uncaught import is_users, note, shows_all_frames
from .user_op import extract_mlir_attributes, extract_mlir_values, is_dynamic_expression, new_from_mlir_values  # noqa: F401  # pyright: ignore[reportUnusedImport] - programs look for them here
from .value_trees import debug_print_mlir_values, set_dynamic_debug  # noqa: F401  # pyright: ignore[reportUnusedImport] - the same

__dir__ = lazy.listing(__name__)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..mlir import ext
    from .compiler import CompileOptions
    from .target import Executable

compile_lock: Any = fork_safe.wait_for(fork_safe.rlock())
"""Held while a module is compiled. Not while a function is traced: that runs the program's own code, which may wait for
another thread that compiles."""


@contextlib.contextmanager
def others_may_compile() -> Iterator[None]:
    """Let other threads compile while open, around waiting for another process in the middle of a compilation."""
    lock: Any = compile_lock
    held = lock._release_save() if lock._is_owned() else None
    try:
        yield
    finally:
        if held is not None:
            lock._acquire_restore(held)


def default_language() -> Any:
    """Return the language that `BaseDSL` itself stands for; a package that brings a language replaces this function."""
    return BaseDSL()


class BaseDSL(ArgumentRules):
    """The base class of languages. Each method has a default that raises or is the plain choice."""

    name = "base"
    wraps = False
    """Whether integers may overflow on purpose: then nothing is assumed about their values."""
    caller: Caller = Caller()
    """The native caller of the language's functions."""
    _warned: ClassVar[set[str]] = set()

    @classmethod
    def _get_dsl(cls) -> Any:
        """Return the language itself; of `BaseDSL`, the default one."""
        return default_language() if cls is BaseDSL else cls()

    def print_warning(self, message: str) -> None:
        """Warn the program. Libraries replace this method to filter warnings."""
        warnings.warn(message, DSLWarning, stacklevel=2)

    def print_warning_once(self, message: str) -> None:
        """Warn the program, once for a message."""
        if message not in self._warned:
            self._warned.add(message)
            self.print_warning(message)

    def dialects(self) -> Sequence[type[ext.Dialect]]:
        """Return the Python-defined dialects to load before tracing."""
        return ()

    def value_of(self, value: ir.Value) -> object:
        """Return what a program sees of an argument that an object of its own passes as an IR value."""
        return value

    def make_function(
        self, name: str, types: Sequence[ir.Type], location: ir.Location
    ) -> tuple[ir.Operation, ir.Block]:
        """Return an empty host function at the insertion point, and its entry block."""
        operation = ir.Operation.create(
            "func.func",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(name),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(list(types), [])),
            },
            loc=location,
        )
        entry = operation.regions[0].blocks.append(*types, arg_locs=[location] * len(types))
        return operation, entry

    def finish_function(self, function: ir.Operation, types: Sequence[ir.Type], values: Sequence[ir.Value]) -> None:
        """Return `values` from a function begun with `make_function`."""
        results = [v.type for v in values]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(types), results))
        tracing.emit("func.return", [], list(values))

    def describe_arguments(self, function: ir.Operation, nodes: Sequence[Node]) -> None:
        """Attach to a host function what its target should know of its arguments. By default nothing."""

    def make_if(
        self,
        condition: ir.Value,
        then: ir.Block,
        then_values: Sequence[ir.Value],
        orelse: ir.Block,
        else_values: Sequence[ir.Value],
    ) -> Sequence[ir.Value]:
        """Add a branch around two traced blocks without terminators, and return its results."""
        raise NotImplementedError

    def make_for(
        self,
        lower: ir.Value,
        upper: ir.Value,
        step: ir.Value,
        body: ir.Block,
        inits: Sequence[ir.Value],
        yields: Sequence[ir.Value],
        *,
        unsigned: bool,
        hints: dict[str, Any],
    ) -> Sequence[ir.Value]:
        """Add a loop from `lower` up to but not including `upper`, step > 0, and return its results.

        `body`'s arguments are the induction variable, then the carried values; `yields` are their next values.
        """
        raise NotImplementedError

    def make_while(
        self,
        before: ir.Block,
        condition: ir.Value,
        forwards: Sequence[ir.Value],
        after: ir.Block,
        inits: Sequence[ir.Value],
        yields: Sequence[ir.Value],
    ) -> Sequence[ir.Value]:
        """Add a `while`: `before` takes the carried values and decides; `after` takes `forwards`, yields the next
        values.

        Returns the results: `forwards` at the end. There are as many forwarded as carried values.
        """
        raise NotImplementedError

    def make_undefined(self, type_: ir.Type) -> ir.Value:
        """Return a value that is never read. By default numbers only: zero."""
        if isinstance(type_, (ir.IntegerType, ir.IndexType)):
            return tracing.constant(type_, 0)
        if isinstance(type_, ir.FloatType):
            return tracing.constant(type_, 0.0)
        raise DSLOperationBuildError(f"{self.name} cannot make an undefined value of type {type_}")

    def make_assert(self, condition: ir.Value, message: str) -> None:
        """Add a check that is made when the program runs."""
        raise DSLUserCodeError(f"{self.name} has no assertions at run time")

    def explain(self, failure: Exception, tb: types.TracebackType | None) -> DSLBaseError | None:
        """Return the error to raise in place of an exception that is not Kiln's, if its cause is a known mistake."""
        return None

    def instead_of(self, name: str) -> str:
        """Return the language's own function for one of Python's `math`, numpy or torch; empty if there is none."""
        return ""

    def is_selectable(self, type_: ir.Type) -> bool:
        """Return whether `arith.select` takes this type."""
        return isinstance(type_, (ir.IntegerType, ir.FloatType, ir.IndexType, ir.VectorType))

    def compile_module(
        self, module: ir.Module, entry: str, options: CompileOptions | None, target: str | None
    ) -> Executable:
        """Run the object stage, and return the executable: the chosen target's, or the disk cache's."""
        from . import cache

        return cache.compile_module(get_target(target), module, entry, options)

    def written_arguments(self, module: ir.Module, entry: str) -> frozenset[int]:
        """Return the numbers of the arguments of a host function that are known to be written to. None by default."""
        return frozenset()

    def check_arguments(
        self, nodes: Sequence[Node], names: Sequence[str], values: Sequence[ir.Value]
    ) -> ir.Value | None:
        """Add checks of the arguments at the start of a host function; return the condition for running it, or None."""
        return None

    def may_check_traced(self, nodes: Sequence[Node]) -> bool:
        """Return whether `check_traced_arguments` may check arguments."""
        return False

    def check_traced_arguments(
        self, nodes: Sequence[Node], names: Sequence[str], values: Sequence[ir.Value], fits: ir.Value | None
    ) -> ir.Value | None:
        """Add checks that depend on what the function does; return the condition for running it, `fits` included."""
        return fits

    def trace(
        self, name: str, nodes: Sequence[Node], run: Callable[[list[Any]], Any], at: Span, names: Sequence[str]
    ) -> Traced:
        """Trace `run` as a host function of the nodes' leaves; `names` are those of the arguments."""
        from ..mlir import require_dialect

        for dialect in self.dialects():
            require_dialect(dialect)
        have_operators()
        with context(), ir.Location.unknown():
            module = ir.Module.create()
        active = tracing.Trace(self, module)
        with tracing.activate(active), report(active):
            location = file_location(at.filename, at.line, 1)
            leaf_types = [t for node in nodes for t in node.types()]
            with ir.InsertionPoint(module.body):
                function, entry = self.make_function(name, leaf_types, location)
                self.describe_arguments(function, nodes)
            with tracing.inside_function(active, entry, "host"):
                from .frontend import merged_objects
                from .frontend.regions import DetachedBlock

                fits = self.check_arguments(nodes, names, list(entry.arguments))
                body = DetachedBlock([])
                arguments = iter(list(entry.arguments))
                apart = fits is not None or self.may_check_traced(nodes)
                with body.open() if apart else contextlib.nullcontext():
                    returned = run([node.rebuild(arguments) for node in nodes])
                    if active.broken is not None:
                        raise active.broken
                    merged_objects.check(active.watched)
                    if active.complaints:
                        raise active.complaints[0]
                    try:
                        _, values, rebuild = merging.open_value(returned, promote=False)
                    except merging.Mismatch as m:
                        raise DSLUserCodeError(
                            f"{name} returns {tree.describe(returned)} that cannot be made of results: {m.why}",
                            hint="return its parts",
                            span=at,
                        ) from None
                    kinds = result_kinds(returned)
                    single = tree.is_dynamic(returned)
                fits = self.check_traced_arguments(nodes, names, list(entry.arguments), fits)
                if fits is None:
                    body.splice()
                else:  # where arguments do not fit the check has reported it, and the function does nothing
                    nothing = DetachedBlock([])
                    with nothing.open():
                        undefined = [self.make_undefined(v.type) for v in values]
                    values = list(self.make_if(fits, body.block, values, nothing.block, undefined))
                self.finish_function(function, leaf_types, values)
        return Traced(module, name, leaf_types, [v.type for v in values], kinds, rebuild, single)


tracing.entry_codes.append(BaseDSL.trace.__code__)


class Traced:
    """A complete module, and how its results are read."""

    def __init__(
        self,
        module: ir.Module,
        entry: str,
        argument_types: list[ir.Type],
        result_types: list[ir.Type],
        result_kinds: list[Any],
        rebuild: Callable[[Any], Any],
        returns_number: bool,
    ) -> None:
        self.module = module
        self.entry = entry
        self.argument_types = argument_types
        self.result_types = result_types
        self.result_kinds = result_kinds
        self.rebuild = rebuild
        self.returns_number = returns_number
        """Whether a single number is returned, by itself."""


def result_kinds(returned: object) -> list[Any]:
    """Return the numeric type of each leaf of a returned value; other values cannot leave a compiled function."""
    kinds: list[Any] = []

    def walk(x: object, path: str) -> None:
        if isinstance(x, Numeric):
            if tree.is_dynamic(x):
                kinds.append(type(x))
        elif isinstance(x, (tuple, list)):
            for i, part in enumerate(x):
                walk(part, f"{path}[{i}]")
        elif isinstance(x, dict):
            for k, part in x.items():
                walk(part, f"{path}[{k!r}]")
        elif tree.is_mlir_value(x) or tree.is_protocol(x):
            if tree.has_dynamic(x):
                raise error(
                    DSLUserCodeError,
                    f"a compiled function returns {tree.describe(x)} to Python{' in ' + path if path else ''}",
                    hint="return numbers, or write to a tensor that was passed in",
                )
        elif tree.is_plain_object(x) and tree.has_dynamic(x):
            for k, part in tree.attributes_of(x).items():
                walk(part, f"{path}.{k}")

    walk(returned, "")
    return kinds


class report:
    """Report failures of the user's program as Kiln does while open; other exceptions get `while_tracing` set."""

    def __init__(self, trace: tracing.Trace) -> None:
        self._trace = trace

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, failure: BaseException | None, tb: types.TracebackType | None) -> None:
        if failure is None:
            return
        broken = self._trace.broken
        if broken is not None and failure is not broken and failure is not self._trace.broken_by:
            raise broken from failure  # what went wrong first
        if isinstance(failure, DSLBaseError):
            if failure.span is None:  # the layout algebra knows no place
                failure.span = last_user_span(tb)
            return
        if isinstance(failure, NameError):
            mistake = self._missing_variable(failure, tb)
            if mistake is not None:
                raise mistake from None
        if isinstance(failure, ir.MLIRError):
            span = last_user_span(tb)
            raise DSLOperationBuildError(f"an operation could not be built: {failure}", span=span) from failure
        if isinstance(failure, Exception):
            explained = self._trace.dsl.explain(failure, tb)
            if explained is not None:
                raise explained.with_traceback(tb) from None
        with contextlib.suppress(AttributeError):
            failure.while_tracing = True  # pyright: ignore[reportAttributeAccessIssue]

    def _missing_variable(self, failure: NameError, tb: types.TracebackType | None) -> DSLBaseError | None:
        name = getattr(failure, "name", None)
        if name is None:
            parts = str(failure).split("'")
            name = parts[1] if len(parts) > 1 else None
        span = last_user_span(tb)
        if name is None or span is None:
            return None
        for (filename, _, variable), (why, hint, notes) in self._trace.unavailable.items():
            if variable == name and filename == span.filename:
                return DSLUserCodeError(why, hint=hint, span=span, notes=notes)
        return None


def last_user_span(tb: types.TracebackType | None) -> Span | None:
    """Return where the innermost frame of the user's in a traceback was."""
    span: Span | None = None
    while tb is not None:
        if not is_internal(tb.tb_frame.f_code):
            line, end_line, column, end_column = positions(tb.tb_frame.f_code, tb.tb_lasti)
            base = frame_span(tb.tb_frame)
            span = Span(base.filename, line if line > 0 else tb.tb_lineno, column, end_line, end_column, base.function)
        tb = tb.tb_next
    return span


def shorten_traceback(failure: BaseException) -> None:
    """Leave only the user's frames in the traceback of an error that the user's program caused.

    What fails inside Kiln while it traces a program has most often got a wrong argument; a note says how to see all
    frames, in case it has not. Failures elsewhere in Kiln stay whole.
    """
    if shows_all_frames():
        return
    last = last_frame(failure.__traceback__)
    if last is None:
        return
    own = is_internal(last.tb_frame.f_code) and not raised_on_purpose(failure, last)
    if own and not is_users(failure):
        if not getattr(failure, "while_tracing", False):
            return
        name = last.tb_frame.f_code.co_name
        note(failure, f"raised in Kiln's own {name}(): if its arguments are right, `python -X dev` shows where")
    failure.__traceback__ = strip_internal_frames(failure.__traceback__)


def last_frame(tb: types.TracebackType | None) -> types.TracebackType | None:
    """Return the innermost entry of a traceback."""
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb


_RAISE = dis.opmap["RAISE_VARARGS"]


def raised_on_purpose(failure: BaseException, last: types.TracebackType) -> bool:
    """Return whether a `raise` at the end of a traceback raised an exception, rather than a failing operation."""
    code = last.tb_frame.f_code.co_code
    return not isinstance(failure, AssertionError) and last.tb_lasti < len(code) and code[last.tb_lasti] == _RAISE
