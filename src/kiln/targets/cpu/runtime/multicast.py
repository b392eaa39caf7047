"""Multicast addresses: each stands for memory of several devices, and instructions access all of it.

Nothing is mapped at a multicast address. A table, which Python fills, says which memory it stands for.
"""
# pyright: reportReturnType=false

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ....base_dsl.numeric.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16, FLOAT32
from ....native import Array, Ptr, f32, f64, i32, i64, inline, native, size_of, struct, u8, u16, u32, u64
from ...host.soft_float import extended, truncated
from .schedule_order import launching

MOST_DEVICES = 16
_MOST = 1 << 14
"""Entries of the table."""

table = launching.variable("multicasts", u64)
"""The address of the first entry."""
entries = launching.variable("multicast_count", u64)


@struct
class Multicast:
    """A range of multicast addresses, and the memory that it stands for."""

    start: u64
    size: u64
    count: u64  # of devices
    addresses: Array[u64, MOST_DEVICES]


@launching.export
def multicast_copies(address: u64, bytes_: u64, copies: Ptr[u64]) -> u32:
    """Write the addresses that a multicast address stands for, and return how many; 0 if some of the bytes are not in a
    range."""
    first = u64(0)
    end = entries.value
    ranges = Ptr[Multicast](table.value)
    while first < end:  # the last that starts no later
        middle = (first + end) >> 1
        if ranges[middle].start <= address:
            first = middle + 1
        else:
            end = middle
    count = u32(0)
    if first != 0:
        entry = ranges[first - 1]
        offset = address - entry.start
        if offset + bytes_ <= entry.size:
            count = u32(entry.count)
            for number in range(count):
                copies[number] = entry.addresses[number] + offset
    return count


@native
def places_of(address: u64, copies: Ptr[u64]) -> u32:
    """Write the addresses that a store goes to, and return how many: those of a multicast address, or the address
    itself."""
    count = u32(0)
    if entries.value != 0:
        count = multicast_copies(address, 1, copies)
    if count == 0:
        copies[0] = address
        count = u32(1)
    return count


# --- reductions of the copies ----------------------------------------------------------------------------------------

KINDS = ("add", "min", "max", "and", "or", "xor")
TYPES = ("u32", "s32", "u64", "s64", "f32", "f64", "f16x2", "bf16x2", "e4m3x4", "e5m2x4")
"""Element types in registers, by their numbers."""
WIDE = 256
"""Added to the number of a type if halves are added in f32, and rounded once."""
_HALVES = {"f16x2": FLOAT16, "bf16x2": BFLOAT16}
_BYTES = {"e4m3x4": FLOAT8_E4M3FN, "e5m2x4": FLOAT8_E5M2}


@inline
def combined(a, b, kind):
    """Return the reduction of two numbers of a type; of floats, `min` and `max` prefer a number to NaN."""
    result = a + b
    if kind == KINDS.index("min"):
        result = (a if a < b or b != b else b) if type(a) in (f32, f64) else min(a, b)
    elif kind == KINDS.index("max"):
        result = (a if a > b or b != b else b) if type(a) in (f32, f64) else max(a, b)
    if type(a) not in (f32, f64):
        if kind == KINDS.index("and"):
            result = a & b
        elif kind == KINDS.index("or"):
            result = a | b
        elif kind == KINDS.index("xor"):
            result = a ^ b
    return result


@inline
def each_number(copies, count, numbers, number_type, kind, out):
    """Reduce numbers of a type."""
    target = Ptr[number_type](out)
    for at in range(numbers):
        total = Ptr[number_type](copies[0])[at]
        for copy in range(1, count):
            total = combined(total, Ptr[number_type](copies[copy])[at], kind)
        target[at] = total


@inline
def rounded(value, format_):
    """Return a number rounded to a format with 16 bits."""
    return widened(truncated(value.bitcast(u32), FLOAT32, format_), format_)


@inline
def widened(bits, format_):
    return extended(bits, format_, FLOAT32).bitcast(f32)


@inline
def each_part(copies, count, parts, format_, held, wide, kind, out):
    """Reduce parts of words: `format_` is theirs, `held` that of the accumulator if it is not f32."""
    part = u8 if format_.width == 8 else u16
    target = Ptr[part](out)
    for at in range(parts):
        total = widened(Ptr[part](copies[0])[at], format_)
        for copy in range(1, count):
            total = combined(total, widened(Ptr[part](copies[copy])[at], format_), kind)
            if wide == 0:
                total = rounded(total, held)
        target[at] = truncated(total.bitcast(u32), FLOAT32, format_)


@launching.export
def multicast_load(copies: Ptr[u64], count: u32, words: u32, element: u32, kind: i32, out: Ptr) -> None:
    """Reduce words of several devices, in the order of the devices."""
    wide = element & WIDE
    for number, number_type in enumerate((u32, i32, u64, i64, f32, f64)):
        if element == number:
            each_number(copies, count, words * 4 // size_of(number_type), number_type, kind, out)
    for name, format_ in _HALVES.items():
        if element & ~WIDE == TYPES.index(name):
            each_part(copies, count, words * 2, format_, format_, wide, kind, out)
    for name, format_ in _BYTES.items():
        if element & ~WIDE == TYPES.index(name):
            each_part(copies, count, words * 4, format_, FLOAT16, wide, kind, out)


# --- what Python calls -----------------------------------------------------------------------------------------------


class _Table:
    """The table, in memory that native code reads."""

    def __init__(self) -> None:
        self.entries = (Multicast * _MOST)()  # pyright: ignore[reportOperatorIssue]
        self.used = 0


_table = _Table()


def bind(start: int, size: int, addresses: Sequence[int]) -> None:
    """Let multicast addresses stand for memory of some devices. Ranges come in the order of their addresses."""
    from . import parts  # it loads what compiles

    if len(addresses) > MOST_DEVICES or _table.used == _MOST:
        raise MemoryError(f"there are {_MOST} multicast objects at most, each of {MOST_DEVICES} devices")
    entry = _table.entries[_table.used]
    entry.start = start
    entry.size = size
    entry.count = len(addresses)
    entry.addresses[: len(addresses)] = list(addresses)
    _table.used += 1
    parts.variable("kiln_cpu_multicasts", ctypes.c_uint64).value = ctypes.addressof(_table.entries)
    parts.variable("kiln_cpu_multicast_count", ctypes.c_uint64).value = _table.used
