"""The Python side of launches: loading kernels, explaining errors, reading reports of kernels.

A launch that succeeds with a loaded kernel never gets here (`launch.py`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import struct
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..._support import fork_safe
from ...base_dsl.diagnostics import DSLBaseError, DSLCudaRuntimeError
from ...hardware import driver, limits
from ...hardware.architectures import Architecture, decoded_needs, generation_of, of_capability
from ..host.faults import AssertionFault, format_message
from ..lowering.sites import Site
from . import dry_run, recent_launches
from .codegen import Resources
from .launch import AFTER, ATTRIBUTE_BYTES, CLOCK, CLUSTER, HANDLES, LAUNCH, OWNER, RECENT, SLOW, VALUE
from .ops.cute import FAULT_HEADER, FAULT_RECORD, FAULT_VALUES

if TYPE_CHECKING:
    from .remarks import About


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """Facts about a kernel that launches need."""

    name: str
    prints: bool = False
    asserts: bool = False
    dynamic: bool = False
    """Whether it takes the address of dynamic shared memory. If not, the bytes of a launch include what the kernel
    allocates."""
    asks_smem: bool = False
    """Whether a launch asks for shared memory, or may do so."""
    extra_smem: int = 0
    """Bytes that it allocates and that are dynamic shared memory: a launch gives them to it, asked for or not."""
    static_smem: int = 0
    """Bytes that it allocates otherwise."""
    cluster: int = 1
    """Blocks of a cluster; 0 where they are not known when compiling."""
    registers: int = 0
    file: str = ""
    """Where it is defined, and the line."""
    line: int = 0
    unheeded: Sequence[tuple[str, int, str]] = ()
    """Loops with a hint that has no effect: file, line, hint."""

    @property
    def needs_room(self) -> bool:
        """Whether a launch may give it more shared memory than every kernel is allowed."""
        return self.dynamic or self.asks_smem or bool(self.extra_smem)

    @property
    def needs_large_clusters(self) -> bool:
        """Whether a launch may have clusters that are larger than what is portable."""
        return not 0 < self.cluster <= limits.PORTABLE_CLUSTER

    def dynamic_smem(self, asked: int) -> int:
        """Bytes of dynamic shared memory, where a launch asks for so many. `launch.py` has the same as host code."""
        return asked + self.extra_smem if self.dynamic else max(asked - self.static_smem, self.extra_smem)

    def asked_smem(self, dynamic: int) -> int:
        """Bytes that a launch asked for, where these are dynamic."""
        if self.dynamic:
            return dynamic - self.extra_smem
        return dynamic + self.static_smem if dynamic != self.extra_smem else 0


driver.last_launches = recent_launches.suspects
driver.launches = recent_launches.count

_SLOW = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64
)
_AFTER = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64)

try:
    _libc: Any = ctypes.CDLL(None)
except (OSError, TypeError):  # pragma: no cover - only where there is no C library to name
    _libc = None


class Kernels:
    """The kernels of one executable: loaded into the driver at the first launch, for all devices and contexts.

    They stay loaded for the life of the process: a captured graph may launch them after the executable is gone.
    """

    def __init__(
        self,
        table: int,
        image: bytes,
        arch: Architecture,
        infos: Sequence[KernelInfo],
        sites: Sequence[Site],
        host_sites: Sequence[Site],
        about: About | None = None,
        code: object = None,
    ) -> None:
        self.infos: tuple[KernelInfo, ...] = tuple(infos)
        self.arch = arch
        self.sites: tuple[Site, ...] = tuple(sites)
        self._host_sites = tuple(host_sites)
        self.pending: dict[int, BaseException] = {}
        """The pending exception of each thread's call."""
        # the table is part of the code, which must not go before this
        self._about = about
        self._code = code
        self._image = image
        self._library = 0
        self._lock = fork_safe.lock()
        self._table = (ctypes.c_uint64 * (HANDLES + len(self.infos))).from_address(table)
        self._callbacks = (_SLOW(self._slow), _AFTER(self._after))
        for slot, callback in zip((SLOW, AFTER), self._callbacks, strict=True):
            self._table[slot] = ctypes.cast(callback, ctypes.c_void_p).value or 0
        self._table[RECENT] = recent_launches.address()
        self._table[OWNER] = recent_launches.register(self)
        self._table[CLOCK] = ctypes.cast(_libc.clock_gettime, ctypes.c_void_p).value or 0
        dry_run.every.add(self)

    # -- loading -----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the kernels, once."""
        with self._lock:
            if self._library:
                return
            driver.ensure_context()
            capability = driver.capability()
            if not self.arch.runs_on(capability):
                raise _wrong_architecture(self.arch, capability)
            with driver.uncaptured():
                library = driver.load_library(self._image)
                handles = [driver.library_kernel(library, info.name) for info in self.infos]
                for info, handle in zip(self.infos, handles, strict=True):
                    _set_attributes(info, handle)
            self._table[LAUNCH] = ctypes.cast(driver.function("cuLaunchKernelEx"), ctypes.c_void_p).value or 0
            for number, handle in enumerate(handles):
                self._table[HANDLES + number] = handle
            self._library = library

    def hide(self) -> list[int]:
        """Clear the kernels' handles in the table, so that they look unloaded, and return them."""
        handles = [self._table[HANDLES + number] for number in range(len(self.infos))]
        for number in range(len(handles)):
            self._table[HANDLES + number] = 0
        return handles

    def unhide(self, handles: Sequence[int]) -> None:
        """Undo `hide`."""
        for number, handle in enumerate(handles):
            self._table[HANDLES + number] = handle

    def describer(self) -> Callable[[int, int], str]:
        """Return a function that describes a launch by kernel and site, without a reference to this object."""
        return functools.partial(_describe, [info.name for info in self.infos], self._host_sites)

    # -- called from native code -------------------------------------------------------------------------

    def _slow(self, index: int, site: int, status: int, config: int, arguments: int, _owner: int) -> int:
        try:
            if dry_run.active():
                self._note(index, driver.LaunchConfig.from_address(config))
                return 0
            self.load()
            if status == driver.INVALID_CONTEXT:
                driver.ensure_context()
            if status in (-1, driver.INVALID_CONTEXT):
                handle = ctypes.c_void_p(self._table[HANDLES + index])
                status = driver.function("cuLaunchKernelEx")(
                    ctypes.c_void_p(config), handle, ctypes.c_void_p(arguments), None
                )
            if status:
                needs = self._host_sites[site].message if site < len(self._host_sites) else ""
                raise explain(self.infos[index], self.arch, status, driver.LaunchConfig.from_address(config), needs)
            return 0
        except BaseException as failure:
            self._keep(failure, site)
            return 1

    def _note(self, index: int, config: driver.LaunchConfig) -> None:
        """Record a launch in a dry run."""
        name = self.infos[index].name
        about = self._about
        launch = dry_run.DryLaunch(
            name,
            self.arch.name,
            _signed(tuple(config.grid)),
            _signed(tuple(config.block)),
            _cluster_of(config),
            config.smem,
            about.resources.get(name, Resources()) if about else Resources(),
            about.artifacts if about else {},
            about,
        )
        dry_run.note(launch)

    def _after(self, index: int, site: int, stream: int | None, _owner: int) -> int:
        """Wait for a kernel that reports: what it printed comes out then, and its fault can be read."""
        try:
            if dry_run.active() or driver.is_capturing(stream or 0):
                return 0
            driver.synchronize(stream or 0)
            info = self.infos[index]
            if info.prints and _libc is not None:
                _libc.fflush(None)
            if info.asserts:
                self._check_fault()
            return 0
        except BaseException as failure:
            self._keep(failure, site)
            return 1

    def _keep(self, failure: BaseException, site: int) -> None:
        if isinstance(failure, DSLBaseError) and failure.span is None and site < len(self._host_sites):
            failure.span = self._host_sites[site].span
            failure.calls = self._host_sites[site].calls
        self.pending[threading.get_ident()] = failure

    def _check_fault(self) -> None:
        address, size = driver.library_global(self._library, FAULT_RECORD)
        data = driver.read_memory(address, size)
        claimed, number, *where = struct.unpack_from(f"<{FAULT_HEADER}i", data)
        if not claimed:
            return
        driver.clear_memory(address, size)
        raw = struct.unpack_from(f"<{FAULT_VALUES}q", data, 4 * FAULT_HEADER)
        site = self.sites[number]
        text = format_message(site.message, site.types, raw)
        raise AssertionFault(
            f"assertion failed: {text} (kernel {site.kernel}, block {tuple(where[:3])}, thread {tuple(where[3:])})",
            span=site.span,
            calls=site.calls,
        )


def _describe(names: Sequence[str], sites: Sequence[Site], index: int, site: int) -> str:
    span = sites[site].span if site < len(sites) else None
    return f"kernel {names[index]}" + (f", launched at {span}" if span else "")


def _set_attributes(info: KernelInfo, handle: int) -> None:
    """Allow what a kernel may be launched with, on every device."""
    for device in range(driver.device_count()):
        if info.needs_room:
            limit = driver.attribute("smem_optin", device) - info.static_smem
            driver.set_kernel_attribute(handle, "max_dynamic_smem", limit, device)
        if info.needs_large_clusters:
            driver.set_kernel_attribute(handle, "non_portable_cluster", 1, device)


# --- explaining ------------------------------------------------------------------------------------------------------


def _wrong_architecture(arch: Architecture, capability: tuple[int, int]) -> DSLCudaRuntimeError:
    device = driver.current_device()
    own = of_capability(*capability).name
    return DSLCudaRuntimeError(
        f"this was compiled for {arch.name}, and the GPU ({driver.device_name(device)}) is {own}",
        hint=f"compile with --gpu-arch {own}, or leave CUTE_DSL_ARCH unset",
        error_code=driver.error_code(driver.NO_BINARY),
    )


def explain(
    info: KernelInfo, arch: Architecture, status: int, config: driver.LaunchConfig, needs: str = ""
) -> DSLCudaRuntimeError:
    """Return the error for a launch the driver refused, with the broken rule and its numbers if found.

    `needs` are the kernel's (`limits.Needs`), encoded.
    """
    kernel_needs = decoded_needs(needs)[1] if needs else limits.Needs(info.static_smem or info.extra_smem, info.dynamic)
    kernel_needs = kernel_needs._replace(smem=max(kernel_needs.smem, info.static_smem))  # libraries may have some, too
    sizes = limits.Sizes(
        _signed(tuple(config.grid)),
        _signed(tuple(config.block)),
        _cluster_of(config),
        ctypes.c_int32(info.asked_smem(config.smem)).value,
    )
    if status in driver.STICKY:
        return driver.failure(status, limits.refusal(info.name, sizes))
    if status in (driver.NO_BINARY, 98):
        return _wrong_architecture(arch, driver.capability())
    major, minor = driver.capability()
    broken = limits.broken_rule(generation_of(f"sm_{major}{minor}"), sizes, kernel_needs, info.registers)
    if broken is None:
        return driver.failure(status, limits.refusal(info.name, sizes))
    what, *listing = broken[0].split("\n")
    what += f"; {driver.status_name(status)} (error {status})"
    message = limits.refusal(info.name, sizes, "\n".join([what, *listing]))
    return DSLCudaRuntimeError(message, hint=broken[1], error_code=driver.error_code(status))


def _cluster_of(config: driver.LaunchConfig) -> tuple[int, ...]:
    """Return the blocks of a launch's clusters along each axis."""
    for number in range(config.count):
        at = config.attributes + ATTRIBUTE_BYTES * number
        if ctypes.c_int32.from_address(at).value == CLUSTER:
            return tuple((ctypes.c_int32 * 3).from_address(at + VALUE))
    return (1, 1, 1)


def _signed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ctypes.c_int32(size).value for size in sizes)
