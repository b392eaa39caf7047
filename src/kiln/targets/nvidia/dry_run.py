"""Dry runs: host code runs, and launches are recorded instead of made. Needs neither a GPU nor a driver."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..._support import fork_safe

if TYPE_CHECKING:
    from .codegen import Resources
    from .remarks import About, Remark
    from .runtime import Kernels


@dataclasses.dataclass(frozen=True)
class DryLaunch:
    """A launch that was not made."""

    kernel: str
    arch: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    smem: int
    """Bytes of dynamic shared memory."""
    resources: Resources
    artifacts: Mapping[str, Any] = dataclasses.field(repr=False, compare=False, default_factory=dict[str, Any])
    """Artefacts of the compiled function, made on demand: "mlir", "llvm", "ptx", "cubin", "sass"."""
    about: About | None = dataclasses.field(repr=False, compare=False, default=None)

    @property
    def remarks(self) -> list[Remark]:
        """Remarks on the kernel, made on demand, since code may have to be disassembled."""
        return [remark for remark in self.about.remarks if remark.kernel == self.kernel] if self.about else []


_open: list[list[DryLaunch]] = []
_lock = fork_safe.lock()
every: weakref.WeakSet[Kernels] = weakref.WeakSet()
"""The kernels of all executables; loaded ones are hidden, since host code would launch them directly."""


def active() -> bool:
    """Return whether launches are only recorded."""
    return bool(_open)


def note(launch: DryLaunch) -> None:
    """Record a launch that was not made."""
    _open[-1].append(launch)


@contextlib.contextmanager
def dry_run() -> Iterator[list[DryLaunch]]:
    """While open, record launches of the whole process in the returned list instead of making them."""
    launches: list[DryLaunch] = []
    with _lock:
        _open.append(launches)
        hidden: list[tuple[Any, list[int]]] = [(kernels, kernels.hide()) for kernels in list(every)]
    try:
        yield launches
    finally:
        with _lock:
            _open.remove(launches)
            for kernels, handles in hidden:
                kernels.unhide(handles)
