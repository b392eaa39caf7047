"""Kernels with `tcgen05.mma` whose results are compared with the definition bit for bit, on the CPU target or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from tcgen05_testing import allocate, commit, fill, free, holder, long, mbarriers, read_all, wait, word
from umma_testing import D_AT, SMEM, Case, random_memory

from kiln import cute
from kiln.cute import arch
from kiln.dialects.nvgpu import mbarrier, tcgen05, tensor_memory

COLUMNS = 512


def issue(case: Case, smem, idesc, accumulate, b=None) -> None:
    """Issue the MMA of a case, with operands at the places that its record has, from `smem` on."""
    record = case.record(True)
    start = cute.Int64(smem.toint() & 0x3FFFF) >> 4
    a = word(record.a) if case.a_in_tmem else (start + _signed(record.a)).ir_value()
    b = record.b if b is None else b
    operands = (word(record.d), a, (start + (_signed(b) if isinstance(b, int) else b)).ir_value(), idesc)
    adds = cute.Boolean(accumulate).ir_value()
    if case.scale:
        options = {"kind": case.kind, "block": case.block, "cta_group": case.cta_group}
        tcgen05.tcgen05_mma_block_scale(*operands, word(record.sfa), word(record.sfb), adds, **options)
    elif case.ws:
        masks = [long(_signed(case.zero_columns))] if case.zero_columns else []
        tcgen05.tcgen05_mma_ws(*operands, adds, *masks, kind=case.kind)
    else:
        options = {"scale_input_d": case.scale_d} if case.scale_d else {}
        masks = [word(mask - (mask >> 31 << 32)) for mask in case.masks]
        if case.sparse:
            metadata = word(record.metadata)
            tcgen05.tcgen05_mma_sp(
                *operands, adds, metadata, *masks, kind=case.kind, cta_group=case.cta_group, **options
            )
            return
        tcgen05.tcgen05_mma(*operands, adds, *masks, kind=case.kind, cta_group=case.cta_group, **options)


def _signed(number: int) -> int:
    return number - (number >> 63 << 64)


def kernel_of(case: Case, repeats: int = 2):
    """A kernel (shared memory, tensor memory, results of all CTAs) that multiplies some times, each time adding."""

    @cute.kernel
    def kernel(image: cute.Tensor, cells: cute.Tensor, out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, SMEM // 4, 1024)
        words = cute.make_tensor(smem, cute.make_layout(SMEM // 4))
        bar, place = mbarriers(1), holder()
        t, cta = arch.thread_idx()[0], arch.block_idx()[0]
        for i in range(cute.Int32(SMEM // 512)):
            words[i * 128 + t] = image[cta, i * 128 + t]
        if t == 0:
            mbarrier.mbarrier_init(bar.ir_value(), word(1))
        arch.fence_view_async_shared()
        if case.cta_group == 2:
            arch.cluster_arrive()
            arch.cluster_wait()
        address = allocate(place, COLUMNS, case.cta_group)
        fill(address, cells[cta, None, None], COLUMNS)
        if case.cta_group == 2:
            arch.cluster_arrive()
            arch.cluster_wait()
        arch.sync_threads()
        if t == 64 and cta == 0:
            for _ in range(repeats):
                issue(case, smem, word(case.idesc - (case.idesc >> 31 << 32)), True)
            commit(bar, *([3] if case.cta_group == 2 else []), cta_group=case.cta_group)
        wait(bar)
        read_all(address, out[cta, None, None], COLUMNS)
        if case.cta_group == 2:
            arch.cluster_arrive()
            arch.cluster_wait()
        free(address, COLUMNS, case.cta_group)

    return kernel


KERNELS = [
    Case("f16", "f16", "f16", 128, 32, scale_d=1, masks=(0, 1 << 31, 0, 2)),
    Case("tf32", "tf32", "tf32", 32, 64, ws=True, a_in_tmem=True, zero_columns=2 << 40 | 3 << 48 | 1 << 39),
    Case("f8f6f4", "e4m3", "e2m1", 128, 32, cta_group=2, a_in_tmem=True),
    Case("mxf4nvf4", "e2m1", "e2m1", 256, 32, cta_group=2, scale="ue4m3", block=16),
    Case("f16", "bf16", "bf16", 128, 32, cta_group=2, sparse=True, sparse_id=1, lane=16),
    Case("i8", "s8", "u8", 64, 32, "s32", a_in_tmem=True, sparse=True),
]


def launch_options(case: Case) -> dict[str, Any]:
    """Return the grid, block and cluster of a case's kernel."""
    return {"grid": case.cta_group, "block": 128} | ({"cluster": (2, 1, 1)} if case.cta_group == 2 else {})


def check_kernel(case: Case, launch: Callable[..., Iterable[list[np.ndarray]]]) -> None:
    """Compare elements of D with the definition, and all that is not D with what was there.

    `launch(kernel, *arrays, **options)` returns the arrays after each of some launches.
    """
    ctas = random_memory(case, near=True)
    images = np.array([smem.view(np.int32) for smem in ctas.smem])
    cells = np.array([tmem.view(np.int32) for tmem in ctas.tmem])
    rng = np.random.default_rng(8)
    elements = [(int(rng.integers(case.m)), int(rng.integers(case.n))) for _ in range(12)]
    for _ in range(2):
        for cell, bits in case.defined(ctas, True, elements).items():
            ctas.tmem[cell.cta][cell.lane, cell.column] = bits
    columns = tensor_memory.accumulator_columns(case.m, case.n, **case.layout)
    for _, _, out in launch(kernel_of(case), images, cells, np.zeros_like(cells), **launch_options(case)):
        for row, column in elements:
            cell = tensor_memory.accumulator_cell(row, column, case.m, case.n, **case.layout)
            at = cell.cta, cell.lane + case.lane, cell.column + D_AT
            assert out[at] == ctas.tmem[cell.cta].view(np.int32)[at[1:]], at
        kept = np.ones(COLUMNS, bool)
        kept[D_AT : D_AT + columns] = False
        np.testing.assert_array_equal(out[:, :, kept], cells[:, :, kept])
