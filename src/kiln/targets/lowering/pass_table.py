"""Tables of passes by name, and running some of them on the text of a module: `kiln opt`.

A pass has the name of its file, with hyphens. Each target has a table (`pass_table.py`) of the steps of its lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...base_dsl.diagnostics import DSLUserCodeValueError
from ...base_dsl.numeric.expand import expand_narrow_floats
from ...dialects import nvgpu
from ...dialects.definition import verify
from ...hardware.architectures import Architecture
from ...mlir import context, ir
from .launch_limits import check_limits
from .loop_annotations import keep_loop_annotations


class Pass(NamedTuple):
    """A pass of a lowering."""

    run: Callable[[ir.Module, Architecture], ir.Module | None]
    """Changes a module in place; may return a further module that it made of it."""
    what: str
    """What it does, in a few words."""


def on_module(change: Callable[[ir.Module], object]) -> Callable[[ir.Module, Architecture], None]:
    """Return the `run` of a pass that needs nothing but the module."""

    def run(module: ir.Module, _arch: Architecture) -> None:
        change(module)

    return run


def _check_limits(module: ir.Module, arch: Architecture) -> None:
    check_limits(module, arch)


SHARED: dict[str, Pass] = {
    "launch-limits": Pass(_check_limits, "refuse launches that no GPU takes, and place shared memory"),
    "narrow-floats": Pass(on_module(expand_narrow_floats), "convert floats of 8 bits and less by integer arithmetic"),
    "loop-annotations": Pass(on_module(keep_loop_annotations), "hand hints of loops to their branches"),
}
"""The passes that all targets have."""


def run_passes(table: Mapping[str, Pass], text: str, names: Sequence[str], arch: Architecture) -> str:
    """Run passes on the text of a module, and return the text of the resulting modules."""
    unknown = [name for name in names if name not in table]
    if unknown:
        raise DSLUserCodeValueError(f"there is no pass {unknown[0]!r}", hint=f"passes: {', '.join(table)}")
    nvgpu.load_dialect()
    with context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as failure:
            raise DSLUserCodeValueError(f"the module does not parse: {failure}") from None
        verify(module)
        modules: list[ir.Module] = []
        for name in names:
            further = table[name].run(module, arch)
            module.operation.verify()
            modules += [] if further is None else [further]
        return "\n".join(str(one).rstrip() for one in (module, *modules)) + "\n"
