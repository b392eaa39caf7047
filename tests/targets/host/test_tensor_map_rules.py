"""Requests for tensor maps: each rule kept and broken, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest

from kiln.dialects.nvgpu.tma import ELEMENTS, SWIZZLES
from kiln.targets.host import jit, tensor_map_rules
from kiln.targets.host.tensor_maps import Finding, Request, broken_rule, complete

assert jit.load_native  # what compiles native functions
INTERLEAVES = ("none", "16b", "32b")


def request(
    element: str = "f16", sizes: tuple[int, ...] = (64, 8), strides: tuple[int, ...] = (128,), box: tuple[int, ...] = (64, 8), *,
    base: int = 1 << 40, steps: tuple[int, ...] = (), swizzle: str = "none", interleave: str = "none", fill: int = 0,
    corners: tuple[int, ...] = (),
) -> Any:  # fmt: skip
    made: Any = Request()
    made.base, made.rank, made.fill, made.im2col = base, len(sizes), fill, bool(corners)
    made.element, made.swizzle = list(ELEMENTS).index(element), list(SWIZZLES).index(swizzle)
    made.interleave = INTERLEAVES.index(interleave)
    fields = {"sizes": sizes, "strides": strides, "box": box, "element_strides": steps or (1,) * len(sizes)}
    for field, values in fields.items():
        for number, value in enumerate(values[: len(getattr(made, field))]):
            getattr(made, field)[number] = value
    half = len(corners) // 2
    for number, value in enumerate(corners):
        made.corners[number if number < half else 3 + number - half] = value
    return made


def said(made: Any) -> str:
    """The broken rule in words; empty if none is."""
    finding: Any = Finding()
    rule = broken_rule(made, finding)
    if not rule:
        return ""
    assert rule == finding.rule
    message, hint = tensor_map_rules.explained("A", finding.rule, finding.mode, finding.value)
    assert message.startswith("cannot make the tensor map of A: ")
    assert hint
    return f"{message} ({hint})"


CUBE: Any = {"sizes": (64, 8, 4), "strides": (128, 1024), "box": (64, 8, 1)}
PACKED: Any = {"sizes": (256, 8), "strides": (128,), "box": (128, 8)}
IM2COL: Any = {"sizes": (64, 8, 8, 2), "strides": (128, 1024, 8192), "box": (64, 1024), "corners": (-128, -1, 127, 0)}

RIGHT = [
    request(),
    request("u8", (1,), (), (256,)),
    request("f64", (1 << 32, 1, 1, 1, 1), (0, 16, (1 << 40) - 16, 16), (2, 256, 256, 256, 256)),
    request(swizzle="128b"),
    request("f32", box=(16, 1), swizzle="64b"),
    request("u16", box=(16, 1), swizzle="32b"),
    request(steps=(1, 8)),
    request(fill=1),
    request(**CUBE, interleave="16b", swizzle="64b"),
    request(**CUBE, interleave="32b", swizzle="32b"),
    request("16u4_align8b", (66, 8), (48,), (32, 8)),
    request("16u4_align16b", **PACKED, swizzle="128b"),
    request("16u6_align16b", (256, 8), (192,), (128, 8)),
    request(**IM2COL),
]


@pytest.mark.parametrize("made", RIGHT)
def test_what_keeps_all_rules(made: Any) -> None:
    assert said(made) == ""


def test_modes_of_one_element_have_any_stride() -> None:
    """Arrays with such modes often have a stride of one element there."""
    made = request(sizes=(64, 1, 8, 1), strides=(2, 128, 2), box=(64, 1, 8, 1))
    complete(made, bytes(made)[Request.box.offset :])
    assert said(made) == "" and list(made.strides)[:3] == [0, 128, 0]


WRONG = {
    "it has 0 modes (a tensor map has 1 to 5)": request(sizes=(), strides=(), box=()),
    "it has 6 modes": request(sizes=(8,) * 6, strides=(16,) * 5, box=(8,) * 6),
    "it starts at 0x10000000008 (its address is a multiple of 16 bytes)": request(base=(1 << 40) + 8),
    "its address is a multiple of 32 bytes": request(base=(1 << 40) + 16, **CUBE, interleave="32b", swizzle="32b"),
    "mode 1 has the size 0": request(sizes=(64, 0)),
    "mode 0 has the size 4294967297": request(sizes=((1 << 32) + 1, 8)),
    "mode 1 has the size -1": request(sizes=(64, -1)),
    "mode 1 has a stride of 130 bytes (strides are multiples of 16 bytes": request(strides=(130,)),
    "mode 2 has a stride of 1040 bytes": request(
        sizes=(64, 8, 4), strides=(128, 1040), box=(64, 8, 1), interleave="32b", swizzle="32b"
    ),
    "mode 1 has a stride of -128 bytes (strides are not negative": request(strides=(-128,)),
    "mode 1 has a stride of 1099511627776 bytes": request(strides=(1 << 40,)),
    "the box has the size 257 in mode 1": request(box=(64, 257)),
    "the box has the size 0 in mode 0": request(box=(0, 8)),
    "rows of the box have 8 bytes (multiples of 16": request(box=(4, 8)),
    "rows of the box have 128 bytes (at most those of a row of the swizzle, 64)": request(swizzle="64b"),
    "mode 1 has elements taken in steps of 9": request(steps=(1, 9)),
    "mode 1 has elements taken in steps of 0": request(steps=(1, 0)),
    "it has 2 modes and is interleaved": request(interleave="16b"),
    "it is interleaved by 32 bytes, with a swizzle of 0 bytes": request(**CUBE, interleave="32b"),
    "it is filled with NaN and has elements of u8": request("u8", fill=1),
    "mode 0 has the size 65": request("16u4_align8b", (65, 8), (48,), (32, 8)),
    "mode 0 has the size 200": request("16u4_align16b", (200, 8), (128,), (128, 8)),
    "rows of the box have 64 elements (128 where": request("16u6_align16b", (256, 8), (192,), (64, 8)),
    "it has packed elements and a swizzle of 64 bytes": request("16u4_align16b", **PACKED, swizzle="64b"),
    "it has elements of 6 bits and is interleaved by 16 bytes": request(
        "16u6_align16b", (256, 8, 1), (192, 192), (128, 8, 1), interleave="16b"
    ),
    "it has 2 modes (im2col takes 3 to 5)": request(box=(64, 8), corners=(0, 0)),
    "a copy takes 1025 pixels": request(**IM2COL | {"box": (64, 1025)}),
    "a corner of the pixels' box is 128 (from -128 to 128 - 1)": request(**IM2COL | {"corners": (0, 0, 128, 0)}),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_broken_rule_is_named_with_its_number(words: str) -> None:
    assert words in said(WRONG[words])


def test_every_rule_has_a_wrong_request() -> None:
    rules = {broken_rule(made, Finding()) for made in WRONG.values()}
    assert rules == set(range(1, tensor_map_rules.REFUSED))  # the last is for what no rule says
