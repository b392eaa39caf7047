"""Parts of GEMMs on sm_100 whose A is narrower than B: A is converted, and scaled, on its way to the tensor cores.

TMA copies the narrow A to shared memory; warps convert it and store it to tensor memory (A is K-major) or to shared
memory (A is M-major), from where `tcgen05.mma` reads it. A scale factor may belong to `scale_granularity_m` rows and
`scale_granularity_k` elements along K.
"""

from __future__ import annotations

import enum
from typing import Any

from .. import cute
from .._support import lazy
from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Boolean, Int4, Int8, Int32, Uint8
from ..cute.nvgpu import CopyUniversalOp, cpasync, tcgen05
from ..cute.nvgpu.common import CtaGroup, OperandMajorMode
from ..cute.nvgpu.tcgen05 import OperandSource
from ..cute.tensor.tensor_ssa import TensorSSA
from .blackwell_helpers import get_smem_store_op, get_tmem_load_op, make_smem_layout_a, make_smem_layout_b
from .value_parts import ValueParts

__dir__ = lazy.listing(__name__)
__all__ = [
    "ContiguousGGSearchState",
    "ContiguousGroupWorkTileInfo",
    "TransformMode",
    "compute_smem_layout",
    "contiguous_group_search",
    "create_initial_contiguous_group_search_state",
    "cvt_tensor_a",
    "epilog_gmem_copy_and_partition",
    "epilog_smem_copy_and_partition",
    "epilog_tmem_copy_and_partition",
    "get_copy_atom_a_transform",
    "get_divisibility",
    "get_gmem_layout_scale",
    "get_smem_layout_scale",
    "get_tma_atom_kind",
    "get_transform_a_source",
    "is_shuffle_a",
    "is_valid_mma_tiler_and_cluster_shape",
    "is_valid_scale_granularity",
    "is_valid_tensor_alignment",
    "make_contiguous_group_work_tile_info",
    "scale_partition",
    "scale_tma_partition",
    "store_transformed_a",
    "transform_partition",
]

_THREADS = 128
"""The threads of the warps that convert A."""
_VECTOR = 128
"""The bits of one access to shared memory."""
_SHUFFLED = (0, 2, 1, 3, 4, 6, 5, 7)
"""The order in which eight neighbours along K are stored; it is its own inverse."""


class TransformMode(enum.Enum):
    """How A is transformed: converted only, or converted and multiplied by scale factors."""

    ConvertOnly = enum.auto()
    ConvertScale = enum.auto()


# --- choices ---------------------------------------------------------------------------------------------------------


def get_transform_a_source(a_major_mode: OperandMajorMode) -> OperandSource:
    """Return the memory that `tcgen05.mma` reads the transformed A from: A in tensor memory is K-major.

    Args:
        a_major_mode: whether A is K- or M-major.
    """
    return OperandSource.TMEM if a_major_mode is OperandMajorMode.K else OperandSource.SMEM


def get_tma_atom_kind(mcast: object, use_2cta_instrs: bool, is_b: bool) -> Any:
    """Return the TMA load of an operand. Of a pair each CTA converts its own A, and both wait for one B.

    Args:
        mcast: whether CTAs of the cluster share the tile.
        use_2cta_instrs: whether MMAs are of a CTA pair.
        is_b: whether the operand is B.
    """
    group = CtaGroup.TWO if use_2cta_instrs and is_b else CtaGroup.ONE
    several = bool(mcast)
    return (cpasync.CopyBulkTensorTileG2SMulticastOp if several else cpasync.CopyBulkTensorTileG2SOp)(group)


def get_divisibility(contiguous_dim_size: int, upper_bound: int = 128) -> int:
    """Return the largest power of two up to a bound that divides an extent.

    Args:
        contiguous_dim_size: the extent.
        upper_bound: the bound, a power of two.
    """
    return min(contiguous_dim_size & -contiguous_dim_size, upper_bound)


def is_shuffle_a(a_major: str, k: int, a_dtype: Any, mma_dtype: Any, scale_granularity_k: int) -> bool:
    """Return whether A is stored with neighbours exchanged in each eight along K: K-major Int4 for 16-bit MMAs."""
    return a_major == "k" and a_dtype is Int4 and mma_dtype.width == 16 and k % 8 == 0 and scale_granularity_k % 8 == 0


def is_valid_mma_tiler_and_cluster_shape(mma_tiler: Any, cluster_shape_mn: Any, use_2cta_instrs: bool) -> bool:
    """Return whether a kernel can have a tile (M, N, K) of its MMAs and a cluster (M, N)."""
    m, n, k = mma_tiler
    ctas = 2 if use_2cta_instrs else 1
    cluster_m, cluster_n = cluster_shape_mn
    powers = all(extent > 0 and extent & (extent - 1) == 0 for extent in (cluster_m, cluster_n))
    return (
        m == 128 * ctas
        and n in range(32, 257, 32)
        and k % 64 == 0
        and powers
        and cluster_m * cluster_n <= 16
        and cluster_m % ctas == 0
    )


def is_valid_scale_granularity(
    scale_granularity_m: int, scale_granularity_k: int, a_dtype: object, k: int, mma_tiler_k: int
) -> bool:
    """Return whether scale factors can belong to so many rows and elements along K; (0, 0): there are none.

    Args:
        scale_granularity_m: the rows that share a scale factor.
        scale_granularity_k: the elements along K that share one.
        a_dtype: the element type of A.
        k: K of the GEMM.
        mma_tiler_k: K of the MMA's tile.
    """
    if a_dtype in (Int8, Uint8):
        return scale_granularity_m == scale_granularity_k == 0
    return (
        scale_granularity_m == 1
        and scale_granularity_k > 0
        and (k % scale_granularity_k == scale_granularity_k % mma_tiler_k == 0)
    )


def is_valid_tensor_alignment(
    m: int,
    n: int,
    k: int,
    a_dtype: Any,
    b_dtype: Any,
    c_dtype: Any,
    scale_dtype: Any,
    a_major: str,
    b_major: str,
    c_major: str,
    mma_tiler_mnk: object,
    use_2cta_instrs: bool,
    cluster_shape_mn: object,
    scale_granularity_m: int,
    scale_granularity_k: int,
) -> bool:
    """Return whether contiguous extents of all tensors are multiples of 16 bytes, as TMA needs."""
    extents = {"m": m, "n": n, "k": k}
    row_bits = [
        extents[major] * dtype.width for major, dtype in ((a_major, a_dtype), (b_major, b_dtype), (c_major, c_dtype))
    ]
    if scale_granularity_m:
        row_bits.append(m // scale_granularity_m * scale_dtype.width)
    return all(bits % 128 == 0 for bits in row_bits)


# --- layouts and copies of A ------------------------------------------------------------------------------------------


def compute_smem_layout(
    tiled_mma: Any,
    mma_tiler_mnk: Any,
    a_dtype: object,
    b_dtype: object,
    load2trans_stage_count: int,
    trans2mma_stage_count: int,
) -> tuple[Any, Any, Any]:
    """Return the layouts in shared memory of A as it is loaded, of the transformed A, and of B.

    Args:
        tiled_mma: the tiled MMA.
        mma_tiler_mnk: the tile (M, N, K), of a CTA pair that of both.
        a_dtype: the element type of A as it is loaded.
        b_dtype: the element type of B.
        load2trans_stage_count: the stages of the loads.
        trans2mma_stage_count: the stages of the transformed A.
    """
    return (
        make_smem_layout_a(tiled_mma, mma_tiler_mnk, a_dtype, load2trans_stage_count),
        make_smem_layout_a(tiled_mma, mma_tiler_mnk, tiled_mma.op.a_dtype, trans2mma_stage_count),
        make_smem_layout_b(tiled_mma, mma_tiler_mnk, b_dtype, load2trans_stage_count),
    )


def get_copy_atom_a_transform(
    mma_dtype: Any, use_2cta_instrs: bool, transform_a_source: OperandSource, a_smem_shape: Any, a_dtype: object
) -> Any:
    """Return the copy that stores the transformed A ((M, K) of an MMA, rest of M, rest of K) of one CTA.

    Args:
        mma_dtype: the element type that the MMA reads.
        use_2cta_instrs: whether MMAs are of a CTA pair.
        transform_a_source: where the MMA reads A.
        a_smem_shape: the shape of A: M and K of an MMA, rest of M, rest of K.
        a_dtype: the element type of A as it is loaded.
    """
    if transform_a_source is OperandSource.SMEM:
        return cute.make_copy_atom(CopyUniversalOp(), mma_dtype, num_bits_per_copy=_VECTOR)
    rows = cute.size(a_smem_shape[0][0])
    depth = cute.size(a_smem_shape[0][1]) * cute.size(a_smem_shape[2])
    if rows != 128:
        raise type_error(
            f"A in tensor memory has {rows} rows of a CTA, M of one MMA and CTA", "128, one for each thread that stores"
        )
    columns = min(depth * mma_dtype.width // 32, 32)
    return cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(columns)), mma_dtype)


def transform_partition(
    transform_a_source: OperandSource,
    scale_mode: TransformMode,
    copy_atom_a_input: object,
    copy_atom_a_transform: Any,
    sA_input: object,
    A_transform: Any,
    transform_local_tidx: object,
) -> tuple[Any, Any, Any, Any]:
    """Return the copies that load and store a thread's part of A, and its part of the loaded and the transformed A.

    Parts are (values, rests..., stages). The copy that stores is None where `store_transformed_a` needs none.

    Args:
        transform_a_source: where the MMA reads A.
        scale_mode: whether scale factors are applied.
        copy_atom_a_input: the copy that loads A from shared memory.
        copy_atom_a_transform: the copy of `get_copy_atom_a_transform`.
        sA_input: A in shared memory.
        A_transform: the transformed A.
        transform_local_tidx: the thread's number among those that transform.
    """
    if transform_a_source is OperandSource.TMEM:
        one = (None, None, None, 0)
        tiled = tcgen05.make_tmem_copy(copy_atom_a_transform, A_transform[one])
        store = tiled
    else:
        values = _VECTOR // copy_atom_a_transform.value_type.width
        of_call = cute.size(A_transform, mode=[0])
        again = of_call // (values * _THREADS)
        layout = cute.make_layout((_THREADS, (values, again)), stride=(values, (1, values * _THREADS)))
        tiled = cute.make_tiled_copy(copy_atom_a_transform, layout, (of_call,))
        store = None
    thread = tiled.get_slice(transform_local_tidx)
    load = tiled if scale_mode is TransformMode.ConvertScale else None
    return load, store, thread.partition_S(sA_input), thread.partition_D(A_transform)


def cvt_tensor_a(src: Any, dtype: Any, shuffle: bool) -> TensorSSA:
    """Return the values of A in registers in another type; with `shuffle` in their order along K."""
    values = src.load().to(dtype)
    if not shuffle:
        return values
    ordered = cute.make_rmem_tensor(src.shape, dtype)
    stored = cute.make_rmem_tensor(src.shape, dtype)
    stored.store(values)
    for i in range(cute.size(src)):
        ordered[i] = stored[i - i % 8 + _SHUFFLED[i % 8]]
    return ordered.load()


def store_transformed_a(src_a: object, dst_a: object, copy_atom_a: object) -> None:
    """Store a thread's transformed A to tensor memory, or to shared memory without a copy."""
    if copy_atom_a is None:
        cute.autovec_copy(src_a, dst_a)
    else:
        cute.copy(copy_atom_a, src_a, dst_a)


# --- scale factors ---------------------------------------------------------------------------------------------------


def get_gmem_layout_scale(
    scale_shape_mkl: Any, scale_granularity_m: int, scale_granularity_k: int, scale_major_mode: OperandMajorMode
) -> Any:
    """Return the layout of the scale factors of an A (M, K, L) in global memory: (M, K, L) with modes of stride 0.

    Args:
        scale_shape_mkl: M, K and L of A.
        scale_granularity_m: the rows that share a scale factor.
        scale_granularity_k: the elements along K that share one.
        scale_major_mode: along which of M and K the factors are contiguous.
    """
    m, k, l = scale_shape_mkl
    rows = m // scale_granularity_m
    columns = k // scale_granularity_k
    strides = (1, rows) if scale_major_mode is OperandMajorMode.MN else (columns, 1)
    return cute.make_layout(
        ((scale_granularity_m, rows), (scale_granularity_k, columns), l),
        stride=((0, strides[0]), (0, strides[1]), rows * columns),
    )


def get_smem_layout_scale(
    mma_tiler: Any,
    use_2cta_instrs: bool,
    scale_granularity_m: int,
    scale_granularity_k: int,
    scale_major_mode: OperandMajorMode,
    a_scale_dtype: object,
    num_scale_load2trans_stage: int,
) -> tuple[tuple[int, int], Any, Any]:
    """Return the tile (M, K) of scale factors, and its layout in shared memory of one stage, and of all stages.

    M counts the rows of both CTAs of a pair, and each has the factors of its own: the halves lie in the same place.

    Args:
        mma_tiler: the tile (M, N, K).
        use_2cta_instrs: whether MMAs are of a CTA pair.
        scale_granularity_m: the rows that share a scale factor.
        scale_granularity_k: the elements along K that share one.
        scale_major_mode: along which of M and K the factors are contiguous.
        a_scale_dtype: the element type of the factors.
        num_scale_load2trans_stage: the stages of their loads.
    """
    m, _, k = mma_tiler
    inside = min(scale_granularity_k, k)
    rows = m // scale_granularity_m // (2 if use_2cta_instrs else 1)
    columns = k // inside
    strides = (1, rows) if scale_major_mode is OperandMajorMode.MN else (columns, 1)
    own, own_stride = ((rows, 2), (strides[0], 0)) if use_2cta_instrs else (rows, strides[0])
    shape = ((scale_granularity_m, own), (inside, columns))
    stride = ((0, own_stride), (0, strides[1]))
    none = cute.make_swizzle(0, 4, 3)
    one = cute.make_composed_layout(none, 0, cute.make_layout(shape, stride=stride))
    staged = cute.make_layout((*shape, num_scale_load2trans_stage), stride=(*stride, rows * columns))
    return (m, k), one, cute.make_composed_layout(none, 0, staged)


def scale_tma_partition(
    tCsS: cute.Tensor, tCgS: cute.Tensor, tma_atom_s: object, block_in_cluster_coord_vmnk: Any, scale_cta_layout: object
) -> tuple[Any, Any]:
    """Return the parts of shared and global memory of the TMA load of scale factors, each factor once.

    Args:
        tCsS: the factors in shared memory, of all stages.
        tCgS: the factors in global memory.
        tma_atom_s: the TMA copy.
        block_in_cluster_coord_vmnk: the coordinate of the CTA in its cluster.
        scale_cta_layout: the CTAs that share the factors.
    """
    parts = cpasync.tma_partition(
        tma_atom_s,
        block_in_cluster_coord_vmnk[2],
        scale_cta_layout,
        cute.group_modes(tCsS, 0, 3),
        cute.group_modes(tCgS, 0, 3),
    )
    source, target = (_once(part) for part in parts)
    return source, target


def _once(part: Any) -> Any:
    layout = part.layout
    modes = [cute.filter_zeros(layout[0]), *(layout[i] for i in range(1, cute.rank(layout)))]
    return cute.make_tensor(part.iterator, cute.make_layout(modes))


def scale_partition(
    src_copy_a: Any, tCsS: object, transform_local_tidx: Any, mma_dtype: Any
) -> tuple[Any, Any, Any, Any]:
    """Return a thread's copy of scale factors, and what it copies.

    These are its part in shared memory (values, rests..., stages), the registers to copy it to, each factor once, and
    these registers seen as factors of its values of A.

    Args:
        src_copy_a: the tiled copy that loads A.
        tCsS: the factors in shared memory.
        transform_local_tidx: the thread's number among those that transform.
        mma_dtype: the element type of the registers.
    """
    thread = src_copy_a.get_slice(transform_local_tidx)
    part = thread.partition_S(tCsS)
    registers = cute.make_fragment_like(part[(None, None, None, None, 0)], mma_dtype)
    return thread, part, cute.make_tensor(registers.iterator, cute.filter_zeros(registers.layout)), registers


# --- epilogue --------------------------------------------------------------------------------------------------------


def epilog_tmem_copy_and_partition(
    cta_tile_shape_mnk: Any,
    c_layout: Any,
    c_dtype: Any,
    acc_dtype: Any,
    tidx: object,
    tAcc: Any,
    gC_mnl: Any,
    epi_tile: Any,
    use_2cta_instrs: Any,
) -> tuple[Any, Any, Any]:
    """Return the load of accumulators, a thread's part of them, and its registers for one epilogue tile."""
    atom = get_tmem_load_op(cta_tile_shape_mnk, c_layout, c_dtype, acc_dtype, epi_tile, use_2cta_instrs)
    acc = cute.flat_divide(tAcc[((None, None), 0, 0, None)], epi_tile)
    tiled = tcgen05.make_tmem_copy(atom, acc[(None, None, 0, 0, 0)])
    thread = tiled.get_slice(tidx)
    part = thread.partition_D(cute.flat_divide(gC_mnl[((None, None), 0, 0, None, None, None)], epi_tile))
    one = part[(None, None, None, *(0,) * (cute.rank(part) - 3))]
    return tiled, thread.partition_S(acc), cute.make_rmem_tensor(one.shape, acc_dtype)


def epilog_smem_copy_and_partition(
    c_layout: Any, c_dtype: Any, acc_dtype: Any, tiled_copy_t2r: Any, tTR_rC: object, tidx: object, sC: object
) -> tuple[Any, Any, Any]:
    """Return the store of C to shared memory, and a thread's part of its registers and of shared memory."""
    tiled = cute.make_tiled_copy_D(get_smem_store_op(c_layout, c_dtype, acc_dtype, tiled_copy_t2r), tiled_copy_t2r)
    return tiled, tiled.retile(tTR_rC), tiled.get_slice(tidx).partition_D(sC)


def epilog_gmem_copy_and_partition(
    c_dtype: object,
    tidx: Any,
    tma_atom_c: object,
    tiled_copy_t2r: Any,
    gC_mnl_tma: Any,
    gC_mnl_simt: Any,
    epi_tile: Any,
    sC: cute.Tensor,
) -> tuple[Any, Any, Any, Any, Any]:
    """Return the TMA store of C with its parts of shared and global memory, and the store of threads with its part.

    Either may be None: it is left out where its atom, or tiled copy, is None.
    """
    tiles = (None, None), 0, 0, None, None, None
    source = target = store = part = None
    if tma_atom_c is not None:
        by_tile = cute.flat_divide(gC_mnl_tma[tiles], epi_tile)
        source, target = cpasync.tma_partition(
            tma_atom_c, 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), cute.group_modes(by_tile, 0, 2)
        )
    if tiled_copy_t2r is not None:
        part = tiled_copy_t2r.get_slice(tidx).partition_D(cute.flat_divide(gC_mnl_simt[tiles], epi_tile))
        store = cute.make_copy_atom(CopyUniversalOp(), c_dtype)
    return tma_atom_c, source, target, store, part


# --- groups ----------------------------------------------------------------------------------------------------------


class ContiguousGGSearchState(ValueParts):
    """Where a search for the group of a tile stands: `cur_group_idx` counts from 1, and from `cur_start` on the tile's
    rows or columns end at `cur_boundary`, with those of the group, which begin at `cur_offset`.

    `last_tile_count` tiles come before the group, and `cur_tile_count` with it.
    """

    def __init__(
        self,
        last_tile_count: object,
        cur_boundary: object,
        cur_tile_count: object,
        cur_group_idx: object,
        cur_offset: object,
        cur_start: object,
    ) -> None:
        self.last_tile_count: Int32 = Int32(last_tile_count)
        self.cur_boundary: Int32 = Int32(cur_boundary)
        self.cur_tile_count: Int32 = Int32(cur_tile_count)
        self.cur_group_idx: Int32 = Int32(cur_group_idx)
        self.cur_offset: Int32 = Int32(cur_offset)
        self.cur_start: Int32 = Int32(cur_start)


def create_initial_contiguous_group_search_state() -> ContiguousGGSearchState:
    """Return the state before the first group."""
    return ContiguousGGSearchState(0, 0, 0, 0, 0, 0)


@cute.jit
def _search(
    groups: Any, tile: Any, extent: Any, cumsum: Any, group: Any, begin: Any, boundary: Any, first: Any, end: Any
):
    looking = tile >= end
    while looking:
        group += 1
        looking = group <= groups
        if looking:
            begin = boundary
            boundary = Int32(cumsum[group])
            first = end
            end += (boundary - begin + extent - 1) // extent
            looking = tile >= end
    return group, begin, boundary, first, end


def contiguous_group_search(
    cluster_tile_shape_mnk: Any,
    group_count: object,
    linear_idx: object,
    search_state: ContiguousGGSearchState,
    cumsum: object,
    search_mode: int,
) -> ContiguousGGSearchState:
    """Return the group of a tile, which comes later than that of `search_state`.

    Groups lie one behind the other along M (mode 0) or N (mode 1), from `cumsum[i]` to `cumsum[i + 1]`, and tiles do
    not cross from one to the next. Behind the last group `cur_group_idx` is larger than `group_count`.
    """
    extent = cute.size(cluster_tile_shape_mnk[search_mode])
    old = search_state
    tile = Int32(linear_idx)
    group, begin, boundary, first, end = _search(
        Int32(group_count),
        tile,
        extent,
        cumsum,
        old.cur_group_idx,
        old.cur_offset,
        old.cur_boundary,
        old.last_tile_count,
        old.cur_tile_count,
    )
    return ContiguousGGSearchState(first, boundary, end, group, begin, begin + (tile - first) * extent)


class ContiguousGroupWorkTileInfo(ValueParts):
    """The tile of a CTA: its number along M, its first column, its group, and the columns up to the group's end."""

    def __init__(
        self, group_count: Int32, cta_coord_m: Int32, coord_n: Int32, group_idx: Int32, distance_to_boundary: Int32
    ) -> None:
        self.group_count = group_count
        self.cta_coord_m = cta_coord_m
        self.coord_n = coord_n
        self.group_idx = group_idx
        self.distance_to_boundary = distance_to_boundary

    @property
    def is_valid_tile(self) -> Boolean:
        """Whether a group has the tile."""
        return Boolean(self.group_idx < self.group_count)


def make_contiguous_group_work_tile_info(group_count: Any, sTile_info: Any) -> ContiguousGroupWorkTileInfo:
    """Return the tile that a scheduler wrote to shared memory: four Int32 in the order of the fields."""
    m, n, group, distance = (Int32(sTile_info[i]) for i in range(4))
    return ContiguousGroupWorkTileInfo(group_count, m, n, group, distance)
