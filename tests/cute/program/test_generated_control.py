"""Loops and branches built by hand give what the same Python gives."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
import kiln.cute as cute
from kiln import Boolean, Int32


@cute.jit(preprocess=False)
def count(n: Int32):
    total = Int32(0)
    out = total
    for i, (acc,), results in kiln.for_generate(0, n, 2, [total]):
        kiln.yield_out([acc + i])
        out = Int32(results[0])
    return out


@cute.jit(preprocess=False)
def halve(n: Int32):
    loop = kiln.while_generate([n, Int32(0)], lambda x, steps: x > 1)
    with loop as (x, steps):
        kiln.yield_out([x // 2, steps + 1])
    return loop.results[1]


@cute.jit(preprocess=False)
def clamp(n: Int32):
    return kiln.if_generate(n < 0, lambda x: Int32(0), lambda x: x, [n], [Int32])


@cute.jit(preprocess=False)
def negated(flag: Boolean):
    return kiln.cutlass_dsl.not_(flag)


@pytest.mark.parametrize("n", [0, 1, 7, 10])
def test_for(n: int) -> None:
    assert count(n) == sum(range(0, n, 2))


@pytest.mark.parametrize(("n", "steps"), [(1, 0), (2, 1), (100, 6)])
def test_while(n: int, steps: int) -> None:
    assert halve(n) == steps


@pytest.mark.parametrize("n", [-3, 0, 5])
def test_if(n: int) -> None:
    assert clamp(n) == max(n, 0)


def test_not() -> None:
    assert negated(False) is True


def test_unrolling():
    """A count is copied by LLVM; a `while` takes the attribute from the program. 1 leaves the loop as it is."""

    @cute.kernel(preprocess=False)
    def kernel(x: cute.Tensor, n: Int32, count: kiln.Constexpr):
        for i in kiln.for_generate(0, n, unroll=kiln.LoopUnroll(count=count)):
            x[i] = x[i] * 3 + 1
            kiln.yield_out()
        loop = kiln.while_generate([n], lambda i: i > 0)
        loop.while_op.attributes["loop_annotation"] = kiln.LoopUnroll(count=1)
        with loop as (i,):
            x[i - 1] += 1
            kiln.yield_out([i - 1])

    @cute.jit
    def main(x: cute.Tensor, n: Int32, count: kiln.Constexpr):
        kernel(x, n, count).launch(grid=1, block=1)

    x = np.arange(8, dtype=np.int32)
    with kiln.target("cpu"):
        main(x, 7, 4)
    assert x.tolist() == [*(i * 3 + 2 for i in range(7)), 7]
    multiplications = {}
    for count in (1, 4):
        fake = cute.runtime.make_fake_compact_tensor(Int32, (64,))
        ptx = cute.compile(main, fake, 1, count, target="nvidia", options="--gpu-arch sm_80").__ptx__
        multiplications[count] = ptx.count("mad.lo.s32")
    assert multiplications[4] == multiplications[1] + 4
    for wrong in (0, "4"):
        with pytest.raises(kiln.DSLUserCodeTypeError, match="at least 1"):
            kiln.LoopUnroll(count=wrong)
