"""Epilogues of GEMMs on sm_100: accumulators from tensor memory to C, through shared memory and TMA, or directly.

The functions take the kernel's object first and read its attributes: `cta_tile_shape_mnk`, `c_layout`, `c_dtype`,
`acc_dtype`, `use_2cta_instrs`, `epilogue_warp_id`, `num_c_stage`, and `epilog_sync_bar_id` or `epilog_sync_barrier`.
"""

from __future__ import annotations

from typing import Any

from ... import cute
from ...base_dsl.diagnostics import type_error
from ...base_dsl.ranges import Range as dsl_range
from ...base_dsl.ranges import const_expr
from ...base_dsl.typing import Boolean
from ...cute.nvgpu import CopyUniversalOp, cpasync, tcgen05
from ..blackwell_helpers import get_smem_store_op, get_tmem_load_op

__all__ = [
    "epilogue",
    "epilogue_smem_copy_and_partition",
    "epilogue_tma_store",
    "epilogue_tmem_copy_and_partition",
    "transform_partitioned_tensor_layout",
]

_WARP = 32


def transform_partitioned_tensor_layout(tensor: Any) -> Any:
    """Return a partitioned C or accumulator ((M, N), rest M, rest N, ...) as ((M, rest M), (N, rest N), ...)."""
    layout = tensor.layout
    if cute.rank(layout) < 3 or cute.rank(layout[0]) != 2:
        raise type_error(
            f"transform_partitioned_tensor_layout takes a tensor ((M, N), rest M, rest N, ...), got {layout}",
            "what partition_C or make_fragment_C returns",
        )
    plain = layout.outer if isinstance(layout, cute.ComposedLayout) else layout
    (rows, columns), rest_rows, rest_columns, *others = (plain[i] for i in range(cute.rank(plain)))
    joined = cute.make_layout([_joined(rows, rest_rows), _joined(columns, rest_columns), *others])
    if plain is not layout:
        joined = cute.make_composed_layout(layout.inner, layout.offset, joined)
    return cute.make_tensor(tensor.iterator, joined)


def _joined(mode: object, rest: object) -> Any:
    return mode if cute.size(rest) == 1 else cute.make_layout([mode, rest])


def _without_rests(tensor: Any) -> Any:
    """Return a tensor (M, N, ...); one that partition_C returned is joined."""
    partitioned = cute.rank(tensor.layout[0]) == 2 and cute.rank(tensor) in (4, 6)
    return transform_partitioned_tensor_layout(tensor) if partitioned else tensor


def epilogue_tmem_copy_and_partition(
    gemm_kernel: Any, tidx: Any, tAcc: Any, tCgC: Any, epi_tile: Any, use_2cta_instrs: Any
) -> tuple[Any, Any, Any]:
    """Return the load of accumulators (M, N, stages), a thread's part of them, and its registers for one epilogue tile.

    The part is (values, rest M, rest N, epilogue tiles along M and N, stages).
    """
    atom = get_tmem_load_op(
        gemm_kernel.cta_tile_shape_mnk,
        gemm_kernel.c_layout,
        gemm_kernel.c_dtype,
        gemm_kernel.acc_dtype,
        epi_tile,
        use_2cta_instrs,
    )
    acc = cute.flat_divide(tAcc, epi_tile)
    first = (None, None, *(0,) * (cute.rank(acc) - 2))
    tiled = tcgen05.make_tmem_copy(atom, acc[first])
    thread = tiled.get_slice(tidx)
    part_of_c = thread.partition_D(cute.flat_divide(tCgC, epi_tile))
    one = part_of_c[(None, None, None, *(0,) * (cute.rank(part_of_c) - 3))]
    return tiled, thread.partition_S(acc), cute.make_rmem_tensor(one.shape, gemm_kernel.acc_dtype)


def epilogue_smem_copy_and_partition(
    gemm_kernel: Any, tiled_copy_t2r: Any, tTR_rC: object, tidx: object, sC: object
) -> tuple[Any, Any, Any]:
    """Return the store of C to shared memory, and a thread's part of its registers and of shared memory."""
    atom = get_smem_store_op(gemm_kernel.c_layout, gemm_kernel.c_dtype, gemm_kernel.acc_dtype, tiled_copy_t2r)
    tiled = cute.make_tiled_copy_D(atom, tiled_copy_t2r)
    return tiled, tiled.retile(tTR_rC), tiled.get_slice(tidx).partition_D(sC)


def _synchronize(gemm_kernel: Any) -> None:
    """Wait for the other warps of the epilogue."""
    barrier = getattr(gemm_kernel, "epilog_sync_barrier", None)
    if barrier is not None:
        barrier.arrive_and_wait()
    else:
        threads = _WARP * len(gemm_kernel.epilogue_warp_id)
        cute.arch.barrier(barrier_id=gemm_kernel.epilog_sync_bar_id, number_of_threads=threads)


@cute.jit
def epilogue_tma_store(
    gemm_kernel: Any,
    epi_tidx: Any,
    warp_idx: Any,
    tma_atom_c: Any,
    tCtAcc_base: Any,
    sC: Any,
    tCgC_base: Any,
    epi_tile: Any,
    num_tiles_executed: Any,
    epilogue_op: Any,
    mma_tile_coord_mnl: Any,
    acc_consumer_state: Any,
    acc_pipeline: Any,
    c_pipeline: Any,
) -> Any:
    """Store the accumulators of one tile as C, through shared memory and TMA; return the state of the next one.

    The epilogue's warps execute it. Each releases the accumulators with one thread.
    """
    c = _without_rests(tCgC_base)
    tiled_copy_t2r, acc_all, acc = epilogue_tmem_copy_and_partition(
        gemm_kernel, epi_tidx, _without_rests(tCtAcc_base), c, epi_tile, gemm_kernel.use_2cta_instrs
    )
    registers = cute.make_rmem_tensor(acc.shape, gemm_kernel.c_dtype)
    tiled_copy_r2s, values, tile = epilogue_smem_copy_and_partition(
        gemm_kernel, tiled_copy_t2r, registers, epi_tidx, sC
    )
    by_tile = cute.flat_divide(c, epi_tile)
    source, target_all = cpasync.tma_partition(
        tma_atom_c, 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), cute.group_modes(by_tile, 0, 2)
    )
    target = target_all[(None, None, None, *mma_tile_coord_mnl)]
    target = cute.group_modes(target, 1, cute.rank(target))
    own = acc_all[(None, None, None, None, None, acc_consumer_state.index)]
    own = cute.group_modes(own, 3, cute.rank(own))

    acc_pipeline.consumer_wait(acc_consumer_state)
    count = cute.size(own.shape, mode=[3])
    before = num_tiles_executed * count
    for part in dsl_range(count):
        cute.copy(tiled_copy_t2r, own[(None, None, None, part)], acc)
        cute.arch.fence_view_async_tmem_load()  # before the barriers, after the last of which memory may be freed
        values.store(epilogue_op(tiled_copy_r2s.retile(acc).load().to(gemm_kernel.c_dtype)))
        buffer = (before + part) % gemm_kernel.num_c_stage
        cute.copy(tiled_copy_r2s, values, tile[(None, None, None, buffer)])
        cute.arch.fence_proxy("async.shared", space="cta")
        _synchronize(gemm_kernel)
        if warp_idx == gemm_kernel.epilogue_warp_id[0]:
            cute.copy(tma_atom_c, source[(None, buffer)], target[(None, part)])
            c_pipeline.producer_commit()
            c_pipeline.producer_acquire()
        _synchronize(gemm_kernel)
    with cute.arch.elect_one():
        acc_pipeline.consumer_release(acc_consumer_state)
    acc_consumer_state.advance()
    return acc_consumer_state


@cute.jit
def epilogue(
    gemm_kernel: Any,
    epi_tidx: Any,
    tCtAcc_base: Any,
    tCgC_base: Any,
    epi_tile: Any,
    epilogue_op: Any,
    mma_tile_coord_mnl: Any,
    acc_consumer_state: Any,
    acc_pipeline: Any,
    tCcC_base: Any = None,
    mC_mnl: Any = None,
    overlapping_accum: Any = False,
) -> Any:
    """Store the accumulators of one tile as C directly; return the state of the next one.

    With the coordinates `tCcC_base` and C `mC_mnl` elements outside of C are not stored. With `overlapping_accum` two
    accumulators share columns: the tile is read from the shared ones on, which are released first
    (`gemm_kernel.iter_acc_early_release_in_epilogue`).
    """
    c = _without_rests(tCgC_base)
    tiled_copy_t2r, acc_all, acc = epilogue_tmem_copy_and_partition(
        gemm_kernel, epi_tidx, _without_rests(tCtAcc_base), c, epi_tile, gemm_kernel.use_2cta_instrs
    )
    thread = tiled_copy_t2r.get_slice(epi_tidx)
    place = (None, None, None, None, None, *mma_tile_coord_mnl)
    target = thread.partition_D(cute.flat_divide(c, epi_tile))[place]
    target = cute.group_modes(target, 3, cute.rank(target))
    registers = cute.make_rmem_tensor(acc.shape, gemm_kernel.c_dtype)
    store = cute.make_copy_atom(CopyUniversalOp(), gemm_kernel.c_dtype)
    whole = None if mC_mnl is None else mC_mnl.shape
    if const_expr(tCcC_base is not None):
        coordinates = thread.partition_D(cute.flat_divide(_without_rests(tCcC_base), epi_tile))[place]
        coordinates = cute.group_modes(coordinates, 3, cute.rank(coordinates))

    stage = acc_consumer_state.phase if const_expr(overlapping_accum) else acc_consumer_state.index
    own = acc_all[(None, None, None, None, None, stage)]
    own = cute.group_modes(own, 3, cute.rank(own))
    acc_pipeline.consumer_wait(acc_consumer_state)
    count = cute.size(own.shape, mode=[3])
    for number in dsl_range(count):
        part = number
        if const_expr(overlapping_accum):
            if stage == 0:
                part = count - 1 - number
        cute.copy(tiled_copy_t2r, own[(None, None, None, part)], acc)
        if const_expr(overlapping_accum):
            if number == gemm_kernel.iter_acc_early_release_in_epilogue:
                cute.arch.fence_view_async_tmem_load()
                with cute.arch.elect_one():
                    acc_pipeline.consumer_release(acc_consumer_state)
                acc_consumer_state.advance()
        registers.store(epilogue_op(acc.load().to(gemm_kernel.c_dtype)))
        if const_expr(tCcC_base is not None and whole is not None):
            where = coordinates[(None, None, None, part)]
            inside = cute.make_rmem_tensor(registers.shape, Boolean)
            for i in dsl_range(cute.size(registers), unroll_full=True):
                inside[i] = cute.elem_less(where[i], whole)
            cute.basic_copy_if(inside, registers, target[(None, None, None, part)])
        else:
            cute.copy(store, registers, target[(None, None, None, part)])
    if const_expr(not overlapping_accum):
        cute.arch.fence_view_async_tmem_load()
        with cute.arch.elect_one():
            acc_pipeline.consumer_release(acc_consumer_state)
        acc_consumer_state.advance()
    return acc_consumer_state
