"""Call plans: how native code reads the arguments of a call, as structures in memory.

A plan is a `bytes` object: a `Plan`, then a record for each parameter. Native code reads the arguments by it, fills the
slots of the compiled function and calls it; a call that does not match is left to the Python function that takes the
same arguments. So a plan may be incomplete but never wrong, and errors have one source.

Every record begins with its kind, its size in bytes and the offset of its first slot, as words of 8 bytes. An `ARRAY`
record also matches prepared arguments: objects of a registered type, one slot of which holds an argument record. One
with the plan's signature is copied, another one is checked as any array.
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
    """The head of every record, and all of a stream's."""

    kind: i64
    size: i64
    slot: i64


@struct
class IntegerRecord:
    """An integer parameter."""

    kind: i64
    size: i64
    slot: i64
    types: i64
    """Which of INT, BOOL and FLOAT it accepts."""
    typed: Ptr
    """The numeric type; in exported code the number of bytes."""
    least: i64
    greatest: i64
    hole: i64
    """1 if integers of 32 bits belong to another specialization."""


@struct
class RealRecord:
    """A floating-point parameter."""

    kind: i64
    size: i64
    slot: i64
    types: i64
    typed: Ptr
    bytes: i64


@struct
class Leaf:
    """An extent or a stride: the value of a static one, the divisor of a dynamic one."""

    kind: i64
    number: i64


@struct
class ArrayRecord:
    """A tensor or pointer parameter."""

    kind: i64
    size: i64
    slot: i64
    signature: u64
    words: i64
    """The number of slots that it fills."""
    rank: i64
    dlpack: i64
    """DLPack's type, or `NO_ARRAY` for a pointer."""
    element: u64
    other_element: u64
    devices: u64
    """A bit for each device type of DLPack that it accepts."""
    alignment: u64
    """Bytes that its address must be a multiple of, less 1."""
    flags: i64
    numpy: u64
    """numpy's type, as `numpy_type` reads it."""
    shift: i64
    """log2 of the bytes of an element."""
    leading: i64
    limit: i64
    """The most elements (unless `UNCOUNTED`), and the largest offset that strides of 32 bits may add up to."""
    leaves: Array[Leaf, 0]


@struct
class GroupRecord:
    """A tuple or list parameter."""

    kind: i64
    size: i64
    slot: i64
    type: Ptr
    count: i64
    hold: i64
    """The offset from the slots at which a tuple of a list's elements is held; 0 if it is no list."""
    elements: Array[Record, 0]


@struct
class ValueRecord:
    """SAME: the very object known while tracing. NUMBER: an int of this value. AMBIENT: a stream that is not passed,
    taken from the argument of this number."""

    kind: i64
    size: i64
    slot: i64
    value: i64


@struct
class GuardWords:
    """A guard, as `base_dsl/guards.py` packs it."""

    kind: i64
    owner: Ptr
    key: Ptr
    expected: Ptr


@struct
class Guards:
    """A table of guards."""

    count: i64
    guards: Array[GuardWords, 0]


@struct
class Plan:
    """The head of a plan."""

    entry: Fn[[Ptr], Ptr]
    slots_bytes: u64
    count: i64
    """The number of arguments that are passed."""
    record_count: i64
    """The number of records; those of arguments that are not passed come last."""
    result: i64
    """The kind of result (see `NO_RESULT`), with the bytes of an integer above the kind."""
    result_at: i64
    value: Ptr
    report: Ptr
    names: Ptr[Ptr]
    guards: Ptr[Guards]
    owner: Ptr
    held_bytes: u64
    """Bytes before the slots for objects that belong to no argument."""
    records: Array[Record, 0]


@struct
class Candidates:
    """The plans of a jit function's specializations."""

    count: i64
    guards: Ptr[Guards]
    plans: Array[Ptr[Plan], 0]


@struct
class ArgumentRecordHead:
    """The head of an argument record; extents, strides, and the words for the slots follow."""

    signature: u64
    device: u64
    element: u64
    readonly: u64
    rank: i64
    address: u64
    layout: Array[i64, 0]


INT = 1
BOOL = 2
FLOAT = 4
"""Bits of `types`: exact Python types."""
TYPED = 15
"""The types of the value inside a number that has the numeric type itself."""

EXACT = 1
READONLY = 2
LAUNCHES = 4
UNCOUNTED = 8
WRITTEN = 16
"""Flags of arrays: only the compiled signature itself matches; memory may be read-only; kernels run on its device; the
number of elements has no limit; kernels are known to write to it."""
NOT_ALIGNED = 32
NOT_ALIGNED_ROWS = 64
NOT_WHOLE_VECTORS = 128
"""Flags of arrays, at most one: another specialisation is for arrays whose address, whose strides, or whose leading
extent is a multiple of 16 bytes."""
STATIC, DYNAMIC32, DYNAMIC64 = range(3)
"""Kinds of leaves."""
NO_ARRAY = -1
"""`ArrayRecord.dlpack` of a pointer."""
MAX_RANK = 16

DESCRIBED_ALIGNMENT = 128
"""Descriptions of arrays contain their addresses modulo this."""

NO_RESULT, SIGNED, UNSIGNED, REAL32, REAL64, TRUTH = range(6)
"""Kinds of results: the object `Plan.value`, or the number in a slot."""

CPU = 1
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13
"""DLPack's device types."""

_MASK = (1 << 64) - 1


def words(values: Sequence[int]) -> bytes:
    """Return words in memory; each value may be signed or unsigned."""
    return packing.pack(f"<{len(values)}Q", *[value & _MASK for value in values])


BYTES_DATA = bytes.__basicsize__ - 1
"""The offset of the contents of a `bytes` object; checked before native code relies on it."""


def address_of(data: bytes) -> int:
    """Return where the contents of a `bytes` object lie, as long as it lives."""
    return id(data) + BYTES_DATA


NUMPY_TYPE = 24
"""The offset of eight bytes in a numpy dtype that identify it: kind, letter, byte order, flags and number.

They are the same in numpy 1 and 2, and checked before native code relies on them.
"""


def numpy_type(dtype: object) -> int:
    """Return the word that native code compares numpy dtypes by."""
    return ctypes.c_uint64.from_address(id(dtype) + NUMPY_TYPE).value


def record(layout: Any, kind: int, slot: int, tail: bytes = b"", **fields: int) -> bytes:
    """Return a record of the structure `layout`; `tail` are its leaves, or the records of its elements."""
    fixed = layout(kind=kind, size=ctypes.sizeof(layout) + len(tail), slot=slot, **fields)
    return bytes(fixed) + tail


def leaves_of(record: bytes) -> list[Leaf]:
    """Return the extents and strides of an array's record."""
    at = ctypes.sizeof(ArrayRecord)
    return list((Leaf * ((len(record) - at) // ctypes.sizeof(Leaf))).from_buffer_copy(record, at))


class ArgumentRecord:
    """Makes the argument records of prepared arguments that differ only in their addresses.

    The signature, one object for equal ones, and the element type live as long as the process. The slots begin with the
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
        """Return the record of an argument at an address."""
        where = address.to_bytes(8, "little")
        return self._before + where + self._between + where + self._after


class Planner:
    """Assigns the slots of one plan and keeps the objects that its records refer to."""

    def __init__(self, exact: bool, target: str, written: frozenset[int] = frozenset(), weaker: bool = False) -> None:
        self.exact = exact
        """Whether only arguments match that would have been compiled to the same keys."""
        self.weaker = weaker
        """Whether arrays match, too, of which more is known than the keys say."""
        self.target = target
        self.written = written
        """The offsets of slots with addresses of arrays that kernels are known to write to."""
        self.keep: list[Any] = []
        """Objects that must live as long as the plan."""
        self._offset = 0
        self._held = 0
        self.has_array = False
        """Whether an array came before: kernels are launched on the device of the first."""

    def hold(self) -> int:
        """Return where an object is held during a call, in bytes from the slots."""
        self._held += 1
        return -8 * self._held

    @property
    def held_bytes(self) -> int:
        """The bytes of all held objects; the slots after them are aligned to 16 bytes."""
        return -(-8 * self._held // 16) * 16

    def slot(self, formats: str) -> int:
        """Return the offset of the next slots, of these `struct` formats."""
        offset = self._offset
        self._offset += packing.calcsize("<" + formats)
        return offset

    def reference(self, value: object) -> int:
        """Return the address of an object, and keep it alive."""
        self.keep.append(value)
        return id(value)
