"""Object files (64-bit ELF, little-endian, relocatable): read, put together, written.

Several objects become one, as `ld -r` does it: sections of one name follow each other, names that others need not see become
local. No linker is needed, and the machine only matters for the number of a relocation.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")

MACHINES = {"x86_64": 62, "aarch64": 183}
"""Numbers of architectures."""
ABSOLUTE = {62: 1, 183: 257}
"""By machine: the relocation that is an address of 64 bits."""
RELOCATABLE, SHARED = 1, 3
"""Kinds of files."""
PROGBITS, SYMTAB, STRTAB, RELA, NOBITS, DYNSYM, INIT_ARRAY = 1, 2, 3, 4, 8, 11, 14
WRITE, ALLOC, EXECUTE, _MERGE, _STRINGS, EXCLUDE = 1, 2, 4, 16, 32, 0x80000000
LOCAL, GLOBAL = range(2)
OBJECT, FUNCTION, SECTION = 1, 2, 3
_ABSOLUTE_SECTION = 0xFFF1


class NotElf(ValueError):
    """A file that is no ELF file, or not whole. Says so in a sentence without a subject."""


@dataclasses.dataclass(eq=False)
class Section:
    """What has a place in memory. One without data has only a size."""

    name: str
    flags: int = ALLOC
    alignment: int = 1
    data: bytearray = dataclasses.field(default_factory=bytearray)
    size: int = 0
    kind: int = PROGBITS
    relocations: list[tuple[int, int, Symbol, int]] = dataclasses.field(default_factory=list)
    """Offset, kind, symbol, addend."""

    def reserve(self, size: int, alignment: int) -> int:
        """The offset of the next bytes of a size."""
        start = -(-self.size // alignment) * alignment
        self.size, self.alignment = start + size, max(self.alignment, alignment)
        return start

    def append(self, data: bytes, alignment: int = 1) -> int:
        """Add bytes; their offset."""
        start = self.reserve(len(data), alignment)
        self.data += bytes(start - len(self.data)) + data
        return start


@dataclasses.dataclass(eq=False)
class Symbol:
    """A name for a place, or for one that another object has."""

    name: str
    section: Section | None = None
    value: int = 0
    size: int = 0
    binding: int = GLOBAL
    kind: int = 0
    absolute: bool = False

    @property
    def is_defined(self) -> bool:
        return self.section is not None or self.absolute


@dataclasses.dataclass
class Object:
    """An object file."""

    machine: int
    sections: list[Section]
    symbols: list[Symbol]


# --- reading ---------------------------------------------------------------------------------------------------------


class File:
    """The header and the sections of an ELF file of any kind, all of which are known to lie in it."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF":
            raise NotElf("is no ELF file (an object or a shared library)")
        if len(data) < HEADER.size:
            raise NotElf(f"is truncated: it ends after {len(data)} bytes, in the header")
        if data[4:6] != b"\x02\x01":
            raise NotElf("is no 64-bit little-endian ELF file")
        _, self.kind, self.machine, _, _, segments, at, _, _, segment_size, segments_count, size, count, names = (
            HEADER.unpack_from(data)
        )
        self.data = data
        ends = [at + size * count, segments + segment_size * segments_count]
        if size != SECTION_HEADER.size and count:
            raise NotElf("is damaged: its section headers have another size than those of ELF")
        if ends[0] <= len(data):
            self.headers = [SECTION_HEADER.unpack_from(data, at + size * number) for number in range(count)]
            ends += [header[4] + header[5] for header in self.headers if header[1] != NOBITS]
        if max(ends) > len(data):
            raise NotElf(f"is truncated: it has {len(data)} bytes and would have at least {max(ends)}")
        if count and names >= count:
            raise NotElf("is damaged: it names a section that is not there")
        self.names = [self.text(names, header[0]) for header in self.headers]

    def contents(self, number: int) -> bytes:
        """The bytes of a section."""
        header = self.headers[number]
        return b"" if header[1] == NOBITS else self.data[header[4] : header[4] + header[5]]

    def text(self, section: int, at: int) -> str:
        """A text of a section."""
        if section >= len(self.headers):
            raise NotElf("is damaged: it names a section that is not there")
        table = self.contents(section)
        end = table.find(b"\0", at)
        if end < 0:
            raise NotElf("is damaged: a name is not in its table of names")
        return table[at:end].decode(errors="replace")

    def symbols(self, kind: int) -> list[tuple[str, int, int, int, int, int]]:
        """Of the table of a kind: name, binding, kind, section, value and size of each symbol."""
        found: list[tuple[str, int, int, int, int, int]] = []
        for number, header in enumerate(self.headers):
            if header[1] == kind:
                table = self.contents(number)
                if len(table) % SYMBOL.size:
                    raise NotElf("is damaged: its table of symbols is no whole number of them")
                for name, info, _, section, value, size in SYMBOL.iter_unpack(table):
                    found.append((self.text(header[6], name), info >> 4, info & 15, section, value, size))
        return found


def read(data: bytes) -> Object:
    """A relocatable object. Raises `NotElf`."""
    file = File(data)
    if file.kind != RELOCATABLE:
        raise NotElf("is no relocatable object")
    sections: dict[int, Section] = {}
    for number, (name, header) in enumerate(zip(file.names, file.headers, strict=True)):
        if header[1] in (PROGBITS, NOBITS) or (header[1] not in (SYMTAB, STRTAB, RELA) and header[2] & ALLOC):
            made = Section(name, header[2] & ~(_MERGE | _STRINGS), max(header[8], 1), size=header[5], kind=header[1])
            made.data += file.contents(number)
            sections[number] = made
    symbols = [
        Symbol(name, sections.get(section), value, size, binding, kind, section == _ABSOLUTE_SECTION)
        for name, binding, kind, section, value, size in file.symbols(SYMTAB)
    ]
    for number, header in enumerate(file.headers):
        if header[1] != RELA or header[7] not in sections:
            continue
        for offset, info, addend in RELOCATION.iter_unpack(file.contents(number)):
            if info >> 32 >= len(symbols):
                raise NotElf("is damaged: a relocation names a symbol that is not there")
            sections[header[7]].relocations.append((offset, info & 0xFFFFFFFF, symbols[info >> 32], addend))
    return Object(file.machine, list(sections.values()), symbols)


def renamed(made: Object, names: Collection[str], suffix: str) -> Object:
    """An object, some names of which end in a suffix."""
    for symbol in made.symbols:
        if symbol.name in names:
            symbol.name += suffix
    return made


# --- putting together ------------------------------------------------------------------------------------------------


def linked(objects: Sequence[Object], exports: Collection[str]) -> Object:
    """One object of several. Of what they define others see `exports`."""
    merged: dict[str, Section] = {}
    places: dict[Section, tuple[Section, int]] = {}
    for each in objects:
        for section in each.sections:
            if section.name == ".note.GNU-stack" or not section.flags & ALLOC:
                continue
            into = merged.setdefault(section.name, Section(section.name, section.flags, kind=section.kind))
            if section.kind == NOBITS:
                start = into.reserve(section.size, section.alignment)
            else:
                start = into.append(bytes(section.data), section.alignment)
            places[section] = into, start
    defined: dict[str, Symbol] = {}
    undefined: dict[str, Symbol] = {}
    made: dict[Symbol, Symbol] = {}
    of_section = {section: Symbol("", section, binding=LOCAL, kind=SECTION) for section in merged.values()}
    for each in objects:
        for symbol in each.symbols:
            if symbol.section is None and not symbol.absolute:
                continue
            if symbol.section is not None and symbol.section not in places:
                continue
            if symbol.kind == SECTION and symbol.section is not None:
                made[symbol] = of_section[places[symbol.section][0]]
                continue
            copy = dataclasses.replace(symbol)
            if symbol.section is not None:
                copy.section, start = places[symbol.section]
                copy.value += start
            if symbol.binding != LOCAL:
                if symbol.name in defined:
                    raise ValueError(f"{symbol.name} is defined twice")
                defined[symbol.name] = copy
                copy.binding = GLOBAL if symbol.name in exports else LOCAL
            made[symbol] = copy
    for each in objects:
        for symbol in each.symbols:
            if symbol in made or symbol.is_defined or not symbol.name:
                continue
            found = defined.get(symbol.name) or undefined.get(symbol.name)
            if found is None:
                found = undefined[symbol.name] = Symbol(symbol.name)
            made[symbol] = found
    for each in objects:
        for section in each.sections:
            if section not in places:
                continue
            into, start = places[section]
            for offset, kind, symbol, addend in section.relocations:
                target = symbol.section
                if symbol.kind == SECTION and target is not None:
                    addend += places[target][1]
                into.relocations.append((offset + start, kind, made[symbol], addend))
    used = {symbol for section in merged.values() for _, _, symbol, _ in section.relocations}
    symbols = [s for s in of_section.values() if s in used]
    named = [s for s in dict.fromkeys(made.values()) if s.kind != SECTION]
    symbols += [s for s in named if s.is_defined or s in used]
    return Object(objects[0].machine, list(merged.values()), symbols)


# --- writing ---------------------------------------------------------------------------------------------------------


class Names:
    """A table of names."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")
        self._known = {"": 0}

    def at(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = len(self.data)
            self.data += name.encode() + b"\0"
        return self._known[name]


def written(made: Object) -> bytes:
    """The file of an object."""
    names, out = Names(), bytearray(HEADER.size)
    symbols = sorted(made.symbols, key=lambda symbol: symbol.binding != LOCAL)
    number_of = {symbol: number for number, symbol in enumerate(symbols, 1)}
    sections = [*made.sections, Section(".note.GNU-stack", 0)]
    section_of = {section: number for number, section in enumerate(sections, 1)}
    headers: list[tuple[Any, ...]] = [(0,) * 10]

    def place(alignment: int, data: bytes) -> int:
        out.extend(bytes(-len(out) % alignment))
        start = len(out)
        out.extend(data)
        return start

    for section in sections:
        start = place(section.alignment, bytes(section.data))
        size = section.size if section.kind == NOBITS else len(section.data)
        headers.append(
            (names.at(section.name), section.kind, section.flags, 0, start, size, 0, 0, section.alignment, 0)
        )
    relocated = [section for section in sections if section.relocations]
    table = 1 + len(sections) + len(relocated)
    for section in relocated:
        packed = b"".join(
            RELOCATION.pack(offset, number_of[symbol] << 32 | kind, addend)
            for offset, kind, symbol, addend in section.relocations
        )
        link = 0x40, 0, place(8, packed), len(packed), table, section_of[section], 8, RELOCATION.size
        headers.append((names.at(f".rela{section.name}"), RELA, *link))
    entries = [SYMBOL.pack(0, 0, 0, 0, 0, 0)]
    for symbol in symbols:
        at = _ABSOLUTE_SECTION if symbol.absolute else section_of[symbol.section] if symbol.section else 0
        kind = symbol.binding << 4 | symbol.kind
        entries.append(SYMBOL.pack(names.at(symbol.name), kind, 0, at, symbol.value, symbol.size))
    local = 1 + sum(symbol.binding == LOCAL for symbol in symbols)
    packed = b"".join(entries)
    link = 0, 0, place(8, packed), len(packed), table + 1, local, 8, SYMBOL.size
    headers.append((names.at(".symtab"), SYMTAB, *link))
    name = names.at(".strtab")
    headers.append((name, STRTAB, 0, 0, place(1, bytes(names.data)), len(names.data), 0, 0, 1, 0))
    at = place(8, b"".join(SECTION_HEADER.pack(*header) for header in headers))
    magic = b"\x7fELF\x02\x01\x01" + bytes(9)
    HEADER.pack_into(
        out, 0, magic, RELOCATABLE, made.machine, 1, 0, 0, at, 0, HEADER.size, 0, 0, SECTION_HEADER.size, len(headers),
        len(headers) - 1,
    )  # fmt: skip
    return bytes(out)


# --- data ------------------------------------------------------------------------------------------------------------


def _offset(record: Any, field: str) -> int:
    """Of a field, which may be one of a field: `code.entry`."""
    first, _, rest = field.partition(".")
    return getattr(record, first).offset + (_offset(dict(record._fields_)[first], rest) if rest else 0)


class Data:
    """Constants and records that refer to each other and to code, as an object."""

    def __init__(self, machine: int) -> None:
        self._machine = machine
        self._constants, self._records = Section(".rodata"), Section(".data", ALLOC | WRITE)
        self._starts = Section(".init_array", ALLOC | WRITE, 8, kind=INIT_ARRAY)
        self._symbols: dict[str, Symbol] = {}
        self._texts: dict[bytes, Symbol] = {}

    def symbol(self, name: str) -> Symbol:
        """What another object defines, or this one."""
        return self._symbols.setdefault(name, Symbol(name))

    def constant(self, data: bytes, alignment: int = 1, name: str = "") -> Symbol:
        """Bytes that nothing changes."""
        return self._placed(self._constants, self._constants.append(data, alignment), len(data), name)

    def text(self, text: str) -> Symbol:
        """A text with a zero at its end; one for equal ones."""
        data = text.encode() + b"\0"
        if data not in self._texts:
            self._texts[data] = self.constant(data)
        return self._texts[data]

    def records(self, records: Sequence[tuple[Any, dict[str, Symbol]]], name: str = "") -> Symbol:
        """Structures one after the other, each with those of its fields that are addresses of something."""
        body = b"".join(bytes(record) for record, _ in records)
        start, offset = self._records.append(body, 16), 0
        for record, addresses in records:
            for field, symbol in addresses.items():
                at = start + offset + _offset(type(record), field)
                self._records.relocations.append((at, ABSOLUTE[self._machine], symbol, 0))
            offset += len(bytes(record))
        return self._placed(self._records, start, len(body), name)

    def call_at_start(self, function: Symbol) -> None:
        """Have a function called where the file is loaded."""
        at = self._starts.append(bytes(8), 8)
        self._starts.relocations.append((at, ABSOLUTE[self._machine], function, 0))

    def object(self) -> Object:
        """All of it."""
        sections = [section for section in (self._constants, self._records, self._starts) if section.size]
        return Object(self._machine, sections, [*self._symbols.values(), *self._texts.values(), *self._anonymous])

    @property
    def _anonymous(self) -> list[Symbol]:
        return [symbol for _, _, symbol, _ in self._records.relocations if symbol.binding == LOCAL]

    def _placed(self, section: Section, start: int, size: int, name: str) -> Symbol:
        made = self.symbol(name) if name else Symbol("", binding=LOCAL)
        made.section, made.value, made.size, made.kind = section, start, size, OBJECT
        return made
