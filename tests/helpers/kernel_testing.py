"""Run a kernel on arrays, under several schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import kiln
from kiln import cute
from kiln.base_dsl import trace as tracing
from kiln.mlir import ir
from kiln.targets.cpu.runtime import parts

SCHEDULES = [(1, 0), (2, 0), (1, 1), (2, 2), (2, 3), (1, 4), (1, 5)]
"""(worker threads, schedule seed)."""


def launcher(kernel: Any, count: int, **options: Any) -> Callable[..., None]:
    """A host function of so many arrays that launches a kernel."""

    @cute.jit
    def one(a: cute.Tensor):
        kernel(a).launch(**options)

    @cute.jit
    def two(a: cute.Tensor, b: cute.Tensor):
        kernel(a, b).launch(**options)

    @cute.jit
    def three(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        kernel(a, b, c).launch(**options)

    @cute.jit
    def four(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor):
        kernel(a, b, c, d).launch(**options)

    return [one, two, three, four][count - 1]


def run(kernel: Any, *arrays: np.ndarray, grid: Any = 1, block: Any = 32, **options: Any) -> None:
    """Launch a kernel once on arrays, which it may change."""
    with kiln.target("cpu"):
        launcher(kernel, len(arrays), grid=grid, block=block, **options)(*arrays)


def runs(
    kernel: Any, *arrays: np.ndarray, grid: Any = 1, block: Any = 32, schedules: Any = None, **options: Any
) -> Iterator[list[np.ndarray]]:
    """Launch a kernel under each schedule, on fresh copies of arrays; the copies, afterwards."""
    with kiln.target("cpu"):
        launch = launcher(kernel, len(arrays), grid=grid, block=block, **options)
        for workers, seed in schedules or SCHEDULES:
            copies = [array.copy() for array in arrays]
            parts.set_workers(workers)
            parts.set_seed(seed)
            try:
                launch(*copies)
            finally:
                parts.set_workers()
                parts.set_seed()
            yield copies


def asm(result: Any, operands: Any, text: str, constraints: str) -> Any:
    """As `llvm.inline_asm` of the public programs: the result type (or None), operands, PTX, constraints."""
    attributes = {"asm_string": ir.StringAttr.get(text), "constraints": ir.StringAttr.get(constraints)}
    attributes["has_side_effects"] = ir.UnitAttr.get()
    values = [v if isinstance(v, ir.Value) else v.ir_value() for v in operands]
    if result is None:
        tracing.emit("llvm.inline_asm", (), values, attributes)
        return None
    return tracing.emit_value("llvm.inline_asm", result, values, attributes)
