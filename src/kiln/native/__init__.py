"""Native functions written in Python: typed functions, structures, pointers, atomics, calls of C.

The same front end as for kernels turns them into machine code. `docs/native.md` says how to write them.
"""

from .functions import Library, Unit, extern, inline, native, text
from .pointers import (
    Fn,
    Ptr,
    address,
    assign,
    atomic,
    atomic_load,
    atomic_store,
    compare_exchange,
    leading_zeros,
    local,
    lowest_bit,
    popcount,
    ref,
    truncated,
    volatile,
)
from .types import Array, f32, f64, i8, i16, i32, i64, size_of, struct, u8, u16, u32, u64

__all__ = [
    "Array",
    "Fn",
    "Library",
    "Ptr",
    "Unit",
    "address",
    "assign",
    "atomic",
    "atomic_load",
    "atomic_store",
    "compare_exchange",
    "extern",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "inline",
    "leading_zeros",
    "local",
    "lowest_bit",
    "native",
    "popcount",
    "ref",
    "size_of",
    "struct",
    "text",
    "truncated",
    "u8",
    "u16",
    "u32",
    "u64",
    "volatile",
]
