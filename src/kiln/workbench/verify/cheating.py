"""Checks against self-deception: what makes a kernel look right or fast without being so.

Most of it happens by accident: a cached result, memory that still holds the reference's, work that goes on elsewhere.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base_dsl import packages
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
    "physics": "no time is below the roofline's",
}
"""The checks, with what each makes sure of."""


class Watch:
    """Notices what a call of the kernel leaves behind: threads, and work on other streams where CUDA is served."""

    def __enter__(self) -> Watch:
        self._threads = set(threading.enumerate())
        self._streams: list[int] = []
        self._restore: list[tuple[Any, str, Any]] = []
        served = sys.modules.get("kiln.workbench.serve_cuda.streams")
        if served is not None:
            begin = served.current_stream().cuda_stream
            plain = served.Stream.__enter__
            noted = self._streams

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
        self.left: list[threading.Thread] = [
            thread for thread in new if not thread.name.startswith("kiln:")
        ]  # threads of Kiln's compiler

    def complaints(self, case: Case) -> dict[str, str]:
        """Return the checks that failed, each with what was seen."""
        complaints_: dict[str, str] = {}
        if self.left:
            complaints_["no-threads"] = f"kernel_fn left a thread running: {self.left[0].name}"
        if self._streams and not case.streams:
            why = "what comes after it on the given stream does not wait"
            complaints_["stream-order"] = f"kernel_fn puts work on a stream of its own: {why}"
        return complaints_


def of_outputs(case: Case, inputs: Sequence[object], outputs: Sequence[object]) -> dict[str, str]:
    """Return the checks that the kernel's outputs failed, each with what was seen."""
    complaints_: dict[str, str] = {}
    kinds = {np.ndarray, *(type(x) for x in inputs)}
    torch = packages.loaded("torch")
    if torch is not None:
        kinds |= {torch.Tensor, torch.nn.Parameter}
    for number, output in enumerate(outputs):
        if type(output) not in kinds:
            kind = f"{type(output).__module__}.{type(output).__qualname__}"
            complaints_["plain-arrays"] = f"output {number} is a {kind}, which may compute later"
            continue
        changed = [x for index, x in enumerate(inputs) if not mutated(case, index)]
        if not case.aliases and any(_overlap(output, x) for x in changed):
            complaints_["no-view"] = f"output {number} shares its memory with an input"
    return complaints_


def mutated(case: Case, number: int) -> bool:
    """Return whether a contract declares that its kernel changes an input."""
    return case.mutates is True or (isinstance(case.mutates, (tuple, list, set)) and number in case.mutates)


def _overlap(x: Any, y: Any) -> bool:
    if input_arrays.is_torch(x) and input_arrays.is_torch(y):
        return x.numel() > 0 and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    return isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and np.may_share_memory(x, y)
