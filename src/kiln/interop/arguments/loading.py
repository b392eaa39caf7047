"""The native code of this process: loaded beside the first compilation, and never waited for by calls.

It is compiled and loaded by who can (`provide`); this room knows no compiler. `KILN_NATIVE_CALLS=0` leaves all calls to Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._support import fork_safe
from ...base_dsl import settings
from ...base_dsl.settings import TRUTH, Setting, truth

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import Begun, Engine

settings.register(
    Setting("KILN_NATIVE_CALLS", TRUTH, True, "Native code takes calls from Python. 0: Python takes them all, with the same results and errors, slower. Read once, when the first function is compiled.", truth),
)  # fmt: skip

_provider: Callable[[], Any] | None = None
_begun: Begun | None = None
_engine: Engine | None = None
_lock = fork_safe.rlock()


def provide(provider: Callable[[], Any]) -> None:
    """Say who loads native code: `provider()` gives a function such as `kiln.targets.host.jit.loading`."""
    global _provider
    _provider = provider


def loaded() -> Engine | None:
    """The native code if something has asked for it before."""
    return _engine


def prepare(programs: bool = False) -> None:
    """Begin to load it, beside what follows; `engine` waits for it. `programs`: also what only the kernel library needs."""
    global _provider, _begun
    if _provider is not None or programs:
        with _lock:
            if _provider is not None:
                from .engine import begin

                provider, _provider = _provider, None
                _begun = begin(provider()) if settings.get("KILN_NATIVE_CALLS") else None
            if _begun is not None and programs:
                _begun.begin_programs()


def engine() -> Engine | None:
    """The native code, or None where Python has to do."""
    global _engine
    if _engine is None:
        with _lock:
            prepare()
            if _engine is None and _begun is not None:
                _engine = _begun.finish()
    return _engine
