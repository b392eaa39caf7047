"""Host functions traced and verified, but not compiled."""

from __future__ import annotations

from typing import Any
from unittest import mock

from kiln import cute
from kiln.base_dsl.compiler import Compilation


class _Stop(Exception):
    pass


def traced(function: Any, *arguments: Any) -> str:
    """The module that a host function becomes for these arguments."""
    found: list[str] = []

    def stop(module: Any, entry: str, options: Any, target: Any) -> Any:
        Compilation(module, entry).verify()
        found.append(str(module))
        raise _Stop

    with mock.patch.object(cute.DSL, "compile_module", stop):
        try:
            cute.compile(function, *arguments)
        except _Stop:
            return found[0]
    raise AssertionError("nothing was traced")
