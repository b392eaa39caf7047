"""Primitives of asynchronous copies: `cp.async`, bulk copies, TMA, and tensor maps in memory; and of bulk stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int16, Int32, Int64, Integer
from ...cute import arch
from ...cute.arch.values import choice, i32, kernel_only
from ...cute.deferred_dialects import nvgpu
from .addresses import absent, far, is_remote, policy, shared, typed
from .names import CpReduceOp, CpReduceType

_WIDE_FIELDS = ("global_address", "global_stride")


def cp_async_shared_global(
    dst: object,
    src: object,
    size: int,
    modifier: object,
    *,
    cp_size: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy 4, 8 or 16 bytes to shared memory later (`cp.async`): `cp_size` bytes are read, the rest is zero."""
    what = "cp_async_shared_global"
    cache = choice("modifier", modifier, ("ca", "cg"))
    if size not in (4, 8, 16) or (cache == "cg" and size != 16):
        raise type_error(f"{what}() of {size!r} bytes with {cache}", "4, 8 or 16 bytes with ca, 16 with cg")
    target = shared(dst, what).ir_value()
    source = far(src, what)
    nvgpu.async_copy.cp_async(target, source, i32(size if cp_size is None else cp_size), size, cache)


def cp_async_commit_group(*, loc: object = None, ip: object = None) -> None:
    """Commit this thread's `cp.async` copies since the last group as a group."""
    arch.cp_async_commit_group()


def cp_async_wait_group(n: int, *, loc: object = None, ip: object = None) -> None:
    """Wait until at most `n` of this thread's groups are pending."""
    arch.cp_async_wait_group(n)


# --- bulk copies ------------------------------------------------------------------------------------------------------


def cp_async_bulk_shared_cluster_global(
    dst_mem: object,
    src_mem: object,
    mbar: object,
    size: object,
    *,
    multicast_mask: object = None,
    l2_cache_hint: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy bytes (a multiple of 16) from global to shared memory later; the mbarrier counts them."""
    what = "cp_async_bulk_shared_cluster_global"
    mask = None if multicast_mask is None else Int16(multicast_mask).ir_value()
    target = shared(dst_mem, what).ir_value()
    barrier = shared(mbar, what).ir_value()
    source = far(src_mem, what)
    nvgpu.async_copy.bulk_load(target, source, i32(size), barrier, mask=mask, policy=policy(l2_cache_hint))


def cp_async_bulk_shared_cluster_shared_cta(
    dst_mem: object, src_mem: object, mbar: object, size: object, *, loc: object = None, ip: object = None
) -> None:
    """Copy bytes from this CTA's shared memory to another CTA's later; the mbarrier there counts them."""
    what = "cp_async_bulk_shared_cluster_shared_cta"
    target = shared(dst_mem, what)
    barrier = shared(mbar, what)
    if not is_remote(target) or not is_remote(barrier):
        raise type_error(f"{what}() takes dst_mem and mbar of a CTA of the cluster", "mapa(address, rank)")
    nvgpu.async_copy.bulk_send(target.ir_value(), shared(src_mem, what).ir_value(), i32(size), barrier.ir_value())


def cp_async_bulk_global_shared_cta(
    dst_mem: object,
    src_mem: object,
    size: object,
    *,
    l2_cache_hint: object = None,
    byte_mask: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy `size` bytes from shared to global memory later, as part of the thread's current bulk group."""
    what = "cp_async_bulk_global_shared_cta"
    if byte_mask is not None:
        raise type_error(f"{what}() with a byte_mask", "Kiln copies whole rows only")
    source = shared(src_mem, what).ir_value()
    nvgpu.async_copy.bulk_store(far(dst_mem, what), source, i32(size), policy=policy(l2_cache_hint))


def st_bulk(addr: object, size: int | Integer, *, init_val: int = 0, loc: object = None, ip: object = None) -> None:
    """Fill `size` bytes (a multiple of 8) of this CTA's shared memory with zeros, from an address aligned to 8 on."""
    what = "st_bulk"
    if init_val != 0:
        raise type_error(f"{what}() with init_val={init_val!r}", "0 is the only value that the hardware stores")
    target = shared(addr, what)
    if is_remote(target):
        raise type_error(f"{what}() of a generic address", "an address in this CTA's shared memory")
    nvgpu.memory.store_bulk(target.ir_value(), Int64(size).ir_value())


def cp_reduce_async_bulk_global_shared_cta(
    dst: object,
    src: object,
    size: object,
    *,
    op: Any = CpReduceOp.ADD,
    type: Any = CpReduceType.BF16,
    noftz: bool = False,
    l2_cache_hint: Any = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Combine `size` bytes of shared memory with global memory later, as part of the thread's current bulk group."""
    what = "cp_reduce_async_bulk_global_shared_cta"
    kind = str(type.value)
    element = {"b32": "u32", "b64": "u64"}.get(kind, kind)
    source = shared(src, what).ir_value()
    how = {"reduction": op.value, "element": element, "policy": policy(l2_cache_hint)}
    nvgpu.async_copy.bulk_store(far(dst, what), source, i32(size), **how)


def cp_async_bulk_prefetch(
    src_mem: object, size: object, *, l2_cache_hint: object = None, loc: object = None, ip: object = None
) -> None:
    """Prefetch bytes (a multiple of 16) of global memory into the L2 cache."""
    source = far(src_mem, "cp_async_bulk_prefetch")
    nvgpu.async_copy.bulk_prefetch(source, i32(size), policy=policy(l2_cache_hint))


def cp_async_bulk_commit_group(*, loc: object = None, ip: object = None) -> None:
    """Commit this thread's bulk copies since the last group as a group."""
    arch.cp_async_bulk_commit_group()


def cp_async_bulk_wait_group(group: int, *, read: bool | None = None, loc: object = None, ip: object = None) -> None:
    """Wait until at most `group` of this thread's bulk groups are pending, or (`read`) have unread sources."""
    arch.cp_async_bulk_wait_group(group, read=read)


# --- TMA --------------------------------------------------------------------------------------------------------------


def prefetch_tensormap(addr: object, *, space: str | None = "const", loc: object = None, ip: object = None) -> None:
    """Prefetch a tensor map. Its address is generic, which serves all spaces: "const", "param" and "generic"."""
    choice("space", space or "generic", ("const", "param", "generic"))
    nvgpu.tma.tensor_map_prefetch(far(addr, "prefetch_tensormap"))


def cp_async_bulk_tensor_shared_cta_global(
    dst_mem: object,
    tma_descriptor: object,
    coordinates: object,
    mbar: object,
    im2col_offsets: object = (),
    *,
    l2_cache_hint: object = None,
    mode: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy the box at `coordinates` (innermost first) of a tensor map to shared memory; the mbarrier counts its bytes.

    `mode`: a tile by default, with `im2col_offsets` pixels; "tile_gather4" copies four rows (sm_100).
    """
    what = "cp_async_bulk_tensor_shared_cta_global"
    _load(what, dst_mem, tma_descriptor, coordinates, mbar, im2col_offsets, l2_cache_hint, mode)


def cp_async_bulk_tensor_shared_cluster_global(
    dst_mem: object,
    tma_descriptor: object,
    coordinates: object,
    mbar: object,
    im2col_offsets: object = (),
    *,
    multicast_mask: object = None,
    l2_cache_hint: object = None,
    mode: object = None,
    group: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy a box to the shared memory of this CTA, or with a mask to all CTAs of the cluster whose bits are set."""
    what = "cp_async_bulk_tensor_shared_cluster_global"
    mask = None if multicast_mask is None else Int16(multicast_mask).ir_value()
    pair = None if group is None else int(choice("group", group, ("cta_1", "cta_2"))[-1])
    # the mbarrier of the even CTA of a pair counts the bytes of both
    how = {"mask": mask, "cta_group": pair, "to_leader": pair == 2}
    _load(what, dst_mem, tma_descriptor, coordinates, mbar, im2col_offsets, l2_cache_hint, mode, **how)


def _load(
    what: str, dst: object, map_: Any, coords: Any, mbar: object, offsets: Any, hint: object, mode: object, **how: Any
) -> None:
    target = shared(dst, what).ir_value()
    barrier = shared(mbar, what).ir_value()
    places = [i32(c) for c in coords]
    pixels = [Int16(c).ir_value() for c in offsets or ()]
    name = _load_mode(what, mode, pixels, ("tile", "im2col", "tile_gather4"))
    how |= {"offsets": pixels, "policy": policy(hint), "gather4": name == "tile_gather4"}
    nvgpu.tma.tma_load(far(map_, what), target, barrier, places, **how)


def _load_mode(what: str, mode: object, pixels: list[ir.Value], modes: tuple[str, ...]) -> str:
    name = choice("mode", mode or ("im2col" if pixels else "tile"), modes)
    if (name == "im2col") != bool(pixels):
        raise type_error(f"{what}() in mode {name} has {len(pixels)} im2col_offsets", "offsets are those of im2col")
    return name


def cp_async_bulk_tensor_global_shared_cta(
    tma_descriptor: object,
    src_mem: object,
    coordinates: Any,
    *,
    l2_cache_hint: object = None,
    mode: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Copy a box from shared memory to the tensor of a map later, as part of the thread's current bulk group.

    `mode`: a tile by default, "im2col" of pixels, "tile_scatter4" of four rows (sm_100).
    """
    what = "cp_async_bulk_tensor_global_shared_cta"
    name = choice("mode", mode or "tile", ("tile", "im2col", "tile_scatter4"))
    source = shared(src_mem, what).ir_value()
    places = [i32(c) for c in coordinates]
    how = {"im2col": name == "im2col", "scatter4": name == "tile_scatter4", "policy": policy(l2_cache_hint)}
    nvgpu.tma.tma_store(far(tma_descriptor, what), source, places, **how)


def cp_async_bulk_tensor_prefetch(
    tma_descriptor: object,
    coordinates: Sequence[object],
    im2col_offsets: Sequence[object] | None = None,
    *,
    l2_cache_hint: object = None,
    mode: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Prefetch the box at `coordinates` (innermost first) of a tensor map into the L2 cache: a tile, or pixels."""
    what = "cp_async_bulk_tensor_prefetch"
    pixels = [Int16(c).ir_value() for c in im2col_offsets or ()]
    _load_mode(what, mode, pixels, ("tile", "im2col"))
    places = [i32(c) for c in coordinates]
    nvgpu.tma.tma_prefetch(far(tma_descriptor, what), places, pixels, policy(l2_cache_hint))


def cp_async_bulk_tensor_reduce(
    tma_descriptor: object,
    src_mem: object,
    red_kind: object,
    coordinates: Sequence[object],
    *,
    l2_cache_hint: object = None,
    mode: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Combine a box of shared memory with the tensor of a map later, as part of the thread's current bulk group.

    `red_kind` is a `TMARedux`; each element is combined atomically. `mode`: a tile by default, or "im2col".
    """
    what = "cp_async_bulk_tensor_reduce"
    reduction = choice("red_kind", red_kind, nvgpu.tma.REDUCTIONS)
    name = choice("mode", mode or "tile", ("tile", "im2col"))
    source = shared(src_mem, what).ir_value()
    how = {"reduction": reduction, "im2col": name == "im2col", "policy": policy(l2_cache_hint)}
    nvgpu.tma.tma_store(far(tma_descriptor, what), source, [i32(c) for c in coordinates], **how)


def tensormap_replace(
    field: object,
    addr: object,
    *,
    new_value: object = None,
    ord: int | None = None,
    new_value_attr: object = None,
    keep_oob_fetch_window: bool = False,
    loc: object = None,
    ip: object = None,
) -> None:
    """Replace a field of a tensor map in global or shared memory (sm_90a); `ord` is the mode, 0 the innermost."""
    kernel_only("tensormap_replace")
    name = choice("field", field, nvgpu.tma.FIELDS)
    value = new_value if new_value is not None else new_value_attr
    if value is None:
        raise type_error("tensormap_replace() needs a new_value")
    absent("tensormap_replace", keep_oob_fetch_window=keep_oob_fetch_window)
    number = (Int64 if name in _WIDE_FIELDS else Int32)(getattr(value, "value", value)).ir_value()
    nvgpu.tma.tensor_map_replace(typed(addr, "tensormap_replace").ir_value(), name, number, ord or 0)
