# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""Products of warp groups: the PTX says what was asked for, and in the machine code they run asynchronously, in registers."""

from __future__ import annotations

import pytest
import sass
from nvidia_testing import compile_for, floats, needs_ptxas

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.dialects import nvgpu
from kiln.hardware import mma_shapes

pytestmark = [needs_ptxas, pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")]

W = nvgpu.wgmma
ELEMENTS = {
    "f16": cute.Float16, "bf16": cute.BFloat16, "tf32": cute.TFloat32, "e4m3": cute.Float8E4M3FN, "e5m2": cute.Float8E5M2, "s8": cute.Int8,
    "u8": cute.Uint8,
}  # fmt: skip
SUMS = {"f32": cute.Float32, "f16": cute.Float16, "s32": cute.Int32}


def descriptor(pointer, stride=1024):
    return cute.Int64._make(W.matrix_descriptor(pointer.ir_value(), 16, stride, "128b"))


def multiply(d, a, b, accumulate=True, *, n, kind="f16", second=None, **majors):
    """One product; `a` is a descriptor or a tensor."""
    k = 256 // mma_shapes.BITS[kind]
    left = a.iterator.ir_value() if hasattr(a, "iterator") else cute.Int64(a).ir_value()
    flag = cute.Boolean(accumulate).ir_value()
    W.wgmma(
        d.iterator.ir_value(),
        left,
        cute.Int64(b).ir_value(),
        flag,
        n=n,
        k=k,
        a_type=kind,
        b_type=second or kind,
        **majors,
    )


def main_loop(kind, second, sums, n, *, in_registers=False, a_major="k", b_major="k", steps=4):
    """A kernel with a main loop of `steps` products a turn, the sums of which are written at the end."""
    k = 256 // mma_shapes.BITS[kind]

    @cute.kernel
    def kernel(out: cute.Tensor, turns: cute.Int32):
        t = arch.thread_idx()[0]
        a, b = (arch.alloc_smem(cute.Int8, rows * 128 * 2, 1024) for rows in (64, n))
        d = cute.make_rmem_tensor((n // 2,), SUMS[sums])
        d.fill(0)
        registers = cute.make_rmem_tensor((k // 2, steps), ELEMENTS[kind])
        first, last = descriptor(a), descriptor(b)
        for turn in range(turns):
            if kiln.const_expr(in_registers):
                words = cute.recast_tensor(registers, cute.Int32)
                for j in kiln.range_constexpr(cute.size(words)):
                    words[j] = t + turn + j
            W.wgmma_fence()
            for j in kiln.range_constexpr(steps):
                left = registers[None, j] if in_registers else first + turn % 2 * 512 + 2 * j
                right = last + turn % 2 * (8 * n) + 2 * j
                multiply(d, left, right, n=n, kind=kind, second=second, a_major=a_major, b_major=b_major)
            W.wgmma_commit()
            W.wgmma_wait(0 if in_registers else 1)
        W.wgmma_wait(0)
        for i in kiln.range_constexpr(n // 2):
            out[t, i] = d[i].to(cute.Float32)

    return kernel


def compiled(kernel, n, **options):
    @cute.jit
    def launch(out: cute.Tensor, turns: cute.Int32):
        kernel(out, turns).launch(grid=1, block=options.pop("block", 128), **options)

    return compile_for(launch, floats(256, n), 4)


CASES = [
    ("f16", "f16", "f32", 256, {}), ("f16", "f16", "f16", 128, {}), ("f16", "f16", "f32", 64, {"a_major": "mn", "b_major": "mn"}),
    ("bf16", "bf16", "f32", 128, {"b_major": "mn"}), ("tf32", "tf32", "f32", 64, {}), ("e4m3", "e5m2", "f32", 128, {}),
    ("e5m2", "e4m3", "f16", 64, {}), ("s8", "u8", "s32", 64, {}), ("u8", "s8", "s32", 256, {}), ("f16", "f16", "f32", 8, {}),
    ("f16", "f16", "f32", 64, {"in_registers": True}), ("bf16", "bf16", "f32", 128, {"in_registers": True, "b_major": "mn"}),
    ("tf32", "tf32", "f32", 8, {"in_registers": True}), ("e4m3", "e4m3", "f32", 64, {"in_registers": True}),
    ("s8", "s8", "s32", 64, {"in_registers": True}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "second", "sums", "n", "options"), CASES)
def test_a_main_loop_is_products_and_addresses(kind, second, sums, n, options):
    made = compiled(main_loop(kind, second, sums, n, **options), n)
    (loop,) = sass.check_products(made, 4)
    assert len(loop.products) == 4 and loop.waits == 1
    k = 256 // mma_shapes.BITS[kind]
    name = {16: "HGMMA", 32: "HGMMA", 8: "IGMMA" if kind in ("s8", "u8") else "QGMMA"}[mma_shapes.BITS[kind]]
    assert all(i.name.startswith(f"{name}.64x{n}x{k}") for i in loop.products)
    ptx = made.executable.artifacts["ptx"]
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{sums}.{kind}.{second} ") == 4
