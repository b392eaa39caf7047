"""`cute_nvgpu` operations as PTX: `nvvm` operations where LLVM has to understand them, inline PTX elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware import features
from ....mlir import context, ir
from ...lowering.builder import int_type, ptr_type
from ..expand import (
    Types,
    attribute,
    carrier_type,
    constant_value,
    device_type,
    element_of,
    expands,
    from_carrier,
    pointer_type,
    special_register,
    to_carrier,
)

if TYPE_CHECKING:
    from ..expand import DeviceBuilder, Expander

REGISTER = {16: "h", 32: "r", 64: "l"}
"""Constraint letters of integer registers."""


def _f32() -> ir.Type:
    return ir.F32Type.get(context())


def is_float(type_: ir.Type) -> bool:
    return isinstance(element_of(type_), ir.FloatType)


def bits_of(type_: ir.Type) -> int:
    element = element_of(type_)
    count = type_.shape[0] if isinstance(type_, ir.VectorType) else 1
    return count * element.width


def as_bits(b: DeviceBuilder, value: ir.Value) -> ir.Value:
    """A value as an integer of its width."""
    value = to_carrier(b, value)
    want = int_type(bits_of(value.type))
    return value if value.type == want else b.value("llvm.bitcast", want, (value,))


def from_bits(b: DeviceBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    carrier = carrier_type(type_)
    if value.type != carrier:
        value = b.value("llvm.bitcast", carrier, (value,))
    return from_carrier(b, value, type_)


def _shared_address(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    """A shared-memory pointer as its address of 32 bits."""
    return b.value("llvm.ptrtoint", int_type(32), (b.cast_space(pointer, pointer_type(3)),))


# --- barriers and fences ---------------------------------------------------------------------------------------------


@expands("cute_nvgpu.barrier")
def _barrier(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    number, threads = op.operands
    count = constant_value(threads)
    if count == 0:
        b.asm("bar.sync $0;", _number(number), [number])
    elif count is not None:
        b.asm("bar.sync $0, $1;", f"{_number(number)},{_number(threads)}", [number, threads])
    else:  # 0 is not a count to PTX
        whole, part = b.if_else(b.compare("eq", threads, b.i32(0)))
        type(b)(whole.point, b.location).asm("bar.sync $0;", _number(number), [number])
        type(b)(part.point, b.location).asm("bar.sync $0, $1;", f"{_number(number)},r", [number, threads])
    return []


def _number(value: ir.Value) -> str:
    """The constraint of an operand that may be a constant in the instruction."""
    return "r" if constant_value(value) is None else "n"


@expands("cute_nvgpu.barrier_arrive")
def _barrier_arrive(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    number, threads = op.operands
    b.asm("bar.arrive $0, $1;", f"{_number(number)},{_number(threads)}", [number, threads])
    return []


@expands("cute_nvgpu.sync_warp")
def _sync_warp(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.op("nvvm.bar.warp.sync", (), [op.operands[0]])
    return []


@expands("cute_nvgpu.fence")
def _fence(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    kind = attribute(op, "kind")
    if "cluster" in kind or "async" in kind:
        x.require(op, features.CLUSTERS, f"fence.{kind}")
    b.asm(f"fence.{kind};", "")
    return []


# --- warps -----------------------------------------------------------------------------------------------------------


@expands("cute_nvgpu.shuffle")
def _shuffle(_x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    value, offset, mask, clamp = op.operands
    bits = as_bits(b, value)
    kind = ir.Attribute.parse(f"#nvvm<shfl_kind {attribute(op, 'kind')}>", context())
    made = b.value("nvvm.shfl.sync", int_type(32), (mask, bits, offset, clamp), {"kind": kind})
    return [from_bits(b, made, results[0])]


@expands("cute_nvgpu.vote")
def _vote(_x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    predicate, mask = op.operands
    kind = ir.Attribute.parse(f"#nvvm<vote_sync_kind {attribute(op, 'kind')}>", context())
    return [b.value("nvvm.vote.sync", results[0], (mask, predicate), {"kind": kind})]


@expands("cute_nvgpu.redux")
def _redux(x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    value, mask = op.operands
    kind, *modifiers = attribute(op, "kind").split(".")
    if is_float(value.type):
        x.require(op, features.FLOAT_REDUX)
        name = "".join(f".{part}" for part in (kind.removeprefix("f"), *modifiers))
        return b.asm(f"redux.sync{name}.f32 $0, $1, $2;", "=f,f,r", [value, mask], [_f32()])
    unsigned = kind in ("umin", "umax", "and", "or", "xor")
    suffix = "b32" if kind in ("and", "or", "xor") else "u32" if unsigned else "s32"
    code = f"redux.sync.{kind.removeprefix('u')}.{suffix} $0, $1, $2;"
    return b.asm(code, "=r,r,r", [value, mask], [results[0]])


@expands("cute_nvgpu.elect_one")
def _elect_one(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    if features.ELECT.on(x.arch):
        return [b.value("nvvm.elect.sync", int_type(1))]
    # the lowest of the threads that are here
    (active,) = b.asm("activemask.b32 $0;", "=r", [], [int_type(32)])
    (below,) = b.asm("mov.u32 $0, %lanemask_lt;", "=r", [], [int_type(32)], pure=True)
    return [b.compare("eq", b.binary("andi", active, below), b.i32(0))]


@expands("cute_nvgpu.warp_uniform")
def _warp_uniform(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    kind = ir.Attribute.parse("#nvvm<shfl_kind idx>", context())
    return [b.value("nvvm.shfl.sync", int_type(32), (b.i32(-1), op.operands[0], b.i32(0), b.i32(31)), {"kind": kind})]


# --- mbarriers -------------------------------------------------------------------------------------------------------


@expands("cute_nvgpu.mbarrier_init")
def _mbarrier_init(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("mbarrier.init.shared.b64 [$0], $1;", "r,r", [_shared_address(b, op.operands[0]), op.operands[1]])
    return []


@expands("cute_nvgpu.mbarrier_inval")
def _mbarrier_inval(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("mbarrier.inval.shared.b64 [$0];", "r", [_shared_address(b, op.operands[0])])
    return []


def _peer_address(b: DeviceBuilder, address: ir.Value, peer: ir.Value) -> tuple[ir.Value, bool]:
    """The address of an mbarrier of this block or of a peer, and whether it is a peer's."""
    if constant_value(peer) == -1:
        return address, False
    (mapped,) = b.asm("mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", [address, peer], [int_type(32)], pure=True)
    return mapped, True


@expands("cute_nvgpu.mbarrier_arrive")
def _mbarrier_arrive(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    pointer, count, size, peer = op.operands
    order, scope = attribute(op, "order"), attribute(op, "scope")
    address, remote = _peer_address(b, _shared_address(b, pointer), peer)
    with_bytes = constant_value(size) != 0
    if remote or with_bytes or (order, scope) != ("release", "cta"):
        x.require(op, features.MBARRIER_BYTES, "an mbarrier of a peer, or one that counts bytes,")
    if not features.MBARRIER_BYTES.on(x.arch):
        b.asm("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [$0], $1; }" if constant_value(count) != 1 else
              "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [$0]; }", "r,r" if constant_value(count) != 1 else "r",
              [address, count] if constant_value(count) != 1 else [address])  # fmt: skip
        return []
    space = "shared::cluster" if remote else "shared::cta"
    scope = "cluster" if remote and scope == "cta" else scope
    if with_bytes:
        b.asm(f"mbarrier.arrive.expect_tx.{order}.{scope}.{space}.b64 _, [$0], $1;", "r,r", [address, size])
    elif constant_value(count) == 1:
        b.asm(f"mbarrier.arrive.{order}.{scope}.{space}.b64 _, [$0];", "r", [address])
    else:
        b.asm(f"mbarrier.arrive.{order}.{scope}.{space}.b64 _, [$0], $1;", "r,r", [address, count])
    return []


@expands("cute_nvgpu.mbarrier_expect_tx")
def _mbarrier_expect_tx(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.MBARRIER_BYTES)
    pointer, size, peer = op.operands
    address, remote = _peer_address(b, _shared_address(b, pointer), peer)
    scope = "cluster" if remote else attribute(op, "scope")
    space = "shared::cluster" if remote else "shared::cta"
    b.asm(f"mbarrier.expect_tx.relaxed.{scope}.{space}.b64 [$0], $1;", "r,r", [address, size])
    return []


def _poll(x: Expander, op: ir.Operation, b: DeviceBuilder, kind: str) -> ir.Value:
    if kind == "try_wait" and not features.MBARRIER_TRY_WAIT.on(x.arch):
        kind = "test_wait"
    code = f"{{ .reg .pred p; mbarrier.{kind}.parity.shared.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }}"
    (made,) = b.asm(code, "=r,r,r", [_shared_address(b, op.operands[0]), op.operands[1]], [int_type(32)])
    return b.compare("ne", made, b.i32(0))


@expands("cute_nvgpu.mbarrier_try_wait")
def _mbarrier_try_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [_poll(x, op, b, "try_wait")]


@expands("cute_nvgpu.mbarrier_test_wait")
def _mbarrier_test_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [_poll(x, op, b, "test_wait")]


@expands("cute_nvgpu.mbarrier_wait")
def _mbarrier_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    # the loop is part of the assembly: as a loop of the program, LLVM would have to be kept from changing it
    kind = "try_wait" if features.MBARRIER_TRY_WAIT.on(x.arch) else "test_wait"
    code = f"{{ .reg .pred p; wait_${{:uid}}: mbarrier.{kind}.parity.shared.b64 p, [$0], $1; @!p bra wait_${{:uid}}; }}"
    b.asm(code, "r,r", [_shared_address(b, op.operands[0]), op.operands[1]])
    return []


# --- asynchronous copies ---------------------------------------------------------------------------------------------


@expands("cute_nvgpu.cp_async")
def _cp_async(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    target, source, source_size = op.operands
    size, cache = attribute(op, "size"), attribute(op, "cache")
    address, source = _shared_address(b, target), b.cast_space(source, pointer_type(1))
    operands, letters, rest = [address, source], "r,l", f"{size}"
    if constant_value(source_size) != size:
        operands, letters, rest = [*operands, source_size], f"{letters},r", f"{rest}, $2"
    hint = ""
    if "hint" in op.attributes:
        operands, letters, rest = (
            [*operands, l2_policy(b, attribute(op, "hint"))],
            f"{letters},l",
            f"{rest}, ${len(operands)}",
        )
        hint = ".L2::cache_hint"
    if "prefetch" in op.attributes:
        hint += f".L2::{attribute(op, 'prefetch')}B"
    b.asm(f"cp.async.{cache}.shared.global{hint} [$0], [$1], {rest};", letters, operands)
    return []


def l2_policy(b: DeviceBuilder, name: str) -> ir.Value:
    """The policy of the L2 cache that a hint such as `L2::evict_last` stands for."""
    (made,) = b.asm(f"createpolicy.fractional.{name}.b64 $0, 1.0;", "=l", [], [int_type(64)], pure=True)
    return made


@expands("cute_nvgpu.cp_async_commit")
def _cp_async_commit(_x: Expander, _op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("cp.async.commit_group;", "")
    return []


@expands("cute_nvgpu.cp_async_wait")
def _cp_async_wait(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm(f"cp.async.wait_group {attribute(op, 'count')};", "")
    return []


@expands("cute_nvgpu.cp_async_mbarrier_arrive")
def _cp_async_mbarrier(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("cp.async.mbarrier.arrive.noinc.shared.b64 [$0];", "r", [_shared_address(b, op.operands[0])])
    return []


@expands("cute_nvgpu.cp_async_bulk_commit")
def _cp_async_bulk_commit(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    b.asm("cp.async.bulk.commit_group;", "")
    return []


@expands("cute_nvgpu.cp_async_bulk_wait")
def _cp_async_bulk_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    read = ".read" if "read" in op.attributes else ""
    b.asm(f"cp.async.bulk.wait_group{read} {attribute(op, 'count')};", "")
    return []


# --- clusters --------------------------------------------------------------------------------------------------------

_CLUSTERREGISTERS = {
    "block_in_cluster_idx": "cluster.ctaid",
    "block_in_cluster_dim": "cluster.nctaid",
    "cluster_idx": "clusterid",
    "cluster_dim": "nclusterid",
}


@expands("cute_nvgpu.cluster_index")
def _cluster_index(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    which, dim = attribute(op, "which"), attribute(op, "dim")
    if not features.CLUSTERS.on(x.arch):  # every block is a cluster
        if which in ("block_in_cluster_idx", "block_idx_in_cluster"):
            return [b.i32(0)]
        if which in ("block_in_cluster_dim", "cluster_size"):
            return [b.i32(1)]
        return [special_register(b, f"{'ctaid' if which == 'cluster_idx' else 'nctaid'}.{'xyz'[dim]}")]
    if which == "block_idx_in_cluster":
        return [special_register(b, "cluster.ctarank")]
    if which == "cluster_size":
        return [special_register(b, "cluster.nctarank")]
    return [special_register(b, f"{_CLUSTERREGISTERS[which]}.{'xyz'[dim]}")]


@expands("cute_nvgpu.cluster_arrive")
def _cluster_arrive(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.CLUSTERS, "a cluster barrier")
    aligned = ".aligned" if "aligned" in op.attributes else ""
    order = ".relaxed" if "relaxed" in op.attributes else ".release"
    b.asm(f"barrier.cluster.arrive{order}{aligned};", "")
    return []


@expands("cute_nvgpu.cluster_wait")
def _cluster_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.CLUSTERS, "a cluster barrier")
    aligned = ".aligned" if "aligned" in op.attributes else ""
    b.asm(f"barrier.cluster.wait.acquire{aligned};", "")
    return []


@expands("cute_nvgpu.map_shared")
def _map_shared(x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.CLUSTERS, "shared memory of another block")
    # a plain access to shared memory reaches this block's only: the result is a generic address
    address = b.value("llvm.ptrtoint", int_type(64), (b.cast_space(op.operands[0], ptr_type()),))
    operands = [address, op.operands[1]]
    (mapped,) = b.asm("mapa.u64 $0, $1, $2;", "=l,l,r", operands, [int_type(64)], pure=True)
    return [b.value("llvm.inttoptr", device_type(results[0]), (mapped,))]


# --- arithmetic units ------------------------------------------------------------------------------------------------


@expands("cute_nvgpu.prmt")
def _prmt(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return b.asm("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", list(op.operands), [int_type(32)], pure=True)


@expands("cute_nvgpu.lop3")
def _lop3(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    code = f"lop3.b32 $0, $1, $2, $3, {attribute(op, 'lut') & 255};"
    return b.asm(code, "=r,r,r,r", list(op.operands), [int_type(32)], pure=True)


@expands("cute_nvgpu.approx")
def _approx(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [approx(b, attribute(op, "kind"), op.operands[0])]


def approx(b: DeviceBuilder, kind: str, value: ir.Value, *, ftz: bool = True) -> ir.Value:
    """A fast function of the hardware."""
    flush = ".ftz" if ftz and kind != "tanh" else ""
    (made,) = b.asm(f"{kind}.approx{flush}.f32 $0, $1;", "=f,f", [value], [_f32()], pure=True)
    return made


@expands("cute_nvgpu.packed_f32x2")
def _packed(x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    kind, rounding = attribute(op, "kind"), attribute(op, "rounding")
    ftz = ".ftz" if attribute(op, "ftz") else ""
    operands = list(op.operands) if kind == "fma" else list(op.operands)[:2]
    if features.FLOAT32_PAIRS.on(x.arch) and kind != "sub":
        words = [as_bits(b, value) for value in operands]
        inputs = ",".join(["l"] * len(words))
        names = ", ".join(f"${n + 1}" for n in range(len(words)))
        (made,) = b.asm(f"{kind}.{rounding}{ftz}.f32x2 $0, {names};", f"=l,{inputs}", words, [int_type(64)], pure=True)
        return [from_bits(b, made, results[0])]
    parts: list[ir.Value] = []
    for n in range(2):
        position = {"static_position": ir.DenseI64ArrayAttr.get([n], context())}
        values = [b.value("vector.extract", _f32(), (value,), position) for value in operands]
        names = ", ".join(f"${n + 1}" for n in range(len(values)))
        letters = ",".join(["f"] * len(values))
        parts += b.asm(f"{kind}.{rounding}{ftz}.f32 $0, {names};", f"=f,{letters}", values, [_f32()], pure=True)
    return [b.value("vector.from_elements", results[0], parts)]


# --- clocks, registers, grids ----------------------------------------------------------------------------------------


@expands("cute_nvgpu.clock")
def _clock(_x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    which = attribute(op, "which")
    width = 32 if which == "clock" else 64
    return b.asm(f"mov.u{width} $0, %{which};", f"={REGISTER[width]}", [], [results[0]])


@expands("cute_nvgpu.nanosleep")
def _nanosleep(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("nanosleep.u32 $0;", "r", [op.operands[0]])
    return []


@expands("cute_nvgpu.set_max_register")
def _set_max_register(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.SET_MAX_REGISTERS)
    b.asm(f"setmaxnreg.{attribute(op, 'action')}.sync.aligned.u32 {attribute(op, 'count')};", "")
    return []


@expands("cute_nvgpu.grid_dependency")
def _grid_dependency(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.GRID_DEPENDENCY)
    b.asm(f"griddepcontrol.{attribute(op, 'action')};", "")
    return []


@expands("cute_nvgpu.dynamic_smem_size")
def _dynamic_smem_size(x: Expander, _op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    made = b.asm("mov.u32 $0, %dynamic_smem_size;", "=r", [], [int_type(32)], pure=True)
    x.kernel.smem_sizes += [value.owner.operation for value in made]
    return made
