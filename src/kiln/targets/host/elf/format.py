"""The ELF format (64-bit, little-endian): structures, constants, and how relocations are encoded.

Python reads and writes files by them (`objects.py`, `shared_library.py`), native code loads objects by them
(`memory_linker.py`).
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from ....native import Array, i64, struct, u8, u16, u32, u64


@struct
class Header:
    """The header of a file."""

    magic: Array[u8, 16]
    kind: u16
    machine: u16
    version: u32
    entry: u64
    segments: u64
    sections: u64
    flags: u32
    bytes: u16
    segment_bytes: u16
    segment_count: u16
    section_bytes: u16
    section_count: u16
    names: u16


@struct
class SectionHeader:
    """The header of a section."""

    name: u32
    kind: u32
    flags: u64
    address: u64
    offset: u64
    size: u64
    link: u32
    info: u32
    alignment: u64
    entry_bytes: u64


@struct
class SymbolEntry:
    """An entry of a table of symbols."""

    name: u32
    info: u8
    other: u8
    section: u16
    value: u64
    size: u64


@struct
class RelocationEntry:
    """An entry of a table of relocations."""

    offset: u64
    kind: u32
    symbol: u32
    addend: i64


@struct
class Segment:
    """A program header: what the system loads."""

    kind: u32
    rights: u32
    offset: u64
    address: u64
    physical_address: u64
    file_bytes: u64
    memory_bytes: u64
    alignment: u64


MAGIC = b"\x7fELF\x02\x01\x01" + bytes(9)
MACHINES = {"x86_64": 62, "aarch64": 183}
"""ELF's numbers of architectures."""
X86_64, AARCH64 = MACHINES.values()
RELOCATABLE = 1
SHARED = 3
"""Kinds of files."""
PROGBITS = 1
SYMTAB = 2
STRTAB = 3
RELA = 4
NOBITS = 8
DYNSYM = 11
INIT_ARRAY = 14
"""Kinds of sections."""
WRITE = 1
ALLOC = 2
EXECUTE = 4
MERGE = 16
STRINGS = 32
EXCLUDE = 0x80000000
"""Flags of sections."""
LOCAL, GLOBAL, WEAK = range(3)
OBJECT = 1
FUNCTION = 2
SECTION = 3
"""Bindings and kinds of symbols."""
ABSOLUTE_SECTION = 0xFFF1


def header(machine: int, kind: int, sections_at: int, section_count: int, segment_count: int = 0) -> bytes:
    """Return the header of a file, whose segments follow it and whose last section has the names of sections."""
    filled = Header(
        kind=kind,
        machine=machine,
        version=1,
        segments=ctypes.sizeof(Header) if segment_count else 0,
        sections=sections_at,
        bytes=ctypes.sizeof(Header),
        segment_bytes=ctypes.sizeof(Segment) if segment_count else 0,
        segment_count=segment_count,
        section_bytes=ctypes.sizeof(SectionHeader),
        section_count=section_count,
        names=section_count - 1,
    )
    filled.magic[:] = MAGIC
    return bytes(filled)


# --- relocations -----------------------------------------------------------------------------------------------------

ADDRESS64, OFFSET64, OFFSET32, BRANCH26, PAGE21, LOW12 = range(6)
"""What a relocation writes: an address, an offset from the place in 64 or 32 bits; in AArch64 instructions an offset in
words or pages, or the low 12 bits of the address."""
DIRECT, THROUGH_GOT, CALL = range(3)
"""The address that is meant: the symbol's, that of its GOT entry, or that of a jump to the symbol if it is far."""


class Relocation(NamedTuple):
    """How a kind of relocation is encoded."""

    form: int
    target: int = DIRECT
    shift: int = 0
    """Bits that LOW12 drops: log2 of the bytes that the instruction accesses."""


RELOCATIONS = {
    1: Relocation(ADDRESS64),
    24: Relocation(OFFSET64),
    2: Relocation(OFFSET32),
    4: Relocation(OFFSET32, CALL),
    9: Relocation(OFFSET32, THROUGH_GOT),
    41: Relocation(OFFSET32, THROUGH_GOT),
    42: Relocation(OFFSET32, THROUGH_GOT),
    257: Relocation(ADDRESS64),
    260: Relocation(OFFSET64),
    261: Relocation(OFFSET32),
    275: Relocation(PAGE21),
    277: Relocation(LOW12),
    278: Relocation(LOW12),
    284: Relocation(LOW12, shift=1),
    285: Relocation(LOW12, shift=2),
    286: Relocation(LOW12, shift=3),
    299: Relocation(LOW12, shift=4),
    282: Relocation(BRANCH26, CALL),
    283: Relocation(BRANCH26, CALL),
    311: Relocation(PAGE21, THROUGH_GOT),
    312: Relocation(LOW12, THROUGH_GOT, 3),
}
"""By ELF's numbers: of x86-64 below `FIRST_OF_AARCH64`, of AArch64 from there on."""
FIRST_OF_AARCH64 = 256
ABSOLUTE = {X86_64: 1, AARCH64: 257}
"""The relocation of a machine that is an address of 64 bits."""


def with_branch(word: Any, steps: Any) -> Any:
    """Return an AArch64 instruction with another offset in words; for native values and Python's."""
    return word & 0xFC000000 | steps & 0x3FFFFFF


def with_page(word: Any, pages: Any) -> Any:
    """Return an AArch64 `adrp` with another offset in pages; for native values and Python's."""
    return word & 0x9F00001F | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def with_low_bits(word: Any, address: Any, shift: Any) -> Any:
    """Return an AArch64 instruction with the low 12 bits of an address; for native values and Python's."""
    return word & 0xFFC003FF | (address & 0xFFF) >> shift << 10
