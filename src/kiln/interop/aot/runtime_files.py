"""The runtime library and header for C programs that load exported code while they run, as `aot_config` finds them.

They are written once for each machine. The static library is native code that Kiln compiles and writes itself, so no
tool is needed, also for another machine.
"""

from __future__ import annotations

import os
import re
import struct
from typing import TYPE_CHECKING

from ...base_dsl import cache, cache_folder
from ...base_dsl.diagnostics import DSLRuntimeError
from ...targets.host import elf, jit
from ...targets.host.elf.memory_linker import ERRORS, machine
from .exporting import version, write_whole
from .objects import processor_of
from .runtime_library import runtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEADER = "CuteDSLRuntime.h"
LIBRARY = "cute_dsl_runtime"
EMPTY = "cuda_dialect_runtime_static"
"""A library that existing link lines name; exported objects need nothing of it."""

_HEADER = """/* Loads objects and shared libraries that Kiln exported, and calls their functions. */
#ifndef CUTE_DSL_RUNTIME_H
#define CUTE_DSL_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
%s
} CuteDSLRT_Error_t;

typedef struct CuteDSLRT_Module CuteDSLRT_Module_t;
typedef struct CuteDSLRT_Function CuteDSLRT_Function_t;

/* The object in some bytes, which are copied, and shared libraries by their paths; either may be missing. */
CuteDSLRT_Error_t CuteDSLRT_Module_Create_From_Bytes(CuteDSLRT_Module_t **module, const unsigned char *bytes, size_t size,
                                                     const char **shared_libs, size_t num_shared_libs);
/* An object or a shared library. */
CuteDSLRT_Error_t CuteDSLRT_Module_Load(CuteDSLRT_Module_t **module, const char *path);
/* By the prefix that it was exported with; it lives as long as the module. */
CuteDSLRT_Error_t CuteDSLRT_Module_Get_Function(CuteDSLRT_Function_t **function, CuteDSLRT_Module_t *module, const char *name);
/* Pointers to the arguments as the wrapper of the header takes them, and one to an int32_t for the wrapper's result. */
CuteDSLRT_Error_t CuteDSLRT_Function_Run(CuteDSLRT_Function_t *function, void **arguments, size_t count);
/* Kernels of the module must have ended. */
CuteDSLRT_Error_t CuteDSLRT_Module_Destroy(CuteDSLRT_Module_t *module);

const char *CuteDSLRT_Get_Error_Name(CuteDSLRT_Error_t error);
const char *CuteDSLRT_Get_Error_String(CuteDSLRT_Error_t error);

#ifdef __cplusplus
}
#endif

#endif
"""

_CMAKE = """# find_package(Kiln): exported kernels as libraries of a project.
#
#   kiln_add_kernel(scale SCRIPT export.py [DEPENDS ...])   # runs `python export.py FOLDER`, which writes FOLDER/scale.o and .h
#   target_link_libraries(program scale)                    # and finds the header
#   target_link_libraries(program Kiln::runtime)            # CuteDSLRuntime.h
get_filename_component(_kiln_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(Kiln_VERSION "@VERSION@")
set(KILN_PYTHON "@PYTHON@" CACHE FILEPATH "The Python that has Kiln")

if(NOT TARGET Kiln::runtime)
  add_library(Kiln::runtime STATIC IMPORTED)
  set_target_properties(Kiln::runtime PROPERTIES
    IMPORTED_LOCATION "@LIBDIR@/lib@LIBRARY@.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_kiln_root}/include"
    INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
endif()

function(kiln_add_kernel name)
  cmake_parse_arguments(PARSE_ARGV 1 kiln "" "SCRIPT" "DEPENDS")
  get_filename_component(script "${kiln_SCRIPT}" ABSOLUTE)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/kiln_${name}")
  file(MAKE_DIRECTORY "${folder}")
  add_custom_command(OUTPUT "${folder}/${name}.o" "${folder}/${name}.h"
    COMMAND "${KILN_PYTHON}" "${script}" "${folder}" DEPENDS "${script}" ${kiln_DEPENDS} VERBATIM)
  set_source_files_properties("${folder}/${name}.o" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  add_library(${name} STATIC "${folder}/${name}.o" "${folder}/${name}.h")
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE C)
  target_include_directories(${name} INTERFACE "${folder}")
  find_package(Threads REQUIRED)
  target_link_libraries(${name} INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
endfunction()
"""


def archive(members: Mapping[str, bytes], symbols: Mapping[str, Sequence[str]]) -> bytes:
    """Return a static library of some files, with an index of their symbols."""

    def member(name: str, data: bytes) -> bytes:
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        return head + data + b"\n" * (len(data) % 2)

    names = [(symbol, name) for name, of_name in symbols.items() for symbol in of_name]
    text = b"".join(symbol.encode() + b"\0" for symbol, _ in names)
    at = 8 + len(member("/", bytes(4 + 4 * len(names)) + text))
    places: dict[str, int] = {}
    body = b""
    for name, data in members.items():
        places[name] = at + len(body)
        body += member(f"{name}/", data)
    index = struct.pack(f">{1 + len(names)}I", len(names), *(places[name] for _, name in names)) + text
    return b"!<arch>\n" + member("/", index) + body


def runtime_archive(host_target: str = "") -> bytes:
    """Return `libcute_dsl_runtime.a` for a machine."""
    processor = processor_of(host_target)
    number = elf.MACHINES[processor[0].partition("-")[0]]
    data = elf.Data(number)
    data.constant(struct.pack("<i", number), 4, machine.symbol)
    objects = [elf.read(jit.object_of(runtime, processor)), data.object()]
    runtime_object = elf.written(elf.linked(objects, runtime.exports))
    return archive({"runtime.o": runtime_object}, {"runtime.o": runtime.exports})


def root() -> str:
    """Return the folder of these files; makes it."""
    folder = os.path.join(cache_folder.lasting_directory(), f"aot-{cache.sources_hash()[:16]}")
    if not os.path.exists(os.path.join(folder, "include", HEADER)):
        _make(os.path.join(folder, "include"))
        errors = ",\n".join(f"  CuteDSLRT_Error_{name} = {number}" for number, name in enumerate(ERRORS))
        write_whole(os.path.join(folder, "include", HEADER), (_HEADER % errors).encode())
    return folder


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as reason:
        raise DSLRuntimeError(
            f"cannot write {folder}: {reason.strerror}", hint="set CUTE_DSL_CACHE_DIR to a folder that can be written"
        ) from None


def include_folder() -> str:
    """Return the folder of the header."""
    return os.path.join(root(), "include")


def library_folder(host_target: str = "") -> str:
    """Return the folder of the static libraries for a machine, by default this one."""
    folder = os.path.join(root(), "lib", processor_of(host_target)[0])
    path = os.path.join(folder, f"lib{LIBRARY}.a")
    if not os.path.exists(path):
        _make(folder)
        write_whole(os.path.join(folder, f"lib{EMPTY}.a"), archive({}, {}))
        write_whole(path, runtime_archive(host_target))
    return folder


def package_folder(name: str) -> str:
    """Return a folder with `lib` and `include` below it, for build systems that look for libraries in a package."""
    folder = os.path.join(root(), name)
    header = os.path.join(folder, "include", HEADER)
    if not os.path.exists(header):  # the last file that is written
        for place in ("lib", "include"):
            _make(os.path.join(folder, place))
        sources = [os.path.join(library_folder(), f"lib{library}.a") for library in (EMPTY, LIBRARY)]
        for source in (*sources, os.path.join(include_folder(), HEADER)):
            with open(source, "rb") as file:
                write_whole(
                    os.path.join(folder, "lib" if source in sources else "include", os.path.basename(source)),
                    file.read(),
                )
    return folder


def _quoted(text: str) -> str:
    """Return a text as it stands between quotes in CMake."""
    return re.sub(r'(["\\$])', r"\\\1", text)


def cmake_folder() -> str:
    """Return the folder in which `find_package(Kiln)` looks."""
    import sys

    folder = os.path.join(root(), "cmake")
    values = {"VERSION": version(), "PYTHON": sys.executable, "LIBDIR": library_folder(), "LIBRARY": LIBRARY}
    text = re.sub(r"@([A-Z]+)@", lambda match: _quoted(values[match[1]]), _CMAKE)
    _make(folder)
    write_whole(os.path.join(folder, "KilnConfig.cmake"), text.encode())
    return folder
