"""Tiled copies and tiled MMAs, against what CuTe DSL 4.8.1 was seen to print for them (`observed_tiles.json`).

Identity tensors of two by three tiles, or as small as their name says, are cut for thread 3 or 5.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln import BFloat16, Float16, Float32, cute
from kiln.cute.nvgpu import CopyUniversalOp, warp

FACTS = json.loads((Path(__file__).parent / "observed_tiles.json").read_text())
OPERANDS = {"A": (64, 32), "B": (64, 32), "C": (64, 64)}


def layout(text: str) -> Any:
    shape, stride = map(ast.literal_eval, text.split(":"))
    return cute.make_layout(shape, stride=stride)


def of_copy(threads: Any, values: Any, what: str) -> Any:
    """One answer about the tiled copy of single Float16 by threads that have a block of values each."""
    name, _, small = what.partition(" ")
    tiler, layout_tv = cute.make_layout_tv(threads, values)
    if name == "make_layout_tv":
        return tiler, layout_tv
    tiled = cute.make_tiled_copy_tv(cute.make_copy_atom(CopyUniversalOp(), Float16), threads, values)
    if hasattr(tiled, name):
        return getattr(tiled, name) if name != "retile" else tiled.retile(fragment(cute.size(values))).layout
    tensor = cute.make_identity_tensor(ast.literal_eval(small) if small else (2 * tiler[0], 3 * tiler[1]))
    if name == "zipped_divide":
        return cute.zipped_divide(tensor, threads.shape).layout
    if name == "local_tile":
        return cute.local_tile(tensor, threads.shape, (None, 0)).layout
    return getattr(tiled.get_slice(3), name)(tensor).layout


def fragment(values: int) -> Any:
    return cute.make_rmem_tensor((values, 2, 3), Float16)


def of_mma(dtype: Any, mma: Any, what: str) -> Any:
    """One answer about a tiled MMA, or about a tiled copy for one of its operands."""
    name, *how = what.split()
    operand = name[-1]
    if name.startswith("partition_shape"):
        return getattr(mma, name)(OPERANDS[operand])
    if hasattr(mma, name):
        return getattr(mma, name)
    tensor = cute.make_identity_tensor(OPERANDS[operand])
    if name.startswith("partition"):
        return getattr(mma.get_slice(5), name)(tensor).layout
    if operand == "C":
        tiled = cute.make_tiled_copy_C(cute.make_copy_atom(CopyUniversalOp(), dtype), mma)
        return tiled.get_slice(5).partition_D(tensor).layout
    matrices = warp.LdMatrix8x8x16bOp("transposed" in how, int(how[0][1:]))
    tiled = getattr(cute, name)(cute.make_copy_atom(matrices, dtype), mma)
    return tiled.layout_tv_tiled if how[-1] == "tv" else tiled.get_slice(5).partition_S(tensor).layout


@pytest.mark.parametrize("kind", FACTS)
def test_what_was_observed(kind: str) -> None:
    wrong: list[str] = []

    @cute.jit
    def f():
        for key, answers in FACTS[kind].items():
            subject: Any = ()
            if kind == "copies":
                subject = tuple(map(layout, key.split()))
            else:
                dtype, shape, atoms, permutation = key.split()
                dtype = {"f16": Float16, "bf16": BFloat16}[dtype]
                op = warp.MmaF16BF16Op(dtype, Float32, tuple(map(int, shape.split("x"))))
                atoms, permutation = map(ast.literal_eval, (atoms, permutation))
                subject = dtype, cute.make_tiled_mma(op, atoms, permutation)
            for what, there in answers.items():
                first, second = subject
                here = str(of_copy(first, second, what) if kind == "copies" else of_mma(first, second, what))
                if here != there:
                    wrong.append(f"{key}, {what}: {here}, there {there}")

    with kiln.target("cpu"):
        cute.compile(f)
    assert wrong == []


def test_how_much_was_observed() -> None:
    assert sum(len(answers) for kind in FACTS.values() for answers in kind.values()) > 700
