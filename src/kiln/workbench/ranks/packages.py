"""Serves packages for several GPUs to programs: torch's parts when ranks start, others where they are missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from kiln.base_dsl.packages import leaning_on

from ..serve_cuda import generators, ranks
from . import checked, cuda_core
from . import world as worlds


def _nvshmem(module: ModuleType) -> None:
    from . import nvshmem  # imports torch, an optional package

    nvshmem.serve(module)


def _cuda_core(module: ModuleType) -> None:
    cuda_core.serve(module)


def _pathfinder(module: ModuleType) -> None:
    """Let programs find the library of NVSHMEM, which `nvshmem.core` here does without."""
    find: Callable[[str], object] | None = getattr(module, "load_nvidia_dynamic_lib", None)

    def load_nvidia_dynamic_lib(libname: str) -> object:
        if libname == "nvshmem_host":
            return types.SimpleNamespace(abs_path=None, was_already_loaded_from_elsewhere=True, _handle_uint=0)
        if find is None:
            raise RuntimeError(f"load_nvidia_dynamic_lib({libname!r}): cuda.pathfinder is not installed")
        return find(libname)

    vars(module)["load_nvidia_dynamic_lib"] = load_nvidia_dynamic_lib


def _nothing(_: ModuleType) -> None:
    """Leave a package empty."""


_MODULES: dict[str, Callable[[ModuleType], None]] = {
    "nvshmem": _nothing,
    "nvshmem.core": _nvshmem,
    "cuda.core": _cuda_core,
    "cuda.core.experimental": _cuda_core,
    "cuda.pathfinder": _pathfinder,
}
"""Modules that are served where their package is missing."""


class _Finder:
    """Finds modules that no other finder does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        fill = _MODULES.get(name)
        return None if fill is None else ModuleSpec(name, _Filled(fill), is_package=True)


class _Filled(Loader):
    """Loads a module by filling it."""

    def __init__(self, fill: Callable[[ModuleType], None]) -> None:
        self._fill = fill

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self._fill(module)


def serve() -> None:
    """Serve all of them to the ranks of this process."""
    if importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.pathfinder") is not None:
        _pathfinder(importlib.import_module("cuda.pathfinder"))
    sys.meta_path.append(_Finder())  # pyright: ignore[reportArgumentType]
    if importlib.util.find_spec("torch") is None:
        return
    import torch  # an optional package

    if not torch.distributed.is_available():
        return
    size = worlds.world().size
    with leaning_on("torch process groups"):
        from . import process_group

        process_group.serve(size)
        ranks.at_start.append(process_group.begin_thread)
    with leaning_on("torch symmetric memory"):
        from . import symmetric_memory, symmetric_operators

        symmetric_memory.serve()
        symmetric_operators.serve()
    _seed_by_rank(torch)
    if checked.is_on():
        from . import host_accesses

        ranks.at_start.append(host_accesses.watch)


def _seed_by_rank(torch: ModuleType) -> None:
    """Let `torch.manual_seed` seed the generators of the thread's rank."""
    plain = torch.manual_seed

    def manual_seed(seed: int) -> object:
        if ranks.current() is None:
            return plain(seed)
        torch.cuda.manual_seed_all(int(seed))
        return generators.host_generator().manual_seed(int(seed))

    for module in (torch, torch.random):
        vars(module)["manual_seed"] = manual_seed
