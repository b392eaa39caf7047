"""`TmemAllocator`: allocates tensor memory of a CTA, or of a pair of CTAs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..base_dsl.diagnostics import runtime_error, type_error
from ..base_dsl.typing import Float32, Int32, Int64, Numeric
from ..cute import arch
from ..cute.arch.smem import alloc_smem
from ..cute.arch.tensor_memory import check_columns
from ..cute.atoms.copying import guarded
from ..cute.layout.composed_layout import ComposedLayout
from ..cute.layout.layout import Layout
from ..cute.tensor.pointer import AddressSpace, Pointer, recast_ptr
from ..cute.tensor.tensor import TracedTensor, make_tensor
from .tmem_columns import compute_tmem_cols_from_layout, get_num_tmem_alloc_cols

__all__ = ["TmemAllocator", "TmemBufferPool", "compute_tmem_cols_from_layout", "get_num_tmem_alloc_cols"]

_ALIGNMENT = 16
_WARP = 32


class MeetingPoint(Protocol):
    """A barrier that threads arrive and wait at, such as `pipeline.NamedBarrier`."""

    def arrive_and_wait(self) -> None:
        """Wait for the others."""


class TmemAllocator:
    """Allocates tensor memory: one warp of the CTA does, and all threads may call the methods.

    The address is handed on in shared memory, at the pointer `alloc_result_dst_smem_ptr` to an Int32. `allocate`, then
    `wait_for_alloc` and `retrieve_ptr` in the threads that use the memory; `free` when all of them are done.
    With `is_two_cta` both CTAs of a pair allocate and free the same columns together; the mbarrier
    `two_cta_tmem_dealloc_mbar_ptr` then keeps each from freeing before its peer is done, and is initialised here.
    Without `alloc_result_dst_smem_ptr` the constructor allocates the shared memory of both, in all threads of the CTA.
    """

    __kiln_static__ = True

    def __init__(
        self,
        alloc_result_dst_smem_ptr: object = None,
        barrier_for_retrieve: MeetingPoint | None = None,
        allocator_warp_id: Int32 | int = 0,
        is_two_cta: bool = False,
        num_allocated_columns: int = 0,
        two_cta_tmem_dealloc_mbar_ptr: Pointer | None = None,
        *,
        arch: str = "sm_100",
        loc: object = None,
        ip: object = None,
    ) -> None:
        holder = alloc_result_dst_smem_ptr
        if holder is None:
            holder = alloc_smem(Int32, 1)
            if is_two_cta and two_cta_tmem_dealloc_mbar_ptr is None:
                two_cta_tmem_dealloc_mbar_ptr = alloc_smem(Int64, 1)
        if not isinstance(holder, Pointer) or holder.memspace is not AddressSpace.smem:
            raise type_error(
                f"alloc_result_dst_smem_ptr of TmemAllocator is {holder}",
                "a pointer to an Int32 in shared memory, where the address is written",
            )
        self._holder = holder
        self._barrier = barrier_for_retrieve
        self._warp = allocator_warp_id
        self._pair = bool(is_two_cta)
        self._columns = num_allocated_columns
        self._done = two_cta_tmem_dealloc_mbar_ptr
        self._arch = arch
        if self._pair:
            if self._done is None:
                raise type_error(
                    "TmemAllocator(is_two_cta=True) has no two_cta_tmem_dealloc_mbar_ptr",
                    "a pointer to an mbarrier (8 bytes) in shared memory: both CTAs of a pair free together",
                )
            self._in_allocator_warp(self._init_done)

    def _init_done(self) -> None:
        with arch.elect_one():
            arch.mbarrier_init(self._done, _WARP)
            arch.mbarrier_init_fence()

    def _in_allocator_warp(self, body: Callable[[], None]) -> None:
        guarded(arch.make_warp_uniform(arch.warp_idx()) == self._warp, body)

    def check_valid_num_columns(self, num_columns: object) -> bool:
        """Return whether a number of columns can be allocated: a power of two from 32 to 512."""
        most = arch.get_max_tmem_alloc_cols(self._arch)
        least = arch.get_min_tmem_alloc_cols(self._arch)
        return isinstance(num_columns, int) and least <= num_columns <= most and num_columns & (num_columns - 1) == 0

    def allocate(self, num_columns: int, *, loc: object = None, ip: object = None) -> None:
        """Allocate columns: a power of two from 32 to 512. Only the allocator's warp does; the others go on."""
        check_columns(num_columns, "TmemAllocator.allocate", self._arch)
        self._in_allocator_warp(lambda: arch.alloc_tmem(num_columns, self._holder, self._pair, arch=self._arch))
        self._columns = num_columns

    def wait_for_alloc(self, *, loc: object = None, ip: object = None) -> None:
        """Wait at the barrier `barrier_for_retrieve` until the memory is allocated."""
        if self._barrier is None:
            raise runtime_error(
                "TmemAllocator has no barrier_for_retrieve to wait at",
                "pass a pipeline.NamedBarrier to its constructor",
            )
        self._barrier.arrive_and_wait()

    def retrieve_ptr(self, dtype: object = Float32, *, loc: object = None, ip: object = None) -> Pointer:
        """Return the pointer to the allocated memory."""
        return arch.retrieve_tmem_ptr(dtype, _ALIGNMENT, self._holder)

    def reserve(self, num_columns: int, *, loc: object = None, ip: object = None) -> TmemBufferPool:
        """Allocate columns, wait for them, and return them as a pool to take tensors from."""
        self.allocate(num_columns)
        self.wait_for_alloc()
        return TmemBufferPool(self.retrieve_ptr(), num_columns)

    def relinquish_alloc_permit(self, *, loc: object = None, ip: object = None) -> None:
        """Give up the right to allocate more, so that other CTAs of the SM can."""
        self._in_allocator_warp(lambda: arch.relinquish_tmem_alloc_permit(self._pair))

    def free(self, tmem_ptr: object, num_columns: object = 0, *, loc: object = None, ip: object = None) -> None:
        """Free memory when all accesses to it are complete: `num_columns` columns, by default what was allocated."""
        columns = num_columns if not isinstance(num_columns, int) or num_columns else self._columns
        if isinstance(columns, int) and columns == 0:
            raise runtime_error("TmemAllocator.free() before allocate()", "pass num_columns, what was allocated")

        def free() -> None:
            if self._pair:
                # the peer learns that this CTA is done: accesses to tensor memory are complete, and memory is not shared
                arch.mbarrier_arrive(self._done, arch.block_idx_in_cluster() ^ 1, scope="cta")
                arch.mbarrier_wait(self._done, 0)
            arch.dealloc_tmem(tmem_ptr, columns, self._pair, arch=self._arch)

        self._in_allocator_warp(free)


class TmemBufferPool:
    """Columns of tensor memory from which tensors are taken, one beside the other."""

    __kiln_static__ = True

    def __init__(self, base_ptr: Pointer, total_cols: int) -> None:
        self._ptr = base_ptr
        self._columns = total_cols
        self._used = 0

    @property
    def base_ptr(self) -> Pointer:
        """The pointer to the first column."""
        return self._ptr

    @property
    def total_cols(self) -> int:
        """How many columns there are."""
        return self._columns

    @property
    def current_offset(self) -> int:
        """How many columns are taken."""
        return self._used

    @property
    def remaining_cols(self) -> int:
        """How many columns are left."""
        return self._columns - self._used

    def allocate(self, size: object, dtype: object = Float32, *, loc: object = None, ip: object = None) -> Pointer:
        """Return a pointer to the next columns: `size` of them, or as many as the layout `size` takes."""
        columns = size if isinstance(size, int) else compute_tmem_cols_from_layout(size, dtype)
        if columns > self.remaining_cols:
            raise type_error(
                f"{columns} columns are taken from a pool of {self._columns}, of which {self._used} are in use",
                "reserve more columns",
            )
        first = self._used
        self._used += columns
        return recast_ptr(recast_ptr(self._ptr, dtype=Float32) + first, dtype=dtype)

    def allocate_tensor(
        self, layout: Layout | ComposedLayout, dtype: type[Numeric] = Float32, *, loc: object = None, ip: object = None
    ) -> TracedTensor:
        """Return a tensor of a layout, as that of `make_fragment_C`, in the next columns."""
        return make_tensor(self.allocate(layout, dtype), layout)
