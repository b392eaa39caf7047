"""Products of warpgroups: a right kernel, and what is found if one thing in it is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernel_testing import launcher
from sanitizer_testing import found

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.dialects.nvgpu import wgmma

GIVEN = {"n": 8, "k": 16, "a_type": "f16", "b_type": "f16", "a_major": "k", "b_major": "k"}


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
            if "fence" not in wrong and "first fence only" not in wrong:
                wgmma.wgmma_fence()
            if "first fence only" in wrong:
                if i == 0:
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
            if "sums left alone" not in wrong:
                sums[1] = sums[1] * 2
            if "first fence only" in wrong:
                out[t, 0] = sums[0]
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
        (["fence"], "executes a wgmma whose accumulator it wrote, and no fence orders the two"),
        (["fence", "sums left alone"], "executes its first wgmma without a fence"),
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


def test_sums_that_were_only_read():
    """ptxas adds the fence, and public programs leave it to that."""
    with pytest.warns(kiln.DSLWarning, match="executes a wgmma whose accumulator it read, and no fence orders the two"):
        assert findings("first fence only", "sums left alone") == []


@cute.kernel
def swizzled(x: cute.Tensor, out: cute.Tensor, mode: cute.Constexpr):
    """A tile is written through the swizzle of 128 bytes and read through that of a descriptor."""
    memory = arch.alloc_smem(cute.Float16, 6144, 1024)
    outer = cute.make_layout((64, 64), stride=(64, 1))
    tile = cute.make_tensor(memory, cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, outer))
    right = cute.make_tensor(memory + 4096, cute.make_layout(2048))
    t = arch.thread_idx()[0]
    for i in range(cute.Int32(32)):
        tile[t // 2, t % 2 * 32 + i] = x[t // 2, t % 2 * 32 + i]
    for i in range(cute.Int32(16)):
        right[t * 16 + i] = cute.Float16(1.0)
    arch.fence_view_async_shared()
    arch.sync_threads()
    sums = cute.make_rmem_tensor(4, cute.Float32)
    a = wgmma.matrix_descriptor(memory.ir_value(), 16, 1024, mode)
    b = wgmma.matrix_descriptor((memory + 4096).ir_value(), 16, 1024, "128b")
    wgmma.wgmma_fence()
    wgmma.wgmma(sums.iterator.ir_value(), a, b, cute.Boolean(False).ir_value(), **GIVEN)
    wgmma.wgmma_commit()
    wgmma.wgmma_wait(0)
    out[t, 0] = sums[0]


@cute.jit
def run_swizzled(x: cute.Tensor, out: cute.Tensor, mode: cute.Constexpr):
    swizzled(x, out, mode).launch(grid=1, block=128)


@pytest.mark.parametrize("mode", ["128b", "none"])
def test_a_tile_is_read_through_the_swizzle_it_was_written_through(mode):
    x = np.arange(4096, dtype=np.int16).reshape(64, 64).view(np.float16)
    texts = [str(finding) for finding in found(run_swizzled, x, np.zeros((128, 1), np.float32), mode)]
    if mode == "128b":
        assert texts == []
    else:
        assert any("as the element of another place" in text for text in texts), texts
