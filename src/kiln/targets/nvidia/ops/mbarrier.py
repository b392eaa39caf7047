"""Mbarriers."""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import ir
from ...lowering.builder import constant_value, int_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, shared_address
from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(nvgpu.mbarrier.MbarrierInit)
def _mbarrier_init(_x: Expander, op: nvgpu.mbarrier.MbarrierInit, b: DeviceBuilder) -> None:
    b.asm("mbarrier.init.shared.b64 [$0], $1;", "r,r", [shared_address(b, op.pointer), op.count])


@HANDLERS.expands(nvgpu.mbarrier.MbarrierInval)
def _mbarrier_inval(_x: Expander, op: nvgpu.mbarrier.MbarrierInval, b: DeviceBuilder) -> None:
    b.asm("mbarrier.inval.shared.b64 [$0];", "r", [shared_address(b, op.pointer)])


def _peer_address(b: DeviceBuilder, address: ir.Value, peer: ir.Value) -> tuple[ir.Value, bool]:
    """Return the address of an mbarrier of this block or of a peer, and whether it is a peer's."""
    if constant_value(peer) == -1:
        return address, False
    (mapped,) = b.asm("mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", [address, peer], [int_type(32)], pure=True)
    return mapped, True


@HANDLERS.expands(nvgpu.mbarrier.MbarrierArrive)
def _mbarrier_arrive(x: Expander, op: nvgpu.mbarrier.MbarrierArrive, b: DeviceBuilder) -> None:
    order = op.order
    scope = op.scope
    address, remote = _peer_address(b, shared_address(b, op.pointer), op.peer)
    with_bytes = constant_value(op.bytes) != 0
    if remote or with_bytes or (order, scope) != ("release", "cta"):
        x.require(op, features.MBARRIER_BYTES, "an mbarrier of a peer, or one that counts bytes,")
    if not features.MBARRIER_BYTES.on(x.arch):
        code = "{{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [$0]{count}; }}"
    else:
        space = "shared::cluster" if remote else "shared::cta"
        code = f"mbarrier.arrive{'.expect_tx' * with_bytes}.{order}.{scope}.{space}.b64 _, [$0]{{count}};"
    if constant_value(op.count) == 1 and not with_bytes:
        b.asm(code.format(count=""), "r", [address])
    else:
        b.asm(code.format(count=", $1"), "r,r", [address, op.bytes if with_bytes else op.count])


@HANDLERS.expands(nvgpu.mbarrier.MbarrierExpectTx)
def _mbarrier_expect_tx(x: Expander, op: nvgpu.mbarrier.MbarrierExpectTx, b: DeviceBuilder) -> None:
    x.require(op, features.MBARRIER_BYTES)
    address, remote = _peer_address(b, shared_address(b, op.pointer), op.peer)
    scope = "cluster" if remote else op.scope
    space = "shared::cluster" if remote else "shared::cta"
    b.asm(f"mbarrier.expect_tx.relaxed.{scope}.{space}.b64 [$0], $1;", "r,r", [address, op.bytes])


def _waiting(x: Expander) -> str:
    """Return the instruction that may wait, where the architecture has it."""
    return "try_wait" if features.MBARRIER_TRY_WAIT.on(x.arch) else "test_wait"


def _poll(b: DeviceBuilder, kind: str, pointer: ir.Value, operands: list[ir.Value]) -> ir.Value:
    names = ", ".join(f"${n + 2}" for n in range(len(operands)))
    code = f"{{ .reg .pred p; mbarrier.{kind}.parity.shared.b64 p, [$1], {names}; selp.u32 $0, 1, 0, p; }}"
    constraints = ",".join(["=r", "r", *("r" for _ in operands)])
    (flag,) = b.asm(code, constraints, [shared_address(b, pointer), *operands], [int_type(32)])
    return b.compare("ne", flag, 0)


@HANDLERS.expands(nvgpu.mbarrier.MbarrierTryWait)
def _mbarrier_try_wait(x: Expander, op: nvgpu.mbarrier.MbarrierTryWait, b: DeviceBuilder) -> ir.Value:
    kind = _waiting(x)
    return _poll(b, kind, op.pointer, [op.phase, *(op.limit if kind == "try_wait" else ())])


@HANDLERS.expands(nvgpu.mbarrier.MbarrierTestWait)
def _mbarrier_test_wait(_x: Expander, op: nvgpu.mbarrier.MbarrierTestWait, b: DeviceBuilder) -> ir.Value:
    return _poll(b, "test_wait", op.pointer, [op.phase])


@HANDLERS.expands(nvgpu.mbarrier.MbarrierWait)
def _mbarrier_wait(x: Expander, op: nvgpu.mbarrier.MbarrierWait, b: DeviceBuilder) -> None:
    # the loop is part of the assembly: as a loop of the program, LLVM would have to be kept from changing it
    kind = _waiting(x)
    code = f"{{ .reg .pred p; wait_${{:uid}}: mbarrier.{kind}.parity.shared.b64 p, [$0], $1; @!p bra wait_${{:uid}}; }}"
    b.asm(code, "r,r", [shared_address(b, op.pointer), op.phase])
