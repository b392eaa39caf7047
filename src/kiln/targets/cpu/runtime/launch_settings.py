"""Settings that launches read: variables of the native runtime, which follow the environment.

Python looks at the environment in every call it makes; native code compares the environment with the table here, and
leaves calls to Python where something has changed. What `parts.set_...` set stays until the environment changes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....base_dsl import guards as guarding
from ....base_dsl import settings
from ....base_dsl.guards import NOTHING, Guard

_SETTINGS: dict[bytes, tuple[str, Any, Callable[[Any], int]]] = {
    b"KILN_CPU_THREADS": ("kiln_cpu_workers", ctypes.c_int32, int),
    b"KILN_CPU_TIMEOUT": ("kiln_cpu_timeout", ctypes.c_int64, lambda seconds: round(1000 * seconds)),
    b"KILN_CPU_MAX_STEPS": ("kiln_cpu_max_steps", ctypes.c_int64, int),
    b"KILN_CPU_SEED": ("kiln_cpu_schedule", ctypes.c_int64, int),
}
"""Environment variables, and the variable of the runtime that each sets."""

_data: Any = getattr(os.environ, "_data", None)
_environment: dict[bytes, bytes] | None = _data if os.name == "posix" and type(_data) is dict else None
_names = tuple(_SETTINGS)
_seen: list[bytes | None] = [None] * len(_names)
_addresses: dict[str, int] = {}
_table = (ctypes.c_uint64 * (1 + 4 * len(_names)))(len(_names))
"""Guards as `guards.table` makes them, of objects that `_names` and `_seen` keep alive."""
_GUARD = Guard(guarding.ALL_OF, _table)


def load(addresses: Mapping[str, int]) -> None:
    """Set the variables of the runtime, after it was loaded."""
    _addresses.update(addresses)
    for position in range(len(_names)):
        _set(position)


def follow() -> None:
    """Set the variables whose settings have changed in the environment."""
    if _environment is not None:
        for position, name in enumerate(_names):
            if _environment.get(name) is not _seen[position]:
                _set(position)


def guards() -> Sequence[Guard]:
    """Return guards that hold while the environment is as it was when it was last read."""
    return [_GUARD] if _environment is not None else []


def _set(position: int) -> None:
    name = _names[position]
    symbol, kind, convert = _SETTINGS[name]
    if _addresses:
        kind.from_address(_addresses[symbol]).value = convert(settings.get(name.decode()))
    if _environment is not None:
        value = _seen[position] = _environment.get(name)
        guard = Guard(guarding.IN_DICT, _environment, name, NOTHING if value is None else value)
        _table[1 + 4 * position : 5 + 4 * position] = guard.words()


for _position in range(len(_names)):
    _set(_position)
