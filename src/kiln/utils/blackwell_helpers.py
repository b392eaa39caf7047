"""Building blocks of GEMMs for sm_100: the MMA, shared-memory layouts of operands, the epilogue's tile and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from .._support import lazy
from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import BFloat16, Float4E2M1FN, Float16, Float32, Int8, NumericMeta, TFloat32, Uint8
from ..cute import (
    ComposedLayout,
    CopyAtom,
    Layout,
    TiledMma,
    append,
    make_copy_atom,
    make_fragment_like,
    make_layout,
    make_tiled_mma,
    size,
    tile_to_shape,
)
from ..cute.nvgpu import CopyUniversalOp, tcgen05
from ..cute.nvgpu.common import CtaGroup, OperandMajorMode
from ..cute.nvgpu.cpasync import CopyBulkTensorTileG2SMulticastOp, CopyBulkTensorTileG2SOp
from ..cute.nvgpu.smem_layouts import SmemLayoutAtomKind, make_smem_layout_atom, tile_to_mma_shape
from ..cute.nvgpu.tcgen05 import OperandSource, Pack, Repetition, get_tmem_copy_properties
from ..cute.nvgpu.warp import MmaSM120BlockScaledOp, StMatrix8x8x16bOp, StMatrix16x8x8bOp
from .hopper_helpers import get_smem_layout_atom, sm90_get_smem_store_op
from .layout_enum import LayoutEnum
from .smem_capacity import SMEM_CAPACITY
from .tmem_columns import get_num_tmem_alloc_cols

__dir__ = lazy.listing(__name__)
__all__ = [
    "SMEM_CAPACITY",
    "check_gemm_tma_alignment",
    "cluster_shape_to_tma_atom_A",
    "cluster_shape_to_tma_atom_B",
    "cluster_shape_to_tma_atom_SFB",
    "compute_acc_tmem_cols_per_stage",
    "compute_epilogue_tile_shape",
    "compute_epilogue_tile_size",
    "get_layoutSFA_TV",
    "get_layoutSFB_TV",
    "get_num_tmem_alloc_cols",
    "get_permutation_mnk",
    "get_smem_layout_atom_ab",
    "get_smem_layout_atom_epi",
    "get_smem_store_op",
    "get_tmem_copy_properties",
    "get_tmem_load_op",
    "make_blockscaled_trivial_tiled_mma",
    "make_smem_layout",
    "make_smem_layout_a",
    "make_smem_layout_atom",
    "make_smem_layout_b",
    "make_smem_layout_epi",
    "make_trivial_tiled_mma",
    "partition_fragment_SFA",
    "partition_fragment_SFB",
    "sm120_get_smem_store_op",
    "thrfrg_SFA",
    "thrfrg_SFB",
    "tile_to_mma_shape",
]

TensorOrLayout = TypeVar("TensorOrLayout")
_LANES_OF_WARP = 32
_LANES = 128


def _layout(major_mode: object) -> LayoutEnum:
    if not isinstance(major_mode, OperandMajorMode):
        raise type_error(
            f"major_mode is {major_mode!r}",
            "OperandMajorMode.K or OperandMajorMode.MN, as LayoutEnum.from_tensor(tensor).mma_major_mode() gives it",
        )
    return LayoutEnum.ROW_MAJOR if major_mode is OperandMajorMode.K else LayoutEnum.COL_MAJOR


def _names(types: tuple[object, ...]) -> str:
    return ", ".join(getattr(t, "__name__", repr(t)) for t in types)


def _two_types(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Return whether a call has a type for A and one for B, not one for both."""
    return "b_dtype" in kwargs or (len(args) > 1 and isinstance(args[1], NumericMeta))


def make_trivial_tiled_mma(*args: object, loc: object = None, ip: object = None, **kwargs: object) -> TiledMma:
    """Return a tiled MMA of one `tcgen05.mma` for operands of given types. Needs sm_100a or later.

    Called as `(ab_dtype, a_leading_mode, b_leading_mode, acc_dtype, cta_group, mma_tiler_mn, a_source=SMEM)`, or with
    `a_dtype, b_dtype` in place of `ab_dtype`. Float32 is multiplied as TFloat32; TypeError if there is no such MMA.

    Args:
        ab_dtype: the element type of A and B.
        a_leading_mode: the contiguous mode of A, `OperandMajorMode.K` or `MN`.
        b_leading_mode: the contiguous mode of B.
        acc_dtype: the type of the accumulators.
        cta_group: `CtaGroup.ONE`, or `TWO` for a CTA pair.
        mma_tiler_mn: M and N of the MMA, of a pair those of both CTAs.
        a_source: `OperandSource.SMEM`, or `TMEM` for A in tensor memory.
    """
    if _two_types(args, kwargs):
        return _dense_mma(*args, **kwargs)
    if "ab_dtype" in kwargs:
        kwargs["a_dtype"] = kwargs["b_dtype"] = kwargs.pop("ab_dtype")
        return _dense_mma(*args, **kwargs)
    if not args:
        raise type_error("make_trivial_tiled_mma takes the element type of A and B first")
    return _dense_mma(args[0], args[0], *args[1:], **kwargs)


def _dense_mma(
    a_dtype: object,
    b_dtype: object,
    a_leading_mode: object,
    b_leading_mode: object,
    acc_dtype: object,
    cta_group: object,
    mma_tiler_mn: Any,
    a_source: object = OperandSource.SMEM,
) -> TiledMma:
    shape = tuple(mma_tiler_mn)[:2]
    places = (cta_group, a_source, a_leading_mode, b_leading_mode)
    types = {a_dtype, b_dtype}
    if types <= {TFloat32, Float32}:
        op: Any = tcgen05.MmaTF32Op((*shape, 8), *places)
    elif types in ({Float16}, {BFloat16}):
        op = tcgen05.MmaF16BF16Op(a_dtype, acc_dtype, (*shape, 16), *places)
    elif types in ({Int8}, {Uint8}):
        op = tcgen05.MmaI8Op(a_dtype, (*shape, 32), *places)
    elif types <= set(tcgen05.MmaF8F6F4Op._TYPES):
        op = tcgen05.MmaF8F6F4Op(a_dtype, b_dtype, acc_dtype, (*shape, 32), *places)
    else:
        raise type_error(
            f"there is no tcgen05 MMA of {_names((a_dtype, b_dtype))}",
            "Float32 or TFloat32; Float16, BFloat16, Int8 or Uint8 twice; or two floats of at most 8 bits",
        )
    return make_tiled_mma(op)


def make_blockscaled_trivial_tiled_mma(*args: Any, loc: object = None, ip: object = None, **kwargs: Any) -> TiledMma:
    """Return a tiled MMA of one `tcgen05.mma` whose operands have scale factors. Needs sm_100a or later.

    Called as `(ab_dtype, a_leading_mode, b_leading_mode, sf_dtype, sf_vec_size, cta_group, mma_tiler_mn,
    a_source=SMEM)`, or with `a_dtype, b_dtype` in place of `ab_dtype`.

    Args:
        ab_dtype: the element type of A and B, a float of 4, 6 or 8 bits.
        a_leading_mode: the contiguous mode of A, `OperandMajorMode.K` or `MN`.
        b_leading_mode: the contiguous mode of B.
        sf_dtype: the type of the scale factors: Float8E8M0FNU, or Float8E4M3FN for NVFP4.
        sf_vec_size: the elements along K that share one: 32, or 16 for Float4E2M1FN twice; others raise TypeError.
        cta_group: `CtaGroup.ONE`, or `TWO` for a CTA pair.
        mma_tiler_mn: M and N of the MMA, of a pair those of both CTAs.
        a_source: `OperandSource.SMEM`, or `TMEM` for A in tensor memory.
    """
    if _two_types(args, kwargs):
        return _scaled_mma(*args, **kwargs)
    if "ab_dtype" in kwargs:
        kwargs["a_dtype"] = kwargs["b_dtype"] = kwargs.pop("ab_dtype")
        return _scaled_mma(*args, **kwargs)
    if not args:
        raise type_error("make_blockscaled_trivial_tiled_mma takes the element type of A and B first")
    return _scaled_mma(args[0], args[0], *args[1:], **kwargs)


def _scaled_mma(
    a_dtype: object,
    b_dtype: object,
    a_leading_mode: object,
    b_leading_mode: object,
    sf_dtype: object,
    sf_vec_size: int,
    cta_group: object,
    mma_tiler_mn: Any,
    a_source: object = OperandSource.SMEM,
) -> Any:
    shape = tuple(mma_tiler_mn)[:2]
    both_fp4 = a_dtype is Float4E2M1FN and b_dtype is Float4E2M1FN
    if both_fp4 and sf_vec_size == 32:
        op: Any = tcgen05.MmaMXF4Op((*shape, 64), cta_group, a_source)
    elif both_fp4 and sf_vec_size == 16:
        op = tcgen05.MmaMXF4NVF4Op(sf_dtype, (*shape, 64), cta_group, a_source)
    elif sf_vec_size == 32:
        op = tcgen05.MmaMXF8F6F4Op(a_dtype, b_dtype, (*shape, 32), cta_group, a_source, a_leading_mode, b_leading_mode)
    else:
        raise type_error(
            f"sf_vec_size is {sf_vec_size!r} for {_names((a_dtype, b_dtype))}", "32, or 16 for Float4E2M1FN twice"
        )
    if sf_dtype is not op.sf_dtype:
        raise type_error(f"sf_dtype is {_names((sf_dtype,))}", f"{op.sf_dtype.__name__} with sf_vec_size={sf_vec_size}")
    return make_tiled_mma(op)


def get_smem_layout_atom_ab(
    major_mode: OperandMajorMode,
    element_type: object,
    smem_shape_mn_k: Any,
    sparsity: int = 1,
    *,
    loc: object = None,
    ip: object = None,
) -> SmemLayoutAtomKind:
    """Return the kind of layout atom with the widest swizzle that fits an operand in shared memory.

    Elements of 32 bits contiguous along MN are swizzled in pieces of 32 bytes, in which `tcgen05.mma` transposes them.

    Args:
        major_mode: the contiguous mode, `OperandMajorMode.K` or `MN`.
        element_type: the type of the elements.
        smem_shape_mn_k: the tile (MN, K), whose contiguous extent the atom's rows divide.
        sparsity: of so many elements along K one is stored.
    """
    k_major = _layout(major_mode) is LayoutEnum.ROW_MAJOR
    extent = size(smem_shape_mn_k[1]) // sparsity if k_major else size(smem_shape_mn_k[0])
    return _for_transposing(get_smem_layout_atom(_layout(major_mode), element_type, extent), element_type)


def _for_transposing(kind: SmemLayoutAtomKind, element_type: Any) -> SmemLayoutAtomKind:
    wide = kind is SmemLayoutAtomKind.MN_SW128 and element_type.width == 32
    return SmemLayoutAtomKind.MN_SW128_32B if wide else kind


def make_smem_layout(
    leading_mode: OperandMajorMode,
    smem_tile_shape: object,
    a_dtype: object,
    num_stages: int,
    *,
    loc: object = None,
    ip: object = None,
) -> ComposedLayout:
    """Return the swizzled layout of a tile (MN, K, stages) in shared memory.

    Args:
        leading_mode: the contiguous mode, `OperandMajorMode.K` or `MN`.
        smem_tile_shape: the tile (MN, K).
        a_dtype: the element type.
        num_stages: the stages of the pipeline.
    """
    return make_smem_layout_epi(a_dtype, _layout(leading_mode), smem_tile_shape, num_stages)


def make_smem_layout_a(
    tiled_mma: Any,
    mma_tiler_mnk: Any,
    a_dtype: Any,
    num_stages: int,
    *,
    is_k_major: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> ComposedLayout:
    """Return the layout of one CTA's A in shared memory: ((M, K) of a call, rest of M, rest of K, stages).

    Args:
        tiled_mma: the tiled MMA.
        mma_tiler_mnk: the tile (M, N, K), of a CTA pair that of both.
        a_dtype: the element type of A.
        num_stages: the stages of the pipeline.
        is_k_major: whether A is contiguous along K; by default as the MMA says.
    """
    m, _, k = mma_tiler_mnk
    shape = tiled_mma.partition_shape_A((size(m), size(k)))
    return _operand_layout(shape, a_dtype, num_stages, is_k_major, tiled_mma.op.a_major_mode)


def make_smem_layout_b(
    tiled_mma: Any,
    mma_tiler_mnk: Any,
    b_dtype: Any,
    num_stages: int,
    *,
    is_k_major: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> ComposedLayout:
    """Return the layout of one CTA's B in shared memory: ((N, K) of a call, rest of N, rest of K, stages).

    Args:
        tiled_mma: the tiled MMA.
        mma_tiler_mnk: the tile (M, N, K), of a CTA pair that of both.
        b_dtype: the element type of B.
        num_stages: the stages of the pipeline.
        is_k_major: whether B is contiguous along K; by default as the MMA says.
    """
    _, n, k = mma_tiler_mnk
    shape = tiled_mma.partition_shape_B((size(n), size(k)))
    return _operand_layout(shape, b_dtype, num_stages, is_k_major, tiled_mma.op.b_major_mode)


def _operand_layout(
    shape: Any, dtype: object, stages: int, is_k_major: bool | None, major: OperandMajorMode
) -> ComposedLayout:
    if is_k_major is not None:
        major = OperandMajorMode.K if is_k_major else OperandMajorMode.MN
    (rows, depth), rest_rows, rest_depth = shape
    extents = (size(rows) * size(rest_rows), size(depth) * size(rest_depth))
    atom = make_smem_layout_atom(get_smem_layout_atom_ab(major, dtype, extents), dtype)
    order = (0, 1, 2) if major is OperandMajorMode.K else (1, 0, 2)
    return tile_to_mma_shape(atom, append(shape, stages), order)


def make_smem_layout_epi(
    epi_dtype: Any, epi_layout: LayoutEnum, epi_tile: Any, epi_stage: int, *, loc: object = None, ip: object = None
) -> ComposedLayout:
    """Return the layout of the epilogue's tile (M, N, stages) in shared memory, swizzled for TMA stores.

    Args:
        epi_dtype: the element type of the output.
        epi_layout: whether the output is row- or column-major.
        epi_tile: the tile (M, N) of one store, extents or layouts.
        epi_stage: how many tiles.
    """
    m, n = (size(extent) for extent in epi_tile)
    rows = epi_layout is LayoutEnum.ROW_MAJOR
    kind = get_smem_layout_atom_epi(epi_layout, epi_dtype, epi_tile)
    return tile_to_shape(make_smem_layout_atom(kind, epi_dtype), (m, n, epi_stage), (0, 1, 2) if rows else (1, 0, 2))


def get_smem_layout_atom_epi(
    layout: LayoutEnum, element_type: object, epi_tile: Sequence[Any], *, loc: object = None, ip: object = None
) -> SmemLayoutAtomKind:
    """Return the kind of layout atom with the widest swizzle that fits the epilogue's tile.

    Args:
        layout: whether the output is row- or column-major.
        element_type: the element type of the output.
        epi_tile: the tile (M, N) of one store, extents or layouts.
    """
    mode = 1 if layout is LayoutEnum.ROW_MAJOR else 0
    return _for_transposing(get_smem_layout_atom(layout, element_type, _contiguous(epi_tile[mode])), element_type)


def _contiguous(mode: object) -> int:
    """Return the extent of a mode, of a layout that of its first mode: two warps may have parts of it."""
    return size(mode[0]) if isinstance(mode, Layout) and isinstance(mode.shape, tuple) else size(mode)


def _tma_op(
    cluster_shape: Any, atom_thr_id: object, mode: int, always_for_pairs: bool = False
) -> CopyBulkTensorTileG2SOp | CopyBulkTensorTileG2SMulticastOp:
    ctas = size(atom_thr_id)
    extents = [size(extent) for extent in tuple(cluster_shape)[:2]]
    if extents[0] % ctas:
        raise ValueError(f"Cluster shape not divisible by MMA size: {cluster_shape} and {atom_thr_id}")
    extents[0] //= ctas
    group = CtaGroup.TWO if ctas == 2 else CtaGroup.ONE
    several = extents[mode] > 1 or (always_for_pairs and ctas == 2)
    return (CopyBulkTensorTileG2SMulticastOp if several else CopyBulkTensorTileG2SOp)(group)


def cluster_shape_to_tma_atom_A(
    cluster_shape_mnk: object, atom_thr_id: object, *, loc: object = None, ip: object = None
) -> CopyBulkTensorTileG2SOp | CopyBulkTensorTileG2SMulticastOp:
    """Return the TMA load of A: multicast if the cluster has several CTAs along N, which need the same A.

    Args:
        cluster_shape_mnk: the CTAs of the cluster.
        atom_thr_id: `thr_id` of the tiled MMA: one CTA or a pair; M of the cluster is a multiple, else ValueError.
    """
    return _tma_op(cluster_shape_mnk, atom_thr_id, 1)


def cluster_shape_to_tma_atom_B(
    cluster_shape_mnk: object, atom_thr_id: object, *, loc: object = None, ip: object = None
) -> CopyBulkTensorTileG2SOp | CopyBulkTensorTileG2SMulticastOp:
    """Return the TMA load of B: multicast if the cluster has several MMAs along M, which need the same B.

    Args:
        cluster_shape_mnk: the CTAs of the cluster.
        atom_thr_id: `thr_id` of the tiled MMA: one CTA or a pair; M of the cluster is a multiple, else ValueError.
    """
    return _tma_op(cluster_shape_mnk, atom_thr_id, 0)


def cluster_shape_to_tma_atom_SFB(
    cluster_shape_mnk: object, atom_thr_id: object, *, loc: object = None, ip: object = None
) -> CopyBulkTensorTileG2SOp | CopyBulkTensorTileG2SMulticastOp:
    """Return the TMA load of the scale factors of B, all of which both CTAs of a pair need.

    Args:
        cluster_shape_mnk: the CTAs of the cluster.
        atom_thr_id: `thr_id` of the tiled MMA: one CTA or a pair; M of the cluster is a multiple, else ValueError.
    """
    return _tma_op(cluster_shape_mnk, atom_thr_id, 0, always_for_pairs=True)


def check_gemm_tma_alignment(
    m: int,
    n: int,
    k: int,
    a_dtype: Any,
    b_dtype: Any,
    d_dtype: Any,
    a_major: str,
    b_major: str,
    d_major: str | None,
    *,
    output_tensor_name: str = "D",
) -> None:
    """Raise ValueError for an operand whose contiguous extent is not a multiple of 16 bytes, which TMA asks for.

    Args:
        m: the rows of A and D.
        n: the rows of B and columns of D.
        k: the columns of A and B.
        a_dtype: the element type of A.
        b_dtype: the element type of B.
        d_dtype: the element type of the output; None leaves it unchecked.
        a_major: the contiguous mode of A, "m" or "k".
        b_major: the contiguous mode of B, "n" or "k".
        d_major: the contiguous mode of the output, "m" or "n"; None leaves it unchecked.
        output_tensor_name: what the error calls the output.
    """
    extents = {"m": m, "n": n, "k": k}
    operands = (("A", a_dtype, a_major), ("B", b_dtype, b_major), (output_tensor_name, d_dtype, d_major))
    for name, dtype, major in operands:
        if dtype is None or major is None:
            continue
        if major not in extents:
            raise type_error(f"the major mode of {name} is {major!r}", '"m", "n" or "k"')
        if extents[major] * dtype.width % 128:
            raise ValueError(
                f"{name} is contiguous along {major.upper()}, which has {extents[major]} elements of {dtype.__name__}: "
                f"TMA takes multiples of 16 bytes, {128 // dtype.width} elements"
            )


def _warps(cta_m: int, use_2cta: bool, shape: Any) -> tuple[int, int]:
    """Return how the four warps of an epilogue lie on the tile of a CTA: of a pair with 64 rows each, half of the lanes
    have half of the columns."""
    return shape if shape is not None else (2, 2) if cta_m == 64 and use_2cta else (4, 1)


def compute_epilogue_tile_size(
    cta_tile_m: int,
    cta_tile_n: int,
    use_2cta: bool,
    elem_width_d: int,
    elem_width_c: int | None = None,
    d_is_m_major: bool = True,
    c_is_m_major: bool = True,
    tmem_warp_shape_mn: object = None,
) -> tuple[int, int]:
    """Return the (M, N) that an epilogue stores at a time.

    Args:
        cta_tile_m: M of the CTA's tile.
        cta_tile_n: N of the CTA's tile.
        use_2cta: whether MMAs are of a CTA pair.
        elem_width_d: the bits of an output element.
        elem_width_c: the bits of an element of the C that the epilogue adds; None if it adds none.
        d_is_m_major: whether the output is contiguous along M.
        c_is_m_major: whether C is contiguous along M.
        tmem_warp_shape_mn: how the four warps lie on the tile; by default as the accumulator does.
    """
    warps_m, warps_n = _warps(cta_tile_m, use_2cta, tmem_warp_shape_mn)
    m = min(cta_tile_m, _LANES_OF_WARP * warps_m)
    widest = max(elem_width_d, elem_width_c or 0)
    if elem_width_c is None:
        n = (8192 if widest == 4 else 4096) // m
    elif widest == 32:
        n = 16 if cta_tile_m > 64 and cta_tile_n <= 128 else 32
    elif widest == 16:
        n = 32 if cta_tile_n <= 128 else 64
    else:
        n = 64
    least = 8 if d_is_m_major else 128 // elem_width_d
    if elem_width_c is not None:
        least = max(least, 8 if c_is_m_major else 128 // elem_width_c)
    n = min(cta_tile_n, max(n, least * warps_n))
    return m, n if cta_tile_n % n == 0 else cta_tile_n


def compute_acc_tmem_cols_per_stage(
    cta_tile_m: int, cta_tile_n: int, use_2cta: bool, mma_n: int, transform_a_source_is_tmem: bool
) -> int:
    """Return the columns of tensor memory that one stage of accumulators of a CTA takes.

    Fewer than 128 rows leave lanes free, in which a pair of CTAs has further columns of N, and so has one CTA for every
    other MMA along N, unless A is in tensor memory.

    Args:
        cta_tile_m: M of the CTA's tile: 32, 64 or 128, else TypeError is raised.
        cta_tile_n: N of the CTA's tile.
        use_2cta: whether MMAs are of a CTA pair.
        mma_n: N of one MMA.
        transform_a_source_is_tmem: whether A is in tensor memory.
    """
    if cta_tile_m not in (32, 64, 128) or (cta_tile_m == 32 and not use_2cta):
        raise type_error(f"cta_tile_m is {cta_tile_m}", "128 or 64, and 32 with use_2cta")
    if use_2cta:
        return cta_tile_n // (_LANES // cta_tile_m)
    if cta_tile_m == _LANES or transform_a_source_is_tmem:
        return cta_tile_n
    return -(-cta_tile_n // (2 * mma_n)) * mma_n


def compute_epilogue_tile_shape(
    cta_tile_shape: Any,
    use_2cta_instrs: bool,
    layout_d: LayoutEnum,
    elem_ty_d: Any,
    *,
    layout_c: Any = None,
    elem_ty_c: Any = None,
    tmem_warp_shape_mn: object = None,
    loc: object = None,
    ip: object = None,
) -> tuple[Layout, Layout]:
    """Return the epilogue's tile as a tiler (M, N) of layouts: N in two parts where two warps share the columns.

    Args:
        cta_tile_shape: the tile (M, N, ...) of the CTA.
        use_2cta_instrs: whether MMAs are of a CTA pair.
        layout_d: whether the output is row- or column-major.
        elem_ty_d: the element type of the output.
        layout_c: whether the C that the epilogue adds is row- or column-major.
        elem_ty_c: the element type of C; None if it adds none.
        tmem_warp_shape_mn: how the four warps lie on the tile; by default as the accumulator does.
    """
    cta_m, cta_n = (size(extent) for extent in cta_tile_shape[:2])
    m, n = compute_epilogue_tile_size(
        cta_m,
        cta_n,
        use_2cta_instrs,
        elem_ty_d.width,
        None if elem_ty_c is None else elem_ty_c.width,
        layout_d.is_m_major_c(),
        layout_c is None or layout_c.is_m_major_c(),
        tmem_warp_shape_mn,
    )
    _, warps_n = _warps(cta_m, use_2cta_instrs, tmem_warp_shape_mn)
    columns = make_layout(n) if warps_n == 1 else make_layout((n // warps_n, warps_n), stride=(1, cta_n // warps_n))
    return make_layout(m), columns


def _load_op(lanes: int, acc: int, d: int, m_major: bool) -> Any:
    """Return the operation and packing that loads accumulators so that D can be stored well, None if there is none."""
    none = Pack.NONE
    packed = Pack.PACK_16b_IN_32b
    if acc == 16:
        if d != 16:
            return None
        return (tcgen05.Ld16x128bOp, packed) if lanes == 16 or m_major else (tcgen05.Ld32x32bOp, packed)
    if lanes == 32:
        return (tcgen05.Ld16x256bOp if m_major and d in (8, 16) else tcgen05.Ld32x32bOp), none
    if d == 16 or (m_major and d in (8, 32)):
        return tcgen05.Ld16x256bOp, none
    return {32: tcgen05.Ld16x128bOp, 8: tcgen05.Ld16x32bx2Op}.get(d), none


def get_tmem_load_op(
    cta_tile_shape: Any,
    layout_d: LayoutEnum,
    elem_ty_d: Any,
    elem_ty_acc: Any,
    epi_tile: Any,
    use_2cta_instrs: bool,
    *,
    tmem_warp_shape_mn: object = None,
    loc: object = None,
    ip: object = None,
) -> CopyAtom:
    """Return the atom that loads the accumulators of an epilogue's tile, with as many columns as a warp has of it.

    Args:
        cta_tile_shape: the tile (M, N, ...) of the CTA.
        layout_d: whether the output is row- or column-major.
        elem_ty_d: the element type of the output.
        elem_ty_acc: the type of the accumulators; ValueError if the two do not go together.
        epi_tile: the epilogue's tile, of `compute_epilogue_tile_shape`.
        use_2cta_instrs: whether MMAs are of a CTA pair.
        tmem_warp_shape_mn: how the four warps lie on the tile; by default as the accumulator does.
    """
    cta_m = size(cta_tile_shape[0])
    warps_m, warps_n = _warps(cta_m, use_2cta_instrs, tmem_warp_shape_mn)
    lanes = min(cta_m // warps_m, _LANES_OF_WARP)
    if elem_ty_d.width < 8 and lanes != _LANES_OF_WARP:
        raise ValueError("Num dp must be 32.")
    load = _load_op(lanes, elem_ty_acc.width, elem_ty_d.width, layout_d.is_m_major_c())
    if load is None or load[0] is None:
        raise ValueError(f"Can not handle acc/d type combination: elem_ty_acc={elem_ty_acc}, elem_ty_d={elem_ty_d}")
    op, pack = load
    columns = op.shape.bits // 32 * (2 if pack is not Pack.NONE else 1)
    return make_copy_atom(op(Repetition(size(epi_tile[1]) // warps_n // columns), pack), elem_ty_acc)


def get_smem_store_op(
    layout_d: LayoutEnum,
    elem_ty_d: Any,
    elem_ty_acc: Any,
    tiled_tmem_load: object,
    *,
    loc: object = None,
    ip: object = None,
) -> CopyAtom:
    """Return the atom that stores an epilogue's results to shared memory: `stmatrix` where registers hold its
    matrices.

    Args:
        layout_d: whether the output is row- or column-major.
        elem_ty_d: the element type of the output.
        elem_ty_acc: the type of the accumulators.
        tiled_tmem_load: the copy, or atom, that loads the accumulators.
    """
    lanes, bits, repeat, pack = get_tmem_copy_properties(tiled_tmem_load)
    m_major = layout_d.is_m_major_c()
    acc = elem_ty_acc.width
    d = elem_ty_d.width
    if lanes == 16:
        plain = pack is Pack.NONE
        words = acc == 32 and d == 32 and not m_major and bits == 128 and plain
        halves = acc == 32 and d == 16 and bits == 256 and plain
        packed = acc == 16 and d == 16 and bits == 128 and not plain
        if words or halves or packed:
            return make_copy_atom(StMatrix8x8x16bOp(m_major, 2 if repeat == 1 else 4), elem_ty_d)
        if acc == 32 and d == 8 and m_major and bits == 256 and plain:
            return make_copy_atom(StMatrix16x8x8bOp(True, min(repeat, 4)), elem_ty_d)
    return make_copy_atom(CopyUniversalOp(), elem_ty_d)


# --- sm_120 and sm_121: warp MMA with block scales -------------------------------------------------------------------


def get_permutation_mnk(
    tile_shape_mnk: Any, sf_vec_size: int, use_mxf8f6f4: bool, *, loc: object = None, ip: object = None
) -> tuple[Any, Any, int]:
    """Return `permutation_mnk` of a tiled MMA with block scales on sm_120, for a CTA tile.

    N is permuted within 32 columns, so that `ldmatrix` of four matrices loads the B of two MMAs that a warp does.

    Args:
        tile_shape_mnk: the tile (M, N, K): M a multiple of 16, N of 8, else TypeError is raised.
        sf_vec_size: the elements that share a scale factor, 16 or 32.
        use_mxf8f6f4: whether operands are 8- or mixed 6- and 4-bit floats, whose scale factors cover 32.
    """
    m, n, _ = (size(extent) for extent in tile_shape_mnk)
    if sf_vec_size not in (16, 32) or (use_mxf8f6f4 and sf_vec_size != 32):
        raise type_error(
            f"sf_vec_size is {sf_vec_size!r}", "32; 16 or 32 for Float4E2M1FN twice, where use_mxf8f6f4 is False"
        )
    if m % 16 or n % 8:
        raise type_error(f"tile_shape_mnk is {tile_shape_mnk}", "M is a multiple of 16, N of 8")
    if n % 32 == 0:
        columns: Any = make_layout((8, 2, 2), stride=(1, 16, 8))
    else:
        columns = make_layout((8, 2), stride=(1, 8)) if n % 16 == 0 else 8
    return min(m, 128), columns, 32 if use_mxf8f6f4 else 64


def _scaled(tiled_mma: object) -> Any:
    if not isinstance(tiled_mma, TiledMma) or not isinstance(tiled_mma.op, MmaSM120BlockScaledOp):
        raise type_error(f"{tiled_mma} has no scale factors", "a tiled MMA of warp.MmaMXF4Op, MmaMXF8Op, ...")
    return tiled_mma


def get_layoutSFA_TV(tiled_mma: object) -> Any:
    """Return the layout (thread, value) -> index in (M, K) of the scale factors of A of a tiled MMA on sm_120.

    Args:
        tiled_mma: a tiled MMA of `warp.MmaMXF4Op`, `MmaMXF4NVF4Op`, `MmaMXF8Op`, ...; TypeError for others.
    """
    return _scaled(tiled_mma)._tv_layout("SFA")


def get_layoutSFB_TV(tiled_mma: object) -> Any:
    """Return the layout (thread, value) -> index in (N, K) of the scale factors of B of a tiled MMA on sm_120.

    Args:
        tiled_mma: a tiled MMA of `warp.MmaMXF4Op`, `MmaMXF4NVF4Op`, `MmaMXF8Op`, ...; TypeError for others.
    """
    return _scaled(tiled_mma)._tv_layout("SFB")


def thrfrg_SFA(sfa_tensor: TensorOrLayout, tiled_mma: object) -> TensorOrLayout:
    """Return scale factors of A (M, K) as ((thread of the atom, threads along (M, K)), (values, (rest of M, rest of K))).

    The first mode has a thread's coordinate, and the second all of its values: `[(v, (m, k)), (None, None)]`.

    Args:
        sfa_tensor: the scale factors, or their layout.
        tiled_mma: a tiled MMA of `warp.MmaMXF4Op`, `MmaMXF4NVF4Op`, `MmaMXF8Op`, ...; TypeError for others.
    """
    return _scaled(tiled_mma)._thrfrg("SFA", sfa_tensor)


def thrfrg_SFB(sfb_tensor: TensorOrLayout, tiled_mma: object) -> TensorOrLayout:
    """Return scale factors of B (N, K) as ((thread of the atom, threads along (N, K)), (values, (rest of N, rest of K))).

    Args:
        sfb_tensor: the scale factors, or their layout.
        tiled_mma: a tiled MMA of `warp.MmaMXF4Op`, `MmaMXF4NVF4Op`, `MmaMXF8Op`, ...; TypeError for others.
    """
    return _scaled(tiled_mma)._thrfrg("SFB", sfb_tensor)


def partition_fragment_SFA(sfa_tensor: object, thr_mma: object, tidx: object) -> Any:
    """Return registers for a thread's scale factors of A.

    Args:
        sfa_tensor: the scale factors (M, K) of the tile.
        thr_mma: the thread's slice of the tiled MMA.
        tidx: the thread's index, which the slice has already.
    """
    return make_fragment_like(_scaled(thr_mma)._partition("SFA", sfa_tensor))


def partition_fragment_SFB(sfb_tensor: object, thr_mma: object, tidx: object) -> Any:
    """Return registers for a thread's scale factors of B.

    Args:
        sfb_tensor: the scale factors (N, K) of the tile.
        thr_mma: the thread's slice of the tiled MMA.
        tidx: the thread's index, which the slice has already.
    """
    return make_fragment_like(_scaled(thr_mma)._partition("SFB", sfb_tensor))


def sm120_get_smem_store_op(
    layout_d: LayoutEnum, elem_ty_d: Any, elem_ty_acc: object, *, loc: object = None, ip: object = None
) -> Any:
    """Return the atom that stores D of a warp MMA, m16n8, to shared memory: `stmatrix` for 16 bits, else plain stores.

    Args:
        layout_d: whether the output is row- or column-major; `stmatrix` transposes if M is contiguous.
        elem_ty_d: the element type of the output.
        elem_ty_acc: the type of the accumulators.
    """
    plain = sm90_get_smem_store_op(layout_d, elem_ty_d, elem_ty_acc)  # checks the arguments
    return make_copy_atom(StMatrix8x8x16bOp(layout_d.is_m_major_c(), 2), elem_ty_d) if elem_ty_d.width == 16 else plain
