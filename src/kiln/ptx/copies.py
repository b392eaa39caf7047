"""Forms of asynchronous copies: of a thread, in bulk, and of stores to other CTAs."""

from __future__ import annotations

from collections.abc import Mapping

from .form import Form

HINT = "L2::cache_hint"
MULTICAST = "multicast::cluster"
_COMPLETES = ".mbarrier::complete_tx::bytes"

CP_ASYNC = Form(
    "cp.async",
    ".<cache>.shared{::cta}.global{.<policy>}{.L2::<prefetch>B}"
    " [target: shared], [source: global], size: imm{, source_size: b32}{, policy: b64}",
    cache="ca cg",
    policy=HINT,
    prefetch=(64, 128, 256),
)
COMMIT = Form("cp.async.commit_group", "")
WAIT = Form("cp.async.wait_group", " count: imm")
WAIT_ALL = Form("cp.async.wait_all", "")
ARRIVE = Form("cp.async.mbarrier.arrive", "{.<noinc>}{.shared{::cta}}.b64 [pointer: shared]", noinc="noinc")


def no_multicast(fields: Mapping[str, object]) -> str:
    """Return that a copy to `shared::cta` goes to no other CTA."""
    return "it has .multicast::cluster to .shared::cta" if fields["mask"] and fields["space"] == "cta" else ""


BULK_LOAD = Form(
    "cp.async.bulk",
    f".shared::<space>.global{_COMPLETES}{{.<mask>}}{{.<policy>}}"
    " [target: shared], [source: global], bytes: b32, [mbarrier: shared]{, mask: b16}{, policy: b64}",
    None,
    no_multicast,
    space="cluster cta",
    mask=MULTICAST,
    policy=HINT,
)
BULK_SEND = Form(
    "cp.async.bulk",
    f".shared::cluster.shared::cta{_COMPLETES} [target: cluster], [source: shared], bytes: b32, [mbarrier: cluster]",
)
BULK_STORE = Form(
    "cp.async.bulk",
    ".global.shared::cta.bulk_group{.<policy>} [target: global], [source: shared], bytes: b32{, policy: b64}",
    policy=HINT,
)
BULK_STORE_BYTES = Form(
    "cp.async.bulk",
    ".global.shared::cta.bulk_group{.<policy>}.cp_mask"
    " [target: global], [source: shared], bytes: b32{, policy: b64}, mask: b16",
    policy=HINT,
)
"""It writes the bytes of each 16 whose bits are set in the mask."""
BULK_PREFETCH = Form(
    "cp.async.bulk.prefetch.L2", ".global{.<policy>} [source: global], bytes: b32{, policy: b64}", policy=HINT
)
BULK_COMMIT = Form("cp.async.bulk.commit_group", "")
BULK_WAIT = Form("cp.async.bulk.wait_group", "{.<read>} count: imm", read="read")

STORE_BULK = Form("st.bulk", "{.weak}{.shared::cta} [pointer: shared], bytes: b64, 0")

_WORDS = ("u32", "s32", "u64")
SHARED_REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": _WORDS,
    "min": ("u32", "s32"),
    "max": ("u32", "s32"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("u32", "s32"),
    "or": ("u32", "s32"),
    "xor": ("u32", "s32"),
}
"""The reductions of bulk copies to the shared memory of a CTA of the cluster, and their element types."""
_INTEGERS = (*_WORDS, "s64")
BULK_REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": (*_WORDS, "f16", "bf16", "f32", "f64"),
    "min": (*_INTEGERS, "f16", "bf16"),
    "max": (*_INTEGERS, "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": _INTEGERS,
    "or": _INTEGERS,
    "xor": _INTEGERS,
}
"""The reductions of bulk copies to global memory, and their element types."""


def reduction(kind: str, element: str) -> str:
    """Return a reduction as PTX spells it: bits have no sign."""
    if kind in ("and", "or", "xor"):
        return f"{kind}.b{element[1:]}"
    return f"{kind}.noftz.{element}" if kind == "add" and element in ("f16", "bf16") else f"{kind}.{element}"


def _spelled(table: dict[str, tuple[str, ...]]) -> dict[str, str]:
    words = [reduction(kind, element) for kind, elements in table.items() for element in elements]
    return {word: word for word in words}


REDUCE_STORE = Form(
    "cp.reduce.async.bulk",
    ".global.shared::cta.bulk_group{.<policy>}.<reduction>"
    " [target: global], [source: shared], bytes: b32{, policy: b64}",
    policy=HINT,
    reduction=_spelled(BULK_REDUCTIONS),
)
REDUCE_SEND = Form(
    "cp.reduce.async.bulk",
    f".shared::cluster.shared::cta{_COMPLETES}.<reduction>"
    " [target: cluster], [source: shared], bytes: b32, [mbarrier: cluster]",
    reduction=_spelled(SHARED_REDUCTIONS),
)

STORE_ASYNC = Form(
    "st.async",
    f".shared::cluster{_COMPLETES}.<type> [target: cluster], value, [mbarrier: cluster]",
    type="b32 b64 u32 u64 s32 s64 f32 f64",
)
STORE_ASYNC_VECTOR = Form(
    "st.async",
    f".shared::cluster{_COMPLETES}.v<count>.<type> [target: cluster], {{value}}, [mbarrier: cluster]",
    {"value": "count"},
    count=(2, 4),
    type="b32 b64 u32 u64 s32 s64 f32 f64",
)
RELEASE_STORE = Form(
    "st.async",
    ".release.<scope>.global.<type> [target: global], value",
    scope="gpu sys",
    type="b32 b64 u32 u64 s32 s64 f32 f64",
)
RELEASE_REDUCE = Form(
    "red.async",
    ".<order>.<scope>.global.<reduction> [target: global], value",
    order="release relaxed",
    scope="gpu sys",
    reduction=_spelled(SHARED_REDUCTIONS),
)
REDUCE_ASYNC = Form(
    "red.async",
    f".relaxed.cluster.shared::cluster{_COMPLETES}.<reduction> [target: cluster], value, [mbarrier: cluster]",
    reduction=_spelled(SHARED_REDUCTIONS),
)
