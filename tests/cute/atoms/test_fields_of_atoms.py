"""Fields of an atom that change while a program runs, as the flag of asynchronous MMAs that says whether they accumulate."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Boolean, Float32, Int32, cute
from kiln.base_dsl.numeric.operators import select
from kiln.cute.atoms.mma import MmaOp
from kiln.cute.nvgpu.common import UniversalMmaTrait
from kiln.cute.runtime import from_dlpack


class Field(enum.Enum):
    ACCUMULATE = "accum_c"


class FlaggedTrait(UniversalMmaTrait):
    """D = A * B, or with `accumulate` D = A * B + C."""

    def __init__(self, accumulate: Any) -> None:
        super().__init__(Float32)
        self.accumulate = Boolean(accumulate)

    def with_fields(self, **fields: Any) -> FlaggedTrait:
        return FlaggedTrait(fields["accumulate"])

    def multiply(self, a: Any, b: Any, c: Any) -> Any:
        start = select(self.accumulate, Float32(c), Float32(0.0))
        return super().multiply(a, b, start.ir_value())

    def __extract_mlir_values__(self) -> list[Any]:
        return [self.accumulate.ir_value()]

    def __new_from_mlir_values__(self, values: Any) -> FlaggedTrait:
        return FlaggedTrait(Boolean(values[0]))


class FlaggedOp(MmaOp):
    def make_trait(self) -> FlaggedTrait:
        return FlaggedTrait(True)


@pytest.mark.parametrize("begin", [0, 2, 5])
def test_a_flag_set_in_a_branch_of_a_loop_lasts(begin):
    """From a step on sums begin anew: `set` in a dynamic branch changes what the loop carries on."""

    @cute.jit
    def f(out: cute.Tensor, begin: Int32):
        mma = cute.make_tiled_mma(FlaggedOp())
        a, acc = cute.make_rmem_tensor((1, 1, 1), Float32), cute.make_rmem_tensor((1, 1, 1), Float32)
        a.fill(2.0)
        acc.fill(0.0)
        for i in range(Int32(8)):
            if i == begin:
                mma.set(Field.ACCUMULATE, False)
            cute.gemm(mma, acc, a, a, acc)
            if mma.get(Field.ACCUMULATE) == Boolean(False):
                mma.set(Field.ACCUMULATE, i != begin + 1)  # once more
            out[i] = acc[0]
        mma.set(Field.ACCUMULATE, begin > 3)
        cute.gemm(mma, acc, a, a, acc)
        out[8] = acc[0]

    out = np.zeros(9, np.float32)
    with kiln.target("cpu"):
        f(from_dlpack(out), begin)
    flag, total, expected = True, 0, []
    for i in range(8):
        flag = False if i == begin else flag
        total = 4 + total * flag
        if not flag:
            flag = i != begin + 1
        expected.append(total)
    assert out.tolist() == [*expected, 4 + expected[-1] * (begin > 3)]


def test_a_field_that_an_atom_lacks_is_refused():
    @cute.jit
    def f():
        mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(Float32))
        mma.set(Field.ACCUMULATE, False)

    with pytest.raises(kiln.DSLUserCodeError, match="no field 'accumulate'"), kiln.target("cpu"):
        f()
