"""`cutlass._mlir.dialects.nvvm`: the bindings' dialect, with operations that programs use and it lacks."""

from __future__ import annotations

import enum
from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.diagnostics import type_error
from ...base_dsl.tree import is_mlir_value
from ...base_dsl.typing import Float32, Int16, Int32, Int64, Numeric, NumericMeta, Uint32, Uint64
from ...mlir import dialect_module, ir
from ..deferred_dialects import nvgpu
from ..tensor.pointer import pointer_to, space_of_llvm_pointer
from . import arithmetic, atomic
from .arithmetic import add_packed_f32x2, fma_packed_f32x2, mul_packed_f32x2, sub_packed_f32x2  # noqa: F401  # pyright: ignore[reportUnusedImport] - names of the dialect that the bindings lack
from .values import i1, i32, kernel_only, pointer

AtomicOpKind = enum.Enum(
    "AtomicOpKind", "AND OR XOR ADD MAX MIN UMAX UMIN INC DEC EXCH CAS FADD FMAX FMIN", module=__name__
)
"""The operation of `atomicrmw`: U for unsigned integers, F for floats."""


_CTA_GROUPS = {"CTA_1": 1, "CTA_2": 2}
"""CTAs of each `CTAGroupKind`."""
_OLDER_NAMES = {"CpAsyncBulkTensorLoadMode": "TMALoadMode"}


def fmax(
    *operands: object, c: object = None, nan: bool = False, abs: bool = False, loc: object = None, **_: object
) -> ir.Value:
    """Return the largest of two or three floats, as a value of the bindings. A result type may come first."""
    return _extreme(arithmetic.fmax, operands, c, nan, abs)


def fmin(
    *operands: object, c: object = None, nan: bool = False, abs: bool = False, loc: object = None, **_: object
) -> ir.Value:
    """Return the smallest of two or three floats, as a value of the bindings. A result type may come first."""
    return _extreme(arithmetic.fmin, operands, c, nan, abs)


def _extreme(choose: Any, operands: tuple[object, ...], c: object, nan: bool, abs_: bool) -> ir.Value:
    values = [Float32(_number(x)) for x in (*operands, c) if x is not None and not isinstance(x, ir.Type)]
    extreme = values[0]
    for value in values[1:]:
        extreme = choose(extreme, value, abs=abs_, nan=nan)
    return extreme.ir_value()


def _number(x: Any) -> Any:
    return NumericMeta.from_mlir_type(x.type)._make(x) if is_mlir_value(x) else x


def atomicrmw(
    res: object = None,
    op: object = None,
    ptr: Any = None,
    a: object = None,
    *,
    b: object = None,
    mem_order: object = None,
    syncscope: object = None,
    loc: object = None,
    ip: object = None,
) -> ir.Value:
    """Update the element at a pointer (`!llvm.ptr` or one of the language) atomically, and return its old value.

    `b` is what CAS compares with. The type of the result may be given first, and is that of `a`.
    """
    if not isinstance(res, (ir.Type, type(None))):
        res, op, ptr, a = None, res, op, ptr if a is None else a
    number = _number(a)
    kind = type(number) if isinstance(number, Numeric) else Float32 if isinstance(number, float) else Int32
    name = getattr(op, "name", str(op)).lower()
    if name in ("umax", "umin"):
        kind = {Int32: Uint32, Int64: Uint64}.get(kind, kind)
    memory: Any = ptr if hasattr(ptr, "memspace") else pointer_to(kind, ptr, space_of_llvm_pointer(ptr.type))
    how = {"sem": mem_order, "scope": syncscope}
    if name == "cas":
        return atomic.atomic_cas(memory, kind(_number(b)), kind(number), **how).ir_value()
    if name in ("fmax", "fmin"):
        return getattr(atomic, f"atomic_{name}")(memory, Float32(number)).ir_value()
    name = name.removeprefix("u") if name in ("umax", "umin") else "add" if name == "fadd" else name
    if name not in ("and", "or", "xor", "add", "max", "min", "inc", "dec", "exch"):
        raise type_error(f"atomicrmw has no {op!r}", ", ".join(AtomicOpKind.__members__))
    return atomic._rmw("atomicrmw", name, memory, kind(number), **how).ir_value()


def mbarrier_try_wait_parity_timelimit(
    addr: object, phase_parity: object, ticks: object, *, loc: object = None, ip: object = None
) -> ir.Value:
    """Return whether the phase of a parity is complete, an i1; may wait for it, for `ticks` nanoseconds at most."""
    kernel_only("mbarrier_try_wait_parity_timelimit")
    where = pointer(addr, "mbarrier_try_wait_parity_timelimit", "smem")
    phase, limit = (i32(_number(x)) for x in (phase_parity, ticks))
    return nvgpu.mbarrier.mbarrier_try_wait(where, phase, limit)


def elect_sync(*, membermask: object = None, results: object = None, loc: object = None, ip: object = None) -> ir.Value:
    """Return whether this thread of the warp was elected, an i1. All threads of the warp execute it together."""
    kernel_only("elect_sync")
    if membermask is not None:
        raise type_error("elect_sync takes no membermask: all threads of the warp execute it")
    return nvgpu.warp.elect_one()


def CpAsyncBulkTensorGlobalToSharedClusterOp(
    dstMem: object,
    tmaDescriptor: object,
    coordinates: Any,
    mbar: object,
    im2colOffsets: Any = (),
    *,
    multicastMask: object = None,
    l2CacheHint: object = None,
    mode: object = None,
    loadMode: object = None,
    isCTAOnly: object = None,
    group: object = None,
    predicate: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy a box of a tensor to shared memory (`cp.async.bulk.tensor`) in the thread whose `predicate` holds; without
    one, in each.

    With `im2colOffsets` the mode is im2col, otherwise tiles.
    """
    what = "CpAsyncBulkTensorGlobalToSharedClusterOp"
    kernel_only(what)
    expected = getattr(mode if mode is not None else loadMode, "name", "TILE")
    if expected != ("IM2COL" if len(im2colOffsets) else "TILE"):
        raise type_error(f"{what} of mode {expected} with {len(im2colOffsets)} offsets")
    cta_group = None if group is None else _CTA_GROUPS.get(getattr(group, "name", ""))
    if group is not None and cta_group is None:
        raise type_error(f"group of {what} is {group!r}", "CTAGroupKind.CTA_1 or CTA_2")
    target = pointer(dstMem, what, "smem")
    barrier = pointer(mbar, what, "smem")
    map_ = pointer(tmaDescriptor, what)
    places = [i32(_number(c)) for c in coordinates]
    offsets = [Int16(_number(c)).ir_value() for c in im2colOffsets]
    mask, policy = (
        None if x is None else kind(_number(x)).ir_value() for x, kind in ((multicastMask, Int16), (l2CacheHint, Int64))
    )

    def copy() -> None:
        nvgpu.tma.tma_load(
            map_, target, barrier, places, offsets=offsets, mask=mask, policy=policy, cta_group=cta_group
        )

    if predicate is None:
        copy()
        return
    branch = tracing.emit("scf.if", (), (i1(predicate),), regions=2)
    with ir.InsertionPoint(branch.regions[0].blocks.append()):
        copy()
        tracing.emit("scf.yield")


def __getattr__(name: str) -> Any:
    if name == "__all__":  # `from ... import *` takes both
        return [public for public in __dir__() if not public.startswith("_")]
    return getattr(dialect_module("nvvm"), _OLDER_NAMES.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(dialect_module("nvvm"))})
