# pyright: reportReturnType=false
"""A linker in native code: it loads objects that Kiln wrote into memory, for the few relocations that they have.

Sections are laid out by kinds of memory, with one word for the address (GOT) and one jump to a far target for each
symbol. Every offset of the file is checked before it is followed.
"""

from __future__ import annotations

from ....native import Library, Ptr, address, extern, i32, i64, local, native, ref, size_of, struct, u8, u32, u64
from ..libc import calloc, dlsym, memcpy
from . import format as elf
from .format import ALLOC, EXECUTE, MACHINES, NOBITS, RELA, RELOCATABLE, SYMTAB, WRITE, Header, RelocationEntry
from .format import SectionHeader as Section
from .format import SymbolEntry as Symbol

(
    SUCCESS,
    INVALID_ARGUMENT,
    CANNOT_READ,
    NOT_AN_OBJECT,
    OTHER_MACHINE,
    DAMAGED,
    UNKNOWN_SYMBOL,
    NO_MEMORY,
    NOT_FOUND,
    CALL_FAILED,
) = range(10)
ERRORS = {
    "Success": "no error",
    "Invalid_Argument": "a null pointer, or nothing to load",
    "Cannot_Read": "the file or library cannot be opened",
    "Not_An_Object": "this is neither an object nor a shared library",
    "Other_Machine": "it was exported for another machine",
    "Damaged": "the object is truncated or damaged",
    "Unknown_Symbol": "the object needs a function that this process does not have",
    "No_Memory": "there is not enough memory",
    "Not_Found": "there is no exported function of this name",
    "Call_Failed": "the call failed: the last argument points to its status",
}
"""Names and meanings of errors, by number."""

_PAGE = 65536
_READ = 1
_WRITE = 2
_EXECUTE = 4
_PRIVATE_ANONYMOUS = 34
_FAILED = (1 << 64) - 1
_STUB = 16


@struct
class Module:
    """A loaded object, or loaded libraries."""

    file: Ptr
    size: u64
    memory: u64
    memory_size: u64
    places: Ptr[u64]
    """The address of each section; 0 if it has none."""
    got: u64
    stubs: u64
    symbols: Ptr[Symbol]
    symbol_count: u64
    names: Ptr
    names_size: u64
    libraries: Ptr[Ptr]
    library_count: u64
    unloads: Ptr[u64]
    """Functions that unload what the module's functions have loaded."""
    unload_count: u64


machine = Library("machine", prefix="kiln_").variable("machine", i32)
"""ELF's number of the machine that this is compiled for; written into the archive."""


@extern
def mmap(where: Ptr, bytes_: u64, protection: i32, flags: i32, file: i32, offset: i64) -> Ptr: ...


@extern
def mprotect(where: Ptr, bytes_: u64, protection: i32) -> i32: ...


@extern
def munmap(where: Ptr, bytes_: u64) -> i32: ...


@native
def fits(offset: u64, bytes_: u64, size: u64) -> bool:
    """Whether bytes lie in a file."""
    return offset <= size and bytes_ <= size - offset


@native
def rounded(number: u64, alignment: u64) -> u64:
    """Round up to a multiple of a power of two."""
    return (number + alignment - 1) & (u64(0) - alignment)


@native
def check(module: Ptr[Module], machine: i32) -> i32:
    """Check that everything the headers refer to lies in the file, and find the symbols. Returns 0 or an error."""
    size = module.size
    header = Ptr[Header](module.file)
    if not fits(0, size_of(Header), size) or Ptr[u32](module.file)[0] != 0x464C457F:
        return NOT_AN_OBJECT
    if header.magic[4] != 2 or header.magic[5] != 1 or header.kind != RELOCATABLE:
        return NOT_AN_OBJECT
    if i32(header.machine) != machine:
        return OTHER_MACHINE
    count = u64(header.section_count)
    if (
        header.section_bytes != size_of(Section)
        or not fits(header.sections, count * size_of(Section), size)
        or header.sections & 7 != 0
    ):
        return DAMAGED
    sections = Ptr[Section](module.file + header.sections)
    for number in range(count):
        each = ref(sections)[number]
        if each.kind != NOBITS and not fits(each.offset, each.size, size):
            return DAMAGED
        if each.size > 1 << 40 or each.alignment > _PAGE or each.alignment & (each.alignment - 1) != 0:
            return DAMAGED
        if each.kind == SYMTAB and each.link < count:
            names = ref(sections)[each.link]
            if each.offset & 7 != 0 or names.kind == NOBITS or names.size == 0:
                return DAMAGED
            if Ptr[u8](module.file)[names.offset + names.size - 1] != 0:
                return DAMAGED
            module.symbols = Ptr[Symbol](module.file + each.offset)
            module.symbol_count = each.size // size_of(Symbol)
            module.names = module.file + names.offset
            module.names_size = names.size
    if module.symbols == None:
        return DAMAGED
    for number in range(module.symbol_count):
        if u64(module.symbols[number].name) >= module.names_size:
            return DAMAGED
    return 0


@native
def belongs(flags: u64, kind: i32) -> bool:
    """Whether a section is of a kind of memory: 0 code, 1 constants, 2 data."""
    if flags & ALLOC == 0:
        return False
    if flags & WRITE != 0:
        return kind == 2
    return kind == (0 if flags & EXECUTE != 0 else 1)


@native
def lay_out(module: Ptr[Module], ends: Ptr[u64]) -> None:
    """Assign each section its offset in memory, and find where each kind of memory ends."""
    header = Ptr[Header](module.file)
    sections = Ptr[Section](module.file + header.sections)
    at = u64(0)
    for kind in (0, 1, 2):
        for number in range(u64(header.section_count)):
            each = ref(sections)[number]
            if belongs(each.flags, i32(kind)):
                at = rounded(at, each.alignment if each.alignment != 0 else u64(1))
                module.places[number] = at + 1  # 0 stands for none
                at += each.size
        at = rounded(at, 16)
        if kind == 0:
            module.stubs = at
            at += module.symbol_count * _STUB
        elif kind == 1:
            module.got = at
            at += module.symbol_count * 8
        at = rounded(at, _PAGE)
        ends[kind] = at


@native
def resolve(module: Ptr[Module], number: u64, address_out: Ptr[u64]) -> i32:
    """Find the address of a symbol. Returns 0 or an error."""
    symbol = ref(module.symbols)[number]
    header = Ptr[Header](module.file)
    if symbol.section == elf.ABSOLUTE_SECTION:
        address_out[0] = symbol.value
        return 0
    if symbol.section != 0:
        if symbol.section >= header.section_count:
            return DAMAGED
        place = module.places[symbol.section]
        address_out[0] = place + symbol.value
        return 0 if place != 0 else i32(DAMAGED)
    name = module.names + u64(symbol.name)
    address_out[0] = 0
    if number == 0:
        return 0
    address_out[0] = address(dlsym(None, name))
    return i32(UNKNOWN_SYMBOL) if address_out[0] == 0 and symbol.info >> 4 != elf.WEAK else i32(0)


@native
def is_near(difference: i64) -> bool:
    """Whether an offset fits 32 bits."""
    return difference == i64(i32(difference))


@native
def stub_of(module: Ptr[Module], number: u64, target: u64, is_arm: bool) -> u64:
    """Write a jump to a far target, and return its address."""
    place = module.stubs + number * _STUB
    words = Ptr[u32](Ptr(place))
    if is_arm:
        words[0] = 0x58000050  # ldr x16, the next words
        words[1] = 0xD61F0200  # br x16
        Ptr[u64](Ptr(place))[1] = target
    else:
        words[0] = 0x25FF  # jmp to what lies after this instruction
        words[1] = 0
        word = local(u64)
        word[0] = target
        memcpy(Ptr(place + 6), word, 8)
    return place


@native
def relocate_symbol(
    module: Ptr[Module], kind: u32, place: u64, number: u64, target: u64, addend: i64, is_arm: bool
) -> i32:
    """Write the address of a symbol, or its offset, at a place."""
    form = i32(-1)
    through = i32(elf.DIRECT)
    shift = u32(0)
    if (kind >= elf.FIRST_OF_AARCH64) == is_arm:
        for supported, relocation in elf.RELOCATIONS.items():
            if kind == supported:
                form = i32(relocation.form)
                through = i32(relocation.target)
                shift = u32(relocation.shift)
    to = target + u64(addend)
    if through == elf.THROUGH_GOT:
        slot = module.got + 8 * number
        Ptr[u64](Ptr(slot))[0] = target
        to = slot + u64(addend)
    word = Ptr[u32](Ptr(place))
    difference = i64(to - place)
    if form == elf.ADDRESS64 or form == elf.OFFSET64:
        Ptr[u64](Ptr(place))[0] = to if form == elf.ADDRESS64 else u64(difference)
        return 0
    if form == elf.OFFSET32:
        if through == elf.CALL and not is_near(difference):
            difference = i64(stub_of(module, number, target, is_arm) + u64(addend) - place)
        Ptr[i32](word)[0] = i32(difference)
        return 0 if is_near(difference) else i32(DAMAGED)
    if form == elf.BRANCH26:
        steps = difference >> 2
        if steps < -(1 << 25) or steps >= 1 << 25:
            steps = i64(stub_of(module, number, to, is_arm) - place) >> 2
        word[0] = elf.with_branch(word[0], u32(steps))
        return 0
    if form == elf.PAGE21:
        pages = (i64(to & (u64(0) - 4096)) - i64(place & (u64(0) - 4096))) >> 12
        if pages < -(1 << 20) or pages >= 1 << 20:
            return DAMAGED
        word[0] = elf.with_page(word[0], u32(pages))
        return 0
    if form != elf.LOW12:
        return DAMAGED
    word[0] = elf.with_low_bits(word[0], u32(to), shift)
    return 0


@native
def relocate(module: Ptr[Module], is_arm: bool) -> i32:
    """Apply all relocations of loaded sections. Returns 0 or an error."""
    header = Ptr[Header](module.file)
    sections = Ptr[Section](module.file + header.sections)
    for number in range(u64(header.section_count)):
        each = ref(sections)[number]
        if each.kind == RELA and each.info < u32(header.section_count):
            base = module.places[each.info]
            bytes_ = sections[each.info].size
            if base != 0:
                if each.offset & 7 != 0:
                    return DAMAGED
                entries = Ptr[RelocationEntry](module.file + each.offset)
                for position in range(each.size // size_of(RelocationEntry)):
                    entry = ref(entries)[position]
                    symbol_address = local(u64)
                    wide = entry.kind == 1 or entry.kind == 24 or entry.kind == 257 or entry.kind == 260
                    if not fits(entry.offset, u64(8) if wide else u64(4), bytes_):
                        return DAMAGED
                    if u64(entry.symbol) >= module.symbol_count:
                        return DAMAGED
                    status = resolve(module, u64(entry.symbol), symbol_address)
                    if status != 0:
                        return status
                    place = base + entry.offset
                    symbol = u64(entry.symbol)
                    status = relocate_symbol(module, entry.kind, place, symbol, symbol_address[0], entry.addend, is_arm)
                    if status != 0:
                        return status
    return 0


@native
def place_object(module: Ptr[Module]) -> i32:
    """Load the object of a module into memory. Returns 0 or an error."""
    is_arm = machine.value == MACHINES["aarch64"]
    status = check(module, machine.value)
    if status != 0:
        return status
    header = Ptr[Header](module.file)
    ends = local(u64, 3)
    module.places = Ptr[u64](calloc(u64(header.section_count) + 1, 8))
    if module.places == None:
        return NO_MEMORY
    lay_out(module, ends)
    memory = mmap(None, ends[2], _READ | _WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if address(memory) == _FAILED:
        return NO_MEMORY
    module.memory = address(memory)
    module.memory_size = ends[2]
    module.stubs += module.memory
    module.got += module.memory
    sections = Ptr[Section](module.file + header.sections)
    for number in range(u64(header.section_count)):
        if module.places[number] != 0:
            module.places[number] += module.memory - 1
            if sections[number].kind != NOBITS:
                memcpy(Ptr(module.places[number]), module.file + sections[number].offset, sections[number].size)
    status = relocate(module, is_arm)
    if status != 0:
        return status
    mprotect(memory, ends[0], _READ | _EXECUTE)
    mprotect(memory + ends[0], ends[1] - ends[0], _READ)
    return 0
