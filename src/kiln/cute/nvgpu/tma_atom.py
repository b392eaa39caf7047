"""TMA atoms, made from a tensor and the layout of its tiles in shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...base_dsl import trace as tracing
from ...base_dsl.diagnostics import runtime_error, type_error
from ...base_dsl.typing import Int16, Int64, NumericMeta
from ..arch.values import kernel_only
from ..atoms.atom import CopyAtom
from ..deferred_dialects import nvgpu
from ..layout.algebra import composition
from ..layout.basis import ScaledBasis
from ..layout.int_tuple import flatten_to_tuple, product_each, wrap
from ..layout.layout import Layout, make_identity_layout
from ..layout.picture import Drawn
from ..layout.tiling import make_layout_image_mask
from ..tensor.iterator import AddressSpace, Coordinates
from ..tensor.pointer import Pointer
from ..tensor.tensor import TracedTensor
from .tensor_map import describe, extents
from .tma_ops import TILE_MAKER, CopyBulkTensorTileG2SMulticastOp, KernelMap, TmaCopyOp, TmaTrait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tensor_map import TensorMapFacts

__all__ = [
    "TmaInfo",
    "create_tma_multicast_mask",
    "make_tiled_tma_atom",
    "make_tiled_tma_atom_A",
    "make_tiled_tma_atom_B",
    "prefetch_descriptor",
]


class TmaInfo(Drawn):
    """An atom, its coordinate tensor, and the layout of its tiles in shared memory. Unpacks into the first two."""

    def __init__(
        self, copy_atom: CopyAtom, tma_tensor: Any, smem_layout: Any = None, tile: Layout | None = None
    ) -> None:
        self.atom = copy_atom
        self.tma_tensor = tma_tensor
        self.smem_layout = smem_layout
        self.tile = tile
        """From coordinates of a tile to those of the tensor, for pictures."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.atom, self.tma_tensor))

    def __getitem__(self, index: int) -> Any:
        return (self.atom, self.tma_tensor)[index]

    def __len__(self) -> int:
        return 2

    def __repr__(self) -> str:
        return f"TmaInfo({self.atom.op}, {self.tma_tensor}, {self.smem_layout})"


def tensor_in_gmem(tensor: object, what: str) -> TracedTensor:
    if not isinstance(tensor, TracedTensor) or not isinstance(tensor._iterator, Pointer):
        raise type_error(f"{what} takes a tensor in global memory, got {type(tensor).__name__}")
    if tensor.memspace not in (AddressSpace.gmem, AddressSpace.generic):
        raise type_error(f"{what} takes a tensor in global memory, got {tensor}")
    if not isinstance(tensor.layout, Layout):
        raise type_error(f"{what} takes a tensor with a plain layout, got {tensor}")
    return tensor


def make_tiled_tma_atom(
    op: object,
    gmem_tensor: object,
    smem_layout_: object,
    cta_tiler: object,
    num_multicast: int = 1,
    *,
    gmem_coord_tensor: object = None,
    internal_type: object = None,
    loc: object = None,
    ip: object = None,
) -> TmaInfo:
    """Return a TMA atom that copies tiles of a tensor to or from shared memory, and its coordinate tensor.

    The coordinate tensor has the shape of the tensor; its elements are the coordinates that copies take. Host functions
    encode the descriptor; a kernel that calls this writes it to memory itself (`copy_tensormap`). Needs sm_90 or later.

    Args:
        op: `cpasync.CopyBulkTensorTileG2SOp()`, its multicast form, `CopyBulkTensorTileS2GOp()` or a reduction.
        gmem_tensor: the tensor in global memory: one mode contiguous, the other strides multiples of 16 bytes.
        smem_layout_: the layout of one tile in shared memory, with its swizzle.
        cta_tiler: the tile that a CTA copies, an extent for each mode of the tensor.
        num_multicast: how many CTAs share a tile; each copies an equal part of it.
        gmem_coord_tensor: None, or for operations that go by rows a tensor of the numbers of rows with the tensor's shape;
            copies take it beside the coordinate tensor.
        internal_type: the element type of the descriptor, if not that of the tensor.
    """
    tensor = tensor_in_gmem(gmem_tensor, "make_tiled_tma_atom")
    if gmem_coord_tensor is not None and not getattr(op, "by_rows", False):
        raise type_error(
            f"make_tiled_tma_atom({op!r}) takes no gmem_coord_tensor", "cpasync.CopyBulkTensor2DGather4G2SOp() does"
        )
    if isinstance(cta_tiler, Layout) and any(isinstance(s, ScaledBasis) for s in flatten_to_tuple(cta_tiler.stride)):
        return atom_of_values(
            op, tensor, smem_layout_, cta_tiler, num_multicast, internal_type
        )  # coordinates of the tensor
    tiler = wrap(tuple(cta_tiler) if isinstance(cta_tiler, list) else cta_tiler)
    if len(tiler) > len(tensor.layout):
        raise type_error(f"a tile {cta_tiler} has more modes than {tensor}: one for each of the first")
    tile = composition(make_identity_layout(tensor.shape), tiler)
    return atom_of_values(op, tensor, smem_layout_, tile, num_multicast, internal_type)


def atom_of_values(
    op: Any, tensor: TracedTensor, smem_layout: Any, tile: Layout, multicast: Any, internal_type: Any, map_: Any = None
) -> TmaInfo:
    """Return the atom of tiles whose values lie at the coordinates `tile` of a tensor, see `make_tiled_tma_atom`.

    `map_` is its tensor map where that is made elsewhere.
    """
    check_request(op, TILE_MAKER, multicast)
    internal_type = numeric(internal_type)
    facts = describe(tensor, smem_layout, tile, multicast, internal_type, op.by_rows)
    sizes, strides, scales = extents(facts, tensor)
    trait = op.trait(tensor.element_type, facts, _map(facts, tensor, sizes, strides) if map_ is None else map_)
    atom = CopyAtom(op, with_internal_type(trait, tensor.element_type, internal_type))
    return TmaInfo(atom, _coordinate_tensor(tensor, facts, scales), smem_layout, tile if tile.is_static() else None)


def numeric(internal_type: object) -> NumericMeta | None:
    """Return an element type of a descriptor, or None; raise an error for what is none."""
    if internal_type is not None and not isinstance(internal_type, NumericMeta):
        raise type_error(f"internal_type is a numeric type such as Uint8, got {internal_type!r}")
    return internal_type


def with_internal_type(trait: TmaTrait, element_type: NumericMeta, internal_type: NumericMeta | None) -> TmaTrait:
    """Return the trait of a map with elements of another type than the tensor, and say what shared memory holds."""
    if internal_type is not None:
        # a byte for each element of 4 or 6 bits, or elements seen as those of the map
        unpacked = trait.facts.shared_bits != trait.facts.bits
        trait.smem_types = (internal_type,) if unpacked else (element_type, internal_type)
    return trait


def _map(facts: TensorMapFacts, tensor: TracedTensor, sizes: Sequence[object], strides: Sequence[object]) -> Any:
    shape = [Int64(s).ir_value() for s in sizes], [Int64(s).ir_value() for s in strides]
    if _in_kernel():
        return KernelMap(Int64(tensor.iterator.toint()).ir_value(), *shape)
    return nvgpu.tma.tensor_map_encode(
        tensor.iterator.ir_value(),
        *shape,
        element=facts.element,
        box=facts.box,
        swizzle=facts.swizzle,
        tensor=str(tensor),
    )


def _in_kernel() -> bool:
    return tracing.require("a TMA atom").function.kind == "kernel"


def check_request(op: object, maker: str, multicast: object) -> None:
    """Raise an error for operations whose atoms are not made this way, and for arguments of the wrong kind."""
    name = maker.split("(", maxsplit=1)[0]
    kind = "Tile" if maker == TILE_MAKER else "Im2Col"
    if not isinstance(op, TmaCopyOp):
        raise type_error(
            f"{op!r} is no TMA copy",
            f"CopyBulkTensor{kind}G2SOp(), CopyBulkTensor{kind}G2SMulticastOp() or CopyBulkTensor{kind}S2GOp() of cute.nvgpu.cpasync",
        )
    if op.maker != maker:
        raise type_error(f"{name} makes no atoms of {type(op).__name__}", f"{op.maker} does")
    if not isinstance(multicast, int) or multicast < 1:
        raise type_error(f"num_multicast is {multicast!r}: a static number from 1 on")
    if maker != TILE_MAKER and _in_kernel():
        raise runtime_error(
            f"{name} was called in a kernel: the tensor map is encoded on the host",
            "call it in the @jit function and pass the atom and the coordinate tensor to the kernel",
        )


def _coordinate_tensor(tensor: TracedTensor, facts: TensorMapFacts, scales: Mapping[int, object]) -> TracedTensor:
    """Return the tensor of the coordinates that copies take for the elements of a tensor; modes that a map leaves
    out count nothing."""
    place = {mode: i for i, modes in enumerate(facts.modes) for mode in modes}
    count = 0

    def strides(s: object) -> Any:
        nonlocal count
        if isinstance(s, tuple):
            return tuple(strides(x) for x in s)
        mode, count = count, count + 1
        has_basis = mode in place and not (isinstance(s, int) and s == 1)
        return ScaledBasis(scales[mode], place[mode]) if has_basis else 0

    return TracedTensor(Coordinates((0,) * facts.rank), Layout(tensor.shape, strides(tensor.shape)))


def _operand(
    operand: str,
    op: object,
    tensor: object,
    smem_layout: object,
    mma_tiler_mnk: object,
    tiled_mma: object,
    cluster_shape_vmnk: object,
    internal_type: object,
) -> TmaInfo:
    """Return the atom of an operand of a tiled MMA, with smem tiles (MMA, MMA_M or MMA_N, MMA_K, ...)."""
    name = f"make_tiled_tma_atom_{operand}"
    tensor = tensor_in_gmem(tensor, name)
    if not hasattr(tiled_mma, "partition_shape_A"):
        raise type_error(f"{name} takes a tiled MMA, got {type(tiled_mma).__name__}")
    tile = operand_values(operand, tensor, mma_tiler_mnk, tiled_mma)
    multicast = multicast_of(operand, isinstance(op, CopyBulkTensorTileG2SMulticastOp), cluster_shape_vmnk, name)
    return atom_of_values(op, tensor, smem_layout, tile, multicast, internal_type)


def multicast_of(operand: str, shared: bool, cluster_shape_vmnk: object, name: str) -> int:
    """Return how many CTAs share a tile of an operand: of (V, M, N, K) those along N share A, those along M share B."""
    if not shared:
        return 1
    if cluster_shape_vmnk is None:
        raise type_error(f"{name} of a multicast needs cluster_shape_vmnk")
    shape = getattr(cluster_shape_vmnk, "shape", cluster_shape_vmnk)
    return product_each(shape)[2 if operand == "A" else 1]


def operand_values(operand: str, tensor: TracedTensor, mma_tiler_mnk: Any, tiled_mma: Any) -> Layout:
    """Return (MMA, MMA_M or MMA_N, MMA_K) -> coordinate of a tensor, of the tile that the first CTA of an MMA loads."""
    rows = mma_tiler_mnk[0 if operand == "A" else 1]
    depth = mma_tiler_mnk[2]
    whole = composition(make_identity_layout(tensor.shape), (rows, depth))
    thread = tiled_mma.get_slice(0)
    part = getattr(thread, f"partition_{operand}")(TracedTensor(Coordinates((0,) * len(tensor.layout)), whole))
    return part.layout


def make_tiled_tma_atom_A(
    op: object,
    gmem_tensor: object,
    smem_layout: object,
    mma_tiler_mnk: object,
    tiled_mma: object,
    cluster_shape_vmnk: object = None,
    *,
    internal_type: object = None,
    loc: object = None,
    ip: object = None,
) -> TmaInfo:
    """Return a TMA atom for operand A of a tiled MMA, and its coordinate tensor. Needs sm_90 or later.

    Args:
        op: the TMA operation, a load or a multicast load.
        gmem_tensor: A (M, K, ...) in global memory.
        smem_layout: the layout of one stage in shared memory, (MMA, MMA_M, MMA_K), such as that of
            `make_smem_layout_a`.
        mma_tiler_mnk: the tile (M, N, K) of the MMAs.
        tiled_mma: the tiled MMA.
        cluster_shape_vmnk: the CTAs of the cluster as (V, M, N, K), of which those along N share A by multicast.
        internal_type: the element type of the descriptor, if not that of the tensor.
    """
    return _operand("A", op, gmem_tensor, smem_layout, mma_tiler_mnk, tiled_mma, cluster_shape_vmnk, internal_type)


def make_tiled_tma_atom_B(
    op: object,
    gmem_tensor: object,
    smem_layout: object,
    mma_tiler_mnk: object,
    tiled_mma: object,
    cluster_shape_vmnk: object = None,
    *,
    internal_type: object = None,
    loc: object = None,
    ip: object = None,
) -> TmaInfo:
    """Return a TMA atom for operand B of a tiled MMA, and its coordinate tensor. Needs sm_90 or later.

    Args:
        op: the TMA operation, a load or a multicast load.
        gmem_tensor: B (N, K, ...) in global memory.
        smem_layout: the layout of one stage in shared memory, (MMA, MMA_N, MMA_K), such as that of
            `make_smem_layout_b`.
        mma_tiler_mnk: the tile (M, N, K) of the MMAs.
        tiled_mma: the tiled MMA.
        cluster_shape_vmnk: the CTAs of the cluster as (V, M, N, K), of which those along M share B by multicast.
        internal_type: the element type of the descriptor, if not that of the tensor.
    """
    return _operand("B", op, gmem_tensor, smem_layout, mma_tiler_mnk, tiled_mma, cluster_shape_vmnk, internal_type)


def create_tma_multicast_mask(
    cta_layout_vmnk: Layout, cta_coord_vmnk: object, mcast_mode: int, *, loc: object = None, ip: object = None
) -> Int16:
    """Return the mask of the CTAs of a cluster that share a tile, for `mcast_mask` of a copy: a bit for each.

    Args:
        cta_layout_vmnk: the layout of the CTAs, (V, M, N, K).
        cta_coord_vmnk: this CTA's coordinate in it.
        mcast_mode: the mode in which the CTAs differ: 2 for A, 1 for B.
    """
    return Int16(make_layout_image_mask(cta_layout_vmnk, cta_coord_vmnk, mcast_mode))


def tma_trait(atom: object, what: str) -> TmaTrait:
    """Return the trait of a TMA atom; raise an error for other atoms."""
    atom = atom.atom if isinstance(atom, TmaInfo) else atom
    trait = atom.trait if isinstance(atom, CopyAtom) else None
    if not isinstance(trait, TmaTrait):
        got = f"an atom of {atom.op}" if isinstance(atom, CopyAtom) else type(atom).__name__
        raise type_error(f"{what} takes an atom of make_tiled_tma_atom, got {got}")
    return trait


def prefetch_descriptor(tma_atom: object, *, loc: object = None, ip: object = None) -> None:
    """Prefetch the TMA descriptor of `tma_atom`, so that the first copy does not wait for it. Results do not change.

    Needs sm_90 or later.
    """
    kernel_only("prefetch_descriptor")
    nvgpu.tma.tensor_map_prefetch(tma_trait(tma_atom, "prefetch_descriptor").address())
