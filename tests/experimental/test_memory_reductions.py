"""`red` of all types, in global and shared memory, and on two halves at once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.runtime import from_dlpack
from kiln.experimental import primitives as prims

KINDS = {
    "s32": (np.int32, kiln.Int32), "u32": (np.uint32, kiln.Uint32), "s64": (np.int64, kiln.Int64),
    "u64": (np.uint64, kiln.Uint64), "f32": (np.float32, kiln.Float32), "f64": (np.float64, kiln.Float64),
    "f16": (np.float16, kiln.Float16), "bf16": (ml_dtypes.bfloat16, kiln.BFloat16),
    "f16x2": (np.float16, kiln.Float16), "bf16x2": (ml_dtypes.bfloat16, kiln.BFloat16), "b32": (np.int32, kiln.Int32),
    "b64": (np.int64, kiln.Int64),
}  # fmt: skip
WORDS = ("s32", "u32", "s64", "u64")
CASES = [
    *(("add", kind) for kind in KINDS if kind[0] != "b" or "f" in kind),
    *((op, kind) for op in ("min", "max") for kind in WORDS), *((op, "u32") for op in ("inc", "dec")),
    *((op, kind) for op in ("and", "or", "xor") for kind in ("b32", "b64", "u32")),
]  # fmt: skip


def combined(op, values, start):
    """Combine numbers one after another, as the instruction does."""
    of_two = {
        "add": lambda a, b: a + b, "min": min, "max": max, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b, "inc": lambda a, b: 0 if a >= b else a + 1,
        "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    }[op]  # fmt: skip
    for value in values:
        start = of_two(start, value)
    return start


@pytest.mark.quick(9)
@pytest.mark.parametrize(("op", "kind"), CASES, ids=lambda x: str(x))
def test_red(op, kind):
    dtype, own = KINDS[kind]
    pair = kind.endswith("x2")

    @cute.kernel
    def kernel(x: kiln.Array, far: kiln.Array):
        tx = cute.arch.thread_idx()[0]
        near = kiln.Array(own, 2, space=kiln.AddressSpace.smem)
        if tx < 2:
            near[tx] = far[tx]
        prims.barrier_cta_sync(0)
        value = x.load(2 * tx, 2) if kiln.const_expr(pair) else x[tx]
        how = {"mem_order": prims.MemOrder.RELAXED, "mem_scope": prims.MemScope.CTA}
        prims.red(prims.ReductionOp[op.upper()], prims.ReductionType[kind.upper()], near, value, **how)
        prims.red(op=op, type_=kind, a=far, b=value, mem_scope="gpu", cache_hint=kiln.Int64(0x12F0000000000000))
        prims.barrier_cta_sync(0)
        if tx < 2:
            far[tx + 2] = near[tx]

    @cute.jit
    def main(x: cute.Tensor, far: cute.Tensor):
        kernel(x, far).launch(grid=1, block=32)

    random = np.random.default_rng(len(kind))
    x = random.integers(0, 8, 64 if pair else 32).astype(dtype)
    if op in ("inc", "dec"):  # with other numbers the result depends on the order
        x[:] = 6
    start = random.integers(0, 8, 2).astype(dtype)
    far = np.concatenate([start, start])
    with kiln.target("cpu"), kiln.sanitize():
        main(from_dlpack(x, assumed_align=16), from_dlpack(far, assumed_align=16))
    wanted = start.astype(object)
    columns = (x[0::2], x[1::2]) if pair else (x,)
    for column, values in enumerate(columns):
        wanted[column] = combined(op, values.astype(object), start.astype(object)[column])
    np.testing.assert_array_equal(far.astype(object), np.concatenate([wanted, wanted]))


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("by inc of s32", lambda x, near: prims.red("inc", "s32", x, 1)),
        ("by max of f32", lambda x, near: prims.red("max", "f32", x, 1.0)),
        ("by add of b32", lambda x, near: prims.red("add", "b32", x, 1)),
        ("a Vector of two", lambda x, near: prims.red("add", "f16x2", x, 1.0)),
        ("in shared memory with a cache_hint", lambda x, near: prims.red("add", "s32", near, 1, cache_hint=1)),
        ("shared_space is", lambda x, near: prims.red("add", "s32", near, 1, shared_space="gmem")),
        ("mem_order is", lambda x, near: prims.red("add", "s32", x, 1, mem_order="acquire")),
        ("with results", lambda x, near: prims.atomicrmw("add", x, 1, results=[1])),
        ("space is 'gmem'", lambda x, near: prims.atomicrmw("add", x, 1, space="gmem")),
    ],
)
def test_reductions_that_do_not_exist_are_refused(match, call):
    @cute.kernel
    def kernel(x: cute.Tensor):
        call(kiln.make_array_view(x), kiln.Array(kiln.Int32, 4, space=kiln.AddressSpace.smem))

    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=1, block=1)

    with kiln.target("cpu"), pytest.raises(DSLBaseError, match=match):
        main(np.zeros(4, np.int32))
