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
from kiln.hardware.architectures import Arch
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


def accepted(architecture: int | str, code: str, version: float = 8.7) -> bool:
    assert PTXAS is not None
    text = f".version {version}\n.target sm_{architecture}\n.address_size 64\n.visible .entry k() {{ {code} ret; }}"
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
    a, b, c = warp.mma.operand_layout(m, k, bits), warp.mma.operand_layout(n, k, bits), warp.mma.accumulator_layout(m)
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


TENSOR = "tcgen05"
RIGHT = [
    (TENSOR, "f16", 64, 8, 16, "f16", "f16", "f16"),
    (TENSOR, "f16", 128, 256, 16, "bf16", "bf16", "f32"),
    (TENSOR, "f16", 256, 256, 16, "f16", "f16", "f32", None, None, 2),
    (TENSOR, "tf32", 128, 24, 8, "tf32", "tf32", "f32"),
    (TENSOR, "f8f6f4", 128, 48, 32, "e2m1", "e4m3", "f16", None, None, 2),
    (TENSOR, "i8", 64, 24, 32, "u8", "s8", "s32"),
    (TENSOR, "i8", 256, 96, 32, "u8", "s8", "s32", None, None, 2),
    (TENSOR, "mxf8f6f4", 128, 8, 32, "e3m2", "e5m2", "f32", "ue8m0", 32),
    (TENSOR, "mxf4", 256, 240, 64, "e2m1", "e2m1", "f32", "ue8m0", 32, 2),
    (TENSOR, "mxf4nvf4", 128, 256, 64, "e2m1", "e2m1", "f32", "ue4m3", 16),
    (TENSOR, "mxf4nvf4", 128, 256, 96, "e2m1", "e2m1", "f32", "ue8m0", 16),
    ("tcgen05.ws", "f16", 32, 64, 16, "f16", "f16", "f32"),
    ("mma.sync", "f8f6f4", 16, 8, 32, "e2m3", "e4m3", "f16"),
    ("mma.sync", "mxf8f6f4", 16, 8, 32, "e2m1", "e4m3", "f32", "ue8m0", 32),
    ("mma.sync", "mxf4nvf4", 16, 8, 64, "e2m1", "e2m1", "f32", "ue4m3", 16),
]
WRONG = [
    ((TENSOR, "f4", 128, 64, 64, "e2m1", "e2m1", "f32"),
     "kind is f4: tcgen05.mma takes f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4 or mxf4nvf4"),
    ((TENSOR, "f16", 128, 64, 16, "f16", "f16", "f32", None, None, 4),
     "cta_group is 4: tcgen05.mma of kind::f16 takes 1 or 2"),
    ((TENSOR, "f16", 128, 64, 16, "e4m3", "f16", "f32"), "a is e4m3: tcgen05.mma of kind::f16 takes f16 or bf16"),
    ((TENSOR, "f16", 128, 64, 16, "f16", "bf16", "f32"),
     "b is bf16: tcgen05.mma of kind::f16 with A of f16 takes f16"),
    ((TENSOR, "f16", 128, 64, 16, "bf16", "bf16", "f16"),
     "acc is f16: tcgen05.mma of kind::f16 with A of bf16 takes f32"),
    ((TENSOR, "f16", 128, 64, 16, "f16", "f16", "f32", "ue8m0", 32),
     "scale is ue8m0: tcgen05.mma of kind::f16 takes no scale factors"),
    ((TENSOR, "mxf4", 128, 64, 64, "e2m1", "e2m1", "f32"), "scale is None: tcgen05.mma of kind::mxf4 takes ue8m0"),
    ((TENSOR, "mxf4nvf4", 128, 64, 64, "e2m1", "e2m1", "f32", "ue4m3", 32),
     "vector is 32: tcgen05.mma of kind::mxf4nvf4 with scale factors of ue4m3 takes 16"),
    ((TENSOR, "mxf4", 128, 64, 64, "e2m1", "e2m1", "f32", "ue8m0", 16),
     "vector is 16: tcgen05.mma of kind::mxf4 with scale factors of ue8m0 takes 32"),
    ((TENSOR, "mxf4", 128, 64, 32, "e2m1", "e2m1", "f32", "ue8m0", 32),
     "k is 32: tcgen05.mma of kind::mxf4 with cta_group::1 takes 64 or 96"),
    ((TENSOR, "f16", 256, 64, 16, "f16", "f16", "f32"),
     "m is 256: tcgen05.mma of kind::f16 with cta_group::1 and K = 16 takes 64 or 128"),
    ((TENSOR, "mxf8f6f4", 64, 64, 32, "e4m3", "e4m3", "f32", "ue8m0", 32),
     "m is 64: tcgen05.mma of kind::mxf8f6f4 with cta_group::1 and K = 32 takes 128"),
    ((TENSOR, "mxf4", 128, 64, 96, "e2m1", "e2m1", "f32", "ue8m0", 32, 2),
     "m is 128: tcgen05.mma of kind::mxf4 with cta_group::2 and K = 96 takes 256"),
    ((TENSOR, "f16", 256, 24, 16, "f16", "f16", "f32", None, None, 2),
     "n is 24: tcgen05.mma of kind::f16 with cta_group::2 and M = 256 and K = 16 takes 16 to 256 in steps of 16"),
    ((TENSOR, "i8", 128, 40, 32, "s8", "u8", "s32"),
     "n is 40: tcgen05.mma of kind::i8 with cta_group::1 and M = 128 and K = 32 takes 8, 16, 24, 32 to 256 in steps of 16"),
    (("tcgen05.ws", "f16", 32, 96, 16, "f16", "f16", "f32"),
     "n is 96: tcgen05.mma.ws of kind::f16 with cta_group::1 and M = 32 and K = 16 takes 64, 128 or 256"),
    (("tcgen05.ws", "f16", 32, 64, 16, "f16", "f16", "f32", None, None, 2),
     "cta_group is 2: tcgen05.mma.ws of kind::f16 takes 1"),
    (("mma.sync", "mxf4", 16, 8, 32, "e2m1", "e2m1", "f32", "ue8m0", 32), "k is 32: mma.sync of kind::mxf4 takes 64"),
    (("mma.sync", "i8", 16, 8, 32, "s8", "s8", "s32"),
     "kind is i8: mma.sync takes f8f6f4, mxf8f6f4, mxf4 or mxf4nvf4"),
]  # fmt: skip


@pytest.mark.parametrize("asked", RIGHT, ids=str)
def test_instructions_with_a_kind(asked):
    assert mma_shapes.kind_refusal(*asked) == ""
    row = mma_shapes.find_kind(*asked)
    assert row is not None and row.kind == asked[1] and asked[2:5] in row.shapes


@pytest.mark.parametrize(("asked", "rule"), WRONG, ids=lambda one: one.split(":")[0] if isinstance(one, str) else "")
def test_wrong_instructions_with_a_kind(asked, rule):
    assert mma_shapes.find_kind(*asked) is None
    assert mma_shapes.kind_refusal(*asked) == rule


def test_major_modes_of_instructions_with_a_kind():
    bytes_, fp4 = (TENSOR, "f8f6f4", 128, 24, 32, "e4m3", "e4m3", "f32"), RIGHT[9]
    assert mma_shapes.kind_refusal(*bytes_, a_major="mn") == ""
    assert mma_shapes.kind_refusal(*bytes_, b_major="mn") == (
        "n is 24: tcgen05.mma of kind::f8f6f4 with an MN-major B and cta_group::1 takes multiples of 16"
    )
    assert mma_shapes.kind_refusal(*RIGHT[2], b_major="mn") == ""
    assert mma_shapes.kind_refusal(*fp4, a_major="mn") == "a_major is mn: tcgen05.mma of kind::mxf4nvf4 takes k only"
    assert mma_shapes.kind_refusal(*RIGHT[-1], b_major="mn").startswith("b_major is mn: mma.sync of kind::mxf4nvf4")
    assert mma_shapes.kind_refusal(*fp4, b_major="row") == "b_major is row: it is k or mn"


def test_which_chips_have_an_instruction_with_a_kind():
    def chips(*asked) -> set[int]:
        row = mma_shapes.find_kind(*asked)
        assert row is not None
        return {arch.number for arch in Arch if row.feature.on(arch)}

    assert chips(*RIGHT[0]) == chips(*RIGHT[7]) == {100, 103, 107, 110}
    assert chips(*RIGHT[5]) == {100, 110} and chips(*RIGHT[10]) == {103}
    assert chips(*RIGHT[-1]) == chips(*RIGHT[-3]) == {120, 121}


def test_every_tcgen05_row_reads_32_bytes_of_a_row_of_a():
    """K of an instruction is 256 bits, narrow floats of f8f6f4 in a byte each; 384 with K = 96."""
    for row in mma_shapes.TCGEN05_ROWS:
        for element in row.inputs:
            bits = 8 if row.kind in ("f8f6f4", "mxf8f6f4") else BITS[element]
            stored = 2 if row.sparse else 1  # elements along K for each that is there
            assert {k * bits // stored for _, _, k in row.shapes} in ({256}, {384}), row


def scaled_instruction(row: mma_shapes.MmaRow, sums: str) -> str:
    """A warp MMA with a kind, of registers that nobody set."""
    ((m, n, k),) = row.shapes
    held, kind = (2, "b32") if sums == "f16" else (4, "f32")
    size = f".block_scale.scale_vec::{k // row.scale_vector}X" if row.scale_vector else ""
    scales = ", %s, {%h, %h}, %s, {%h, %h}" if row.scale_vector else ""
    scale_type = f".{row.scale_type}" if row.scale_type else ""
    return (
        f"{{ .reg .{kind} %d<4>; .reg .b32 %a<4>, %b<2>, %s; .reg .b16 %h; mma.sync.aligned.m{m}n{n}k{k}.row.col"
        f".kind::{row.kind}{size}.{sums}.{row.inputs[0]}.{row.inputs[-1]}.{sums}{scale_type} "
        f"{_registers('d', held)}, {_registers('a', 4)}, {_registers('b', 2)}, {_registers('d', held)}{scales}; }}"
    )


@needs_ptxas
@pytest.mark.parametrize("row", mma_shapes.WARP_KIND_ROWS, ids=lambda row: f"{row.kind}-{row.scale_type}")
def test_ptxas_takes_warp_mma_with_a_kind(row):
    version = row.feature.ptx / 10 or 8.7
    if PTXAS is not None and version * 10 > toolchain.newest_ptx_of(PTXAS.version() or "12.0"):
        pytest.skip(f"this ptxas does not take PTX {version}")
    for sums in row.accumulators:
        assert accepted("120a", scaled_instruction(row, sums), version)
        assert not accepted("100a", scaled_instruction(row, sums), version)
