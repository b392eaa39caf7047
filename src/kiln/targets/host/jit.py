"""LLVM IR text to machine code in this process: optimization, object code, and one JIT engine that links objects.

An engine serves many libraries (a library loads in 0.5 ms, an engine of its own takes 1.5 ms and 120 kB). A library is
freed with its tracker, but for 9 kB of what LLVM knows about it, which go with the engine: so there is a new one now
and then.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..._support import fork_safe, one_import, stack_guard
from ..._support.gc_pause import gc_paused
from ...base_dsl import cache
from ...llvm import binding as llvm
from ...llvm import unlocked
from ...native import functions
from ...native.deferred_library import DeferredLibrary
from ..lowering.pass_managers import free
from . import native_objects
from .object_code import undefined_symbols
from .process_symbols import has_symbol, initialize_llvm

_numbers = itertools.count()
_lock = fork_safe.wait_for(fork_safe.rlock())
_working = fork_safe.wait_for(fork_safe.Shared())
"""A shared lock that threads hold while LLVM works for them; a fork waits for them."""
_building = fork_safe.wait_for(fork_safe.rlock())
"""A lock that a thread holds while it builds a module beside others."""
_around_calls: Any = getattr(getattr(llvm.ffi, "lib", None), "_lock", None)
if hasattr(_around_calls, "_lock"):
    fork_safe.wait_for(_around_calls._lock)  # llvmlite's own


Processor = tuple[str, str, str]
"""Triple, name and features."""

_NOT_USED = {"x86_64": ",-avx512bf16,-avxneconvert,-avx10.2"}
"""Features that are not used, by architecture.

Conversions to bf16 flush subnormal numbers, and LLVM ends the process where it selects AVX10.2 for f16.
"""


@functools.lru_cache(maxsize=1)
def host() -> Processor:
    """Return this machine's processor."""
    initialize_llvm()
    return supported(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def supported(triple: str, name: str, features: str) -> Processor:
    """Return a processor without the features that are not used. They come last, since others may imply them."""
    return triple, name, (features + _NOT_USED.get(triple.partition("-")[0], "")).lstrip(",")


def common_processor(architecture: str) -> Processor:
    """Return the processor for which native functions that all machines of an architecture share are compiled."""
    name, features = native_objects.COMMON[architecture]
    return supported(f"{architecture}-unknown-linux-gnu", name, ",".join(f"+{x}" for x in features.split()))


@functools.lru_cache(maxsize=1)
def common() -> tuple[str, Processor]:
    """Return this machine's architecture and its common processor; "" and this processor if it lacks features of
    that."""
    architecture = host()[0].partition("-")[0]
    has = llvm.get_host_cpu_features()
    if architecture in native_objects.COMMON and all(map(has.get, native_objects.COMMON[architecture][1].split())):
        return architecture, common_processor(architecture)
    return "", host()


class _Machines(threading.local):
    def __init__(self) -> None:
        self.machine = functools.lru_cache(maxsize=16)(_new_machine)


def _new_machine(opt: int, processor: Processor) -> llvm.TargetMachine:
    triple, cpu, features = processor
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small"
    )


_machines = _Machines()


def target_machine(opt: int, processor: Processor | None = None) -> llvm.TargetMachine:
    """Return this thread's code generator for a processor, by default this machine's."""
    return _machines.machine(opt, processor or host())


class _Engines:
    """Engines that take a number of libraries each, and end with the last of them."""

    MOST = 64

    def __init__(self) -> None:
        self._now: llvm.LLJIT | None = None
        self._libraries = 0

    def engine(self) -> llvm.LLJIT:
        """Return the engine for the next library."""
        if self._now is None or self._libraries >= self.MOST:
            self._now = _new_engine()
            self._libraries = 0
        self._libraries += 1
        return self._now


_engines = _Engines()


def _new_engine() -> llvm.LLJIT:
    machine = _new_machine(2, host())  # one of its own: the engine takes it over
    # JITLink puts the sections of an object side by side. RuntimeDyld takes memory for each where there is some: in a process with much of
    # it mapped, as with CUDA, more than 2 GiB apart, which ends the process. Errors come as exceptions, too.
    return llvm.create_lljit_compiler(machine, use_jit_link=True, suppress_errors=True)


def optimize(
    text: str, opt: int, processor: Processor | None = None, renamed: Mapping[str, str] | None = None
) -> llvm.ModuleRef:
    """Parse, verify and optimize a module, after renaming functions. Raises RuntimeError with LLVM's message."""
    machine = target_machine(opt, processor)
    with _working.held():
        module = llvm.parse_assembly(text, llvm.create_context())  # one of its own: see `unlocked`
        module._owned = True  # its context frees it: the garbage collector may end that one first
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        for before, now in (renamed or {}).items():
            for function in [function for function in module.functions if function.name == before]:
                function.name = now
        module.verify()
        tuning = llvm.create_pipeline_tuning_options(speed_level=opt)
        tuning.loop_vectorization = opt > 0
        tuning.slp_vectorization = opt > 1
        tuning.loop_interleaving = opt > 1
        tuning.loop_unrolling = opt > 1
        builder = llvm.create_pass_builder(machine, tuning)
        passes = builder.getModulePassManager()
        unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
        free(passes)
        return module


def emit_object(module: llvm.ModuleRef, opt: int, processor: Processor | None = None) -> bytes:
    """Return the object code of an optimized module."""
    with _working.held(), llvm.ffi.OutputString() as failure:
        machine = target_machine(opt, processor)
        buffer = unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, failure)
        if not buffer:
            raise RuntimeError(str(failure))
        try:
            return ctypes.string_at(
                llvm.ffi.lib.LLVMPY_GetBufferStart(buffer), llvm.ffi.lib.LLVMPY_GetBufferSize(buffer)
            )
        finally:
            llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def beside(make: Callable[[], bytes]) -> Callable[[], bytes]:
    """Start to make object code in another thread, and return a function that waits for it."""
    built: list[bytes] = []

    def run() -> None:
        with contextlib.suppress(Exception):  # whoever waits meets it again
            built.append(make())

    thread = threading.Thread(target=one_import.waited_for(run), name="kiln: object code")
    with contextlib.suppress(RuntimeError):  # no more threads: whoever waits does it
        if not fork_safe.ending.is_set() and stack_guard.is_enough_for_new_threads():
            thread.start()

    def wait() -> bytes:
        if thread.ident is not None:
            thread.join()  # in a process that was forked meanwhile the thread has ended
        return built[0] if built else make()

    return wait


def native_object(library: functions.Library, processor: Processor) -> bytes:
    """Return the object code of a library of native functions."""
    from .lower import lower_library  # most processes load object code that is kept

    with _building, gc_paused:
        text = lower_library(library.build(), library.name, library.exports)
    return emit_object(optimize(text, library.passes, processor), library.opt, processor)


def loading(
    code: functions.Library | DeferredLibrary,
    others: Sequence[Library] = (),
    imports: Mapping[str, int] | None = None,
    parts: Sequence[Part] = (),
) -> Callable[[], Library]:
    """Start to load a library of native functions, and return a function that finishes it.

    Its object code comes with Kiln, or from the disk cache, or is made in another thread. `Library` has the other
    arguments.
    """
    architecture, processor = common()

    def load(data: bytes) -> Library:
        return Library(data, exports_of(code), tuple(others), imports, parts)

    def make() -> bytes:
        library = _library(code)
        data = native_object(library, processor)
        if architecture:
            native_objects.keep(library, architecture, data)
        return data

    kept = native_objects.kept(code.name, architecture) if architecture else None
    if kept is not None:
        _exports[code.name] = kept.exports
        return lambda: load(kept.data)
    return cache.keeping(f"native: {code.name}", "/".join(processor), lambda: beside(make), load)


@functools.lru_cache(maxsize=64)
def object_of(code: functions.Library | DeferredLibrary, processor: Processor) -> bytes:
    """Return the object code of native functions for a processor of any architecture."""
    architecture = processor[0].partition("-")[0]
    if architecture not in native_objects.COMMON or processor != common_processor(architecture):
        make = functools.partial(native_object, _library(code), processor)
        return cache.keeping(f"native: {code.name}", "/".join(processor), lambda: make, bytes)()
    kept = native_objects.kept(code.name, architecture)
    if kept is not None:
        return kept.data
    library = _library(code)
    data = native_object(library, processor)
    native_objects.keep(library, architecture, data)
    return data


_exports: dict[str, tuple[str, ...]] = {}
"""The exports of libraries that are kept, by name."""


def _library(code: functions.Library | DeferredLibrary) -> functions.Library:
    return code.library if isinstance(code, DeferredLibrary) else code


def exports_of(code: functions.Library | DeferredLibrary) -> tuple[str, ...]:
    """Return what a library exports; its module is not imported if its code is kept."""
    if isinstance(code, DeferredLibrary) and code.name not in _exports:
        kept = native_objects.kept(code.name, common()[0])
        _exports[code.name] = code.library.exports if kept is None else kept.exports
    return _exports[code.name] if isinstance(code, DeferredLibrary) else code.exports


class Library:
    """Object code loaded into the process, for as long as this object lives."""

    def __init__(
        self,
        data: bytes,
        exports: tuple[str, ...],
        others: tuple[Library, ...] = (),
        imports: Mapping[str, int] | None = None,
        parts: Sequence[Part] = (),
    ) -> None:
        """Load object code, with symbols from `others`, needed `parts`, `imports` (by address) and the process.

        Raises RuntimeError with the names of those that are nowhere.
        """
        with _lock:
            imports = imports or {}
            undefined = undefined_symbols(data)
            needed = undefined.difference(imports, *(other.addresses for other in others))
            self.parts: list[Part]
            self.parts, rest = needed_parts(parts, needed)
            missing = sorted(itertools.filterfalse(has_symbol, rest))
            if missing:
                raise RuntimeError(
                    f"the code needs {', '.join(missing)}, which neither the runtime nor this process has"
                )
            builder = llvm.JITLibraryBuilder().add_object_img(data)
            self._others = (*map(part_library, self.parts), *others)
            available = dict(imports)
            for other in self._others:  # by address: they may be another engine's
                available = {
                    **{name: other.addresses[name] for name in undefined & other.addresses.keys()},
                    **available,
                }
            for name, address in available.items():
                builder.import_symbol(name, address)
            builder.add_current_process()
            for name in exports:
                builder.export_symbol(name)
            self.name: str = f"kiln{next(_numbers)}"
            engine = _engines.engine()
            self._tracker: Any = builder.link(engine, self.name)
            self._tracker.engine = engine  # it must not end first
            self.addresses: dict[str, Any] = {name: self._tracker[name] for name in exports}


def load_native(module: object, exports: tuple[str, ...]) -> dict[str, int]:
    """Compile a module of native functions for as long as the process lives: the addresses of some of them.

    They may call what parts of the runtime export that are loaded already.
    """
    from .lower import lower_library  # the same

    data = emit_object(optimize(lower_library(module, "native", exports), 2), 2)
    library = Library(data, exports, tuple(_parts.values()))
    _loaded.append(library)
    return library.addresses


_loaded: list[Library] = []
functions.load = load_native


class Part(NamedTuple):
    """Native code that no program changes: compiled when it is first needed, kept on disk, loaded once per process."""

    code: functions.Library | DeferredLibrary
    needs: tuple[Part, ...] = ()
    """Where it finds what it calls."""
    loaded: Callable[[Mapping[str, int]], None] | None = None
    """A function that is called with the addresses of its exports once they are loaded."""
    prefix: str = "kiln_"
    """What the names of its exports begin with."""

    @property
    def name(self) -> str:
        return self.code.name

    @property
    def exports(self) -> tuple[str, ...]:
        return exports_of(self.code)


def needed_parts(parts: Iterable[Part], needed: set[str]) -> tuple[list[Part], set[str]]:
    """Return those of some parts that define some of the symbols, and the symbols that none defines."""
    parts_needed: list[Part] = []
    rest = set(needed)
    for part in parts:
        if any(name.startswith(part.prefix) for name in rest) and not rest.isdisjoint(part.exports):
            parts_needed.append(part)
            rest.difference_update(part.exports)
    return parts_needed, rest


_parts: dict[str, Library] = {}
_begun: dict[str, Callable[[], Library]] = {}


def begin_parts(parts: Sequence[Part], text: str) -> None:
    """Start to make the parts that a module will need, while the module itself is compiled."""
    with _lock:
        if all(part.name in _parts for part in parts):
            return
        for part in needed_parts(parts, set(re.findall(r"@(\w+)", text)))[0]:
            _begin(part)


def _begin(part: Part) -> None:
    """Begin to load a part and what it needs."""
    if part.name not in _parts and part.name not in _begun:
        _begun[part.name] = loading(part.code, parts=part.needs)
        for other in part.needs:
            _begin(other)


def is_loaded(part: Part) -> bool:
    """Return whether a part is there already."""
    return part.name in _parts


def part_library(part: Part) -> Library:
    """Return a part of the runtime, compiled and loaded once per process."""
    with _lock:
        if part.name not in _parts:
            _begin(part)
            _parts[part.name] = library = _begun.pop(part.name)()
            if part.loaded is not None:
                part.loaded(library.addresses)
        return _parts[part.name]
