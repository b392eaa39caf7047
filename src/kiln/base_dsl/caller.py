"""Who takes calls from Python.

Python takes every call of a jit or compiled function itself. A language may be given a `Caller` that learns from these
calls and takes later ones in its own way: `kiln.interop.arguments` has one that is native code. It raises nothing: what it does not
foresee it leaves to Python, so there is one source of errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .dependencies import Dependencies
    from .function import CompiledFunction, JitFunction


class Caller:
    """The caller of a language. This one leaves all calls to Python."""

    def prepare(self) -> None:
        """A function is about to be traced and compiled: get ready beside that."""

    def wait(self) -> None:
        """A function was compiled: wait until it is ready. Calls never wait."""

    def learn_compiled(self, compiled: CompiledFunction, values: Iterable[Any]) -> None:
        """Python takes a call of a compiled function with these arguments: take the next one like it."""

    def learn_jit(
        self, function: JitFunction, compiled: CompiledFunction, dependencies: Dependencies, values: Iterable[Any]
    ) -> None:
        """Python takes a call of a jit function by a specialization of it, while nothing that that depends on has changed:
        take the next one like it."""
