"""Primitives of fences and proxies, dependent grids and registers."""

from __future__ import annotations

from ...base_dsl.diagnostics import type_error
from ...cute import arch
from ...cute.arch.values import choice, kernel_only
from ...cute.deferred_dialects import nvgpu
from .addresses import far

_PROXIES = ("alias", "async", "async_global", "async_shared", "tensormap", "generic")
_SCOPES = ("cta", "cluster", "gpu", "sys")


def fence_mbarrier_init(*, loc: object = None, ip: object = None) -> None:
    """Make initialised mbarriers visible to the cluster and to asynchronous copies."""
    kernel_only("fence_mbarrier_init")
    arch.mbarrier_init_fence()


def fence_proxy(kind: object, *, space: object = None, loc: object = None, ip: object = None) -> None:
    """Order accesses of this thread through one proxy with those through another."""
    kernel_only("fence_proxy")
    name = choice("kind", kind, _PROXIES).replace("_", ".")
    where = None if space is None else choice("space", space, ("shared_cta", "shared_cluster")).removeprefix("shared_")
    arch.fence_proxy(name, space=where)


def _tensor_map_scope(what: str, scope: object, from_proxy: object, to_proxy: object) -> str:
    kernel_only(what)
    ways = (
        choice("from_proxy", from_proxy or "generic", _PROXIES),
        choice("to_proxy", to_proxy or "tensormap", _PROXIES),
    )
    if ways != ("generic", "tensormap"):
        raise type_error(f"{what}() from {ways[0]} to {ways[1]}", "from GENERIC to TENSORMAP")
    return choice("scope", scope, _SCOPES)


def fence_proxy_release(
    scope: object, *, from_proxy: object = None, to_proxy: object = None, loc: object = None, ip: object = None
) -> None:
    """Release this thread's writes to tensor maps to copies that acquire them."""
    nvgpu.tma.tensor_map_release(_tensor_map_scope("fence_proxy_release", scope, from_proxy, to_proxy))


def fence_proxy_acquire(
    scope: object,
    addr: object,
    size: object = 128,
    *,
    from_proxy: object = None,
    to_proxy: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Acquire what was released to the tensor map at an address: later copies see it."""
    if size != 128:
        raise type_error(f"fence_proxy_acquire() of {size!r} bytes", "a tensor map has 128")
    name = _tensor_map_scope("fence_proxy_acquire", scope, from_proxy, to_proxy)
    nvgpu.tma.tensor_map_acquire(far(addr, "fence_proxy_acquire"), name)


def fence_sync_restrict(order: object, *, loc: object = None, ip: object = None) -> None:
    """Order this thread's accesses to shared memory with those of the cluster; Kiln's fence orders all accesses."""
    kernel_only("fence_sync_restrict")
    choice("order", order, ("acquire", "release"))
    arch.fence_acq_rel_cluster()


def griddepcontrol(kind: object, *, loc: object = None, ip: object = None) -> None:
    """Wait for the grids this one depends on, or allow those that depend on it to start."""
    kernel_only("griddepcontrol")
    if choice("kind", kind, ("wait", "launch_dependents")) == "wait":
        arch.griddepcontrol_wait()
    else:
        arch.griddepcontrol_launch_dependents()


def setmaxregister(reg_count: int, action: object, *, loc: object = None, ip: object = None) -> None:
    """Release or request registers of each thread of the warpgroup (`setmaxnreg`)."""
    kernel_only("setmaxregister")
    more = choice("action", action, ("increase", "decrease")) == "increase"
    (arch.setmaxregister_increase if more else arch.setmaxregister_decrease)(reg_count)


def exit(*, loc: object = None, ip: object = None) -> None:
    """End this thread; barriers no longer count it."""
    kernel_only("exit")
    arch.inline_ptx("exit;")


def fence_proxy_async_release_sync_restrict(*, loc: object = None, ip: object = None) -> None:
    """Release this thread's accesses to this CTA's shared memory to the async proxy of the cluster."""
    kernel_only("fence_proxy_async_release_sync_restrict")
    arch.inline_ptx("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;")


def fence_proxy_async_acquire_sync_restrict(*, loc: object = None, ip: object = None) -> None:
    """Acquire what asynchronous operations did to the cluster's shared memory, after a wait for an mbarrier."""
    kernel_only("fence_proxy_async_acquire_sync_restrict")
    arch.inline_ptx("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;")


def fence_sc_cluster(*, loc: object = None, ip: object = None) -> None:
    """Order all accesses of this thread with those of the cluster, sequentially consistent."""
    kernel_only("fence_sc_cluster")
    arch.inline_ptx("fence.sc.cluster;")


def fence_acq_rel(scope: object, *, loc: object = None, ip: object = None) -> None:
    """Order this thread's accesses before and after it for the threads of a `MemScope`."""
    kernel_only("fence_acq_rel")
    arch.inline_ptx(f"fence.acq_rel.{choice('scope', scope, _SCOPES)};")


def memory_barrier(scope: object, *, loc: object = None, ip: object = None) -> None:
    """Order all accesses of this thread for the threads of a `MemScope`, sequentially consistent (`fence.sc`)."""
    kernel_only("memory_barrier")
    arch.inline_ptx(f"fence.sc.{choice('scope', scope, _SCOPES)};")


def nanosleep(duration: object, *, loc: object = None, ip: object = None) -> None:
    """Suspend the thread for about `duration` nanoseconds."""
    arch.nanosleep(duration)
