"""The `cute` dialect: what a kernel says that upstream dialects have no word for.

This file is the one list of its types and operations. An operation's docstring is its definition; the CPU target's
expansion of it is the same definition as code. Operations are created by name (`trace.emit`), which is ten times
cheaper than the generated constructors; the functions at the end do that and are what the rest of Kiln calls.

Two habits of the bindings shape the operands. Every element of a variadic group must have the same type, so operands
of mixed types travel as one `tuple`, made by a `builtin.unrealized_conversion_cast` (see `pack`). Operations print in
MLIR's generic form.
"""

# No `from __future__ import annotations` here: the bindings read the fields' annotations as objects.

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base_dsl.target import register_pointer_type
from ..base_dsl.trace import emit, emit_value
from ..mlir import context, ext, ir, require_dialect

if TYPE_CHECKING:
    from collections.abc import Mapping

SPACES = ("gmem", "smem", "rmem", "generic", "tmem")
"""The address spaces of pointers and memrefs."""


register_pointer_type("!cute.ptr")
register_pointer_type("!cute.memref", lambda type_: info(type_).leaves)


class Cute(ext.Dialect, name="cute"):
    """Tiles, memory and the grid."""


# --- types -----------------------------------------------------------------------------------------------------------


class Ptr(Cute.Type, name="ptr"):
    """`!cute.ptr<f32, "gmem", 16 : i64>`: the address of elements of a type.

    Parameters: element type, address space (`SPACES`), bytes the address is known to be a multiple of.
    """

    element: ir.TypeAttr
    space: ir.StringAttr
    alignment: ir.IntegerAttr


class Memref(Cute.Type, name="memref"):
    """`!cute.memref<f16, "gmem", 16 : i64, "(128,?):(?{i64},1)">`: a pointer and the layout of what it points to.

    Parameters: those of `!cute.ptr`, then the layout as the user sees it. A dynamic leaf is `?` (32 bits) or marked
    `?{i64}` (64 bits; further marks may stand in the braces: `?{i64 div=8}`). The value carries the pointer and the
    dynamic leaves, in the order in which they stand in the layout.
    """

    element: ir.TypeAttr
    space: ir.StringAttr
    alignment: ir.IntegerAttr
    layout: ir.StringAttr


# --- memory effects --------------------------------------------------------------------------------------------------


class _Reads(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op: Any, effects: list[ir.MemoryEffect]) -> None:
        effects.append(ir.MemoryEffect.Read)


class _Writes(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op: Any, effects: list[ir.MemoryEffect]) -> None:
        effects.append(ir.MemoryEffect.Write)


class _Allocates(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op: Any, effects: list[ir.MemoryEffect]) -> None:
        effects.append(ir.MemoryEffect.Allocate)


I1 = ir.IntegerType[1]
I32 = ir.IntegerType[32]
I64 = ir.IntegerType[64]
Integer = I32 | I64


def _reject(op: Any, message: str) -> bool:
    op.location.emit_error(f"'{op.operation.name}' {message}")
    return False


# --- where a thread is -----------------------------------------------------------------------------------------------


class ThreadIdx(Cute.Operation, name="thread_idx", traits=[ext.Pure]):
    """Index of the thread in its block along `dim` (0, 1, 2: x, y, z). Kernels only."""

    result: ext.Result[I32]
    dim: ir.IntegerAttr


class BlockIdx(Cute.Operation, name="block_idx", traits=[ext.Pure]):
    """Index of the block in the grid along `dim`. Kernels only."""

    result: ext.Result[I32]
    dim: ir.IntegerAttr


class BlockDim(Cute.Operation, name="block_dim", traits=[ext.Pure]):
    """Number of threads of a block along `dim`; at least 1. Kernels only."""

    result: ext.Result[I32]
    dim: ir.IntegerAttr


class GridDim(Cute.Operation, name="grid_dim", traits=[ext.Pure]):
    """Number of blocks of the grid along `dim`; at least 1. Kernels only."""

    result: ext.Result[I32]
    dim: ir.IntegerAttr


class LaneIdx(Cute.Operation, name="lane_idx", traits=[ext.Pure]):
    """Position of the thread in its warp of 32: the linear thread index (x fastest) modulo 32. Kernels only."""

    result: ext.Result[I32]


class WarpIdx(Cute.Operation, name="warp_idx", traits=[ext.Pure]):
    """Number of the thread's warp in its block: the linear thread index divided by 32. Kernels only."""

    result: ext.Result[I32]


# --- launching and reporting -----------------------------------------------------------------------------------------


class Launch(Cute.Operation, name="launch"):
    """Run the function `kernel` once for each thread of a grid. Host functions only.

    `kernel` names a `func.func` of the module that has the unit attribute `cute.kernel` and no results. Sizes are
    (x, y, z), 64 bits wide until they are checked; `cluster` is (1, 1, 1) without clusters. `smem` is the number of
    bytes of dynamic shared memory of each block. `stream` is a stream handle (0: the default stream). `arguments` is a
    tuple (see `pack`) of values of the kernel's argument types, and after them for each name in `cute.events`
    (`launch_completion`, `programmatic`) an event to record: its handle, an i64, its flags and whether it triggers at
    the start of blocks, i32. Further attributes of a launch are discardable ones. The launch may run asynchronously on
    a device with streams. A grid that no device takes is a fault, and nothing runs.
    """

    grid_x: ext.Operand[I64]
    grid_y: ext.Operand[I64]
    grid_z: ext.Operand[I64]
    block_x: ext.Operand[I64]
    block_y: ext.Operand[I64]
    block_z: ext.Operand[I64]
    cluster_x: ext.Operand[I64]
    cluster_y: ext.Operand[I64]
    cluster_z: ext.Operand[I64]
    smem: ext.Operand[I64]
    stream: ext.Operand[I64]
    arguments: ext.Operand[Any]
    kernel: ir.FlatSymbolRefAttr

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return _is_pack(op.arguments) or _reject(op, "op takes its arguments as a tuple")


class Printf(Cute.Operation, name="printf"):
    """Print `arguments` (a tuple, see `pack`) by the C format `format`.

    The conversion of each argument suits its type: i32, i64 (pointers too) or f64. The text of one operation is never
    split; it is visible in Python's `sys.stdout` by the time the call of the host function returns.
    """

    arguments: ext.Operand[Any]
    format: ir.StringAttr

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not _is_pack(op.arguments):
            return _reject(op, "op takes its arguments as a tuple")
        wrong = [str(a.type) for a in unpack(op.arguments) if str(a.type) not in ("i32", "i64", "f64")]
        if wrong:
            return _reject(op, f"op takes i32, i64 and f64 arguments, not {wrong[0]}")
        kinds = conversions(op.format.value)
        given = [str(a.type) for a in unpack(op.arguments)]
        if len(kinds) != len(given) or any((k == "f64") != (g == "f64") for k, g in zip(kinds, given, strict=True)):
            return _reject(op, f'op has the format "{op.format.value}" and arguments of types ({", ".join(given)})')
        return True


class Assert(Cute.Operation, name="assert_"):
    """Record a fault if `condition` is false: `message`, a C format for `arguments` (a tuple, see `pack`, of at most 8
    values of type i32, i64 or f64), with the source line, the kernel, the block and the thread. The call of the host
    function raises it.
    """

    condition: ext.Operand[I1]
    arguments: ext.Operand[Any]
    message: ir.StringAttr

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not _is_pack(op.arguments) or len(unpack(op.arguments)) > 8:
            return _reject(op, "op takes its arguments as a tuple of at most 8")
        return True


# --- pointers and memrefs --------------------------------------------------------------------------------------------


class IntToPtr(Cute.Operation, name="int_to_ptr", traits=[ext.Pure]):
    """The pointer with an address."""

    address: ext.Operand[I64]
    result: ext.Result[Ptr]


class PtrToInt(Cute.Operation, name="ptr_to_int", traits=[ext.Pure]):
    """The address of a pointer."""

    pointer: ext.Operand[Ptr]
    result: ext.Result[I64]


class PtrAdd(Cute.Operation, name="ptr_add", traits=[ext.Pure]):
    """The pointer `offset` elements on; the result type has the same element type and space.

    Elements of less than 8 bits are packed; an offset must then move by whole bytes.
    """

    pointer: ext.Operand[Ptr]
    offset: ext.Operand[Integer]
    result: ext.Result[Ptr]


class CastPtr(Cute.Operation, name="cast_ptr", traits=[ext.Pure]):
    """The same address as a pointer to another element type, of another alignment or space."""

    pointer: ext.Operand[Ptr]
    result: ext.Result[Ptr]


class View(Cute.Operation, name="view", traits=[ext.Pure]):
    """A pointer seen through the layout of the result type.

    `narrow` and `wide` are the dynamic leaves of 32 and of 64 bits, each in the order of the layout.
    """

    pointer: ext.Operand[Ptr]
    narrow: Sequence[ext.Operand[I32]]
    wide: Sequence[ext.Operand[I64]]
    result: ext.Result[Memref]


class Iter(Cute.Operation, name="iter", traits=[ext.Pure]):
    """The pointer of a memref."""

    memref: ext.Operand[Memref]
    result: ext.Result[Ptr]


class Leaf(Cute.Operation, name="leaf", traits=[ext.Pure]):
    """Dynamic leaf number `index` of a memref's layout, counted from the left."""

    memref: ext.Operand[Memref]
    result: ext.Result[Integer]
    index: ir.IntegerAttr


class CastMemref(Cute.Operation, name="cast_memref", traits=[ext.Pure]):
    """The same memref under a type of another alignment or another spelling of the layout with as many dynamic leaves."""

    memref: ext.Operand[Memref]
    result: ext.Result[Memref]


class Load(Cute.Operation, name="load", traits=[_Reads]):
    """The element `offset` elements past the pointer, or, for a vector type, as many elements in a row.

    The layout plays no part: `offset` is in memory. Boolean elements take a byte each; elements of 2 and 4 bits are
    packed, lowest bits first, and a vector of them starts and ends on a byte; other elements take whole bytes.
    The discardable attribute `alignment` (bytes) promises more than the element's own alignment.
    """

    source: ext.Operand[Ptr | Memref]
    offset: ext.Operand[Integer]
    result: ext.Result[Any]


class Store(Cute.Operation, name="store", traits=[_Writes]):
    """Write an element, or a vector of elements in a row, `offset` elements past the pointer. As `load`."""

    value: ext.Operand[Any]
    target: ext.Operand[Ptr | Memref]
    offset: ext.Operand[Integer]


class Bounds(Cute.Operation, name="bounds"):
    """The access that follows is to coordinates of a tensor; only in programs that are traced for the sanitizer.

    `pointer` points into the tensor. `numbers` are, for each mode, the lowest coordinate, then for each the highest, then
    for each the extent of the tensor. `write` is whether it writes.
    """

    pointer: ext.Operand[Ptr]
    numbers: Sequence[ext.Operand[I64]]
    write: ir.IntegerAttr


class Through(Cute.Operation, name="through"):
    """The same address, for accesses to shared memory that see it through a swizzle; only in programs that are traced for
    the sanitizer.

    `swizzle` holds its bits, base and shift, counted in bytes, as text (`"3,4,3"`), and is empty for a plain layout. It
    moves addresses relative to `pointer` or, with `absolute`, addresses themselves. `swizzle_name` is the swizzle as the
    program has it.
    """

    pointer: ext.Operand[Ptr]
    swizzle: ir.StringAttr
    absolute: ir.IntegerAttr
    swizzle_name: ir.StringAttr
    result: ext.Result[Ptr]


class AllocRmem(Cute.Operation, name="alloc_rmem", traits=[_Allocates]):
    """Memory of one thread for `count` elements of the result's element type, undefined at first.

    One piece of memory per operation and call of the function: executed again, it gives the same memory.
    """

    result: ext.Result[Ptr]
    count: ir.IntegerAttr


class AllocSmem(Cute.Operation, name="alloc_smem", traits=[_Allocates]):
    """`bytes` bytes shared by the threads of a block, aligned to `alignment`, undefined at first. Kernels only.

    One piece of memory per operation and block: all threads get the same address.
    """

    result: ext.Result[Ptr]
    bytes: ir.IntegerAttr
    alignment: ir.IntegerAttr


class DynamicSmem(Cute.Operation, name="dynamic_smem", traits=[ext.Pure]):
    """The start of the block's dynamic shared memory, whose size the launch gave; aligned to 1024. Kernels only."""

    result: ext.Result[Ptr]


class Undef(Cute.Operation, name="undef", traits=[ext.Pure]):
    """A value nobody may depend on, of any type."""

    result: ext.Result[Any]


OPERATIONS: tuple[type[ext.Operation], ...] = (
    ThreadIdx, BlockIdx, BlockDim, GridDim, LaneIdx, WarpIdx,
    Launch, Printf, Assert,
    IntToPtr, PtrToInt, PtrAdd, CastPtr, View, Iter, Leaf, CastMemref, Load, Store, Bounds, Through, AllocRmem, AllocSmem,
    DynamicSmem, Undef,
)  # fmt: skip
TYPES: tuple[type[ext.Type], ...] = (Ptr, Memref)

KERNEL = "cute.kernel"
"""Unit attribute of a `func.func` that is a kernel."""
EVENTS = "cute.events"
"""On a launch: the names of the events it records."""


def load_dialect() -> None:
    """Make the dialect known to the context."""
    require_dialect(Cute)


# --- what a type says ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PointerInfo:
    """The parameters of a `!cute.ptr` or `!cute.memref`; `layout` is None for a pointer."""

    element: ir.Type
    space: str
    alignment: int
    layout: str | None = None
    leaves: tuple[int, ...] = ()
    """Widths in bits of the dynamic leaves."""


_DYNAMIC_LEAF = re.compile(r"\?(?:\{([^}]*)\})?")


@functools.lru_cache(maxsize=4096)
def leaf_widths(layout: str) -> tuple[int, ...]:
    """Width in bits of each dynamic leaf of a layout string."""
    marks = (found.group(1) or "" for found in _DYNAMIC_LEAF.finditer(layout))
    return tuple(64 if "i64" in mark.split() else 32 for mark in marks)


def is_ptr(type_: ir.Type) -> bool:
    """Whether a type is `!cute.ptr`."""
    return isinstance(type_, Ptr)


def is_memref(type_: ir.Type) -> bool:
    """Whether a type is `!cute.memref`."""
    return isinstance(type_, Memref)


@functools.lru_cache(maxsize=4096)
def info(type_: ir.Type) -> PointerInfo:
    """The parameters of a `!cute.ptr` or `!cute.memref` type."""
    element, space, alignment, *layout = (p.maybe_downcast() for p in type_.params)
    text = layout[0].value if layout else None
    return PointerInfo(element.value, space.value, alignment.value, text, leaf_widths(text) if text else ())


def ptr_type(element: ir.Type, space: str = "generic", alignment: int = 0) -> ir.Type:
    """`!cute.ptr` of an element type; alignment 0 means the element's own."""
    return _ptr_type(element, space, alignment or element_bytes(element))


def memref_type(element: ir.Type, space: str, alignment: int, layout: str) -> ir.Type:
    """`!cute.memref`; alignment 0 means the element's own."""
    return _memref_type(element, space, alignment or element_bytes(element), layout)


@functools.lru_cache(maxsize=4096)
def _ptr_type(element: ir.Type, space: str, alignment: int) -> ir.Type:
    return _make_type(Ptr, element, space, alignment)


@functools.lru_cache(maxsize=4096)
def _memref_type(element: ir.Type, space: str, alignment: int, layout: str) -> ir.Type:
    return _make_type(Memref, element, space, alignment, ir.StringAttr.get(layout, context()))


def _make_type(kind: Any, element: ir.Type, space: str, alignment: int, *rest: ir.Attribute) -> ir.Type:
    if space not in SPACES:
        raise ValueError(f"address space {space!r}: expected one of {', '.join(SPACES)}")
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment}: expected a power of two")
    load_dialect()
    with context():
        made = ir.DynamicType.get(
            kind.type_name,
            [
                ir.TypeAttr.get(element),
                ir.StringAttr.get(space),
                ir.IntegerAttr.get(ir.IntegerType.get_signless(64), alignment),
                *rest,
            ],
        )
    return kind(made)  # the class the bindings give such a type everywhere else


@functools.lru_cache(maxsize=1024)
def element_bits(type_: ir.Type) -> int:
    """Bits an element takes in memory: booleans a byte, 2 and 4 bits packed, tf32 four bytes, others whole bytes."""
    if is_ptr(type_) or str(type_).startswith("!llvm.ptr"):
        return 64
    if isinstance(type_, ir.FloatTF32Type):
        return 32
    width: int = type_.width
    return width if width in (2, 4) else max(8, (width + 7) // 8 * 8)


@functools.lru_cache(maxsize=1024)
def element_bytes(type_: ir.Type) -> int:
    """Alignment of an element in bytes: its size, at least 1, at most 16, rounded down to a power of two."""
    size = min(16, max(1, element_bits(type_) // 8))
    return 1 << (size.bit_length() - 1)


_CONVERSION = re.compile(r"%(?:%|[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(hh|h|ll|l|j|z|t)?([diouxXcpeEfFgGaA]))")


def conversions(format_: str) -> list[str]:
    """The type each conversion of a C format takes: "i32", "i64" or "f64"."""
    kinds: list[str] = []
    for found in _CONVERSION.finditer(format_):
        length, letter = found.groups()
        if letter is None:
            continue
        if letter in "eEfFgGaA":
            kinds.append("f64")
        else:
            kinds.append("i64" if letter == "p" or length in ("ll", "l", "j", "z", "t") else "i32")
    return kinds


# --- building --------------------------------------------------------------------------------------------------------


def pack(values: Sequence[ir.Value]) -> ir.Value:
    """One `tuple` value of values of mixed types, for an operation that takes them; see `unpack`."""
    return emit_value(_CAST, ir.TupleType.get_tuple([v.type for v in values]), values)


_CAST = "builtin.unrealized_conversion_cast"


def unpack(value: ir.Value) -> list[ir.Value]:
    """The values that `pack` was given."""
    return list(_pack_owner(value).operands)


def _pack_owner(value: ir.Value) -> ir.Operation:
    owner = value.owner
    return owner.operation if not isinstance(owner, ir.Block) else owner.owner.operation


def _is_pack(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TupleType) and _pack_owner(value).name == _CAST


@functools.lru_cache(maxsize=256)
def _i32(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32, context()), value)


@functools.lru_cache(maxsize=256)
def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64, context()), value)


@functools.lru_cache(maxsize=1024)
def _segments(*sizes: int) -> ir.Attribute:
    return ir.DenseI32ArrayAttr.get(list(sizes), context())


@functools.lru_cache(maxsize=8)
def _int_type(width: int) -> ir.Type:
    return ir.IntegerType.get_signless(width, context())


def index(which: str, dim: int | None = None) -> ir.Value:
    """`thread_idx`, `block_idx`, `block_dim`, `grid_dim` along `dim`; `lane_idx`, `warp_idx` without."""
    return emit_value(f"cute.{which}", _int_type(32), (), None if dim is None else {"dim": _i32(dim)})


def launch(
    kernel: str,
    grid: Sequence[ir.Value],
    block: Sequence[ir.Value],
    cluster: Sequence[ir.Value],
    smem: ir.Value,
    stream: ir.Value,
    arguments: Sequence[ir.Value],
    attributes: "Mapping[str, ir.Attribute] | None" = None,
) -> ir.Operation:
    """Launch the kernel named `kernel`; sizes are three i64 values each, `smem` and `stream` are i64."""
    return emit(
        "cute.launch",
        (),
        (*grid, *block, *cluster, smem, stream, pack(arguments)),
        {"kernel": ir.FlatSymbolRefAttr.get(kernel), **(attributes or {})},
    )


def launch_parts(op: ir.Operation) -> tuple[list[ir.Value], dict[str, list[ir.Value]]]:
    """The kernel's arguments of a launch, and its events by name: handle, flags, trigger."""
    values = unpack(op.operands[len(op.operands) - 1])
    names = [name.value for name in op.attributes[EVENTS]] if EVENTS in op.attributes else []
    count = len(values) - 3 * len(names)
    return values[:count], {name: values[count + 3 * n : count + 3 * n + 3] for n, name in enumerate(names)}


def printf(format_: str, arguments: Sequence[ir.Value] = ()) -> ir.Operation:
    """Print; arguments are i32, i64 or f64 and suit the format's conversions."""
    return emit("cute.printf", (), (pack(arguments),), {"format": ir.StringAttr.get(format_)})


def assert_(condition: ir.Value, message: str, arguments: Sequence[ir.Value] = ()) -> ir.Operation:
    """Check an i1; `message` is a C format for the arguments."""
    return emit("cute.assert_", (), (condition, pack(arguments)), {"message": ir.StringAttr.get(message)})


def int_to_ptr(address: ir.Value, type_: ir.Type) -> ir.Value:
    """The pointer of type `type_` with an i64 address."""
    return emit_value("cute.int_to_ptr", type_, (address,))


def ptr_to_int(pointer: ir.Value) -> ir.Value:
    """The address as an i64."""
    return emit_value("cute.ptr_to_int", _int_type(64), (pointer,))


def ptr_add(pointer: ir.Value, offset: ir.Value, type_: ir.Type) -> ir.Value:
    """The pointer `offset` elements on; `type_` says what alignment is left."""
    return emit_value("cute.ptr_add", type_, (pointer, offset))


def cast_ptr(pointer: ir.Value, type_: ir.Type) -> ir.Value:
    """The same address under another pointer type."""
    return emit_value("cute.cast_ptr", type_, (pointer,))


def view(pointer: ir.Value, type_: ir.Type, leaves: Sequence[ir.Value] = ()) -> ir.Value:
    """A memref of type `type_`; `leaves` are its dynamic leaves in the order of the layout, of the widths it states."""
    widths = info(type_).leaves
    if len(widths) != len(leaves):
        raise ValueError(f"{type_} has {len(widths)} dynamic leaves, {len(leaves)} were given")
    narrow = [leaf for leaf, width in zip(leaves, widths, strict=True) if width == 32]
    wide = [leaf for leaf, width in zip(leaves, widths, strict=True) if width == 64]
    segments = {"operandSegmentSizes": _segments(1, len(narrow), len(wide))}
    return emit_value("cute.view", type_, (pointer, *narrow, *wide), segments)


def iter_(memref: ir.Value, type_: ir.Type) -> ir.Value:
    """The pointer of a memref, as `type_`."""
    return emit_value("cute.iter", type_, (memref,))


def leaf(memref: ir.Value, index_: int, width: int) -> ir.Value:
    """Dynamic leaf number `index_`, an integer of `width` bits."""
    return emit_value("cute.leaf", _int_type(width), (memref,), {"index": _i32(index_)})


def cast_memref(memref: ir.Value, type_: ir.Type) -> ir.Value:
    """The same memref under another type with the same dynamic leaves."""
    return emit_value("cute.cast_memref", type_, (memref,))


def load(source: ir.Value, offset: ir.Value, type_: ir.Type, alignment: int = 0) -> ir.Value:
    """An element or a vector of elements; `alignment` in bytes where more than the element's is known."""
    return emit_value("cute.load", type_, (source, offset), {"alignment": _i64(alignment)} if alignment else None)


def store(value: ir.Value, target: ir.Value, offset: ir.Value, alignment: int = 0) -> ir.Operation:
    """Write an element or a vector of elements."""
    return emit("cute.store", (), (value, target, offset), {"alignment": _i64(alignment)} if alignment else None)


def bounds(pointer: ir.Value, numbers: Sequence[ir.Value], write: bool) -> ir.Operation:
    """What coordinates the next access is to: lowest, highest, extents."""
    return emit("cute.bounds", (), (pointer, *numbers), {"write": _i32(int(write))})


def through(pointer: ir.Value, swizzle: Sequence[int], absolute: bool, name: str) -> ir.Value:
    """The pointer, whose accesses see shared memory through a swizzle."""
    text = ",".join(map(str, swizzle))
    attributes = {
        "swizzle": ir.StringAttr.get(text, context()), "absolute": _i32(int(absolute)), "swizzle_name": ir.StringAttr.get(name, context())
    }  # fmt: skip
    return emit_value("cute.through", pointer.type, (pointer,), attributes)


def alloc_rmem(count: int, type_: ir.Type) -> ir.Value:
    """Per-thread memory for `count` elements; `type_` is the pointer type of the result."""
    return emit_value("cute.alloc_rmem", type_, (), {"count": _i64(count)})


def alloc_smem(bytes_: int, alignment: int, type_: ir.Type) -> ir.Value:
    """Block-shared memory; `type_` is the pointer type of the result."""
    return emit_value("cute.alloc_smem", type_, (), {"bytes": _i64(bytes_), "alignment": _i64(alignment)})


def dynamic_smem(type_: ir.Type) -> ir.Value:
    """The start of the block's dynamic shared memory."""
    return emit_value("cute.dynamic_smem", type_)


def undef(type_: ir.Type) -> ir.Value:
    """A value nobody may depend on."""
    return emit_value("cute.undef", type_)
