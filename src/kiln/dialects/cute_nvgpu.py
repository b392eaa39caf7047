"""The `cute_nvgpu` dialect: what NVIDIA hardware does beyond arithmetic and plain memory.

As in `cute.py`, this file is the one list of the operations, a docstring is the definition, and the functions at the
end build them by name. All operations are for kernels only unless they say otherwise. "The warp" is the 32 threads
whose linear index in the block differs only in the lowest five bits.
"""

# No `from __future__ import annotations` here: the bindings read the fields' annotations as objects.

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base_dsl.trace import emit, emit_value
from ..mlir import context, ext, ir, require_dialect
from .cute import load_dialect as load_cute

if TYPE_CHECKING:
    from collections.abc import Mapping


class CuteNvgpu(ext.Dialect, name="cute_nvgpu"):
    """Barriers, warps, atomics, asynchronous copies, clusters."""


I1 = ir.IntegerType[1]
I32 = ir.IntegerType[32]
I64 = ir.IntegerType[64]
F32 = ir.F32Type
Pointer = Any
"""A `!cute.ptr`: a constraint cannot name a type of another dialect."""


# --- launching -------------------------------------------------------------------------------------------------------


class DriverLaunch(CuteNvgpu.Operation, name="driver_launch"):
    """`cute.launch` through the CUDA driver: kernel number `index` of the executable, by name `name`. Host functions only;
    made by the NVIDIA target from `cute.launch`, whose operands it has.
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
    index: ir.IntegerAttr
    name: ir.StringAttr


# --- barriers and fences ---------------------------------------------------------------------------------------------


class Barrier(CuteNvgpu.Operation, name="barrier"):
    """Wait at barrier `id` (0 to 15) of the block until `threads` threads, a multiple of 32, have arrived there.

    `threads` 0 means all threads of the block that have not exited. What any of them wrote to memory before is visible
    to all of them after. All threads of a warp arrive together.
    """

    id: ext.Operand[I32]
    threads: ext.Operand[I32]


class BarrierArrive(CuteNvgpu.Operation, name="barrier_arrive"):
    """Arrive at a barrier as `barrier` does, without waiting. `threads` is not 0."""

    id: ext.Operand[I32]
    threads: ext.Operand[I32]


class SyncWarp(CuteNvgpu.Operation, name="sync_warp"):
    """Wait until the threads of the warp whose bits are set in `mask` are here; orders their memory accesses."""

    mask: ext.Operand[I32]


class Fence(CuteNvgpu.Operation, name="fence"):
    """Order memory accesses of this thread, by the PTX name of the fence without its `fence.`.

    For example `acq_rel.gpu`, `proxy.async.shared::cta`, `mbarrier_init.release.cluster`.
    """

    kind: ir.StringAttr


# --- warps -----------------------------------------------------------------------------------------------------------


class Shuffle(CuteNvgpu.Operation, name="shuffle"):
    """The `value` (32 bits) of another thread of the warp; `kind` is `idx`, `up`, `down` or `bfly`.

    Lane l reads lane s: `offset`, l - offset, l + offset or l xor offset. `clamp` holds c in its lowest five bits and a
    segment mask g in bits 8 to 12: for `idx`, s = (l & g) | (offset & ~g). With low = l & g and high = low | (c & ~g),
    a source that is above high (`up`: below high) is replaced by l. All threads of `mask` execute it.
    """

    value: ext.Operand[Any]
    offset: ext.Operand[I32]
    mask: ext.Operand[I32]
    clamp: ext.Operand[I32]
    result: ext.Result[Any]
    kind: ir.StringAttr


class Vote(CuteNvgpu.Operation, name="vote"):
    """Over the threads of `mask`: whether `all` or `any` predicates hold, or all agree (`uni`): an i1.

    `ballot` gives an i32 with the bit of each thread whose predicate holds.
    """

    predicate: ext.Operand[I1]
    mask: ext.Operand[I32]
    result: ext.Result[Any]
    kind: ir.StringAttr


class Redux(CuteNvgpu.Operation, name="redux"):
    """Combine the 32-bit integers (or f32, for `fmin` and `fmax`) of the threads of `mask`.

    `kind`: add, min, max, umin, umax, and, or, xor, fmin, fmax; the last two may be followed by `.abs` and `.NaN`.
    """

    value: ext.Operand[Any]
    mask: ext.Operand[I32]
    result: ext.Result[Any]
    kind: ir.StringAttr


class ElectOne(CuteNvgpu.Operation, name="elect_one"):
    """True in exactly one thread of those of the warp that execute it together."""

    result: ext.Result[I1]


class WarpUniform(CuteNvgpu.Operation, name="warp_uniform"):
    """A value that is the same in all threads of the warp, said to the compiler."""

    value: ext.Operand[I32]
    result: ext.Result[I32]


# --- atomics and ordered accesses ------------------------------------------------------------------------------------


class AtomicRmw(CuteNvgpu.Operation, name="atomic_rmw"):
    """Replace the element at the pointer by its combination with `value`, in one step; the old element.

    `kind`: add, min, max, umin, umax, and, or, xor, exch, inc, dec. Integers of 16, 32 and 64 bits (inc, dec: 32); add,
    min, max and exch also f16, bf16, f32, f64 (of a number and a NaN, the number); add vectors of two f16 or bf16. `order` is relaxed, acquire, release or acq_rel; `scope` cta, cluster, gpu
    or sys.
    """

    pointer: ext.Operand[Pointer]
    value: ext.Operand[Any]
    result: ext.Result[Any]
    kind: ir.StringAttr
    order: ir.StringAttr
    scope: ir.StringAttr


class AtomicCas(CuteNvgpu.Operation, name="atomic_cas"):
    """Write `value` if the element at the pointer equals `compare` (16, 32 or 64 bits); the old element."""

    pointer: ext.Operand[Pointer]
    compare: ext.Operand[Any]
    value: ext.Operand[Any]
    result: ext.Result[Any]
    order: ir.StringAttr
    scope: ir.StringAttr


class OrderedLoad(CuteNvgpu.Operation, name="ordered_load"):
    """The element at the pointer, never cached in a register; `modifiers` are those of PTX `ld`, as `acquire.gpu`.

    Vectors of up to 16 bytes are one access. `L2::evict_last` and its like stand for a policy of the L2 cache.
    """

    pointer: ext.Operand[Pointer]
    result: ext.Result[Any]
    modifiers: ir.StringAttr


class OrderedStore(CuteNvgpu.Operation, name="ordered_store"):
    """Write the element at the pointer, once and here; `modifiers` are those of PTX `st`, as `release.gpu`."""

    pointer: ext.Operand[Pointer]
    value: ext.Operand[Any]
    modifiers: ir.StringAttr


class Prefetch(CuteNvgpu.Operation, name="prefetch"):
    """Bring the cache line of a global address into cache `level` (L1, L2), or a tensor map (`tensormap`)."""

    pointer: ext.Operand[Pointer]
    level: ir.StringAttr


# --- mbarriers -------------------------------------------------------------------------------------------------------
# An mbarrier is 8 bytes of shared memory: a phase parity, the arrivals and the bytes (tx-count) still missing from the
# phase. A phase is complete when neither is missing; then the parity flips and the arrivals start over.


class MbarrierInit(CuteNvgpu.Operation, name="mbarrier_init"):
    """Make an mbarrier that expects `count` arrivals a phase; its first phase has parity 0."""

    pointer: ext.Operand[Pointer]
    count: ext.Operand[I32]


class MbarrierInval(CuteNvgpu.Operation, name="mbarrier_inval"):
    """Give the memory of an mbarrier back to other uses."""

    pointer: ext.Operand[Pointer]


class MbarrierArrive(CuteNvgpu.Operation, name="mbarrier_arrive"):
    """First add `bytes` to the bytes the phase misses, then take `count` from the arrivals it misses.

    `peer` is the rank in the cluster of the block whose mbarrier at the same address is meant; -1: this block's.
    `order` is release or relaxed; `scope` cta or cluster.
    """

    pointer: ext.Operand[Pointer]
    count: ext.Operand[I32]
    bytes: ext.Operand[I32]
    peer: ext.Operand[I32]
    order: ir.StringAttr
    scope: ir.StringAttr


class MbarrierExpectTx(CuteNvgpu.Operation, name="mbarrier_expect_tx"):
    """Add `bytes` to the bytes the phase misses. `peer` as in `mbarrier_arrive`."""

    pointer: ext.Operand[Pointer]
    bytes: ext.Operand[I32]
    peer: ext.Operand[I32]
    scope: ir.StringAttr


class MbarrierTryWait(CuteNvgpu.Operation, name="mbarrier_try_wait"):
    """Whether the phase of parity `phase` is complete; may wait a while for it. Acquires what was released."""

    pointer: ext.Operand[Pointer]
    phase: ext.Operand[I32]
    result: ext.Result[I1]


class MbarrierTestWait(CuteNvgpu.Operation, name="mbarrier_test_wait"):
    """As `mbarrier_try_wait`, without waiting."""

    pointer: ext.Operand[Pointer]
    phase: ext.Operand[I32]
    result: ext.Result[I1]


class MbarrierWait(CuteNvgpu.Operation, name="mbarrier_wait"):
    """Wait until the phase of parity `phase` is complete."""

    pointer: ext.Operand[Pointer]
    phase: ext.Operand[I32]


# --- asynchronous copies ---------------------------------------------------------------------------------------------


class CpAsync(CuteNvgpu.Operation, name="cp_async"):
    """Copy `size` (4, 8 or 16) bytes from global to shared memory later: `source_size` bytes, and zeros for the rest.

    `cache` is `ca`, or `cg` (16 bytes only: past L1). The attribute `hint`, as `L2::evict_last`, says how long lines should
    stay in the L2 cache, `prefetch` how many bytes (64, 128 or 256) around the address may be brought there.
    """

    target: ext.Operand[Pointer]
    source: ext.Operand[Pointer]
    source_size: ext.Operand[I32]
    size: ir.IntegerAttr
    cache: ir.StringAttr


class CpAsyncCommit(CuteNvgpu.Operation, name="cp_async_commit"):
    """This thread's copies since the last one become a group."""


class CpAsyncWait(CuteNvgpu.Operation, name="cp_async_wait"):
    """Wait until at most `count` of this thread's latest groups are not complete."""

    count: ir.IntegerAttr


class CpAsyncMbarrierArrive(CuteNvgpu.Operation, name="cp_async_mbarrier_arrive"):
    """Arrive at an mbarrier when this thread's copies so far are complete; the phase expected this arrival already."""

    pointer: ext.Operand[Pointer]


class CpAsyncBulkCommit(CuteNvgpu.Operation, name="cp_async_bulk_commit"):
    """As `cp_async_commit`, for bulk copies."""


class CpAsyncBulkWait(CuteNvgpu.Operation, name="cp_async_bulk_wait"):
    """As `cp_async_wait`, for bulk copies; with the attribute `read`, until their sources have been read."""

    count: ir.IntegerAttr


# --- clusters --------------------------------------------------------------------------------------------------------


class ClusterIndex(CuteNvgpu.Operation, name="cluster_index", traits=[ext.Pure]):
    """Where the block is in its cluster and its cluster in the grid.

    `which` with `dim` 0, 1, 2: `block_in_cluster_idx`, `block_in_cluster_dim` (blocks of a cluster), `cluster_idx`,
    `cluster_dim` (clusters of the grid); without: `block_idx_in_cluster` (linear), `cluster_size` (blocks).
    """

    result: ext.Result[I32]
    which: ir.StringAttr
    dim: ir.IntegerAttr


class ClusterArrive(CuteNvgpu.Operation, name="cluster_arrive"):
    """Arrive at the cluster's barrier; releases memory, unless it has the attribute `relaxed`."""


class ClusterWait(CuteNvgpu.Operation, name="cluster_wait"):
    """Wait until all threads of the cluster have arrived; acquires memory."""


class MapShared(CuteNvgpu.Operation, name="map_shared", traits=[ext.Pure]):
    """The address in the shared memory of block `rank` of the cluster that corresponds to one in this block's.

    The result is a generic pointer.
    """

    pointer: ext.Operand[Pointer]
    rank: ext.Operand[I32]
    result: ext.Result[Pointer]


# --- arithmetic units ------------------------------------------------------------------------------------------------


class Prmt(CuteNvgpu.Operation, name="prmt", traits=[ext.Pure]):
    """Four bytes chosen from the eight of `low` and `high`: the n-th nibble of `selector` names byte n of the result.

    Bits 0 to 2 of a nibble choose the byte; bit 3 replaces it by eight copies of its sign.
    """

    low: ext.Operand[I32]
    high: ext.Operand[I32]
    selector: ext.Operand[I32]
    result: ext.Result[I32]


class Lop3(CuteNvgpu.Operation, name="lop3", traits=[ext.Pure]):
    """A logical function of three words by its table `lut`: its value for a = 0xF0, b = 0xCC, c = 0xAA."""

    a: ext.Operand[I32]
    b: ext.Operand[I32]
    c: ext.Operand[I32]
    result: ext.Result[I32]
    lut: ir.IntegerAttr


class Approx(CuteNvgpu.Operation, name="approx", traits=[ext.Pure]):
    """A fast f32 function of the hardware, `kind`: rcp, rsqrt, sqrt, ex2, lg2, sin, cos, tanh.

    Subnormals count as zero. Relative error at most 2^-22 for rcp, rsqrt, sqrt, ex2; lg2 absolute 2^-22 where the result is
    small; tanh 2^-11; sin and cos absolute 2^-20.9 in [-pi, pi].
    """

    value: ext.Operand[F32]
    result: ext.Result[F32]
    kind: ir.StringAttr


class PackedF32x2(CuteNvgpu.Operation, name="packed_f32x2", traits=[ext.Pure]):
    """add (a + b), sub, mul or fma (a * b + c) of two f32 at once; `c` is ignored but by fma.

    `rounding` is rn, rz, rm or rp; `ftz` flushes subnormals to zero.
    """

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    c: ext.Operand[Any]
    result: ext.Result[Any]
    kind: ir.StringAttr
    rounding: ir.StringAttr
    ftz: Any


# --- clocks, registers, grids ----------------------------------------------------------------------------------------


class Clock(CuteNvgpu.Operation, name="clock"):
    """A counter: `clock` (cycles, i32), `clock64` (cycles, i64) or `globaltimer` (nanoseconds, i64)."""

    result: ext.Result[Any]
    which: ir.StringAttr


class Nanosleep(CuteNvgpu.Operation, name="nanosleep"):
    """Do nothing for about so many nanoseconds."""

    duration: ext.Operand[I32]


class SetMaxRegister(CuteNvgpu.Operation, name="set_max_register"):
    """Give registers back or ask for more, down or up to `count` (a multiple of 8 in 24 to 256) for each thread.

    All warps of a warpgroup execute it. `action` is `inc` or `dec`.
    """

    count: ir.IntegerAttr
    action: ir.StringAttr


class GridDependency(CuteNvgpu.Operation, name="grid_dependency"):
    """`wait` until the grids this one depends on are complete, or allow (`launch_dependents`) the next to start."""

    action: ir.StringAttr


class DynamicSmemSize(CuteNvgpu.Operation, name="dynamic_smem_size", traits=[ext.Pure]):
    """Bytes of dynamic shared memory of the block, as the launch gave them."""

    result: ext.Result[I32]


# --- tensor cores and their memory accesses --------------------------------------------------------------------------
# All threads of the warp execute these together. Registers are i32; a register holds two 16-bit or four 8-bit elements,
# the first in its lowest bits.


class MmaSync(CuteNvgpu.Operation, name="mma_sync"):
    """D = A B + C of one warp: A is `m` x `k`, B `k` x `n`, C and D `m` x `n`, spread over the lanes as PTX's `mma.sync` says.

    `a_type` and `b_type`: f16, bf16, tf32, f64, s8, u8, e4m3, e5m2. `a` and `b` are vectors of i32 registers (f32 is also
    possible for tf32; f64 for f64), `c` and `result` vectors of elements: f32, f16, i32 or f64. Products are exact; sums
    of f16, bf16, tf32 and 8-bit floats are made in f32 and rounded to the element type of `result` at the end.
    """

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    c: ext.Operand[Any]
    result: ext.Result[Any]
    m: ir.IntegerAttr
    n: ir.IntegerAttr
    k: ir.IntegerAttr
    a_type: ir.StringAttr
    b_type: ir.StringAttr


class LdMatrix(CuteNvgpu.Operation, name="ldmatrix"):
    """Load `count` (1, 2, 4) 8x8 matrices of 16-bit elements from shared memory: a vector of `count` i32 registers.

    Lane 8 j + r gives the address of row r of matrix j, aligned to 16 bytes. Lane l gets elements 2 (l % 4) and the next of
    row l / 4 of each matrix; with the attribute `transpose`, of column l / 4. With the attribute `unpack` (4 or 6; sm_100a and
    later) a row is 16 elements of so many bits without gaps, then padding, and each becomes a byte.
    """

    pointer: ext.Operand[Pointer]
    result: ext.Result[Any]
    count: ir.IntegerAttr


class LdMatrixBytes(CuteNvgpu.Operation, name="ldmatrix_bytes"):
    """Load `count` (1, 2) 16x16 matrices of bytes from shared memory, transposed: a vector of 2 `count` i32 registers.

    Lane 16 j + r gives the address of row r of matrix j, aligned to 16 bytes. Lane l gets of each matrix the bytes in rows
    4 (l % 4) and the next three of column l / 4, then of column l / 4 + 8 (sm_100a and later). `unpack`: see `ldmatrix`.
    """

    pointer: ext.Operand[Pointer]
    result: ext.Result[Any]
    count: ir.IntegerAttr


class StMatrix(CuteNvgpu.Operation, name="stmatrix"):
    """The inverse of `ldmatrix`: store a vector of `count` i32 registers (sm_90 and later)."""

    pointer: ext.Operand[Pointer]
    value: ext.Operand[Any]
    count: ir.IntegerAttr


class StMatrixBytes(CuteNvgpu.Operation, name="stmatrix_bytes"):
    """Store `count` (1, 2, 4) 16x8 matrices of bytes to shared memory, transposed, from a vector of `count` i32 registers.

    Lane 8 j + c gives the address of column c of matrix j, 16 bytes aligned to 16. The bytes of lane l are rows l / 4 of the
    columns 2 (l % 4) and the next, then rows l / 4 + 8 of the same (sm_100a and later).
    """

    pointer: ext.Operand[Pointer]
    value: ext.Operand[Any]
    count: ir.IntegerAttr


class BulkLoad(CuteNvgpu.Operation, name="bulk_load"):
    """Copy `bytes` (a multiple of 16) from global to shared memory later, then take them from what an mbarrier misses.

    Addresses are aligned to 16 bytes. Through the async proxy. One thread executes it.
    """

    target: ext.Operand[Pointer]
    source: ext.Operand[Pointer]
    bytes: ext.Operand[I32]
    mbarrier: ext.Operand[Pointer]


class BulkStore(CuteNvgpu.Operation, name="bulk_store"):
    """Copy `bytes` (a multiple of 16) from shared to global memory later, as part of the thread's current bulk group."""

    target: ext.Operand[Pointer]
    source: ext.Operand[Pointer]
    bytes: ext.Operand[I32]


class Match(CuteNvgpu.Operation, name="match"):
    """The lanes of `mask` whose `value` (i32 or i64) is this lane's (`any`); `all`: all of them if all agree, else none."""

    value: ext.Operand[Any]
    mask: ext.Operand[I32]
    result: ext.Result[I32]
    kind: ir.StringAttr


def load_dialect() -> None:
    """Make the dialect, and `cute`, known to the context."""
    load_cute()
    require_dialect(CuteNvgpu)


_load_once = functools.lru_cache(maxsize=1)(load_dialect)


# --- building --------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _attribute(value: "str | int | bool") -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value, context())
    if isinstance(value, bool):
        return ir.BoolAttr.get(value, context())
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32, context()), value)


def build(name: str, operands: Sequence[ir.Value] = (), **attributes: "str | int | bool | None") -> ir.Operation:
    """An operation without results; attributes that are None are left out."""
    _load_once()
    return emit(f"cute_nvgpu.{name}", (), operands, _attributes(attributes))


def build_value(
    name: str, result: ir.Type, operands: Sequence[ir.Value] = (), **attributes: "str | int | bool | None"
) -> ir.Value:
    """The result of an operation that has one."""
    _load_once()
    return emit_value(f"cute_nvgpu.{name}", result, operands, _attributes(attributes))


def _attributes(given: "Mapping[str, Any]") -> "dict[str, ir.Attribute] | None":
    return {name: _attribute(value) for name, value in given.items() if value is not None} or None
