"""Functions to export, and C programs that call them."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import kiln
import kiln.cute as cute
from kiln import Boolean, Float32, Float64, Int8, Int64, Uint16
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import make_fake_compact_tensor, make_fake_stream

ROOT = Path(__file__).parents[2]


def _compiler() -> tuple[str | None, str]:
    """The C compiler, if what it compiles runs where this Python does; else why there is none."""
    found, here = shutil.which("gcc") or shutil.which("cc"), platform.machine()
    if found is None:
        return None, "there is no C compiler (Debian: apt install gcc)"
    said = subprocess.run([found, "-dumpmachine"], capture_output=True, text=True).stdout.partition("-")[0].strip()
    if said and said != here:
        return (
            None,
            f"{found} compiles for {said}, and this Python runs on {here}, as if emulated: no programs of C here",
        )
    return found, ""


COMPILER, _WHY_NONE = _compiler()
needs_compiler = pytest.mark.skipif(COMPILER is None, reason=_WHY_NONE)
needs_strip = pytest.mark.skipif(
    COMPILER is None or shutil.which("strip") is None,
    reason=_WHY_NONE or "there is no strip (Debian: apt install binutils)",
)


@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, by: Float32):
    row, _, _ = cute.arch.block_idx()
    column, _, _ = cute.arch.thread_idx()
    if column < x.shape[1]:
        y[row, column] = x[row, column] * by


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, by: Float32, stream):
    """Rows of any number, of a multiple of 4 columns."""
    scaled(x, y, by).launch(grid=x.shape[0], block=32, stream=stream)


@cute.jit
def scale_here(x: cute.Tensor, y: cute.Tensor, by: Float32):
    """The same, on the stream of who calls it."""
    scaled(x, y, by).launch(grid=x.shape[0], block=32)


@cute.kernel
def said(x: cute.Tensor, n: Int64):
    cute.printf("n is %d", n)
    assert n < 5, "n is too large"
    x[0] = n.to(Float64)


@cute.jit
def say(x: cute.Tensor, n: Int64):
    """Prints; fails where n is 5 or more."""
    said(x, n).launch(grid=1, block=1)


@cute.jit
def gather(
    out: cute.Tensor,
    a: Int8,
    b: Uint16,
    c: Boolean,
    d: Float64,
    extents: cute.Shape,
    p: cute.Pointer,
    wide: cute.Tensor,
    new: Float32,
):
    """Every kind of argument: writes them to a tensor of doubles."""
    out[0] = a.to(Float64)
    out[1] = b.to(Float64)
    out[2] = c.to(Float64)
    out[3] = d
    out[4] = extents[0].to(Float64)
    out[5] = extents[1][0].to(Float64)
    out[6] = cute.make_tensor(p, cute.make_layout(1))[0].to(Float64)
    out[7] = new.to(Float64)
    for i in kiln.range_constexpr(3):
        out[8 + i] = (wide.shape[i] + wide.stride[i]).to(Float64)


TILE = (8, 32)


@cute.kernel
def copied(load: cpasync.TmaInfo, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    barrier = cute.arch.alloc_smem(Int64, 1, 8)
    shared = cute.make_tensor(cute.arch.alloc_smem(Float32, 256, 128), cute.make_layout(TILE, stride=(32, 1)))
    if t == 0:
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, 1024)
    cute.arch.sync_threads()
    tiled = cute.local_tile(load.tma_tensor, TILE, (row, column))
    part, tiled = cpasync.tma_partition(
        load.atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiled, 0, 2)
    )
    cute.copy(load.atom, tiled, part, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    mine = cute.local_tile(y, TILE, (row, column))
    for i in range(8):
        mine[i, t] = shared[i, t]


@cute.jit
def copy_boxes(x: cute.Tensor, y: cute.Tensor):
    """Whole tiles, by tensor maps that host code makes."""
    load = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), x, cute.make_layout(TILE, stride=(32, 1)), TILE
    )
    copied(load, y).launch(grid=cute.ceil_div((*x.shape, 1), (*TILE, 1)), block=32)


@functools.lru_cache(maxsize=8)
def matrix(divisibility: int = 4, align: int = 4) -> Any:
    """The description of a matrix."""
    shape = cute.SymInt(), cute.SymInt(divisibility=divisibility)
    return make_fake_compact_tensor(Float32, shape, stride_order=(1, 0), assumed_align=align)


def compiled_scale(**options: Any) -> Any:
    """`scale` of two matrices of one shape."""
    x = matrix()
    return cute.compile(scale, x, x, 1.0, make_fake_stream(), **options)


def exported_scale(folder: Path, name: str, archs: Sequence[str]) -> str:
    """The library of examples/exported, `examples::scale` for PyTorch."""
    path = folder / f"lib{name}.so"
    entry_points = ("c", "tvm_ffi", "torch", "jax")
    kiln.export(scale_here, matrix(), matrix(), 1.0, to=path, name="examples::scale", archs=archs, entry_points=entry_points, outputs={"y": "x"})  # fmt: skip
    return str(path)


def without_kiln(program: Path, *arguments: str) -> list[str]:
    """The lines that a program of Python prints which cannot import Kiln."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    done = subprocess.run([sys.executable, program, *arguments], env=variables, capture_output=True, text=True, cwd=program.parent, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def build(folder: Path, *arguments: str) -> None:
    """Call the C compiler, which has nothing to complain of."""
    strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{folder}"]
    done = subprocess.run([COMPILER or "cc", *strict, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run(program: Path, **variables: str) -> list[str]:
    """The lines that a program prints: it knows of no Python, and of no other variables than these."""
    done = subprocess.run([program], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
