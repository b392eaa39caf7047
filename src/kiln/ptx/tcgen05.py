"""Forms of tcgen05: tensor memory, and the MMAs and copies that use it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping

from .form import Choices, Form, Values, number
from .syntax import Immediate

_GROUP = ".cta_group::<cta_group>"
_GROUPS: dict[str, Choices] = {"cta_group": (1, 2)}

ALLOC = Form(
    "tcgen05.alloc",
    f"{{.<exclusive>}}{_GROUP}.sync.aligned{{.shared::cta}}.b32 [pointer: shared], columns: b32",
    exclusive="exclusive",
    **_GROUPS,
)
DEALLOC = Form(
    "tcgen05.dealloc",
    f"{{.<exclusive>}}{_GROUP}.sync.aligned.b32 address: b32, columns: b32",
    exclusive="exclusive",
    **_GROUPS,
)
RELINQUISH = Form("tcgen05.relinquish_alloc_permit", f"{_GROUP}.sync.aligned", **_GROUPS)

# --- MMA -------------------------------------------------------------------------------------------------------------

MOST_SCALE_D = 15
_KINDS = "f16 tf32 f8f6f4 i8"
_COLLECTOR_USES = ("fill", "use", "lastuse", "discard")
_COLLECTOR: dict[str, Choices] = {"collector": _COLLECTOR_USES, "collector_b": _COLLECTOR_USES}
_COLLECTORS = "{.collector::a::<collector>}{.collector::b::<collector_b>}"


def scales_d(kind: str, sparse: bool) -> bool:
    """Return whether an MMA of a kind without scale factors, and perhaps a sparse A, can scale D."""
    return kind in ("f16", "tf32") or (kind == "i8" and not sparse)


def _wrong_mma(sparse: bool, parts: Mapping[str, object]) -> str:
    """Return that D is scaled by too much or not at all, or that a shifted A stays in the collector."""
    scale = parts.get("scale_input_d")
    if scale is not None and not scales_d(str(parts["kind"]), sparse):
        return f"kind::{parts['kind']} has no scale of D{' with a sparse A' * sparse}"
    if isinstance(scale, Immediate) and not 0 <= scale.value <= MOST_SCALE_D:
        return f"a scale of D that is not 0 to {MOST_SCALE_D}"
    if parts.get("a_shift") and parts["collector"] in ("fill", "use"):
        return f".ashift with .collector::a::{parts['collector']}"
    return ""


def _output_lanes(fields: Values) -> int:
    return 8 if fields["cta_group"] == 2 else 4


def _mma(opcode: str, a: str, shift: str = "", metadata: str = "", **choices: Choices) -> Form:
    return Form(
        opcode,
        f"{_GROUP}.kind::<kind>{shift}{_COLLECTORS} [d: tmem], {a}, b: b64{metadata}, idesc: b32"
        "{, {disable_output_lane: b32}}, accumulate: pred{, scale_input_d: imm}",
        {"disable_output_lane": _output_lanes},
        functools.partial(_wrong_mma, bool(metadata)),
        kind=_KINDS,
        **_GROUPS,
        **_COLLECTOR,
        **choices,
    )


_BLOCKS: dict[str, Choices] = {
    "scaling": {
        "mxf8f6f4.block_scale.block32": ("mxf8f6f4", 32),
        "mxf8f6f4.block_scale.scale_vec::1X": ("mxf8f6f4", 32),
        "mxf8f6f4.block_scale": ("mxf8f6f4", 32),
        "mxf4.block_scale.block32": ("mxf4", 32),
        "mxf4.block_scale.scale_vec::2X": ("mxf4", 32),
        "mxf4.block_scale": ("mxf4", 32),
        "mxf4nvf4.block_scale.block32": ("mxf4nvf4", 32),
        "mxf4nvf4.block_scale.scale_vec::2X": ("mxf4nvf4", 32),
        "mxf4nvf4.block_scale.block16": ("mxf4nvf4", 16),
        "mxf4nvf4.block_scale.scale_vec::4X": ("mxf4nvf4", 16),
    }
}
"""Kinds with scale factors, and how many elements share one."""


def _mma_block_scale(a: str) -> Form:
    return Form(
        "tcgen05.mma",
        f"{_GROUP}.kind::<scaling>{_COLLECTORS} [d: tmem], {a}, b: b64, idesc: b32"
        ", [sfa: tmem], [sfb: tmem], accumulate: pred",
        **_GROUPS,
        **_BLOCKS,
        **_COLLECTOR,
    )


def _mma_ws(a: str) -> Form:
    return Form(
        "tcgen05.mma.ws",
        f".cta_group::1.kind::<kind>{{.collector::<collector>}} [d: tmem], {a}, b: b64, idesc: b32"
        ", accumulate: pred{, zero_column_mask: b64}",
        kind=_KINDS,
        collector=tuple(f"b{buffer}::{use}" for buffer in range(4) for use in _COLLECTOR_USES),
    )


_SMEM = "a: b64"
_TMEM = "[a: tmem]"
_SHIFT = "{.<a_shift>}"
_METADATA = ", [metadata: tmem]"
MMA = _mma("tcgen05.mma", _SMEM)
MMA_TMEM = _mma("tcgen05.mma", _TMEM, _SHIFT, a_shift="ashift")
"""With A in tensor memory."""
MMA_SP = _mma("tcgen05.mma.sp", _SMEM, metadata=_METADATA)
MMA_SP_TMEM = _mma("tcgen05.mma.sp", _TMEM, _SHIFT, _METADATA, a_shift="ashift")
MMA_BLOCK_SCALE = _mma_block_scale(_SMEM)
MMA_BLOCK_SCALE_TMEM = _mma_block_scale(_TMEM)
MMA_WS = _mma_ws(_SMEM)
MMA_WS_TMEM = _mma_ws(_TMEM)

# --- copy, shift, commit ---------------------------------------------------------------------------------------------

CP = Form(
    "tcgen05.cp",
    f"{_GROUP}.<shape>{{.b8x16.<format>}} [address: tmem], descriptor: b64",
    shape="128x256b 128x128b 4x256b 64x128b.warpx2::02_13 64x128b.warpx2::01_23 32x128b.warpx4",
    format="b6x16_p32 b4x16_p64",
    **_GROUPS,
)
SHIFT = Form("tcgen05.shift", f"{_GROUP}.down [address: tmem]", **_GROUPS)


_COMMIT = f"{_GROUP}.mbarrier::arrive::one{{.shared::cluster}}"
COMMIT = Form(
    "tcgen05.commit",
    f"{_COMMIT}{{.<mask>}}.b64 [mbarrier: shared]{{, mask: b16}}",
    mask="multicast::cluster",
    **_GROUPS,
)
COMMIT_WIDE = Form("tcgen05.commit", f"{_COMMIT}.multicast::cluster::32b.b64 [mbarrier: shared], mask: b32", **_GROUPS)
WAIT = Form("tcgen05", ".wait::<kind>.sync.aligned", kind="ld st")
FENCE = Form("tcgen05", ".fence::<kind>", kind="before_thread_sync after_thread_sync")

# --- registers -------------------------------------------------------------------------------------------------------

_MOST_REGISTERS = 128


def _registers(fields: Mapping[str, object]) -> int:
    """Return the registers of a thread: 32 lanes have the cells of a shape, which is rows and bits of each."""
    return math.prod(map(int, re.findall(r"\d+", str(fields["shape"])))) // 1024 * number(fields, "repeat")


def _wrong_registers(fields: Mapping[str, object]) -> str:
    count = _registers(fields)
    if count > _MOST_REGISTERS:
        return f"{fields['shape']} x{fields['repeat']} are {count} registers, more than {_MOST_REGISTERS}"
    return f".abs and .NaN of {fields['type']}" if fields.get("type") != "f32" and _has_modifier(fields) else ""


def _has_modifier(fields: Mapping[str, object]) -> bool:
    return bool(fields.get("abs") or fields.get("nan"))


_REPEATS = (1, 2, 4, 8, 16, 32, 64, 128)
_WHOLE: Choices = "32x32b 16x64b 16x128b 16x256b"
_HALVES: Choices = {"16x32bx2": "16x32bx2"}
_SPLIT = ", split: imm"
"""The distance in columns between the halves of 16x32bx2."""


def _ld(shape: Choices, split: str = "") -> Form:
    return Form(
        "tcgen05.ld",
        f".sync.aligned.<shape>.x<repeat>{{.<pack>}}.b32 {{d: out b32}}, [address: tmem]{split}",
        {"d": _registers},
        _wrong_registers,
        shape=shape,
        repeat=_REPEATS,
        pack="pack::16b",
    )


def _ld_red(shape: Choices, split: str = "") -> Form:
    return Form(
        "tcgen05.ld.red",
        ".sync.aligned.<shape>.x<repeat>.<reduction>{.<abs>}{.<nan>}.<type>"
        f" {{d: out b32}}, r: out b32, [address: tmem]{split}",
        {"d": _registers},
        _wrong_registers,
        shape=shape,
        repeat=_REPEATS[1:],
        reduction="min max",
        abs="abs",
        nan="NaN",
        type="f32 u32 s32",
    )


def _st(shape: Choices, split: str = "") -> Form:
    return Form(
        "tcgen05.st",
        f".sync.aligned.<shape>.x<repeat>{{.<unpack>}}.b32 [address: tmem]{split}, {{value: b32}}",
        {"value": _registers},
        _wrong_registers,
        shape=shape,
        repeat=_REPEATS,
        unpack="unpack::16b",
    )


LD = _ld(_WHOLE)
LD_HALVES = _ld(_HALVES, _SPLIT)
LD_RED = _ld_red({"32x32b": "32x32b"})
LD_RED_HALVES = _ld_red(_HALVES, _SPLIT)
ST = _st(_WHOLE)
ST_HALVES = _st(_HALVES, _SPLIT)
