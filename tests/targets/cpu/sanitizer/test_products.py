"""Products of warp groups: a right kernel, and what is found if one thing in it is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernel_testing import launcher
from sanitizer_testing import found

from kiln import cute
from kiln.cute import arch
from kiln.dialects.nvgpu import wgmma

GIVEN = {"n": 8, "k": 16, "a_type": "f16", "b_type": "f16"}


def descriptor(smem, offset: int):
    return wgmma.matrix_descriptor((smem + offset // 4).ir_value(), 16, 1024, "128b")


def add(number, count):
    return (cute.Int64(number) + cute.Int64(count)).ir_value()


def kernel_with(*wrong: str):
    """Two rounds of four products, whose operands all threads write; the sums are read between and after."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, 6144, 1024)
        words = cute.make_tensor(smem, cute.make_layout(6144))
        t = arch.thread_idx()[0]
        a, b = descriptor(smem, 0), descriptor(smem, 8192)
        sums = cute.make_rmem_tensor(4, cute.Float32)
        held = cute.make_rmem_tensor(4, cute.Int32)
        if "registers unset" not in wrong:
            held.fill(0)
        for i in range(cute.Int32(2)):
            for j in range(cute.Int32(18 if "operand unset" not in wrong else 17)):
                words[j * 128 + t] = t + j
            if "proxy fence" not in wrong:
                arch.fence_view_async_shared()
            if "barrier before" not in wrong:
                arch.sync_threads()
            if "fence" not in wrong:
                wgmma.wgmma_fence()
            for step in range(4):
                adds = cute.Boolean(True) if "sums unset" in wrong else (i + step) != 0
                wgmma.wgmma(sums.iterator.ir_value(), add(a, 2 * step), add(b, 2 * step), adds.ir_value(), **GIVEN)
            if "commit" not in wrong:
                wgmma.wgmma_commit()
            if "late wait" in wrong:
                sums[0] = sums[0] * 2
            if "overwritten" in wrong:
                words[t] = 0
            wgmma.wgmma_wait(1 if "wait one less" in wrong else 0)
            sums[1] = sums[1] * 2
        if "from registers" in wrong:
            if "registers unfenced" not in wrong:
                wgmma.wgmma_fence()
            if "registers unfenced" in wrong:
                held[0] = t
            wgmma.wgmma(sums.iterator.ir_value(), held.iterator.ir_value(), b, cute.Boolean(True).ir_value(), **GIVEN)
            wgmma.wgmma_commit()
            if "operand overwritten" in wrong:
                held[1] = t
            wgmma.wgmma_wait(0)
        for i in range(4):
            out[t, i] = sums[i]

    return kernel


def findings(*wrong: str) -> list:
    return found(launcher(kernel_with(*wrong), 1, grid=1, block=128), np.zeros((128, 4), np.float32))


@pytest.mark.parametrize("extra", [(), ("from registers",)])
def test_the_right_kernel(extra):
    assert findings(*extra) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["proxy fence"], "wgmma that reads .* in the async proxy; .* and no fence tells the async proxy so"),
        (["barrier before"], "executes a wgmma that reads words.*; thread .* wrote it, and nothing orders the two"),
        (["overwritten"], "writes words.*; a wgmma of .* read it, and nothing orders the two"),
        (["fence"], "executes a wgmma whose sums it wrote, and no fence orders the two"),
        (["late wait"], "reads element 0 of sums while a wgmma in flight adds to it"),
        (["wait one less"], "reads element 1 of sums while a wgmma in flight adds to it"),
        (["commit"], "reads element 1 of sums while a wgmma in flight adds to it.*commit_group"),
        (["operand unset"], "reads words.*, which nobody has written"),
        (["sums unset"], "executes a wgmma that adds to an element of sums, which nobody has written"),
        (
            ["from registers", "registers unset"],
            "executes a wgmma whose A is an element of held, which nobody has written",
        ),
        (["from registers", "registers unfenced"], "executes a wgmma whose A in registers it wrote, and no fence"),
        (["from registers", "operand overwritten"], "writes element 1 of held while a wgmma in flight reads it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_kernel(wrong, words):
    texts = [str(finding) for finding in findings(*wrong)]
    assert any(re.search(words, text, re.DOTALL) for text in texts), texts
