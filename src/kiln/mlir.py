"""The MLIR bindings, imported here and nowhere else.

Everything else takes `ir`, `passmanager` and the dialect packages from this module, so another build of
the upstream bindings can be swapped in by changing `PACKAGE`. Importing this module loads native code
(about 0.1 s): modules that must stay light import it inside functions.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import types

from torch_mlir import ir, passmanager
from torch_mlir.dialects import ext

PACKAGE = "torch_mlir"
"""The importable package of the bindings."""

__all__ = ["PACKAGE", "context", "dialect_module", "ext", "ir", "passmanager", "require_dialect"]

_lock = threading.Lock()


@functools.lru_cache(maxsize=1)
def context() -> ir.Context:
    """The process-wide context. The bindings hold the GIL throughout, so threads may share it.

    Its own multithreading is off: passes call back into Python, and worker threads would deadlock on the GIL.
    """
    made = ir.Context()
    made.enable_multithreading(False)
    return made


def require_dialect(dialect: type[ext.Dialect]) -> None:
    """Make a Python-defined dialect known to the context. Cheap when it already is; safe from several threads."""
    name: str = dialect.DIALECT_NAMESPACE
    with _lock:  # Dialect.load keeps state on the class while it works
        if context().is_dialect_loaded(name):
            return
        # Without a module of that name, every look-up of one of its ops retries a failing import (41 us each).
        sys.modules.setdefault(f"{PACKAGE}.dialects.{name}", types.ModuleType(f"{PACKAGE}.dialects.{name}"))
        with context():
            dialect.load()


def dialect_module(name: str) -> types.ModuleType:
    """The generated Python module of an upstream dialect, for example `dialect_module("llvm")`."""
    return importlib.import_module(f"{PACKAGE}.dialects.{name}")
