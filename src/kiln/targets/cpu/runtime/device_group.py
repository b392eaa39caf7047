"""Launches of several devices that run beside each other: those that only spin let others run, and are known.

A launch is idle while its threads only spin: from round to round each is at the same place, with the same values in its
frame. Nothing but memory that others write ends that, so launches that are all idle while no host thread runs are
deadlocked; `ranks/watch.py` finds that out from the table here, which Python makes.
"""
# pyright: reportReturnType=false

from __future__ import annotations

import ctypes

from ....native import Ptr, address, compare_exchange, i32, i64, inline, native, ref, struct, u32, u64
from ...host.call_context import IN_GROUP, STOP_DEADLOCK, Context
from ...host.libc import pthread_self, usleep
from .groups import block_of, frame_of, volume
from .interruption import now, step
from .records import Sizes
from .schedule_order import launching
from .threads import waiting

MOST = 256
"""Launches at a time."""
_PATIENCE = 16
"""Rounds that a launch spins before it sleeps between rounds."""
_NAP = 50
_LONG_NAP = 1000
"""Microseconds between rounds of a launch that spins, and that has for long."""
_LONG = 2000
"""Rounds from which on a launch has spun for long."""

table = launching.variable("device_group", u64)
"""The address of the first entry; 0: there is one device."""


@struct
class Launch:
    """A launch that runs."""

    context: u64  # of its call; 0: a free entry
    thread: u64  # the OS thread that launched it
    name: u64  # of the kernel
    idle_since: i64  # in nanoseconds; 0: it is not idle
    rounds: u64
    spun: u64  # rounds in which all threads stayed at their places
    places: u64  # a hash of the threads' places
    values: u64  # a hash of their frames
    site: i32  # where the first thread spins
    unused: i32
    address: u64  # what it reads there


@native
def entry_of(context: u64) -> Ptr[Launch]:
    """Return the entry of a call; null if there is none."""
    entries = Ptr[Launch](table.value)
    result = Ptr[Launch](None)
    for number in range(MOST):
        if entries[number].context == context:
            result = entries[number]
            break
    return result


@native
def enter(context: Ptr[Context], name: Ptr) -> i32:
    """Enter a launch into the table; return the bit that makes its rounds look at it, 0 without a table."""
    flag = i32(0)
    if table.value != 0:
        entries = Ptr[Launch](table.value)
        for number in range(MOST):
            entry = entries[number]
            if flag == 0:
                _, taken = compare_exchange(ref(entry).context, u64(0), address(context))
                if taken:
                    entry.thread = pthread_self()
                    entry.name = address(name)
                    entry.idle_since = 0
                    entry.rounds = 0
                    entry.spun = 0
                    entry.places = 0
                    entry.values = 0
                    flag = i32(IN_GROUP)
    return flag


@native
def leave(context: Ptr[Context]) -> None:
    """Take a launch out of the table."""
    if table.value != 0:
        entry = entry_of(address(context))
        if entry != None:
            entry.context = 0


@inline
def mixed(hash_, word):
    return (hash_ ^ word) * 0x9E3779B97F4A7C15 + (hash_ >> 29)


@native
def hash_of_places(arena: Ptr, sizes: Ptr[Sizes], frame_size: u32) -> u64:
    result = u64(1)
    threads = volume(sizes.block)
    for rank in range(sizes.group):
        block = block_of(arena, sizes, rank)
        for thread in range(threads):
            frame = frame_of(block, thread, frame_size)
            result = mixed(result, u64(u32(frame.resume)) << 33 | u64(u32(frame.site)) << 1 | u64(frame.done))
    return result


@native
def hash_of_frames(arena: Ptr, sizes: Ptr[Sizes], frame_size: u32, entry: Ptr[Launch]) -> u64:
    """Return a hash of all frames, and note where the first thread that is left spins."""
    result = u64(1)
    threads = volume(sizes.block)
    entry.site = -1
    for rank in range(sizes.group):
        block = block_of(arena, sizes, rank)
        for thread in range(threads):
            frame = frame_of(block, thread, frame_size)
            if frame.done == 0:
                words = Ptr[u64](frame)
                for number in range(frame_size >> 3):
                    result = mixed(result, words[number])
                if entry.site < 0 and frame.wait_mask == 0:
                    entry.site = frame.site
                    entry.address = address(frame.spins_on)
    return result


@waiting.export
def round(context: Ptr[Context], alive: i32, arena: Ptr, sizes: Ptr[Sizes], frame_size: u32) -> i32:
    """Return why a group of blocks has to stop, or 0. Before, let launches of other devices run if this one spins."""
    if context.stop & IN_GROUP != 0 and alive != 0:
        entry = entry_of(address(context))
        if entry != None:
            look(entry, arena, sizes, frame_size)
    return step(context, alive)


@native
def look(entry: Ptr[Launch], arena: Ptr, sizes: Ptr[Sizes], frame_size: u32) -> None:
    entry.rounds += 1
    places = hash_of_places(arena, sizes, frame_size)
    if places != entry.places:
        entry.places = places
        entry.spun = 0
        entry.idle_since = 0
        return
    entry.spun += 1
    if entry.spun < _PATIENCE:
        return
    values = hash_of_frames(arena, sizes, frame_size, entry)
    if values != entry.values:
        entry.values = values
        entry.idle_since = 0
    elif entry.idle_since == 0:
        entry.idle_since = now()
    usleep(u32(_NAP) if entry.spun < _LONG else u32(_LONG_NAP))


# --- what Python calls -----------------------------------------------------------------------------------------------

_tables: list[ctypes.Array[Launch]] = []
causes: dict[int, str] = {}
"""What the watch says of launches that it stops, by the thread that launched them."""


def start() -> ctypes.Array[Launch]:
    """Let launches be known from now on, and return their table."""
    from . import parts  # it loads what compiles

    if not _tables:
        _tables.append((Launch * MOST)())  # pyright: ignore[reportOperatorIssue]
        parts.variable("kiln_cpu_device_group", ctypes.c_uint64).value = ctypes.addressof(_tables[0])
    return _tables[0]


def stop(launch: Launch, cause: str) -> None:
    """Stop a launch that is deadlocked with others; `cause` says how, in the error of its call."""
    causes[launch.thread] = cause
    Context.from_address(launch.context).stop |= STOP_DEADLOCK  # pyright: ignore[reportAttributeAccessIssue]
