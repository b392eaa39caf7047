"""Forms of accesses to multicast memory: loads that reduce over GPUs, stores and reductions that go to all of them."""

from __future__ import annotations

from collections.abc import Mapping

from .form import Choices, Form
from .sync import SCOPES

_BITS = ("b32", "b64")
_PACKED = ("f16x2", "bf16x2")
_BYTES = ("e4m3x4", "e5m2x4")
_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", *_PACKED, *_BYTES),
    "min": ("u32", "s32", "u64", "s64", *_PACKED, *_BYTES),
    "max": ("u32", "s32", "u64", "s64", *_PACKED, *_BYTES),
    "and": _BITS,
    "or": _BITS,
    "xor": _BITS,
}
"""Types by operation."""
_EVERY_TYPE = tuple(dict.fromkeys(type_ for types in _TYPES.values() for type_ in types))
_VECTORS = ("f32", *_PACKED, *_BYTES)


def _wrong_reduction(fields: Mapping[str, object]) -> str:
    kind = str(fields["kind"])
    type_ = str(fields["type"])
    held = fields.get("acc")
    if type_ not in _TYPES[kind]:
        return f".{kind} of {type_}: {', '.join(_TYPES[kind])} have it"
    if fields.get("count") and type_ not in _VECTORS:
        return f"a vector of {type_}"
    if held and (
        kind != "add" or held != ("acc::f16" if type_ in _BYTES else "acc::f32") or type_ not in (*_PACKED, *_BYTES)
    ):
        return f".{held} of .{kind} of {type_}"
    return ""


def _wrong_scope(fields: Mapping[str, object]) -> str:
    """An access that is ordered has a scope, others have none."""
    order = fields["order"]
    scope = fields["scope"]
    if order in (None, "weak"):
        return f".{scope} without an order that has one" if scope else ""
    return "" if scope else f".{order} without a scope"


def _wrong_load(fields: Mapping[str, object]) -> str:
    return _wrong_reduction(fields) or _wrong_scope(fields)


def _wrong_red(fields: Mapping[str, object]) -> str:
    if str(fields["type"]) in _BYTES:
        return f"a reduction of {fields['type']} in memory"
    return _wrong_reduction(fields) or _wrong_scope(fields)


_START = "{.<order>}{.<scope>}{.<space>}"
_COMMON: dict[str, Choices] = {"scope": SCOPES, "space": {"global": "global"}, "type": _EVERY_TYPE}
_REDUCING: dict[str, Choices] = _COMMON | {"kind": tuple(_TYPES)}
_LOADING: dict[str, Choices] = _REDUCING | {"order": "weak relaxed acquire", "acc": "acc::f32 acc::f16"}
_REDUCED: dict[str, Choices] = _REDUCING | {"order": "relaxed release"}
_STORED: dict[str, Choices] = _COMMON | {
    "order": "weak relaxed release",
    "type": "b32 b64 u32 u64 s32 s64 f32 f64 f16x2 bf16x2",
}
_COUNTS = (2, 4)
_STORED_VECTORS = ("f32", "f16x2", "bf16x2")

LOAD_REDUCE = Form(
    "multimem.ld_reduce", f"{_START}.<kind>{{.<acc>}}.<type> d: out, [pointer]", None, _wrong_load, **_LOADING
)
LOAD_REDUCE_VECTOR = Form(
    "multimem.ld_reduce",
    f"{_START}.<kind>{{.<acc>}}.v<count>.<type> {{d: out}}, [pointer]",
    {"d": "count"},
    _wrong_load,
    count=_COUNTS,
    **_LOADING,
)
STORE = Form("multimem.st", f"{_START}.<type> [pointer], value", None, _wrong_scope, **_STORED)


def _wrong_vector_store(fields: Mapping[str, object]) -> str:
    return "" if fields["type"] in _STORED_VECTORS else f"a vector of {fields['type']}"


STORE_VECTOR = Form(
    "multimem.st",
    f"{_START}.v<count>.<type> [pointer], {{value}}",
    {"value": "count"},
    lambda fields: _wrong_vector_store(fields) or _wrong_scope(fields),
    count=_COUNTS,
    **(_STORED | {"type": _STORED_VECTORS}),
)
STORE_ASYNC = Form(
    "multimem.st.async",
    ".release.<scope>.global.<type> [pointer], value",
    scope="gpu sys",
    type="b32 b64 u32 u64 s32 s64 f32 f64",
)
REDUCE = Form("multimem.red", f"{_START}.<kind>.<type> [pointer], value", None, _wrong_red, **_REDUCED)
REDUCE_VECTOR = Form(
    "multimem.red",
    f"{_START}.<kind>.v<count>.<type> [pointer], {{value}}",
    {"value": "count"},
    _wrong_red,
    count=_COUNTS,
    **_REDUCED,
)
