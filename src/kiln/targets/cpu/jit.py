"""LLVM IR text to machine code in this process: optimization, object code, and one JIT engine that links objects.

One engine serves the process (a library loads in 0.5 ms, an engine of its own takes 1.5 ms). A library is freed with
its tracker.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm

from ...base_dsl import cache, settings
from ...base_dsl.diagnostics import DSLRuntimeError
from ..llvm_passes import free
from . import runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

_numbers = itertools.count()
_lock = threading.RLock()


@functools.lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for library in ("libm.so.6", "libgcc_s.so.1"):  # what compiled code calls: libm, and 128-bit and half arithmetic
        try:
            llvm.load_library_permanently(library)
        except RuntimeError:
            continue


@functools.lru_cache(maxsize=1)
def host() -> tuple[str, str, str]:
    """Triple, processor and features of this machine."""
    _initialize()
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@functools.lru_cache(maxsize=4)
def target_machine(opt: int) -> llvm.TargetMachine:
    """The code generator for this machine."""
    triple, cpu, features = host()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small"
    )


@functools.lru_cache(maxsize=1)
def _engine() -> llvm.LLJIT:
    # its own target machine: the engine takes it over
    triple, cpu, features = host()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small"
    )
    return llvm.create_lljit_compiler(machine, suppress_errors=True)  # they come as exceptions too


def has_symbol(name: str) -> bool:
    """Whether this process has a C function or variable of a name."""
    _initialize()
    return llvm.address_of_symbol(name) is not None


def optimize(text: str, opt: int) -> llvm.ModuleRef:
    """Parse, verify and optimize a module. Raises RuntimeError with LLVM's words."""
    machine = target_machine(opt)
    with _lock:
        module = llvm.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
        tuning = llvm.create_pipeline_tuning_options(speed_level=opt)
        tuning.loop_vectorization = opt > 0
        tuning.slp_vectorization = opt > 1
        tuning.loop_interleaving = opt > 1
        tuning.loop_unrolling = opt > 1
        builder = llvm.create_pass_builder(machine, tuning)
        passes = builder.getModulePassManager()
        passes.run(module, builder)
        free(passes)
        return module


def emit_object(module: llvm.ModuleRef, opt: int) -> bytes:
    """Object code of an optimized module."""
    with _lock:
        return target_machine(opt).emit_object(module)


_LAUNCHES = tuple(name.encode() for name in runtime.LAUNCH_EXPORTS)
"""Symbols of which the object code of everything that runs kernels refers to some."""
_WAITS = b"kiln_cpu_initialize"
"""A symbol that the object code of every kernel with threads that wait refers to."""


class Library:
    """Object code loaded into the process, for as long as this object lives."""

    def __init__(
        self,
        data: bytes,
        exports: tuple[str, ...],
        with_runtime: bool = True,
        others: tuple[str, ...] = (),
        imports: Mapping[str, int] | None = None,
    ) -> None:
        """`others` are libraries by their names, `imports` functions by their addresses."""
        with _lock:
            builder = llvm.JITLibraryBuilder().add_object_img(data)
            needed = _runtime_parts(data) if with_runtime else ()
            for name in (*(part.name for part in needed), *others):
                builder.add_jit_library(name)
            for name, address in (imports or {}).items():
                builder.import_symbol(name, address)
            builder.add_current_process()
            for name in exports:
                builder.export_symbol(name)
            self.name = f"kiln{next(_numbers)}"
            self._tracker = builder.link(_engine(), self.name)
            self.addresses = {name: self._tracker[name] for name in exports}


def _runtime_parts(data: bytes) -> list[Library]:
    """The parts of the runtime that object code refers to."""
    parts = [reports_library()]
    if any(name in data for name in _LAUNCHES):
        parts.append(launch_library())
    if _WAITS in data:
        parts.append(waiting_library())
    return parts


def _runtime_part(part: str, *others: Library) -> Library:
    """A part of the runtime, compiled and loaded."""
    from .lower import lower_runtime

    names = tuple(other.name for other in others)
    return cache.keep(
        f"runtime: {part}",
        "/".join(host()),
        lambda: emit_object(optimize(lower_runtime(part), 2), 2),
        lambda data: Library(data, runtime.PARTS[part][1], with_runtime=False, others=names),
    )


@functools.lru_cache(maxsize=1)
def reports_library() -> Library:
    """The part of the runtime that host code needs, too, once per process."""
    with _lock:
        return _runtime_part("reports")


@functools.lru_cache(maxsize=1)
def launch_library() -> Library:
    """The part of the runtime that runs kernels, once per process."""
    with _lock:
        library = _runtime_part("launch", reports_library())
        _variable(library, "kiln_cpu_workers", ctypes.c_int32).value = settings.get("KILN_CPU_THREADS")
        _variable(library, "kiln_cpu_timeout", ctypes.c_int64).value = round(1000 * settings.get("KILN_CPU_TIMEOUT"))
        _variable(library, "kiln_cpu_max_steps", ctypes.c_int64).value = settings.get("KILN_CPU_MAX_STEPS")
        _variable(library, "kiln_cpu_schedule", ctypes.c_int64).value = settings.get("KILN_CPU_SEED")
        return library


def _variable(library: Library, name: str, kind: Any) -> Any:
    return kind.from_address(library.addresses[name])


@functools.lru_cache(maxsize=1)
def waiting_library() -> Library:
    """The part of the runtime for threads that wait: some functions run at every barrier, so it is optimized."""
    with _lock:
        return _runtime_part("waiting", reports_library(), launch_library())


def set_timeout(seconds: float) -> None:
    """How long a launch may take, from now on; 0: as long as it likes."""
    _variable(launch_library(), "kiln_cpu_timeout", ctypes.c_int64).value = round(1000 * seconds)


def set_max_steps(count: int) -> None:
    """How many steps a launch may take, from now on; 0: as many as it likes."""
    _variable(launch_library(), "kiln_cpu_max_steps", ctypes.c_int64).value = count


def set_seed(seed: int | None = None) -> None:
    """The schedule from now on; 0: threads and blocks run in order, copies land at once. None: the setting's."""
    seed = settings.get("KILN_CPU_SEED") if seed is None else seed
    _variable(launch_library(), "kiln_cpu_schedule", ctypes.c_int64).value = seed


def set_workers(count: int | None = None) -> None:
    """How many OS threads a launch may use, from now on: 1 to 256. None: the setting's number."""
    if count is None:
        count = int(settings.get("KILN_CPU_THREADS"))
    if not 1 <= count <= runtime.MAX_WORKERS:
        raise DSLRuntimeError(f"{count} worker threads: expected 1 to {runtime.MAX_WORKERS}")
    ctypes.c_int32.from_address(launch_library().addresses["kiln_cpu_workers"]).value = count
