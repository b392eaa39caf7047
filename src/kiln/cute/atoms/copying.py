"""Copies between tensors: `copy` with an atom, and the plain ones that need none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Int32, Int64, Integer
from ..arch.atomic import prefetch as fetch_line
from ..layout.int_tuple import pretty_str, product, wrap
from ..tensor.extents import check_element, check_elements
from ..tensor.pointer import AddressSpace, Pointer, element_bits
from ..tensor.tensor import TracedTensor
from ..tensor.vector_access import WIDEST_ACCESS, Copy
from .access_modifiers import modifiers_of
from .atom import CopyAtom, TiledCopy, accepted_keywords

__all__ = ["autovec_copy", "basic_copy", "basic_copy_if", "copy", "copy_atom_call", "prefetch"]


_LINE = 128
"""The bytes that a prefetch brings."""


def _memory(x: object, what: str) -> TracedTensor:
    if not isinstance(x, TracedTensor):
        raise type_error(f"the {what} of a copy is a tensor in memory, got {type(x).__name__}")
    x._memory("a copy", f"its {what}")
    return x


def _check(src: object, dst: object) -> tuple[TracedTensor, TracedTensor]:
    src = _memory(src, "source")
    dst = _memory(dst, "destination")
    if src.element_type is not dst.element_type:
        raise type_error(
            f"a copy from {src.element_type.__name__} to {dst.element_type.__name__} elements",
            "a copy does not convert: load, convert with .to(T) and store; or recast_tensor to copy bits",
        )
    a = product(src.shape)
    b = product(dst.shape)
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise type_error(
            f"a copy from shape {pretty_str(src.shape)} ({a} elements) to {pretty_str(dst.shape)} ({b} elements)",
            "source and destination have the same number of elements",
        )
    return src, dst


def guarded(condition: object, body: Callable[[], None]) -> None:
    """Emit `body` under a condition: a Boolean, static or dynamic."""
    if isinstance(condition, bool):
        if condition:
            body()
        return
    operation = tracing.emit("scf.if", [], [Boolean(condition).ir_value()], regions=2)
    with ir.InsertionPoint(operation.regions[0].blocks.append()):
        body()
        tracing.emit("scf.yield")


def looped(count: object, body: Callable[[Any], None]) -> None:
    """Emit `body(i)` for i from 0 up to a dynamic count."""
    kind = type(count) if isinstance(count, Integer) else Int32
    bounds = [kind(0).ir_value(), kind(count).ir_value(), kind(1).ir_value()]
    operation = tracing.emit("scf.for", [], bounds, regions=1)
    block = operation.regions[0].blocks.append(kind.mlir_type)
    with ir.InsertionPoint(block):
        body(kind._make(block.arguments[0], True))
        tracing.emit("scf.yield")


def transfer(
    src: object, dst: object, pred: object, values: int, widest: int, modifiers: tuple[str, str] = ("", "")
) -> int:
    """Copy all elements in parts of `values`, each under its predicate, if there are any.

    `modifiers` are those of loads and of stores. Returns the number of elements of the narrowest access to memory.
    """
    src, dst = _check(src, dst)
    count = product(dst.shape)
    if not isinstance(count, int):
        count = product(src.shape)
    if not isinstance(count, int):
        if any(modifiers):
            raise type_error(
                f"a copy with a memory order or a cache hint needs a static shape, got {pretty_str(src.shape)}"
            )
        _transfer_dynamic(src, dst, pred, count, values)
        return 1
    if count == 0:
        return values
    check = checker(src, dst)
    moving = Copy(src._iterator, src.offset_layout, dst._iterator, dst.offset_layout, count, widest, modifiers, check)
    if pred is None:
        moving.move()
        return moving.narrowest
    for condition, parts in predicates(pred, count, values, src, dst):
        elements = frozenset(p * values + k for p in parts for k in range(values))
        guarded(condition, lambda elements=elements: moving.move(elements))
    return moving.narrowest


def checker(src: TracedTensor, dst: TracedTensor) -> Callable[[Iterable[int]], None] | None:
    """Return a function that checks coordinates of copied elements against the extents of both tensors, or None."""
    if src._extents is None and dst._extents is None:
        return None

    def check(indices: Iterable[int]) -> None:
        check_elements(src._extents, src._iterator, indices, write=False)
        check_elements(dst._extents, dst._iterator, indices, write=True)

    return check


def predicates(pred: object, count: int, values: int, *tensors: TracedTensor) -> list[tuple[Any, list[int]]]:
    """Return each predicate with the calls that it guards, of an atom with `values` of the `count` values.

    There is one predicate for each call; or, for all calls in mode 0 of one of the tensors, one for each of its other
    modes; or also one for each repetition in mode 0, ((V, rest), ...), of a tiled copy whose V takes several calls.
    """
    calls = count // values
    if not isinstance(pred, TracedTensor):
        if isinstance(pred, (bool, Boolean)):
            return [(pred, list(range(calls)))]
        raise type_error(f"pred is a tensor of Booleans, got {type(pred).__name__}")
    if pred.element_type is not Boolean:
        raise type_error(f"pred is a tensor of Booleans, got {pred}")
    predicate_count = product(pred.shape)
    if count % values or not (
        predicate_count == calls or any(_covers(predicate_count, calls, x.shape) for x in tensors)
    ):
        raise type_error(
            f"{predicate_count} predicates of shape {pretty_str(pred.shape)} for {calls} parts of {values} elements",
            "there is one predicate for each call of the atom, or one for all its calls in mode 0: (rest of mode 0, modes 1, 2, ...)",
        )
    layout = pred.layout
    pointer = pred.iterator
    each = calls // predicate_count
    groups: dict[Any, list[int]] = {}
    for number in range(predicate_count):
        offset = layout(number)
        # of dynamic offsets nothing is known about which are the same
        key = offset if isinstance(offset, int) else (number, offset)
        groups.setdefault(key, []).extend(range(number * each, (number + 1) * each))
    return [(pointer.element(key[1] if isinstance(key, tuple) else key), parts) for key, parts in groups.items()]


def _covers(predicates: Any, calls: int, shape: object) -> bool:
    """Return whether there is one predicate for each of the modes after mode 0, or after the first part of mode 0."""
    first, *rest = wrap(shape)
    others = product(tuple(rest)) if rest else 1
    repeated = product(tuple(first[1:])) if isinstance(first, tuple) and len(first) > 1 else 1
    return (
        isinstance(predicates, int)
        and predicates > 0
        and calls % predicates == 0
        and predicates in (others, repeated * others)
    )


def _transfer_dynamic(src: TracedTensor, dst: TracedTensor, pred: Any, count: object, values: int) -> None:
    """Copy with a loop over the elements, for dynamic shapes."""
    if pred is not None and values != 1:
        raise type_error(
            f"a predicated copy of several elements at once needs a static shape, got {pretty_str(src.shape)}"
        )
    source: Pointer = src._iterator
    target: Pointer = dst._iterator
    source_layout = src.offset_layout
    target_layout = dst.offset_layout
    if source_layout is not src._layout or target_layout is not dst._layout:
        count = Int64(count)

    def body(i: Any) -> None:
        def move() -> None:
            check_element(src._extents, source, i, write=False)
            check_element(dst._extents, target, i, write=True)
            target.set_element(target_layout(i), source.element(source_layout(i)))

        if pred is None:
            move()
        else:
            guarded(pred[i] if isinstance(pred, TracedTensor) else pred, move)

    looped(count, body)


def basic_copy(src: object, dst: object, *, loc: object = None, ip: object = None) -> None:
    """Copy `src` to `dst`, two tensors with as many elements, one element at a time."""
    transfer(src, dst, None, 1, 0)


def basic_copy_if(pred: object, src: object, dst: object, *, loc: object = None, ip: object = None) -> None:
    """Copy the elements of `src` to `dst` whose predicate holds.

    Args:
        pred: a tensor with a Boolean for each element.
        src: the source tensor.
        dst: the destination, with as many elements.
    """
    transfer(src, dst, pred, 1, 0)


@tracing.at_one_location
def autovec_copy(src: Any, dst: Any, *, l1c_evict_priority: Any = None, loc: object = None, ip: object = None) -> None:
    """Copy with accesses as wide as the two layouts and the alignment allow.

    That is at most 32 bytes of global memory and 16 of other memory.

    Args:
        src: the source tensor.
        dst: the destination, with as many elements.
        l1c_evict_priority: how long lines should stay in the L1 cache, such as `CacheEvictionPriority.EVICT_FIRST`.
    """
    hint = {} if l1c_evict_priority is None else {"priority": l1c_evict_priority}
    transfer(src, dst, None, 1, WIDEST_ACCESS, modifiers_of(**hint))


@tracing.at_one_location
def copy(
    atom: object,
    src: object,
    dst: object,
    *,
    pred: object = None,
    unroll_factor: int | None = None,
    loc: object = None,
    ip: object = None,
    **kwargs: object,
) -> None:
    """Copy from `src` to `dst` with an atom or tiled copy, as many calls of the atom as they hold.

    Args:
        atom: a copy atom, or a tiled copy. TMA atoms are called by a whole warp, the others by every thread.
        src: the source: mode 0 has the atom's values, further modes are repetitions.
        dst: the destination, with the same modes.
        pred: a Boolean for each call, or for all calls in mode 0: (rest of mode 0, modes 1, 2, ...). Where it is false
            nothing is copied and the destination stays as it is; only asynchronous copies to shared memory write zeros.
        unroll_factor: accepted as in CuTe DSL; all calls of a static shape are unrolled here.
        kwargs: options of the atom: `tma_bar_ptr`, `mcast_mask` and `tma_desc_ptr` of TMA. An unknown one raises
            TypeError.
    """
    if not isinstance(atom, CopyAtom):
        raise type_error(
            f"copy() takes a copy atom first, got {type(atom).__name__}",
            "cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype); without an atom: cute.autovec_copy(src, dst)",
        )
    if isinstance(atom, TiledCopy):
        atom.require_whole_calls()
    options = accepted_keywords(atom.trait.copy, f"a copy with {type(atom.op).__name__}", kwargs, ("pred",))
    atom.trait.copy(src, dst, pred, **options)


def copy_atom_call(
    atom: Any, src: Any, dst: Any, *, pred: Any = None, loc: object = None, ip: object = None, **kwargs: Any
) -> None:
    """Copy with one call of a copy atom.

    Args:
        atom: the copy atom.
        src: the source, which holds exactly the atom's values.
        dst: the destination, which holds exactly the atom's values.
        pred: a Boolean; where it is false, nothing is copied.
        kwargs: options of the atom, as for `copy`.
    """
    copy(atom, src, dst, pred=pred, **kwargs)


def prefetch(atom: object, src: object, *, loc: object = None, ip: object = None) -> None:
    """Prefetch the source of a copy into the L2 cache. Results do not change.

    Args:
        atom: the copy atom; that of TMA prefetches a box.
        src: the source in global memory, of static shape.
    """
    if not isinstance(atom, CopyAtom):
        raise type_error(f"prefetch() takes a copy atom first, got {type(atom).__name__}")
    call = getattr(atom.trait, "prefetch", None)
    if call is not None:  # a trait that fetches by descriptors
        call(src)
        return
    source = _memory(src, "source")
    if source.memspace not in (AddressSpace.gmem, AddressSpace.generic):
        raise type_error(f"prefetch() of a tensor in {source.memspace}: only global memory is cached")
    values = product(atom.layout_src_tv.shape[1])
    count = product(source.shape)
    if not isinstance(count, int) or count % values:
        raise type_error(
            f"prefetch() of the shape {pretty_str(source.shape)} with an atom of {values} values",
            "mode 0 holds the values of the atom, or a multiple, and the shape is static",
        )
    bits = element_bits(source.element_type)
    lines: set[int] = set()
    for first in range(0, count, values):
        offset = source.layout(first)
        if isinstance(offset, int):
            line = offset * bits // (8 * _LINE)
            if line in lines:
                continue
            lines.add(line)
        fetch_line(source.iterator + offset, cache_level="L2")
