"""Finds deadlocks of several devices: every rank waits, or spins in a kernel on memory that nobody is left to change."""

from __future__ import annotations

import ctypes
import time

from kiln.targets.cpu.runtime import device_group

from . import checked
from .heap import describe
from .world import Rank, World

_SECONDS = 1.0
"""How long launches have to be idle."""


class Watch:
    """Looks at the launches of a world now and then."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._launches = device_group.start()
        self._before: dict[int, int] = {}

    def look(self) -> None:
        """Stop all launches if none of them, and no rank, can go on. To be called every tenth of a second or so."""
        world = self._world
        running = [launch for launch in self._launches if launch.context]
        by_rank = {world.threads.get(launch.thread): launch for launch in running}
        rounds = {launch.context: launch.rounds for launch in running}
        before, self._before = self._before, rounds
        now = time.monotonic_ns()
        idle = [
            launch
            for launch in running
            if launch.idle_since
            and now - launch.idle_since > 1e9 * _SECONDS
            and launch.rounds > before.get(launch.context, launch.rounds)
        ]
        left = [rank for rank in world.ranks if not rank.ended]
        if not running or len(idle) < len(running) or any(not r.waits_in and r.number not in by_rank for r in left):
            return
        said = "; ".join(_about(rank, by_rank.get(rank.number)) for rank in world.ranks)
        for launch in running:
            device_group.stop(launch, said)


def _about(rank: Rank, launch: device_group.Launch | None) -> str:
    """Return what a rank does."""
    who = f"rank {rank.number}"
    if launch is None:
        return f"{who} {rank.ended}" if rank.ended else f"{who} waits in {rank.waits_in}"
    kernel = ctypes.string_at(launch.name).decode() if launch.name else "?"
    return (
        f"{who} spins in kernel {kernel} on {_place(launch.address)}" if launch.address else f"{who} spins in {kernel}"
    )


def _place(address: int) -> str:
    value = ctypes.c_uint32.from_address(address).value
    where = describe(address)
    place = f"address {address:#x} ({where})" if where else f"address {address:#x}"
    writer = checked.last_write(address)
    return f"{place}, whose 32 bits are {value:#x}{f', written last by {writer}' if writer else ''}"
