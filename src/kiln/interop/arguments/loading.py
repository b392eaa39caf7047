"""The native engine of this process: loaded while the first function compiles; calls never wait for it.

This room knows no compiler: targets register the function that loads native code (`provide`). `KILN_NATIVE_CALLS=0`
leaves all calls to Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._support import fork_safe
from ...base_dsl import settings
from ...base_dsl.settings import TRUTH, Setting, truth

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import Engine, EngineLoader

_NATIVE_CALLS = (
    "Native code takes calls from Python. 0: Python takes them all, with the same results and errors, slower. "
    "Read once, when the first function is compiled."
)
settings.register(Setting("KILN_NATIVE_CALLS", TRUTH, True, _NATIVE_CALLS, truth))

_provider: Callable[[], Any] | None = None
_loader: EngineLoader | None = None
_engine: Engine | None = None
_lock = fork_safe.rlock()


def provide(provider: Callable[[], object]) -> None:
    """Register what loads native code: `provider()` returns a function such as `kiln.targets.host.jit.loading`."""
    global _provider
    _provider = provider


def loaded() -> Engine | None:
    """Return the engine if `engine` has loaded it before."""
    return _engine


def prepare(programs: bool = False) -> None:
    """Begin to load the engine in the background; `engine` waits for it.

    `programs` also loads what only the kernel library needs.
    """
    global _provider, _loader
    if _provider is not None or programs:
        with _lock:
            if _provider is not None:
                from .engine import begin_loading

                provider, _provider = _provider, None
                _loader = begin_loading(provider()) if settings.get("KILN_NATIVE_CALLS") else None
            if _loader is not None and programs:
                _loader.begin_programs()


def engine() -> Engine | None:
    """Return the engine, or None where Python takes all calls."""
    global _engine
    if _engine is None:
        with _lock:
            prepare()
            if _engine is None and _loader is not None:
                _engine = _loader.finish()
    return _engine
