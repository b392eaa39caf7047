"""Objects whose MLIR values are trees of dicts and lists."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.base_dsl.dsl import debug_print_mlir_values, extract_mlir_values, new_from_mlir_values, set_dynamic_debug


class Sum:
    def __init__(self, total, parts):
        self.total, self.parts = total, parts

    def __extract_mlir_values__(self):
        parts = [extract_mlir_values(p, structured=True) for p in self.parts]
        return {"total": extract_mlir_values(self.total, structured=True), "parts": parts}

    def __new_from_mlir_values__(self, values):
        total = new_from_mlir_values(self.total, values["total"], structured=True)
        found = zip(self.parts, values["parts"], strict=True)
        return Sum(total, [new_from_mlir_values(p, v, structured=True) for p, v in found])


def run(step, count=3):
    @cute.kernel
    def kernel(out: cute.Tensor, n: kiln.Int32):
        s = Sum(kiln.Float32(0.0), [kiln.Int32(1), kiln.Int32(2)])
        if kiln.const_expr(step is None):
            print(debug_print_mlir_values(s))
        for i in range(n):
            s = (step or grown)(s, i)
        out[0] = s.total + kiln.Float32(s.parts[0] * 100 + s.parts[1])

    @cute.jit
    def main(out: cute.Tensor, n: kiln.Int32):
        kernel(out, n).launch(grid=1, block=1)

    out = np.zeros(1, np.float32)
    with kiln.target("cpu"):
        main(out, count)
    return out[0]


def grown(s, i):
    return Sum(s.total + 0.5, [s.parts[0] + i, s.parts[1]])


def test_loops_carry_trees_and_print_them(capsys):
    set_dynamic_debug(True, max_depth=1)
    try:
        assert run(None) == 1.5 + 400 + 2
    finally:
        set_dynamic_debug(False)
    said = capsys.readouterr().out
    assert "Sum: 3 values\n  total: f32\n  parts: 2 values\n    [0]: i32" in said
    assert "carries 4 values" in said or "carries 3 values" in said
    assert "for i in range(n):" in said


def test_a_structure_that_changes_is_refused():
    with pytest.raises(DSLBaseError, match="parts has 2 elements and then 3"):
        run(lambda s, i: Sum(s.total, [*s.parts, i]))
    with pytest.raises(DSLBaseError, match=r"parts\[1\] is i32 and then f32"):
        run(lambda s, i: Sum(s.total, [s.parts[0], s.total]))
