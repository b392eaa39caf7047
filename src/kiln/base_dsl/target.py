"""Targets: where compiled programs run. Chosen by name, loaded when first used.

A target turns a module into an `Executable`. Targets register themselves with `register_target`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import TYPE_CHECKING, Any

from .._support import fork_safe
from .._support.gc_pause import gc_paused
from . import guards, kernel_trace, sanitizing, settings
from .bindings import ir
from .diagnostics import DSLRuntimeError
from .guards import NOTHING, Guard
from .stale import checks_stale

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .cache import Entry
    from .options import CompileOptions


class Executable:
    """A compiled host function. Subclasses call native code.

    `call(address)` runs it on the argument slots at `address` (see `slot_layout`); it returns when the results are in
    their slots, printed text is in `sys.stdout` and nothing failed, or raises what did. The object keeps the native
    code alive.
    """

    address: int
    """Address of the native wrapper, a C function that takes the address of the slots."""
    artifacts: Mapping[str, Any]
    """The results of the compilation by name (`mlir`, `mlir_lowered`, `llvm`, `asm`, ...), rendered when first used."""

    report: Callable[[int], None] | None = None
    """Takes what the wrapper returned if that is not null, and raises the failure. None: only `call` runs the code."""

    guards: Sequence[Guard] = ()
    """Guards under which native code may run it; otherwise `call` does."""

    def call(self, address: int) -> None:
        """Run on the slots at `address`."""
        raise NotImplementedError

    def portable(self, ptx: bool = True) -> Any:
        """Return its code for exported objects; None if it runs in this process only. `ptx`: also for later GPUs."""
        return None


class Target:
    """A place to run programs. `name` is how users choose it."""

    name: str = ""
    on_host = False
    """Whether programs run on this machine itself, on arrays in its memory."""

    def available(self) -> bool:
        """Return whether programs can run here and now."""
        return True

    def compile(self, module: ir.Module, entry: str, options: CompileOptions | None = None) -> Executable:
        """Compile the function `entry` of a module. The module is changed: pass a clone to keep it."""
        raise NotImplementedError

    def passes(self) -> dict[str, str]:
        """Return the passes of its lowering by name, with what they do."""
        return {}

    def run_passes(self, text: str, names: Sequence[str], arch: str) -> str:
        """Run passes on the text of a module for a GPU architecture, and return the text of what becomes of it."""
        raise NotImplementedError

    def fingerprint(self, options: CompileOptions | None = None) -> str:
        """Return a string that changes whenever the code made for the same module would."""
        raise NotImplementedError

    has_dry_run = False
    """Whether `dry_run` works."""

    def dry_run(self) -> contextlib.AbstractContextManager[list[Any]]:
        """Let calls compile and run their host code, but launch nothing, while open; launches go into a list."""
        raise DSLRuntimeError(f"the target {self.name!r} has no dry run")

    def launches(self) -> bool:
        """Return whether calls launch kernels now: not in a dry run."""
        return True

    def device(self, number: int | None) -> contextlib.AbstractContextManager[None]:
        """Launch kernels of this thread on a device of the target while open; None: on the current one."""
        return contextlib.nullcontext()

    def several_devices(self) -> bool:
        """Return whether kernels may be launched on one of several devices."""
        return False

    def device_of(self, address: int) -> int | None:
        """Return the device that memory belongs to; None if that does not matter."""
        return None

    def driver_function(self, name: str) -> int:
        """Return the address of a function of the driver, where there are several devices."""
        raise NotImplementedError

    def launch_guards(self) -> Sequence[Guard]:
        """Return the `guards` of its executables."""
        return ()

    def device_guards(self, number: int | None) -> list[Guard]:
        """Return guards that hold while a device is the current one."""
        return []

    def current_device(self) -> int:
        """Return the number of the device that kernels are launched on."""
        return 0

    def device_key(self) -> str:
        """Return the properties of the current device that code depends on, where there are several."""
        return ""

    def serialize(self, executable: Executable) -> Entry | None:
        """Return the disk cache's entry for an executable; None to store nothing."""
        return None

    def deserialize(
        self, entry: Entry, module: ir.Module, entry_name: str, options: CompileOptions | None
    ) -> Executable:
        """Return the executable that `serialize` stored; `module` is the traced module, for artefacts. May raise."""
        raise NotImplementedError


_loaders: dict[str, Callable[[], Target]] = {}
_preferences: dict[str, int] = {}
_sanitizing: list[str] = []
_loaded: dict[str, Target] = {}
_lock = fork_safe.rlock()


class _Choice(threading.local):
    name: str = ""


_choice = _Choice()
_process_choice = ""
_registrations = 0
_open_choices = fork_safe.Count()
"""How many threads are inside a `with target(...)`."""


def choice_guards() -> list[Guard] | None:
    """Return guards that hold as long as `target_key()` is what it is now; None if there are none."""
    if _environment is None or os.name != "posix" or _choice.name or sanitizing.open_requests.value or checks_stale():
        return None
    here = globals()
    variables = (b"KILN_TARGET", b"KILN_SANITIZE", b"KILN_CHECK_STALE", *settings.CODE_VARIABLES)
    return [
        Guard(guards.IS_ZERO, _open_choices),
        Guard(guards.IN_DICT, here, "_process_choice", _process_choice),
        Guard(guards.IN_DICT, here, "_registrations", _registrations),
        Guard(guards.IS_ZERO, sanitizing.open_requests),
        *(Guard(guards.IN_DICT, _environment, name, _environment.get(name, NOTHING)) for name in variables),
    ]


def register_target(name: str, loader: Callable[[], Target], preference: int = -1, sanitizes: bool = False) -> None:
    """Register a target. `loader` is called once, when the target is first used.

    Where nobody chooses, the available target with the highest preference runs; one with a negative preference is never
    chosen this way. `sanitizes`: it can instrument code, and the sanitizer runs programs there.
    """
    with _lock:
        global _registrations
        _registrations += 1
        _loaders[name] = loader
        _preferences[name] = preference
        if sanitizes:
            _sanitizing.append(name)
        _loaded.pop(name, None)
        _default_name.cache_clear()


def target_names() -> list[str]:
    """Return the names that can be asked for (not all need work on this machine)."""
    return sorted(_loaders)


def target_name() -> str:
    """Return the name of the target in force: `target(...)`, then `KILN_TARGET`, then the best one available."""
    return _choice.name or _process_choice or _environment_name() or _default_name()


def target_key() -> str:
    """Return the key of code: the target in force, the kinds of instrumentation, and settings that affect code."""
    environment = _environment
    if environment is not None and not sanitizing.open_requests.value and b"KILN_SANITIZE" not in environment:
        for name in settings.CODE_VARIABLES:
            if name in environment:
                break
        else:
            return target_name()  # asked at every call: without a call of its own
    parts = [target_name(), ",".join(sanitizing.kinds()), kernel_trace.key()]
    parts += [os.environ.get(name.decode(), "") for name in settings.CODE_VARIABLES]
    return "+".join(parts).rstrip("+")


_environment: Any = getattr(os.environ, "_data", None)


def _environment_name() -> str:
    # Asked at every call: os.environ encodes the name each time, which costs as much as the call itself.
    if _environment is None or os.name != "posix":
        return os.environ.get("KILN_TARGET", "")
    name = _environment.get(b"KILN_TARGET")
    return name.decode() if name else _for_sanitizer()


def _for_sanitizer() -> str:
    """Return the target of the sanitizer where no target was chosen."""
    return sanitizing_target() if sanitizing.kinds() else ""


def sanitizing_target() -> str:
    """Return the target that the sanitizer runs programs on."""
    return _sanitizing[0] if _sanitizing else ""


def get_target(name: str | None = None) -> Target:
    """Return the target of a name, or the one in force."""
    name = name or target_name()
    with _lock:
        target = _loaded.get(name)
        if target is None:
            with gc_paused:
                target = _loaded[name] = _load(name)
        return target


def _load(name: str) -> Target:
    loader = _loaders.get(name)
    if loader is not None:
        return loader()
    import difflib

    names = target_names()
    close = difflib.get_close_matches(name, names, 1)
    raise DSLRuntimeError(
        f"there is no target {name!r}; there are: {', '.join(names)}",
        hint=f"did you mean {close[0]!r}?" if close else "",
    )


@functools.lru_cache(maxsize=1)
def _default_name() -> str:
    """Return the best target of this machine; looked up once."""
    by_preference = sorted((name for name in _loaders if _preferences[name] >= 0), key=lambda n: -_preferences[n])
    for name in by_preference:
        with contextlib.suppress(ImportError):
            if get_target(name).available():
                return name
    raise DSLRuntimeError(f"no target can run programs here; known: {', '.join(target_names()) or 'none'}")


class target:
    """`kiln.target("cpu")` chooses the target of this process; as a context manager, of this thread while open."""

    def __init__(self, name: str) -> None:
        global _process_choice
        get_target(name)  # an unknown name is an error here
        self._name = name
        self._previous = _process_choice
        _process_choice = name

    def __enter__(self) -> Target:
        global _process_choice
        _process_choice = self._previous
        self._previous = _choice.name
        _choice.name = self._name
        _open_choices.add(1)
        return get_target()

    def __exit__(self, *_: object) -> None:
        _choice.name = self._previous
        _open_choices.add(-1)


class Instrumented:
    """While open, programs that this thread calls run where code can be instrumented, as a request says."""

    def __init__(self, request: sanitizing.Request) -> None:
        self._request = request
        self._before: sanitizing.Request | None = None
        self._target: target | None = None

    def __enter__(self) -> None:
        self._before = sanitizing.push(self._request)
        works = sanitizing_target()
        if target_name() != works:
            self._target = target(works)
            self._target.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._target is not None:
            self._target.__exit__()
            self._target = None
        sanitizing.push(self._before)


def slot_layout(types: Sequence[ir.Type]) -> tuple[list[int], int]:
    """Return the byte offsets of values in a call's slots, and their total size.

    Arguments come first, then results, each at the next multiple of 8: `slot_layout([*arguments, *results])`. A value
    takes its size rounded up to 8 bytes: integers their bytes, little-endian (an i1 is a byte 0 or 1; what lies above a
    narrower integer is ignored in arguments and undefined in results), floats their bit pattern in the lowest bytes,
    pointers 8 bytes, `!llvm.struct` and vectors their size in memory. The slots themselves start at a multiple of 8.
    """
    offsets: list[int] = []
    total = 0
    for type_ in types:
        offsets.append(total)
        total += -(-value_bytes(type_) // 8) * 8
    return offsets, total


def value_bytes(type_: ir.Type) -> int:
    """Return the size in memory of a value that crosses the calling convention."""
    return size_and_alignment(type_)[0]


_pointer_types: dict[str, Callable[[ir.Type], Sequence[int]]] = {"!llvm.ptr": lambda _: ()}


def register_pointer_type(spelling: str, widths: Callable[[ir.Type], Sequence[int]] = lambda _: ()) -> None:
    """Let the types of a dialect that begin with `spelling` cross the calling convention as addresses; those that
    `widths` gives numbers of bits for, as C structs of an address and integers of these widths."""
    _pointer_types[spelling] = widths


@functools.lru_cache(maxsize=4096)
def size_and_alignment(type_: ir.Type) -> tuple[int, int]:
    """Return size and alignment in memory of a value that crosses the calling convention, in bytes."""
    text = str(type_)
    for spelling, widths in _pointer_types.items():
        if text.startswith(spelling):
            end = 8
            for size in (width // 8 for width in widths(type_)):
                end = -(-end // size) * size + size
            return -(-end // 8) * 8, 8
    if isinstance(type_, ir.IndexType):
        return 8, 8
    if isinstance(type_, (ir.IntegerType, ir.FloatType)):
        size = (type_.width + 7) // 8
        size = 1 << (size - 1).bit_length()  # i24 takes four bytes, tf32 four
        return size, min(size, 16)
    if isinstance(type_, ir.VectorType):
        size = type_.element_type.width
        for extent in type_.shape:
            size *= extent
        return (size + 7) // 8, 8
    if text.startswith("!llvm.struct<"):
        fields = _struct_fields(type_)
        end = 0
        widest = 1
        for field in fields:
            size, alignment = size_and_alignment(field)
            end = -(-end // alignment) * alignment + size
            widest = max(widest, alignment)
        return -(-end // widest) * widest, widest
    if text.startswith("!llvm.array<"):
        count, element = text[len("!llvm.array<") : -1].split(" x ", 1)
        size, alignment = size_and_alignment(ir.Type.parse(_with_prefix(element), type_.context))
        return int(count) * (-(-size // alignment) * alignment), alignment
    raise DSLRuntimeError(f"a value of type {text} cannot cross into or out of a compiled function")


def _with_prefix(text: str) -> str:
    """Return an LLVM type with its prefix: inside another LLVM type it is printed without."""
    return f"!llvm.{text}" if text.startswith(("ptr", "struct", "array")) else text


def _struct_fields(type_: ir.Type) -> list[ir.Type]:
    from ..mlir import dialect_module

    struct = dialect_module("llvm").StructType(type_)
    body: Any = struct.body
    return [ir.Type.parse(str(field), type_.context) if not isinstance(field, ir.Type) else field for field in body]
