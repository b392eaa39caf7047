"""Undefined symbols of an object file (64-bit ELF, little-endian)."""

from __future__ import annotations

import struct

_SYMBOL_TABLE = 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def undefined_symbols(data: bytes) -> set[str]:
    """Return the names that object code refers to and does not define."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF object")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [_SECTION.unpack_from(data, table + size * number) for number in range(count)]
    undefined: set[str] = set()
    for _, kind, _, _, start, length, names_section, _, _, _ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[names_section][4]
        for name, _, _, section, _, _ in _SYMBOL.iter_unpack(data[start : start + length]):
            if section == 0 and name:
                first = names + name
                undefined.add(data[first : data.index(b"\0", first)].decode())
    return undefined
