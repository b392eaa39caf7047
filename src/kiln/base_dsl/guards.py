"""Guards: conditions for reusing compiled code in another call, which native code checks in a nanosecond each.

In memory a guard is four words: its kind, then three that the kind explains.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

IN_DICT, IN_CELL, IS_TRUE, IS_ZERO, IS_WORD, ALL_OF = range(1, 7)
"""(dict, key, object), (cell, None, object): the very object is there. (function,): it returns something
true. (ctypes number,): it is 0. (address, owner, word): the word is there. (ctypes array,): all guards of a
table, which may change."""

NOTHING = object()
"""The value of `expected` for a key that must be missing."""


class Guard(NamedTuple):
    """A condition. What it names must be kept alive."""

    kind: int
    owner: Any
    key: Any = None
    expected: Any = NOTHING

    def words(self) -> tuple[int, int, int, int]:
        """Return the guard as it lies in memory."""
        kind, owner, key, expected = self
        if kind == IS_WORD:
            return kind, owner, id(key), expected
        where = ctypes.addressof(owner) if kind in (IS_ZERO, ALL_OF) else id(owner)
        return kind, where, id(key), 0 if expected is NOTHING else id(expected)


def table(guards: Sequence[Guard]) -> bytes:
    """Return guards as they lie in memory: their number, then their words."""
    words = [len(guards), *(word for guard in guards for word in guard.words())]
    return struct.pack(f"<{len(words)}Q", *words)
