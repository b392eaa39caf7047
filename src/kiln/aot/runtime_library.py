# pyright: reportReturnType=false
"""`libcute_dsl_runtime`: C functions that load exported objects and shared libraries while a program runs, and call them.

An object is put into memory by a small linker for what Kiln writes: its sections, one place for addresses (GOT) and one jump to
what is far away for each symbol. Every offset of the file is looked at before it is followed.
"""

from __future__ import annotations

from ..native import (
    Array,
    Fn,
    Library,
    Ptr,
    address,
    extern,
    i32,
    i64,
    local,
    native,
    ref,
    size_of,
    struct,
    text,
    u8,
    u16,
    u32,
    u64,
)
from ..targets.host.elf import ALLOC, EXECUTE, MACHINES, NOBITS, RELA, RELOCATABLE, SHARED, SYMTAB, WRITE
from ..targets.host.libc import calloc, dlopen, dlsym, fclose, free, malloc, memcpy, realloc, strlen

SUCCESS, INVALID_ARGUMENT, CANNOT_READ, NOT_AN_OBJECT, OTHER_MACHINE, DAMAGED, UNKNOWN_SYMBOL, NO_MEMORY, NOT_FOUND, CALL_FAILED = range(10)  # fmt: skip
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
"""Their names and what they mean, by number."""

_PAGE = 65536
_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE_ANONYMOUS, _FAILED = 34, (1 << 64) - 1
_NOW = 2
_STUB = 16
_END, _SET = 2, 0
"""Of fseek."""


@struct
class Header:
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
class Section:
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
class Symbol:
    name: u32
    info: u8
    other: u8
    section: u16
    value: u64
    size: u64


@struct
class Relocation:
    offset: u64
    kind: u32
    symbol: u32
    addend: i64


@struct
class Module:
    """What was loaded: an object, or libraries."""

    file: Ptr
    size: u64
    memory: u64
    memory_size: u64
    places: Ptr[u64]
    """Where each section lies; 0: nowhere."""
    got: u64
    stubs: u64
    symbols: Ptr[Symbol]
    symbol_count: u64
    names: Ptr
    names_size: u64
    libraries: Ptr[Ptr]
    library_count: u64
    unloads: Ptr[u64]
    """Functions that give back what functions have loaded."""
    unload_count: u64


runtime = Library("cute_dsl_runtime", prefix="CuteDSLRT_", passes=1, opt=1)
machine = Library("machine", prefix="kiln_").variable("machine", i32)
"""ELF's number of the machine that this is compiled for; who makes the archive writes it."""


@extern
def mmap(where: Ptr, bytes_: u64, protection: i32, flags: i32, file: i32, offset: i64) -> Ptr: ...


@extern
def mprotect(where: Ptr, bytes_: u64, protection: i32) -> i32: ...


@extern
def munmap(where: Ptr, bytes_: u64) -> i32: ...


@extern
def dlclose(library: Ptr) -> i32: ...


@extern
def strcmp(a: Ptr, b: Ptr) -> i32: ...


@extern
def fopen(path: Ptr, mode: Ptr) -> Ptr: ...


@extern
def fread(target: Ptr, size: u64, count: u64, file: Ptr) -> u64: ...


@extern
def fseek(file: Ptr, offset: i64, whence: i32) -> i32: ...


@extern
def ftell(file: Ptr) -> i64: ...


# --- putting an object into memory -----------------------------------------------------------------------------------


@native
def fits(offset: u64, bytes_: u64, size: u64) -> bool:
    return offset <= size and bytes_ <= size - offset


@native
def rounded(number: u64, alignment: u64) -> u64:
    return (number + alignment - 1) & (u64(0) - alignment)


@native
def check(module: Ptr[Module], machine: i32) -> i32:
    """Whether all that the headers name lies in the file; finds the symbols."""
    size, header = module.size, Ptr[Header](module.file)
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
    """To the memory of a kind: 0 code, 1 constants, 2 what changes."""
    if flags & ALLOC == 0:
        return False
    if flags & WRITE != 0:
        return kind == 2
    return kind == (0 if flags & EXECUTE != 0 else 1)


@native
def lay_out(module: Ptr[Module], ends: Ptr[u64]) -> None:
    """Give each section its place, counted from the start of the memory; and where each kind of memory ends."""
    header = Ptr[Header](module.file)
    sections, at = Ptr[Section](module.file + header.sections), u64(0)
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
def resolve(module: Ptr[Module], number: u64, found: Ptr[u64]) -> i32:
    """The address of a symbol."""
    symbol, header = ref(module.symbols)[number], Ptr[Header](module.file)
    if symbol.section == 0xFFF1:
        found[0] = symbol.value
        return 0
    if symbol.section != 0:
        if symbol.section >= header.section_count:
            return DAMAGED
        place = module.places[symbol.section]
        found[0] = place + symbol.value
        return 0 if place != 0 else i32(DAMAGED)
    name = module.names + u64(symbol.name)
    found[0] = 0
    if number == 0:
        return 0
    found[0] = address(dlsym(None, name))
    return i32(UNKNOWN_SYMBOL) if found[0] == 0 and symbol.info >> 4 != 2 else i32(0)


@native
def is_near(difference: i64) -> bool:
    return difference == i64(i32(difference))


@native
def stub_of(module: Ptr[Module], number: u64, target: u64, is_arm: bool) -> u64:
    """A jump to a target that is far away."""
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
def relocate_x86(module: Ptr[Module], kind: u32, place: u64, number: u64, target: u64, addend: i64) -> i32:
    value, to = Ptr(place), target
    if kind == 1:
        Ptr[u64](value)[0] = target + u64(addend)
        return 0
    if kind == 9 or kind == 41 or kind == 42:
        to = module.got + 8 * number
        Ptr[u64](Ptr(to))[0] = target
    difference = i64(to + u64(addend) - place)
    if kind == 4 and not is_near(difference):
        difference = i64(stub_of(module, number, target, False) + u64(addend) - place)
    if kind == 24:
        Ptr[i64](value)[0] = difference
        return 0
    if (kind != 2 and kind != 4 and kind != 9 and kind != 41 and kind != 42) or not is_near(difference):
        return DAMAGED
    Ptr[i32](value)[0] = i32(difference)
    return 0


@native
def relocate_arm(module: Ptr[Module], kind: u32, place: u64, number: u64, target: u64, addend: i64) -> i32:
    word, to = Ptr[u32](Ptr(place)), target + u64(addend)
    if kind == 257:
        Ptr[u64](Ptr(place))[0] = to
        return 0
    if kind == 260:
        Ptr[u64](Ptr(place))[0] = to - place
        return 0
    if kind == 261:
        Ptr[i32](Ptr(place))[0] = i32(i64(to - place))
        return 0 if is_near(i64(to - place)) else i32(DAMAGED)
    if kind == 282 or kind == 283:
        steps = i64(to - place) >> 2
        if steps < -(1 << 25) or steps >= 1 << 25:
            steps = i64(stub_of(module, number, to, True) - place) >> 2
        word[0] = (word[0] & 0xFC000000) | (u32(steps) & 0x3FFFFFF)
        return 0
    if kind == 311 or kind == 312:
        to = module.got + 8 * number
        Ptr[u64](Ptr(to))[0] = target
    if kind == 275 or kind == 311:
        pages = (i64(to & (u64(0) - 4096)) - i64(place & (u64(0) - 4096))) >> 12
        if pages < -(1 << 20) or pages >= 1 << 20:
            return DAMAGED
        word[0] = (word[0] & 0x9F00001F) | ((u32(pages) & 3) << 29) | (((u32(pages) >> 2) & 0x7FFFF) << 5)
        return 0
    shift = u32(0)
    if kind == 284:
        shift = u32(1)
    elif kind == 285:
        shift = u32(2)
    elif kind == 286 or kind == 312:
        shift = u32(3)
    elif kind == 299:
        shift = u32(4)
    elif kind != 277 and kind != 278:
        return DAMAGED
    word[0] = (word[0] & 0xFFC003FF) | (((u32(to) & 4095) >> shift) << 10)
    return 0


@native
def relocate(module: Ptr[Module], is_arm: bool) -> i32:
    header = Ptr[Header](module.file)
    sections = Ptr[Section](module.file + header.sections)
    for number in range(u64(header.section_count)):
        each = ref(sections)[number]
        if each.kind == RELA and each.info < u32(header.section_count):
            base, bytes_ = module.places[each.info], sections[each.info].size
            if base != 0:
                if each.offset & 7 != 0:
                    return DAMAGED
                entries = Ptr[Relocation](module.file + each.offset)
                for position in range(each.size // size_of(Relocation)):
                    entry, found = ref(entries)[position], local(u64)
                    wide = entry.kind == 1 or entry.kind == 24 or entry.kind == 257 or entry.kind == 260
                    if not fits(entry.offset, u64(8) if wide else u64(4), bytes_):
                        return DAMAGED
                    if u64(entry.symbol) >= module.symbol_count:
                        return DAMAGED
                    status = resolve(module, u64(entry.symbol), found)
                    if status != 0:
                        return status
                    place, symbol = base + entry.offset, u64(entry.symbol)
                    if is_arm:
                        status = relocate_arm(module, entry.kind, place, symbol, found[0], entry.addend)
                    else:
                        status = relocate_x86(module, entry.kind, place, symbol, found[0], entry.addend)
                    if status != 0:
                        return status
    return 0


@native
def place_object(module: Ptr[Module]) -> i32:
    """Put the object of a module into memory."""
    is_arm = machine.value == MACHINES["aarch64"]
    status = check(module, machine.value)
    if status != 0:
        return status
    header, ends = Ptr[Header](module.file), local(u64, 3)
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


# --- what programs call ----------------------------------------------------------------------------------------------


@native
def give_back(module: Ptr[Module]) -> None:
    for number in range(module.unload_count):
        Fn[[Ptr], i32](module.unloads[number])(None)
    for number in range(module.library_count):
        dlclose(module.libraries[number])
    if module.memory != 0:
        munmap(Ptr(module.memory), module.memory_size)
    free(module.unloads)
    free(module.libraries)
    free(module.places)
    free(module.file)
    free(module)


@runtime.export
def Module_Create_From_Bytes(made: Ptr[Ptr[Module]], bytes_: Ptr, size: u64, libraries: Ptr[Ptr], count: u64) -> i32:
    """Load an object, of which a copy is kept, and shared libraries by their paths."""
    if made == None or (bytes_ == None and count == 0) or (count != 0 and libraries == None):
        return INVALID_ARGUMENT
    made[0] = None
    module = Ptr[Module](calloc(1, size_of(Module)))
    if module == None:
        return NO_MEMORY
    status = i32(0)
    module.libraries = Ptr[Ptr](calloc(count + 1, 8))
    if module.libraries == None:
        status = i32(NO_MEMORY)
    else:
        for number in range(count):
            if status == 0:
                library = dlopen(libraries[number], _NOW)
                if library == None:
                    status = i32(CANNOT_READ)
                else:
                    module.libraries[module.library_count] = library
                    module.library_count += 1
    if status == 0 and bytes_ != None:
        module.size = size
        module.file = malloc(size + 1)
        if module.file == None:
            status = i32(NO_MEMORY)
        else:
            memcpy(module.file, bytes_, size)
            status = place_object(module)
    if status != 0:
        give_back(module)
        return status
    made[0] = module
    return 0


@native
def read_file(path: Ptr, size: Ptr[u64]) -> Ptr:
    """The contents of a file; null if it cannot be read."""
    file = fopen(path, text("rb"))
    if file == None:
        return None
    fseek(file, 0, _END)
    length = ftell(file)
    fseek(file, 0, _SET)
    contents = Ptr(None)
    if length >= 0:
        contents = malloc(u64(length) + 1)
    if contents != None:
        size[0] = fread(contents, 1, u64(length), file)
    fclose(file)
    return contents


@runtime.export
def Module_Load(made: Ptr[Ptr[Module]], path: Ptr) -> i32:
    """Load a file: an object or a shared library."""
    if made == None or path == None:
        return INVALID_ARGUMENT
    made[0] = None
    size, paths = local(u64), local(Ptr, 1)
    contents = read_file(path, size)
    if contents == None:
        return CANNOT_READ
    is_library = size[0] >= size_of(Header) and Ptr[Header](contents).kind == SHARED
    status = i32(0)
    if is_library:
        paths[0] = path
        status = Module_Create_From_Bytes(made, None, 0, Ptr[Ptr](paths), 1)
    else:
        status = Module_Create_From_Bytes(made, contents, size[0], None, 0)
    free(contents)
    return status


@native
def symbol_of(module: Ptr[Module], name: Ptr) -> u64:
    """The address of a symbol that others see; 0: there is none."""
    found = local(u64)
    for number in range(module.symbol_count):
        symbol = ref(module.symbols)[number]
        if symbol.info >> 4 == 1 and symbol.section != 0 and strcmp(module.names + u64(symbol.name), name) == 0:
            if resolve(module, number, found) == 0:
                return found[0]
    for number in range(module.library_count):
        found[0] = address(dlsym(module.libraries[number], name))
        if found[0] != 0:
            return found[0]
    return 0


@native
def joined(memory: Ptr, before: Ptr, name: Ptr, after: Ptr) -> None:
    first, second = strlen(before), strlen(name)
    memcpy(memory, before, first)
    memcpy(memory + first, name, second)
    memcpy(memory + first + second, after, strlen(after) + 1)


@runtime.export
def Module_Get_Function(made: Ptr[u64], module: Ptr[Module], name: Ptr) -> i32:
    """The function of a name (the prefix it was exported with)."""
    if made == None or module == None or name == None:
        return INVALID_ARGUMENT
    made[0] = 0
    if strlen(name) > 4096:
        return NOT_FOUND
    memory = Ptr(local(u8, 4200))
    joined(memory, text("__kiln_packed_"), name, text(""))
    found = symbol_of(module, memory)
    if found == 0:
        return NOT_FOUND
    joined(memory, text(""), name, text("_Kernel_Module_Unload"))
    unload = symbol_of(module, memory)
    larger = Ptr[u64](realloc(module.unloads, 8 * (module.unload_count + 1)))
    if unload != 0 and larger != None:
        module.unloads = larger
        larger[module.unload_count] = unload
        module.unload_count += 1
    made[0] = found
    return 0


@runtime.export
def Function_Run(function: Ptr, arguments: Ptr[Ptr], count: u64) -> i32:
    """Call a function with pointers to its arguments, the last one to an int32_t for the status."""
    if function == None or arguments == None or count == 0 or count > 0x7FFFFFFF:
        return INVALID_ARGUMENT
    status = Fn[[Ptr, i32], i32](function)(arguments, i32(count))
    return 0 if status == 0 else i32(CALL_FAILED)


@runtime.export
def Module_Destroy(module: Ptr[Module]) -> i32:
    """Give back what was loaded. Kernels that run must have ended."""
    if module == None:
        return INVALID_ARGUMENT
    give_back(module)
    return 0


@native
def told(error: i32, names: bool) -> Ptr:
    for number, (name, words) in enumerate(ERRORS.items()):
        if error == number:
            return text(f"CuteDSLRT_Error_{name}") if names else text(words)
    return text("CuteDSLRT_Error_Unknown") if names else text("this is the number of no error")


@runtime.export
def Get_Error_Name(error: i32) -> Ptr:
    return told(error, True)


@runtime.export
def Get_Error_String(error: i32) -> Ptr:
    return told(error, False)
