"""Layouts of the scale factors of block-scaled MMAs, in global, shared and tensor memory.

Scale factors lie in chunks of 512 bytes, of 128 rows (of A, or columns of B) and four scale factors of each: that of
row r with number s is at byte 16 (r % 32) + 4 (r / 32) + s. An element's coordinate along K counts elements, so a scale
factor has a mode of stride 0, as long as the vector that shares it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._support import lazy
from ..base_dsl.diagnostics import type_error
from ..cute import Layout, append, ceil_div, make_layout, size, tile_to_shape
from ..cute.nvgpu.common import OperandMajorMode

__dir__ = lazy.listing(__name__)
__all__ = [
    "BlockScaledBasicChunk",
    "make_smem_layout_sf",
    "make_smem_layout_sfa",
    "make_smem_layout_sfb",
    "make_tmem_layout_sfa",
    "make_tmem_layout_sfb",
    "sm120_make_smem_layout_sfa",
    "sm120_make_smem_layout_sfb",
    "tile_atom_to_shape_SF",
]

_ROWS = 128
_SCALES = 4
_CHUNK = _ROWS * _SCALES
_LANE = 1 << 18
"""The bytes from a lane of tensor memory to the next, as pointers count."""
_SUBPARTITION = 32


class BlockScaledBasicChunk:
    """The layout of the scale factors of 128 rows and four vectors of `sf_vec_size` elements along K."""

    def __init__(self, sf_vec_size: int, major_mode: OperandMajorMode = OperandMajorMode.K) -> None:
        if sf_vec_size not in (16, 32):
            raise type_error(f"sf_vec_size is {sf_vec_size!r}", "16 or 32")
        self.sf_vec_size = sf_vec_size
        self.major_mode = major_mode

    @property
    def layout(self) -> Any:
        """The layout of (row, element along K), or of (element along K, row) for the major mode MN."""
        rows = make_layout((32, 4), stride=(16, 4))
        vectors = make_layout((self.sf_vec_size, _SCALES), stride=(0, 1))
        return make_layout([rows, vectors] if self.major_mode is OperandMajorMode.K else [vectors, rows])


def tile_atom_to_shape_SF(Shape: Any, sf_vec_size: int, *, loc: object = None, ip: object = None) -> Any:
    """Return the layout of the scale factors of an operand in global memory: whole chunks, along K first, then MN, then
    L.

    Args:
        Shape: the shape (MN, K, L) of the operand, in elements.
        sf_vec_size: the elements along K that share a scale factor, 16 or 32.
    """
    chunk = BlockScaledBasicChunk(sf_vec_size).layout
    steps = (_ROWS, sf_vec_size * _SCALES)
    whole = tuple(ceil_div(size(extent), step) * step for extent, step in zip(Shape, steps, strict=False))
    return tile_to_shape(chunk, (*whole, *Shape[2:]), (1, 0, *range(2, len(Shape))))


def _steps(inside: int, further: int, step: int, chunk: int) -> tuple[Any, Any]:
    """Return shape and stride of the MMAs along K, `inside` of which share a chunk."""
    if inside == 1:
        return further, 0 if further == 1 else chunk
    if further == 1:
        return inside, step
    return (inside, further), (step, chunk)


def _smem_layout(tiled_mma: Any, rows: int, rest: int, depth: int, sf_vec_size: int, stages: int) -> Any:
    scales = tiled_mma.shape_mnk[2] // sf_vec_size
    """The scale factors of a row in one MMA."""
    words, left = divmod(depth, sf_vec_size * _SCALES)
    if scales not in (1, 2, _SCALES) or left or not words:
        raise type_error(
            f"a tile with K = {depth} of an MMA with K = {tiled_mma.shape_mnk[2]} has scale factors for {sf_vec_size} "
            "elements each",
            f"K a multiple of {sf_vec_size * _SCALES}, with 1, 2 or {_SCALES} scale factors in an MMA: they come in chunks "
            f"of {_ROWS} x {_SCALES}",
        )
    groups = -(-rows // _ROWS)
    whole = _CHUNK * words * groups
    steps, step_strides = _steps(_SCALES // scales, words, scales, _CHUNK)
    first = (((32, 4), groups), (sf_vec_size, scales))
    strides = (((16, 4), 0 if groups == 1 else _CHUNK * words), (0, 0 if scales == 1 else 1))
    return make_layout(
        (first, rest, steps, stages), stride=(strides, 0 if rest == 1 else whole, step_strides, whole * rest)
    )


def _tmem_layout(smem_layout: Any, sf_vec_size: int) -> Any:
    """Return the layout in tensor memory of scale factors that lie in shared memory as ((MN, K) of a chunk or an MMA, rest
    of MN, rest of K): four along K in a cell, rows along lanes and then columns, and then what is further along K."""
    (inside_mn, inside_k), rest, steps = smem_layout.shape[:3]
    rows = size(inside_mn)
    scales = size(inside_k) // sf_vec_size
    rest = size(rest)
    count = size(steps)
    if rows % _ROWS or _SCALES % scales or count % (_SCALES // scales):
        raise type_error(
            f"scale factors in shared memory have the layout {smem_layout}",
            f"((MN, K), rest of MN, rest of K) with {_ROWS} rows or a multiple, and 1, 2 or {_SCALES} scale factors for "
            f"{sf_vec_size} elements each: as make_smem_layout_sfa and make_smem_layout_sfb lay them out",
        )
    columns = rows // 32
    whole = _SCALES * columns
    steps, step_strides = _steps(_SCALES // scales, count * scales // _SCALES, scales, whole * rest)
    first = (((32, columns), 4), (sf_vec_size, scales))
    strides = (((_LANE, _SCALES), _SUBPARTITION * _LANE), (0, 0 if scales == 1 else 1))
    return make_layout((first, rest, steps), stride=(strides, 0 if rest == 1 else whole, step_strides))


def _tile_a(tiled_mma: Any, mma_tiler_mnk: Any) -> tuple[int, int, int]:
    """Return a CTA's rows of A in one MMA, the number of MMAs along M, and the elements along K."""
    m, _, k = (size(extent) for extent in mma_tiler_mnk)
    return tiled_mma.shape_mnk[0] // size(tiled_mma.thr_id), _mmas("M", m, tiled_mma.shape_mnk[0]), k


def _tile_b(tiled_mma: Any, mma_tiler_mnk: Any) -> tuple[int, int, int]:
    """Return the columns of B in one MMA, all of which each CTA of a pair needs, the number of MMAs along N, and K."""
    _, n, k = (size(extent) for extent in mma_tiler_mnk)
    return tiled_mma.shape_mnk[1], _mmas("N", n, tiled_mma.shape_mnk[1]), k


def _mmas(mode: str, extent: int, of_mma: int) -> int:
    """Return the number of MMAs along a mode of the tile."""
    if extent % of_mma or not extent:
        raise type_error(f"the tile has {mode} = {extent}", f"a multiple of the MMA's {mode}, {of_mma}")
    return extent // of_mma


def make_smem_layout_sf(
    tile_shape: Sequence[object], sf_vec_size: int, num_stages: int, *, loc: object = None, ip: object = None
) -> Layout:
    """Return the layout (MN, K, stages) of the scale factors of a tile in shared memory: whole chunks, along K first.

    Args:
        tile_shape: the tile (MN, K) in elements: MN a multiple of 128, K of four vectors, else TypeError is raised.
        sf_vec_size: the elements along K that share a scale factor, 16 or 32.
        num_stages: the stages of the pipeline.
    """
    rows, depth = (size(extent) for extent in tile_shape)
    if rows % _ROWS or depth % (sf_vec_size * _SCALES):
        raise type_error(
            f"a tile of {rows} rows and {depth} elements along K has scale factors for {sf_vec_size} each",
            f"multiples of {_ROWS} and of {sf_vec_size * _SCALES}: scale factors come in chunks of {_ROWS} x {_SCALES}",
        )
    tile = tile_to_shape(BlockScaledBasicChunk(sf_vec_size).layout, (rows, depth), (1, 0))
    return append(tile, make_layout(num_stages, stride=rows * depth // sf_vec_size))


def make_smem_layout_sfa(
    tiled_mma: object,
    mma_tiler_mnk: object,
    sf_vec_size: int,
    num_stages: int,
    *,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Return the layout of a CTA's scale factors of A in shared memory: ((M, K) of an MMA, rest of M, rest of K,
    stages).

    Args:
        tiled_mma: a tiled MMA with scale factors.
        mma_tiler_mnk: the tile (M, N, K), of a CTA pair that of both: M a multiple of the MMA's, K of four vectors, else
            TypeError is raised.
        sf_vec_size: the elements along K that share a scale factor, 16 or 32.
        num_stages: the stages of the pipeline.
    """
    return _smem_layout(tiled_mma, *_tile_a(tiled_mma, mma_tiler_mnk), sf_vec_size, num_stages)


def make_smem_layout_sfb(
    tiled_mma: object,
    mma_tiler_mnk: object,
    sf_vec_size: int,
    num_stages: int,
    *,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Return the layout of a CTA's scale factors of B in shared memory; N is rounded up to a multiple of 128.

    Args:
        tiled_mma: a tiled MMA with scale factors.
        mma_tiler_mnk: the tile (M, N, K), of a CTA pair that of both: N a multiple of the MMA's, K of four vectors, else
            TypeError is raised.
        sf_vec_size: the elements along K that share a scale factor, 16 or 32.
        num_stages: the stages of the pipeline.
    """
    return _smem_layout(tiled_mma, *_tile_b(tiled_mma, mma_tiler_mnk), sf_vec_size, num_stages)


def make_tmem_layout_sfa(
    tiled_mma: object,
    mma_tiler_mnk: object,
    sf_vec_size: int,
    smem_layout: object,
    *,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Return the layout of the scale factors of A in tensor memory, where each 32 lanes hold all of them.

    Args:
        tiled_mma: a tiled MMA with scale factors.
        mma_tiler_mnk: the tile (M, N, K).
        sf_vec_size: the elements along K that share a scale factor, 16 or 32.
        smem_layout: one stage of `make_smem_layout_sfa`; TypeError if it is not laid out so.
    """
    return _tmem_layout(smem_layout, sf_vec_size)


def make_tmem_layout_sfb(
    tiled_mma: object,
    mma_tiler_mnk: object,
    sf_vec_size: int,
    smem_layout: object,
    *,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Return the layout of the scale factors of B in tensor memory, where each 32 lanes hold all of them.

    Args:
        tiled_mma: a tiled MMA with scale factors.
        mma_tiler_mnk: the tile (M, N, K).
        sf_vec_size: the elements along K that share a scale factor, 16 or 32.
        smem_layout: one stage of `make_smem_layout_sfb`; TypeError if it is not laid out so.
    """
    return _tmem_layout(smem_layout, sf_vec_size)


def _sm120_layout(tiled_mma: Any, extent: int, depth: int, sf_vec_size: int, stages: int) -> Any:
    """Return the layout (MN, K, stages) of scale factors in shared memory, in whole chunks along MN, then along K."""
    scales = tiled_mma.shape_mnk[2] // sf_vec_size
    words, rest = divmod(depth, sf_vec_size * _SCALES)
    if rest or extent % _ROWS:
        raise type_error(
            f"a tile of {extent} rows or columns and {depth} elements along K has scale factors for {sf_vec_size} each",
            f"multiples of {_ROWS} and of {sf_vec_size * _SCALES}: scale factors come in chunks of {_ROWS} x {_SCALES}",
        )
    groups = extent // _ROWS
    rows = make_layout((32, 4, groups), stride=(16, 4, _CHUNK))
    inside = (_SCALES // scales, words)
    depths = make_layout((sf_vec_size, scales, inside), stride=(0, 1, (scales, _CHUNK * groups)))
    return make_layout([rows, depths, make_layout(stages, stride=_CHUNK * groups * words)])


def sm120_make_smem_layout_sfa(
    tiled_mma: object, tile_shape_mnk: Any, sf_vec_size: int, num_stages: int, *, loc: object = None, ip: object = None
) -> Any:
    """Return the layout (M, K, stages) of the scale factors of A in shared memory, for the warp MMA of sm_120.

    Args:
        tiled_mma: a tiled MMA with block scales.
        tile_shape_mnk: the tile (M, N, K): M a multiple of 128, K of four vectors, else TypeError is raised.
        sf_vec_size: the elements along K that share a scale factor, 16 or 32.
        num_stages: the stages of the pipeline.
    """
    m, _, k = (size(extent) for extent in tile_shape_mnk)
    return _sm120_layout(tiled_mma, m, k, sf_vec_size, num_stages)


def sm120_make_smem_layout_sfb(
    tiled_mma: object, tile_shape_mnk: Any, sf_vec_size: int, num_stages: int, *, loc: object = None, ip: object = None
) -> Any:
    """Return the layout (N, K, stages) of the scale factors of B in shared memory; N is at least 128.

    Args:
        tiled_mma: a tiled MMA with block scales.
        tile_shape_mnk: the tile (M, N, K): K a multiple of four vectors, else TypeError is raised.
        sf_vec_size: the elements along K that share a scale factor, 16 or 32.
        num_stages: the stages of the pipeline.
    """
    _, n, k = (size(extent) for extent in tile_shape_mnk)
    return _sm120_layout(tiled_mma, max(n, _ROWS), k, sf_vec_size, num_stages)
