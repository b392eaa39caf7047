"""`JitFunction`: the result of `@jit`. Called from Python it compiles and runs; called in a trace it is inlined."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from .._support import stack_guard
from .._support.gc_pause import gc_paused
from . import sanitizing, stale
from . import trace as tracing
from .arguments import AMBIENT_STREAM, WORKSPACE, Node
from .compiled_function import CompiledFunction, shown
from .dependencies import Dependencies
from .diagnostics import DSLBaseError
from .dsl import BaseDSL, Traced, compile_lock, shorten_traceback
from .specializations import ArgumentNodes, Call, Specialization, Specializations, fitted
from .stale import checks_stale
from .target import target_name
from .traced_function import TracedFunction

if TYPE_CHECKING:
    from typing_extensions import Self

    from .compiler import CompileOptions

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
Owner = TypeVar("Owner")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Kiln's own files: the kernel library is not checked by default."""


class JitFunction(TracedFunction[P, R_co]):
    """A host function, or a function inlined into others. The slot `for_caller` belongs to the language's caller.

    Bridges call it with one keyword more, `AMBIENT_STREAM`: the stream of launches that name none.
    """

    __slots__ = ("for_caller",)
    _called = "@jit function"

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(
            self: JitFunction[Concatenate[Owner, Q], R_co], instance: Owner, owner: type | None = None
        ) -> JitFunction[Q, R_co]: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> Self: ...  # below @staticmethod
        def __get__(self, instance: Any, owner: type | None = None) -> Any: ...

    def __init__(self, dsl: BaseDSL, function: types.FunctionType, preprocess: bool = True) -> None:
        super().__init__(dsl, function, preprocess)
        self._specializations = Specializations()

    def _run_in_python(self, *args: object, **kwargs: object) -> Any:
        if tracing.current() is not None:
            return self.inline(args, kwargs)
        try:
            call = Call(self, args, kwargs)
            chosen = None if call.no_cache else self._specializations.find(call.key)
            if chosen is None:
                chosen = self._specialize(call)
            elif checks_stale():
                self._check_stale(chosen.code, call.nodes)
            self.dsl.caller.learn_jit(self, chosen, call.values)
            chosen.code.note_writes(call.values)
            return chosen.code.run_leaves(call.leaves)
        except DSLBaseError as failure:
            as_seen = shown(failure, "")
            if as_seen is failure:
                raise
            raise as_seen from None
        except Exception as failure:
            shorten_traceback(failure)
            raise

    if not TYPE_CHECKING:
        __call__ = _run_in_python

    def _specialize(self, call: Call) -> Specialization:
        """Return code for a call that has none, or none that may be used; `specializations.py` says when that is."""
        arguments = call.nodes.arguments
        key, nodes = self._specializations.variant(call.nodes)
        chosen = None if call.no_cache else self._specializations.find(key)
        if chosen is None:
            with gc_paused:
                traced = self._trace(nodes, arguments)
                # before anything else happens that another thread could make use of
                dependencies = Dependencies(self.function, [value for node in nodes for value in node.static_values()])
                with compile_lock:
                    code = self._compile_traced(traced, nodes, arguments, None, None)
            chosen = Specialization(code, dependencies, borrowed=False)
        return self._specializations.add(call.nodes.key, key, chosen)

    def _check_stale(self, code: CompiledFunction[Any], nodes: ArgumentNodes) -> None:
        """Raise an error if a trace for these arguments gives another program than the code was made of."""
        with gc_paused:
            taken = fitted(nodes.exact, code.key_tuple) or nodes.exact
            stale.check(self.name, code.__mlir__ or "", self._trace(taken, nodes.arguments).module)

    def retrace(self) -> None:
        """Forget all specialisations: the next call traces again.

        For changes that Kiln does not see: something that code of an installed package read while tracing, or that was
        read from a file. Functions that inline this one keep their code.
        """
        with compile_lock:
            self._specializations.clear()
            if hasattr(self, "for_caller"):
                del self.for_caller

    @stack_guard.with_frames
    def _trace(self, nodes: list[Node], arguments: Mapping[str, object]) -> Traced:
        self.dsl.caller.prepare()
        name = (self.name_prefix or "") + self.name.replace("<lambda>", "lambda")

        def run(values: Sequence[object]) -> Any:
            passed_values = dict(zip(arguments, values, strict=True))
            active = tracing.require("a function")
            active.ambient_stream = passed_values.pop(AMBIENT_STREAM, None)
            active.workspace = passed_values.pop(WORKSPACE, None)
            args, kwargs = self.parameters.call_arguments(passed_values)
            return self.run(args, kwargs)

        return self.dsl.trace(name, nodes, run, self.span, list(arguments))

    def compile(
        self, nodes: list[Node], arguments: Mapping[str, object], options: CompileOptions | None, target: str | None
    ) -> CompiledFunction[Any]:
        """Trace and compile one specialisation."""
        stack_guard.check()
        with gc_paused:
            traced = self._trace(nodes, arguments)
            with compile_lock:
                return self._compile_traced(traced, nodes, arguments, options, target)

    def _compile_traced(
        self,
        traced: Traced,
        nodes: list[Node],
        arguments: Mapping[str, object],
        options: CompileOptions | None,
        target: str | None,
    ) -> CompiledFunction[Any]:
        own = self.function.__code__.co_filename.startswith(_PACKAGE)
        with sanitizing.unchecked() if own else contextlib.nullcontext():
            written = self.dsl.written_arguments(traced.module, traced.entry)  # before passes change the module
            executable = self.dsl.compile_module(traced.module, traced.entry, options, target)
        self.dsl.caller.wait()
        compiled = CompiledFunction(self, list(arguments), nodes, traced, executable, target or target_name(), written)
        if options is not None:
            compiled.convention = options.convention
            compiled.host_target = options.host_target
        return compiled
