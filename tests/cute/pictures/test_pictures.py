"""Pictures of tensor maps and of operands in shared memory: what stands in them is what copies and tensor cores do."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest
from tracing_only import traced

from kiln import Float4E2M1FN, Float8E4M3FN, Float16, Float32, Int4, Uint8, cute
from kiln.cute.layout import LayoutError, make_layout
from kiln.cute.layout.layout_text import parse_layout
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.cute.pictures.operand import operand_svg
from kiln.cute.pictures.tensor_map import tile_layout, tma_svg
from kiln.cute.pictures.tensor_memory import accumulator_svg, mma_svg
from kiln.utils import LayoutEnum, sm90, sm100
from kiln.workbench.main import main as kiln

SVG = "{http://www.w3.org/2000/svg}"


def tips(picture: str, pattern: str) -> list[tuple[int, ...]]:
    """The numbers in what cells say when they are pointed at."""
    said = [title.text or "" for title in ElementTree.fromstring(picture).iter(SVG + "title")]
    return [tuple(int(n) for n in found.groups()) for text in said if (found := re.fullmatch(pattern, text))]


def texts(picture: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(picture).iter(SVG + "text")]


def owners(picture: str) -> dict[tuple[int, int], tuple[int, int]]:
    """(instruction, block) of every element of a tile."""
    block = r"instruction (\d+) of block (\d+): rows (\d+) to (\d+), columns (\d+) to (\d+)"
    parts = tips(picture, block) or [
        (i, 0, *rest) for i, *rest in tips(picture, r"instruction (\d+): rows (\d+) to (\d+), columns (\d+) to (\d+)")
    ]
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for instruction, of, top, bottom, left, right in parts:
        for i in range(top, bottom + 1):
            for j in range(left, right + 1):
                assert (i, j) not in found
                found[i, j] = (instruction, of)
    return found


def pieces(picture: str) -> dict[tuple[int, int], int]:
    """The byte in shared memory of each (row, piece) of a box."""
    cells = tips(picture, r"row (\d+), piece (\d+) of the box: byte \d+ without swizzle, byte (\d+) with it")
    return {(row, piece): byte for row, piece, byte in cells}


@pytest.mark.parametrize(
    ("tensor", "tile", "swizzle", "blocks", "box"),
    [
        ("(512,256):(256,1)", (128, 128), None, 1, "64 x 128, 16384 bytes, swizzle 128b"),
        ("(512,256):(1,512)", (128, 32), "64b", 2, "32 x 16, 1024 bytes, swizzle 64b"),
        ("(512,256):(256,1)", (64, 64), "32b", 4, "16 x 16, 512 bytes, swizzle 32b"),
        ("(512,256):(256,1)", (64, 64), "none", 1, "64 x 64, 8192 bytes, swizzle none"),
        ("((64,8),256):((256,16384),1)", (64, 128), "128b", 1, "64 x 64 x 1, 8192 bytes, swizzle 128b"),
    ],
)
def test_boxes_of_a_tile(tensor: str, tile: tuple[int, int], swizzle: str | None, blocks: int, box: str) -> None:
    layout: Any = parse_layout(tensor)
    smem = tile_layout(layout, Float16, tile, swizzle)
    picture = tma_svg(layout, Float16, smem, tile, num_multicast=blocks)
    assert f"box      {box}" in texts(picture)
    bytes_ = int(box.split(", ")[1].split()[0])
    found = owners(picture)
    plain = getattr(smem, "outer", smem)
    # what an instruction fills follows in shared memory on what the one before it fills, and block on block in it
    for (i, j), owner in found.items():
        assert divmod(plain((i, j)) * 2 // bytes_, blocks) == owner
    assert len(found) == tile[0] * tile[1]


@pytest.mark.parametrize(("swizzle", "chunks"), [("128b", 8), ("64b", 4), ("32b", 2)])
def test_a_swizzle_moves_pieces_through_the_banks(swizzle: str, chunks: int) -> None:
    layout = make_layout((256, 256), stride=(256, 1))
    tile = (64, 8 * chunks)
    picture = tma_svg(layout, Float16, tile_layout(layout, Float16, tile, swizzle), tile)
    found = pieces(picture)
    assert len(found) >= 64
    for (row, piece), byte in found.items():  # of an address bits 4 to 6 are changed by bits 7 to 9
        line = row * chunks // 8
        assert byte == 128 * line + 16 * ((row * chunks + piece) % 8 ^ line % chunks)
    assert {found[row, 0] % 128 for row in range(8)} == set(range(0, 128, 16))
    assert "outlined: piece 0 of 8 rows, each in its own banks: no conflict" in texts(picture)


def test_without_swizzle_rows_meet_in_a_bank() -> None:
    layout = make_layout((256, 64), stride=(64, 1))
    picture = tma_svg(layout, Float16, tile_layout(layout, Float16, (64, 64), "none"), (64, 64))
    assert {byte % 128 for (_, piece), byte in pieces(picture).items() if piece == 0} == {0}
    assert "outlined: piece 0 of 8 rows, 8 of them in the same banks: a conflict" in texts(picture)


def test_tensors_of_other_ranks_and_types() -> None:
    bytes_ = tma_svg(make_layout(1000), Uint8, make_layout((256,)), 256)
    assert "box      256, 256 bytes, swizzle none" in texts(bytes_)
    assert "never written" in texts(bytes_)  # 1000 elements are no whole tiles
    three = make_layout((100, 64, 8), stride=(512, 8, 1))
    shown = texts(tma_svg(three, Float32, tile_layout(three, Float32, (4, 16, 8)), (4, 16, 8)))
    assert "         mode 2: mode 0 of the tensor, a box takes 4, 2048 bytes apart" in shown
    as_bytes = tma_svg(three, Float32, tile_layout(three, Float32, (4, 16, 8)), (4, 16, 8), internal_type=Uint8)
    assert "box      32 x 16 x 4 of u8, 2048 bytes, swizzle 32b" in texts(as_bytes)


def test_an_atom_in_a_program() -> None:
    staged = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (128, 128, 128), Float16, 3)
    smem = cute.slice_(staged, (None, None, 0))
    k = OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, k, k, Float32, (2, 1, 1), (64, 64))
    shown: dict[str, Any] = {}

    @cute.kernel
    def kernel(load: cpasync.TmaInfo):
        shown["in the kernel"] = load._repr_svg_()

    @cute.jit
    def launch(x: cute.Tensor):
        op = cpasync.CopyBulkTensorTileG2SMulticastOp()
        load = cpasync.make_tiled_tma_atom(op, x, smem, (128, 128), num_multicast=2)
        parts = make_layout(((64, 16), 1, 4), stride=((64, 1), 0, 16))  # as an MMA takes them
        operand = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, parts)
        shown["operand"] = cpasync.make_tiled_tma_atom_A(
            cpasync.CopyBulkTensorTileG2SOp(), x, operand, (128, 64, 64), mma
        )._repr_svg_()
        shown["info"], shown["atom"] = load._repr_svg_(), load.atom._repr_svg_()
        kernel(load).launch(grid=1, block=32)

    x = cute.runtime.from_dlpack(np.zeros((512, 256), np.float16), assumed_align=16)
    traced(launch, x.mark_layout_dynamic(leading_dim=1))
    static = tma_svg(make_layout((512, 256), stride=(256, 1)), Float16, smem, (128, 128), num_multicast=2)
    assert owners(shown["info"]) == owners(shown["in the kernel"]) == owners(static)
    assert pieces(shown["info"]) == pieces(shown["atom"]) == pieces(static)
    assert "tensor (?,?)" in texts(shown["info"])
    assert owners(shown["operand"]) == {(i, j): (0, 0) for i in range(64) for j in range(64)}
    assert not owners(shown["atom"]), "an atom by itself does not know its tile"


# Operands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "dtype", "major", "rows", "says", "arrows"),
    [
        ("S<3,4,3> o 0 o ((8,16),64):((64,512),1)", Float16, "K", 64, "128b, stride offset (SBO) 1024 bytes; the leading "
         "offset (LBO) is not read", {"SBO 1024"}),
        ("S<3,4,3> o 0 o ((64,2),(8,8)):((1,4096),(64,512))", Float16, "MN", 128, "128b, stride offset (SBO) 1024 bytes, "
         "leading offset (LBO) 8192 bytes", {"SBO 1024", "LBO 8192"}),
        ("((8,8),(8,8)):((8,512),(1,64))", Float16, "K", 64, "none, stride offset (SBO) 1024 bytes, leading offset (LBO) 128 "
         "bytes", {"SBO 1024", "LBO 128"}),
        ("S<1,4,3> o 0 o (64,32):(32,1)", Float8E4M3FN, OperandMajorMode.K, 64, "32b, stride offset (SBO) 256 bytes; the "
         "leading offset (LBO) is not read", {"SBO 256"}),
    ],
)  # fmt: skip
def test_operands(layout: str, dtype: Any, major: Any, rows: int, says: str, arrows: set[str]) -> None:
    smem: Any = parse_layout(layout)
    picture = operand_svg(smem, dtype, major, rows=rows)
    shown = texts(picture)
    assert f"descriptor  swizzle {says}" in shown
    assert {text for text in shown if text[:3] in ("SBO", "LBO")} == arrows
    # core matrices begin where the layout says, and pieces lie where its swizzle moves them
    plain, width = getattr(smem, "outer", smem), dtype.width // 8
    k_major = major in ("K", OperandMajorMode.K)

    def byte(line: int, piece: int) -> int:
        along = piece * 16 // width
        return plain((line, along) if k_major else (along, line)) * width

    cores = tips(picture, r"core matrix \((\d+),(\d+)\) begins at byte (\d+) without swizzle")
    assert cores and all(at == byte(8 * i, j) for i, j, at in cores)
    cells = tips(picture, r"line (\d) of core matrix \((\d+), (\d+)\): byte (\d+) without swizzle, byte (\d+) with it")
    assert len(cells) >= 64
    for line, i, j, at, moved in cells:
        assert at == byte(8 * i + line, j)
        assert moved == (smem.inner(at) if plain is not smem else at)


def test_what_threads_of_a_warp_group_hold(tmp_path: Any) -> None:
    k = OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, k, k, Float32, (1, 1, 1), (64, 64))
    shown = texts(mma._repr_svg_() or "")
    assert "C (64,64), columns 0 to 31; A and B in shared memory" in shown
    assert shown.count("T127") == 16 and "V15" in shown and "V16" not in shown
    source = cute.nvgpu.warpgroup.OperandSource.RMEM
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, k, k, Float32, (1, 1, 1), (64, 16), source)
    shown = texts(mma._repr_svg_() or "")
    assert {"A (64,16)", "C (64,16); B in shared memory"} <= set(shown)


# Tensor memory ----------------------------------------------------------------------------------

BLOCK = r"CTA (\d+), lanes (\d+) to (\d+), columns (\d+) to (\d+): {} (\d+) to (\d+), {} (\d+) to (\d+)"


def accumulator_place(m: int, n: int, ctas: int, ws: bool, row: int, column: int) -> tuple[int, int, int]:
    """CTA, lane and column of an element, as the figures of the PTX manual show them."""
    rows = m // ctas
    cta, lane = row // rows, row % rows
    if ws and m < 128:
        span = n * rows // 128
        return cta, lane + rows * (column // span), column % span
    if ctas == 2 and rows == 64:
        return cta, lane + 64 * (column >= n // 2), column % (n // 2)
    return cta, (lane % 16 + 32 * (lane // 16) if rows == 64 else lane), column


@pytest.mark.parametrize(
    ("m", "n", "ctas", "ws", "letter"),
    [
        (256, 256, 2, False, "A"), (128, 128, 2, False, "B"), (128, 40, 1, False, "D"), (64, 64, 1, True, "E"),
        (64, 64, 1, False, "F"), (32, 128, 1, True, "G"),
    ],
)  # fmt: skip
def test_accumulators(m: int, n: int, ctas: int, ws: bool, letter: str) -> None:
    picture = accumulator_svg(m, n, ctas, ws=ws)
    assert any(text.startswith(f"D   layout {letter} of PTX") for text in texts(picture))
    held = {}
    for cta, top, bottom, left, right, *ends in tips(picture, BLOCK.format("m", "n")):
        assert (bottom - top + 1, right - left) == (16, ends[3] - ends[2])
        for row in (ends[0], ends[1]):
            for column in (ends[2], ends[3]):
                place = accumulator_place(m, n, ctas, ws, row, column)
                assert place[0] == cta and top <= place[1] <= bottom and left <= place[2] <= right
        for row in range(ends[0], ends[1] + 1):
            for column in range(ends[2], ends[3] + 1):
                assert held.setdefault((row, column), cta) == cta
    assert len(held) == m * n


def test_scale_factors_and_operands_in_tensor_memory() -> None:
    k, one = OperandMajorMode.K, tcgen05.CtaGroup.ONE
    mma = sm100.make_blockscaled_trivial_tiled_mma(Float4E2M1FN, k, k, Float8E4M3FN, 16, one, (128, 192))
    picture = mma_svg(mma)
    assert mma._repr_svg_() == picture
    for letter, rows in (("m", 128), ("n", 192)):
        blocks = tips(picture, BLOCK.format(letter, "byte"))
        assert len(blocks) == 4 * rows // 32, "each warp's lanes have a copy"
        for _, top, bottom, left, right, first, last, low, high in blocks:
            assert bottom - top == last - first == 31 and left == right == first // 32 and (low, high) == (0, 3)
    chunk = r"bytes (\d+) to (\d+): 4 factors each of rows (\d+), (\d+), (\d+), (\d+)"
    assert tips(picture, chunk) == [(16 * j, 16 * j + 15, j, j + 32, j + 64, j + 96) for j in range(32)]

    mma = sm100.make_trivial_tiled_mma(Float16, k, k, Float32, one, (128, 64), tcgen05.OperandSource.TMEM)
    picture = mma_svg(mma)
    assert "A   from tensor memory; B   from shared memory" in texts(picture)
    blocks = tips(picture, BLOCK.format("m", "k"))
    assert len(blocks) == 8 * 8 and all((b[3], b[7], b[8]) == (b[4], 2 * b[3], 2 * b[3] + 1) for b in blocks)

    mma = sm100.make_blockscaled_trivial_tiled_mma(
        Float4E2M1FN, k, k, Float8E4M3FN, 16, tcgen05.CtaGroup.TWO, (128, 128)
    )
    halves = {(block[1] // 64, block[5] // 64) for block in tips(mma_svg(mma), BLOCK.format("n", "byte"))}
    assert halves == {(0, 0), (1, 1)}, "a pair with 64 rows each has halves of N in halves of the lanes"


# Bad input and the command ----------------------------------------------------------------------


ROWS = make_layout((512, 256), stride=(256, 1))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: tma_svg(parse_layout("S<3,4,3> o 0 o (8,64):(64,1)"), Float16, ROWS, (8, 64)), "without swizzle"),
        (lambda: tile_layout(ROWS, Float16, (0, 64)), "an extent from 1 on"),
        (lambda: tile_layout(ROWS, Float16, (64, 64, 2)), "an extent from 1 on"),
        (lambda: tile_layout(ROWS, Float16, (64, 96), "128b"), "no multiple of the 128 bytes"),
        (lambda: tile_layout(ROWS, "f16", (64, 64)), "a numeric type such as Float16"),
        (lambda: tile_layout(ROWS, Float16, (64, 64), "256b"), "one of none, 32b, 64b, 128b"),
        (lambda: tile_layout(make_layout((8, 8), stride=(16, 2)), Float16, (8, 8)), "the mode of stride 1"),
        (lambda: tma_svg(ROWS, Float16, ROWS, (64, 64), num_multicast=0), "from 1 on"),
        (lambda: operand_svg(parse_layout("(64,64):(64,1)"), Float16, "K"), "the tensor cores cannot read"),
        (lambda: operand_svg(parse_layout("S<3,4,3> o 0 o (64,64):(64,1)"), Float16, "N"), "K-major or MN-major"),
        (lambda: operand_svg(parse_layout("S<3,3,3> o 0 o (64,64):(64,1)"), Float16, "K"), "S<3,3,3>"),
        (lambda: operand_svg(parse_layout("S<3,4,3> o 0 o (64,64):(64,1)"), Float16, "K", rows=48), "no multiple"),
        (lambda: operand_svg(parse_layout("S<3,4,3> o 0 o (64,64):(64,1)"), Int4, "K"), "whole bytes"),
        (lambda: operand_svg(parse_layout("64:1"), Float16, "K"), "(MN, K, ...)"),
        (lambda: accumulator_svg(96, 64), "m=96"),
        (lambda: accumulator_svg(128, 260), "8 to 256 columns"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call: Any, why: str) -> None:
    with pytest.raises(LayoutError, match=re.escape(why)):
        call()


def test_the_command(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "map.svg"
    assert kiln(["draw", "(512,256):(256,1)", "--tma", "(64,32)", "--title", "A & B", "-o", str(file)]) == 0
    assert texts(file.read_text())[0] == "A & B" and "swizzle 64b" in file.read_text()
    smem = ["--smem", "S<3,4,3> o 0 o (64,32):(32,1)", "--dtype", "Float32", "--multicast", "2"]
    assert kiln(["draw", "(512,256):(256,1)", "--tma", "(64,32)", *smem, "-o", str(file)]) == 0
    assert "box      32 x 32, 4096 bytes, swizzle 128b" in texts(file.read_text())
    atom = "warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.MN_SW128, Float16)"
    whole = f"tile_to_shape({atom}, (64, 64), (0, 1))"
    assert kiln(["draw", "-e", whole, "--operand", "MN", "-o", str(file)]) == 0
    assert "Operand of a WGMMA, MN-major, swizzle 128b" in texts(file.read_text())
    k = "nvgpu.OperandMajorMode.K"
    mma = f"utils.sm100.make_trivial_tiled_mma(Float16, {k}, {k}, Float32, nvgpu.tcgen05.CtaGroup.TWO, (256, 128))"
    assert kiln(["draw", "-e", mma, "-o", str(file)]) == 0
    assert texts(file.read_text())[0] == "MmaF16BF16Op (256,128,16), a pair of CTAs"
    capsys.readouterr()
    for arguments, why in (
        (["-e", mma, "-o", "mma.tex"], "pictures of tensor memory are SVG"),
        (["(4096,514):(514,1)", "--tma", "(64,514)"], "a box has at most 256 elements in each mode"),
        (["(512,256):(256,1)", "--tma", "(64,32)", "--dtype", "Half"], "name 'Half'"),
        (["(512,256):(256,1)", "--tma", "(64,32)", "-o", "map.tex"], "are SVG"),
    ):
        assert kiln(["draw", *arguments]) == 2
        said = capsys.readouterr().err
        assert why in said and ".py" not in said
    with pytest.raises(SystemExit):
        kiln(["draw", "(512,256):(256,1)", "--swizzle", "64b"])
    assert "belong to --tma" in capsys.readouterr().err
