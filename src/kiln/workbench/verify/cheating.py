"""Checks against self-deception: what makes a kernel look right or quick without being so.

Most of it happens by accident: a cached result, memory that still holds the reference's, work that goes on elsewhere.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base_dsl import packages
from ..core import source_closure
from ..core.cases import Case
from . import input_arrays

if TYPE_CHECKING:
    from types import TracebackType

CHECKS = {
    "inputs-unchanged": "inputs are as they were (declare `mutates` for those the kernel changes)",
    "no-view": "no output is a view of an input (or `aliases = True`)",
    "poisoned-memory": "memory is NaN before the call, and the kernel runs before the reference",
    "same-pointers": "new contents behind the same pointers give new results",
    "unseen-seed": "results are checked with data not seen before",
    "stream-order": "all work is ordered after the given stream (or `streams = True`)",
    "plain-arrays": "outputs are plain arrays, no subclasses that compute later",
    "no-threads": "no thread is left over",
    "honest-tools": "functions that time and compare, and the contract's file, are as they were",
    "physics": "no time is shorter than the roofline allows",
}
"""The checks, and what each makes sure of."""

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
    """The functions that time and compare, as they were before a contract was imported."""

    def __init__(self, sources: dict[Path, bytes]) -> None:
        self._sources = sources
        if source_closure.imports(sources, "torch"):
            importlib.import_module("torch")
        importlib.import_module("kiln.workbench.verify.judge")
        self._bound = self._now()

    def _now(self) -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = {}
        for place, names in _TOOLS.items():
            module, _, kind = place.partition(":")
            owner = sys.modules.get(module)
            owner = getattr(owner, kind, None) if kind and owner is not None else owner
            if owner is not None:
                found |= {(place.replace(":", "."), name): vars(owner)[name] for name in names if name in vars(owner)}
        return found

    def changed(self) -> list[str]:
        """What is no longer as it was."""
        now = self._now()
        found = [f"{'.'.join(name)} was replaced" for name, value in self._bound.items() if now.get(name) is not value]
        for path, before in self._sources.items():
            try:
                same = path.read_bytes() == before
            except OSError:
                same = False
            found += [] if same else [f"{path} changed while it ran"]
        return found


class Watch:
    """Looks at what a call of the kernel leaves behind: threads, and uses of streams where CUDA is served."""

    def __enter__(self) -> Watch:
        self._threads = set(threading.enumerate())
        self._streams: list[int] = []
        self._restore: list[tuple[Any, str, Any]] = []
        served = sys.modules.get("kiln.workbench.serve_cuda.streams")
        if served is not None:
            begin, plain, noted = served.current_stream().cuda_stream, served.Stream.__enter__, self._streams

            def enter(self: Any) -> Any:
                if self.cuda_stream not in (begin, 0):
                    noted.append(self.cuda_stream)
                return plain(self)

            self._restore.append((served.Stream, "__enter__", plain))
            served.Stream.__enter__ = enter
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for owner, name, plain in self._restore:
            setattr(owner, name, plain)
        new = [thread for thread in threading.enumerate() if thread not in self._threads and thread.is_alive()]
        self.left = [thread for thread in new if not thread.name.startswith("kiln:")]  # its compiler's

    def complaints(self, case: Case) -> dict[str, str]:
        """Checks that failed, each with what was seen."""
        found: dict[str, str] = {}
        if self.left:
            found["no-threads"] = f"kernel_fn left a thread running: {self.left[0].name}"
        if self._streams and not case.streams:
            found["stream-order"] = (
                "kernel_fn puts work on a stream of its own: what comes after it on the given one does not wait"
            )
        return found


def of_outputs(case: Case, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, str]:
    """Complaints of what a kernel returned."""
    found: dict[str, str] = {}
    kinds = {np.ndarray, *(type(x) for x in inputs)}
    torch = packages.loaded("torch")
    if torch is not None:
        kinds |= {torch.Tensor, torch.nn.Parameter}
    for number, output in enumerate(outputs):
        if type(output) not in kinds:
            found["plain-arrays"] = (
                f"output {number} is a {type(output).__module__}.{type(output).__qualname__}, which may compute later"
            )
            continue
        changed = [x for index, x in enumerate(inputs) if not mutated(case, index)]
        if not case.aliases and any(_overlap(output, x) for x in changed):
            found["no-view"] = f"output {number} shares its memory with an input"
    return found


def mutated(case: Case, number: int) -> bool:
    """Whether a contract says that its kernel changes an input."""
    return case.mutates is True or (isinstance(case.mutates, (tuple, list, set)) and number in case.mutates)


def _overlap(x: Any, y: Any) -> bool:
    if input_arrays.is_torch(x) and input_arrays.is_torch(y):
        return x.numel() > 0 and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    return isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and np.may_share_memory(x, y)
