# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# pyright: reportReturnType=false, reportUnnecessaryIsInstance=false
"""Layout divisions and layout products: layouts split into tiles and repeated over them.

The functions differ in how they arrange the modes of the result:

=========  =====================================  ===========================
prefix     division by ``<TileM, TileN>``           layout product
=========  =====================================  ===========================
logical    ``((TileM,RestM),(TileN,RestN),L)``      ``(Block,Tiler)``
zipped     ``((TileM,TileN),(RestM,RestN,L))``      ``((M,N),(TilerM,TilerN))``
tiled      ``((TileM,TileN),RestM,RestN,L)``        ``((M,N),TilerM,TilerN)``
flat       ``(TileM,TileN,RestM,RestN,L)``          ``(M,N,TilerM,TilerN)``
=========  =====================================  ===========================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from .algebra import (
    as_tiler,
    cached,
    coalesce_layout,
    compact,
    complement_layout,
    compose_layouts,
    is_static_arg,
    ones_where_zero,
    tiled_modes,
)
from .int_tuple import as_int_tuple, is_weakly_congruent, prefix_product, pretty_str, product_each, tree_rank, wrap
from .inverses import right_inverse_layout
from .layout import (
    Layout,
    compact_order,
    concat,
    cosize,
    crd2idx,
    fast_layout,
    layouts_of,
    make_layout,
    plain_layout,
    size,
)
from .leaf import LayoutError, is_one, is_zero, leaf_ceil_div, leaf_mul
from .modes import UNIT, append, dice, slice_, slice_and_offset

if TYPE_CHECKING:
    from ...base_dsl.numeric.operator_types import Extent

__all__ = [
    "blocked_product",
    "flat_divide",
    "flat_product",
    "local_partition",
    "local_tile",
    "logical_divide",
    "logical_product",
    "make_fragment_layout",
    "make_layout_image_mask",
    "make_layout_tv",
    "raked_product",
    "tile_to_shape",
    "tiled_divide",
    "tiled_product",
    "zipped_divide",
    "zipped_product",
]

T = TypeVar("T")


@cached
def _logical_divide(layout: Layout, tiler: object) -> Layout:
    if tiler is None:
        return layout
    if isinstance(tiler, tuple):
        modes = tiled_modes(layout, tiler, "logical_divide")
        return concat([_logical_divide(m, t) for m, t in zip(modes, tiler)] + modes[len(tiler) :])
    if isinstance(tiler, int) and tiler > 0 and not isinstance(layout._shape, tuple):
        return _divide_mode(layout._shape, layout._stride, tiler)
    if not isinstance(tiler, Layout):
        tiler = compact(tiler)
    try:
        rest = complement_layout(tiler, coalesce_layout(layout, None)._shape)
        return compose_layouts(layout, concat([tiler, rest]))
    except LayoutError as e:
        raise LayoutError(f"the layout {layout} cannot be divided by the tiler {tiler}: {e}") from None


def _divide_mode(extent: object, stride: object, tile: int) -> Layout:
    """Return the common case of a division, one mode by an int, without the detour over complement and composition."""
    if tile == 1:
        return fast_layout((1, extent), (0, 0 if is_one(extent) else stride))
    count = leaf_ceil_div(extent, tile)
    return fast_layout((tile, count), (stride, 0 if is_one(count) else leaf_mul(tile, stride)))


def logical_divide(target: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return a layout split into tiles: mode 0 runs inside a tile, mode 1 over the tiles.

    A tile that does not divide an extent leaves a last tile that runs past it; inside a nested mode it raises
    LayoutError.

    Args:
        target: a layout or tensor.
        tiler: a layout (what one tile picks), an int n (``n:1``), None (keep the mode as it is), or a tuple of those,
            which applies mode by mode: ``((TileM,RestM),(TileN,RestN),L)``.
    """
    return layouts_of(target, lambda x: _logical_divide(x, as_tiler(tiler, "logical_divide")), "logical_divide")


@cached
def _zipped(split: object, layout: Layout, tiler: object) -> Layout:
    """Split mode by mode, then gather the tiles into mode 0 and the rests into mode 1."""
    if tiler is None:  # two modes are a tile and a rest already: (thread, value) of an MMA's operand
        return layout if tree_rank(layout._shape) == 2 else concat([UNIT, layout])
    if not isinstance(tiler, tuple):
        return (_logical_divide if split == 0 else _logical_product)(layout, tiler)
    modes = tiled_modes(layout, tiler, "zipped_divide" if split == 0 else "zipped_product")
    pairs = [_zipped(split, m, t) for m, t in zip(modes, tiler)]
    return concat([concat([p[0] for p in pairs]), concat([p[1] for p in pairs] + modes[len(tiler) :])])


def zipped_divide(target: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return :func:`logical_divide` with all tiles gathered in mode 0: ``((TileM,TileN),(RestM,RestN,L))``.

    Args:
        target: a layout or tensor.
        tiler: the tile, as for `logical_divide`. A mode whose tiler is None counts as divided if it has two modes,
            a tile and a rest; else it goes to the rests whole, with ``1:0`` as its tile.
    """
    return layouts_of(target, lambda x: _zipped(0, x, as_tiler(tiler, "zipped_divide")), "zipped_divide")


def tiled_divide(target: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return :func:`zipped_divide` with the rests as modes of their own: ``((TileM,TileN),RestM,RestN,L)``.

    Args:
        target: a layout or tensor.
        tiler: the tile, as for `logical_divide`.
    """
    return layouts_of(target, lambda x: _unpack_rest(_zipped(0, x, as_tiler(tiler, "tiled_divide"))), "tiled_divide")


def flat_divide(target: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return :func:`zipped_divide` with tiles and rests as modes of their own: ``(TileM,TileN,RestM,RestN,L)``.

    Args:
        target: a layout or tensor.
        tiler: the tile, as for `logical_divide`.
    """
    return layouts_of(target, lambda x: _unpack_both(_zipped(0, x, as_tiler(tiler, "flat_divide"))), "flat_divide")


def _unpack_rest(zipped: Layout) -> Layout:
    tile, rest = zipped
    return concat([tile, *rest])


def _unpack_both(zipped: Layout) -> Layout:
    tile, rest = zipped
    return concat([*tile, *rest])


def local_tile(
    input: T, tiler: object, coord: object, proj: object = None, *, loc: object = None, ip: object = None
) -> T:
    """Return one tile, or a row of tiles, of a tensor or layout: tile modes first, then those where ``coord`` is None.

    Args:
        input: the tensor or layout.
        tiler: the tile: an extent, a layout or None for each mode, as for `logical_divide`.
        coord: which tile, counted in tiles, for each mode. None keeps all tiles along a mode, as do modes it lacks.
        proj: which modes of ``tiler`` and ``coord`` count, those that are not None: ``(1,None,1)`` picks M and K of
            ``(M,N,K)``, for operand A. Modes of ``coord`` past those of ``proj`` (a batch) stay.
    """
    if proj is not None:
        tiler = dice(tiler, proj)
        if isinstance(coord, tuple) and isinstance(proj, tuple):
            coord = dice(coord[: len(proj)], proj) + coord[len(proj) :]
        else:
            coord = dice(coord, proj)
    tiled = zipped_divide(input, tiler)
    tile_rank, rest_rank = _zipped_ranks(tiled)
    inside: Any = (None,) * tile_rank if tile_rank > 1 or isinstance(_mode_shape(tiled, 0), tuple) else None
    if isinstance(coord, tuple):
        coord = coord + (None,) * (rest_rank - len(coord))
    return slice_(tiled, (inside, coord))


def local_partition(
    target: T, tiler: object, index: object, proj: object = None, *, loc: object = None, ip: object = None
) -> T:
    """Return the elements of a tensor or layout that one worker of a grid owns.

    The tensor is divided by the extents of ``tiler``; the result has the element at the worker's coordinate from every
    tile.

    Args:
        target: the tensor or layout.
        tiler: the workers: a layout (worker number by coordinate) or a shape.
        index: the number of the worker, such as the thread's index.
        proj: which modes of ``tiler`` count, as for `local_tile`.
    """
    workers = tiler if isinstance(tiler, Layout) else make_layout(tiler)
    coord = workers.get_flat_coord(index)
    extents = product_each(workers._shape)
    if proj is not None and isinstance(proj, tuple):
        coord = dice(wrap(coord), proj)
        extents = dice(extents, proj)
    tiled = zipped_divide(target, extents)
    tile_rank, rest_rank = _zipped_ranks(tiled)
    coord = wrap(coord)
    outside: Any = (None,) * rest_rank if isinstance(_mode_shape(tiled, 1), tuple) else None
    return slice_(tiled, (coord + (None,) * (tile_rank - len(coord)), outside))


def _mode_shape(x: object, mode: int) -> Any:
    return wrap(plain_layout(x, "local_tile")._shape)[mode]


def _zipped_ranks(x: object) -> tuple[int, int]:
    return tree_rank(_mode_shape(x, 0)), tree_rank(_mode_shape(x, 1))


@cached
def _logical_product(block: Layout, tiler: object) -> Layout:
    if tiler is None:
        return block
    if isinstance(tiler, tuple):
        modes = tiled_modes(block, tiler, "logical_product")
        return concat([_logical_product(m, t) for m, t in zip(modes, tiler)] + modes[len(tiler) :])
    if not isinstance(tiler, Layout):
        tiler = compact(tiler)
    try:
        rest = complement_layout(block, leaf_mul(size(block), cosize(tiler)))
        return concat([block, compose_layouts(rest, tiler)])
    except LayoutError as e:
        raise LayoutError(f"the block {block} cannot be repeated over {tiler}: {e}") from None


def logical_product(block: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return a block repeated over a tiler: mode 0 is the block, mode 1 runs over its copies.

    Post-condition: mode 0 is ``block``, and no two copies share an offset other than by ``tiler`` itself.

    Args:
        block: a layout.
        tiler: the layout of the copies; an int n stands for ``n:1``, None for no repetition, a tuple applies mode by
            mode.
    """
    return layouts_of(block, lambda x: _logical_product(x, as_tiler(tiler, "logical_product")), "logical_product")


def zipped_product(block: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return :func:`logical_product` with all blocks in mode 0 and all repetitions in mode 1.

    Args:
        block: a layout.
        tiler: the layout of the copies, as for `logical_product`.
    """
    return layouts_of(block, lambda x: _zipped(1, x, as_tiler(tiler, "zipped_product")), "zipped_product")


def tiled_product(block: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return :func:`zipped_product` with the repetitions as modes of their own.

    Args:
        block: a layout.
        tiler: the layout of the copies, as for `logical_product`.
    """
    return layouts_of(block, lambda x: _unpack_rest(_zipped(1, x, as_tiler(tiler, "tiled_product"))), "tiled_product")


def flat_product(block: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return :func:`zipped_product` with blocks and repetitions as modes of their own.

    Args:
        block: a layout.
        tiler: the layout of the copies, as for `logical_product`.
    """
    return layouts_of(block, lambda x: _unpack_both(_zipped(1, x, as_tiler(tiler, "flat_product"))), "flat_product")


def _interleaved_product(block: Layout, tiler: object, block_first: bool) -> Layout:
    if not isinstance(tiler, Layout):
        tiler = make_layout(tiler)
    modes = max(len(block), len(tiler))
    block = append(block, UNIT, modes)
    tiler = append(tiler, UNIT, modes)
    repeated = _logical_product(block, tiler)[1]
    # A mode of the tiler may come back nested, so the modes are told apart by the tiler, not by the result. A block that is
    # one leaf is paired with its copies as they are.
    copies = list(repeated) if isinstance(tiler._shape, tuple) and isinstance(block._shape, tuple) else [repeated]
    pairs = zip(block, copies) if block_first else zip(copies, block)
    return concat([concat(pair) for pair in pairs])


@cached
def _blocked_product(block: Layout, tiler: object) -> Layout:
    return _interleaved_product(block, tiler, True)


@cached
def _raked_product(block: Layout, tiler: object) -> Layout:
    raked = _interleaved_product(block, tiler, False)
    return coalesce_layout(raked, (1,) * len(raked))


def blocked_product(block: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return a block repeated over a tiler, copy beside copy: ``((BlockM,TilerM),(BlockN,TilerN))``.

    Mode i runs through mode i of the block first. A block of one leaf is paired with the tiler as it is nested: ``2:1``
    over ``(3):(1)`` is ``((2,(3))):((1,(2)))``.

    Args:
        block: a layout.
        tiler: the layout of the copies, or their shape. The one with fewer modes is padded with ``1:0``.
    """
    return layouts_of(block, lambda x: _blocked_product(x, as_tiler(tiler, "blocked_product")), "blocked_product")


def raked_product(block: T, tiler: object, *, loc: object = None, ip: object = None) -> T:
    """Return a block repeated over a tiler, interleaved: ``((TilerM,BlockM),(TilerN,BlockN))``.

    Mode i runs through mode i of the tiler first. Every mode of the result is coalesced.

    Args:
        block: a layout.
        tiler: the layout of the copies, or their shape. The one with fewer modes is padded with ``1:0``.
    """
    return layouts_of(block, lambda x: _raked_product(x, as_tiler(tiler, "raked_product")), "raked_product")


@cached
def _tile_to_shape(atom: Layout, target: object, order: object) -> Layout:
    modes = tree_rank(target)
    if len(atom) > modes:
        raise LayoutError(f"tile_to_shape: the atom {atom} has more modes than the target shape {pretty_str(target)}")
    padded = append(atom, UNIT, modes)
    block = product_each(padded._shape)
    whole = product_each(target)
    for b, t in zip(block, whole):
        if isinstance(b, int) and isinstance(t, int) and (b == 0 or t % b != 0):
            raise LayoutError(
                f"tile_to_shape: the extents of the atom {atom} must divide those of the target shape "
                f"{pretty_str(target)}, but {b} does not divide {t}"
            )
    counts = tuple(leaf_ceil_div(t, b) for t, b in zip(whole, block))
    tiler = compact(counts) if order is None else fast_layout(counts, compact_order(counts, wrap(order)))
    return _blocked_product(padded, tiler)


def tile_to_shape(atom: T, trg_shape: object, order: object = None, *, loc: object = None, ip: object = None) -> T:
    """Return an atom repeated until it fills a shape, such as a swizzled atom over a tile in shared memory.

    Post-condition: mode i of the result has the size of mode i of ``trg_shape`` and starts with the atom.

    Args:
        atom: a layout or composed layout. LayoutError is raised if a static extent of it does not divide that of
            ``trg_shape``.
        trg_shape: the shape to fill.
        order: a number for each mode, in whose order the atom is repeated; by default left to right.
    """
    target = as_int_tuple(trg_shape, "a target shape")
    if order is not None:
        order = as_int_tuple(order, "an order")
        if not is_weakly_congruent(order, target):
            raise LayoutError(
                f"tile_to_shape: the order {pretty_str(order)} needs one number per mode of the target shape {pretty_str(target)}"
            )
    return layouts_of(atom, lambda x: _tile_to_shape(x, target, order), "tile_to_shape")


def make_layout_tv(
    thr_layout: Any, val_layout: Any, *, loc: object = None, ip: object = None
) -> tuple[tuple[Any, ...], Layout]:
    """Return the tile covered by threads that hold values each, and the map (thread, value) -> index in that tile.

    ``thr_layout`` says where threads lie in the tile, ``val_layout`` where the values of one thread lie
    next to each other. Gives ``(tiler_mn, layout_tv)`` for :func:`make_tiled_copy`.
    """
    tile = _raked_product(thr_layout, val_layout)
    layout_tv = compose_layouts(right_inverse_layout(tile), make_layout((size(thr_layout), size(val_layout))))
    return product_each(tile._shape), layout_tv


def make_layout_image_mask(lay: Any, coord: object, mode: int, *, loc: object = None, ip: object = None) -> Extent:
    """Return the bit mask of the offsets of a layout along one mode, as multicast masks need it.

    Bit ``lay(coord with i in mode)`` is set for every i.

    Args:
        lay: the layout, of CTAs in a cluster for instance.
        coord: where the other modes are fixed.
        mode: the number of the mode, whose extent must be static.
    """
    modes = len(lay)
    fixed = wrap(coord)
    if len(fixed) != modes or not -modes <= mode < modes:
        raise LayoutError(f"make_layout_image_mask: {pretty_str(coord)} and mode {mode} do not fit the layout {lay}")
    at = tuple(None if i == mode % modes else c for i, c in enumerate(fixed))
    along, offset = slice_and_offset(at, lay)
    count = size(along)
    if not isinstance(count, int):
        raise LayoutError(f"make_layout_image_mask needs a static extent in mode {mode}, but the layout is {lay}")
    mask: Any = 0
    for i in range(count):
        bit = crd2idx(i, along)
        mask = mask | (1 << bit)
    return mask if is_zero(offset) else mask << offset


def make_fragment_layout(layout: object, *, loc: object = None, ip: object = None) -> Layout:
    """Return the compact layout in registers for what a thread holds of ``layout``.

    Mode 0 (the values of one atom) is compact with its first mode fastest, the other modes keep the order
    of their strides. Static strides of 0 stay 0, so repeated elements are held once.
    """
    layout = plain_layout(layout, "make_fragment_like")
    if len(layout) <= 1 or not is_static_arg(layout._shape):
        return compact(layout._shape)
    first = layout[0]
    rest = layout[1:]
    extents = ones_where_zero(first._stride, first._shape)
    block = fast_layout(first._shape, prefix_product(extents))
    counts = ones_where_zero(rest._stride, rest._shape)
    tail = fast_layout(counts, compact_order(counts, _order_of(rest._stride)))
    whole = _unpack_rest(_zipped(1, block, tail))
    return fast_layout(layout._shape, whole._stride)


def _order_of(stride: object) -> Any:
    """Return strides as an order; basis elements and dynamic strides are sorted last."""
    if isinstance(stride, tuple):
        return tuple(_order_of(d) for d in stride)
    return stride if isinstance(stride, int) else 1 << 62
