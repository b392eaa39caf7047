# pyright: reportReturnType=false
"""`libcute_dsl_runtime`: C functions that load exported objects and shared libraries at run time and call them."""

from __future__ import annotations

from ...native import Fn, Library, Ptr, address, extern, i32, i64, local, native, ref, size_of, text, u8, u64
from ...targets.host.elf import SHARED, memory_linker
from ...targets.host.elf.memory_linker import Module
from ...targets.host.libc import calloc, dlopen, dlsym, fclose, free, malloc, memcpy, realloc, strlen

_NOW = 2
_END = 2
_SET = 0
"""SEEK_END, SEEK_SET"""

runtime: Library = Library("cute_dsl_runtime", prefix="CuteDSLRT_", passes=1, opt=1)


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


@native
def destroy(module: Ptr[Module]) -> None:
    """Unload what a module has loaded, and free it."""
    for number in range(module.unload_count):
        Fn[[Ptr], i32](module.unloads[number])(None)
    for number in range(module.library_count):
        dlclose(module.libraries[number])
    if module.memory != 0:
        memory_linker.munmap(Ptr(module.memory), module.memory_size)
    free(module.unloads)
    free(module.libraries)
    free(module.places)
    free(module.file)
    free(module)


@runtime.export
def Module_Create_From_Bytes(result: Ptr[Ptr[Module]], bytes_: Ptr, size: u64, libraries: Ptr[Ptr], count: u64) -> i32:
    """Load a copy of an object, and shared libraries by their paths."""
    if result == None or (bytes_ == None and count == 0) or (count != 0 and libraries == None):
        return memory_linker.INVALID_ARGUMENT
    result[0] = None
    module = Ptr[Module](calloc(1, size_of(Module)))
    if module == None:
        return memory_linker.NO_MEMORY
    status = i32(0)
    module.libraries = Ptr[Ptr](calloc(count + 1, 8))
    if module.libraries == None:
        status = i32(memory_linker.NO_MEMORY)
    else:
        for number in range(count):
            if status == 0:
                library = dlopen(libraries[number], _NOW)
                if library == None:
                    status = i32(memory_linker.CANNOT_READ)
                else:
                    module.libraries[module.library_count] = library
                    module.library_count += 1
    if status == 0 and bytes_ != None:
        module.size = size
        module.file = malloc(size + 1)
        if module.file == None:
            status = i32(memory_linker.NO_MEMORY)
        else:
            memcpy(module.file, bytes_, size)
            status = memory_linker.place_object(module)
    if status != 0:
        destroy(module)
        return status
    result[0] = module
    return 0


@native
def read_file(path: Ptr, size: Ptr[u64]) -> Ptr:
    """Return the contents of a file, or null."""
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
def Module_Load(result: Ptr[Ptr[Module]], path: Ptr) -> i32:
    """Load a file: an object or a shared library."""
    if result == None or path == None:
        return memory_linker.INVALID_ARGUMENT
    result[0] = None
    size = local(u64)
    paths = local(Ptr, 1)
    contents = read_file(path, size)
    if contents == None:
        return memory_linker.CANNOT_READ
    is_library = size[0] >= size_of(memory_linker.Header) and Ptr[memory_linker.Header](contents).kind == SHARED
    status = i32(0)
    if is_library:
        paths[0] = path
        status = Module_Create_From_Bytes(result, None, 0, Ptr[Ptr](paths), 1)
    else:
        status = Module_Create_From_Bytes(result, contents, size[0], None, 0)
    free(contents)
    return status


@native
def symbol_of(module: Ptr[Module], name: Ptr) -> u64:
    """Return the address of a global symbol, or 0."""
    place = local(u64)
    for number in range(module.symbol_count):
        symbol = ref(module.symbols)[number]
        if symbol.info >> 4 == 1 and symbol.section != 0 and strcmp(module.names + u64(symbol.name), name) == 0:
            if memory_linker.resolve(module, number, place) == 0:
                return place[0]
    for number in range(module.library_count):
        place[0] = address(dlsym(module.libraries[number], name))
        if place[0] != 0:
            return place[0]
    return 0


@native
def joined(memory: Ptr, before: Ptr, name: Ptr, after: Ptr) -> None:
    """Write three strings one after another."""
    first = strlen(before)
    second = strlen(name)
    memcpy(memory, before, first)
    memcpy(memory + first, name, second)
    memcpy(memory + first + second, after, strlen(after) + 1)


@runtime.export
def Module_Get_Function(result: Ptr[u64], module: Ptr[Module], name: Ptr) -> i32:
    """Find a function by the prefix that it was exported with."""
    if result == None or module == None or name == None:
        return memory_linker.INVALID_ARGUMENT
    result[0] = 0
    if strlen(name) > 4096:
        return memory_linker.NOT_FOUND
    memory = Ptr(local(u8, 4200))
    joined(memory, text("__kiln_packed_"), name, text(""))
    place = symbol_of(module, memory)
    if place == 0:
        return memory_linker.NOT_FOUND
    joined(memory, text(""), name, text("_Kernel_Module_Unload"))
    unload = symbol_of(module, memory)
    larger = Ptr[u64](realloc(module.unloads, 8 * (module.unload_count + 1)))
    if unload != 0 and larger != None:
        module.unloads = larger
        larger[module.unload_count] = unload
        module.unload_count += 1
    result[0] = place
    return 0


@runtime.export
def Function_Run(function: Ptr, arguments: Ptr[Ptr], count: u64) -> i32:
    """Call a function with pointers to its arguments; the last one is to an int32_t for the status."""
    if function == None or arguments == None or count == 0 or count > 0x7FFFFFFF:
        return memory_linker.INVALID_ARGUMENT
    status = Fn[[Ptr, i32], i32](function)(arguments, i32(count))
    return 0 if status == 0 else i32(memory_linker.CALL_FAILED)


@runtime.export
def Module_Destroy(module: Ptr[Module]) -> i32:
    """Unload a module. Its kernels must have ended."""
    if module == None:
        return memory_linker.INVALID_ARGUMENT
    destroy(module)
    return 0


@native
def error_message(error: i32, names: bool) -> Ptr:
    """Return the name of an error, or its meaning."""
    for number, (name, words) in enumerate(memory_linker.ERRORS.items()):
        if error == number:
            return text(f"CuteDSLRT_Error_{name}") if names else text(words)
    return text("CuteDSLRT_Error_Unknown") if names else text("this is the number of no error")


@runtime.export
def Get_Error_Name(error: i32) -> Ptr:
    """Return the name of an error."""
    return error_message(error, True)


@runtime.export
def Get_Error_String(error: i32) -> Ptr:
    """Return the meaning of an error."""
    return error_message(error, False)
