"""Layouts and tiles for GEMMs of sm_90, against what CuTe DSL 4.8.1 was seen to answer, and against what they promise."""

from __future__ import annotations

import ast
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln import Float8E4M3FN, Float16, Float32, Int8, cute, utils
from kiln.cute.nvgpu import warpgroup
from kiln.utils import LayoutEnum, hopper_helpers, sm90

OBSERVED = json.loads((Path(__file__).parent / "observed_hopper.json").read_text())["helpers"]
ROW, COLUMN = LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


def answer(question: str) -> str:
    """What Kiln says, as it was printed there."""
    name, _, rest = question.partition(" ")
    tile = rest[rest.find("(") : rest.find(")") + 1]
    words = rest.replace(tile, "").split() if tile else rest.split()
    given: list[Any] = [
        LayoutEnum[word]
        if word in LayoutEnum.__members__
        else warpgroup.SmemLayoutAtomKind[word]
        if word in warpgroup.SmemLayoutAtomKind.__members__
        else getattr(kiln, word, None)
        or ast.literal_eval(word)
        for word in words
    ]  # fmt: skip
    if name == "sm90_mma_major_mode":
        return str(given[0].sm90_mma_major_mode())
    if name == "make_smem_layout_atom":
        return str(warpgroup.make_smem_layout_atom(*given))
    if name == "compute_tile_shape_or_override":
        return str(sm90.compute_tile_shape_or_override(ast.literal_eval(tile), *given))
    if name == "make_smem_layout_epi":
        layout, dtype, stages = given
        return str(sm90.make_smem_layout_epi(dtype, layout, ast.literal_eval(tile), stages))
    if name in ("make_smem_layout_a", "make_smem_layout_b"):
        layout, dtype, stages = given
        return str(getattr(sm90, name)(layout, ast.literal_eval(tile), dtype, stages))
    found = getattr(sm90, name)(*given)
    if name == "sm90_get_smem_store_op":
        return " ".join(str(found).split())
    return str(found)


def test_what_was_observed() -> None:
    wrong: list[str] = []

    @cute.jit
    def f():
        for question, there in OBSERVED.items():
            here = answer(question)
            if here != there:
                wrong.append(f"{question}: {here}, there {there}")

    cute.compile(f)
    assert wrong == []
    assert len(OBSERVED) > 100


@pytest.mark.quick(3)
@pytest.mark.parametrize("layout", [ROW, COLUMN])
@pytest.mark.parametrize(("dtype", "tile"), [(Float16, (64, 48)), (Float32, (32, 40)), (Int8, (96, 64))])
def test_operands_fill_their_stages(layout: LayoutEnum, dtype: Any, tile: Any) -> None:
    """Every element of every stage has a place of its own, in pieces of 16 bytes along the contiguous mode."""
    (rows, columns), stages = tile, 3
    for staged in (
        sm90.make_smem_layout_a(layout, (rows, 8, columns), dtype, stages),
        sm90.make_smem_layout_b(layout, (8, rows, columns), dtype, stages),
        sm90.make_smem_layout_epi(dtype, layout, tile, stages),
    ):
        assert [cute.size(staged, mode=[i]) for i in range(3)] == [rows, columns, stages]
        at = {
            place: staged.outer((place[0], place[1], place[2]))
            for place in itertools.product(range(rows), range(columns), range(stages))
        }
        assert sorted(at.values()) == list(range(rows * columns * stages))
        piece = 16 * 8 // dtype.width
        for (row, column, stage), offset in at.items():
            assert offset // (rows * columns) == stage
            along = column if layout is ROW else row
            assert offset % piece == along % piece


def test_another_shape_to_fill() -> None:
    staged = sm90.make_smem_layout_epi(Float16, ROW, (64, 64), 2, (64, 64, 2, 3), smem_order=(0, 1, 2, 3))
    assert [cute.size(staged, mode=[i]) for i in range(4)] == [64, 64, 2, 3]
    assert str(staged.outer) == "((8,8),(64,1),(1,2),(1,3)):((64,512),(1,0),(0,4096),(0,8192))"
    assert staged.outer((0, 0, 1, 2)) == 64 * 64 * 5


def test_tiles_of_epilogues() -> None:
    assert sm90.compute_tile_shape_or_override((64, 16, 64), Float16, True) == (64, 16)
    assert sm90.compute_tile_shape_or_override((128, 128, 64), Float8E4M3FN) == (64, 64)
    assert sm90.compute_tile_shape_or_override((128, 128, 64), Float16, epi_tile_override=(32, 8)) == (32, 8)


def test_both_modules_are_one() -> None:
    assert sm90.make_smem_layout_a is hopper_helpers.make_smem_layout_a
    assert utils.sm90 is sm90


WRONG = {
    "a layout 'row'": lambda: sm90.get_smem_layout_atom("row", Float16, 64),  # pyright: ignore[reportArgumentType]
    "elements <class 'float'>": lambda: sm90.get_smem_layout_atom(ROW, float, 64),
    "major_mode_size is 0": lambda: sm90.get_smem_layout_atom(ROW, Float16, 0),
    "rows of 3 Float4": lambda: sm90.get_smem_layout_atom(ROW, kiln.Float4E2M1FN, 3),
    "mma_tiler_mnk is": lambda: sm90.make_smem_layout_a(ROW, (64, 64), Float16, 1),
    "the number of stages is 0": lambda: sm90.make_smem_layout_b(ROW, (64, 64, 64), Float16, 0),
    "epi_tile is": lambda: sm90.make_smem_layout_epi(Float16, ROW, 64, 1),
    "kind of a shared-memory layout is 'K'": lambda: warpgroup.make_smem_layout_atom("K", Float16),
    "for elements 16": lambda: warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW32, 16),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_refused(message: str) -> None:
    with pytest.raises(TypeError, match=message):
        WRONG[message]()


def test_a_tile_that_the_atom_does_not_divide() -> None:
    with pytest.raises((TypeError, ValueError), match="12"):
        sm90.make_smem_layout_a(ROW, (12, 64, 64), Float16, 1)
