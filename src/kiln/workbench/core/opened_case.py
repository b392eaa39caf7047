"""Opens the Case of a job once per worker, and notices if its code replaced functions that time or compare."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from . import contracts, loading, source_closure
from .cases import Case

_TOOLS = {
    "time": ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time"),
    "numpy": ("array_equal", "allclose", "isnan", "abs"),
    "torch": ("equal", "allclose", "isclose", "empty", "empty_like"),
    "torch.cuda": ("Event", "synchronize", "current_stream", "Stream", "CUDAGraph"),
    "torch.cuda:Event": ("record", "elapsed_time", "synchronize"),
    "torch.testing": ("assert_close",),
    "kiln.hardware.driver": ("call", "function", "Event", "synchronize"),
    "kiln.measure": ("measure", "compare"),
    "kiln.workbench.verify.judge": ("judge",),
}


class Tools:
    """The functions that time and compare, and the sources of a contract, as they were before it was imported."""

    def __init__(self, sources: dict[Path, bytes]) -> None:
        self._sources = sources
        if source_closure.imports(sources, "torch"):
            importlib.import_module("torch")
        importlib.import_module("kiln.workbench.verify.judge")
        self._before = self._functions()

    def _functions(self) -> dict[tuple[str, str], Any]:
        functions: dict[tuple[str, str], Any] = {}
        for place, names in _TOOLS.items():
            module, _, kind = place.partition(":")
            owner = sys.modules.get(module)
            owner = getattr(owner, kind, None) if kind and owner is not None else owner
            if owner is not None:
                place = place.replace(":", ".")
                functions |= {(place, name): vars(owner)[name] for name in names if name in vars(owner)}
        return functions

    def changed(self) -> list[str]:
        """Return what was replaced since, in words."""
        now = self._functions()
        changes = [
            f"{'.'.join(name)} was replaced" for name, value in self._before.items() if now.get(name) is not value
        ]
        for path, before in self._sources.items():
            try:
                same = path.read_bytes() == before
            except OSError:
                same = False
            changes += [] if same else [f"{path} changed while it ran"]
        return changes


_opened: dict[str, tuple[Case, Tools]] = {}


def opened(where: str, anew: bool = False) -> tuple[Case, Tools]:
    """Return a Case, loaded once in this process unless `anew`, and the tools as they were before it was loaded."""
    if anew or where not in _opened:
        tools = Tools(contracts.prepare(contracts.path_of(where)))
        case = loading.load(where)
        _opened[where] = _opened[case.where] = case, tools
    return _opened[where]


def use(case: Case) -> None:
    """Have jobs in this process use a Case as it is, without loading it again."""
    _opened[case.where] = case, Tools(case.sources)
