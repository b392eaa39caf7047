"""Entry points through which other frameworks call compiled functions, registered by name and loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import settings
from .settings import TRUTH, Setting, truth

if TYPE_CHECKING:
    from collections.abc import Callable

    from .compiled_function import CompiledFunction

settings.register(
    Setting(
        "KILN_AOT_STRICT",
        TRUTH,
        False,
        "Functions of loaded modules refuse tensors of another layout than the one that was compiled for, which they else take as they are, with a warning.",
        truth,
    )
)

_loaders: dict[str, Callable[[], Callable[[CompiledFunction[Any]], Any] | None]] = {}


def register(name: str, load: Callable[[], Callable[[CompiledFunction[Any]], Any] | None]) -> None:
    """Register an entry point. `load()` returns the function that wraps a compiled function, None if not installed."""
    _loaders[name] = load


def through(name: str, compiled: CompiledFunction[Any]) -> Any:
    """Return a compiled function as a framework takes it; itself where there is no such framework."""
    wrap = _loaders[name]() if name in _loaders else None
    return compiled if wrap is None else wrap(compiled)


exporter: Callable[[], Any]
"""Returns the module that exports compiled functions as object files (`export_to_c`) and loads them (`load_module`)."""
