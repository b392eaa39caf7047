"""Forms of control: registers per warp, dependent grids, clusters and their CTAs, cluster launch control."""

from __future__ import annotations

from .form import Form

SET_MAX_REGISTERS = Form("setmaxnreg", ".<action>.sync.aligned.u32 count: imm", action="inc dec")
GRID_DEPENDENCY = Form("griddepcontrol", ".<action>", action="wait launch_dependents")
NANOSLEEP = Form("nanosleep", ".u32 duration: b32")

MAPA = Form("mapa", "{.<space>}.u32 d: out b32, address: b32, rank: b32", space={"shared::cluster": "shared::cluster"})
MAPA_WIDE = Form(
    "mapa", "{.<space>}.u64 d: out b64, address: b64, rank: b32", space={"shared::cluster": "shared::cluster"}
)
CTA_RANK = Form("getctarank.shared::cluster", ".u32 d: out b32, address: b32")
CTA_RANK_OF_GENERIC = Form("getctarank", ".u64 d: out b32, address: b64")

_ASYNC = ".async{.shared::cta}.mbarrier::complete_tx::bytes"
TRY_CANCEL = Form(
    "clusterlaunchcontrol.try_cancel",
    f"{_ASYNC}{{.<multicast>}}.b128 [response: shared], [mbarrier: shared]",
    multicast="multicast::cluster::all",
)
IS_CANCELED = Form("clusterlaunchcontrol.query_cancel.is_canceled", ".pred.b128 d: out pred, answer: b128")
FIRST_CTA = Form(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid", ".v4.b32.b128 {d: out b32}, answer: b128", {"d": 4}
)
FIRST_CTA_INDEX = Form(
    "clusterlaunchcontrol.query_cancel",
    ".get_first_ctaid::<axis>.b32.b128 d: out b32, answer: b128",
    axis={"x": 0, "y": 1, "z": 2},
)
