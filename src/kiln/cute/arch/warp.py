"""Threads of a warp: shuffles, votes, reductions, election."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Float, Int32, Int64, Numeric, Uint32
from ..deferred_dialects import nvgpu
from .values import FULL_MASK, choice, i1, i32, kernel_only, number

V = TypeVar("V")
"""A number or a vector."""

__all__ = [
    "ShflKind",
    "elect_one",
    "make_warp_uniform",
    "match_sync",
    "shuffle_sync",
    "shuffle_sync_bfly",
    "shuffle_sync_down",
    "shuffle_sync_op",
    "shuffle_sync_up",
    "sync_warp",
    "vote_all_sync",
    "vote_any_sync",
    "vote_ballot_sync",
    "vote_uni_sync",
    "warp_reduction",
    "warp_reduction_max",
    "warp_reduction_sum",
    "warp_redux_sync",
]


class ShflKind(enum.Enum):
    """The lane from which a shuffle reads."""

    idx = "idx"
    up = "up"
    down = "down"
    bfly = "bfly"


def sync_warp(mask: object = FULL_MASK, *, loc: object = None, ip: object = None) -> None:
    """Wait for the threads of the warp whose bits are set in `mask`."""
    kernel_only("sync_warp")
    nvgpu.sync.sync_warp(i32(mask))


def shuffle_sync_op(
    value: V,
    offset: object,
    mask: object = FULL_MASK,
    mask_and_clamp: object = 31,
    kind: object = ShflKind.idx,
    *,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return the value that another lane of the warp holds.

    Args:
        value: this lane's value: a number of up to 64 bits, or a vector of them.
        offset: the lane, or the distance to it, as `kind` says.
        mask: a bit for each lane that takes part; all of them execute the call.
        mask_and_clamp: PTX's third operand: the clamp in bits 0 to 4, the mask of the segment in bits 8 to 12.
        kind: how the lane is found: `ShflKind.idx`, `up`, `down` or `bfly`.
    """
    kernel_only("shuffle_sync")
    name = choice("kind", kind, ("idx", "up", "down", "bfly"))
    rest = (i32(offset), i32(mask), i32(mask_and_clamp))
    x: Any = value
    if not isinstance(x, (int, float, Numeric)) and hasattr(x, "dtype") and hasattr(x, "shape"):
        return type(x)(_shuffle_vector(x.ir_value(), rest, name), x.shape, x.dtype)
    typed = number(value)
    return type(typed)._make(_shuffle_word(typed.ir_value(), rest, name))


def _shuffle_vector(vector: ir.Value, rest: tuple[object, ...], kind: str) -> ir.Value:
    element = vector.type.element_type  # pyright: ignore[reportAttributeAccessIssue]
    parts: list[ir.Value] = []
    for n in range(vector.type.shape[0]):  # pyright: ignore[reportAttributeAccessIssue]
        position = {"static_position": ir.DenseI64ArrayAttr.get([n])}
        parts.append(_shuffle_word(tracing.emit_value("vector.extract", element, (vector,), position), rest, kind))
    return tracing.emit_value("vector.from_elements", vector.type, parts)


def _shuffle_word(value: ir.Value, rest: tuple[Any, ...], kind: str) -> ir.Value:
    width = value.type.width  # pyright: ignore[reportAttributeAccessIssue]
    if width == 32:
        return nvgpu.warp.shuffle(kind, value, *rest)
    narrow = ir.IntegerType.get_signless(32)
    if width < 32:  # as the low bits of a word
        own = ir.IntegerType.get_signless(width)
        bits = value if value.type == own else tracing.emit_value("arith.bitcast", own, (value,))
        word = tracing.emit_value("arith.extui", narrow, (bits,))
        word = nvgpu.warp.shuffle(kind, word, *rest)
        bits = tracing.emit_value("arith.trunci", own, (word,))
        return bits if value.type == own else tracing.emit_value("arith.bitcast", value.type, (bits,))
    if width != 64:
        raise type_error(f"a shuffle moves numbers of up to 64 bits, not {value.type}")
    # two words, each shuffled
    wide = ir.IntegerType.get_signless(64)
    bits = value if value.type == wide else tracing.emit_value("arith.bitcast", wide, (value,))
    shift = tracing.constant(wide, 32)
    low = tracing.emit_value("arith.trunci", narrow, (bits,))
    high = tracing.emit_value("arith.trunci", narrow, (tracing.emit_value("arith.shrui", wide, (bits, shift)),))
    low, high = (nvgpu.warp.shuffle(kind, word, *rest) for word in (low, high))
    low, high = (tracing.emit_value("arith.extui", wide, (word,)) for word in (low, high))
    joined = tracing.emit_value("arith.ori", wide, (low, tracing.emit_value("arith.shli", wide, (high, shift))))
    return joined if value.type == wide else tracing.emit_value("arith.bitcast", value.type, (joined,))


def shuffle_sync(
    value: V,
    offset: object,
    mask: object = FULL_MASK,
    mask_and_clamp: object = 31,
    *,
    kind: object = ShflKind.idx,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return the value that lane `offset` of the warp holds.

    Args:
        value: this lane's value: a number of up to 64 bits, or a vector of them.
        offset: the number of the lane.
        mask: a bit for each lane that takes part; all of them execute the call.
        mask_and_clamp: PTX's third operand: the clamp in bits 0 to 4, the mask of the segment in bits 8 to 12.
        kind: how the lane is found; leave it as it is.
    """
    return shuffle_sync_op(value, offset, mask, mask_and_clamp, kind)


def shuffle_sync_up(
    value: V,
    offset: object,
    mask: object = FULL_MASK,
    *,
    mask_and_clamp: object = 0,
    kind: object = ShflKind.up,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return the value that the lane `offset` below holds; the lowest lanes keep their own.

    Args:
        value: this lane's value: a number of up to 64 bits, or a vector of them.
        offset: the distance to the other lane.
        mask: a bit for each lane that takes part; all of them execute the call.
        mask_and_clamp: PTX's third operand: the clamp in bits 0 to 4, the mask of the segment in bits 8 to 12.
        kind: how the lane is found; leave it as it is.
    """
    return shuffle_sync_op(value, offset, mask, mask_and_clamp, kind)


def shuffle_sync_down(
    value: V,
    offset: object,
    mask: object = FULL_MASK,
    mask_and_clamp: object = 31,
    *,
    kind: object = ShflKind.down,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return the value that the lane `offset` above holds; the highest lanes keep their own.

    Args:
        value: this lane's value: a number of up to 64 bits, or a vector of them.
        offset: the distance to the other lane.
        mask: a bit for each lane that takes part; all of them execute the call.
        mask_and_clamp: PTX's third operand: the clamp in bits 0 to 4, the mask of the segment in bits 8 to 12.
        kind: how the lane is found; leave it as it is.
    """
    return shuffle_sync_op(value, offset, mask, mask_and_clamp, kind)


def shuffle_sync_bfly(
    value: V,
    offset: object,
    mask: object = FULL_MASK,
    mask_and_clamp: object = 31,
    *,
    kind: object = ShflKind.bfly,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return the value of the lane whose number is this lane's XOR `offset`.

    Args:
        value: this lane's value: a number of up to 64 bits, or a vector of them.
        offset: the bits in which the numbers of the lanes differ.
        mask: a bit for each lane that takes part; all of them execute the call.
        mask_and_clamp: PTX's third operand: the clamp in bits 0 to 4, the mask of the segment in bits 8 to 12.
        kind: how the lane is found; leave it as it is.
    """
    return shuffle_sync_op(value, offset, mask, mask_and_clamp, kind)


def warp_reduction(
    val: V, op: Callable[[Any, Any], Any], *, threads_in_group: int = 32, loc: object = None, ip: object = None
) -> V:
    """Return the values of groups of neighbouring lanes combined, in every lane of the group.

    Args:
        val: this lane's value.
        op: a function of two values, associative and commutative.
        threads_in_group: how many neighbouring lanes are combined, a power of two.
    """
    if threads_in_group not in (1, 2, 4, 8, 16, 32):
        raise type_error(f"threads_in_group is {threads_in_group}", "a power of two up to 32")
    offset = threads_in_group // 2
    while offset:
        val = op(val, shuffle_sync_bfly(val, offset))
        offset //= 2
    return val


def warp_reduction_max(
    val: V, *, op: Any = None, threads_in_group: int = 32, loc: object = None, ip: object = None
) -> V:
    """Return the largest value of groups of neighbouring lanes, in every lane of the group.

    Args:
        val: this lane's value.
        op: no effect; the operation is the maximum.
        threads_in_group: how many neighbouring lanes are combined, a power of two.
    """
    return warp_reduction(val, op or _larger, threads_in_group=threads_in_group)


def warp_reduction_sum(
    val: V, *, op: Any = None, threads_in_group: int = 32, loc: object = None, ip: object = None
) -> V:
    """Return the sum of the values of groups of neighbouring lanes, in every lane of the group.

    Args:
        val: this lane's value.
        op: no effect; the operation is the sum.
        threads_in_group: how many neighbouring lanes are combined, a power of two.
    """
    return warp_reduction(val, op or (lambda a, b: a + b), threads_in_group=threads_in_group)


def _larger(a: Any, b: Any) -> Any:
    if not isinstance(a, Numeric):
        return a.max(b) if hasattr(a, "max") else max(a, b)
    kind: Any = type(a)
    name = "arith.maximumf" if kind.is_float else "arith.maxsi" if kind.signed else "arith.maxui"
    return kind._make(tracing.emit_value(name, kind.mlir_type, (a.ir_value(), kind(b).ir_value())))


_REDUX = ("fmax", "fmin", "max", "min", "umax", "umin", "add", "xor", "or", "and")


def warp_redux_sync(
    value: V,
    kind: object,
    mask_and_clamp: object = FULL_MASK,
    *,
    abs: bool | None = None,
    nan: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> V:
    """Combine a 32-bit number of the lanes of a warp in one instruction, and return the result in all of them.

    Needs sm_80 or later; "fmax" and "fmin" need sm_100.

    Args:
        value: this lane's number.
        kind: the operation: "add", "min", "max", "umin", "umax", "and", "or", "xor", "fmin" or "fmax".
        mask_and_clamp: a bit for each lane that takes part.
        abs: combine magnitudes ("fmax", "fmin").
        nan: return NaN if a lane has one ("fmax", "fmin").
    """
    kernel_only("warp_redux_sync")
    name = choice("kind", kind, _REDUX)
    typed = number(value)
    if name in ("max", "min"):
        own: Any = type(typed)
        name = f"f{name}" if own.is_float else name if own.signed else f"u{name}"
    name += (".abs" if abs else "") + (".NaN" if nan else "")
    return type(typed)._make(nvgpu.warp.redux(name, typed.ir_value(), i32(mask_and_clamp)))


def _vote(what: str, kind: str, pred: Any, mask: Any, result: Any) -> Any:
    kernel_only(what)
    return result._make(nvgpu.warp.vote(kind, i1(pred), i32(mask)))


def vote_all_sync(pred: object, mask: object = FULL_MASK, *, loc: object = None, ip: object = None) -> Boolean:
    """Return whether the predicates of all lanes hold.

    Args:
        pred: this lane's Boolean.
        mask: a bit for each lane that takes part; all of them execute the call.
    """
    return _vote("vote_all_sync", "all", pred, mask, Boolean)


def vote_any_sync(pred: object, mask: object = FULL_MASK, *, loc: object = None, ip: object = None) -> Boolean:
    """Return whether the predicate of any lane holds.

    Args:
        pred: this lane's Boolean.
        mask: a bit for each lane that takes part; all of them execute the call.
    """
    return _vote("vote_any_sync", "any", pred, mask, Boolean)


def vote_uni_sync(pred: object, mask: object = FULL_MASK, *, loc: object = None, ip: object = None) -> Boolean:
    """Return whether the predicates of the lanes agree.

    Args:
        pred: this lane's Boolean.
        mask: a bit for each lane that takes part; all of them execute the call.
    """
    return _vote("vote_uni_sync", "uni", pred, mask, Boolean)


def vote_ballot_sync(pred: object, mask: object = FULL_MASK, *, loc: object = None, ip: object = None) -> Int32:
    """Return a word with the bit of each lane whose predicate holds.

    Args:
        pred: this lane's Boolean.
        mask: a bit for each lane that takes part; all of them execute the call.
    """
    return _vote("vote_ballot_sync", "ballot", pred, mask, Int32)


_chosen: weakref.WeakSet[tracing.FunctionFrame] = weakref.WeakSet()
"""The kernels in which an `elect_one` region is open."""


def elected() -> bool:
    """Return whether what is traced now is in a region of `elect_one`."""
    return tracing.require("elect_one()").function in _chosen


class IfOpRegion:
    """The region of `with elect_one():`, which one thread of the warp runs. Nested regions do nothing."""

    _point: Any

    def __enter__(self) -> None:
        kernel_only("elect_one")
        frame = tracing.require("elect_one()").function
        self._point = None
        if frame in _chosen:
            return
        _chosen.add(frame)
        chosen = nvgpu.warp.elect_one()
        branch = tracing.emit("scf.if", (), (chosen,), regions=2)
        self._point = ir.InsertionPoint(branch.regions[0].blocks.append())
        self._point.__enter__()

    def __exit__(self, *failure: object) -> None:
        if self._point is None:
            return
        if failure[0] is None:
            tracing.emit("scf.yield")
        self._point.__exit__(*failure)
        _chosen.discard(tracing.require("elect_one()").function)


def elect_one(*, loc: object = None, ip: object = None) -> IfOpRegion:
    """Return a region that exactly one of the threads of a warp that get there executes: `with elect_one(): ...`."""
    return IfOpRegion()


def make_warp_uniform(value: object, *, loc: object = None, ip: object = None) -> Int32:
    """Return `value` with the promise that it is the same in all lanes of the warp, so that branches on it are
    uniform.
    """
    kernel_only("make_warp_uniform")
    kind = type(value) if isinstance(value, (Int32, Uint32)) else Int32
    return kind._make(nvgpu.warp.warp_uniform(i32(value)), nonneg=getattr(value, "_nonneg", False))


@overload
def match_sync(
    mask: object, value: object, kind: Literal["any"] = "any", *, loc: object = None, ip: object = None
) -> Int32: ...
@overload
def match_sync(
    mask: object, value: object, kind: object, *, loc: object = None, ip: object = None
) -> Int32 | tuple[Int32, Boolean]: ...
def match_sync(
    mask: object, value: object, kind: object = "any", *, loc: object = None, ip: object = None
) -> Int32 | tuple[Int32, Boolean]:
    """Return the lanes that have this lane's `value`; of kind "all" the mask if all of them have it, else 0, and whether.

    Args:
        mask: a bit for each lane that takes part; all of them execute the call.
        value: a number of 32 or 64 bits; floats are compared as bits.
        kind: "any" or "all".
    """
    kernel_only("match_sync")
    how = choice("kind", kind, ("any", "all"))
    typed = number(value)
    width = type(typed).width
    if width not in (32, 64):
        raise type_error(f"match_sync() of {type(typed).__name__}", "a number of 32 or 64 bits")
    bits = typed.bitcast(Int64 if width == 64 else Int32) if isinstance(typed, Float) else typed
    lanes = Int32._make(nvgpu.warp.match(how, bits.ir_value(), i32(mask)))
    return lanes if how == "any" else (lanes, lanes != 0)
