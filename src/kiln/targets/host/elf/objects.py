"""Relocatable objects: read, linked to one object, written.

Several objects become one, as `ld -r` does it: sections of one name are concatenated, and names that need not be
exported become local. No linker is needed, and the machine matters only for the numbers of relocations.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from . import format as elf

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class NotElf(ValueError):
    """A file is no ELF file, or not whole. The message is a sentence without its subject, the file."""


@dataclasses.dataclass(eq=False)
class Section:
    """A section; one without data has only a size."""

    name: str
    flags: int = elf.ALLOC
    alignment: int = 1
    data: bytearray = dataclasses.field(default_factory=bytearray)
    size: int = 0
    kind: int = elf.PROGBITS
    relocations: list[tuple[int, int, Symbol, int]] = dataclasses.field(default_factory=list)
    """Offset, kind, symbol, addend."""

    def reserve(self, size: int, alignment: int) -> int:
        """Return the offset of the next bytes of a size."""
        start = -(-self.size // alignment) * alignment
        self.size = start + size
        self.alignment = max(self.alignment, alignment)
        return start

    def append(self, data: bytes, alignment: int = 1) -> int:
        """Append bytes, and return their offset."""
        start = self.reserve(len(data), alignment)
        self.data += bytes(start - len(self.data)) + data
        return start


@dataclasses.dataclass(eq=False)
class Symbol:
    """A name for a place in this object, or in another."""

    name: str
    section: Section | None = None
    value: int = 0
    size: int = 0
    binding: int = elf.GLOBAL
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


class FileSymbol(NamedTuple):
    """A symbol of a file; its section is a number."""

    name: str
    binding: int
    kind: int
    section: int
    value: int
    size: int


class File:
    """The header and the sections of an ELF file of any kind, checked to lie in it."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF":
            raise NotElf("is no ELF file (an object or a shared library)")
        if len(data) < ctypes.sizeof(elf.Header):
            raise NotElf(f"is truncated: it ends after {len(data)} bytes, in the header")
        if data[4:6] != b"\x02\x01":
            raise NotElf("is no 64-bit little-endian ELF file")
        head = elf.Header.from_buffer_copy(data)
        self.data = data
        self.kind: int = head.kind
        self.machine: int = head.machine
        count = head.section_count
        ends = [head.sections + head.section_bytes * count, head.segments + head.segment_bytes * head.segment_count]
        if head.section_bytes != ctypes.sizeof(elf.SectionHeader) and count:
            raise NotElf("is damaged: its section headers have another size than those of ELF")
        if ends[0] <= len(data):
            self.headers: list[Any] = (
                list((elf.SectionHeader * count).from_buffer_copy(data, head.sections)) if count else []
            )
            ends += [each.offset + each.size for each in self.headers if each.kind != elf.NOBITS]
        if max(ends) > len(data):
            raise NotElf(f"is truncated: it has {len(data)} bytes and would have at least {max(ends)}")
        if count and head.names >= count:
            raise NotElf("is damaged: it names a section that is not there")
        self.names: list[str] = [self.text(head.names, each.name) for each in self.headers]

    def contents(self, number: int) -> bytes:
        """Return the bytes of a section."""
        header = self.headers[number]
        return b"" if header.kind == elf.NOBITS else self.data[header.offset : header.offset + header.size]

    def text(self, section: int, at: int) -> str:
        """Return a string of a section."""
        if section >= len(self.headers):
            raise NotElf("is damaged: it names a section that is not there")
        table = self.contents(section)
        end = table.find(b"\0", at)
        if end < 0:
            raise NotElf("is damaged: a name is not in its table of names")
        return table[at:end].decode(errors="replace")

    def entries(self, number: int, layout: Any, what: str) -> list[Any]:
        """Return the entries of a section that is a table."""
        table = self.contents(number)
        size = ctypes.sizeof(layout)
        if len(table) % size:
            raise NotElf(f"is damaged: its table of {what} is no whole number of them")
        return list((layout * (len(table) // size)).from_buffer_copy(table)) if table else []

    def symbols(self, kind: int) -> list[FileSymbol]:
        """Return the symbols of the tables of a kind."""
        return [
            FileSymbol(self.text(table.link, x.name), x.info >> 4, x.info & 15, x.section, x.value, x.size)
            for number, table in enumerate(self.headers)
            if table.kind == kind
            for x in self.entries(number, elf.SymbolEntry, "symbols")
        ]


def read(data: bytes) -> Object:
    """Return a relocatable object. Raises `NotElf`."""
    file = File(data)
    if file.kind != elf.RELOCATABLE:
        raise NotElf("is no relocatable object")
    sections: dict[int, Section] = {}
    for number, (name, header) in enumerate(zip(file.names, file.headers, strict=True)):
        if header.kind in (elf.PROGBITS, elf.NOBITS) or (
            header.kind not in (elf.SYMTAB, elf.STRTAB, elf.RELA) and header.flags & elf.ALLOC
        ):
            alignment = max(header.alignment, 1)
            section = Section(
                name, header.flags & ~(elf.MERGE | elf.STRINGS), alignment, size=header.size, kind=header.kind
            )
            section.data += file.contents(number)
            sections[number] = section
    symbols = [
        Symbol(x.name, sections.get(x.section), x.value, x.size, x.binding, x.kind, x.section == elf.ABSOLUTE_SECTION)
        for x in file.symbols(elf.SYMTAB)
    ]
    for number, header in enumerate(file.headers):
        if header.kind != elf.RELA or header.info not in sections:
            continue
        for entry in file.entries(number, elf.RelocationEntry, "relocations"):
            if entry.symbol >= len(symbols):
                raise NotElf("is damaged: a relocation names a symbol that is not there")
            relocation = (entry.offset, entry.kind, symbols[entry.symbol], entry.addend)
            sections[header.info].relocations.append(relocation)
    return Object(file.machine, list(sections.values()), symbols)


def renamed(object_: Object, names: Collection[str], suffix: str) -> Object:
    """Append a suffix to some names of an object, and return it."""
    for symbol in object_.symbols:
        if symbol.name in names:
            symbol.name += suffix
    return object_


# --- putting together ------------------------------------------------------------------------------------------------


def linked(objects: Sequence[Object], exports: Collection[str]) -> Object:
    """Link several objects to one, which exports only the names `exports`."""
    merged, places = _merged_sections(objects)
    of_section = {section: Symbol("", section, binding=elf.LOCAL, kind=elf.SECTION) for section in merged}
    new_symbols = _resolved_symbols(objects, exports, places, of_section)
    for each in objects:
        for section in each.sections:
            if section not in places:
                continue
            into, start = places[section]
            for offset, kind, symbol, addend in section.relocations:
                target = symbol.section
                if symbol.kind == elf.SECTION and target is not None:
                    addend += places[target][1]
                into.relocations.append((offset + start, kind, new_symbols[symbol], addend))
    used = {symbol for section in merged for _, _, symbol, _ in section.relocations}
    symbols = [s for s in of_section.values() if s in used]
    named = [s for s in dict.fromkeys(new_symbols.values()) if s.kind != elf.SECTION]
    symbols += [s for s in named if s.is_defined or s in used]
    return Object(objects[0].machine, merged, symbols)


def _merged_sections(objects: Sequence[Object]) -> tuple[list[Section], dict[Section, tuple[Section, int]]]:
    """Concatenate sections of one name. Returns them, and where each of the original ones is."""
    merged: dict[str, Section] = {}
    places: dict[Section, tuple[Section, int]] = {}
    for section in (section for each in objects for section in each.sections):
        if section.name == ".note.GNU-stack" or not section.flags & elf.ALLOC:
            continue
        into = merged.setdefault(section.name, Section(section.name, section.flags, kind=section.kind))
        if section.kind == elf.NOBITS:
            start = into.reserve(section.size, section.alignment)
        else:
            start = into.append(bytes(section.data), section.alignment)
        places[section] = into, start
    return list(merged.values()), places


def _resolved_symbols(
    objects: Sequence[Object],
    exports: Collection[str],
    places: dict[Section, tuple[Section, int]],
    of_section: dict[Section, Symbol],
) -> dict[Symbol, Symbol]:
    """Return the symbol of the linked object for each original one."""
    defined: dict[str, Symbol] = {}
    new_symbols: dict[Symbol, Symbol] = {}
    symbols = [symbol for each in objects for symbol in each.symbols]
    for symbol in symbols:
        if not symbol.is_defined or (symbol.section is not None and symbol.section not in places):
            continue
        if symbol.kind == elf.SECTION and symbol.section is not None:
            new_symbols[symbol] = of_section[places[symbol.section][0]]
            continue
        copy = dataclasses.replace(symbol)
        if symbol.section is not None:
            copy.section, start = places[symbol.section]
            copy.value += start
        if symbol.binding != elf.LOCAL:
            if symbol.name in defined:
                raise ValueError(f"{symbol.name} is defined twice")
            defined[symbol.name] = copy
            copy.binding = elf.GLOBAL if symbol.name in exports else elf.LOCAL
        new_symbols[symbol] = copy
    undefined: dict[str, Symbol] = {}
    for symbol in symbols:
        if symbol not in new_symbols and not symbol.is_defined and symbol.name:
            new_symbols[symbol] = defined.get(symbol.name) or undefined.setdefault(symbol.name, Symbol(symbol.name))
    return new_symbols


# --- writing ---------------------------------------------------------------------------------------------------------


class Names:
    """A table of names."""

    def __init__(self) -> None:
        self.data: bytearray = bytearray(b"\0")
        self._offsets = {"": 0}

    def at(self, name: str) -> int:
        """Return the offset of a name; adds it."""
        if name not in self._offsets:
            self._offsets[name] = len(self.data)
            self.data += name.encode() + b"\0"
        return self._offsets[name]


def written(object_: Object) -> bytes:
    """Return the file of an object."""
    names = Names()
    out = bytearray(ctypes.sizeof(elf.Header))
    symbols = sorted(object_.symbols, key=lambda symbol: symbol.binding != elf.LOCAL)
    number_of = {symbol: number for number, symbol in enumerate(symbols, 1)}
    sections = [*object_.sections, Section(".note.GNU-stack", 0)]
    section_of = {section: number for number, section in enumerate(sections, 1)}
    headers = [elf.SectionHeader()]

    def add(name: str, kind: int, data: bytes, alignment: int, **fields: int) -> None:
        out.extend(bytes(-len(out) % alignment))
        size = fields.pop("size", len(data))
        headers.append(
            elf.SectionHeader(names.at(name), kind, offset=len(out), size=size, alignment=alignment, **fields)
        )
        out.extend(data)

    for section in sections:
        size = section.size if section.kind == elf.NOBITS else len(section.data)
        add(section.name, section.kind, bytes(section.data), section.alignment, flags=section.flags, size=size)
    relocated = [section for section in sections if section.relocations]
    table = 1 + len(sections) + len(relocated)
    for section in relocated:
        entries = [elf.RelocationEntry(at, kind, number_of[x], addend) for at, kind, x, addend in section.relocations]
        add(
            f".rela{section.name}",
            elf.RELA,
            b"".join(map(bytes, entries)),
            8,
            flags=0x40,
            link=table,
            info=section_of[section],
            entry_bytes=ctypes.sizeof(elf.RelocationEntry),
        )
    entries = [elf.SymbolEntry()]
    for symbol in symbols:
        at = elf.ABSOLUTE_SECTION if symbol.absolute else section_of[symbol.section] if symbol.section else 0
        info = symbol.binding << 4 | symbol.kind
        entries.append(elf.SymbolEntry(names.at(symbol.name), info, 0, at, symbol.value, symbol.size))
    local = 1 + sum(symbol.binding == elf.LOCAL for symbol in symbols)
    size = ctypes.sizeof(elf.SymbolEntry)
    add(".symtab", elf.SYMTAB, b"".join(map(bytes, entries)), 8, link=table + 1, info=local, entry_bytes=size)
    names.at(".strtab")
    add(".strtab", elf.STRTAB, bytes(names.data), 1)
    out.extend(bytes(-len(out) % 8))
    head = elf.header(object_.machine, elf.RELOCATABLE, len(out), len(headers))
    out[: len(head)] = head
    return bytes(out) + b"".join(map(bytes, headers))


# --- data ------------------------------------------------------------------------------------------------------------


def _offset(record: Any, field: str) -> int:
    """Return the offset of a field, which may be inside another: `code.entry`."""
    first, _, rest = field.partition(".")
    return getattr(record, first).offset + (_offset(dict(record._fields_)[first], rest) if rest else 0)


class Data:
    """An object of constants and records, which may refer to each other and to code."""

    def __init__(self, machine: int) -> None:
        self._machine = machine
        self._constants = Section(".rodata")
        self._records = Section(".data", elf.ALLOC | elf.WRITE)
        self._starts = Section(".init_array", elf.ALLOC | elf.WRITE, 8, kind=elf.INIT_ARRAY)
        self._symbols: dict[str, Symbol] = {}
        self._texts: dict[bytes, Symbol] = {}

    def symbol(self, name: str) -> Symbol:
        """Return the symbol of a name, which this object or another defines."""
        return self._symbols.setdefault(name, Symbol(name))

    def constant(self, data: bytes, alignment: int = 1, name: str = "") -> Symbol:
        """Add constant bytes."""
        return self._placed(self._constants, self._constants.append(data, alignment), len(data), name)

    def text(self, text: str) -> Symbol:
        """Add a string, terminated by zero; equal ones share it."""
        data = text.encode() + b"\0"
        if data not in self._texts:
            self._texts[data] = self.constant(data)
        return self._texts[data]

    def records(self, records: Sequence[tuple[Any, dict[str, Symbol]]], name: str = "") -> Symbol:
        """Add an array of structures, each with the symbols of its fields that are addresses."""
        body = b"".join(bytes(record) for record, _ in records)
        start = self._records.append(body, 16)
        offset = 0
        for record, addresses in records:
            assert not vars(record), (
                f"{type(record).__name__} has no fields {', '.join(vars(record))}"
            )  # ctypes takes any
            for field, symbol in addresses.items():
                at = start + offset + _offset(type(record), field)
                self._records.relocations.append((at, elf.ABSOLUTE[self._machine], symbol, 0))
            offset += len(bytes(record))
        return self._placed(self._records, start, len(body), name)

    def call_at_start(self, function: Symbol) -> None:
        """Let a function be called when the file is loaded."""
        at = self._starts.append(bytes(8), 8)
        self._starts.relocations.append((at, elf.ABSOLUTE[self._machine], function, 0))

    def object(self) -> Object:
        """Return the object."""
        sections = [section for section in (self._constants, self._records, self._starts) if section.size]
        return Object(self._machine, sections, [*self._symbols.values(), *self._texts.values(), *self._anonymous])

    @property
    def _anonymous(self) -> list[Symbol]:
        return [symbol for _, _, symbol, _ in self._records.relocations if symbol.binding == elf.LOCAL]

    def _placed(self, section: Section, start: int, size: int, name: str) -> Symbol:
        symbol_ = self.symbol(name) if name else Symbol("", binding=elf.LOCAL)
        symbol_.section = section
        symbol_.value = start
        symbol_.size = size
        symbol_.kind = elf.OBJECT
        return symbol_
