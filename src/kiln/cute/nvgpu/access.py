"""Memory accesses of copy operations: the address of each call, cache policies and reductions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int64, Numeric
from ..atoms.access_modifiers import CacheEvictionPriority, l2_modifier
from ..atoms.copying import guarded
from ..deferred_dialects import nvgpu
from ..layout.algebra import coalesce
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import flatten_to_tuple, pretty_str, product
from ..layout.leaf import is_one, leaf_add
from ..layout.swizzle import Swizzle
from ..tensor.extents import check_elements
from ..tensor.pointer import AddressSpace, Pointer, address_at, alignment_at
from ..tensor.tensor import TracedTensor


def memory(x: object, what: str, space: AddressSpace) -> TracedTensor:
    """Return a tensor; raise an error if it is not in the memory `space`."""
    if not isinstance(x, TracedTensor) or not x.in_memory:
        raise type_error(f"{what} is a tensor in memory, got {type(x).__name__}")
    of = AddressSpace.smem if x.memspace is AddressSpace.dsmem else x.memspace
    if of not in (space, AddressSpace.generic) or (x.memspace is AddressSpace.generic and space is AddressSpace.rmem):
        raise type_error(f"{what} lies in {space}, got a tensor in {x.memspace}")
    return x


def calls(tensor: TracedTensor, values: int, what: str) -> int:
    """Return how many calls of an operation with `values` values a tensor holds."""
    count = product(tensor.shape)
    if not isinstance(count, int) or count % values:
        raise type_error(
            f"{what} of shape {pretty_str(tensor.shape)} is copied with an atom of {values} values",
            "mode 0 holds the values of the atom, or a multiple, and the shape is static",
        )
    return count // values


def require_rows(tensor: TracedTensor, values: int, what: str) -> None:
    """Raise an error for a tensor whose values of one call are not contiguous."""
    layout = tensor._layout
    plain = coalesce(layout.outer if isinstance(layout, ComposedLayout) else layout)
    extent, stride = (flatten_to_tuple(t)[0] for t in (plain.shape, plain.stride))
    run = extent if isinstance(extent, int) and is_one(stride) else 1
    if isinstance(layout, ComposedLayout):
        run = min(run, 1 << layout.inner.num_base) if isinstance(layout.inner, Swizzle) else 1
    if values > 1 and run % values:
        raise type_error(
            f"the {values} values of one call lie in a row in {what}, and its layout is {layout}",
            "copy along the mode of stride 1, or with fewer bits",
        )


def say_alignment(bytes_: int) -> str:
    """Return how a program states the alignment of an address."""
    return (
        f"pass an array whose address and rows are multiples of {bytes_} bytes, or say that they are: "
        f"from_dlpack(x, assumed_align={bytes_}), mark_compact_shape_dynamic(divisibility=...), .align({bytes_})"
    )


def require_alignment(pointer: Pointer, offset: object, bytes_: int, what: str) -> None:
    """Raise an error for an address that is not known to be aligned."""
    alignment = alignment_at(pointer, offset)
    if alignment % bytes_:
        raise type_error(
            f"{what} is accessed by {bytes_} bytes at once, and its address is only known to be a multiple of {alignment}",
            say_alignment(16),
            page="sixteen-byte-accesses",
        )


def paired_rows(
    src: TracedTensor, dst: TracedTensor, values: int, bytes_: int, what: str
) -> list[tuple[ir.Value, ir.Value]]:
    """Return the addresses (target, source) of each call of a copy of `values` contiguous elements."""
    if src.element_type is not dst.element_type:
        raise type_error(
            f"{what} from {src.element_type.__name__} to {dst.element_type.__name__} elements",
            f"{what} does not convert",
        )
    count = calls(dst, values, "the destination")
    if calls(src, values, "the source") != count:
        raise type_error(
            f"{what} from the layout {src._layout} to {dst._layout}: they hold different numbers of elements"
        )
    require_rows(src, values, "the source")
    require_rows(dst, values, "the destination")
    indices = range(0, count * values, values)
    ends = list(zip(offsets(dst.offset_layout, indices), offsets(src.offset_layout, indices), strict=True))
    for to, of in ends:
        require_alignment(src._iterator, of, bytes_, "the source")
        require_alignment(dst._iterator, to, bytes_, "the destination")
    return [(address_at(dst._iterator, to), address_at(src._iterator, of)) for to, of in ends]


def under(pred: object, move: Callable[[], None], what: str) -> None:
    """Emit `move` under the one predicate of a copy, if it has one."""
    if isinstance(pred, TracedTensor):
        raise type_error(f"pred of {what} is one Boolean, got {pred}")
    if pred is None:
        move()
    else:
        guarded(pred, move)


def check_call(tensor: TracedTensor, call: int, values: int, write: bool) -> None:
    """Compare the coordinates of the values of a call with the extents of the tensor, if the sanitizer asks for it."""
    check_elements(tensor._extents, tensor._iterator, range(call * values, (call + 1) * values), write)


def offsets(layout: Any, indices: Iterable[int]) -> list[Any]:
    """Return the offsets at some indices; the repeating pattern of a swizzle is computed once."""
    indices = list(indices)
    if not isinstance(layout, ComposedLayout) or not isinstance(layout.inner, Swizzle) or layout.is_static():
        return [layout(i) for i in indices]
    plain = [layout.outer(i) for i in indices]
    if not all(isinstance(p, int) for p in plain):
        return [layout(i) for i in indices]
    swizzle = layout.inner
    period = swizzle.period
    patterns = {p % period: None for p in plain}
    swizzled = {r: swizzle(leaf_add(layout.offset, r)) for r in patterns}
    return [leaf_add(swizzled[p % period], p - p % period) for p in plain]


class ReductionKind(enum.Enum):
    """The operation of a reducing copy."""

    ADD = "add"
    MIN = "min"
    MAX = "max"
    INC = "inc"
    DEC = "dec"
    AND = "and"
    OR = "or"
    XOR = "xor"


REDUCTIONS = tuple(kind.value for kind in ReductionKind)


def policy_of(value: object) -> ir.Value | None:
    """Return the cache policy of a copy, given by its 64 bits or an eviction priority in the L2 cache; None: none."""
    if value is None:
        return None
    if isinstance(value, CacheEvictionPriority):
        return nvgpu.async_copy.cache_policy(l2_modifier(value) or "L2::evict_normal")
    if not isinstance(value, (int, Numeric)) or isinstance(value, bool):
        raise type_error(f"cache_policy is {value!r}", "a CacheEvictionPriority, or an Int64 with the bits of a policy")
    return Int64(value).ir_value()
