"""Which thread of a warpgroup holds which elements, against what CuTe DSL 4.8.1 was seen to answer, and against the PTX manual."""

from __future__ import annotations

import ast
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln import cute
from kiln.cute.nvgpu import warpgroup
from kiln.cute.nvgpu.warpgroup import OperandMajorMode, OperandSource
from kiln.utils import sm90

OBSERVED = json.loads((Path(__file__).parent / "observed_warpgroup.json").read_text())
QUESTION = re.compile(
    r"(?P<what>[\w.]+)(?: identity)? (?:(?P<tile>\([\d, ]+\)) )?(?P<ab>\w+) (?P<acc>\w+) (?P<major>KK|KMN|MNK|MNMN) "
    r"(?P<atoms>\([\d, ]+\)) n(?P<n>\d+) (?P<source>\w+)"
)
K, MN = OperandMajorMode.K, OperandMajorMode.MN
MAJORS = {"KK": (K, K), "KMN": (K, MN), "MNK": (MN, K), "MNMN": (MN, MN)}


@functools.cache
def tiled_mma(ab: str, acc: str, major: str, atoms: str, n: str, source: str) -> Any:
    dtype, layout = getattr(kiln, ab), ast.literal_eval(atoms)
    sums = getattr(kiln, acc)
    made = sm90.make_trivial_tiled_mma(dtype, dtype, *MAJORS[major], sums, layout, (64, int(n)), OperandSource[source])
    return made, layout


def answer(question: str) -> str:
    """What Kiln says, as it was printed there."""
    found = QUESTION.fullmatch(question)
    assert found is not None, question
    mma, atoms = tiled_mma(*found.group("ab", "acc", "major", "atoms", "n", "source"))
    name = found["what"].removeprefix("tiled_mma.")
    if name.startswith("partition_shape"):
        return str(getattr(mma, name)(ast.literal_eval(found["tile"])))
    if name.startswith("partition"):
        tile = ast.literal_eval(found["tile"]) if found["tile"] else (64 * atoms[0], 4 * mma.shape_mnk[2])
        return str(getattr(mma.get_slice(0), name)(cute.make_identity_tensor(tile)).layout)
    return str(getattr(mma, name))


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
    assert len(OBSERVED) > 700


@pytest.mark.parametrize(
    ("op", "packed"),
    [
        (warpgroup.MmaF16BF16Op(kiln.BFloat16, kiln.Float32, (64, 24, 16), OperandSource.RMEM, K, MN), 2),
        (warpgroup.MmaF8Op(kiln.Float8E5M2, kiln.Float8E4M3FN, kiln.Float16, (64, 8, 32), OperandSource.RMEM, K, K), 4),
        (warpgroup.MmaI8Op(kiln.Uint8, kiln.Int8, kiln.Int32, (64, 16, 32), OperandSource.RMEM, K, K), 4),
        (warpgroup.MmaTF32Op((64, 40, 8), OperandSource.RMEM), 1),
    ],
    ids=lambda x: type(x).__name__,
)
def test_registers_hold_what_the_manual_draws(op: Any, packed: int) -> None:
    atom = cute.make_mma_atom(op)
    for thread in range(128):
        warp, group, place = thread // 32, thread % 32 // 4, thread % 4
        for i in range(op.shape_mnk[1] // 2):
            row, column = 16 * warp + group + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * place + i % 2
            assert atom.tv_layout_C((thread, i)) == row + 64 * column
        for i in range(4 * packed):
            register, inside = divmod(i, packed)
            row = 16 * warp + group + 8 * (register % 2)
            column = packed * place + inside + 4 * packed * (register // 2)
            assert atom.tv_layout_A((thread, i)) == row + 64 * column


def test_threads_beyond_the_tile_and_before_it_stand_for_those_inside() -> None:
    @cute.jit
    def f(t: kiln.Int32):
        mma = sm90.make_trivial_tiled_mma(kiln.Float16, kiln.Float16, K, K, kiln.Float32, (1, 1, 1), (64, 64))
        tile = cute.make_identity_tensor((64, 64))
        for thread, inside in ((128 + 37, 37), (383, 127), (-128, 0), (-1, 127)):
            part = mma.get_slice(thread).partition_C(tile)
            assert part[0] == mma.get_slice(inside).partition_C(tile)[0]
        assert cute.tiled_divide(cute.make_layout((1, 1, 1)), (mma.thr_id.shape,)) is not None

    cute.compile(f, 1)
