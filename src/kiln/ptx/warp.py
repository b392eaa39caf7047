"""Forms of what the lanes of a warp do together."""

from __future__ import annotations

from .form import Form

_BITS = {f"{name}.b32": name for name in ("and", "or", "xor")}
REDUX = Form(
    "redux",
    ".sync.<kind> d: out b32, value: b32, mask: b32",
    kind={
        "add.s32": "add",
        "add.u32": "add",
        "min.s32": "min",
        "max.s32": "max",
        "min.u32": "umin",
        "max.u32": "umax",
        **_BITS,
    },
)
_MODIFIED = [f"{name}{abs_}{nan}" for name in ("min", "max") for abs_ in ("", ".abs") for nan in ("", ".NaN")]
REDUX_FLOAT = Form(
    "redux", ".sync.<kind>.f32 d: out f32, value: f32, mask: b32", kind={name: f"f{name}" for name in _MODIFIED}
)

MATCH = Form("match.any.sync", ".b32 d: out b32, value: b32, mask: b32")
MATCH_WIDE = Form("match.any.sync", ".b64 d: out b32, value: b64, mask: b32")
MATCH_ALL = Form("match.all.sync", ".b32 d: out b32|p: out pred, value: b32, mask: b32")
MATCH_ALL_WIDE = Form("match.all.sync", ".b64 d: out b32|p: out pred, value: b64, mask: b32")

VOTE = Form("vote", ".sync.<kind>.pred d: out pred, predicate: pred, mask: b32", kind="all any uni")
BALLOT = Form("vote", ".sync.ballot.b32 d: out b32, predicate: pred, mask: b32")

SHUFFLE = Form(
    "shfl",
    ".sync.<kind>.b32 d: out b32|p: out pred, value: b32, offset: b32, clamp: b32, mask: b32",
    kind="up down bfly idx",
)

ELECT = Form("elect", ".sync d: out b32|p: out pred, mask: b32")
ACTIVE = Form("activemask", ".b32 d: out b32")
