"""TMA descriptors that kernels edit: a copy of an atom's descriptor in shared or global memory, for tensors that the
host does not know.

Copies see a descriptor through a proxy of its own. Whoever changes one in global memory releases it; whoever uses it
acquires it first, also in the same warp. `kiln.utils.TensorMapManager` does all of it in the right order.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.trace import emit_value
from ...base_dsl.typing import Int32, Int64, Integer
from ...hardware.tensor_maps import PTX_ELEMENTS, SWIZZLES
from ..arch.values import i32, kernel_only, pointer
from ..arch.warp import elect_one
from ..deferred_dialects import cute, effects, nvgpu
from ..layout.int_tuple import flatten_to_tuple
from ..tensor.pointer import AddressSpace, Pointer, element_bits, load_vector, recast_ptr, store_vector
from .access import memory
from .tensor_map import extents
from .tma_atom import tma_trait
from .tma_ops import KernelMap

if TYPE_CHECKING:
    from .tensor_map import TensorMapFacts

MAP_BYTES = 128


def _map_pointer(value: object, what: str, *spaces: AddressSpace) -> Pointer:
    """Return a pointer to a tensor map in one of some memories."""
    if not isinstance(value, Pointer):
        raise type_error(
            f"{what} takes a pointer to a tensor map, got {type(value).__name__}",
            "tensor.iterator, or the pointer of TensorMapManager.get_tensormap_ptr",
        )
    if value.memspace not in (*spaces, AddressSpace.generic):
        names = " or ".join(map(str, spaces))
        raise type_error(f"{what} takes a tensor map in {names}, got one in {value.memspace}")
    return value


def copy_tensormap(tma_atom: object, tensormap_ptr: object, *, loc: object = None, ip: object = None) -> None:
    """Copy the TMA descriptor of an atom, 128 bytes, to memory where a kernel edits it. One thread calls it.

    The descriptor of an atom that a kernel made is written field by field and released to copies that acquire it
    (sm_90a): by each thread that calls it if the address depends on the thread's index, else by one of a warp.

    Args:
        tma_atom: the atom.
        tensormap_ptr: where to, in shared or global memory, at a multiple of 128 bytes.
    """
    kernel_only("copy_tensormap")
    to = _map_pointer(tensormap_ptr, "copy_tensormap", AddressSpace.smem, AddressSpace.gmem)
    to = recast_ptr(to, None, Int64)
    trait = tma_trait(tma_atom, "copy_tensormap")
    if isinstance(trait.map, KernelMap):
        with contextlib.nullcontext() if _differs_by_thread(to.ir_value()) else elect_one():
            _write_map(to, trait.facts, trait.map)
            nvgpu.tma.tensor_map_release()
        return
    of = Pointer(trait.address(), Int64, AddressSpace.generic, MAP_BYTES)
    for word in range(0, MAP_BYTES // 8, 2):
        store_vector(to, word, load_vector(of, word, 2))


def _differs_by_thread(value: ir.Value) -> bool:
    """Return whether a value is computed from what differs in each thread, such as its index."""
    todo = [value]
    seen = set[ir.Value]()
    while todo:
        each = todo.pop()
        if each in seen or isinstance(each.owner, ir.Block):
            continue
        seen.add(each)
        operation = each.owner.operation
        if cute.AllocRmem.of(operation) is not None:  # each thread has its own, often with the same contents
            continue
        if effects.varies(operation.name) == "thread":
            return True
        if operation.name != nvgpu.warp.WarpUniform.OPERATION_NAME:
            todo += operation.operands
    return False


def _write_map(to: Pointer, facts: TensorMapFacts, of: KernelMap) -> None:
    """Write all fields of a tensor map, on memory that is zeros before."""
    zeros = emit_value("vector.from_elements", Int64.vector_type(2), [Int64(0).ir_value()] * 2)
    for word in range(0, MAP_BYTES // 8, 2):
        store_vector(to, word, zeros)
    map_ = to.ir_value()

    def set_field(field: str, value: object, ordinal: int = 0) -> None:
        nvgpu.tma.tensor_map_replace(map_, field, value, ordinal)

    set_field("global_address", of.base)
    set_field("rank", i32(facts.rank - 1))
    for mode, size in enumerate(of.sizes):
        set_field("box_dim", i32(facts.box[mode]), mode)
        set_field("global_dim", i32(Int64._make(size)), mode)
        set_field("element_stride", i32(1), mode)
    for mode, stride in enumerate(of.strides):
        set_field("global_stride", stride, mode)
    set_field("elemtype", i32(PTX_ELEMENTS.index(facts.element)))
    for field in ("interleave_layout", "fill_mode"):
        set_field(field, i32(0))
    wide = facts.swizzle == "128b_32b"
    set_field("swizzle_mode", i32(list(SWIZZLES).index("128b" if wide else facts.swizzle)))
    if wide:
        set_field("swizzle_atomicity", i32(1))


def update_tma_descriptor(
    tma_atom: object, gmem_tensor: object, tma_desc_ptr: object, *, loc: object = None, ip: object = None
) -> None:
    """Make a TMA descriptor in memory that of another tensor. Needs sm_90a or later.

    All threads of a warp call it, and one of them writes.

    Args:
        tma_atom: the atom that the descriptor was copied from.
        gmem_tensor: the other tensor, with the modes, the element type and the contiguous mode of the atom's; address,
            shape and strides (multiples of 16 bytes) may differ. A descriptor of unsigned integers, Uint8 say, also
            takes a tensor of narrower elements, of which several make one of its own.
        tma_desc_ptr: the descriptor, in shared or global memory.
    """
    kernel_only("update_tma_descriptor")
    trait = tma_trait(tma_atom, "update_tma_descriptor")
    tensor = memory(gmem_tensor, "the tensor of a tensor map", AddressSpace.gmem)
    where = _map_pointer(tma_desc_ptr, "update_tma_descriptor", AddressSpace.smem, AddressSpace.gmem)
    if trait.facts.im2col:
        raise type_error(
            "update_tma_descriptor takes atoms of tiles, got one of pixels (im2col), whose coordinates count in the extents of its images",
            "make another atom of make_im2col_tma_atom on the host",
        )
    wide = element_bits(trait.value_type)
    narrow = element_bits(tensor.element_type)
    whole = trait.facts.shared_bits == trait.facts.bits and wide % narrow == 0
    raw = issubclass(trait.value_type, Integer) and not trait.value_type.signed and whole
    if tensor.element_type is not trait.value_type and not raw:
        raise type_error(
            f"a tensor map of {trait.value_type.__name__} elements is to become one of {tensor.element_type.__name__}",
            "an update changes address, shape and strides: make another atom",
        )
    modes = len(flatten_to_tuple(tensor.shape))
    if max(mode for group in trait.facts.modes for mode in group) >= modes:
        raise type_error(
            f"a tensor map of {trait.facts.rank} modes is to become one of {tensor}",
            "the tensor has the modes of the one that the atom was made with; leave none out that is 1",
        )
    sizes, strides, _ = extents(trait.facts, tensor)
    if wide != narrow:
        sizes[0] = Int32(Int64(sizes[0]) * narrow // wide)
    # all is computed before a thread is chosen: it is the same in all of them
    address = tensor.iterator.toint()
    changes = [("global_address", Int64(address).ir_value(), 0)]
    changes += [("global_dim", i32(size), mode) for mode, size in enumerate(sizes)]
    changes += [("global_stride", Int64(stride).ir_value(), mode) for mode, stride in enumerate(strides)]
    map_ = pointer(where, "update_tma_descriptor")
    with elect_one():
        for field, value, mode in changes:
            nvgpu.tma.tensor_map_replace(map_, field, value, mode)


def cp_fence_tma_desc_release(
    tma_desc_global_ptr: object, tma_desc_shared_ptr: object, *, loc: object = None, ip: object = None
) -> None:
    """Copy a TMA descriptor from shared to global memory, and release it to copies that acquire it. A warp calls it.

    Needs sm_90 or later.

    Args:
        tma_desc_global_ptr: where copies read it, in global memory.
        tma_desc_shared_ptr: where it was edited, in shared memory.
    """
    kernel_only("cp_fence_tma_desc_release")
    to = _map_pointer(tma_desc_global_ptr, "cp_fence_tma_desc_release", AddressSpace.gmem)
    of = _map_pointer(tma_desc_shared_ptr, "cp_fence_tma_desc_release", AddressSpace.smem)
    nvgpu.tma.tensor_map_publish(to.ir_value(), of.ir_value())


def fence_tma_desc_release(*, loc: object = None, ip: object = None) -> None:
    """Release what this thread wrote to tensor maps in global memory, to copies of the GPU that acquire them.

    Needs sm_90 or later.
    """
    kernel_only("fence_tma_desc_release")
    nvgpu.tma.tensor_map_release()


def fence_tma_desc_acquire(tma_desc_ptr: object, *, loc: object = None, ip: object = None) -> None:
    """Acquire what was released to the TMA descriptor at `tma_desc_ptr` in global memory: later copies see it.

    Needs sm_90 or later.
    """
    kernel_only("fence_tma_desc_acquire")
    where = _map_pointer(tma_desc_ptr, "fence_tma_desc_acquire", AddressSpace.gmem)
    nvgpu.tma.tensor_map_acquire(where.ir_value())
