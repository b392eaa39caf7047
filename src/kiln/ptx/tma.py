"""Forms of TMA: copies of boxes, and tensor maps."""

from __future__ import annotations

from .copies import HINT, MULTICAST, no_multicast
from .form import Choices, Count, Form, Values, number
from .sync import SCOPES

_TILE: dict[str, Choices] = {"rank": (1, 2, 3, 4, 5), "mode": {"tile": "tile"}}
_PIXELS: dict[str, Choices] = {"rank": (3, 4, 5), "mode": "im2col im2col::w im2col::w::128"}
_PIXELS_WRITTEN: dict[str, Choices] = {"rank": (3, 4, 5), "mode": {"im2col_no_offs": "im2col_no_offs"}}


def _offsets(fields: Values) -> int:
    return number(fields, "rank") - 2 if fields["mode"] == "im2col" else 2


_BY_RANK: dict[str, Count] = {"coordinates": "rank", "offsets": _offsets}
_ROWS: dict[str, Count] = {"coordinates": 5}
"""A column and four rows."""
_BOX = "[map: generic, {coordinates: b32}]"


def _load(modifiers: str, counts: dict[str, Count], offsets: str, /, **choices: Choices) -> Form:
    return Form(
        "cp.async.bulk.tensor",
        f"{modifiers}.mbarrier::complete_tx::bytes{{.<mask>}}{{.cta_group::<cta_group>}}{{.<policy>}}"
        f" [target: shared], {_BOX}, [mbarrier: shared]{offsets}{{, mask: b16}}{{, policy: b64}}",
        counts,
        no_multicast,
        **choices,
        space="cluster cta",
        mask=MULTICAST,
        cta_group=(1, 2),
        policy=HINT,
    )


LOAD = _load(".<rank>d.shared::<space>.global{.<mode>}", _BY_RANK, "", **_TILE)
LOAD_ROWS = _load(".2d.shared::<space>.global.tile::gather4", _ROWS, "")
LOAD_PIXELS = _load(".<rank>d.shared::<space>.global.<mode>", _BY_RANK, ", {offsets: b16}", **_PIXELS)


def _store(opcode: str, modifiers: str, counts: dict[str, Count], **choices: Choices) -> Form:
    syntax = f"{modifiers}.bulk_group{{.<policy>}} {_BOX}, [source: shared]{{, policy: b64}}"
    return Form(opcode, syntax, counts, **choices, policy=HINT)


_REDUCTIONS = "add min max inc dec and or xor"
_STORE = "cp.async.bulk.tensor"
_REDUCE = "cp.reduce.async.bulk.tensor"
STORE = _store(_STORE, ".<rank>d.global.shared::cta{.<mode>}", _BY_RANK, **_TILE)
STORE_ROWS = _store(_STORE, ".2d.global.shared::cta.tile::scatter4", _ROWS)
STORE_PIXELS = _store(_STORE, ".<rank>d.global.shared::cta.<mode>", _BY_RANK, **_PIXELS_WRITTEN)
REDUCE = _store(_REDUCE, ".<rank>d.global.shared::cta.<reduction>{.<mode>}", _BY_RANK, reduction=_REDUCTIONS, **_TILE)
REDUCE_PIXELS = _store(
    _REDUCE, ".<rank>d.global.shared::cta.<reduction>.<mode>", _BY_RANK, reduction=_REDUCTIONS, **_PIXELS_WRITTEN
)


def _prefetch(modifiers: str, counts: dict[str, Count], offsets: str, /, **choices: Choices) -> Form:
    syntax = f"{modifiers}{{.<policy>}} {_BOX}{offsets}{{, policy: b64}}"
    return Form("cp.async.bulk.prefetch.tensor", syntax, counts, **choices, policy=HINT)


PREFETCH = _prefetch(".<rank>d.L2.global{.<mode>}", _BY_RANK, "", **_TILE)
PREFETCH_ROWS = _prefetch(".2d.L2.global.tile::gather4", _ROWS, "")
PREFETCH_PIXELS = _prefetch(".<rank>d.L2.global.<mode>", _BY_RANK, ", {offsets: b16}", **_PIXELS)

MAP_PREFETCH = Form("prefetch.tensormap", " [map: generic]")
PUBLISH = Form(
    "tensormap.cp_fenceproxy",
    ".global.shared::cta.tensormap::generic.release.<scope>.sync.aligned [target: global], [source: shared], 128",
    scope=SCOPES,
)


def _replace(bits: int, operands: str, *fields: str) -> Form:
    return Form(
        "tensormap.replace.tile",
        f".<field>{{.<space>}}.b1024.b{bits} [map], {operands}",
        field={field: field for field in fields},
        space="global shared::cta",
    )


REPLACE_ADDRESS = _replace(64, "value: b64", "global_address")
REPLACE_STRIDE = _replace(64, "ordinal: imm, value: b64", "global_stride")
REPLACE_RANK = _replace(32, "value: b32", "rank")
REPLACE_EXTENT = _replace(32, "ordinal: imm, value: b32", "box_dim", "global_dim", "element_stride")
REPLACE_CONSTANT = _replace(
    32, "value: imm", "elemtype", "interleave_layout", "swizzle_mode", "fill_mode", "swizzle_atomicity"
)


def replacement(field: str) -> Form:
    """Return the form that replaces a field of a tensor map."""
    return next(form for form in _REPLACEMENTS if any(values["field"] == field for values in form.choices()))


_REPLACEMENTS = (REPLACE_ADDRESS, REPLACE_STRIDE, REPLACE_RANK, REPLACE_EXTENT, REPLACE_CONSTANT)
