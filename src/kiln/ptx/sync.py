"""Forms of barriers, fences and the cluster's barrier."""

from __future__ import annotations

from .form import Form

_COUNT = ".popc.u32 d: out b32, id: b32{, threads: b32}, predicate: pred"
_TEST = ".<kind>.pred d: out pred, id: b32{, threads: b32}, predicate: pred"
BAR_SYNC = Form("bar", "{.<cta>}.sync id: b32{, threads: b32}", cta="cta")
BAR_ARRIVE = Form("bar", "{.<cta>}.arrive id: b32, threads: b32", cta="cta")
BAR_COUNT = Form("bar", f"{{.<cta>}}.red{_COUNT}", cta="cta")
BAR_TEST = Form("bar", f"{{.<cta>}}.red{_TEST}", cta="cta", kind="and or")
BAR_WARP = Form("bar", ".warp.sync mask: b32")
BARRIER_SYNC = Form("barrier", "{.<cta>}.sync{.<aligned>} id: b32{, threads: b32}", cta="cta", aligned="aligned")
BARRIER_ARRIVE = Form("barrier", "{.<cta>}.arrive{.<aligned>} id: b32, threads: b32", cta="cta", aligned="aligned")
BARRIER_COUNT = Form("barrier", f"{{.<cta>}}.red{{.<aligned>}}{_COUNT}", cta="cta", aligned="aligned")
BARRIER_TEST = Form("barrier", f"{{.<cta>}}.red{{.<aligned>}}{_TEST}", cta="cta", aligned="aligned", kind="and or")

CLUSTER_ARRIVE = Form(
    "barrier.cluster.arrive",
    "{.<order>}{.<aligned>}",
    order={"release": "release", "relaxed": "relaxed"},
    aligned="aligned",
)
CLUSTER_WAIT = Form("barrier.cluster.wait", "{.acquire}{.<aligned>}", aligned="aligned")

SCOPES = ("cta", "cluster", "gpu", "sys")
FENCES = (
    *(f"{order}.{scope}" for order in ("acq_rel", "sc", "acquire", "release") for scope in SCOPES),
    "proxy.alias",
    "proxy.generic",
    "proxy.async",
    "proxy.async.global",
    "proxy.async.shared::cta",
    "proxy.async.shared::cluster",
    "proxy.tensormap::generic.release.gpu",
    "mbarrier_init.release.cluster",
)
"""The fences of the language, by their PTX names without `fence.`."""
_RELEASES = tuple(f"proxy.tensormap::generic.release.{scope}" for scope in SCOPES)
FENCE = Form("fence", ".<kind>", kind=(*FENCES, *(kind for kind in _RELEASES if kind not in FENCES)))
FENCE_RESTRICTED = Form(
    "fence",
    ".<kind>",
    kind={
        "acquire.sync_restrict::shared::cluster.cluster": "acquire.cluster",
        "release.sync_restrict::shared::cta.cluster": "release.cluster",
        "proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster": "proxy.async.shared::cluster",
        "proxy.async::generic.release.sync_restrict::shared::cta.cluster": "proxy.async.shared::cta",
    },
)
"""Fences of an mbarrier's side, with the fence that covers them."""
FENCE_OF_ALL = Form("fence", ".<scope>", scope=SCOPES)
"""A fence without an order is one of `acq_rel`."""
FENCE_OF_MAP = Form("fence", ".proxy.tensormap::generic.acquire.<scope> [map: generic], 128", scope=SCOPES)
MEMBAR = Form("membar", ".<kind>", kind={"cta": "sc.cta", "gl": "sc.gpu", "sys": "sc.sys"})
