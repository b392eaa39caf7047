"""Tensor maps: the box of a TMA copy, and the description of the tensor.

A tile of a tensor lies in shared memory by a layout. The longest run of shared memory that holds consecutive elements
of modes of the tensor is the box of one instruction; the rest of the tile takes further instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, prod
from typing import TYPE_CHECKING, Any, ClassVar

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import (
    BFloat16,
    Float4E2M1FN,
    Float16,
    Float32,
    Float64,
    Int4,
    Int16,
    Int32,
    Int64,
    Numeric,
    TFloat32,
    Uint16,
    Uint32,
    Uint64,
)
from ...dialects import cute
from ...hardware.limits import TENSOR_MAP_BOX as BOX
from ...hardware.limits import TENSOR_MAP_RANK as _RANK
from ...hardware.limits import TENSOR_MAP_STRIDE
from ...hardware.limits import TENSOR_MAP_UNIT as _UNIT
from ...hardware.tensor_maps import SHARED_BITS, SWIZZLES
from ..layout.algebra import coalesce, composition, flat_modes
from ..layout.basis import ScaledBasis
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import flatten_to_tuple, pretty_str, product
from ..layout.inverses import right_inverse
from ..layout.layout import Layout, make_identity_layout, make_layout
from ..layout.leaf import is_one, is_zero
from ..layout.swizzle import Swizzle
from ..tensor.pointer import element_bits

if TYPE_CHECKING:
    from ..tensor.tensor import TracedTensor

PADDED_ELEMENTS = 128
"""The elements of a row of a box, of types with padding in shared memory."""
_ROWS = 4
"""The rows of an instruction that takes them by their numbers."""
_KINDS = {
    Float16: "f16",
    BFloat16: "bf16",
    Float32: "f32",
    TFloat32: "tf32",
    Float64: "f64",
    Int16: "u16",
    Uint16: "u16",
    Int32: "s32",
    Uint32: "u32",
    Int64: "s64",
    Uint64: "u64",
    Int4: "16u4_align8b",
    Float4E2M1FN: "16u4_align8b",
}


@dataclass(frozen=True)
class TensorMapFacts:
    """The static part of a TMA descriptor: all but the address, the extents and the strides."""

    element: str
    """The element type, as the dialect names it."""
    bits: int
    """The bits of an element."""
    swizzle: str
    """The swizzle of the box's rows in shared memory, as the dialect names it."""
    modes: tuple[tuple[int, ...], ...]
    """The modes of the tensor, counted flat, in each mode of the map, the contiguous one first."""
    box: tuple[int, ...]
    """The extents of what one instruction copies, in elements of the map."""
    values: int
    """The elements of the tensor that the instructions of all blocks of a multicast copy together."""
    ratio: tuple[int, int]
    """The bits of the tensor's and of the map's elements, in lowest terms: the scale of coordinates of mode 0."""
    by_rows: bool = field(default=False, kw_only=True)
    """Whether an instruction takes four rows of a matrix by their numbers; its box has one row."""

    im2col: ClassVar[bool] = False
    """Whether its boxes are pixels of images."""

    @property
    def rank(self) -> int:
        """The number of coordinates of a copy."""
        return len(self.modes)

    def place(self, coordinates: list[Any], images: tuple[object, ...]) -> tuple[list[Any], list[Any]]:
        """Return the coordinates of the box, and pixel offsets, for an element of the coordinate tensor."""
        return coordinates, []

    @property
    def shared_bits(self) -> int:
        """The bits of shared memory that an element takes: more than `bits` where elements have padding."""
        return SHARED_BITS[self.element]

    @property
    def unit(self) -> int:
        """The elements of the contiguous mode at multiples of which boxes start."""
        return PADDED_ELEMENTS if self.shared_bits != self.bits else 128 // self.bits

    @property
    def bytes(self) -> int:
        """The bytes of a box in shared memory."""
        return prod(self.box) * self.shared_bits // 8


def refuse(rule: str, tensor: object, hint: str = "") -> Exception:
    """Return the error that no tensor map describes a tensor."""
    return type_error(f"{rule}, for {tensor}", hint)


def element_kind(dtype: Any, tensor: Any) -> str:
    """Return the element type of maps of tensors of a type."""
    bits = element_bits(dtype)
    kind = _KINDS.get(dtype) or ("u8" if bits == 8 else None)
    if kind is None:
        raise refuse(
            f"no tensor map has elements of {dtype.__name__}", tensor, "internal_type=Uint8 copies them as bytes"
        )
    return kind


def unpacked_kind(dtype: Any, internal_type: object) -> str | None:
    """Return the element type of maps whose copies give each element of 4 or 6 bits a byte of shared memory, which an
    internal type of 8 bits asks for; None for others."""
    if internal_type is None or element_bits(internal_type) != 8:
        return None
    return {4: "16u4_align16b", 6: "16u6_align16b"}.get(dtype.width)


def swizzle_kind(swizzle: Swizzle, tensor: object) -> str:
    """Return the swizzle of maps that shared memory seen through a swizzle (of byte addresses) asks for."""
    if swizzle.num_bits == 0:
        return "none"
    if (swizzle.num_bits, swizzle.num_base, swizzle.num_shift) == (2, 5, 2):
        return "128b_32b"
    if (swizzle.num_base, swizzle.num_shift) != (4, 3) or swizzle.num_bits > 3:
        raise refuse(
            f"TMA has the swizzles S<1,4,3>, S<2,4,3>, S<3,4,3> and S<2,5,2> of bytes, got {swizzle}",
            tensor,
            "make_smem_layout_atom of cute.nvgpu.warpgroup gives layouts with one of them",
        )
    return f"{16 << swizzle.num_bits}b"


def describe(
    tensor: TracedTensor,
    smem_layout: object,
    tile: Layout,
    multicast: int,
    internal_type: object,
    by_rows: bool = False,
) -> TensorMapFacts:
    """Return the map of a tensor of which tiles lie in shared memory by a layout. `tile` maps the coordinates of a
    tile to those of the tensor. `by_rows`: instructions take four rows by their numbers."""
    dtype = tensor.element_type
    if element := unpacked_kind(dtype, internal_type):
        wide = narrow = dtype.width
    else:
        own = dtype if internal_type is None else internal_type
        element = element_kind(own, tensor)
        wide = element_bits(dtype)
        narrow = element_bits(own)
    ratio = (wide // gcd(wide, narrow), narrow // gcd(wide, narrow))
    plain, swizzle = taken_apart(smem_layout, tile, tensor)
    kind = swizzle_kind(swizzle, tensor)
    run = _run(tensor, plain, tile)
    if multicast == 1 and not by_rows:
        run = _within_box(run, ratio, tensor)
    groups = _merged(run, tensor, ratio, SWIZZLES[kind] * 8 // SHARED_BITS[element])
    inside = {mode for group in groups for mode, _ in group}
    for mode, (s, d) in enumerate(zip(*_flat(tensor.layout), strict=True)):
        if mode not in inside and not is_one(s) and not is_zero(d):
            groups.append([(mode, 1)])
    groups = (
        [*groups[: _RANK - 1], [x for group in groups[_RANK - 1 :] for x in group]] if len(groups) > _RANK else groups
    )
    box = [prod(extent for _, extent in group) for group in groups]
    if by_rows:
        if len(box) != 2 or box[1] % _ROWS or multicast > 1:
            raise refuse(
                f"gather4 and scatter4 take four rows of a matrix, and the box of the tile is {tuple(box)} with "
                f"num_multicast={multicast}",
                tensor,
                "a tensor (rows, columns) with contiguous columns, tiles of a multiple of four rows, num_multicast=1",
            )
        facts = TensorMapFacts(
            element,
            narrow,
            kind,
            tuple(tuple(mode for mode, _ in group) for group in groups),
            (box[0] * ratio[0] // ratio[1], 1),
            _ROWS * box[0],
            ratio,
            by_rows=True,
        )
        _check_box(facts, tensor)
        return facts
    values = prod(box)
    box[0] = box[0] * ratio[0] // ratio[1]
    modes = tuple(tuple(mode for mode, _ in group) for group in groups)
    facts = TensorMapFacts(element, narrow, kind, modes, shared_out(box, multicast, tensor), values, ratio)
    _check_box(facts, tensor)
    return facts


def taken_apart(layout: object, tile: Layout, tensor: object) -> tuple[Layout, Swizzle]:
    """Return the layout of a tile in shared memory and its swizzle; modes past the tile's (stages) do not count."""
    swizzle = Swizzle(0, 4, 3)
    if isinstance(layout, ComposedLayout):
        if not isinstance(layout.inner, Swizzle) or not is_zero(layout.offset):
            raise refuse(f"a tile in shared memory lies by a swizzle, no offset and a layout, got {layout}", tensor)
        layout, swizzle = layout.outer, layout.inner
    if not isinstance(layout, Layout):
        raise refuse(f"smem_layout_ is a layout or composed layout, got {layout!r}", tensor)
    if not layout.is_static():
        raise refuse(f"the layout of a tile in shared memory is static, got {layout}", tensor)
    tile_extents = [product(s) for s in (m.shape for m in tile)]
    extents = [product(s) for s in (m.shape for m in layout)][: len(tile_extents)]
    if extents != tile_extents:
        raise refuse(
            f"the tile is {pretty_str(tuple(tile_extents))} and its layout in shared memory {layout} is {pretty_str(tuple(extents))}",
            tensor,
            "the first modes of smem_layout_ have the extents of cta_tiler; cute.slice_ takes stages off",
        )
    return make_layout([layout[i] for i in range(len(tile_extents))]), swizzle


def _flat(layout: Layout) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return flatten_to_tuple(layout.shape), flatten_to_tuple(layout.stride)


def _run(tensor: TracedTensor, smem: Layout, tile: Layout) -> list[tuple[int, int]]:
    """Return the modes of the tensor that shared memory walks through first, counted flat, each with its elements."""
    walked = coalesce(composition(tile, right_inverse(smem)))
    shapes, strides = flat_modes(walked)
    count = 0
    while count < len(strides) and isinstance(strides[count], ScaledBasis) and is_one(strides[count].value):
        count += 1
    if not count:
        raise refuse(
            f"shared memory {smem} walks through the tile by {walked}: not along a mode of the tensor",
            tensor,
            "the mode of stride 1 in shared memory is a mode of the tile, taken from its first element on",
        )
    within = make_layout(tuple(shapes[:count]), stride=tuple(strides[:count]))
    numbers = _numbered(tensor.shape)
    shapes, strides = flat_modes(composition(make_identity_layout(tensor.shape), within))
    modes: list[tuple[int, int]] = []
    for s, d in zip(shapes, strides, strict=True):
        if not isinstance(s, int):
            raise refuse(f"the box of a tile is static, but {within} takes {pretty_str(s)} elements of a mode", tensor)
        if s > 1:
            modes.append((numbers[tuple(d.mode)], s))
    major = modes[0][0] if modes else "?"
    stride = _flat(tensor.layout)[1][modes[0][0]] if modes else None
    if isinstance(stride, Numeric):  # known when the program runs
        message = f"majorness: mode {major} of the tensor is contiguous in shared memory ({smem}), and its stride is %ld: TMA takes 1"
        cute.assert_((Int64(stride) == 1).ir_value(), message, [Int64(stride).ir_value()])  # noqa: PT009
    elif not is_one(stride):
        raise refuse(
            f"majorness: the contiguous mode of shared memory ({smem}) is mode {major} of the tensor, whose stride is not 1",
            tensor,
            "take a layout in shared memory of the tensor's major mode; mark_layout_dynamic(leading_dim=...) keeps that stride static",
        )
    return modes


def _within_box(run: list[tuple[int, int]], ratio: tuple[int, int], tensor: TracedTensor) -> list[tuple[int, int]]:
    """Return a run that ends in a mode of which a box takes not all elements: the greatest part that it can."""
    for place, (mode, extent) in enumerate(run):
        # the elements of the map's first mode, and those of the tensor's
        over, under = ratio if place == 0 else (1, 1)
        if extent * over // under <= BOX:
            continue
        step = 8 * _UNIT // gcd(8 * _UNIT, element_bits(tensor.element_type)) if place == 0 else 1
        fits = [part for part in range(step, BOX * under // over + 1, step) if extent % part == 0]
        return [*run[:place], (mode, fits[-1])] if fits else run
    return run


def _numbered(shape: object) -> dict[tuple[int, ...], int]:
    """Return the number of each leaf of a shape by its path."""
    paths: list[tuple[int, ...]] = []

    def walk(s: object, path: tuple[int, ...]) -> None:
        if isinstance(s, tuple):
            for i, x in enumerate(s):
                walk(x, (*path, i))
        else:
            paths.append(path or (0,))

    walk(shape, ())
    return {path: number for number, path in enumerate(paths)}


def _merged(
    run: list[tuple[int, int]], tensor: TracedTensor, ratio: tuple[int, int], span: int
) -> list[list[tuple[int, int]]]:
    """Return modes in groups, each a mode of the map: contiguous modes that fit the box and the swizzle's span."""
    shapes, strides = _flat(tensor.layout)
    groups: list[list[tuple[int, int]]] = []
    for mode, extent in run:
        if groups:
            group = groups[-1]
            first = group[0][0]
            before = group[-1]
            length = prod(e for _, e in group)
            limit = min(BOX, span or BOX) * ratio[1] // ratio[0] if len(groups) == 1 else BOX
            # past the end of a mode there is nothing: it is one with the next only if the tile has all of it
            whole = isinstance(shapes[before[0]], int) and shapes[before[0]] == before[1]
            step = strides[first]
            if whole and isinstance(step, int) and is_same(strides[mode], step * length) and length * extent <= limit:
                group.append((mode, extent))
                continue
        groups.append([(mode, extent)])
    return groups


def is_same(leaf: object, number: int) -> bool:
    """Return whether a leaf is a certain static number."""
    return isinstance(leaf, int) and leaf == number


def shared_out(box: list[int], multicast: int, tensor: object) -> tuple[int, ...]:
    """Return the part of a box that each of `multicast` CTAs copies; outer modes are divided first."""
    box = list(box)
    left = multicast
    for i in reversed(range(len(box))):
        if left == 1:
            break
        if box[i] % left and left % box[i]:
            raise refuse(
                f"a box {tuple(box)} is not cut into {multicast} equal parts for num_multicast={multicast}", tensor
            )
        box[i], left = max(1, box[i] // left), max(1, left // box[i])
    if left != 1:
        raise refuse(f"a box of {prod(box)} elements has no {multicast} parts for num_multicast={multicast}", tensor)
    return tuple(box)


def _check_box(facts: TensorMapFacts, tensor: TracedTensor) -> None:
    """Raise an error for boxes that the driver would reject."""
    for i, extent in enumerate(facts.box):
        if extent > BOX:
            raise refuse(
                f"a box has at most {BOX} elements in each mode, and mode {i} of {facts.box} has {extent}",
                tensor,
                "take a smaller tile, or a layout in shared memory that breaks the mode up",
            )
    check_rows(facts, tensor)


def check_rows(facts: TensorMapFacts, tensor: TracedTensor) -> None:
    """Raise an error for rows of boxes that the driver would reject, or that lie in shared memory otherwise than the
    layout of the tile says."""
    row = facts.box[0] * facts.shared_bits
    if facts.shared_bits != facts.bits and facts.box[0] != PADDED_ELEMENTS:
        raise refuse(
            f"rows of a box have {PADDED_ELEMENTS} elements of {facts.bits} bits where each takes a byte of shared "
            f"memory, and {facts.box} has {facts.box[0]}",
            tensor,
            f"tiles and swizzles of {PADDED_ELEMENTS} bytes in the contiguous mode",
        )
    if row % (8 * _UNIT):
        raise refuse(
            f"rows of a box are multiples of {_UNIT} bytes, and {facts.box} has rows of {row / 8:g} bytes", tensor
        )
    span = SWIZZLES[facts.swizzle]
    if span and row > 8 * span:
        raise refuse(f"rows of a box are at most {span} bytes with the swizzle {facts.swizzle}, got {row // 8}", tensor)
    if row < 8 * span and (prod(facts.box[1:]) > 1 or facts.by_rows):
        raise refuse(
            f"with the swizzle {facts.swizzle} rows of a box lie {span} bytes apart in shared memory, and those of the box {facts.box} "
            f"are {row // 8} bytes long and lie next to each other in the tile's layout",
            tensor,
            "make_smem_layout_atom of cute.nvgpu.warpgroup with the kind whose swizzle spans a row of the tile (SW32, SW64, SW128), or wider tiles",
        )


def extents(facts: TensorMapFacts, tensor: TracedTensor) -> tuple[list[Any], list[Any], dict[int, Any]]:
    """Return the extents, strides and scales of a map's modes.

    Extents are in elements of the map, strides in bytes (of each mode but the first). Scales say, by the number of a
    mode of the tensor, how far a step along it moves the coordinate.
    """
    shapes, steps = _flat(tensor.layout)
    bits = facts.bits if facts.shared_bits != facts.bits else element_bits(tensor.element_type)
    sizes: list[Any] = []
    strides: list[Any] = []
    scales: dict[int, Any] = {}
    for group in facts.modes:
        common: Any = steps[group[0]]
        for mode in group[1:]:
            common = _common_divisor(common, steps[mode])
        size: Any = 1
        for mode in group:
            scales[mode] = 1 if len(group) == 1 else _quotient(steps[mode], common)
            size = shapes[mode] if len(group) == 1 else size + (_wide(shapes[mode]) - 1) * _wide(scales[mode])
        sizes.append(size)
        # the stride of a single element means nothing, and libraries fill in any
        strides.append(_UNIT if is_one(size) else _bytes(common, bits))
    over, under = facts.ratio
    if over != under:
        sizes[0] = _wide(sizes[0]) * over // under
    for i, stride in enumerate(strides[1:]):
        if isinstance(stride, int) and (stride % _UNIT or not 0 <= stride < TENSOR_MAP_STRIDE):
            raise refuse(
                f"strides are multiples of {_UNIT} bytes below 2**40, and mode {i + 1} has {stride} bytes", tensor
            )
    return sizes, strides[1:], scales


def _wide(leaf: object) -> Any:
    return leaf if isinstance(leaf, int) else Int64(leaf)


def _bytes(stride: object, bits: int) -> Any:
    return _wide(stride) * bits // 8 if bits % 8 else _wide(stride) * (bits // 8)


def _quotient(a: object, b: object) -> Any:
    return a // b if isinstance(a, int) and isinstance(b, int) else Int32(_wide(a) // _wide(b))


def _common_divisor(a: object, b: object) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return gcd(a, b)
    if is_one(a) or is_one(b):
        return 1
    first = Int64(a)
    second = Int64(b)
    kind = Int64.mlir_type
    loop = tracing.emit("scf.while", [kind, kind], [first.ir_value(), second.ir_value()], regions=2)
    before, after = (region.blocks.append(kind, kind) for region in loop.regions)
    with ir.InsertionPoint(before):
        going = Int64._make(before.arguments[1]) != 0
        tracing.emit("scf.condition", [], [going.ir_value(), *before.arguments])
    with ir.InsertionPoint(after):
        x, y = (Int64._make(v, True) for v in after.arguments)
        tracing.emit("scf.yield", [], [y.ir_value(), (x % y).ir_value()])
    return Int64._make(loop.results[0], True)
