"""The `cute` dialect: what a kernel says that upstream dialects have no word for.

Types, then operations by subject, each beside the function that builds it; all names are here. Operations print in
MLIR's generic form.
"""

from .grid import (
    EVENTS,
    KERNEL,
    BlockDim,
    BlockIdx,
    GridDim,
    LaneIdx,
    Launch,
    ThreadIdx,
    WarpIdx,
    index,
    launch,
)  # fmt: skip
from .memory import (
    AllocRmem,
    AllocSmem,
    Bounds,
    CastMemref,
    CastPtr,
    DynamicSmem,
    IntToPtr,
    Iter,
    Leaf,
    Load,
    PtrAdd,
    PtrToInt,
    Store,
    Through,
    Undef,
    View,
    alloc_rmem,
    alloc_smem,
    bounds,
    cast_memref,
    cast_ptr,
    dynamic_smem,
    int_to_ptr,
    iter_,
    leaf,
    load,
    load_before,
    loads_before,
    ptr_add,
    ptr_to_int,
    store,
    stores_before,
    through,
    undef,
    view,
)  # fmt: skip
from .packing import pack, unpack
from .reports import Assert, Printf, assert_, conversions, printf
from .types import (
    SPACES,
    Cute,
    Memref,
    PointerInfo,
    Ptr,
    element_bits,
    element_bytes,
    info,
    is_memref,
    is_ptr,
    leaf_widths,
    load_dialect,
    memref_type,
    ptr_type,
)  # fmt: skip

OPERATIONS = (
    ThreadIdx, BlockIdx, BlockDim, GridDim, LaneIdx, WarpIdx,
    Launch, Printf, Assert,
    IntToPtr, PtrToInt, PtrAdd, CastPtr, View, Iter, Leaf, CastMemref, Load, Store, Bounds, Through, AllocRmem, AllocSmem,
    DynamicSmem, Undef,
)  # fmt: skip
TYPES = (Ptr, Memref)

__all__ = [
    "EVENTS", "KERNEL", "OPERATIONS", "SPACES", "TYPES", "Cute", "Memref", "PointerInfo", "Ptr", "alloc_rmem", "alloc_smem",
    "assert_", "bounds", "cast_memref", "cast_ptr", "conversions", "dynamic_smem", "element_bits", "element_bytes", "index",
    "info", "int_to_ptr", "is_memref", "is_ptr", "iter_", "launch", "leaf", "leaf_widths", "load",
    "load_before", "load_dialect", "loads_before", "memref_type", "pack", "printf", "ptr_add", "ptr_to_int", "ptr_type", "store",
    "stores_before", "through",
    "undef", "unpack", "view",
]  # fmt: skip
