"""TMA: tensor maps, and copies of boxes, which `runtime/tma.py` carries out.

A tensor map is a pointer to a record (`runtime/tensor_maps.py`) in the frame of the host function that encodes it,
which outlives the launches that it makes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....dialects import cute, nvgpu
from ....dialects.nvgpu.tma import FIELDS, REDUCTIONS
from ....hardware.tensor_maps import ELEMENTS
from ....mlir import ir
from ...lowering.builder import Builder, int_type
from ...lowering.expansion import Handlers
from ..expand import Expander
from ..runtime import tensor_maps, tma
from ..runtime.record_access import block_of, leave
from ..sanitizer.hooks import hooks_of
from .cluster import peer
from .sync import fence
from .warp import lane_of, meet

HANDLERS = Handlers()


def refused_copy(why: int, what: str) -> tuple[str, str]:
    """Return the message and hint for a copy that `runtime/tma.py` refused with a code."""
    more = why >> 8 & 0xFFFFFF
    other = why >> 32
    return {
        tma.NOT_A_MAP: (
            f"{what}: not a tensor map: the address points to something else",
            "pass the map that the host encoded, or a copy of its 128 bytes",
        ),
        tma.RANK: (f"{what}: the tensor map has {more} modes", f"give {more} coordinates")
        if more
        else (
            f"{what}: the tensor map was edited, and there was none before",
            "copy one there before the edits (init_tensormap_from_atom, copy_tensormap), or replace all its fields",
        ),
        tma.ALIGNMENT: (
            f"{what}: the address in shared memory is {more} bytes past a multiple of 128",
            "allocate tiles of such copies with an alignment of 128 bytes, or of 1024 with a swizzle",
        ),
        tma.IM2COL: (f"{what}: offsets of pixels, and the tensor map is a tiled one", "encode it with a box of pixels"),
        tma.REDUCTION: (
            f"{what}: there is no such reduction of {list(ELEMENTS)[min(more, len(ELEMENTS) - 1)]}",
            "add takes u32, s32, u64, f32, f16, bf16; min and max no f32; inc and dec u32; and, or, xor integers",
        ),
        tma.ELEMENT: (
            f"{what}: the tensor map has an interleaved layout (16b, 32b), or is stored to and has elements with "
            "padding, which the CPU target does not copy",
            "encode it with interleave none; store packed elements without padding",
        ),
        tma.PADDED: (
            f"{what}: the box starts at {other} in the contiguous mode, whose elements of 4 or 6 bits have padding in "
            "shared memory",
            "start at a multiple of 128 elements",
        ),
        tma.ROWS: (
            f"{what}: four rows of a tensor map of {more} modes, whose boxes have {other} rows",
            "a map of two modes with boxes of one row: gather4 and scatter4 take the rows by their numbers",
        ),
        tma.START: (
            f"{what}: the box starts at {other} in the contiguous mode, whose elements have {more} bits: {other * more / 8:g} "
            "bytes from the "
            "tensor's start, and a GPU stops where that is no multiple of 16",
            f"start at a multiple of {128 // max(more, 1)} elements; threads copy what lies elsewhere",
        ),
        tma.ROOM: (
            f"{what}: the box takes {more} bytes of shared memory, and the block has {other} from its address on",
            "allocate all of it; with a swizzle rows lie at least a span of 32, 64 or 128 bytes apart",
        ),
        tma.RECEIVER: (f"{what}: the mask names blocks that a cluster of {more} does not have", "set only their bits"),
    }[why & 0xFF]


# --- maps ------------------------------------------------------------------------------------------------------------


@HANDLERS.expands(nvgpu.tma.TensorMapAddress)
def _address(_x: Expander, op: nvgpu.tma.TensorMapAddress, _b: Builder) -> ir.Value:
    return op.map


@HANDLERS.expands(nvgpu.tma.TensorMapPrefetch, nvgpu.tma.TmaPrefetch)
def _prefetch(_x: Expander, _op: nvgpu.tma.TensorMapPrefetch | nvgpu.tma.TmaPrefetch, _b: Builder) -> None:
    pass  # caches are not modelled


@HANDLERS.calls(nvgpu.tma.TensorMapReplace, "map", "field", "ordinal", "value")
def replace(
    x: Expander, op: ir.Operation, b: Builder, map_: ir.Value, field: str, ordinal: int, value: ir.Value
) -> None:
    """Replace a field of a map in memory."""
    x.frame_of(op)
    wide = value if value.type == int_type(64) else b.value("arith.extsi", int_type(64), (value,))
    hooks_of(x, op).edit(b, map_)
    operands = [map_, b.i32(FIELDS.index(field)), b.i32(ordinal), wide]
    why = x.call(b, "kiln_cpu_tensor_map_replace", operands, int_type(32))
    _may_fail(x, op, b, b.value("arith.extui", int_type(64), (why,)), "tensor_map_replace")


@HANDLERS.calls(nvgpu.tma.TensorMapPublish, "target", "source")
def publish(x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value) -> None:
    """Copy a map to global memory. Every lane copies it on arrival, so that none does after others have continued."""
    first = b.if_(b.compare("eq", lane_of(x, b), 0))
    hooks_of(x, op).publish(first, target, source)
    words = [b.load(int_type(64), b.byte_gep(source, 8 * n)) for n in range(tensor_maps.BYTES // 8)]
    for n, word in enumerate(words):
        b.store(word, b.byte_gep(target, 8 * n))
    fence(b, "acq_rel.gpu")
    leave(b, meet(x, op, b, "tensor_map_publish", b.i32(-1), []))


@HANDLERS.expands(nvgpu.tma.TensorMapRelease, nvgpu.tma.TensorMapAcquire)
def _order(x: Expander, op: nvgpu.tma.TensorMapRelease | nvgpu.tma.TensorMapAcquire, b: Builder) -> None:
    way = "release" if isinstance(op, nvgpu.tma.TensorMapRelease) else "acquire"
    hooks_of(x, op).fence(b, f"proxy.tensormap::generic.{way}.{op.scope}")
    fence(b, op.scope)


# --- copies ----------------------------------------------------------------------------------------------------------


def _may_fail(x: Expander, op: ir.Operation, b: Builder, why: ir.Value, what: str) -> None:
    """End the thread with a fault if a code is not 0."""
    site = x.module.site(op, "tensor map", what, x.function.name, ("i64",))
    failed = b.if_(b.compare("ne", why, 0))
    x.fault(failed, site, [why])
    x.end(failed)


def _numbers(x: Expander, op: ir.Operation, b: Builder, values: Sequence[ir.Value], width: int, count: int) -> ir.Value:
    """Return numbers in memory for a call to read, padded with zeros."""
    memory = x.at_entry(op.location).alloca(int_type(width), count)
    for n in range(count):
        b.store(values[n] if n < len(values) else b.const(int_type(width), 0), b.byte_gep(memory, n * width // 8))
    return memory


def _places(
    x: Expander, op: ir.Operation, b: Builder, coordinates: Sequence[ir.Value], offsets: Sequence[ir.Value]
) -> list[ir.Value]:
    places = [
        _numbers(x, op, b, coordinates, 32, tensor_maps.MODES),
        _numbers(x, op, b, offsets, 16, tensor_maps.MODES - 2),
    ]
    return [*places, b.i32(len(coordinates))]


def load(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    map_: ir.Value,
    target: ir.Value,
    mbarrier: ir.Value,
    coordinates: Sequence[ir.Value],
    offsets: Sequence[ir.Value] = (),
    mask: ir.Value | None = None,
    *,
    gathers: bool = False,
    cta_group: int = 1,
) -> None:
    """Load a box, or four rows, to shared memory of this block, or of the blocks in `mask` (i16)."""
    x.function.copies = True
    wide = b.i32(-1) if mask is None else b.value("arith.extui", int_type(32), (mask,))
    places = _places(x, op, b, coordinates, offsets)
    hooks = hooks_of(x, op)
    hooks.box(b, map_, target, mbarrier, places, "load", wide, cta_group)
    way = tma.GATHER4 if gathers else tma.PIXELS if offsets else tma.TILE
    operands = [x.frame_of(op), map_, target, mbarrier, *places, b.i32(way), wide, b.i32(cta_group)]
    _may_fail(x, op, b, x.call(b, "kiln_cpu_tma_load", operands, int_type(64)), "TMA load")
    hooks.mbarrier_after(b, mbarrier)


def store(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    map_: ir.Value,
    source: ir.Value,
    coordinates: Sequence[ir.Value],
    reduction: str = "",
    im2col: bool = False,
    scatters: bool = False,
) -> None:
    """Store a box, or four rows, to global memory, or reduce a box into global memory."""
    x.function.copies = True
    kind = REDUCTIONS.index(reduction) + 1 if reduction else 0
    x.function.adds_floats |= reduction == "add"  # of what type, the tensor map says
    places = _places(x, op, b, coordinates, ())
    hooks_of(x, op).box(b, map_, source, None, places, "reduce" if reduction else "store")
    way = tma.GATHER4 if scatters else tma.PIXELS if im2col else tma.TILE
    operands = [x.frame_of(op), map_, source, *places, b.i32(way), b.i32(kind)]
    what = f"TMA reduction {reduction}" if reduction else "TMA store"
    _may_fail(x, op, b, x.call(b, "kiln_cpu_tma_store", operands, int_type(64)), what)


@HANDLERS.expands(nvgpu.tma.TmaLoad)
def _load(x: Expander, op: nvgpu.tma.TmaLoad, b: Builder) -> None:
    mbarrier = op.mbarrier
    many = op.mask if op.multicast else None
    if op.to_leader:
        rank = block_of(b, x.frame_of(op)).load("rank")
        mbarrier = peer(x, op, b, mbarrier, b.binary("andi", rank, b.i32(~1)))
    load(
        x,
        op,
        b,
        op.map,
        op.target,
        mbarrier,
        cute.unpack(op.coordinates),
        cute.unpack(op.offsets),
        many,
        gathers=bool(op.gather4),
        cta_group=op.cta_group or 1,
    )


@HANDLERS.expands(nvgpu.tma.TmaStore)
def _store(x: Expander, op: nvgpu.tma.TmaStore, b: Builder) -> None:
    reduction = op.reduction if op.reduction is not None else ""
    store(x, op, b, op.map, op.source, cute.unpack(op.coordinates), reduction, op.im2col, bool(op.scatter4))
