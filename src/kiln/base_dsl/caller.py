"""The native caller of functions, if a language has one.

Python handles every call of a jit or compiled function itself. A language may have a `Caller` that learns from these
calls and handles later ones: `kiln.interop.arguments` has one in native code. It never raises; calls that it cannot
handle it leaves to Python, so there is one source of errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .compiled_function import CompiledFunction
    from .function import JitFunction
    from .specializations import Specialization


class Caller:
    """The caller of a language. This one leaves all calls to Python."""

    def prepare(self) -> None:
        """Prepare while a function is traced and compiled."""

    def wait(self) -> None:
        """Wait until the preparation is done, once a function is compiled. Calls never wait."""

    def note_write(self, value: Any) -> None:
        """Tell the framework of an array that compiled code writes to it, if the framework counts writes."""

    def learn_compiled(self, compiled: CompiledFunction[Any], values: Iterable[Any]) -> None:
        """Learn from a call of a compiled function with these arguments, and handle the next one like it."""

    def learn_jit(self, function: JitFunction[..., Any], specialization: Specialization, values: Iterable[Any]) -> None:
        """Learn from a call of a jit function with these arguments, and handle the next one like it while what the trace
        may have read is as it was."""
