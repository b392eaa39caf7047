"""Stores to the shared memory of other CTAs of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Int32
from ....cute import arch

if TYPE_CHECKING:
    from .... import cute


def send(slot: cute.Pointer, barrier: cute.Pointer, rank: Int32 | int, values: list[Any]) -> None:
    """Store f32 values in the shared memory of a CTA of the cluster, and count their bytes at its mbarrier.

    Asynchronous stores wait for nothing; a cluster barrier, or an arrival with release at cluster scope, would wait
    until all of the thread's stores to global memory are complete. The arrival releases the slot, which was read.
    """
    target = mapa(slot, rank)
    remote_barrier = mapa(barrier, rank)
    arch.inline_ptx(
        "mbarrier.arrive.expect_tx.release.cta.shared::cluster.b64 _, [{$r0}], {$r1};",
        read_only_args=[remote_barrier, Int32(4 * len(values))],
    )
    sent = 0
    for size in (4, 2, 1):
        while len(values) - sent >= size:
            names = ", ".join(f"{{$r{k}}}" for k in range(2, 2 + size))
            kind, registers = ("f32", names) if size == 1 else (f"v{size}.f32", "{" + names + "}")
            arch.inline_ptx(
                f"st.async.shared::cluster.mbarrier::complete_tx::bytes.{kind} [{{$r0}}], {registers}, [{{$r1}}];",
                read_only_args=[target + 4 * sent, remote_barrier, *values[sent : sent + size]],
            )
            sent += size


def mapa(pointer: cute.Pointer, rank: Int32 | int) -> Int32:
    """Return the address of a place in shared memory in the CTA of that rank."""
    return arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int32],
        read_only_args=[pointer.toint(), rank],
    )
