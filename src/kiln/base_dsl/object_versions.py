"""Words in memory that change when an object does: native code compares them in a nanosecond.

A function holds its code, its defaults and its keyword defaults at fixed offsets. A class has a version: CPython
assigns a new one when the class, or one of its bases, is changed. The offsets are found by probing; where a probe
fails, no word is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import types
from typing import Any

_HEAD = 2
"""The number of words that every object begins with."""
_TYPE_VERSION = 384
"""The byte offset of a class's version, in every 64-bit CPython since 3.4."""


def word_at(address: int) -> int:
    """Return the 64-bit word at an address."""
    return ctypes.c_uint64.from_address(address).value


def function_words(function: types.FunctionType) -> list[tuple[int, int]] | None:
    """Return (address, word) pairs of a function's replaceable parts: while they hold, the function is unchanged."""
    places = _function_places()
    return None if places is None else [(id(function) + place, word_at(id(function) + place)) for place in places]


def class_word(kind: type) -> tuple[int, int] | None:
    """Return (address, word) of a class; None if it has no version."""
    if not _classes_have_versions():
        return None
    address = id(kind) + _TYPE_VERSION
    version = ctypes.c_uint32.from_address(address)
    if not version.value:
        _look_up(kind)
    return (address, word_at(address)) if version.value else None


def _look_up(kind: type) -> None:
    """Make Python look for a name in a class: then it gets a version if it has none."""
    with contextlib.suppress(AttributeError):
        type.__getattribute__(kind, "_kiln_")


def title_word(owner: types.FunctionType | type, name: str) -> tuple[int, int] | None:
    """Return (address, word) of the `__name__` or `__qualname__` of a function or class, if its offset is known."""
    is_class = isinstance(owner, type)
    if is_class and not owner.__flags__ & 1 << 9:  # a type that is part of a program in C has no such place
        return None
    place = _title_places().get((is_class, name))
    return None if place is None else (id(owner) + place, word_at(id(owner) + place))


@functools.lru_cache(maxsize=1)
def _title_places() -> dict[tuple[bool, str], int]:
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return {}

    def function() -> None: ...

    class Class: ...

    places: dict[tuple[bool, str], int] = {}
    probes: list[Any] = [function, Class]
    for probe in probes:
        size = type(probe).__basicsize__
        for name in ("__name__", "__qualname__"):
            setattr(probe, name, f"kiln's {name} of {size}")
            words = [word_at(id(probe) + 8 * n) for n in range(size // 8)]
            if words[_HEAD:].count(id(getattr(probe, name))) == 1:
                places[isinstance(probe, type), name] = 8 * words.index(id(getattr(probe, name)), _HEAD)
    return places


@functools.lru_cache(maxsize=1)
def _function_places() -> tuple[int, ...] | None:
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None

    def probe(first: Any = "first", *, second: Any = "second") -> None: ...

    def plain() -> None: ...

    words = [word_at(id(probe) + 8 * n) for n in range(types.FunctionType.__basicsize__ // 8)]
    places: list[int] = []
    for part in (probe.__code__, probe.__defaults__, probe.__kwdefaults__):
        if words[_HEAD:].count(id(part)) != 1:
            return None
        places.append(8 * words.index(id(part), _HEAD))
    as_expected = [word_at(id(plain) + place) for place in places] == [id(plain.__code__), 0, 0]
    return tuple(places) if as_expected else None


@functools.lru_cache(maxsize=1)
def _classes_have_versions() -> bool:
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False

    class Base: ...

    class Probe(Base): ...

    def version(kind: type) -> int:
        return ctypes.c_uint32.from_address(id(kind) + _TYPE_VERSION).value

    seen: set[int] = set()
    changes: list[Any] = [
        lambda: None,
        lambda: setattr(Probe, "a", 1),
        lambda: setattr(Base, "a", 2),
        lambda: delattr(Probe, "a"),
        lambda: setattr(Base, "a", 3),
    ]
    for change in changes:
        change()
        if version(Probe) in seen:
            return False  # unchanged by a change, or given twice
        _look_up(Probe)
        number = version(Probe)
        _look_up(Probe)
        if not number or number in seen or version(Probe) != number:
            return False
        seen.add(number)
    return True
