"""Kernels of `cute.experimental` that copy slices by TMA, for the CPU target and for GPUs from sm_90 on."""

from __future__ import annotations

from typing import Any

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute import experimental as ext

F16, SMEM = kiln.Float16, cute.AddressSpace.smem
ROWS, COLUMNS = 16, 32
TILES = (((ROWS, COLUMNS, 2)), (COLUMNS, 1, ROWS * COLUMNS))


@ext.kernel
def doubled(x: cute.Tensor, out: cute.Tensor, announced: kiln.Constexpr):
    """Double tiles of a matrix between two TMA copies; slices and tiles in shared memory have the same modes."""
    tiles = ext.allocate(F16, SMEM, cute.make_layout(TILES[0], stride=TILES[1]), alignment=128)
    full = arch.alloc_smem(kiln.Int64, 1, 8)
    m, n, _ = arch.block_idx()
    warp, lane = arch.make_warp_uniform(arch.warp_idx()), arch.lane_idx()
    parts = [cute.zipped_divide(t, (ROWS, COLUMNS))[(None, None), (m, n)] for t in (x, out)]
    if warp == 0:
        with arch.elect_one():
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
    arch.sync_threads()
    if warp == 0:
        if kiln.const_expr(announced):
            with arch.elect_one():
                arch.mbarrier_arrive_and_expect_tx(full, 2 * ROWS * COLUMNS)
            ext.tma_load(parts[0], tiles[None, None, 0], full.value, update_expect_tx=False)
        else:
            ext.tma_load(parts[0], tiles[None, None, 0], full, tma_operation_type=ext.OperationTypeEnum.SM90_TMA_LOAD)
            with arch.elect_one():
                arch.mbarrier_arrive(full)
    arch.mbarrier_wait(full, 0)
    pipe = ext.TMAStorePipeline(stages=1, arv_count=64, barrier_id=2, tma_warp_id=1)
    assert pipe.get_num_stages() == 1
    assert pipe.acquire_sync() is pipe
    for i in kiln.range_constexpr(ROWS // 2):
        value = tiles[2 * i + warp, lane, 0]
        tiles[2 * i + warp, lane, 1] = value + value
    pipe.commit_sync()
    if warp == 1:
        ext.tma_store(tiles[None, None, 1], parts[1])
    pipe.release_advance().tail()


@ext.jit
def double(x: cute.Tensor, out: cute.Tensor, announced: kiln.Constexpr):
    tiles = cute.tiled_divide(out, (ROWS, COLUMNS))
    doubled(x, out, announced).launch(grid=(tiles.shape[1], tiles.shape[2], 1), block=64)


@ext.kernel
def numbered(addresses: cute.Tensor, shape: kiln.Constexpr):
    """Fill matrices, whose addresses the kernel loads, with the number of each, by TMA stores."""
    tiles = ext.allocate(F16, SMEM, cute.make_layout(TILES[0], stride=TILES[1]), alignment=128)
    m, n, _ = arch.block_idx()
    lane = arch.lane_idx()
    pipe = ext.TMAStorePipeline(stages=2, arv_count=32, barrier_id=1, tma_warp_id=0)
    for number in range(cute.size(addresses)):
        pointer = cute.make_ptr(F16, addresses[number], mem_space=cute.AddressSpace.gmem, assumed_align=16)
        out = cute.make_tensor(pointer, cute.make_layout(shape, stride=(shape[1], 1)))
        pipe.acquire_sync()
        tile = tiles[None, None, pipe.get_index()]
        for row in kiln.range_constexpr(ROWS):
            tile[row, lane] = F16(number)
        pipe.commit_sync()
        ext.tma_store(tile, cute.zipped_divide(out, (ROWS, COLUMNS))[(None, None), (m, n)])
        pipe.release_advance()
    pipe.tail()


@ext.jit
def number(addresses: cute.Tensor, shape: kiln.Constexpr):
    grid = tuple(-(-extent // part) for extent, part in zip(shape, (ROWS, COLUMNS), strict=True))
    numbered(addresses, shape).launch(grid=(*grid, 1), block=32)


def compiled_with_workspace(function: Any, *arguments: Any, constants: tuple[Any, ...]) -> tuple[Any, int]:
    """Compile a function that takes a workspace, and return it with the bytes that it needs."""
    from kiln.cute.experimental.host_runtime import QueryDeviceWorkspaceFunc

    compiled = ext.compile(function, *arguments, *constants)
    return compiled, compiled.get_aux_func(QueryDeviceWorkspaceFunc)(*arguments).size_in_bytes
