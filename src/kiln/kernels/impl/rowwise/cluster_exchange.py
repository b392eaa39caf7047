"""Numbers that blocks of a cluster tell each other."""

from __future__ import annotations

from typing import Any

from .... import Int32
from ....cute import arch


def send(box: Any, barrier: Any, rank: Any, values: list[Any]) -> None:
    """Store numbers in the shared memory of a block of the cluster, and count the message at its mbarrier.

    Stores that count themselves wait for nothing; a barrier of the cluster, or an arrival that releases to a cluster, would wait
    until all that the thread has written to global memory has arrived there. The arrival releases the place that was read.
    """
    where, counted = of_peer(box, rank), of_peer(barrier, rank)
    arch.inline_ptx(
        "mbarrier.arrive.expect_tx.release.cta.shared::cluster.b64 _, [{$r0}], {$r1};",
        read_only_args=[counted, Int32(4 * len(values))],
    )
    done = 0
    for size in (4, 2, 1):
        while len(values) - done >= size:
            names = ", ".join(f"{{$r{k}}}" for k in range(2, 2 + size))
            kind, given = ("f32", names) if size == 1 else (f"v{size}.f32", "{" + names + "}")
            arch.inline_ptx(
                f"st.async.shared::cluster.mbarrier::complete_tx::bytes.{kind} [{{$r0}}], {given}, [{{$r1}}];",
                read_only_args=[where + 4 * done, counted, *values[done : done + size]],
            )
            done += size


def of_peer(place: Any, rank: Any) -> Any:
    """The address that a place in shared memory has in a block of the cluster."""
    return arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[place.toint(), rank]
    )
