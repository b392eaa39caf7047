"""The native code of this process: loaded beside the first compilation, and never waited for by calls.

It is compiled and loaded by who can (`provide`); this room knows no compiler. `KILN_NATIVE_CALLS=0` leaves all calls to Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import forks
from ..base_dsl import settings
from ..base_dsl.settings import TRUTH, Setting, truth

if TYPE_CHECKING:
    from collections.abc import Callable

    from .caller.engine import Engine

settings.register(
    Setting("KILN_NATIVE_CALLS", TRUTH, True, "Native code takes calls from Python. 0: Python takes them all, with the same results and errors, slower. Read once, when the first function is compiled.", truth),
)  # fmt: skip

_provider: Callable[[], Any] | None = None
_finish: Callable[[], Engine | None] | None = None
_engine: Engine | None = None
_lock = forks.rlock()


def provide(provider: Callable[[], Any]) -> None:
    """Say who loads native code: `provider()` gives a function such as `kiln.targets.host.jit.loading`."""
    global _provider
    _provider = provider


def loaded() -> Engine | None:
    """The native code if something has asked for it before."""
    return _engine


def prepare() -> None:
    """Begin to load it, beside what follows; `engine` waits for it."""
    global _finish
    if _provider is not None:
        with _lock:
            if _provider is not None and _finish is None:
                _finish = _begin(_provider)


def _begin(provider: Callable[[], Any]) -> Callable[[], Engine | None]:
    from .caller import engine

    return engine.begin(provider()) if settings.get("KILN_NATIVE_CALLS") else lambda: None


def engine() -> Engine | None:
    """The native code, or None where Python has to do."""
    global _provider, _finish, _engine
    if _provider is None:
        return _engine
    with _lock:
        prepare()
        if _finish is not None:
            _engine = _finish()
            _provider = _finish = None
        return _engine
