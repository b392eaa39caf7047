"""Tells the main interpreter of a process from its sub-interpreters."""

from __future__ import annotations

import importlib
from typing import Any


def check() -> None:
    """Raise an error in a sub-interpreter, where MLIR's bindings would wait for the main interpreter's lock for ever."""
    if not _is_main():
        raise RuntimeError(
            "kernels are compiled in the main interpreter of a process only, since the MLIR bindings take its lock, and this is a "
            "sub-interpreter: call Kiln in a thread or another process; with mod_wsgi, set WSGIApplicationGroup %{GLOBAL}"
        )


def _is_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # Python 3.13 renamed it
        try:
            interpreters: Any = importlib.import_module(name)
        except ImportError:
            continue
        return interpreters.get_current() == interpreters.get_main()
    return True  # a Python that was built without
