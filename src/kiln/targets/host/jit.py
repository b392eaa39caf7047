"""LLVM IR text to machine code in this process: optimization, object code, and one JIT engine that links objects.

One engine serves the process (a library loads in 0.5 ms, an engine of its own takes 1.5 ms). A library is freed with
its tracker.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
import signal
import threading
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm

from ... import forks, thread_stack
from ...base_dsl import cache, settings
from ...base_dsl.diagnostics import DSLRuntimeError
from ...native import functions
from ..cpu.runtime import launch_settings, launches
from ..cpu.runtime.parts import PARTS
from ..lowering.pass_managers import free
from . import signals
from .object_code import undefined_symbols
from .reports import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_numbers = itertools.count()
_lock = forks.wait_for(forks.rlock())
_working = forks.wait_for(forks.Shared())
"""Held by threads that LLVM works for. Taken after the lock, before llvmlite's: it waits for what those threads do."""
_around_calls: Any = getattr(getattr(llvm.ffi, "lib", None), "_lock", None)
if hasattr(_around_calls, "_lock"):
    forks.wait_for(_around_calls._lock)  # llvmlite's own


@functools.lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for library in ("libm.so.6", "libgcc_s.so.1"):  # what compiled code calls: libm, and 128-bit and half arithmetic
        try:
            llvm.load_library_permanently(library)
        except RuntimeError:
            continue


Processor = tuple[str, str, str]
"""Triple, name and features."""

_NOT_USED = {"x86_64": ",-avx512bf16,-avxneconvert,-avx10.2"}
"""Features that are left alone, by architecture.

Conversions to bf16 flush subnormal numbers, and LLVM ends the process where it selects AVX10.2 for f16.
"""


@functools.lru_cache(maxsize=1)
def host() -> Processor:
    """This machine's processor."""
    _initialize()
    return supported(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def supported(triple: str, name: str, features: str) -> Processor:
    """A processor, less the features that are not used. They come last: others may bring them along."""
    return triple, name, (features + _NOT_USED.get(triple.partition("-")[0], "")).lstrip(",")


class _Machines(threading.local):
    def __init__(self) -> None:
        self.made = functools.lru_cache(maxsize=16)(_new_machine)


def _new_machine(opt: int, processor: Processor) -> llvm.TargetMachine:
    triple, cpu, features = processor
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small"
    )


_machines = _Machines()


def target_machine(opt: int, processor: Processor | None = None) -> llvm.TargetMachine:
    """This thread's code generator for this machine, or for another triple, processor and features."""
    return _machines.made(opt, processor or host())


@functools.lru_cache(maxsize=1)
def _engine() -> llvm.LLJIT:
    machine = _new_machine(2, host())  # one of its own: the engine takes it over
    return llvm.create_lljit_compiler(machine, suppress_errors=True)  # they come as exceptions too


def has_symbol(name: str) -> bool:
    """Whether this process has a C function or variable of a name."""
    _initialize()
    return llvm.address_of_symbol(name) is not None


def optimize(text: str, opt: int, processor: Processor | None = None) -> llvm.ModuleRef:
    """Parse, verify and optimize a module. Raises RuntimeError with LLVM's words."""
    machine = target_machine(opt, processor)
    with _working.held():
        module = llvm.parse_assembly(text, llvm.create_context())  # one of its own: see `_beside_others`
        module._owned = True  # its context frees it: the garbage collector may end that one first
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
        _beside_others("LLVMPY_RunNewModulePassManager")(passes, module, builder)
        free(passes)
        return module


def _beside_others(function: str) -> Any:
    """A function of llvmlite's without its lock, which lets one thread at a time work.

    LLVM itself lets threads work side by side on modules of different contexts with code generators of their own.
    """
    locked = getattr(llvm.ffi.lib, function)
    return getattr(locked, "_cfn", locked)


def emit_object(module: llvm.ModuleRef, opt: int, processor: Processor | None = None) -> bytes:
    """Object code of an optimized module."""
    with _working.held(), llvm.ffi.OutputString() as failure:
        machine = target_machine(opt, processor)
        buffer = _beside_others("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, failure)
        if not buffer:
            raise RuntimeError(str(failure))
        try:
            return ctypes.string_at(
                llvm.ffi.lib.LLVMPY_GetBufferStart(buffer), llvm.ffi.lib.LLVMPY_GetBufferSize(buffer)
            )
        finally:
            llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def emit_plain(text: str, opt: int = 1) -> bytes:
    """Object code of a module that is straight-line code with early exits: passes over its IR take most of the time that
    making it takes, and gain nothing. Without optimizing (0) it is made in an eighth of the time, and slower by a third."""
    return emit_object(optimize(text, 0), opt)


def emitting(text: str, opt: int) -> Callable[[], bytes]:
    """Begin `emit_plain` in another thread. What is returned waits for it."""
    return _beside(lambda: emit_plain(text, opt))


def _beside(make: Callable[[], bytes]) -> Callable[[], bytes]:
    """Begin to make object code in another thread: LLVM works without the GIL. What is returned waits for it."""
    made: list[bytes] = []

    def run() -> None:
        with contextlib.suppress(Exception):  # whoever waits meets it again
            made.append(make())

    thread = threading.Thread(target=run, name="kiln: object code")
    with contextlib.suppress(RuntimeError):  # no more threads: whoever waits does it
        if not forks.ending.is_set() and thread_stack.is_enough_for_new_threads():
            thread.start()

    def wait() -> bytes:
        if thread.ident is not None:
            thread.join()  # in a process that was forked meanwhile the thread has ended
        return made[0] if made else make()

    return wait


def loading(
    name: str,
    build: Callable[[], Any],
    exports: tuple[str, ...],
    others: tuple[Library, ...] = (),
    imports: Mapping[str, int] | None = None,
    opt: int = 1,
) -> Callable[[], Library]:
    """Begin to load a module that depends on Kiln's sources and this machine only: from the disk cache, or compiled by
    `emitting`. What is returned ends it (see `Library` for the rest)."""

    def make() -> Callable[[], bytes]:
        from .lower import lower_library

        return emitting(lower_library(build(), name, exports), opt)

    return cache.keeping(name, "/".join(host()), make, lambda data: Library(data, exports, others, imports))


class Library:
    """Object code loaded into the process, for as long as this object lives."""

    def __init__(
        self,
        data: bytes,
        exports: tuple[str, ...],
        others: tuple[Library, ...] = (),
        imports: Mapping[str, int] | None = None,
    ) -> None:
        """Symbols are found in `others`, in parts of the runtime, among `imports` (by address), and in the process.

        Raises RuntimeError with the names of those that are nowhere.
        """
        with _lock:
            imports = imports or {}
            needed = undefined_symbols(data).difference(imports, *(other.addresses for other in others))
            parts, rest = runtime_parts(needed)
            missing = sorted(itertools.filterfalse(has_symbol, rest))
            if missing:
                raise RuntimeError(
                    f"the code needs {', '.join(missing)}, which neither the runtime nor this process has"
                )
            builder = llvm.JITLibraryBuilder().add_object_img(data)
            for other in (*map(runtime_library, parts), *others):
                builder.add_jit_library(other.name)
            for name, address in imports.items():
                builder.import_symbol(name, address)
            builder.add_current_process()
            for name in exports:
                builder.export_symbol(name)
            self.name = f"kiln{next(_numbers)}"
            self._tracker = builder.link(_engine(), self.name)
            self.addresses = {name: self._tracker[name] for name in exports}


def load_native(module: Any, exports: tuple[str, ...]) -> dict[str, int]:
    """Compile a module of native functions for as long as the process lives: the addresses of some of them."""
    from .lower import lower_library

    library = Library(emit_object(optimize(lower_library(module, "native", exports), 2), 2), exports)
    _loaded.append(library)
    return library.addresses


_loaded: list[Library] = []
functions.load = load_native


def runtime_parts(needed: set[str]) -> tuple[list[str], set[str]]:
    """The parts of the runtime that define some of the symbols, and the symbols that none defines."""
    parts = [part for part, library in PARTS.items() if not needed.isdisjoint(library.exports)]
    return parts, needed.difference(*(PARTS[part].exports for part in parts))


_parts: dict[str, Library] = {}
_begun: dict[str, Callable[[], Library]] = {}


def begin_runtime(text: str) -> None:
    """Begin to make the parts of the runtime that a module will need, beside compiling the module itself."""
    with _lock:
        if len(_parts) == len(PARTS):
            return
        for part in runtime_parts(set(re.findall(r"@(\w+)", text)))[0]:
            if part not in _parts and part not in _begun:
                _begun[part] = _begin(part)


def runtime_library(part: str) -> Library:
    """A part of the runtime, compiled and loaded once per process."""
    with _lock:
        if part not in _parts:
            finish = _begun.pop(part, None) or _begin(part)
            _parts[part] = library = finish()
            if part == "launch":
                launch_settings.load(library.addresses)
            if part == "signals":
                signals.load(library.addresses)
            return library
        return _parts[part]


def _begin(part: str) -> Callable[[], Library]:
    """Begin to load a part of the runtime, from the cache or made anew; what is returned ends it."""

    def make() -> Callable[[], bytes]:
        from .lower import lower_runtime

        text = lower_runtime(part)
        # the first two run when something fails, the third once for a launch; others at every barrier, or for every element
        passes, opt = {"reports": (0, 0), "signals": (0, 0), "launch": (0, 1)}.get(part, (2, 2))
        return _beside(lambda: emit_object(optimize(text, passes), opt))

    exports = PARTS[part].exports
    return cache.keeping(f"runtime: {part}", "/".join(host()), make, lambda data: Library(data, exports))


def _variable(name: str, kind: Any) -> Any:
    """A variable of the part of the runtime that runs kernels."""
    return kind.from_address(runtime_library("launch").addresses[name])


def _end_launches() -> None:
    """In a forked process: launches of threads that are not there watch no signals."""
    if "launch" in _parts:
        watchers, before = (
            _variable("kiln_cpu_watchers", ctypes.c_int32),
            _variable("kiln_cpu_old_handler", ctypes.c_uint64),
        )
        if watchers.value and before.value > 1:
            ctypes.CDLL(None).signal(int(signal.SIGINT), ctypes.c_void_p(before.value))
        watchers.value = 0
        ctypes.c_int32.from_address(runtime_library("reports").addresses[stop.symbol]).value = 0


forks.in_child(_end_launches)


def set_timeout(seconds: float) -> None:
    """How long a launch may take, from now on; 0: as long as it likes."""
    _variable("kiln_cpu_timeout", ctypes.c_int64).value = round(1000 * seconds)


def set_max_steps(count: int) -> None:
    """How many steps a launch may take, from now on; 0: as many as it likes."""
    _variable("kiln_cpu_max_steps", ctypes.c_int64).value = count


def set_seed(seed: int | None = None) -> None:
    """The schedule from now on; 0: threads and blocks run in order, copies land at once. None: the setting's."""
    seed = settings.get("KILN_CPU_SEED") if seed is None else seed
    _variable("kiln_cpu_schedule", ctypes.c_int64).value = seed


def set_workers(count: int | None = None) -> None:
    """How many OS threads a launch may use, from now on: 1 to 256. None: the setting's number."""
    if count is None:
        count = int(settings.get("KILN_CPU_THREADS"))
    if not 1 <= count <= launches.MAX_WORKERS:
        raise DSLRuntimeError(f"{count} worker threads: expected 1 to {launches.MAX_WORKERS}")
    _variable("kiln_cpu_workers", ctypes.c_int32).value = count
