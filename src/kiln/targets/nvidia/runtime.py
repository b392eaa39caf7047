"""The Python half of launching: loading kernels at their first launch, explaining errors, reading what kernels report.

A launch that succeeds with a loaded kernel never gets here (`launch.py`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import struct
import threading
from typing import TYPE_CHECKING, Any

from ... import forks
from ...base_dsl.diagnostics import DSLBaseError, DSLCudaRuntimeError
from ...hardware import driver
from ...hardware.architectures import Architecture, of_capability
from ..host.faults import AssertionFault, format_message
from . import dry_run, recent_launches
from .codegen import Resources
from .launch import AFTER, ATTRIBUTE_BYTES, CLOCK, CLUSTER, HANDLES, LAUNCH, OWNER, RECENT, SLOW, VALUE
from .ops.cute import FAULT_HEADER, FAULT_RECORD, FAULT_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..lowering.sites import Site
    from .remarks import About


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """What launching has to know about a kernel."""

    name: str
    prints: bool = False
    asserts: bool = False
    dynamic: bool = False
    """Whether it uses dynamic shared memory."""
    extra_smem: int = 0
    """Bytes of dynamic shared memory it takes beyond those the launch asks for."""
    static_smem: int = 0
    cluster: int = 1
    """Blocks of a cluster, where known."""
    registers: int = 0
    file: str = ""
    """Where it is defined, and the line."""
    line: int = 0
    unheeded: Sequence[tuple[str, int, str]] = ()
    """Loops with a hint that changes nothing: file, line, hint."""


driver.last_launches, driver.launches = recent_launches.suspects, recent_launches.count

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
        self.infos, self.arch, self.sites, self._host_sites = tuple(infos), arch, tuple(sites), tuple(host_sites)
        self.pending: dict[int, BaseException] = {}
        """What went wrong in the call that each thread is in."""
        self._about, self._code = about, code  # the table is part of the code, which must not go before this
        self._image = image
        self._library = 0
        self._lock = forks.lock()
        self._table = (ctypes.c_uint64 * (HANDLES + len(self.infos))).from_address(table)
        self._callbacks = (_SLOW(self._slow), _AFTER(self._after))
        for slot, callback in zip((SLOW, AFTER), self._callbacks, strict=True):
            self._table[slot] = ctypes.cast(callback, ctypes.c_void_p).value or 0
        self._table[RECENT], self._table[OWNER] = recent_launches.address(), recent_launches.register(self)
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
        """Make the kernels look as if they were not loaded; their handles."""
        handles = [self._table[HANDLES + number] for number in range(len(self.infos))]
        for number in range(len(handles)):
            self._table[HANDLES + number] = 0
        return handles

    def unhide(self, handles: Sequence[int]) -> None:
        """Undo `hide`."""
        for number, handle in enumerate(handles):
            self._table[HANDLES + number] = handle

    def describer(self) -> Callable[[int, int], str]:
        """A function that describes a launch for people, by kernel and site; it does not refer to this object."""
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
                raise explain(self.infos[index], self.arch, status, driver.LaunchConfig.from_address(config))
            return 0
        except BaseException as failure:
            self._keep(failure, site)
            return 1

    def _note(self, index: int, config: driver.LaunchConfig) -> None:
        """Instead of a launch."""
        name = self.infos[index].name
        about = self._about
        launch = dry_run.DryLaunch(
            name, self.arch.name, _signed(tuple(config.grid)), _signed(tuple(config.block)), _cluster_of(config),
            config.smem, about.resources.get(name, Resources()) if about else Resources(),
            about.artifacts if about else {}, about,
        )  # fmt: skip
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
            failure.span, failure.calls = self._host_sites[site].span, self._host_sites[site].calls
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
    return f"kernel {names[index]}" + (f", launched at {span.filename}:{span.line}" if span else "")


def _set_attributes(info: KernelInfo, handle: int) -> None:
    """Allow what a kernel may be launched with, on every device."""
    for device in range(driver.device_count()):
        if info.dynamic or info.extra_smem:
            limit = driver.attribute("smem_optin", device) - info.static_smem
            driver.set_kernel_attribute(handle, "max_dynamic_smem", limit, device)
        if info.cluster > 8:
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


def explain(info: KernelInfo, arch: Architecture, status: int, config: driver.LaunchConfig) -> DSLCudaRuntimeError:
    """The error for a launch the driver refused: the rule that was broken and its numbers, where it can be found."""
    grid, block = tuple(config.grid), tuple(config.block)
    start = f"cannot launch kernel {info.name} with grid={_signed(grid)}, block={_signed(block)}"
    if config.smem:
        start += f", smem={ctypes.c_int32(config.smem).value}"
    if status in driver.STICKY:
        return driver.failure(status, start)
    if status in (driver.NO_BINARY, 98):
        return _wrong_architecture(arch, driver.capability())
    broken = broken_rule(info, grid, block, config.smem, _cluster_of(config))
    code = f"{driver.status_name(status)} (error {status})"
    if broken:
        return DSLCudaRuntimeError(
            f"{start}: {broken[0]}; {code}", hint=broken[1], error_code=driver.error_code(status)
        )
    return driver.failure(status, start)


def _cluster_of(config: driver.LaunchConfig) -> tuple[int, ...]:
    """The blocks of a launch's clusters along each axis."""
    for number in range(config.count):
        at = config.attributes + ATTRIBUTE_BYTES * number
        if ctypes.c_int32.from_address(at).value == CLUSTER:
            return tuple((ctypes.c_int32 * 3).from_address(at + VALUE))
    return (1, 1, 1)


_MOST_BLOCKS_OF_A_CLUSTER = 16


def _signed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ctypes.c_int32(size).value for size in sizes)


def broken_rule(
    info: KernelInfo, grid: tuple[int, ...], block: tuple[int, ...], smem: int, cluster: tuple[int, ...] = (1, 1, 1)
) -> tuple[str, str] | None:
    """Which limit of the current device a launch exceeds: what is wrong, and the limit."""
    device = driver.current_device()

    def limit(name: str) -> int:
        return driver.attribute(name, device)

    for what, sizes in (("grid", _signed(grid)), ("block", _signed(block))):
        for axis, size in zip("xyz", sizes, strict=True):
            most = limit(f"max_{what}_{axis}")
            if size < 1:
                return f"{what} {axis} is {size}", f"every size of a {what} is at least 1"
            if size > most:
                return f"{what} {axis} is {size}", f"{what} {axis} is at most {most}"
    blocks = cluster[0] * cluster[1] * cluster[2]
    if blocks > 1 and not limit("cluster_launch"):
        return f"clusters of {cluster}", "this GPU has none: they came with compute capability 9.0"
    if min(cluster) < 1 or blocks > _MOST_BLOCKS_OF_A_CLUSTER:
        return (
            f"clusters of {cluster}, {blocks} blocks",
            f"a cluster has 8 blocks, and at most {_MOST_BLOCKS_OF_A_CLUSTER} on some GPUs",
        )
    for axis, size, part in zip("xyz", grid, cluster, strict=True):
        if size % part:
            return f"grid {axis} is {size} and cluster {axis} is {part}", "a grid consists of whole clusters"
    threads = block[0] * block[1] * block[2]
    if threads > limit("max_threads_per_block"):
        return f"{threads} threads per block", f"a block has at most {limit('max_threads_per_block')} threads"
    total, most = smem + info.static_smem, limit("smem_optin")
    if total > most:
        return (
            f"{total} bytes of shared memory ({info.static_smem} static, {smem} dynamic)",
            f"a block has at most {most} bytes of it on this GPU",
        )
    registers = info.registers * (-(-threads // 32) * 32)
    if registers > limit("registers_per_block"):
        return (
            f"{threads} threads of {info.registers} registers each",
            f"a block has {limit('registers_per_block')} registers: use fewer threads, or give max_number_threads=[{threads}, 1, 1]",
        )
    return None
