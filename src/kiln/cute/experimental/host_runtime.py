"""Functions that belong to a compiled function: `compiled.get_aux_func(QueryDeviceWorkspaceFunc, kernel=kernel)`."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...base_dsl.compiled_function import CompiledFunction
from ...base_dsl.diagnostics import type_error
from ...base_dsl.function import JitFunction
from ...base_dsl.parameters import Parameters
from .program import total_of_workspaces

__all__ = ["DeviceWorkspace", "QueryDeviceWorkspaceFunc"]


class DeviceWorkspace(NamedTuple):
    """The memory that a compiled function takes as its last argument."""

    size_in_bytes: int


class _Query(JitFunction):
    """A host function that launches nothing, and returns the bytes of the workspace that it would need."""

    def run(self, args: Any, kwargs: dict[str, Any]) -> Any:
        return total_of_workspaces(lambda: super(_Query, self).run(args, kwargs))


class QueryDeviceWorkspaceFunc:
    """Tells the `DeviceWorkspace` of a compiled function, called with its arguments but for the workspace."""

    name = "queryDeviceWorkspace"

    def __init__(self, compiled: CompiledFunction[Any], kernel: object = None) -> None:
        if not isinstance(compiled, CompiledFunction):
            raise type_error(
                f"QueryDeviceWorkspaceFunc of a {type(compiled).__name__}", "what cute.experimental.compile returned"
            )
        self._compiled = compiled
        source = compiled.source
        self._query = _Query(source.dsl, source.function, source.preprocess)

    def __call__(self, *args: object) -> DeviceWorkspace:
        compiled = self._compiled
        rest = iter(args)
        names = [name for name in compiled.names if name in Parameters(compiled.source.function).names]
        passed = [compiled.static[n] if n not in compiled.passed else next(rest, None) for n in names]
        return DeviceWorkspace(int(self._query(*passed)))
