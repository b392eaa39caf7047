"""Asynchronous copies: of a thread, and in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware import features
from ....mlir import context, ir
from ...lowering.builder import constant_value, int_type, ptr_type
from ...lowering.expansion import Handlers, Types
from ..device_builder import DeviceBuilder, l2_policy, pointer_type, shared_address

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands("cute_nvgpu.cp_async")
def _cp_async(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    target, source, source_size = op.operands
    size, cache = op.attributes["size"].value, op.attributes["cache"].value
    address, source = shared_address(b, target), b.cast_space(source, pointer_type(1))
    operands, letters, rest = [address, source], "r,l", f"{size}"
    if constant_value(source_size) != size:
        operands, letters, rest = [*operands, source_size], f"{letters},r", f"{rest}, $2"
    hint = ""
    if "hint" in op.attributes:
        operands, letters, rest = (
            [*operands, l2_policy(b, op.attributes["hint"].value)],
            f"{letters},l",
            f"{rest}, ${len(operands)}",
        )
        hint = ".L2::cache_hint"
    if "prefetch" in op.attributes:
        hint += f".L2::{op.attributes['prefetch'].value}B"
    b.asm(f"cp.async.{cache}.shared.global{hint} [$0], [$1], {rest};", letters, operands)
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_commit")
def _cp_async_commit(_x: Expander, _op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("cp.async.commit_group;", "")
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_wait")
def _cp_async_wait(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm(f"cp.async.wait_group {op.attributes['count'].value};", "")
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_mbarrier_arrive")
def _cp_async_mbarrier(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("cp.async.mbarrier.arrive.noinc.shared.b64 [$0];", "r", [shared_address(b, op.operands[0])])
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_bulk_commit")
def _cp_async_bulk_commit(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    b.asm("cp.async.bulk.commit_group;", "")
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_bulk_wait")
def _cp_async_bulk_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    read = ".read" if "read" in op.attributes else ""
    b.asm(f"cp.async.bulk.wait_group{read} {op.attributes['count'].value};", "")
    return []


@HANDLERS.expands("cute_nvgpu.cache_policy")
def _cache_policy(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [l2_policy(b, op.attributes["priority"].value)]


def cluster_address(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    """A pointer into the shared memory of any block of the cluster as its address of 32 bits; each block's own is among them."""
    if pointer.type != ptr_type():
        return shared_address(b, pointer)
    code = "{ .reg .b64 t; cvta.to.shared::cluster.u64 t, $1; cvt.u32.u64 $0, t; }"
    return b.asm(code, "=r,l", [b.value("llvm.ptrtoint", int_type(64), (pointer,))], [int_type(32)], pure=True)[0]


def _global(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    return b.cast_space(pointer, pointer_type(1))


def _hinted(op: ir.Operation, code: str, letters: str, operands: list[ir.Value]) -> tuple[str, str, list[ir.Value]]:
    """An instruction, its letters and operands, the last of which is a cache policy: without it unless the operation has one.

    `{hint}` and `{policy}` stand for the modifier and the operand in the instruction.
    """
    if "hint" in op.attributes:
        return code.format(hint=".L2::cache_hint", policy=f", ${len(operands) - 1}"), letters, operands
    return code.format(hint="", policy=""), letters.removesuffix(",l"), operands[:-1]


def _reduction(op: ir.Operation) -> str:
    """How elements are combined, as PTX says it."""
    name, element = op.attributes["reduction"].value, op.attributes["element"].value
    if name in ("and", "or", "xor"):
        return f"{name}.b{element[1:]}"
    return f"{name}.noftz.{element}" if name == "add" and element in ("f16", "bf16") else f"{name}.{element}"


@HANDLERS.expands("cute_nvgpu.bulk_load")
def _bulk_load(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    target, source, size, mbarrier, mask, policy = op.operands
    code = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    operands = [shared_address(b, target), _global(b, source), size, shared_address(b, mbarrier)]
    if "multicast" in op.attributes:
        code = f"{code}.multicast::cluster{{hint}} [$0], [$1], $2, [$3], $4{{policy}};"
        b.asm(*_hinted(op, code, "r,l,r,r,h,l", [*operands, mask, policy]))
    else:
        b.asm(*_hinted(op, f"{code}{{hint}} [$0], [$1], $2, [$3]{{policy}};", "r,l,r,r,l", [*operands, policy]))
    return []


@HANDLERS.expands("cute_nvgpu.bulk_send")
def _bulk_send(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    target, source, size, mbarrier = op.operands
    code = "async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    code = f"cp.reduce.{code}.{_reduction(op)}" if "reduction" in op.attributes else f"cp.{code}"
    operands = [cluster_address(b, target), shared_address(b, source), size, cluster_address(b, mbarrier)]
    b.asm(f"{code} [$0], [$1], $2, [$3];", "r,r,r,r", operands)
    return []


@HANDLERS.expands("cute_nvgpu.bulk_store")
def _bulk_store(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    target, source, size, policy = op.operands
    code = "async.bulk.global.shared::cta.bulk_group{hint}"
    code = f"cp.reduce.{code}.{_reduction(op)}" if "reduction" in op.attributes else f"cp.{code}"
    operands = [_global(b, target), shared_address(b, source), size, policy]
    b.asm(*_hinted(op, f"{code} [$0], [$1], $2{{policy}};", "l,r,r,l", operands))
    return []


@HANDLERS.expands("cute_nvgpu.bulk_prefetch")
def _bulk_prefetch(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    source, size, policy = op.operands
    code = "cp.async.bulk.prefetch.L2.global{hint} [$0], $1{policy};"
    b.asm(*_hinted(op, code, "l,r,l", [_global(b, source), size, policy]))
    return []


@HANDLERS.expands("cute_nvgpu.store_async")
def _store_async(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY, "an asynchronous store")
    target, value, mbarrier = op.operands
    count = value.type.shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    positions = [{"static_position": ir.DenseI64ArrayAttr.get([n], context())} for n in range(count)]
    words = [b.value("vector.extract", int_type(32), (value,), position) for position in positions]
    given = ", ".join(f"${n + 2}" for n in range(count))
    kind, given = ("b32", given) if count == 1 else (f"v{count}.b32", f"{{{given}}}")
    code = f"st.async.shared::cluster.mbarrier::complete_tx::bytes.{kind} [$0], {given}, [$1];"
    b.asm(code, ",".join("r" * (2 + count)), [cluster_address(b, target), cluster_address(b, mbarrier), *words])
    return []
