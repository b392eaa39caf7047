"""Places of operands in tensor memory, and descriptors: properties, and facts of the PTX manual."""

from __future__ import annotations

import collections
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.dialects.nvgpu import tcgen05_definitions as definitions
from kiln.dialects.nvgpu import tcgen05_descriptors as descriptors
from kiln.dialects.nvgpu import tensor_memory as tmem
from kiln.hardware import mma_shapes

ACCUMULATORS = [
    (256, 2, {}, "A"), (128, 2, {}, "B"), (128, 2, {"sparse": True}, "C"), (128, 1, {}, "D"), (128, 1, {"ws": True}, "D"),
    (64, 1, {"ws": True}, "E"), (64, 1, {}, "F"), (32, 1, {"ws": True}, "G"),
]  # fmt: skip


@pytest.mark.quick(12)
@pytest.mark.parametrize(("m", "cta_group", "options", "letter"), ACCUMULATORS)
@pytest.mark.parametrize("n", [64, 128, 256])
def test_each_element_of_an_accumulator_has_a_cell_of_its_own(m, cta_group, options, letter, n):
    assert tmem.accumulator_layout(m, cta_group, **options) == letter
    cells = {tmem.accumulator_cell(row, column, m, n, cta_group, **options) for row in range(m) for column in range(n)}
    assert len(cells) == m * n
    assert {cell.cta for cell in cells} == set(range(cta_group))
    assert {cell.column for cell in cells} == set(range(tmem.accumulator_columns(m, n, cta_group, **options)))
    lanes = {cell.lane for cell in cells}
    assert lanes == ({lane for lane in range(128) if lane % 32 < 16} if letter in "CF" else set(range(128)))


def test_cells_of_accumulators_in_each_layout():
    cell, Cell = tmem.accumulator_cell, tmem.Cell
    assert cell(100, 7, 128, 64) == Cell(100, 7)
    assert cell(200, 7, 256, 64, 2) == Cell(72, 7, 1)
    assert cell(17, 7, 64, 64) == Cell(33, 7)
    assert cell(70, 40, 128, 64, 2) == Cell(6 + 64, 8, 1)
    assert cell(70, 40, 128, 64, 2, sparse=True) == Cell(6, 40, 1)
    assert cell(5, 40, 64, 64, ws=True) == Cell(5 + 64, 8)
    assert cell(5, 50, 32, 64, ws=True) == Cell(5 + 96, 2)
    with pytest.raises(ValueError, match="there is no tcgen05.mma with m=32 and cta_group=1"):
        cell(0, 0, 32, 64)


@pytest.mark.parametrize(("m", "cta_group", "copies"), [(128, 1, 1), (64, 1, 1), (256, 2, 1), (128, 2, 2)])
@pytest.mark.parametrize(("bits", "k"), [(16, 16), (32, 8), (8, 32), (4, 64)])
def test_a_takes_eight_columns_of_the_lanes_of_d(m, cta_group, copies, bits, k):
    parts = [part for row in range(m) for inner in range(k) for part in tmem.a_parts(row, inner, bits, m, cta_group)]
    assert len(set(parts)) == len(parts) == m * k * copies
    assert {part.column for part in parts} == set(range(8))
    assert {part.lane for part in parts} == {
        tmem.accumulator_cell(row, column, m, 64, cta_group).lane for row in range(m) for column in (0, 63)
    }


def test_scale_factors_are_in_the_lanes_of_all_four_warps():
    parts = [part for row in range(128) for scale in range(4) for part in tmem.scale_parts(row, scale)]
    assert len(set(parts)) == len(parts) == 4 * 128 * 4
    assert {part.column for part in parts} == set(range(4))
    assert tmem.scale_parts(37, 1, 2) == [tmem.Part(lane, 1, 24) for lane in (5, 37, 69, 101)]
    assert tmem.sfb_parts_2x2(64 + 37, 128, 0) == [tmem.Part(lane, 1, 0) for lane in (69, 101)]
    halves = [part for column in range(128) for part in tmem.sfb_parts_2x2(column, 128, 0)]
    assert len(set(halves)) == len(halves) == 256 and {part.column for part in halves} == {0, 1}


ALL_LOADS = [(shape, repeat) for shape in tmem.LD_SHAPES for repeat in tmem.repeats(shape)]


@pytest.mark.parametrize(("shape", "repeat"), ALL_LOADS)
def test_registers_of_a_warp_cover_all_cells_of_a_load(shape, repeat):
    lanes = tmem.LD_SHAPES[shape].lanes
    registers = range(tmem.ld_registers(shape, repeat))
    columns = tmem.ld_columns(shape, repeat) * (2 if shape == "16x32bx2" else 1)
    cells = [tmem.ld_cell(shape, thread, register, repeat) for thread in range(32) for register in registers]
    assert sorted(cells) == [tmem.Cell(lane, column) for lane in range(lanes) for column in range(columns)]
    split = 2 * repeat
    packed = [
        cell for thread in range(32) for register in registers for cell in tmem.packed_ld_cells(shape, thread, register, split)
    ]  # fmt: skip
    assert sorted(packed) == [tmem.Cell(lane, column) for lane in range(lanes) for column in range(2 * columns)]
    assert tmem.ld_columns(shape, repeat, pack=True) == 2 * tmem.ld_columns(shape, repeat)


def test_repetitions_stop_at_128_registers():
    most = {shape: tmem.repeats(shape)[-1] for shape in tmem.LD_SHAPES}
    assert most == {"32x32b": 128, "16x64b": 128, "16x128b": 64, "16x256b": 32, "16x32bx2": 128}
    assert len(ALL_LOADS) == 37
    with pytest.raises(ValueError, match="shape is '8x8b'"):
        tmem.ld_cell("8x8b", 0, 0)


def test_fragments_of_16x256b_are_those_of_mma_sync():
    """Two columns of a lane are a pair of an accumulator of mma.sync: row t / 4, columns 2 (t % 4) and the next."""
    assert [tmem.ld_cell("16x256b", 13, register) for register in range(5)] == [
        tmem.Cell(3, 2), tmem.Cell(3, 3), tmem.Cell(11, 2), tmem.Cell(11, 3), tmem.Cell(3, 10),
    ]  # fmt: skip


@pytest.mark.parametrize("shape", tmem.CP_SHAPES)
def test_rows_of_a_copy_go_to_lanes_of_their_own(shape):
    cells = [cell for _, _, cell in tmem.cp_cells(shape)]
    rows, row_bytes, copies = tmem.CP_SHAPES[shape]
    assert len(set(cells)) == len(cells) == rows * copies * row_bytes // 4
    assert {cell.column for cell in cells} == set(range(8 if "256b" in shape else 4))
    assert {cell.lane for cell in cells} == (set(range(0, 128, 32)) if shape == "4x256b" else set(range(128)))


def test_lanes_of_rows_of_copies():
    assert tmem.cp_lanes("64x128b.warpx2::02_13", 40) == [40, 104]
    assert tmem.cp_lanes("64x128b.warpx2::01_23", 40) == [72, 104]
    assert tmem.cp_lanes("32x128b.warpx4", 5) == [5, 37, 69, 101]
    assert tmem.cp_lanes("4x256b", 3) == [96]
    assert tmem.address(16, 64) == 0x100040


# --- descriptors -----------------------------------------------------------------------------------------------------


def test_instruction_descriptors_are_those_of_known_programs():
    made = descriptors.instruction_descriptor
    assert made("f16", "f16", "f16", "f32", 128, 256) == 0x08400010
    assert made("f16", "f16", "f16", "f32", 128, 128) == 0x08200010
    assert made("f16", "f16", "f16", "f32", 128, 128, a_major="mn", b_major="mn") == 0x08218010
    assert made("f16", "bf16", "bf16", "f32", 128, 64) == 0x08100490
    assert made("f8f6f4", "e4m3", "e4m3", "f16", 128, 128) == 0x08200000
    assert made("f16", "f16", "f16", "f32", 256, 256, cta_group=2) == 0x10400010
    assert made("i8", "s8", "u8", "s32", 64, 8, saturate=True) == 0x04020000 | 1 << 7 | 2 << 4 | 8
    for i in range(4):
        scaled = descriptors.block_scaled_instruction_descriptor
        wanted = 0x08A00280 + i * 0x20000010
        assert scaled("mxf8f6f4", "e2m1", "e4m3", "ue8m0", 128, 128, sfa_id=i, sfb_id=i) == wanted
    assert scaled("mxf4nvf4", "e2m1", "e2m1", "ue4m3", 256, 256, block=16, cta_group=2, k96=True) == 0x90400480


@pytest.mark.parametrize(
    ("words", "arguments", "options"),
    [
        ("kind is mxf4: it is one of f16", ("mxf4", "e2m1", "e2m1", "f32", 128, 128), {}),
        ("a is e4m3: tcgen05.mma of kind::f16", ("f16", "e4m3", "e4m3", "f32", 128, 128), {}),
        ("b is bf16: tcgen05.mma of kind::f16 with A of f16", ("f16", "f16", "bf16", "f32", 128, 128), {}),
        ("acc is f16", ("f16", "bf16", "bf16", "f16", 128, 128), {}),
        ("m is 96", ("f16", "f16", "f16", "f32", 96, 128), {}),
        ("m is 256: .* cta_group::1", ("f16", "f16", "f16", "f32", 256, 128), {}),
        ("m is 64: .* cta_group::2", ("f16", "f16", "f16", "f32", 64, 128), {"cta_group": 2}),
        ("n is 12", ("f16", "f16", "f16", "f32", 128, 12), {}),
        ("n is 24", ("f16", "f16", "f16", "f32", 256, 24), {"cta_group": 2}),
        ("n is 48", ("i8", "s8", "s8", "s32", 256, 48), {"cta_group": 2}),
        ("n is 24: .* MN-major B", ("f8f6f4", "e4m3", "e4m3", "f32", 128, 24), {"b_major": "mn"}),
        ("a_major is row", ("f16", "f16", "f16", "f32", 128, 128), {"a_major": "row"}),
        ("negate_a and negate_b are for floats", ("i8", "s8", "s8", "s32", 128, 128), {"negate_b": True}),
        ("saturate is for kind::i8", ("tf32", "tf32", "tf32", "f32", 128, 128), {"saturate": True}),
    ],
)
def test_fields_of_instruction_descriptors_are_checked(words, arguments, options):
    with pytest.raises(ValueError, match=words):
        descriptors.instruction_descriptor(*arguments, **options)


@pytest.mark.parametrize(
    ("words", "arguments", "options"),
    [
        ("kind is f16: it is one of mxf8f6f4", ("f16", "f16", "f16", "ue8m0", 128, 128), {}),
        ("scale is ue4m3: tcgen05.mma of kind::mxf4 takes ue8m0", ("mxf4", "e2m1", "e2m1", "ue4m3", 128, 128), {}),
        ("vector is 32", ("mxf4nvf4", "e2m1", "e2m1", "ue4m3", 128, 128), {}),
        ("vector is 16", ("mxf8f6f4", "e4m3", "e4m3", "ue8m0", 128, 128), {"block": 16}),
        ("sfb_id is 4", ("mxf4", "e2m1", "e2m1", "ue8m0", 128, 128), {"sfb_id": 4}),
        (
            "b_major is mn: tcgen05.mma of kind::mxf4 takes k only",
            ("mxf4", "e2m1", "e2m1", "ue8m0", 128, 128),
            {"b_major": "mn"},
        ),
        ("k is 96", ("mxf8f6f4", "e4m3", "e4m3", "ue8m0", 128, 128), {"k96": True}),
        ("m is 64", ("mxf8f6f4", "e4m3", "e4m3", "ue8m0", 64, 128), {}),
    ],
)
def test_fields_of_block_scaled_descriptors_are_checked(words, arguments, options):
    with pytest.raises(ValueError, match=words):
        descriptors.block_scaled_instruction_descriptor(*arguments, **options)


@pytest.mark.parametrize("row", mma_shapes.TCGEN05_ROWS)
def test_descriptors_of_all_shapes_can_be_decoded(row):
    ws = row.instruction == "tcgen05.ws"
    for m, n, k in (row.shapes[0], row.shapes[-1]):
        for a, b in itertools.product(row.inputs, repeat=2):
            for accumulator in row.accumulators:
                if row.scale_type is None:
                    idesc = descriptors.instruction_descriptor(
                        row.kind, a, b, accumulator, m, n, cta_group=row.cta_group, ws=ws, sparse=row.sparse
                    )
                else:
                    idesc = descriptors.block_scaled_instruction_descriptor(
                        row.kind,
                        a,
                        b,
                        row.scale_type,
                        m,
                        n,
                        block=row.scale_vector,
                        cta_group=row.cta_group,
                        k96=k == 96,
                    )
                assert 0 <= idesc < 1 << 32
                found = descriptors.decode(row.kind, idesc)
                assert found[:6] == (row.kind, a, b, accumulator, m, n) and found.k == k
                assert (found.a_major, found.b_major, found.scale_type) == ("k", "k", row.scale_type)
                assert found.refusal(row.cta_group, row.scale_vector, ws=ws, sparse=row.sparse) == ""


@pytest.mark.parametrize("sparse_id", [0, 1])
@pytest.mark.parametrize(("kind", "chunks"), [("f16", 8), ("tf32", 8), ("f8f6f4", 16), ("i8", 16)])
@pytest.mark.parametrize(("m", "cta_group"), [(64, 1), (128, 1), (128, 2), (256, 2)])
def test_metadata_of_a_sparse_a_fill_their_cells(kind, chunks, m, cta_group, sparse_id):
    """Each index has 4 bits of its own, in lanes of the warp whose lanes have the row of D."""
    seen = collections.Counter()
    for row in range(m):
        cell = tmem.accumulator_cell(row, 0, m, 8, cta_group, sparse=True)
        for chunk in range(chunks):
            part = tmem.metadata_part(row, chunk, kind, m, cta_group, sparse_id)
            assert (part.cta, part.lane // 16) == (cell.cta, cell.lane // 16) and part.bit % 4 == 0
            seen[part] += 1
    assert set(seen.values()) == {1}
    columns = {sparse_id} if chunks == 8 else {0, 1}
    assert {part.column for part in seen} == columns
    assert len(seen) == len(columns) * len({(part.lane, part.cta) for part in seen}) * 8


def test_metadata_of_rows_in_pairs():
    """The first 16 elements of rows 3 and 11 lie in lane 3, the others in lane 11; bytes of a row are all in its lane."""
    part = tmem.metadata_part
    assert part(3, 2, "f16", 128) == (3, 0, 8, 0) and part(11, 2, "f16", 128) == (3, 0, 24, 0)
    assert part(3, 6, "f16", 128, 1, 1) == (11, 1, 8, 0) and part(11, 6, "tf32", 128, 1, 1) == (11, 1, 24, 0)
    assert part(11, 2, "i8", 128) == (11, 0, 8, 0) and part(139, 9, "f8f6f4", 256, 2) == (11, 1, 4, 1)
    assert part(19, 0, "f16", 64) == (35, 0, 0, 0) and part(83, 0, "f16", 128, 2) == (35, 0, 0, 1)


def test_places_of_a_chunk():
    assert [definitions.chunk_places("f16", index) for index in (0b0100, 0b1110, 0b0110)] == [(0, 1), (2, 3), (2, 1)]
    assert [definitions.chunk_places("tf32", index) for index in (0b0100, 0b1110)] == [(0,), (1,)]
    for kind, index in (("f16", 0), ("i8", 0b0101), ("f8f6f4", 0b0001), ("tf32", 0b1001)):
        with pytest.raises(ValueError, match=rf"chunk of a sparse A of kind::{kind} is 0b{index:04b}"):
            definitions.chunk_places(kind, index)


def test_fields_of_sparse_descriptors():
    made = descriptors.instruction_descriptor("f16", "f16", "f16", "f32", 128, 256, sparse=True, sparse_id=1)
    assert made == 0x08400010 | 1 << 2 | 1 and descriptors.decode("f16", made).k == 32
    wrong = descriptors.wrong_instruction
    assert wrong("f16", made, 1, sparse=True) == ""
    assert "bit 2 is 1: it is 1 for tcgen05.mma.sp" in wrong("f16", made, 1)
    assert "bit 2 is 0: it is 1 for tcgen05.mma.sp" in wrong("f16", 0x08400010, 1, sparse=True)
    assert wrong("f16", made | 3, 1, sparse=True).endswith("whose sparse_id is 3: 0 or 1")
    bytes_ = descriptors.instruction_descriptor("i8", "s8", "s8", "s32", 128, 32, sparse=True)
    assert wrong("i8", bytes_ | 1, 1, sparse=True).endswith("whose sparse_id is 1: 0")
    for kind, options in (
        ("f16", {"sparse_id": 1}),
        ("f16", {"sparse": True, "sparse_id": 2}),
        ("i8", {"sparse": True, "sparse_id": 1}),
    ):
        type_, sums = ("s8", "s32") if kind == "i8" else ("f16", "f32")
        with pytest.raises(ValueError, match=f"sparse_id is {options['sparse_id']}: it is 0, and may be 1"):
            descriptors.instruction_descriptor(kind, type_, type_, sums, 128, 32, **options)


def test_matrix_descriptors():
    made = descriptors.tcgen05_matrix_descriptor
    assert made(0x400, 16, 1024, "128b") == 0x4000404000010040
    assert made(0, 0, 128, "none") == 0x0000400800000000
    codes = {name: made(0, 0, 0, name) >> 61 for name in descriptors.SWIZZLES}
    assert codes == {"none": 0, "128b_32b": 1, "128b": 2, "64b": 4, "32b": 6}
    assert made(0, 2048, 1024, "128b", absolute_leading=True) >> 52 & 1
    with pytest.raises(ValueError, match="leading is 8: a multiple of 16"):
        made(0, 8, 1024, "128b")
    with pytest.raises(ValueError, match="swizzle is '256b'"):
        made(0, 16, 1024, "256b")


@pytest.mark.parametrize(
    ("swizzle", "major", "bits", "leading", "stride", "rows"),
    [
        ("128b", "k", 16, 16, 1024, 64), ("64b", "k", 8, 16, 512, 64), ("32b", "k", 32, 16, 256, 64), ("none", "k", 16, 128, 256, 64),
        ("128b", "mn", 16, 2048, 1024, 128), ("128b_32b", "mn", 32, 1024, 512, 64),
    ],
)  # fmt: skip
def test_elements_of_an_operand_lie_at_addresses_of_their_own(swizzle, major, bits, leading, stride, rows):
    descriptor = descriptors.tcgen05_matrix_descriptor(0, leading, stride, swizzle)
    k = 256 // bits
    found = {
        descriptors.operand_address(descriptor, major, bits, row, inner) for row in range(rows) for inner in range(k)
    }
    assert len(found) == rows * k


@given(st.integers(0, 63), st.integers(0, 15))
def test_a_step_along_k_adds_32_bytes_to_the_address(row, k):
    first = descriptors.tcgen05_matrix_descriptor(1024, 16, 1024, "128b")
    wanted = descriptors.operand_address(first, "k", 16, row, 16 + k)
    assert descriptors.operand_address(first + 2, "k", 16, row, k) == wanted
