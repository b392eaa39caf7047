"""Forms of loads, stores, prefetches and atomic operations."""

from __future__ import annotations

from collections.abc import Mapping

from .copies import HINT
from .form import Choices, Form, Rule, number
from .sync import SCOPES

_TYPES = "b32 b8 b16 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64"
_GLOBAL: Choices = {"global": "global"}
_SPACES = "global shared::cta shared::cluster shared"
_DEVICE = "mmio.relaxed.sys"
_STRONG = ("volatile", _DEVICE, *(f"relaxed.{scope}" for scope in SCOPES))
_REGISTERS = 128
"""The bits of an access in all memory."""
_WIDE = 256
"""The bits of an access that only global memory has."""

_OF_CACHES = {"cache", "nc", "l1", "l2", "policy", "prefetch"}
_ALLOWED = {"weak": _OF_CACHES - {"nc"}, "volatile": {"prefetch"}, _DEVICE: set[str]()}
"""What an order allows to be said of caches; other orders allow no cache operator, and no `nc`."""


def _bits(fields: Mapping[str, object]) -> int:
    return int(str(fields["type"])[1:])


def _wrong_caches(fields: Mapping[str, object]) -> str:
    order = fields["order"]
    space = fields["space"]
    cache = fields["cache"]
    stated = {name for name in _OF_CACHES if fields.get(name)}
    allowed = _ALLOWED.get(str(order), _OF_CACHES - {"cache", "nc"}) if order else _OF_CACHES
    if space != "global":
        allowed = allowed - ({"nc"} if space is None else _OF_CACHES - {"cache"})
    if "l1" in stated or ("nc" in stated and cache in ("lu", "cv")):
        allowed = allowed - {"cache"}
    if wrong := stated - allowed:
        words = ", ".join(sorted(f".{HINT if name == 'policy' else fields[name]}" for name in wrong))
        return f"{words} of an access with {order or 'no order'}, to {space or 'generic'} memory"
    if order == _DEVICE and space not in (None, "global"):
        return f".{order} of {space} memory"
    return ""


def _wrong_vector(fields: Mapping[str, object]) -> str:
    count = number(fields, "count")
    bits = _bits(fields)
    space = fields["space"]
    if fields["order"] == _DEVICE:
        return "a vector with .mmio"
    if count * bits > _REGISTERS and (count * bits != _WIDE or bits == 128 or space not in (None, "global")):
        return f"{count} times {bits} bits of {space or 'generic'} memory"
    if count == 8 and bits != 32:
        return f".v8 of {bits} bits"
    if fields["l2"] and count * bits != _WIDE:
        return f".{fields['l2']} of an access that does not have {_WIDE} bits"
    return _wrong_caches(fields)


_START = "{.<order>}{.<space>}{.<cache>}"
_CHOICES: dict[str, Choices] = {
    "space": _SPACES,
    "l1": "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate",
    "policy": HINT,
    "type": _TYPES,
}
_VECTOR: dict[str, Choices] = {"count": (2, 4, 8)}
_WIDE_VECTOR: dict[str, Choices] = _VECTOR | {"l2": "L2::evict_normal L2::evict_first L2::evict_last"}


def _load(l2: str, vector: str, d: str, rule: Rule, /, **choices: Choices) -> Form:
    return Form(
        "ld",
        f"{_START}{{.<nc>}}{{.<l1>}}{l2}{{.<policy>}}{{.<prefetch>}}{vector}.<type> {d}, [pointer]{{, policy: b64}}",
        {"d": "count"} if vector else None,
        rule,
        order=("weak", *_STRONG, *(f"acquire.{scope}" for scope in SCOPES)),
        cache="ca cg cs lu cv",
        nc={"nc": "nc"},
        prefetch="L2::64B L2::128B L2::256B",
        **_CHOICES,
        **choices,
    )


def _store(l2: str, vector: str, value: str, rule: Rule, /, **choices: Choices) -> Form:
    return Form(
        "st",
        f"{_START}{{.<l1>}}{l2}{{.<policy>}}{vector}.<type> [pointer], {value}{{, policy: b64}}",
        {"value": "count"} if vector else None,
        rule,
        order=("weak", *_STRONG, *(f"release.{scope}" for scope in SCOPES)),
        cache="wb cg cs wt",
        **_CHOICES,
        **choices,
    )


LOAD = _load("", "", "d: out", _wrong_caches)
LOAD_VECTOR = _load("{.<l2>}", ".v<count>", "{d: out}", _wrong_vector, **_WIDE_VECTOR)
STORE = _store("", "", "value", _wrong_caches)
STORE_VECTOR = _store("{.<l2>}", ".v<count>", "{value}", _wrong_vector, **_WIDE_VECTOR)

LOAD_UNIFORM = Form("ldu", "{.<space>}.<type> d: out, [pointer]", space=_GLOBAL, type=_TYPES)
LOAD_UNIFORM_VECTOR = Form(
    "ldu",
    "{.<space>}.v<count>.<type> {d: out}, [pointer]",
    {"d": "count"},
    space=_GLOBAL,
    count=(2, 4),
    type=_TYPES.replace("b128 ", ""),
)
PREFETCH = Form(
    "prefetch", "{.<space>}.<level> [pointer]", space="global local", level="L1 L2 L2::evict_last L2::evict_normal"
)

# --- atomic operations -----------------------------------------------------------------------------------------------

_BITS = ("b32", "b64")
_HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_ATOMIC_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", *_HALVES),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": _BITS,
    "or": _BITS,
    "xor": _BITS,
    "inc": ("u32",),
    "dec": ("u32",),
    "exch": (*_BITS, "b128"),
    "cas": ("b16", *_BITS, "b128"),
}
"""Types by operation; of vectors see `_wrong_vector_atomic`."""
_EVERY_TYPE = tuple(dict.fromkeys(type_ for types in _ATOMIC_TYPES.values() for type_ in types))


def _wrong_atomic(fields: Mapping[str, object]) -> str:
    kind = str(fields.get("kind", "cas"))
    type_ = str(fields["type"])
    halves = type_ in _HALVES
    if type_ not in _ATOMIC_TYPES[kind]:
        return f".{kind} of {type_}: {', '.join(_ATOMIC_TYPES[kind])} have it"
    if halves != bool(fields.get("noftz")) and type_ != "f32":
        return f".noftz {'is missing for' if halves else 'of'} {type_}"
    near = fields["space"] not in (None, "global")
    return f".{HINT} of shared memory" if near and fields.get("policy") else ""


def _wrong_vector_atomic(fields: Mapping[str, object]) -> str:
    type_ = str(fields["type"])
    count = number(fields, "count")
    if type_ not in (*_HALVES, "f32") or (fields["kind"] != "add" and type_ == "f32"):
        return f".{fields['kind']} of vectors of {type_}"
    if count == 8 and type_ not in ("f16", "bf16"):
        return f".v8 of {type_}"
    return _wrong_atomic({**fields, "kind": "add"})


def _atomic(opcode: str, modifiers: str, operands: str, rule: Rule, **choices: Choices) -> Form:
    return Form(
        opcode,
        f"{{.<order>}}{{.<scope>}}{{.<space>}}{modifiers}.<type> {operands}",
        {"d": "count", "value": "count"} if "count" in choices else None,
        rule,
        order="relaxed release" if opcode == "red" else "relaxed acquire release acq_rel",
        scope=SCOPES,
        type=_EVERY_TYPE,
        **choices,
    )


_ONE = ".<kind>{.<noftz>}{.<policy>}"
_SEVERAL = f"{_ONE}.v<count>"
_POLICY = "{, policy: b64}"
_KINDS: dict[str, Choices] = {"space": _SPACES, "noftz": "noftz", "policy": HINT}
_ADDED: dict[str, Choices] = _KINDS | _VECTOR | {"space": _GLOBAL, "kind": "add min max"}
_RED_KINDS = tuple(kind for kind in _ATOMIC_TYPES if kind not in ("exch", "cas"))
ATOM = _atomic("atom", _ONE, f"d: out, [pointer], value{_POLICY}", _wrong_atomic, **_KINDS, kind=(*_RED_KINDS, "exch"))
ATOM_CAS = _atomic("atom", ".cas", "d: out, [pointer], compare, value", _wrong_atomic, space=_SPACES)
ATOM_VECTOR = _atomic("atom", _SEVERAL, f"{{d: out}}, [pointer], {{value}}{_POLICY}", _wrong_vector_atomic, **_ADDED)
RED = _atomic("red", _ONE, f"[pointer], value{_POLICY}", _wrong_atomic, **_KINDS, kind=_RED_KINDS)
RED_VECTOR = _atomic("red", _SEVERAL, f"[pointer], {{value}}{_POLICY}", _wrong_vector_atomic, **_ADDED)
