"""Bulk copies between blocks of a cluster, to several of them, and reductions, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from bulk_kernels import SENDERS, launcher, multicaster, reducer, sender

import kiln
from kiln import cute
from kiln.cute.nvgpu import cpasync

torch = pytest.importorskip("torch")
KINDS = {kiln.Float32: np.float32, kiln.Float16: np.float16, kiln.Int32: np.int32}


def run(kernel, x, y, blocks):
    tensors = [torch.from_numpy(np.ascontiguousarray(a.T)).to("cuda").T for a in (x, y)]
    launcher(kernel, blocks)(*(cute.runtime.from_dlpack(t, assumed_align=16) for t in tensors))
    return tensors[1].cpu().numpy()


@pytest.mark.parametrize("priority", [None, *list(cute.nvgpu.CacheEvictionPriority)[:4]])
def test_a_row_goes_to_several_blocks(priority):
    x = np.arange(64, dtype=np.float32).reshape(32, 2)
    y = run(multicaster(priority), x, np.zeros_like(x), 2)
    np.testing.assert_array_equal(y, np.stack([x.sum(axis=1)[::-1]] * 2, axis=1))


@pytest.mark.parametrize(("copy_op", "dtype", "instruction"), SENDERS)
def test_another_block_gets_what_is_sent(copy_op, dtype, instruction):
    x = np.arange(64, dtype=KINDS[dtype]).reshape(32, 2)
    y = run(sender(copy_op, dtype), x, np.zeros_like(x), 2)
    np.testing.assert_array_equal(y, x[:, ::-1] + (100 if "Reduce" in type(copy_op).__name__ else 0))


@pytest.mark.parametrize(
    ("kind", "combine"), [("ADD", np.add), ("MIN", np.minimum), ("MAX", np.maximum), ("XOR", np.bitwise_xor)]
)
@pytest.mark.parametrize("dtype", [np.int32, np.float16])
def test_rows_are_combined_in_global_memory(kind, combine, dtype):
    if kind == "XOR" and dtype is np.float16:
        return
    x, y = np.arange(128).astype(dtype).reshape(32, 4), np.full((32, 4), 40, dtype)
    found = run(reducer(cpasync.ReductionOp[kind]), x, y, 4)
    np.testing.assert_array_equal(found[:, 0], combine.reduce(np.concatenate([y[:, :1], x], axis=1), axis=1))
