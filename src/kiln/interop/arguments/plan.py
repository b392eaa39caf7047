"""Plans: how native code takes a call from Python, in memory.

A plan is a `bytes` object: a `Plan`, then a record for each parameter. Native code reads the arguments by it, fills the
slots of the compiled function and calls it; whatever a plan does not foresee is left to the Python function that takes
the same call. So a plan never has to be complete, only right, and errors have one source.

A record is its kind, its size in bytes, the offset of its first slot, and what the structure for its kind says; all are
words of 8 bytes. `ARRAY` also takes prepared arguments: objects of a registered type, a slot of which holds a passport. One
with the record's signature is taken as it is, another is looked at as any array.
"""

from __future__ import annotations

import ctypes
import struct as packing
from typing import TYPE_CHECKING, Any

from ...native import Array, Fn, Ptr, i64, struct, u64

if TYPE_CHECKING:
    from collections.abc import Sequence

INTEGER, REAL, STREAM, ARRAY, GROUP, SAME, NUMBER, AMBIENT = range(1, 9)
"""Kinds of records."""


@struct
class Record:
    """What every record begins with; of a stream all of it."""

    kind: i64
    size: i64
    slot: i64


@struct
class IntegerRecord:
    kind: i64
    size: i64
    slot: i64
    types: i64
    """Which of int, bool and float may come."""
    typed: Ptr
    """The numeric type."""
    least: i64
    greatest: i64
    hole: i64
    """1 if integers of 32 bits are another specialization's."""


@struct
class RealRecord:
    kind: i64
    size: i64
    slot: i64
    types: i64
    typed: Ptr
    bytes: i64


@struct
class Leaf:
    """An extent or a stride. The number of a static one is its value, of a dynamic one its divisibility."""

    kind: i64
    number: i64


@struct
class ArrayRecord:
    kind: i64
    size: i64
    slot: i64
    signature: u64
    words: i64
    """Of its leaves."""
    rank: i64
    dlpack: i64
    """DLPack's type."""
    element: u64
    other_element: u64
    devices: u64
    """Bits by DLPack's numbers."""
    alignment: u64
    """Less 1."""
    flags: i64
    numpy: u64
    """numpy's type."""
    shift: i64
    """log2 of an element's bytes."""
    leading: i64
    limit: i64
    """Of the number of elements, and of offsets that strides of less than 64 bits make up."""
    leaves: Array[Leaf, 0]


@struct
class GroupRecord:
    """A tuple or list."""

    kind: i64
    size: i64
    slot: i64
    type: Ptr
    count: i64
    hold: i64
    """Where a tuple of a list's elements is held, in bytes from the slots; 0: not a list."""
    elements: Array[Record, 0]


@struct
class ValueRecord:
    """SAME: a value known while tracing, the very object. NUMBER: an int of this value. AMBIENT, which is not passed: the number of
    the argument on whose stream its framework works."""

    kind: i64
    size: i64
    slot: i64
    value: i64


@struct
class GuardWords:
    """As `base_dsl/guards.py` says."""

    kind: i64
    owner: Ptr
    key: Ptr
    wanted: Ptr


@struct
class Guards:
    count: i64
    guards: Array[GuardWords, 0]


@struct
class Plan:
    """The head of a plan."""

    entry: Fn[[Ptr], Ptr]
    slots_bytes: u64
    count: i64
    """Arguments that are passed."""
    record_count: i64
    """The records of those that are not passed come last."""
    result: i64
    """What a call gives (see `NO_RESULT`), with the bytes of an integer above its kind."""
    result_at: i64
    value: Ptr
    report: Ptr
    names: Ptr[Ptr]
    guards: Ptr[Guards]
    owner: Ptr
    held_bytes: u64
    """Of memory before the slots, for what belongs to no argument."""
    records: Array[Record, 0]


@struct
class Candidates:
    """Specializations of a jit function."""

    count: i64
    guards: Ptr[Guards]
    plans: Array[Ptr[Plan], 0]


@struct
class PassportHead:
    """What a passport begins with; then extents, strides, and the leaves as they go into slots."""

    signature: u64
    device: u64
    element: u64
    only_read: u64
    rank: i64
    address: u64
    layout: Array[i64, 0]


INT, BOOL, FLOAT = 1, 2, 4
"""Bits of `types`: exact Python types."""
TYPED = 15
"""The types of the value in a number that comes with its numeric type."""

EXACT, READONLY, LAUNCHES = 1, 2, 4
"""Flags of arrays: only what would be compiled to this very signature fits; the memory may be read-only; kernels are launched on its device."""
STATIC, DYNAMIC32, DYNAMIC64 = range(3)
"""Kinds of leaves."""
MAX_RANK = 16

DESCRIBED_ALIGNMENT = 128
"""Descriptions of arrays tell their addresses modulo this."""

NO_RESULT, SIGNED, UNSIGNED, REAL32, REAL64, TRUTH = range(6)
"""What a call gives: the object VALUE, or the number in a slot."""

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
"""Devices, by DLPack's numbers."""

_MASK = (1 << 64) - 1


def words(values: Sequence[int]) -> bytes:
    """Words in memory; each may be given signed or unsigned."""
    return packing.pack(f"<{len(values)}Q", *[value & _MASK for value in values])


BYTES_DATA = bytes.__basicsize__ - 1
"""Where in a `bytes` object its contents begin; checked before native code relies on it."""


def address_of(data: bytes) -> int:
    """Where the contents of a `bytes` object lie, for as long as it lives."""
    return id(data) + BYTES_DATA


NUMPY_TYPE = 24
"""Of a numpy dtype, where eight bytes begin that tell it from others: kind, letter, byte order, flags and number. The same
in numpy 1 and 2, and checked before native code relies on it."""


def numpy_type(dtype: Any) -> int:
    """What native code compares of a numpy dtype."""
    return ctypes.c_uint64.from_address(id(dtype) + NUMPY_TYPE).value


def record(kind: int, slot: int, body: Sequence[int]) -> list[int]:
    """A record of a plan."""
    return [kind, 8 * (3 + len(body)), slot, *body]


class Passport:
    """Makes what native code reads of prepared arguments that differ only in their addresses.

    The signature, one object for equal ones, and the element type live as long as the process. The leaves begin with the
    address; `tail` are the others, `formats` the `struct` formats of all.
    """

    __slots__ = ("_after", "_before", "_between")

    def __init__(
        self,
        signature: object,
        device: int,
        element: object,
        readonly: bool,
        shape: Sequence[int],
        strides: Sequence[int],
        formats: str,
        tail: Sequence[int],
    ) -> None:
        rank = len(shape)
        self._before = packing.pack("<5Q", id(signature), device, id(element), readonly, rank)
        self._between = packing.pack(f"<{2 * rank}q", *shape, *strides)
        self._after = packing.pack("<" + formats, 0, *tail)[8:]

    def __call__(self, address: int) -> bytes:
        """The passport of an argument at an address."""
        where = address.to_bytes(8, "little")
        return self._before + where + self._between + where + self._after


class Planner:
    """Gathers the records of one plan."""

    def __init__(self, exact: bool, target: str) -> None:
        self.exact = exact
        """Whether only arguments fit that would have been compiled to the same keys."""
        self.target = target
        self.keep: list[Any] = []
        """What must live as long as the plan."""
        self._offset = 0
        self._held = 0
        self.has_array = False
        """Whether there is an array before: kernels are launched on the device of the first."""

    def hold(self) -> int:
        """Where an object is held during a call, in bytes from the slots."""
        self._held += 1
        return -8 * self._held

    @property
    def held_bytes(self) -> int:
        """Of all that is held; the slots after it are aligned to 16 bytes."""
        return -(-8 * self._held // 16) * 16

    def slot(self, formats: str) -> int:
        """The offset of the next slots, of these `struct` formats."""
        offset = self._offset
        self._offset += packing.calcsize("<" + formats)
        return offset

    def reference(self, value: Any) -> int:
        """The address of an object, which is kept alive."""
        self.keep.append(value)
        return id(value)
