"""TMA: copies of boxes of tensors between global and shared memory, and the tensor maps that describe the tensors.

A tensor map is 128 bytes aligned to 128. Host functions encode it (`tensor_map_encode`). Kernels get it as an argument
of type `!cute_nvgpu.tensor_map` in constant memory, whose address is `tensor_map_address`, or edit a copy of it in
memory. Modes of tensors and coordinates are counted from the contiguous one on.
"""

from collections.abc import Sequence
from typing import Any

from ...base_dsl.trace import emit, emit_value
from ...hardware.engines import BULK_LOAD, BULK_STORE
from ...hardware.limits import TENSOR_MAP_RANK
from ...hardware.tensor_maps import ELEMENTS, SWIZZLES
from ...mlir import context, ir
from ..cute import pack, ptr_type, unpack
from ..cute.packing import is_pack
from ..declaration import PURE, Access, Alias, Build, Operand, OptionalAttr, Result, Type, attributes
from ..definition import I16, I64, Integer, Pointer, int_type, load, one_of
from .async_copy import optional
from .dialect import CuteNvgpu, wrong_space

REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
FIELDS = (
    "global_address",
    "rank",
    "box_dim",
    "global_dim",
    "global_stride",
    "element_stride",
    "elemtype",
    "interleave_layout",
    "swizzle_mode",
    "fill_mode",
    "swizzle_atomicity",
)
"""What `tensor_map_replace` can replace; those with an ordinal: box_dim, global_dim, global_stride, element_stride."""


class TensorMap(Type, dialect=CuteNvgpu, name="tensor_map"):
    """`!cute_nvgpu.tensor_map`: a tensor map, as the host passes it to a kernel."""


def tensor_map_type() -> ir.Type:
    """Return the type `!cute_nvgpu.tensor_map`."""
    load(CuteNvgpu)
    kind: Any = TensorMap
    with context():
        return kind(ir.DynamicType.get(kind.type_name, []))


class TensorMapEncode(
    CuteNvgpu.Operation, name="tensor_map_encode", stays="it may end the program", alias=Alias("base", "descriptor")
):
    """Encode the tensor map of a tensor in global memory. Host functions only.

    `base` is its address, `sizes` (a tuple, see `pack`, of 1 to 5 i64) are its extents, contiguous mode first, and
    `strides` (one i64 less) the bytes from one element to the next in each further mode. `box` are the extents of one
    copy, `element_strides` the steps in which elements are taken. What the driver would reject is a fault that names
    the rule, the value and `tensor`, a text that identifies the tensor.

    Rows of a box lie next to each other in shared memory; with a `swizzle` they lie at least its span (32, 64, 128
    bytes) apart, and the rest of a span is not written. A swizzle permutes pieces of 16 bytes, "128b_32b" (sm_100) of
    32. `fill` is read outside the tensor; `nan` is 0x7ff7 in every 16 bits. Of the elements "16u4_align16b" and
    "16u6_align16b" 16 take 16 bytes of shared memory, the last 8 or 4 of them unused (sm_100).

    With `pixel_box` (im2col: lower corners, then upper corners, of the modes between the first and the last) a copy
    takes `box[0]` channels of `box[1]` pixels.
    """

    base: Operand[Pointer]
    sizes: Operand[Any]
    strides: Operand[Any]
    result: Result[Any]
    element: one_of(*ELEMENTS)
    swizzle: one_of(*SWIZZLES)
    interleave: one_of("none", "16b", "32b")
    promotion: one_of("none", "64b", "128b", "256b")
    fill: one_of("zeros", "nan")
    tensor: ir.StringAttr
    # IRDL knows no fields that are arrays: `check` asks for the first two
    box: OptionalAttr[ir.DenseI32ArrayAttr]
    element_strides: OptionalAttr[ir.DenseI32ArrayAttr]
    pixel_box: OptionalAttr[ir.DenseI32ArrayAttr]

    def check(self) -> str:
        if not is_pack(self.sizes) or not is_pack(self.strides):
            return "takes its sizes and strides as tuples (`pack`)"
        rank = len(unpack(self.sizes))
        if not 1 <= rank <= TENSOR_MAP_RANK:
            return f"is of {rank} modes: 1 to {TENSOR_MAP_RANK}"
        if len(unpack(self.strides)) != rank - 1:
            return f"has {len(unpack(self.strides))} strides for {rank} modes: the first mode is contiguous"
        if self.box is None or self.element_strides is None:
            return "has no box or no element strides"
        if self.pixel_box is None and len(self.box) != rank:
            return f"has a box of {len(self.box)} modes for {rank}"
        return wrong_space(self.base, "tensor", "gmem")


def tensor_map_encode(
    base: ir.Value,
    sizes: Sequence[ir.Value],
    strides: Sequence[ir.Value],
    *,
    element: str,
    box: Sequence[int],
    element_strides: Sequence[int] = (),
    swizzle: str = "none",
    interleave: str = "none",
    promotion: str = "128b",
    fill: str = "zeros",
    tensor: str = "",
    pixel_box: Sequence[int] | None = None,
) -> ir.Value:
    """Return the tensor map of a tensor; sizes and strides (bytes) are i64."""
    attrs = {
        **(
            attributes(
                element=element, swizzle=swizzle, interleave=interleave, promotion=promotion, fill=fill, tensor=tensor
            )
            or {}
        ),
        "box": ir.DenseI32ArrayAttr.get(list(box)),
        "element_strides": ir.DenseI32ArrayAttr.get(list(element_strides) or [1] * len(sizes)),
    }
    if pixel_box is not None:
        attrs["pixel_box"] = ir.DenseI32ArrayAttr.get(list(pixel_box))
    return emit_value("cute_nvgpu.tensor_map_encode", tensor_map_type(), (base, pack(sizes), pack(strides)), attrs)


class TensorMapAddress(CuteNvgpu.Operation, name="tensor_map_address", traits=PURE, alias=Alias("map", "descriptor")):
    """Return the address of a tensor map that is an argument of the kernel: a generic pointer to 16 read-only words."""

    map: Operand[Any]
    result: Result[Pointer]

    def check(self) -> str:
        kind = self.map.type
        return "" if isinstance(kind, TensorMap) else f"is of {kind}: it takes a tensor map"


def tensor_map_address(map_: ir.Value) -> ir.Value:
    """Return the address of a tensor map."""
    return emit_value("cute_nvgpu.tensor_map_address", ptr_type(int_type(64), "generic", 128), (map_,))


def _wrong_coordinates(value: ir.Value) -> str:
    if not is_pack(value):
        return "takes its coordinates as a tuple (`pack`)"
    kinds = [str(x.type) for x in unpack(value)]
    if not 1 <= len(kinds) <= TENSOR_MAP_RANK:
        return f"has {len(kinds)} coordinates: 1 to {TENSOR_MAP_RANK}"
    return "" if set(kinds) == {"i32"} else f"has coordinates of {', '.join(kinds)}: they are i32"


def _wrong_rows(by_number: Any, coordinates: ir.Value) -> str:
    """Return what is wrong with the coordinates of a copy of four rows."""
    count = len(unpack(coordinates))
    return f"takes four rows and has {count} coordinates: x and four rows" if by_number and count != 5 else ""


def _wrong_offsets(offsets: ir.Value, coordinates: ir.Value) -> str:
    if not is_pack(offsets):
        return "takes its offsets as a tuple (`pack`)"
    kinds = [str(x.type) for x in unpack(offsets)]
    if kinds and len(kinds) != len(unpack(coordinates)) - 2:
        return f"has {len(kinds)} offsets: two less than coordinates"
    return "" if set(kinds) <= {"i16"} else f"has offsets of {', '.join(kinds)}: they are i16"


def _wrong_map(pointer: ir.Value) -> str:
    return wrong_space(pointer, "tensor map", "gmem")


class TmaLoad(
    CuteNvgpu.Operation, name="tma_load", reads="map", writes="target", engine=BULK_LOAD, mbarrier="mbarrier"
):
    """Asynchronously copy a box of a tensor to shared memory and signal `complete_tx` on the mbarrier.

    The box starts at `coordinates`, a tuple (see `pack`) of i32, the first of them a multiple of 16 bytes. Elements
    outside the tensor are filled in, and their bytes count. `target` is aligned to 128 bytes. The copy goes through
    the async proxy; one thread executes it.

    `multicast`: copy to every CTA of the cluster whose bit is set in `mask` (i16), and signal the mbarrier there, both
    at the same offsets in shared memory. `hint`: `policy` (i64) is the cache policy. `offsets` (a tuple of i16, empty
    without im2col) are the distances of the pixels from those of the box.

    `cta_group` 2 (sm_100): the mbarrier may be that of the other CTA of this pair, and a CTA that receives a multicast
    signals that of the CTA of its own pair whose rank is even or odd as that of the mbarrier's CTA. `to_leader`: the
    mbarrier at the same offset in the even CTA of this pair is meant. `gather4` (sm_100): the map has two modes and
    boxes of one row, and coordinates are (x, row, row, row, row): four rows land as a box of four would.
    """

    map: Operand[Pointer]
    target: Operand[Pointer]
    mbarrier: Operand[Pointer]
    coordinates: Operand[Any]
    offsets: Operand[Any]
    mask: Operand[I16]
    policy: Operand[I64]
    multicast: OptionalAttr[ir.BoolAttr]
    hint: OptionalAttr[ir.BoolAttr]
    cta_group: OptionalAttr[one_of(1, 2)]
    to_leader: OptionalAttr[ir.BoolAttr]
    gather4: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        wrong = _wrong_map(self.map) or wrong_space(self.target, "target", "smem")
        wrong = wrong or wrong_space(self.mbarrier, "mbarrier", "smem") or _wrong_coordinates(self.coordinates)
        if self.to_leader and self.cta_group != 2:
            return wrong or "signals the leader of a pair without cta_group 2"
        return wrong or _wrong_rows(self.gather4, self.coordinates) or _wrong_offsets(self.offsets, self.coordinates)


def tma_load(
    map_: ir.Value,
    target: ir.Value,
    mbarrier: ir.Value,
    coordinates: Sequence[ir.Value],
    *,
    offsets: Sequence[ir.Value] = (),
    mask: ir.Value | None = None,
    policy: ir.Value | None = None,
    cta_group: int | None = None,
    to_leader: bool = False,
    gather4: bool = False,
) -> None:
    """Add a `tma_load`; coordinates are i32, offsets i16."""
    attrs = attributes(
        multicast=None if mask is None else True,
        hint=None if policy is None else True,
        cta_group=cta_group,
        to_leader=to_leader or None,
        gather4=gather4 or None,
    )
    operands = (map_, target, mbarrier, pack(coordinates), pack(offsets), optional(mask, 16), optional(policy, 64))
    emit("cute_nvgpu.tma_load", (), operands, attrs)


class TmaStore(CuteNvgpu.Operation, name="tma_store", reads="source", writes="map", engine=BULK_STORE):
    """Asynchronously copy a box of a tensor from shared to global memory, as part of the thread's current bulk group.

    Elements outside the tensor are not written; no coordinate is negative. `reduction`: each element is combined
    atomically with the one in memory (see PTX's `cp.reduce.async.bulk.tensor` for its types). `scatter4` (sm_100):
    coordinates are those of `gather4`, and four rows are stored. Otherwise as `tma_load`.
    """

    map: Operand[Pointer]
    source: Operand[Pointer]
    coordinates: Operand[Any]
    policy: Operand[I64]
    reduction: OptionalAttr[one_of(*REDUCTIONS)]
    im2col: OptionalAttr[ir.BoolAttr]
    hint: OptionalAttr[ir.BoolAttr]
    scatter4: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        wrong = _wrong_map(self.map) or wrong_space(self.source, "source", "smem")
        if self.scatter4 and (self.im2col or self.reduction is not None):
            return wrong or "scatters rows that are pixels or reduced: it stores rows of a matrix"
        return wrong or _wrong_coordinates(self.coordinates) or _wrong_rows(self.scatter4, self.coordinates)


def tma_store(
    map_: ir.Value,
    source: ir.Value,
    coordinates: Sequence[ir.Value],
    *,
    reduction: str | None = None,
    im2col: bool = False,
    policy: ir.Value | None = None,
    scatter4: bool = False,
) -> None:
    """Add a `tma_store`; coordinates are i32."""
    attrs = attributes(
        reduction=reduction, im2col=im2col or None, hint=None if policy is None else True, scatter4=scatter4 or None
    )
    operands = (map_, source, pack(coordinates), optional(policy, 64))
    emit("cute_nvgpu.tma_store", (), operands, attrs)


class TmaPrefetch(CuteNvgpu.Operation, name="tma_prefetch", stays="a hint for a cache"):
    """Prefetch a box of a tensor into the L2 cache. It has no visible effect. Operands are as of `tma_load`."""

    map: Operand[Pointer]
    coordinates: Operand[Any]
    offsets: Operand[Any]
    policy: Operand[I64]
    hint: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        wrong = _wrong_map(self.map) or _wrong_coordinates(self.coordinates)
        return wrong or _wrong_offsets(self.offsets, self.coordinates)


def tma_prefetch(
    map_: ir.Value, coordinates: Sequence[ir.Value], offsets: Sequence[ir.Value] = (), policy: ir.Value | None = None
) -> None:
    """Add a `tma_prefetch`; coordinates are i32, offsets i16."""
    attrs = attributes(hint=None if policy is None else True)
    emit("cute_nvgpu.tma_prefetch", (), (map_, pack(coordinates), pack(offsets), optional(policy, 64)), attrs)


class TensorMapPrefetch(CuteNvgpu.Operation, name="tensor_map_prefetch", stays="a hint for a cache"):
    """Prefetch a tensor map. It has no visible effect."""

    map: Operand[Pointer]

    def check(self) -> str:
        return _wrong_map(self.map)


tensor_map_prefetch: Build = TensorMapPrefetch.build


# --- maps that kernels edit ------------------------------------------------------------------------------------------


class TensorMapReplace(
    CuteNvgpu.Operation, name="tensor_map_replace", reads=Access("map", 128), writes=Access("map", 128, "value")
):
    """Replace a field of a tensor map in shared or global memory, of mode `ordinal` if each mode has one (sm_90a).

    `value` is an i64 for `global_address` and `global_stride` (bytes), else an i32 with PTX's numbers: the rank less
    one, and constants for `elemtype`, `interleave_layout`, `swizzle_mode` and `fill_mode`. One thread executes it.
    """

    map: Operand[Pointer]
    value: Operand[Integer]
    field: one_of(*FIELDS)
    ordinal: ir.IntegerAttr

    def check(self) -> str:
        wide = self.field in ("global_address", "global_stride")
        if (str(self.value.type) == "i64") != wide:
            return f"has the {self.field} as {self.value.type}: it is {'i64' if wide else 'i32'}"
        if not 0 <= self.ordinal < TENSOR_MAP_RANK:
            return f"is of mode {self.ordinal}: 0 to 4"
        return wrong_space(self.map, "tensor map", "gmem", "smem")


def tensor_map_replace(map_: ir.Value, field: str, value: ir.Value, ordinal: int = 0) -> None:
    """Add a `tensor_map_replace` of the field `field`."""
    emit("cute_nvgpu.tensor_map_replace", (), (map_, value), attributes(field=field, ordinal=ordinal))


class TensorMapPublish(
    CuteNvgpu.Operation,
    name="tensor_map_publish",
    reads=Access("source", 128),
    writes=Access("target", 128),
    orders="warp",
    converged="warp",
    waits=True,
):
    """Copy a tensor map from shared to global memory and release it to copies of the GPU that acquire it.

    All threads of the warp execute it together.
    """

    target: Operand[Pointer]
    source: Operand[Pointer]

    def check(self) -> str:
        return wrong_space(self.target, "target", "gmem") or wrong_space(self.source, "source", "smem")


tensor_map_publish: Build = TensorMapPublish.build


SCOPES = ("cta", "cluster", "gpu", "sys")


class TensorMapRelease(CuteNvgpu.Operation, name="tensor_map_release", orders="accesses"):
    """Release this thread's writes to tensor maps to the copies that acquire them, at `scope`."""

    scope: one_of(*SCOPES)


def tensor_map_release(scope: str = "gpu") -> None:
    """Add a `tensor_map_release`."""
    emit("cute_nvgpu.tensor_map_release", (), (), attributes(scope=scope))


class TensorMapAcquire(CuteNvgpu.Operation, name="tensor_map_acquire", orders="accesses"):
    """Acquire what was released to a tensor map, at `scope`: later copies see it."""

    map: Operand[Pointer]
    scope: one_of(*SCOPES)

    def check(self) -> str:
        return _wrong_map(self.map)


def tensor_map_acquire(map_: ir.Value, scope: str = "gpu") -> None:
    """Add a `tensor_map_acquire`."""
    emit("cute_nvgpu.tensor_map_acquire", (), (map_,), attributes(scope=scope))
