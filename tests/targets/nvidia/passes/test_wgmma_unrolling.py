"""Which loops of products are unrolled, and what of their turns is computed beforehand."""

from __future__ import annotations

import pytest
from ir_testing import after

from kiln.targets.nvidia.passes.wgmma_unrolling import unroll_wgmma

PRODUCT = (
    '"cute_nvgpu.wgmma"(%d, %a, %b, %f) {n = 8 : i32, k = 16 : i32, a_type = "f16", b_type = "f16", a_major = "k", b_major = "k"}'
    " : (R<f32>, i64, i64, i1) -> ()"
)
BODY = """
%f = arith.cmpi ne, %i, %zero : i32
%half = arith.shrui %i, %one : i32
%far = arith.muli %half, %step : i32
%wide = arith.extui %far : i32 to i64
%a = arith.addi %w, %wide : i64
%b = arith.addi %before, %wide : i64
"""


def unrolled(upper: str = "%three", body: str = BODY + PRODUCT, asked: str = "{cute.unroll_full}") -> list[str]:
    text = f"""
    func.func @f(%w: i64, %n: i32, %x: f32) -> i64 {{
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %three = arith.constant 3 : i32
      %many = arith.constant 100 : i32
      %step = arith.constant 64 : i32
      %d = "cute.alloc_rmem"() {{count = 4 : i64}} : () -> R<f32>
      %r = scf.for %i = %zero to {upper} step %one iter_args(%before = %w) -> (i64) : i32 {{
        {body}
        scf.yield %b : i64
      }} {asked}
      return %r : i64
    }}"""
    return [line.strip() for line in after(text, unroll_wgmma).splitlines()]


def test_turns_follow_each_other():
    lines = unrolled()
    assert not any("scf." in line for line in lines)
    products = [line for line in lines if "cute_nvgpu.wgmma" in line]
    assert len(products) == 3
    # what is computed of the counter is constants: two sums of each turn are left
    assert not any(name in line for line in lines for name in ("cmpi", "shrui", "muli", "extui"))
    assert sum("arith.addi" in line for line in lines) == 6
    flags = [line.split(")")[0].split(", ")[-1] for line in products]
    made = {line.split(" = ")[0]: line for line in lines if "arith.constant" in line}
    assert [made[flag].split()[-1] for flag in flags] == ["false", "true", "true"]


def test_values_are_carried_from_turn_to_turn():
    lines = unrolled()
    sums = [line.split() for line in lines if "arith.addi" in line]
    operands = [words[3].rstrip(",") for words in sums]
    second = operands[1::2]
    assert second[0].startswith("%arg") and second[1:] == [sums[1][0], sums[3][0]]
    assert f"return {sums[5][0]} : i64" in lines
    # 64 for the last turn alone
    last = next(line for line in lines if line.startswith(f"{sums[4][4]} ="))
    assert last.split()[3] == "64"


@pytest.mark.parametrize(
    "options",
    [
        {"upper": "%n"},
        {"upper": "%many"},
        {"asked": ""},
        {"body": BODY + '"cute_nvgpu.wgmma_commit"() : () -> ()\n' + PRODUCT},
        {"body": BODY + '"cute.store"(%x, %d, %zero) : (f32, R<f32>, i32) -> ()\n' + PRODUCT},
        {"body": BODY},
    ],
    ids=["unknown", "long", "not asked", "groups", "writes", "no products"],
)
def test_other_loops_stay(options: dict[str, str]):
    assert sum("scf.for" in line for line in unrolled(**options)) == 1
