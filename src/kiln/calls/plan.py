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

from .. import forks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

IN_DICT, IN_CELL, IS_TRUE, IS_ZERO, IS_WORD, ALL_OF = range(1, 7)
"""Guards, four words each: (dict, key, object or 0 for none), (cell, 0, object), (function, 0, 0), (address of a word, 0, 0),
(address of a word, what it is part of, the word), (address of a table of guards, 0, 0), which may change. All must hold for a
specialization to be used again."""

NOTHING = object()
"""In a guard: that there is nothing of the key."""

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


def guard_table(guards: Sequence[tuple[int, Any, Any, Any]]) -> bytes:
    """Guards in memory. What they name must be kept alive."""
    values = [len(guards)]
    for kind, owner, key, wanted in guards:
        if kind == IS_WORD:
            values += [kind, owner, id(key), wanted]
            continue
        where = ctypes.addressof(owner) if kind in (IS_ZERO, ALL_OF) else id(owner)
        values += [kind, where, id(key), 0 if wanted is NOTHING else id(wanted)]
    return words(values)


class Native:
    """What native code offers. One object for the process."""

    def install(self, role: str, kind: type, name: str, slot: str, python: Callable[..., Any]) -> None:
        """Make native code a method of a class. `python` takes the calls that it leaves. By role:

        compiled  `slot` of an instance holds a plan
        jit       it holds a tuple: in a `bytes` object the number of plans, the address of guards for all of them, and
                  their addresses; then what owns these
        recorded  it holds a tuple: programs (see `calls.program`) by the keys of calls; names of parameters that are numbers
                  which change; a word in a `bytes` object, whose bits say which positions may have arrays; names of
                  parameters that may be arrays
        """
        raise NotImplementedError

    def add_numbers(self, kind: type, slot: str) -> None:
        """Where instances of the numeric types, all derived from this class, keep their values."""
        raise NotImplementedError

    def add_prepared(self, kind: type, slot: str) -> None:
        """Take objects of this very type as prepared arguments, by the passport in a slot."""
        raise NotImplementedError

    def add_array(self, kind: type, read: int, stream: int) -> None:
        """Take objects of this very type as arrays: DLPack's `dltensor_from_py_object_no_sync` and `current_work_stream`."""
        raise NotImplementedError

    def add_numpy(self, kind: type) -> None:
        """Take `numpy.ndarray`."""
        raise NotImplementedError

    def add_programs(self, kind: type, slot: str) -> None:
        """Where programs keep themselves in memory. It is loading the native code for them, too."""
        raise NotImplementedError

    def add_constant(self, kind: type) -> None:
        """Take objects of this very type, which never change, as parts of keys of calls: by their addresses."""
        raise NotImplementedError

    def call_key(self, holder: Any, *args: Any, **kwargs: Any) -> bytes | None:
        """The key of a call: equal for arguments for which the same program serves. None if an argument is not known.

        `holder` is what a slot of the role `recorded` holds. A key names functions, constants and parameters by their
        addresses.
        """
        raise NotImplementedError

    def add_stream(self, kind: type, attribute: str) -> None:
        """Take objects of this very type as streams: by an attribute, or, if that is empty, by `int()`."""
        raise NotImplementedError

    def describe(self, *arrays: Any) -> bytes | None:
        """All that a kernel may depend on of some arrays but their contents and where exactly they lie (the address is told
        modulo `DESCRIBED_ALIGNMENT`); None in place of an array is told too. None if one of them is of a type that is not
        known."""
        raise NotImplementedError

    def address(self, array: Any) -> int | None:
        """Where the first element of an array lies; None if its type is not known."""
        raise NotImplementedError

    def stream(self, array: Any) -> int | None:
        """The handle of the stream on which an array's framework is working; None if its type is not known."""
        raise NotImplementedError


_begin: Callable[[], Callable[[], Native | None]] | None = None
_finish: Callable[[], Native | None] | None = None
_native: Native | None = None
_lock = forks.rlock()


def register_native(begin: Callable[[], Callable[[], Native | None]]) -> None:
    """Say where native code comes from. `begin` is called when it is first wanted, and gives a function that ends what it
    began; that may find that it cannot work here."""
    global _begin
    _begin = begin


def loaded() -> Native | None:
    """Native code if something has asked for it before."""
    return _native


def prepare() -> None:
    """Begin to load native code, beside what follows; `native` waits for it."""
    global _finish
    if _begin is not None:
        with _lock:
            if _begin is not None and _finish is None:
                _finish = _begin()


def native() -> Native | None:
    """Native code for calls, or None where Python has to do."""
    global _begin, _finish, _native
    if _begin is None:
        return _native
    with _lock:
        prepare()
        if _finish is not None:
            _native = _finish()
            _begin = _finish = None
        return _native
