"""Fences: the order in which other threads and units see this thread's memory accesses."""

from __future__ import annotations

from ..deferred_dialects import nvgpu
from .values import choice, kernel_only

__all__ = [
    "fence_acq_rel_cluster",
    "fence_acq_rel_cta",
    "fence_acq_rel_gpu",
    "fence_acq_rel_sys",
    "fence_proxy",
    "fence_view_async_shared",
    "mbarrier_init_fence",
]


def _fence(what: str, kind: str) -> None:
    kernel_only(what)
    nvgpu.sync.fence(kind)


def fence_acq_rel_cta(*, loc: object = None, ip: object = None) -> None:
    """Order memory accesses among the threads of the block."""
    _fence("fence_acq_rel_cta", "acq_rel.cta")


def fence_acq_rel_cluster(*, loc: object = None, ip: object = None) -> None:
    """Order memory accesses among the threads of the cluster. Needs sm_90 or later."""
    _fence("fence_acq_rel_cluster", "acq_rel.cluster")


def fence_acq_rel_gpu(*, loc: object = None, ip: object = None) -> None:
    """Order memory accesses among the threads of the GPU."""
    _fence("fence_acq_rel_gpu", "acq_rel.gpu")


def fence_acq_rel_sys(*, loc: object = None, ip: object = None) -> None:
    """Order memory accesses among all threads of the system."""
    _fence("fence_acq_rel_sys", "acq_rel.sys")


_PROXIES = ("alias", "async", "async.global", "async.shared", "global", "shared", "tensormap", "generic")


def fence_proxy(
    kind: object, *, space: object = None, use_intrinsic: object = None, loc: object = None, ip: object = None
) -> None:
    """Order accesses through the generic proxy with those through another, such as writes of threads with TMA stores.

    Every kind but "alias" needs sm_90 or later.

    Args:
        kind: the other proxy: "async.shared" (TMA and MMAs in shared memory), "async.global", "async", "alias",
            "tensormap"; an enum of CuTe DSL with these names does, too.
        space: for shared memory "cta" (the default) or "cluster".
        use_intrinsic: accepted as in CuTe DSL, without effect.
    """
    name = choice("kind", kind, _PROXIES)
    if name in ("shared", "async.shared"):
        name = f"async.shared::{choice('space', space or 'cta', ('cta', 'cluster'))}"
    elif name == "global":
        name = "async.global"
    elif name == "async" and space is not None:
        name = f"async.shared::{choice('space', space, ('cta', 'cluster'))}"
    elif name == "tensormap":
        name = "tensormap::generic.release.gpu"
    _fence("fence_proxy", f"proxy.{name}")


def fence_view_async_shared(*, loc: object = None, ip: object = None) -> None:
    """Make this thread's writes to shared memory visible to asynchronous copies and MMAs issued later.

    Needs sm_90 or later.
    """
    _fence("fence_view_async_shared", "proxy.async.shared::cta")


def mbarrier_init_fence(*, loc: object = None, ip: object = None) -> None:
    """Make initialised mbarriers visible to the cluster and to asynchronous copies. Needs sm_90 or later."""
    _fence("mbarrier_init_fence", "mbarrier_init.release.cluster")
