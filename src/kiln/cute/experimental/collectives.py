"""Steps and loops of GEMMs on tensor cores of sm_100: MMAs, the main loop, the epilogue, and the layouts they need."""

from __future__ import annotations

from typing import Any

from ... import cute
from ...base_dsl.diagnostics import DSLNotImplemented, error, type_error
from ...base_dsl.ranges import Range as dsl_range
from ...base_dsl.ranges import const_expr
from ...utils.blackwell_helpers import compute_epilogue_tile_shape, get_tmem_load_op, make_smem_layout_epi
from ...utils.layout_enum import LayoutEnum
from ..atoms.mma import MmaAtom
from ..nvgpu import CopyUniversalOp, tcgen05
from ..tensor.iterator import AddressSpace
from ..tensor.tensor import Tensor
from .buffers import allocate
from .copies import partition_and_copy
from .pipelines import TMAStorePipeline, TMAToUMMAPipeline
from .tma import get_cta_v_map_c, tma_store

__all__ = [
    "dot",
    "dot_block_scaled",
    "epilogue_tma_store",
    "mainloop_mma",
    "make_t2r_rmem_layout",
    "make_tmem_layout_acc",
]


def make_tmem_layout_acc(
    tiled_mma: Any, mnk_tiler: Any, acc_stage: int, *, loc: object = None, ip: object = None
) -> Any:
    """Return the layout of accumulators in tensor memory: (MMA, MMA_M, MMA_N, stages)."""
    shape = tiled_mma.partition_shape_C(tuple(mnk_tiler[:2]))
    return tiled_mma.make_fragment_C(cute.append(shape, acc_stage)).layout


def make_t2r_rmem_layout(
    tiled_copy_t2r: Any, gC_mnl_epi: Any, tidx: Any, *, loc: object = None, ip: object = None
) -> Any:
    """Return the layout of the registers of a thread that loads an epilogue tile of accumulators.

    `gC_mnl_epi` is the output divided into epilogue tiles: (tile M, tile N, ...).
    """
    part = tiled_copy_t2r.get_slice(tidx).partition_D(gC_mnl_epi)
    return cute.make_layout(part[(None, None, None, *(0,) * (cute.rank(part) - 3))].shape)


def _atom(mma_atom: object, what: str) -> MmaAtom:
    if not isinstance(mma_atom, MmaAtom) or not isinstance(mma_atom.op, tcgen05.mma.MmaOp):
        raise type_error(f"{what} takes an MMA atom of tcgen05, got {mma_atom}", "cute.make_mma_atom(tiled_mma.op)")
    return mma_atom


def dot(mma_atom: object, a: object, b: object, c: Tensor, *, loc: object = None, ip: object = None) -> None:
    """Compute C = A B, or C += A B where the atom's field ACCUMULATE holds. A warp calls it.

    A (MMA, MMA_M, MMA_K) and B (MMA, MMA_N, MMA_K) are in shared memory, or A is in tensor memory; C (MMA, MMA_M,
    MMA_N) is in tensor memory.
    """
    atom = _atom(mma_atom, "dot")
    cute.gemm(atom, c, _operand(atom, "A", a), _operand(atom, "B", b), c)


def dot_block_scaled(
    mma_atom: object,
    a: object,
    sfa: object,
    b: object,
    sfb: object,
    c: Tensor,
    *,
    loc: object = None,
    ip: object = None,
) -> None:
    """Compute as `dot` does with scaled A and B, whose scale factors are in tensor memory."""
    atom = _atom(mma_atom, "dot_block_scaled")
    if not isinstance(atom.op, tcgen05.mma.BlockScaledMmaOp):
        raise type_error(f"dot_block_scaled with {atom.op}, an MMA without scale factors", "dot(mma_atom, a, b, c)")
    scaled_a, scaled_b = (
        [_operand(atom, operand, x), cute.append_ones(scales, up_to_rank=3)]
        for operand, x, scales in (("A", a, sfa), ("B", b, sfb))
    )
    cute.gemm(atom, c, scaled_a, scaled_b, c)


def _operand(atom: MmaAtom, operand: str, x: object) -> Any:
    if getattr(x, "memspace", None) is AddressSpace.tmem:
        return x
    return atom.make_fragment_A(x) if operand == "A" else atom.make_fragment_B(x)


@cute.jit
def mainloop_mma(
    tiled_mma: Any,
    a_buffer: Any,
    b_buffer: Any,
    acc_buffer: Any,
    k_tile_start: Any,
    k_tile_end: Any,
    mma_inst_tile_k: int,
    a_buffer_pipeline: TMAToUMMAPipeline,
    b_buffer_pipeline: TMAToUMMAPipeline,
    ab_buffer_same_pipeline: bool = True,
    accumulate_to_acc: bool = False,
) -> tuple[TMAToUMMAPipeline, TMAToUMMAPipeline]:
    """Multiply the K tiles of staged buffers (MMA, MMA_M or MMA_N, MMA_K, stages) into an accumulator.

    One warp calls it, the consumer of the pipelines; it releases every stage and returns the pipelines. A and B in
    stages of one pipeline are waited for once (`ab_buffer_same_pipeline`).
    """
    atom = cute.make_mma_atom(tiled_mma.op)
    atom.set(tcgen05.Field.ACCUMULATE, accumulate_to_acc)
    for _ in dsl_range(k_tile_start, k_tile_end, 1, unroll=1):
        _, a_stage = a_buffer_pipeline.consumer_wait_and_get_stage()
        b_stage = a_stage
        if const_expr(not ab_buffer_same_pipeline):
            _, b_stage = b_buffer_pipeline.consumer_wait_and_get_stage()
        for k in dsl_range(mma_inst_tile_k, unroll_full=True):
            a = a_buffer[None, None, k, a_stage]
            b = b_buffer[None, None, k, b_stage]
            dot(atom, cute.append_ones(a, up_to_rank=3), cute.append_ones(b, up_to_rank=3), acc_buffer)
            atom.set(tcgen05.Field.ACCUMULATE, True)
        a_buffer_pipeline.consumer_release_and_advance()
        if const_expr(not ab_buffer_same_pipeline):
            b_buffer_pipeline.consumer_release_and_advance()
    return a_buffer_pipeline, (a_buffer_pipeline if ab_buffer_same_pipeline else b_buffer_pipeline)


@cute.jit
def epilogue_tma_store(
    cta_tile_shape_mnk: Any,
    use_2cta_instrs: bool,
    tmem_acc_buffer_staged: Any,
    gmem_d: Any,
    cta_d_tile_coord: Any,
    tma_store_pipeline: TMAStorePipeline,
    tma_store_warp_id: int,
    epilogue_op: Any,
    d_major_mode: Any = None,
    tid_x_in_group: Any = None,
    amax_out: Any = None,
    accumulator_drain: Any = None,
) -> TMAStorePipeline:
    """Store an accumulator (M, N) in tensor memory as a tile of D, through shared memory and TMA.

    The threads of `tma_store_pipeline` call it; `epilogue_op` maps their elements, of D's type. It returns the pipeline
    when TMA has read the buffers.
    """
    if const_expr(amax_out is not None or accumulator_drain is not None):
        raise error(DSLNotImplemented, "epilogue_tma_store with amax_out or accumulator_drain")
    dtype = gmem_d.element_type
    layout = d_major_mode or LayoutEnum.from_tensor(gmem_d)
    acc = tmem_acc_buffer_staged
    acc_dtype = tmem_acc_buffer_staged.element_type
    tidx = cute.arch.thread_idx()[0] if const_expr(tid_x_in_group is None) else tid_x_in_group
    tile = compute_epilogue_tile_shape(cta_tile_shape_mnk, use_2cta_instrs, layout, dtype)
    staged = make_smem_layout_epi(dtype, layout, tile, tma_store_pipeline.stages)
    buffers = allocate(dtype, AddressSpace.smem, staged, alignment=1024)

    accs = cute.flat_divide(acc, tile)
    load = get_tmem_load_op(cta_tile_shape_mnk, layout, dtype, acc_dtype, tile, use_2cta_instrs)
    tiled_copy_t2r = tcgen05.make_tmem_copy(load, accs[None, None, 0, 0])
    tiled_copy_r2s = cute.make_tiled_copy_D(cute.make_copy_atom(CopyUniversalOp(), dtype), tiled_copy_t2r)
    d_tile = cute.zipped_divide(gmem_d, tuple(cta_tile_shape_mnk[:2]))[(None, None), cta_d_tile_coord]
    parts = cute.flat_divide(d_tile, tile)
    registers = make_t2r_rmem_layout(tiled_copy_t2r, parts, tidx)
    loaded = cute.make_rmem_tensor(registers, acc_dtype)
    stored = cute.make_rmem_tensor(registers, dtype)
    v_map = get_cta_v_map_c(gmem_d, tile)
    for m in dsl_range(cute.size(accs, mode=[2])):
        for n in dsl_range(cute.size(accs, mode=[3])):
            partition_and_copy(tiled_copy_t2r.get_slice(tidx), accs[None, None, m, n], loaded)
            stored.store(epilogue_op(loaded.load().to(dtype)).to(dtype))
            tma_store_pipeline.acquire_sync()
            index = tma_store_pipeline.get_index()
            partition_and_copy(tiled_copy_r2s.get_slice(tidx), stored, buffers[None, None, index])
            tma_store_pipeline.commit_sync()
            if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == tma_store_warp_id:
                tma_store(buffers[None, None, index], parts[None, None, m, n], cta_v_map=v_map)
            tma_store_pipeline.release_advance()
    tma_store_pipeline.tail()
    return tma_store_pipeline
