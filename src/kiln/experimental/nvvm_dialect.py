"""`cutlass._mlir.dialects.nvvm`: what `kiln.cute.arch.nvvm_dialect` has, and the operations that primitives stand for."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable

from ..base_dsl.tree import is_mlir_value
from ..base_dsl.typing import Int32, Int64, NumericMeta
from ..cute.arch import nvvm_dialect
from ..cute.arch.inline_assembly import inline_ptx
from ..cute.arch.values import choice
from ..cute.tensor.raw_pointer import as_raw_pointer
from ..cute.tensor.tensor_ssa import TensorSSA
from ..mlir import ir
from . import primitives
from .primitives.addresses import is_remote, shared, word

CVTPackFloatKind = enum.Enum(
    "CVTPackFloatKind", "F16x2 BF16x2 E4M3x2 E5M2x2 E2M3x2 E3M2x2 E2M1x2 UE8M0x2", module=__name__
)
"""Two floats of a format."""
MBarrierSpaceKind = enum.Enum("MBarrierSpaceKind", "CTA CLUSTER", module=__name__)
"""Where an mbarrier lies: in this CTA, or anywhere in the cluster."""
MBarrierTxnKind = enum.Enum("MBarrierTxnKind", "ARRIVE ARRIVE_EXPECT_TX EXPECT_TX COMPLETE_TX", module=__name__)
"""What `mbarrier_txn` does."""
_OLDER_NAMES = {"ReduxKind": "ReductionKind", "cp_async_mbarrier_arrive_shared": "cp_async_mbarrier_arrive"}


def mbarrier_txn(
    addr: object,
    txcount: object = None,
    *,
    kind: MBarrierTxnKind,
    space: MBarrierSpaceKind | None = None,
    order: object = None,
    scope: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Arrive at an mbarrier, count bytes there, or both; `txcount` of ARRIVE is how many arrivals it stands for."""
    barrier = shared(addr, "mbarrier_txn")
    near = getattr(space, "name", "CTA") == "CTA" and not is_remote(barrier)
    name = choice("kind", kind, ("arrive", "arrive_expect_tx", "expect_tx", "complete_tx"))
    how = "relaxed" if name.endswith("_tx") else "release"
    how = how if order is None else choice("order", order, ("relaxed", "release"))
    reach = choice("scope", scope, ("cta", "cluster")) if scope is not None else "cta" if near else "cluster"
    target = ("{$w0}, " if near else "_, ") if name.startswith("arrive") else ""
    operation = name.replace("arrive_", "arrive.")
    code = f"mbarrier.{operation}.{how}.{reach}.shared::{'cta' if near else 'cluster'}.b64 {target}[{{$r0}}]"
    counts = [] if txcount is None else [Int32(_operand(txcount))]
    inline_ptx(
        f"{code}{', {$r1}' * len(counts)};",
        write_only_types=[Int64] * ("{$w0}" in target),
        read_only_args=[word(barrier), *counts],
    )


def _is_type(x: object) -> bool:
    return isinstance(x, ir.Type) or (isinstance(x, (list, tuple)) and bool(x) and all(map(_is_type, x)))


def _without_result(operation: Callable[..., object]) -> Callable[..., object]:
    """Return a function that takes the type of the result first or as `res`, as programs give it, and drops it."""

    @functools.wraps(operation)
    def build(*operands: object, res: object = None, **more: object) -> object:
        return operation(*(operands[1:] if operands and _is_type(operands[0]) else operands), **more)

    return build


def _of_primitive(name: str) -> Callable[..., object]:
    """Return an operation of the dialect that a primitive stands for: values of the bindings in and out."""

    @functools.wraps(getattr(primitives, name))
    def build(*operands: object, aligned: bool = False, **more: object) -> object:
        primitive = getattr(primitives, f"{name}{'_aligned' * bool(aligned)}")
        result = primitive(*map(_operand, operands), **{key: _operand(value) for key, value in more.items()})
        if isinstance(result, tuple):
            return tuple(x.ir_value() for x in result)
        return result.ir_value() if hasattr(result, "ir_value") else result

    return _without_result(build)


def _operand(x: object) -> object:
    """Return a value of the bindings as the primitives take it: a number, or a pointer to words of tensor memory."""
    if isinstance(x, enum.Enum):
        return None if x.name == "NONE" else _of_dialect(x)
    if not is_mlir_value(x):
        return x
    type_: ir.Type = getattr(x, "type")  # noqa: B009
    if isinstance(type_, ir.VectorType):
        vector = ir.VectorType(type_)
        return TensorSSA(x, tuple(vector.shape), NumericMeta.from_mlir_type(vector.element_type))
    if str(type_) == "!llvm.ptr<6>":
        return as_raw_pointer(x, Int32)
    return x if str(type_).startswith("!") else NumericMeta.from_mlir_type(type_)._make(x)


def _of_dialect(member: enum.Enum) -> object:
    """Return the member of the primitives' enumeration for one of the bindings'; others stay."""
    name = type(member).__name__
    kind = getattr(primitives, name, None) or getattr(primitives, name.removesuffix("Kind"), None)
    return getattr(kind, member.name.upper(), member)


def tcgen05_ld(
    res: ir.Type,
    shape: enum.Enum,
    tmem_addr: ir.Value,
    *,
    pack: bool | None = None,
    offset: int | None = None,
    loc: object = None,
    ip: object = None,
) -> ir.Value:
    """Return a thread's words of tensor memory: an i32, or the vector of a type, whose length says how many."""
    count = ir.VectorType(res).shape[0] if isinstance(res, ir.VectorType) else 1
    each = {"SHAPE_16X128B": 2, "SHAPE_16X256B": 4}.get(shape.name, 1)
    operands = _operand(shape), _operand(tmem_addr)
    words = primitives.tcgen05_ld(*operands, num=count // each, pack=pack, offset=offset)
    return words.to_vector().value if isinstance(res, ir.VectorType) else words[0].ir_value()


_BOTH_LOWER = ("bar_warp_sync", "shfl_sync", "vote_sync")
"""Operations that the bindings build and all targets take."""


@functools.cache
def _from_elsewhere(name: str) -> object:
    """Return a name of the dialect; for operations a primitive where there is one, which all targets take."""
    name = _OLDER_NAMES.get(name, name)
    builder = getattr(nvvm_dialect, name, None)
    stem = name if hasattr(primitives, name) else name.removesuffix("Kind")
    primitive = None if name in _BOTH_LOWER or name in vars(nvvm_dialect) else getattr(primitives, stem, None)
    if inspect.isfunction(primitive):
        return _of_primitive(name)
    if builder is None and isinstance(primitive, type):
        return primitive
    if inspect.isfunction(builder) and "results" in inspect.signature(builder).parameters:
        return _without_result(builder)
    return getattr(nvvm_dialect, name)


def __getattr__(name: str) -> object:
    return getattr(nvvm_dialect, name) if name.startswith("__") else _from_elsewhere(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(nvvm_dialect)})
