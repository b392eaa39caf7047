"""Shared libraries, made from an object without a linker, for this machine or another.

A library has three pieces of memory: constants, with the tables of the dynamic linker; code; and data. Symbols of other
libraries are resolved when the library is loaded: each has one word with its address, and one jump for calls.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import TYPE_CHECKING

from . import format as elf
from .objects import Names, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .objects import Object, Symbol

FREE = ctypes.sizeof(elf.Header) + 7 * ctypes.sizeof(elf.Segment)
FREE_BYTES = 56
"""Where each file has free bytes that are loaded with the rest."""
_LOAD = 1
_DYNAMIC = 2
_EH_FRAME = 0x6474E550
_STACK = 0x6474E551
_EXECUTE = 1
_WRITE = 2
_READ = 4
_PAGE = {elf.X86_64: 0x1000, elf.AARCH64: 0x10000}
_RELATIVE = {elf.X86_64: 8, elf.AARCH64: 1027}
_GLOBAL = {elf.X86_64: 6, elf.AARCH64: 1025}
"""By machine: relocations for an address in the library itself, and for a symbol of another library."""
_NULL = 0
_NEEDED = 1
_HASH = 4
_STRTAB = 5
_SYMTAB = 6
_RELA = 7
_RELASZ = 8
_RELAENT = 9
_STRSZ = 10
_SYMENT = 11
_INIT_ARRAY = 25
_INIT_ARRAYSZ = 27
_FLAGS = 30
_NOW = 8
"""Tags of the dynamic section, and the flag BIND_NOW."""
_KIND_HASH = 5
_KIND_DYNAMIC = 6
_JUMP_BYTES = 16
_SYMBOL_BYTES = ctypes.sizeof(elf.SymbolEntry)
_RELOCATION_BYTES = ctypes.sizeof(elf.RelocationEntry)


def written(object_: Object) -> tuple[bytes, int]:
    """Return the file of a library that exports the global symbols of an object, and the size of its loaded part."""
    library = _Library(object_)
    return library.file(), library.end


def libraries_of(names: Sequence[str]) -> list[str]:
    """Return the libraries of the system that define some names."""
    libraries = ["libc.so.6"]
    rest = [name for name in names if not _has("libc.so.6", name)]
    for library in ("libm.so.6", "libgcc_s.so.1"):
        if any(_has(library, name) for name in rest):
            libraries.append(library)
    return libraries


@functools.lru_cache(maxsize=1024)
def _has(library: str, name: str) -> bool:
    try:
        return hasattr(ctypes.CDLL(library), name)
    except OSError:
        return False


class _Library:
    def __init__(self, object_: Object) -> None:
        self._machine = object_.machine
        self._page = _PAGE[object_.machine]
        self._shown = [s for s in object_.symbols if s.binding != elf.LOCAL and s.is_defined]
        sections = [section for section in object_.sections if section.flags & elf.ALLOC]
        used = [entry for section in sections for entry in section.relocations]
        called = [s for _, kind, s, _ in used if _target_of(kind) == elf.CALL and not s.is_defined]
        self._foreign = list(dict.fromkeys(s for _, _, s, _ in used if not s.is_defined))
        self._slots = {
            s: 8 * number
            for number, s in enumerate(
                dict.fromkeys([s for _, kind, s, _ in used if _target_of(kind) == elf.THROUGH_GOT] + called)
            )
        }
        self._jumps = {s: _JUMP_BYTES * number for number, s in enumerate(dict.fromkeys(called))}
        self._index = {s: number for number, s in enumerate([*self._foreign, *self._shown], 1)}
        self._names = Names()
        self._dynamic_names = Names()
        self._needed = [self._dynamic_names.at(name) for name in libraries_of([s.name for s in self._foreign])]
        self._object_sections = sections
        self._addresses: dict[Section, int] = {}
        self._lay_out()
        self._relocate()

    # -- layout ------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Assign each section its offset in the file and its address; tables that are filled later have their sizes."""
        sections = self._object_sections
        reads = [s for s in sections if not s.flags & (elf.WRITE | elf.EXECUTE)]
        runs = [s for s in sections if s.flags & elf.EXECUTE]
        changes = sorted((s for s in sections if s.flags & elf.WRITE), key=lambda s: s.kind == elf.NOBITS)
        frames = next((s for s in reads if s.name == ".eh_frame"), None)
        if frames is not None:
            frames.append(bytes(8))  # the end of the list
        self._frames = frames
        for symbol in [*self._foreign, *self._shown]:
            self._dynamic_names.at(symbol.name)
        count = len(self._index) + 1
        fixed = sum(kind == elf.ABSOLUTE[self._machine] for s in sections for _, kind, _, _ in s.relocations)
        alloc = elf.ALLOC
        self._hash = _table(".hash", alloc, 8 + 4 * (2 * count), _KIND_HASH)
        self._symbols = _table(".dynsym", alloc, _SYMBOL_BYTES * count, elf.DYNSYM)
        self._strings = _table(".dynstr", alloc, len(self._dynamic_names.data), elf.STRTAB)
        self._relocations = _table(".rela.dyn", alloc, _RELOCATION_BYTES * (fixed + len(self._slots)), elf.RELA)
        self._frames_head = _table(".eh_frame_hdr", alloc, 8 if frames else 0)
        self._jump_code = _table(".plt", alloc | elf.EXECUTE, _JUMP_BYTES * len(self._jumps))
        self._jump_code.alignment = 16
        self._init = next((s for s in changes if s.name == ".init_array"), None)
        tags = len(self._needed) + 10 + 2 * (self._init is not None)
        self._dynamic = _table(".dynamic", alloc | elf.WRITE, 16 * tags, _KIND_DYNAMIC)
        self._got = _table(".got", alloc | elf.WRITE, 8 * len(self._slots))
        self._got.data += bytes(self._got.size)
        tables = [self._hash, self._symbols, self._strings, self._relocations, self._frames_head]
        groups = [
            (_READ, [*tables, *reads]),
            (_READ | _EXECUTE, [self._jump_code, *runs]),
            (_READ | _WRITE, [self._dynamic, self._got, *changes]),
        ]
        self._segment_count = len(groups) + 2 + (frames is not None)
        offset = FREE + FREE_BYTES
        address = offset
        self._offsets = {}
        self._segments = []
        self._sections = []
        offsets: dict[Section, int] = self._offsets
        for number, (rights, sections) in enumerate(groups):
            if number:  # the same offset in the next page, so that the file has no gap
                offset += -offset % 16
                address = -(-address // self._page) * self._page + offset % self._page
            start, end = (0, 0) if number == 0 else (offset, address)
            for section in filter(lambda s: s.size, sections):
                shift = -address % section.alignment
                address += shift
                self._addresses[section] = address
                if section.kind == elf.NOBITS:
                    offsets[section] = offset
                else:
                    offset += shift
                    offsets[section] = offset
                    offset += section.size
                address += section.size
                self._sections.append(section)
            self._segments.append((_LOAD, rights, start, end, end, offset - start, address - end, self._page))
        self.end = offset

    # -- relocations -------------------------------------------------------------------------------------

    def _address(self, symbol: Symbol) -> int:
        if symbol.section is None:
            return symbol.value
        return self._addresses[symbol.section] + symbol.value

    def _relocate(self) -> None:
        machine = self._machine
        entries = []
        relative = _RELATIVE[machine]
        of_global = _GLOBAL[machine]
        absolute = elf.ABSOLUTE[machine]
        got = self._addresses.get(self._got, 0)
        jumps = self._addresses.get(self._jump_code, 0)
        for symbol, at in self._slots.items():
            if symbol.is_defined and not symbol.absolute:
                entries.append(elf.RelocationEntry(got + at, relative, 0, self._address(symbol)))
            else:
                entries.append(elf.RelocationEntry(got + at, of_global, self._index.get(symbol, 0), 0))
        for section in self._object_sections:
            for offset, kind, symbol, addend in section.relocations:
                place = self._addresses[section] + offset
                if kind == absolute:
                    if symbol.is_defined:
                        entries.append(elf.RelocationEntry(place, relative, 0, self._address(symbol) + addend))
                    else:
                        entries.append(elf.RelocationEntry(place, absolute, self._index[symbol], addend))
                    continue
                if _target_of(kind) == elf.THROUGH_GOT:
                    target = got + self._slots[symbol]
                elif symbol.is_defined:
                    target = self._address(symbol)
                elif symbol in self._jumps:
                    target = jumps + self._jumps[symbol]
                else:
                    raise ValueError(f"the code has the address of {symbol.name} compiled in (relocation {kind})")
                patch(section.data, offset, kind, target + addend, place)
        for symbol, at in self._jumps.items():
            code = bytearray(_JUMP_BYTES)
            _write_jump(machine, code, jumps + at, got + self._slots[symbol])
            self._jump_code.data += code
        entries.sort(key=lambda entry: entry.kind != relative)
        self._relocations.data += b"".join(map(bytes, entries))

    # -- the file ----------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Fill the tables of the dynamic linker."""
        number_of = {section: number for number, section in enumerate(self._sections, 1)}
        entries = [bytes(elf.SymbolEntry())]
        names = self._dynamic_names
        for symbol in self._index:
            section = number_of[symbol.section] if symbol.section else 0
            value = self._address(symbol) if symbol.is_defined else 0
            kind = symbol.binding << 4 | symbol.kind
            entries.append(bytes(elf.SymbolEntry(names.at(symbol.name), kind, 0, section, value, symbol.size)))
        self._symbols.data += b"".join(entries)
        self._strings.data += names.data
        count = len(entries)
        buckets = [0] * count
        chains = [0] * count
        for symbol, number in self._index.items():
            bucket = _hashed(symbol.name) % count
            chains[number] = buckets[bucket]
            buckets[bucket] = number
        self._hash.data += struct.pack(f"<{2 + 2 * count}I", count, count, *buckets, *chains)
        at = self._addresses
        tags = [(_NEEDED, name) for name in self._needed]
        if self._init is not None:
            tags += [(_INIT_ARRAY, at[self._init]), (_INIT_ARRAYSZ, self._init.size)]
        tags += [
            (_HASH, at[self._hash]),
            (_STRTAB, at[self._strings]),
            (_SYMTAB, at[self._symbols]),
            (_STRSZ, self._strings.size),
            (_SYMENT, _SYMBOL_BYTES),
            (_RELA, at.get(self._relocations, 0)),
            (_RELASZ, self._relocations.size),
            (_RELAENT, _RELOCATION_BYTES),
            (_FLAGS, _NOW),
            (_NULL, 0),
        ]
        self._dynamic.data += b"".join(struct.pack("<QQ", *tag) for tag in tags)
        if self._frames is not None:
            head = at[self._frames_head]
            # version 1; where the frames are, from here; no table: they are searched one by one
            self._frames_head.data += bytes([1, 0x1B, 0xFF, 0xFF]) + struct.pack("<i", at[self._frames] - (head + 4))
            self._segments.append((_EH_FRAME, _READ, self._offsets[self._frames_head], head, head, 8, 8, 4))
        place = at[self._dynamic]
        size = self._dynamic.size
        self._segments.append((_DYNAMIC, _READ | _WRITE, self._offsets[self._dynamic], place, place, size, size, 8))
        self._segments.append((_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16))

    def file(self) -> bytes:
        """Return the bytes of the file."""
        self._fill()
        out = bytearray(self.end)
        names = self._names
        number_of = {s: n for n, s in enumerate(self._sections, 1)}
        headers = [elf.SectionHeader()]
        links = {
            self._hash: (self._symbols, 0, 4),
            self._symbols: (self._strings, 1, _SYMBOL_BYTES),
            self._relocations: (self._symbols, 0, _RELOCATION_BYTES),
            self._dynamic: (self._strings, 0, 16),
        }
        for section in self._sections:
            start = self._offsets[section]
            if section.kind != elf.NOBITS:
                assert len(section.data) == section.size, section.name
                out[start : start + section.size] = section.data
            to, info, each = links.get(section, (None, 0, 0))
            headers.append(
                elf.SectionHeader(
                    names.at(section.name),
                    section.kind,
                    section.flags,
                    self._addresses[section],
                    start,
                    section.size,
                    number_of[to] if to else 0,
                    info,
                    section.alignment,
                    each,
                )
            )
        name = names.at(".shstrtab")
        headers.append(elf.SectionHeader(name, elf.STRTAB, 0, 0, len(out), len(names.data), 0, 0, 1, 0))
        out += names.data
        out += bytes(-len(out) % 8)
        where = len(out)
        out += b"".join(map(bytes, headers))
        assert len(self._segments) == self._segment_count
        head = elf.header(self._machine, elf.SHARED, where, len(headers), len(self._segments))
        head += b"".join(bytes(elf.Segment(*segment)) for segment in self._segments)
        out[: len(head)] = head
        return bytes(out)


def _table(name: str, flags: int, size: int, kind: int = elf.PROGBITS) -> Section:
    return Section(name, flags, 8, size=size, kind=kind)


def _hashed(name: str) -> int:
    """Return the hash of a name in ELF's hash tables."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


def _target_of(kind: int) -> int:
    relocation = elf.RELOCATIONS.get(kind)
    return elf.DIRECT if relocation is None else relocation.target


def _limited(value: int, bits: int, place: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"the library is too large: {value} from {place:#x} on does not fit {bits} bits")
    return value


def patch(data: bytearray, offset: int, kind: int, target: int, place: int) -> None:
    """Write the address `target`, or its offset from `place`, into a section as a relocation encodes it."""
    relocation = elf.RELOCATIONS.get(kind)
    if relocation is None or relocation.form == elf.ADDRESS64:
        machine = "x86-64" if kind < elf.FIRST_OF_AARCH64 else "aarch64"
        raise ValueError(f"relocation {kind} of {machine} is not known")
    if relocation.form == elf.OFFSET64:
        struct.pack_into("<q", data, offset, target - place)
        return
    if relocation.form == elf.OFFSET32:
        struct.pack_into("<i", data, offset, _limited(target - place, 32, place))
        return
    (word,) = struct.unpack_from("<I", data, offset)
    if relocation.form == elf.BRANCH26:
        word = elf.with_branch(word, _limited((target - place) >> 2, 26, place))
    elif relocation.form == elf.PAGE21:
        word = elf.with_page(word, _limited((target >> 12) - (place >> 12), 21, place))
    else:
        word = elf.with_low_bits(word, target, relocation.shift)
    struct.pack_into("<I", data, offset, word)


def _write_jump(machine: int, code: bytearray, place: int, slot: int) -> None:
    """Write a jump to the address in a word."""
    if machine == elf.MACHINES["x86_64"]:
        code[:] = b"\xcc" * len(code)
        struct.pack_into("<Hi", code, 0, 0x25FF, slot - (place + 6))  # jmp *slot(%rip)
        return
    # adrp x16; ldr x17, [x16]; br x17; nop
    struct.pack_into("<IIII", code, 0, 0x90000010, 0xF9400211, 0xD61F0220, 0xD503201F)
    patch(code, 0, 275, slot, place)
    patch(code, 4, 286, slot, place + 4)
