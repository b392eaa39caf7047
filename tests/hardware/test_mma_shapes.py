"""The table of MMA instructions: ptxas takes what it lists from the architecture on that it names, and the language shows the same."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.base_dsl.typing import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32
from kiln.cute.nvgpu import warp
from kiln.dialects.nvgpu import definitions
from kiln.hardware import mma_shapes, toolchain
from kiln.hardware.mma_shapes import BITS, MMA_ROWS

PTXAS = toolchain.find("ptxas")
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="there is no ptxas")

WARP = [row for row in MMA_ROWS if row.instruction == "mma.sync"]
WARP_GROUP = [row for row in MMA_ROWS if row.instruction == "wgmma"]
CASES = [(row, shape, sums) for row in WARP for shape in row.shapes for sums in row.accumulators]


def _registers(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{n}" for n in range(count)) + "}"


def instruction(row: mma_shapes.MmaRow, shape: mma_shapes.Shape, sums: str) -> str:
    """A product of registers that nobody set, in a block of its own."""
    m, n, k = shape
    a, b = row.inputs[0], row.inputs[-1]
    wide = 64 if a == "f64" else 32
    held = {"a": m * k * BITS[a] // 32 // wide, "b": k * n * BITS[b] // 32 // wide}
    held["c"] = held["d"] = m * n // 32 // (2 if sums == "f16" else 1)
    kinds = {"a": f"b{wide}", "b": f"b{wide}", "c": {"f16": "b32"}.get(sums, sums), "d": {"f16": "b32"}.get(sums, sums)}
    if a == "f64":
        kinds["a"] = kinds["b"] = "f64"
    names = [part.partition(".")[0] for part in (a, b)]
    how = f".{a.partition('.')[2]}.popc" if a.startswith("b1") else ""
    registers = " ".join(f".reg .{kinds[x]} %{x}<{held[x]}>;" for x in "abcd")
    operands = ", ".join(_registers(x, held[x]) for x in "dabc")
    return (
        f"{{ {registers} mma.sync.aligned.m{m}n{n}k{k}.row.col.{sums}.{names[0]}.{names[1]}.{sums}{how} {operands}; }}"
    )


def warp_group_instruction(row: mma_shapes.MmaRow, shape: mma_shapes.Shape, sums: str) -> str:
    """A product of a warpgroup, of descriptors that nobody set."""
    m, n, k = shape
    held, kind = (n // 4, "b32") if sums == "f16" else (n // 2, sums)
    numbers = {"f16": ", 1, 1, 0, 0", "bf16": ", 1, 1, 0, 0", "s8": ""}.get(row.inputs[0], ", 1, 1")
    return (
        f"{{ .reg .{kind} %d<{held}>; .reg .b64 %a, %b; .reg .pred %p; wgmma.mma_async.sync.aligned.m{m}n{n}k{k}"
        f".{sums}.{row.inputs[0]}.{row.inputs[-1]} {_registers('d', held)}, %a, %b, %p{numbers}; }}"
    )


def accepted(architecture: int | str, code: str) -> bool:
    assert PTXAS is not None
    text = f".version 8.7\n.target sm_{architecture}\n.address_size 64\n.visible .entry k() {{ {code} ret; }}"
    words = [str(PTXAS.path), "-arch", f"sm_{architecture}", "-o", "/dev/null", "/dev/stdin"]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False).returncode == 0


@needs_ptxas
@pytest.mark.parametrize("architecture", sorted({row.feature.since for row in WARP}))
def test_an_architecture_has_the_products_up_to_it(architecture):
    code = "\n".join(instruction(*case) for case in CASES if case[0].feature.since <= architecture)
    assert accepted(architecture, code)


@needs_ptxas
@pytest.mark.parametrize("row", WARP_GROUP, ids=lambda row: row.inputs[0])
def test_products_of_warp_groups(row):
    cases = [warp_group_instruction(row, shape, sums) for shape in row.shapes for sums in row.accumulators]
    assert accepted("90a", "\n".join(cases))
    assert not accepted("90", cases[0])


def test_a_refusal_lists_the_shapes_of_warp_groups_in_short():
    for element, sums, listed in (
        ("f16", "f32", "m64, n8 to n256 in steps of 8, k16; accumulators: f32, f16"),
        ("u8", "s32", "m64, n8, n16, n24, n32 to n256 in steps of 16, k32; accumulators: s32"),
    ):
        rule = mma_shapes.refusal("wgmma", (64, 12, 16), element, element, sums)
        assert rule.endswith(f"(shapes of {element}: {listed})")


BEFORE = {80: 75, 89: 80, 90: 89}


@needs_ptxas
@pytest.mark.parametrize("row", [row for row in WARP if row.feature.since in BEFORE], ids=lambda row: row.feature.what)
def test_the_architecture_before_has_none_of_them(row):
    for shape in row.shapes:
        assert not accepted(BEFORE[row.feature.since], instruction(row, shape, row.accumulators[0]))


def test_what_is_not_there():
    assert mma_shapes.refusal("mma.sync", (16, 8, 16), "f16", "f16", "f32") == ""
    assert mma_shapes.refusal("mma.sync", (16, 8, 32), "f16", "f16", "f32") == (
        "there is no mma.sync m16n8k32 of f16 and f16 with accumulators in f32 "
        "(shapes of f16: m16n8k8, m16n8k16; accumulators: f32, f16)"
    )
    assert "shapes of i3: none; accumulators: none" in mma_shapes.refusal("mma.sync", (16, 8, 32), "i3", "i3", "f32")
    assert mma_shapes.find("mma.sync", (16, 8, 32), "s8", "u8", "s32") is not None
    assert mma_shapes.find("mma.sync", (16, 8, 32), "s8", "s4", "s32") is None


OPERATIONS = {
    warp.MmaF16BF16Op: "f16", warp.MmaTF32Op: "tf32", warp.MmaI8Op: "s8", warp.MmaF64Op: "f64", warp.MmaFP8Op: "e4m3",
}  # fmt: skip


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.__name__)
def test_the_docs_list_the_shapes(op):
    page = (Path(__file__).parents[2] / "docs" / "tiles.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{op.__name__}("))
    listed = [tuple(map(int, found)) for found in re.findall(r"\((\d+), (\d+), (\d+)\)", row)]
    assert sorted(listed) == mma_shapes.shapes("mma.sync", OPERATIONS[op])


def test_the_language_has_what_the_table_has():
    assert warp.MmaFP8Op(Float8E4M3FN, Float16, (16, 8, 16), b_dtype=Float8E5M2).shape_mnk == (16, 8, 16)
    with pytest.raises(DSLUserCodeTypeError, match="Float8E4M3FN with Float32, Float8E4M3FN with Float16"):
        warp.MmaFP8Op(Float8E4M3FN, BFloat16)
    with pytest.raises(DSLUserCodeTypeError, match=r"the shapes \(M, N, K\) are \(16, 8, 16\), \(16, 8, 32\)"):
        warp.MmaFP8Op(Float8E4M3FN, Float32, (16, 8, 8))


@pytest.mark.parametrize(
    ("shape", "bits"), sorted({(shape, BITS[row.inputs[0]]) for row, shape, _ in CASES if BITS[row.inputs[0]] >= 8})
)
def test_fragments_of_the_language_are_those_of_the_definition(shape, bits):
    m, n, k = shape
    a, b, c = warp.operand_layout(m, k, bits), warp.operand_layout(n, k, bits), warp.accumulator_layout(m)
    for lane in range(32):
        for i, (r, column) in enumerate(definitions.a_places(m, k, bits, lane)):
            assert a((lane, i)) == r + m * column
        for i, (r, column) in enumerate(definitions.b_places(k, bits, lane)):
            assert b((lane, i)) == column + n * r
        for i, (r, column) in enumerate(definitions.c_places(m, lane)):
            assert c((lane, i)) == r + m * column


def test_rows_have_no_scale_factors_and_one_cta_unless_they_say_so():
    assert {(row.kind, row.scale_type, row.scale_vector, row.cta_group) for row in MMA_ROWS} == {(None, None, None, 1)}
    assert mma_shapes.find("mma.sync", (16, 8, 32), "e4m3", "e4m3", "f32", scale_type="ue8m0") is None
    assert mma_shapes.find("wgmma", (64, 8, 16), "f16", "f16", "f32", cta_group=2) is None
    assert {BITS[name] for name in ("e2m1", "e3m2", "e2m3")} == {4, 6}
