"""Mbarriers."""

from __future__ import annotations

from collections.abc import Sequence

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import ir
from ....ptx import control, mbarrier
from ....ptx.form import Form
from ...lowering.builder import constant_value, int_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, prints, shared_address
from ..expand import Expander

HANDLERS = Handlers()
prints(HANDLERS, {nvgpu.mbarrier.MbarrierInit: mbarrier.INIT, nvgpu.mbarrier.MbarrierInval: mbarrier.INVAL})


def _peer_address(b: DeviceBuilder, address: ir.Value, peer: ir.Value) -> tuple[ir.Value, bool]:
    """Return the address of an mbarrier of this block or of a peer, and whether it is a peer's."""
    if constant_value(peer) == -1:
        return address, False
    (mapped,) = b.ptx(control.MAPA, [int_type(32)], pure=True, space="shared::cluster", address=address, rank=peer)
    return mapped, True


@HANDLERS.expands(nvgpu.mbarrier.MbarrierArrive)
def _mbarrier_arrive(x: Expander, op: nvgpu.mbarrier.MbarrierArrive, b: DeviceBuilder) -> None:
    address, remote = _peer_address(b, shared_address(b, op.pointer), op.peer)
    with_bytes = constant_value(op.bytes) != 0
    if remote or with_bytes or (op.order, op.scope) != ("release", "cta"):
        x.require(op, features.MBARRIER_BYTES, "an mbarrier of a peer, or one that counts bytes,")
    count = None if constant_value(op.count) == 1 else op.count
    if not features.MBARRIER_BYTES.on(x.arch):
        around = "{ .reg .b64 state; %s }"
        b.ptx(mbarrier.ARRIVE, around=around, space="shared", state="state", pointer=address, count=count)
        return
    how = {"order": op.order, "scope": op.scope, "pointer": address}
    if not remote:
        how |= {"space": "shared::cta", "state": "_"}
    if with_bytes:
        b.ptx(mbarrier.ARRIVE_EXPECT_TX_REMOTE if remote else mbarrier.ARRIVE_EXPECT_TX, **how, bytes=op.bytes)
    else:
        b.ptx(mbarrier.ARRIVE_REMOTE if remote else mbarrier.ARRIVE, **how, count=count)


@HANDLERS.expands(nvgpu.mbarrier.MbarrierExpectTx)
def _mbarrier_expect_tx(x: Expander, op: nvgpu.mbarrier.MbarrierExpectTx, b: DeviceBuilder) -> None:
    x.require(op, features.MBARRIER_BYTES)
    address, remote = _peer_address(b, shared_address(b, op.pointer), op.peer)
    scope, space = ("cluster", "shared::cluster") if remote else (op.scope, "shared::cta")
    b.ptx(mbarrier.EXPECT_TX, order="relaxed", scope=scope, space=space, pointer=address, bytes=op.bytes)


def _poll(
    b: DeviceBuilder,
    form: Form,
    op: nvgpu.mbarrier.MbarrierTryWait | nvgpu.mbarrier.MbarrierTestWait,
    limit: Sequence[ir.Value] = (),
) -> ir.Value:
    limits = {"limit": limit[0]} if limit else {}
    (flag,) = b.ptx(form, [int_type(32)], pointer=op.pointer, phase=op.phase, **limits)
    return b.compare("ne", flag, 0)


@HANDLERS.expands(nvgpu.mbarrier.MbarrierTryWait)
def _mbarrier_try_wait(x: Expander, op: nvgpu.mbarrier.MbarrierTryWait, b: DeviceBuilder) -> ir.Value:
    if not features.MBARRIER_TRY_WAIT.on(x.arch):
        return _poll(b, mbarrier.TEST_WAIT_PARITY, op)
    return _poll(b, mbarrier.TRY_WAIT_PARITY, op, op.limit)


@HANDLERS.expands(nvgpu.mbarrier.MbarrierTestWait)
def _mbarrier_test_wait(_x: Expander, op: nvgpu.mbarrier.MbarrierTestWait, b: DeviceBuilder) -> ir.Value:
    return _poll(b, mbarrier.TEST_WAIT_PARITY, op)


@HANDLERS.expands(nvgpu.mbarrier.MbarrierWait)
def _mbarrier_wait(x: Expander, op: nvgpu.mbarrier.MbarrierWait, b: DeviceBuilder) -> None:
    # the loop is part of the assembly: as a loop of the program, LLVM would have to be kept from changing it
    form = mbarrier.TRY_WAIT_PARITY if features.MBARRIER_TRY_WAIT.on(x.arch) else mbarrier.TEST_WAIT_PARITY
    around = "{ .reg .pred p; wait_${:uid}: %s @!p bra wait_${:uid}; }"
    b.ptx(form, around=around, complete="p", pointer=op.pointer, phase=op.phase)
