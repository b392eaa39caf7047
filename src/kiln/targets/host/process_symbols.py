"""C functions and variables that this process has, as LLVM finds them."""

from __future__ import annotations

import functools

from ...llvm import binding as llvm


@functools.lru_cache(maxsize=1)
def initialize_llvm() -> None:
    """Make LLVM ready for this machine, and load the libraries whose functions compiled code calls."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for library in ("libm.so.6", "libgcc_s.so.1"):  # what compiled code calls: libm, and 128-bit and half arithmetic
        try:
            llvm.load_library_permanently(library)
        except RuntimeError:
            continue


def has_symbol(name: str) -> bool:
    """Return whether this process has a C function or variable of a name."""
    initialize_llvm()
    return llvm.address_of_symbol(name) is not None
