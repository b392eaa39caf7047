"""Plans: how native code takes a call from Python, in words of 8 bytes.

A plan is a `bytes` object: a header, then a record for each parameter. Native code reads the arguments by it, fills the
slots of the compiled function and calls it; whatever a plan does not foresee is left to the Python function that takes
the same call. So a plan never has to be complete, only right, and errors have one source.

A record is its kind, its size in words, the offset of its first slot, and

    INTEGER  types, typed, least, greatest, hole    types: which of int, bool and float may come; typed: the numeric
    REAL     types, typed, bytes                    type; hole: 1 if integers of 32 bits are another specialization's
    STREAM
    ARRAY    signature, words of its leaves, rank, DLPack's type, element type, another element type, devices (bits),
             alignment - 1, flags, numpy's type, log2 of an element's bytes, leading mode, limit (of the number of
             elements, and of offsets that strides of less than 64 bits make up), then (kind, number) for each extent and
             each stride
    GROUP    type, how many, where a tuple of a list's elements is held (in bytes from the slots; 0: not a list), then the
             records of its elements
    SAME     object                                 a value known while tracing: the very object
    NUMBER   value                                  a value known while tracing: an int of this value
    AMBIENT  number of another argument             not passed: the stream on which the framework of that array works

`ARRAY` also takes prepared arguments: objects of a registered type, a slot of which holds a passport. One with the
record's signature is taken as it is, another is looked at as any array.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

INTEGER, REAL, STREAM, ARRAY, GROUP, SAME, NUMBER, AMBIENT = range(1, 9)
KIND, SIZE, SLOT, BODY = range(4)
"""The words every record begins with."""

ENTRY, SLOTS_BYTES, COUNT, RECORDS, RESULT, RESULT_AT, VALUE, REPORT, NAMES, GUARDS, OWNER, HELD_BYTES, HEADER = range(
    13
)
"""The words of a header, and how many they are. COUNT is how many arguments are passed, RECORDS how many records there are:
those that are not passed come last. HELD_BYTES of memory before the slots hold what belongs to no argument."""

INT, BOOL, FLOAT = 1, 2, 4
"""Bits of `types`: exact Python types."""
TYPED = 15
"""The types of the value in a number that comes with its numeric type."""

# words of an ARRAY
(
    A_SIGNATURE, A_WORDS, A_RANK, A_DLPACK, A_ELEMENT, A_OTHER_ELEMENT, A_DEVICES, A_ALIGNMENT, A_FLAGS, A_NUMPY, A_SHIFT,
    A_LEADING, A_LIMIT, A_LEAVES,
) = range(BODY, BODY + 14)  # fmt: skip
EXACT, READONLY = 1, 2
"""Flags: only what would be compiled to this very signature fits; the memory may be read-only."""
STATIC, DYNAMIC32, DYNAMIC64 = range(3)
"""Leaves. The number of a static one is its value, of a dynamic one its divisibility."""
MAX_RANK = 16

DESCRIBED_ALIGNMENT = 128
"""Descriptions of arrays tell their addresses modulo this."""

NO_RESULT, SIGNED, UNSIGNED, REAL32, REAL64, TRUTH = range(6)
"""What a call gives: the object VALUE, or the number in a slot."""

SIGNATURE, DEVICE, ELEMENT, ONLY_READ, RANK, ADDRESS, LAYOUT = range(7)
"""The words of a passport; from LAYOUT on extents, strides, and the leaves as they go into slots."""

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
"""Devices, by DLPack's numbers."""

_MASK = (1 << 64) - 1


def words(values: Sequence[int]) -> bytes:
    """Words in memory; each may be given signed or unsigned."""
    return struct.pack(f"<{len(values)}Q", *[value & _MASK for value in values])


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
    return [kind, BODY + len(body), slot, *body]


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
        self._before = struct.pack("<5Q", id(signature), device, id(element), readonly, rank)
        self._between = struct.pack(f"<{2 * rank}q", *shape, *strides)
        self._after = struct.pack("<" + formats, 0, *tail)[8:]

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
        self._offset += struct.calcsize("<" + formats)
        return offset

    def reference(self, value: Any) -> int:
        """The address of an object, which is kept alive."""
        self.keep.append(value)
        return id(value)
