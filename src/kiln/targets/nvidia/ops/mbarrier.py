"""Mbarriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware import features
from ....mlir import ir
from ...lowering.builder import constant_value, int_type
from ...lowering.expansion import Handlers, Types
from ..device_builder import DeviceBuilder, shared_address

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands("cute_nvgpu.mbarrier_init")
def _mbarrier_init(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("mbarrier.init.shared.b64 [$0], $1;", "r,r", [shared_address(b, op.operands[0]), op.operands[1]])
    return []


@HANDLERS.expands("cute_nvgpu.mbarrier_inval")
def _mbarrier_inval(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("mbarrier.inval.shared.b64 [$0];", "r", [shared_address(b, op.operands[0])])
    return []


def _peer_address(b: DeviceBuilder, address: ir.Value, peer: ir.Value) -> tuple[ir.Value, bool]:
    """The address of an mbarrier of this block or of a peer, and whether it is a peer's."""
    if constant_value(peer) == -1:
        return address, False
    (mapped,) = b.asm("mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", [address, peer], [int_type(32)], pure=True)
    return mapped, True


@HANDLERS.expands("cute_nvgpu.mbarrier_arrive")
def _mbarrier_arrive(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    pointer, count, size, peer = op.operands
    order, scope = op.attributes["order"].value, op.attributes["scope"].value
    address, remote = _peer_address(b, shared_address(b, pointer), peer)
    with_bytes = constant_value(size) != 0
    if remote or with_bytes or (order, scope) != ("release", "cta"):
        x.require(op, features.MBARRIER_BYTES, "an mbarrier of a peer, or one that counts bytes,")
    if not features.MBARRIER_BYTES.on(x.arch):
        b.asm("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [$0], $1; }" if constant_value(count) != 1 else
              "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [$0]; }", "r,r" if constant_value(count) != 1 else "r",
              [address, count] if constant_value(count) != 1 else [address])  # fmt: skip
        return []
    space = "shared::cluster" if remote else "shared::cta"
    if with_bytes:
        b.asm(f"mbarrier.arrive.expect_tx.{order}.{scope}.{space}.b64 _, [$0], $1;", "r,r", [address, size])
    elif constant_value(count) == 1:
        b.asm(f"mbarrier.arrive.{order}.{scope}.{space}.b64 _, [$0];", "r", [address])
    else:
        b.asm(f"mbarrier.arrive.{order}.{scope}.{space}.b64 _, [$0], $1;", "r,r", [address, count])
    return []


@HANDLERS.expands("cute_nvgpu.mbarrier_expect_tx")
def _mbarrier_expect_tx(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.MBARRIER_BYTES)
    pointer, size, peer = op.operands
    address, remote = _peer_address(b, shared_address(b, pointer), peer)
    scope = "cluster" if remote else op.attributes["scope"].value
    space = "shared::cluster" if remote else "shared::cta"
    b.asm(f"mbarrier.expect_tx.relaxed.{scope}.{space}.b64 [$0], $1;", "r,r", [address, size])
    return []


def _poll(x: Expander, op: ir.Operation, b: DeviceBuilder, kind: str) -> ir.Value:
    if kind == "try_wait" and not features.MBARRIER_TRY_WAIT.on(x.arch):
        kind = "test_wait"
    where, *rest = op.operands
    if kind == "test_wait":  # it does not wait
        rest = rest[:1]
    operands = ", ".join(f"${n + 2}" for n in range(len(rest)))
    code = f"{{ .reg .pred p; mbarrier.{kind}.parity.shared.b64 p, [$1], {operands}; selp.u32 $0, 1, 0, p; }}"
    constraints = ",".join(["=r", "r", *("r" for _ in rest)])
    (made,) = b.asm(code, constraints, [shared_address(b, where), *rest], [int_type(32)])
    return b.compare("ne", made, b.i32(0))


@HANDLERS.expands("cute_nvgpu.mbarrier_try_wait")
def _mbarrier_try_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [_poll(x, op, b, "try_wait")]


@HANDLERS.expands("cute_nvgpu.mbarrier_test_wait")
def _mbarrier_test_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [_poll(x, op, b, "test_wait")]


@HANDLERS.expands("cute_nvgpu.mbarrier_wait")
def _mbarrier_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    # the loop is part of the assembly: as a loop of the program, LLVM would have to be kept from changing it
    kind = "try_wait" if features.MBARRIER_TRY_WAIT.on(x.arch) else "test_wait"
    code = f"{{ .reg .pred p; wait_${{:uid}}: mbarrier.{kind}.parity.shared.b64 p, [$0], $1; @!p bra wait_${{:uid}}; }}"
    b.asm(code, "r,r", [shared_address(b, op.operands[0]), op.operands[1]])
    return []
