# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Coordinate tensors, partitions and atoms of TMA print what programs written for CuTe DSL expect.

`tests/helpers/tma_facts.txt` has a line "case | answer" for each; a case is what is printed, the major mode, the element type, the rank,
the tile, how many blocks share a copy, its direction, and whether extents are static.
"""

from __future__ import annotations

import collections
import pathlib
import re

import numpy as np
import pytest
from tracing_only import traced

from kiln import Float16, cute, utils
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack
from kiln.utils import LayoutEnum

FACTS = pathlib.Path(__file__).parents[2] / "helpers" / "tma_facts.txt"


def cases():
    found = collections.defaultdict(dict)
    for line in FACTS.read_text().splitlines():
        if line.startswith("#"):
            continue
        case, _, answer = line.partition(" | ")
        what, setting = re.fullmatch(r"(.*?) ([km] Float16 .*)", case).groups()
        found[setting][what] = answer
    return found


CASES = cases()


def answers(setting):
    """What is printed in a setting, by name."""
    match = re.fullmatch(r"(k|m) Float16 rank(\d) tile\((\d+), (\d+)\) mc(\d) (load|store) (static|dynamic)", setting)
    major, rank, rows, columns, blocks, direction, extents = match.groups()
    rank, tile, blocks = int(rank), (int(rows), int(columns)), int(blocks)
    shape = (512, 256, 2)[:rank]
    array = np.zeros((2, *((512, 256) if major == "k" else (256, 512)))[3 - rank :], np.float16)
    order = (1, 2, 0) if major == "k" else (2, 1, 0)
    array = array.transpose(order) if rank == 3 else array if major == "k" else array.T
    assert array.shape == shape
    layout = LayoutEnum.ROW_MAJOR if major == "k" else LayoutEnum.COL_MAJOR
    staged = utils.sm90.make_smem_layout_a(layout, (tile[0], 128, tile[1]), Float16, 3)
    found = {}

    @cute.kernel
    def kernel(atom: cute.CopyAtom, coordinates: cute.Tensor):
        tiles = cute.local_tile(coordinates, tile, (None,) * rank)
        memory = cute.arch.alloc_smem(Float16, cute.cosize(staged), 1024)
        shared = cute.make_tensor(cute.recast_ptr(memory, staged.inner, Float16), staged.outer)
        part, places = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
        )
        found["tma tensor"] = str(coordinates)
        found["tma tensor type"] = str(coordinates.type)
        found["tma atom"] = " ".join(str(atom).split())
        found["local_tile"] = str(tiles)
        found["smem"] = str(shared)
        found["tma_partition smem"] = str(part)
        found["tma_partition gmem"] = str(places)

    @cute.jit
    def launch(x: cute.Tensor):
        if direction == "store":
            op = cpasync.CopyBulkTensorTileS2GOp()
        elif blocks > 1:
            op = cpasync.CopyBulkTensorTileG2SMulticastOp()
        else:
            op = cpasync.CopyBulkTensorTileG2SOp()
        atom, coordinates = cpasync.make_tiled_tma_atom(
            op, x, cute.slice_(staged, (None, None, 0)), tile, num_multicast=blocks
        )
        kernel(atom, coordinates).launch(grid=1, block=32)

    x = from_dlpack(array, assumed_align=16)
    if extents == "dynamic":
        x = x.mark_layout_dynamic(leading_dim=1 if major == "k" else 0)
    traced(launch, x)
    return found


def test_there_are_as_many_facts_as_were_written_down():
    assert sum(map(len, CASES.values())) == 273
    assert len(CASES) == 48


@pytest.mark.parametrize("setting", CASES)
def test_what_is_printed(setting):
    found = answers(setting)
    wanted = CASES[setting]
    assert {what: found[what] for what in wanted} == wanted
