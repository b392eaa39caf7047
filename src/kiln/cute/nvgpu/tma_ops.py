"""TMA copies of boxes as atoms (`cp.async.bulk.tensor`, from sm_90 on).

All threads of a warp call `cute.copy` together, and one of them, always the same, starts the copies. What they need is
computed before that thread is chosen: addresses and coordinates are then the same in all threads, and stay in uniform
registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import BFloat16, Float16, Float32, Int16, Int32, Int64, Uint32, Uint64
from ...hardware import current
from ..arch.values import choice, i32, kernel_only, pointer
from ..arch.warp import elect_one
from ..atoms.atom import CopyOp, CopyTrait
from ..deferred_dialects import nvgpu
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import dynamic_leaves, pretty_str, product, with_dynamic_leaves
from ..layout.layout import make_layout, size
from ..layout.leaf import leaf_add
from ..tensor.iterator import Coordinates
from ..tensor.leaf_values import leaf_like, leaf_value
from ..tensor.pointer import AddressSpace, Pointer, alignment_at, is_moved_at_run_time, recast_ptr
from ..tensor.tensor import TracedTensor
from .access import ReductionKind, memory, policy_of, under
from .common import CtaGroup
from .tensor_map import swizzle_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .tensor_map import TensorMapFacts

    Place = tuple[list[ir.Value], list[ir.Value]]
    """The coordinates of a box, and how far pixels lie from those of it (im2col)."""

TILE_MAKER = "make_tiled_tma_atom(op, gmem_tensor, smem_layout, cta_tiler)"
"""The function that makes the atoms of copies of tiles."""
IM2COL_MAKER = "make_im2col_tma_atom(op, gmem_tensor, smem_layout, cta_tiler, ...)"
"""The function that makes the atoms of copies of pixels."""
_ALIGNMENT = 128
"""The alignment of a box in shared memory, in bytes."""
_LEAST = 16
"""What has to be known of it where an offset is dynamic."""


_WORDS = (Int32, Uint32, Int64, Uint64)
_REDUCED = {
    "add": (Uint32, Int32, Uint64, Float32, Float16, BFloat16),
    "min": (*_WORDS, Float16, BFloat16),
    "max": (*_WORDS, Float16, BFloat16),
    "inc": (Uint32,),
    "dec": (Uint32,),
    "and": _WORDS,
    "or": _WORDS,
    "xor": _WORDS,
}
"""The element types of each reduction."""


class TmaCopyOp(CopyOp):
    """A copy of boxes; its atoms are made from tensors."""

    maker = TILE_MAKER
    """The function that makes its atoms."""
    by_rows = False
    """Whether an instruction takes four rows of a matrix by their numbers."""

    def _to_ir(self) -> TmaCopyOp:
        """Return the operation itself, which stands for its type in functions that make atoms."""
        return self

    def make_trait(self, copy_internal_type: Any, **kwargs: Any) -> CopyTrait:
        raise type_error(
            f"make_copy_atom of {type(self).__name__}: its atoms belong to a tensor", f"cute.nvgpu.cpasync.{self.maker}"
        )

    def trait(self, value_type: Any, facts: TensorMapFacts, map_: Any, images: tuple[Any, ...] = ()) -> TmaTrait:
        """Return the trait of an atom with a TMA descriptor; `images` are the extents that its coordinates are counted
        by, see `TmaTrait`."""
        raise NotImplementedError


class _TmaLoadOp(TmaCopyOp):
    multicast = False

    def __init__(self, cta_group: Any = CtaGroup.ONE) -> None:
        if not isinstance(cta_group, CtaGroup):
            raise type_error(f"cta_group is {cta_group!r}", "CtaGroup.ONE or CtaGroup.TWO")
        self.cta_group = cta_group

    def trait(
        self, value_type: object, facts: TensorMapFacts, map_: object, images: tuple[object, ...] = ()
    ) -> TmaTrait:
        return TmaLoadTrait(value_type, facts, map_, images, self.multicast, self.cta_group)


class CopyBulkTensorTileG2SOp(_TmaLoadOp):
    """Copy a tile of a tensor in global memory to shared memory and signal `complete_tx` on an mbarrier."""


class CopyBulkTensorTileG2SMulticastOp(_TmaLoadOp):
    """Copy a tile to every CTA of the cluster whose bit is set in a mask, at the same place in each."""

    multicast = True


class CopyBulkTensor2DGather4G2SOp(_TmaLoadOp):
    """Copy rows of a matrix, four with an instruction, by their numbers to shared memory (`gather4`, sm_100).

    `cute.copy(..., row_indices=...)` has a row of the matrix for each row of the tile; rows outside it are zeros. Rows
    may also come from a tensor that is partitioned as the coordinate tensor, as `cute.copy(atom, [coordinates, rows], dst)`.
    """

    by_rows = True


class CopyBulkTensor2DGather4G2SMulticastOp(CopyBulkTensor2DGather4G2SOp):
    """Copy rows of a matrix by their numbers to every CTA of the cluster whose bit is set in a mask."""

    multicast = True


class _TmaStoreOp(TmaCopyOp):
    def trait(
        self, value_type: object, facts: TensorMapFacts, map_: object, images: tuple[object, ...] = ()
    ) -> TmaTrait:
        return TmaStoreTrait(value_type, facts, map_, images, None)


class CopyBulkTensorTileS2GOp(_TmaStoreOp):
    """Copy a tile from shared memory to a tensor in global memory, as part of the chosen thread's bulk group."""


class CopyBulkTensor2DScatter4S2GOp(_TmaStoreOp):
    """Copy rows from shared memory to rows of a matrix, four with an instruction, by their numbers (`scatter4`, sm_100).

    `cute.copy(..., row_indices=...)` has a row of the matrix for each row of the tile; rows outside it are not stored.
    """

    by_rows = True


class CopyReduceBulkTensorTileS2GOp(TmaCopyOp):
    """Combine the elements of a tensor in global memory with a tile in shared memory, each atomically."""

    def __init__(self, reduction_kind: object = ReductionKind.ADD) -> None:
        self.reduction_kind: ReductionKind = ReductionKind(choice("reduction_kind", reduction_kind, tuple(_REDUCED)))

    def trait(self, value_type: Any, facts: TensorMapFacts, map_: object, images: tuple[object, ...] = ()) -> TmaTrait:
        kind = self.reduction_kind.value
        if value_type not in _REDUCED[kind]:
            names = ", ".join(t.__name__ for t in _REDUCED[kind])
            raise type_error(f"a reducing copy ({kind}) of {value_type.__name__} elements", f"{kind} takes {names}")
        return TmaStoreTrait(value_type, facts, map_, images, kind)


class CopyBulkTensorIm2ColG2SOp(_TmaLoadOp):
    """Copy pixels of images in global memory to shared memory, those that a tap of a convolution's filter meets."""

    maker = IM2COL_MAKER


class CopyBulkTensorIm2ColG2SMulticastOp(_TmaLoadOp):
    """Copy pixels to every CTA of the cluster whose bit is set in a mask, at the same place in each."""

    maker = IM2COL_MAKER
    multicast = True


class CopyBulkTensorIm2ColS2GOp(_TmaStoreOp):
    """Copy pixels from shared memory to images in global memory, as part of the chosen thread's bulk group."""

    maker = IM2COL_MAKER


class KernelMap:
    """What a kernel knows of the tensor of an atom that it makes itself: address, extents and strides (bytes).

    `copy_tensormap` makes a tensor map of it in memory, which copies get as `tma_desc_ptr`.
    """

    def __init__(self, base: ir.Value, sizes: Sequence[ir.Value], strides: Sequence[ir.Value]) -> None:
        self.base = base
        self.sizes: list[Any] = list(sizes)
        self.strides: list[Any] = list(strides)  # i64

    def values(self) -> list[ir.Value]:
        """Return all values."""
        return [self.base, *self.sizes, *self.strides]

    def of(self, values: Sequence[ir.Value]) -> KernelMap:
        """Return the same of other values."""
        base, *rest = values
        return KernelMap(base, rest[: len(self.sizes)], rest[len(self.sizes) :])


class TmaTrait(CopyTrait):
    """Copies of boxes between a tensor and shared memory. `facts` is the static part of the tensor map; `map` a value,
    or a `KernelMap`.

    `images`: the extents in which pixels are counted (im2col), static or dynamic.
    """

    def __init__(
        self, value_type: object, facts: TensorMapFacts, map_: Any, images: tuple[Any, ...], ctas: int = 1
    ) -> None:
        self.facts = facts
        self.map = map_
        self.images = images
        self.smem_types: tuple[Any, ...] = (value_type,)
        layout = make_layout((ctas, facts.values), stride=(facts.values if ctas > 1 else 0, 1))
        super().__init__(value_type, make_layout(ctas), layout, layout)

    @property
    def value(self) -> TmaTrait:
        """What operations of `cutlass._mlir.dialects.cute_nvgpu` take for the atom: the trait itself."""
        return self

    def __extract_mlir_values__(self) -> list[ir.Value]:
        maps = self.map.values() if isinstance(self.map, KernelMap) else [self.map]
        return [*maps, *(leaf_value(leaf) for leaf in dynamic_leaves(self.images))]

    def __new_from_mlir_values__(self, values: Sequence[Any]) -> Any:
        rebuilt = object.__new__(type(self))
        rebuilt.__dict__.update(self.__dict__)
        count = len(self.map.values()) if isinstance(self.map, KernelMap) else 1
        rebuilt.map = self.map.of(values[:count]) if isinstance(self.map, KernelMap) else values[0]
        leaves = [leaf_like(leaf, v) for leaf, v in zip(dynamic_leaves(self.images), values[count:], strict=True)]
        rebuilt.images = with_dynamic_leaves(self.images, leaves)
        return rebuilt

    def __kiln_static_key__(self) -> Any:
        return self.facts, pretty_str(self.images)

    def address(self, tma_desc_ptr: object = None) -> ir.Value:
        """Return where the tensor map lies: the atom's, or another of the same kind."""
        if tma_desc_ptr is None:
            if isinstance(self.map, KernelMap):
                raise type_error(
                    "a copy with an atom that was made in a kernel: the host encodes tensor maps",
                    "make it in the @jit function, or cpasync.copy_tensormap(atom, pointer) writes its tensor map to "
                    "memory, which copies take as tma_desc_ptr=pointer",
                )
            return nvgpu.tma.tensor_map_address(self.map)
        return pointer(tma_desc_ptr, "tma_desc_ptr")

    def places(self, tensor: object, what: str) -> list[Place]:
        """Return the place of each box of a coordinate tensor."""
        if not isinstance(tensor, TracedTensor) or not isinstance(tensor._iterator, Coordinates):
            got = f"a tensor in {tensor.memspace}" if isinstance(tensor, TracedTensor) else type(tensor).__name__
            raise type_error(
                f"{what} of this copy is a coordinate tensor, got {got}",
                "partition the coordinate tensor that was made with the atom with tma_partition",
            )
        return [self._place(tensor, i * self.facts.values) for i in range(self._count(tensor, what))]

    def _count(self, tensor: TracedTensor, what: str) -> int:
        count = product(tensor.shape)
        if not isinstance(count, int) or count % self.facts.values or not count:
            raise type_error(
                f"{what} of shape {pretty_str(tensor.shape)} is copied by boxes of {self.facts.values} elements",
                "mode 0 is (TMA, TMA_Iter) of tma_partition, other modes are sliced or static: t[(None, stage)]",
            )
        return count // self.facts.values

    def _place(self, tensor: TracedTensor, index: int) -> Place:
        place = tensor._iterator.element(tensor.layout(index))
        place = list(place) if isinstance(place, tuple) else [place]
        if len(place) != self.facts.rank or any(isinstance(c, tuple) for c in place):
            raise type_error(
                f"a coordinate {pretty_str(tuple(place))} for a tensor map of {self.facts.rank} modes",
                "the coordinate tensor is the one that was made with the atom",
            )
        over, under = self.facts.ratio
        if over != under:
            place[0] = place[0] * over // under
        if isinstance(place[0], int) and place[0] % self.facts.unit:
            raise type_error(
                f"a box starts at the coordinate {pretty_str(tuple(place))}: its first mode has elements of {self.facts.bits} bits, "
                f"{place[0] * self.facts.bits / 8:g} bytes from the tensor's start, and boxes start at multiples of "
                f"{self.facts.unit * self.facts.bits // 8} bytes",
                f"start at a multiple of {self.facts.unit} elements; threads copy what lies elsewhere",
            )
        coordinates, offsets = self.facts.place(place, self.images)
        return [i32(c) for c in coordinates], [Int16(o).ir_value() for o in offsets]

    def boxes(self, tensor: Any, what: str) -> list[ir.Value]:
        """Return the address of each box in shared memory, before the swizzle, which TMA applies itself."""
        memory(tensor, what, AddressSpace.smem)
        if tensor.element_type not in self.smem_types:
            raise type_error(
                f"{what} has {tensor.element_type.__name__} elements, and the atom copies {self.smem_types[0].__name__}",
                "a copy does not convert; recast_tensor sees the same memory as another type",
            )
        layout = tensor.layout
        seen = tensor.iterator.swizzle
        start: Any = 0
        if isinstance(layout, ComposedLayout):
            layout, start, seen = layout.outer, layout.offset, layout.inner
        if seen is not None and seen.num_bits and swizzle_kind(seen, tensor) != self.facts.swizzle:
            raise type_error(
                f"{what} is seen through {seen}, and the tensor map swizzles by {self.facts.swizzle}",
                "make the atom with the layout that shared memory is seen through",
            )
        base = recast_ptr(tensor.iterator, None)
        values = []
        for i in range(self._count(tensor, what)):
            offset = leaf_add(start, layout(i * self.facts.values))
            # A program may know more of a dynamic offset than it says; a run on the CPU target checks the address itself.
            least = _LEAST if is_moved_at_run_time(base, offset) else _ALIGNMENT
            if alignment_at(base, offset) % least:
                raise type_error(
                    f"boxes in shared memory are aligned to {_ALIGNMENT} bytes, and box {i} of {what}, {pretty_str(offset)} elements after "
                    f"{base}, is only known to be to {alignment_at(base, offset)}",
                    f"allocate it aligned (byte_alignment={_ALIGNMENT}, cute.struct.Align[..., 1024]); cute.assume says it of offsets",
                )
            values.append((base + offset).ir_value())
        return values

    def by_rows(self, tensor: Any, row_indices: object, what: str) -> list[Place]:
        """Return the place of each box of a coordinate tensor, with the four rows of each instruction if they go by
        their numbers: those that a program passes as `row_indices`, or in a tensor beside the coordinate tensor."""
        several = isinstance(tensor, (tuple, list))
        if several and (len(tensor) != 2 or not self.facts.by_rows or row_indices is not None):
            raise type_error(
                f"{what} is {len(tensor)} tensors",
                "a coordinate tensor; an atom of CopyBulkTensor2DGather4G2SOp takes one with the rows beside it, or row_indices",
            )
        coordinates, indices = tensor if several else (tensor, None)
        places = self.places(coordinates, what)
        if several:
            rows = self._rows_beside(indices, len(places))
        elif self.facts.by_rows:
            rows = self._rows_of_tile(coordinates, row_indices, len(places))
        elif row_indices is not None:
            raise type_error("row_indices in a copy of tiles", "an atom of CopyBulkTensor2DGather4G2SOp takes them")
        else:
            return places
        return [([place[0], *four], offsets) for (place, offsets), four in zip(places, rows, strict=True)]

    def _rows_beside(self, indices: object, count: int) -> list[list[ir.Value]]:
        """Return the rows from a tensor that is partitioned as the coordinate tensor: each is the number of the row of
        all its elements."""
        if not isinstance(indices, TracedTensor) or not isinstance(indices._iterator, Pointer):
            raise type_error(f"the rows of a copy are a tensor in memory, got {indices}")
        if self._count(indices, "the tensor of the rows") != count:
            raise type_error(f"{indices} has rows for other boxes than the {count} of the coordinate tensor")
        values = self.facts.values
        firsts = [[box * values + row * (values // 4) for row in range(4)] for box in range(count)]
        return [[i32(indices[first]) for first in four] for four in firsts]

    def _rows_of_tile(self, tensor: TracedTensor, row_indices: object, boxes: int) -> list[list[ir.Value]]:
        """Return the rows from those of a tile that a program passes."""
        # the tile's own rows, counted from its first one
        numbers = [self._row(tensor.layout(i * self.facts.values)) for i in range(boxes)]
        count = max(numbers) + 4
        indices: Any = () if row_indices is None else row_indices
        row_count = size(indices) if hasattr(indices, "layout") else len(indices)
        if row_count != count:
            raise type_error(
                f"row_indices has {row_count} rows for a tile of {count} rows",
                "a row of the matrix for each row of the tile: cute.copy(atom, ..., row_indices=indices)",
            )
        return [[i32(indices[first + i]) for i in range(4)] for first in numbers]

    def _row(self, offset: object) -> int:
        row = offset[1] if isinstance(offset, tuple) else 0
        if not isinstance(row, int):
            raise type_error(
                f"a tile of rows starts at {pretty_str(offset)}", "its rows are static: slice the tile first"
            )
        return row

    def pairs(self, boxes: Sequence[object], places: list[Place]) -> list[tuple[Any, Place]]:
        """Return each box with its place."""
        if len(boxes) != len(places):
            raise type_error(
                f"a copy of {len(places)} boxes of the tensor and {len(boxes)} in shared memory, of {self.facts.values} elements each",
                "slice both so that the same number of tiles is left: t[(None, stage)]",
            )
        return list(zip(boxes, places, strict=True))

    def prefetch(self, src: object) -> None:
        """Prefetch boxes into the L2 cache."""
        kernel_only("prefetch")
        map_ = self.address()
        places = self.places(src, "the source")
        policy = _policy(None)
        with elect_one():
            for coordinates, offsets in places:
                nvgpu.tma.tma_prefetch(map_, coordinates, offsets, policy)


_EVICT_NORMAL = 1 << 60
"""The policy of copies without a hint."""


def _policy(cache_policy: object) -> ir.Value | None:
    """Return the cache policy of a copy. On Blackwell CuTe DSL's copies always have one, and so do these."""
    if cache_policy is None and current.architecture().number >= 100:
        return Int64(_EVICT_NORMAL).ir_value()
    return policy_of(cache_policy)


def _by_one_thread(pred: object, move: Any) -> None:
    def chosen() -> None:
        with elect_one():
            move()

    under(pred, chosen, "a TMA copy")


class TmaLoadTrait(TmaTrait):
    """Boxes from a tensor to shared memory, of this block or of several.

    For a pair of CTAs the mbarrier of the even one is signalled, whichever the program gives.
    """

    def __init__(
        self,
        value_type: object,
        facts: TensorMapFacts,
        map_: object,
        images: tuple[object, ...],
        multicast: bool,
        cta_group: CtaGroup,
    ) -> None:
        super().__init__(value_type, facts, map_, images, cta_group.value)
        self.multicast = multicast
        self.cta_group = None if cta_group is CtaGroup.ONE else cta_group.value

    def copy(
        self,
        src: Any,
        dst: object,
        pred: object,
        *,
        tma_bar_ptr: object = None,
        mcast_mask: object = None,
        tma_desc_ptr: object = None,
        cache_policy: object = None,
        row_indices: Any = None,
    ) -> None:
        kernel_only("copy")
        if tma_bar_ptr is None:
            raise type_error(
                "a copy of a tile to shared memory needs an mbarrier",
                "cute.copy(atom, src, dst, tma_bar_ptr=...): its bytes are taken from what the mbarrier expects",
            )
        if self.multicast and mcast_mask is None:
            raise type_error(
                "a copy to several CTAs of a cluster needs a mask of them",
                "cute.copy(atom, ..., mcast_mask=cute.make_layout_image_mask(cluster_layout, coordinate, mode))",
            )
        places = self.by_rows(src, row_indices, "the source")
        boxes = self.boxes(dst, "the destination")
        pairs = self.pairs(boxes, places)
        barrier = pointer(tma_bar_ptr, "tma_bar_ptr", "smem")
        map_ = self.address(tma_desc_ptr)
        policy = _policy(cache_policy)
        mask = _mask(mcast_mask) if self.multicast else None

        def move() -> None:
            for box, (coordinates, offsets) in pairs:
                nvgpu.tma.tma_load(
                    map_,
                    box,
                    barrier,
                    coordinates,
                    offsets=offsets,
                    mask=mask,
                    policy=policy,
                    cta_group=self.cta_group,
                    to_leader=self.cta_group == 2,
                    gather4=self.facts.by_rows,
                )

        _by_one_thread(pred, move)


class CopyBulkTensorTileG2SNonExecTrait:
    """Returns the trait that `atom_make_non_exec_tiled_tma_load` made: mbarriers are given to each copy anyway."""

    def __new__(cls, value: TmaTrait) -> Any:  # type: ignore[misc]
        return value


def _mask(mask: object) -> ir.Value:
    if isinstance(mask, int):
        if not 0 < mask < 1 << 16:
            raise type_error(f"mcast_mask is {mask:#x}: 1 to 16 bits, one of each block")
        mask = mask - (1 << 16) if mask >> 15 else mask
    return Int16(mask).ir_value()


class TmaStoreTrait(TmaTrait):
    """Boxes from shared memory to a tensor, or combined with what is there."""

    def __init__(
        self, value_type: object, facts: TensorMapFacts, map_: object, images: tuple[object, ...], reduction: str | None
    ) -> None:
        super().__init__(value_type, facts, map_, images)
        self.reduction = reduction

    def copy(
        self,
        src: object,
        dst: Any,
        pred: object,
        *,
        tma_desc_ptr: object = None,
        cache_policy: object = None,
        row_indices: Any = None,
    ) -> None:
        kernel_only("copy")
        places = self.by_rows(dst, row_indices, "the destination")
        boxes = self.boxes(src, "the source")
        pairs = self.pairs(boxes, places)
        map_ = self.address(tma_desc_ptr)
        policy = _policy(cache_policy)

        def move() -> None:
            for box, (coordinates, _) in pairs:
                nvgpu.tma.tma_store(
                    map_,
                    box,
                    coordinates,
                    reduction=self.reduction,
                    im2col=self.facts.im2col,
                    policy=policy,
                    scatter4=self.facts.by_rows,
                )

        _by_one_thread(pred, move)
