"""Branches and loops as operations of the `scf` dialect, for languages that have no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import trace as tracing
from .bindings import ir
from .dsl import BaseDSL


class ScfDSL(BaseDSL):
    """A language with `scf.if`, `scf.for` and `scf.while`."""

    def loop_attributes(self, hints: Mapping[str, object]) -> dict[str, ir.Attribute]:
        """Return a program's hints about a loop as attributes. None by default."""
        return {}

    def make_if(self, condition: Any, then: object, then_values: Any, orelse: Any, else_values: Any) -> Any:
        operation = tracing.emit("scf.if", [v.type for v in then_values], [condition], regions=2)
        _close(operation, 0, then, "scf.yield", then_values)
        # scf.if without results prints no else part if its region is empty
        if else_values or next(iter(orelse.operations), None) is not None:
            _close(operation, 1, orelse, "scf.yield", else_values)
        return list(operation.results)

    def make_for(
        self,
        lower: Any,
        upper: Any,
        step: Any,
        body: object,
        inits: Any,
        yields: object,
        *,
        unsigned: bool,
        hints: Mapping[str, object],
    ) -> Any:
        attributes = self.loop_attributes(hints)
        if unsigned:
            attributes["unsignedCmp"] = ir.UnitAttr.get()
        operation = tracing.emit(
            "scf.for", [v.type for v in inits], [lower, upper, step, *inits], attributes, regions=1
        )
        _close(operation, 0, body, "scf.yield", yields)
        return list(operation.results)

    def make_while(self, before: Any, condition: Any, forwards: Any, after: object, inits: Any, yields: object) -> Any:
        operation = tracing.emit("scf.while", [v.type for v in forwards], list(inits), regions=2)
        _close(operation, 0, before, "scf.condition", [condition, *forwards])
        _close(operation, 1, after, "scf.yield", yields)
        return list(operation.results)


def _close(operation: Any, index: int, block: Any, terminator: str, values: Any) -> None:
    """Make a traced block the region of an operation."""
    block.append_to(operation.regions[index])
    with ir.InsertionPoint(block):
        tracing.emit(terminator, [], list(values))
