"""LLVM: `llvmlite.binding`, imported here and nowhere else.

Its Python classes of IR (`llvmlite.ir`) and the library that finds its shared object (`importlib.resources`) take as long to
import as all of the rest, and are not needed.
"""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

from ._support import deferred


def _open(ffi: Any) -> None:
    """Open the shared object, which lies beside the module."""
    path = os.path.join(os.path.dirname(ffi.__file__), ffi.get_library_name())
    if os.path.exists(path):  # otherwise as llvmlite finds it
        ffi.lib._lib_handle = ctypes.CDLL(path)


_resources = SimpleNamespace(resources=deferred.Used("importlib.resources"))
_classes = SimpleNamespace(ir=deferred.Used("llvmlite.ir", within=1))
with (
    deferred.importing("llvmlite.binding.ffi", {"importlib.resources": _resources}, _open),
    deferred.importing("llvmlite.binding.typeref", {"llvmlite": _classes}),
):
    import llvmlite.binding as binding

__all__ = ["binding", "unlocked"]

# Reading a module would verify it to see whether its debug information is old, and end the process over a wrong one. Whoever reads one
# verifies it, and raises.
binding.set_option("kiln", "--disable-auto-upgrade-debug-info")


def unlocked(function: str) -> Any:
    """Return a function of llvmlite without its lock, which lets one thread at a time work.

    LLVM itself lets threads work side by side on modules of different contexts with code generators of their own.
    """
    locked = getattr(binding.ffi.lib, function)
    return getattr(locked, "_cfn", locked)
