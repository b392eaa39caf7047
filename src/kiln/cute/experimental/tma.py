"""TMA copies of slices of tensors: the atom and its tensor map follow from the slice and the tile in shared memory.

The launch encodes the maps of tensors that it knows and passes them as further parameters. The map of a tensor whose
address only the kernel knows (it loaded it) is written by the warp that copies, to a workspace, whenever the address
is another one.
"""

from __future__ import annotations

from typing import Any

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int16, Int64
from ...pipeline.multicast import is_leader
from .. import arch
from ..arch.values import kernel_only
from ..atoms.copying import copy as copy_with_atom
from ..atoms.copying import guarded
from ..deferred_dialects import nvgpu
from ..layout.algebra import composition, filter_zeros
from ..layout.basis import ScaledBasis
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import flatten_to_tuple, pretty_str, transform_leaf, unflatten
from ..layout.layout import Layout, make_identity_layout, make_layout, rank, size
from ..layout.leaf import is_zero
from ..layout.modes import group_modes
from ..nvgpu import cpasync
from ..nvgpu.access import memory
from ..nvgpu.common import CtaGroup
from ..nvgpu.tma_atom import TmaInfo, atom_of_values, operand_values, tensor_in_gmem
from ..nvgpu.tma_partition import tma_partition
from ..tensor.pointer import AddressSpace, Pointer, element_bits, pointer_from_address
from ..tensor.tensor import TracedTensor, make_rmem_tensor
from .at_launch import TensorAtLaunch
from .operation_types import TMA_LOADS, OperationTypeEnum
from .program import MAP_BYTES, KernelNeeds, needs

__all__ = ["get_cta_v_map_ab", "get_cta_v_map_c", "tma_load", "tma_load_multicast", "tma_store"]

_OPERANDS = {"A": "A", "SFA": "A", "B": "B", "SFB": "B"}


def get_cta_v_map_ab(
    gmem_tensor: object,
    mma_tiler_mnk: object,
    tiled_mma: Any,
    input_operand: str,
    *,
    loc: object = None,
    ip: object = None,
) -> Layout:
    """Return the map from (MMA, MMA_M or MMA_N, MMA_K) of a CTA's tile of an operand to coordinates of its tensor.

    `input_operand` is "A" or "B", or "SFA" or "SFB" for their scale factors.
    """
    tensor = tensor_in_gmem(gmem_tensor, "get_cta_v_map_ab")
    if input_operand not in _OPERANDS:
        raise type_error(f"input_operand of get_cta_v_map_ab is {input_operand!r}", "'A', 'B', 'SFA' or 'SFB'")
    if not hasattr(tiled_mma, "partition_shape_A"):
        raise type_error(f"get_cta_v_map_ab takes a tiled MMA, got {type(tiled_mma).__name__}")
    if input_operand == "SFB" and size(tiled_mma.thr_id) == 2:
        raise type_error(
            "get_cta_v_map_ab of SFB for an MMA of two CTAs, each of which loads all scale factors of B",
            "pass a tiled MMA of CtaGroup.ONE with the tile of SFB",
        )
    return operand_values(_OPERANDS[input_operand], tensor, mma_tiler_mnk, tiled_mma)


def get_cta_v_map_c(gmem_tensor: object, epi_tile: Any) -> Layout:
    """Return the map from an epilogue tile (M, N) to coordinates of the tensor that it is stored to."""
    tensor = tensor_in_gmem(gmem_tensor, "get_cta_v_map_c")
    return composition(make_identity_layout(tensor.shape), tuple(epi_tile))


def tma_load(
    src: Any,
    dst: Any,
    mbar: Any,
    *,
    cta_v_map: Layout | None = None,
    tma_operation_type: Any = None,
    vmnk_layout: Any = None,
    multicast_mode: int | None = None,
    internal_type: Any = None,
    update_expect_tx: bool = True,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy a slice of a tensor in global memory to a tile in shared memory, and complete its bytes at an mbarrier.

    A warp calls it, and one thread starts the copy. `cta_v_map` maps the tile to coordinates of the tensor; without it
    slice and tile have the same modes. The bytes are added to what the mbarrier expects, unless `update_expect_tx` is
    False because a pipeline has announced them. With an operation of two SMs both CTAs of a pair call it with their own
    slice; the mbarrier of the even CTA counts the bytes of both.
    """
    kind = OperationTypeEnum.SM90_TMA_LOAD if tma_operation_type is None else tma_operation_type
    if kind not in TMA_LOADS:
        names = ", ".join(k.name for k in TMA_LOADS)
        raise type_error(f"tma_operation_type of tma_load is {getattr(kind, 'name', kind)}", names)
    pair, multicast = TMA_LOADS[kind]
    if multicast != (multicast_mode is not None) or multicast != (vmnk_layout is not None):
        raise type_error(
            f"{kind.name} with vmnk_layout={vmnk_layout} and multicast_mode={multicast_mode}",
            "both with a multicast operation, and neither with another",
        )
    make = cpasync.CopyBulkTensorTileG2SMulticastOp if multicast else cpasync.CopyBulkTensorTileG2SOp
    op = make(CtaGroup.TWO if pair else CtaGroup.ONE)
    more: dict[str, Any] = {}
    cta = 0
    ctas = 1
    if multicast_mode is not None:
        here = vmnk_layout.get_flat_coord(arch.make_warp_uniform(arch.block_idx_in_cluster()))
        cta = here[multicast_mode]
        ctas = size(vmnk_layout, mode=[multicast_mode])
        more["mcast_mask"] = cpasync.create_tma_multicast_mask(vmnk_layout, here, multicast_mode)
    copied = _Copy("tma_load", op, src, dst, cta_v_map, cta, ctas, internal_type)
    if update_expect_tx:

        def expect() -> None:
            with arch.elect_one():
                arch.mbarrier_expect_tx(mbar, copied.bytes * (2 if pair else 1))

        guarded(is_leader() if pair else True, expect)
    copy_with_atom(copied.atom, copied.coordinates, copied.tile, tma_bar_ptr=mbar, **copied.map(stores=False), **more)


def tma_load_multicast(
    src: object,
    dst: object,
    mbar: object,
    *,
    vmnk_layout: object,
    cta_v_map: Layout | None = None,
    tma_operation_type: object,
    multicast_mode: int,
    update_expect_tx: bool = True,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy a slice as `tma_load` does, to all CTAs of the cluster `vmnk_layout` that differ in one mode only.

    `multicast_mode` is that mode: 2 for A, 1 for B. Each of these CTAs copies an equal part to all of them.
    """
    tma_load(
        src,
        dst,
        mbar,
        cta_v_map=cta_v_map,
        tma_operation_type=tma_operation_type,
        vmnk_layout=vmnk_layout,
        multicast_mode=multicast_mode,
        update_expect_tx=update_expect_tx,
    )


def tma_store(
    src: object,
    dst: object,
    *,
    cta_v_map: Layout | None = None,
    internal_type: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy a tile in shared memory to a slice of a tensor in global memory; elements outside the tensor are left out.

    A warp calls it, and one thread starts the copy, as part of its bulk group (`TMAStorePipeline`).
    """
    copied = _Copy("tma_store", cpasync.CopyBulkTensorTileS2GOp(), dst, src, cta_v_map, 0, 1, internal_type)
    copy_with_atom(copied.atom, copied.tile, copied.coordinates, **copied.map(stores=True))


class _Copy:
    """A slice of a tensor and a tile in shared memory, as an atom copies them."""

    def __init__(
        self,
        what: str,
        op: Any,
        gmem: object,
        smem: object,
        v_map: Layout | None,
        cta: object,
        ctas: Any,
        internal_type: Any,
    ) -> None:
        kernel_only(what)
        self._needs = needs(what)
        smem = memory(smem, f"the tile of {what}", AddressSpace.smem)
        gmem = tensor_in_gmem(gmem, what)
        extents = gmem._extents
        if extents is None or extents.root is None:
            raise type_error(
                f"{what} of {gmem}, and the tensor that it was cut from is not known",
                "cut the slice, in the same branch or loop, from an argument of the kernel or from cute.make_tensor",
            )
        self._tensor = tensor = TracedTensor(*extents.root)
        tile = _own_map(extents.layout, tensor.shape) if v_map is None else v_map
        if not isinstance(tile, Layout) or not tile.is_static():
            raise type_error(f"cta_v_map of {what} is {tile}", "a static layout, as get_cta_v_map_ab returns it")
        if size(tile) != size(smem.layout) or size(gmem.layout) != size(tile):
            raise type_error(
                f"{what} of a slice {pretty_str(gmem.shape)} and a tile {pretty_str(smem.shape)} in shared memory, "
                f"with a cta_v_map of the shape {pretty_str(tile.shape)}",
                "all three have the same number of elements",
            )
        layout = smem.layout
        swizzle = smem.iterator.swizzle
        if isinstance(layout, ComposedLayout):
            layout, swizzle = layout.outer, layout.inner
        repeats = any(is_zero(d) for d in flatten_to_tuple(layout.stride))
        if repeats and internal_type is None and element_bits(smem.element_type) == 8:
            internal_type = Int16  # scale factors: rows of 512 bytes in place of 16
        seen = layout if swizzle is None or not swizzle.num_bits else ComposedLayout(swizzle, 0, layout)
        self._at_launch = TensorAtLaunch(tensor, self._needs.frame.entry)
        info = self._info(op, seen, tile, ctas, internal_type)
        self.atom = info.atom
        start = unflatten(extents.origin, tensor.shape)
        place = composition(info.tma_tensor._domain_offset(start), tile)
        parts = [group_modes(smem, 0, rank(smem)), group_modes(place, 0, rank(place))]
        self.tile, self.coordinates = tma_partition(info.atom, cta, make_layout(ctas), *parts)
        if repeats:
            self.tile = filter_zeros(self.tile)
            self.coordinates = filter_zeros(self.coordinates)
        self.bytes = size(self.tile.layout) * element_bits(smem.element_type) // 8
        """What arrives in shared memory of a CTA, from all CTAs of a multicast."""

    def _info(self, op: Any, smem_layout: object, tile: Layout, ctas: int, internal_type: object) -> TmaInfo:
        """Return the atom: its map is a parameter of the kernel if the launch can encode it."""
        at_launch = self._at_launch
        facts = (smem_layout, tile, ctas, internal_type)
        if not at_launch.whole:
            if not at_launch.is_layout_static:
                raise type_error(
                    f"TMA with {self._tensor}, a tensor whose extents or strides only the kernel knows",
                    "its layout is static, or computed from arguments of the kernel",
                )
            return atom_of_values(op, self._tensor, *facts)
        key = type(op), vars(op).get("cta_group"), str(smem_layout), str(tile), ctas, internal_type, at_launch.key
        tensor_map = self._needs.maps_by_key.get(key)
        if tensor_map is None:

            def encode(arguments: Any) -> ir.Value:
                return atom_of_values(op, at_launch.in_host_code(arguments), *facts).atom.trait.map

            tensor_map = self._needs.maps_by_key[key] = self._needs.parameter(nvgpu.tma.tensor_map_type(), encode)
        return atom_of_values(op, self._tensor, *facts, map_=tensor_map)

    def map(self, stores: bool) -> dict[str, Any]:
        """Return the keyword of a copy by a map that the kernel writes itself; nothing for other maps."""
        if self._at_launch.whole:
            return {}
        return {"tma_desc_ptr": _written_map(self._needs, self.atom, self._tensor, stores)}


def _own_map(layout: Layout, shape: object) -> Layout:
    """Return the map of a slice to coordinates of a tensor, from that to flat coordinates."""
    paths = list(_paths(shape, ()))
    own = lambda d: ScaledBasis(d.value, paths[d.mode[0]]) if isinstance(d, ScaledBasis) else d
    return Layout(layout.shape, transform_leaf(own, layout.stride))


def _paths(shape: object, path: tuple[int, ...]) -> Any:
    if isinstance(shape, tuple):
        for i, part in enumerate(shape):
            yield from _paths(part, (*path, i))
    else:
        yield path or (0,)


def _written_map(of: KernelNeeds, atom: object, tensor: TracedTensor, stores: bool) -> Pointer:
    """Return the map of a tensor in the workspace, written by this warp when the tensor's address changes.

    Copies in flight still read older maps. Stores are waited for. Loads fill stages of a pipeline, one round of which
    can be in flight: as many maps as stages are written in turn.
    """
    count = 1 if stores else of.stages
    if not count:
        raise type_error(
            f"tma_load of {tensor}, a tensor whose address only the kernel knows, without a TMAToUMMAPipeline",
            "create the pipeline that it fills: its stages bound how many maps are in use",
        )
    workspace, first = of.maps(count)
    # at the start of the kernel, where its constants end
    with ir.InsertionPoint(next(o for o in of.frame.entry.operations if o.operation.name != "arith.constant")):
        state = make_rmem_tensor(2, Int64)  # the address of the tensor, the number of the map
        state[0] = Int64(0)
        state[1] = Int64(0)
    address = Int64(tensor.iterator.toint())
    ctas = Int64(1)
    cta = Int64(0)
    for extent, index in zip(reversed(arch.grid_dim()), reversed(arch.block_idx()), strict=True):
        ctas = ctas * extent
        cta = cta * extent + index
    base = (Int64(workspace.toint()) + (MAP_BYTES - 1)) & -MAP_BYTES

    def place(space: AddressSpace) -> Pointer:
        number = ((state[1] + first) * ctas + cta) * MAP_BYTES
        return pointer_from_address(base + number, Int64, space, MAP_BYTES)

    def write() -> None:
        state[0] = address
        if stores:
            with arch.elect_one():
                arch.cp_async_bulk_commit_group()
                arch.cp_async_bulk_wait_group(0, read=True)
            arch.sync_warp()
        else:
            state[1] = (state[1] + 1) % count
        cpasync.copy_tensormap(atom, place(AddressSpace.gmem))
        arch.sync_warp()
        cpasync.fence_tma_desc_acquire(place(AddressSpace.gmem))

    guarded(state[0] != address, write)
    return place(AddressSpace.generic)
