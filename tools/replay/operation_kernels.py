"""Small kernels for the operations of the language and of the hardware: each shows a group of them in a few lines of code."""

from __future__ import annotations

import numpy as np

import kiln
from kiln import (
    BFloat16,
    Boolean,
    Constexpr,
    Float8E4M3FN,
    Float8E5M2,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint32,
    Uint64,
    cute,
)
from kiln.cute import arch
from kiln.cute.nvgpu import CopyUniversalOp, cpasync, warp
from kiln.cute.runtime import from_dlpack
from kiln.dialects.nvgpu import launch_control, memory, tcgen05
from kiln.dialects.nvgpu.tcgen05_descriptors import instruction_descriptor

BLOCK = 64


def launched(kernel, *kinds, block=BLOCK, cluster=None, n=1024):
    """A case: the kernel on one array of ones for each NumPy type."""

    @cute.jit
    def main(x: cute.Tensor, y: cute.Tensor):
        size = {} if cluster is None else {"cluster": cluster}
        kernel(x, y).launch(grid=2, block=block, **size)

    def call():
        main(*(from_dlpack(np.ones(n, kind), assumed_align=16) for kind in kinds))

    return call


@cute.kernel
def integers(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    a, b = x[t], x[t + 1]
    c = (a + b * 3 - (a >> 2)) ^ (b << 1)
    c += a // b + a % b + (a & b | ~a)
    c += arch.popc(a) + arch.clz(b) + arch.mul_hi(a, b)
    wide = Int64(a) * Int64(b) + Int64(Uint32(a))
    y[t] = c + Int32(wide >> 3) + Int32(a > b) + max(a, b) + min(a, b) + abs(a)


@cute.kernel
def floats(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    a, b = x[t], x[t + 1]
    z = a * b + a / b - a
    z += cute.math.exp(a) + cute.math.log(b) + cute.math.sqrt(a) + cute.math.rsqrt(b)
    z += cute.math.sin(a) + cute.math.cos(b) + cute.math.tanh(a) + cute.math.erf(b)
    z += arch.exp2(a) + arch.rcp_approx(b) + arch.fmax(a, b) + arch.fmin(a, b)
    y[t] = z if a > b else -z


@cute.kernel
def doubles(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    a = Float64(x[t])
    y[t] = Float32(cute.math.exp(a) + cute.math.log(a) + cute.math.sin(a) / cute.math.sqrt(a))


@cute.kernel
def conversions(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    total = Float32(0.0)
    for kind in (Float16, BFloat16, Float8E4M3FN, Float8E5M2, Int8, Uint8, Int16, Int64, Uint64, Boolean):
        total += Float32(x[t].to(kind))
    y[t] = total


@cute.kernel
def vectors(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    wide = cute.zipped_divide(x, (8,))[(None,), t].load()
    out = cute.zipped_divide(y, (8,))[(None,), t]
    narrow = (wide * 2.0 + 1.0).to(Float16).to(Float32)
    top = narrow.reduce(cute.ReductionOp.MAX, 0.0, 0)
    out.store(cute.where(narrow > 1.5, narrow - top, wide))


@cute.kernel
def control(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    total = Int32(0)
    for i in kiln.range(x[t], unroll=4):
        if i % 3 == 0:
            continue
        if i > 50:
            break
        total += i
    while total > 100 and t < 40:
        total -= 7
    for i in kiln.range_constexpr(4):
        total += i * t
    y[t] = total if t != 3 else -total


@cute.kernel
def lanes(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    a = x[t]
    a += arch.shuffle_sync(a, offset=3) + arch.shuffle_sync_up(a, offset=1) + arch.shuffle_sync_down(a, offset=2)
    a += arch.shuffle_sync_bfly(a, offset=16) + arch.warp_reduction_sum(a) + arch.warp_redux_sync(a, "add")
    a += Int32(arch.vote_all_sync(a > 0)) + Int32(arch.vote_any_sync(a > 5)) + Int32(arch.vote_ballot_sync(a > 2))
    arch.sync_warp()
    y[t] = a


@cute.kernel
def barriers(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    shared = cute.make_tensor(arch.alloc_smem(Int32, BLOCK), cute.make_layout(BLOCK))
    shared[t] = x[t]
    arch.sync_threads()
    y[t] = shared[BLOCK - 1 - t]
    arch.barrier(barrier_id=1, number_of_threads=BLOCK)
    arch.fence_acq_rel_cta()
    arch.fence_acq_rel_gpu()


@cute.kernel
def atomics(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    place = y.iterator
    arch.atomic_add(place, x[t])
    arch.atomic_max(place + 1, x[t])
    arch.atomic_and(place + 2, x[t])
    arch.atomic_exch(place + 3, x[t])
    arch.atomic_cas(place + 4, cmp=Int32(0), val=x[t])
    y[5 + t] = arch.load(place + 70, Int32, sem="acquire", scope="gpu")
    arch.store(place + 80, x[t], sem="release", scope="gpu")


@cute.kernel
def mbarriers(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    shared = cute.make_tensor(arch.alloc_smem(Int32, BLOCK), cute.make_layout(BLOCK))
    full = arch.alloc_smem(Int64, 1)
    if t == 0:
        arch.mbarrier_init(full, BLOCK)
        arch.mbarrier_init_fence()
    arch.sync_threads()
    shared[t] = x[t]
    arch.mbarrier_arrive(full)
    arch.mbarrier_wait(full, 0)
    y[t] = shared[BLOCK - 1 - t]


@cute.kernel
def clusters(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    shared = cute.make_tensor(arch.alloc_smem(Int32, BLOCK), cute.make_layout(BLOCK))
    shared[t] = x[t]
    arch.cluster_arrive()
    arch.cluster_wait()
    other = cute.make_tensor(arch.map_dsmem_ptr(shared.iterator, block ^ 1), cute.make_layout(BLOCK))
    y[block * BLOCK + t] = other[t]
    arch.cluster_arrive()
    arch.cluster_wait()


@cute.kernel
def copies(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    shared = cute.make_tensor(arch.alloc_smem(Float16, 8 * BLOCK, alignment=16), cute.make_layout((8, BLOCK)))
    source = cute.zipped_divide(x, (8,))
    target = cute.zipped_divide(y, (8,))
    arriving = cute.make_copy_atom(cpasync.CopyG2SOp(), Float16, num_bits_per_copy=128)
    cute.copy(arriving, source[(None,), t], shared[None, t])
    arch.cp_async_commit_group()
    arch.cp_async_wait_group(0)
    arch.sync_threads()
    atom = cute.make_copy_atom(CopyUniversalOp(), Float16, num_bits_per_copy=128)
    cute.copy(atom, shared[None, BLOCK - 1 - t], target[(None,), t])


def product(kind, shape, accumulator=Float32):
    @cute.kernel
    def matrices(x: cute.Tensor, y: cute.Tensor):
        t, _, _ = arch.thread_idx()
        mma = cute.make_tiled_mma(warp.MmaF16BF16Op(kind, accumulator, shape))
        mine = mma.get_slice(t)
        m, n, k = shape
        outer = cute.make_layout((m, k), stride=(k, 1))
        a = cute.make_tensor(arch.alloc_smem(kind, m * k, alignment=16), outer)
        b = cute.make_tensor(arch.alloc_smem(kind, n * k, alignment=16), cute.make_layout((n, k), stride=(k, 1)))
        for i in kiln.range_constexpr(m * k // 32):
            a[i * 32 + t] = x[i * 32 + t]
        for i in kiln.range_constexpr(n * k // 32):
            b[i * 32 + t] = x[i * 32 + t]
        arch.sync_threads()
        fragments = mma.make_fragment_A(mine.partition_A(a)), mma.make_fragment_B(mine.partition_B(b))
        reading = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4 if k == 16 else 2), kind)
        copies_a = cute.make_tiled_copy_A(reading, mma)
        part = copies_a.get_slice(t)
        cute.copy(copies_a, part.partition_S(a), part.retile(fragments[0]))
        cute.autovec_copy(mine.partition_B(b), fragments[1])
        c = cute.make_rmem_tensor(mine.partition_shape_C((m, n)), accumulator)
        c.fill(0)
        cute.gemm(mma, c, fragments[0], fragments[1], c)
        out = mine.partition_C(cute.make_tensor(y.iterator, cute.make_layout((m, n), stride=(n, 1))))
        cute.autovec_copy(c, out)

    return matrices


@cute.kernel
def assembly(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    y[t] = arch.inline_ptx(
        "lop3.b32 {$w0}, {$r0}, {$r1}, 5, 0x96;", read_only_args=[x[t], x[t + 1]], write_only_types=[Int32]
    )


@cute.kernel
def printing(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = arch.thread_idx()
    if t == 0:
        cute.printf("{} {}", t, x[t])
    y[t] = x[t]


@cute.kernel
def packed(x: cute.Tensor, y: cute.Tensor, factor: Constexpr):
    t, _, _ = arch.thread_idx()
    pair = arch.fma_packed_f32x2((x[t], x[t + 1]), (x[t], x[t]), (factor, factor))
    y[t] = pair[0] + pair[1]


@cute.jit
def run_packed(x: cute.Tensor, y: cute.Tensor):
    packed(x, y, 2.0).launch(grid=1, block=BLOCK)


@cute.kernel
def boxes(load: cute.CopyAtom, x: cute.Tensor, store: cute.CopyAtom, y: cute.Tensor, layout: Constexpr):
    t, _, _ = arch.thread_idx()
    full = arch.alloc_smem(Int64, 1)
    shared = cute.make_tensor(arch.alloc_smem(Float16, cute.cosize(layout), alignment=1024), layout)
    tile = cute.group_modes(shared, 0, 2)
    to, source = cpasync.tma_partition(load, 0, cute.make_layout(1), tile, cute.group_modes(x, 0, 2))
    back, target = cpasync.tma_partition(store, 0, cute.make_layout(1), tile, cute.group_modes(y, 0, 2))
    if t < 32:
        with arch.elect_one():
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
            arch.mbarrier_arrive_and_expect_tx(full, cute.size_in_bytes(Float16, layout))
        cute.copy(load, source, to, tma_bar_ptr=full)
        arch.mbarrier_wait(full, 0)
        cute.copy(store, back, target)
        with arch.elect_one():
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)


@cute.jit
def run_boxes(x: cute.Tensor, y: cute.Tensor):
    layout = cute.make_layout((16, 64), stride=(64, 1))
    load, a = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, (16, 64))
    store, b = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, layout, (16, 64))
    boxes(load, a, store, b, layout).launch(grid=1, block=BLOCK)


@cute.kernel
def tensor_memory(x: cute.Tensor, y: cute.Tensor):
    """One MMA of 128 x 32 x 16 whose accumulator is read by four warps; then a request for another cluster's work."""
    t, _, _ = arch.thread_idx()
    a, b = (cute.make_tensor(arch.alloc_smem(Float16, n * 16, 128), cute.make_layout(n * 16)) for n in (128, 32))
    holder, done = arch.alloc_smem(Int32, 4, 16), arch.alloc_smem(Int64, 1)
    for i in kiln.range_constexpr(16):
        a[t * 16 + i] = x[t * 16 + i]
        if t < 32:
            b[t * 16 + i] = x[t * 16 + i]
    if t < 32:
        tcgen05.tcgen05_alloc(holder.ir_value(), Int32(32).ir_value(), cta_group=1)
        tcgen05.tcgen05_relinquish_alloc_permit(cta_group=1)
    if t == 0:
        arch.mbarrier_init(done, 1)
    arch.fence_proxy("async.shared", space="cta")
    arch.sync_threads()
    address = holder.load()
    if t < 32:
        with arch.elect_one():
            # rows of 8 elements, 8 rows to a core matrix, 128 bytes from one to the next
            operands = [
                tcgen05.tcgen05_matrix_descriptor(each.iterator.ir_value(), 128, 256, "none") for each in (a, b)
            ]
            idesc = Int32(instruction_descriptor("f16", "f16", "f16", "f32", 128, 32)).ir_value()
            no = Boolean(False).ir_value()
            tcgen05.tcgen05_mma(address.ir_value(), *operands, idesc, no, kind="f16", cta_group=1)
            sparse = Int32(instruction_descriptor("f16", "f16", "f16", "f32", 128, 32, sparse=True)).ir_value()
            where = [place.ir_value() for place in (address + 32, address)]
            tcgen05.tcgen05_mma_sp(where[0], *operands, sparse, no, where[1], kind="f16", cta_group=1)
            tcgen05.tcgen05_commit(done.ir_value(), cta_group=1)
    arch.mbarrier_wait(done, 0)
    tcgen05.tcgen05_fence("after_thread_sync")
    loaded = tcgen05.tcgen05_ld((address + (t // 32 << 21)).ir_value(), "32x32b", 32)
    tcgen05.tcgen05_wait("ld")
    words = cute.TensorSSA(loaded, (32,), Int32)
    for i in kiln.range_constexpr(32):
        y[t * 32 + i] = words[i]
    tcgen05.tcgen05_fence("before_thread_sync")
    arch.sync_threads()
    if t < 32:
        tcgen05.tcgen05_dealloc(address.ir_value(), Int32(32).ir_value(), cta_group=1)
    if t == 0:
        arch.mbarrier_arrive_and_expect_tx(done, 16)
        launch_control.clc_try_cancel(holder.ir_value(), done.ir_value())
        arch.mbarrier_wait(done, 1)
        answer = cute.TensorSSA(launch_control.clc_query_cancel(holder.ir_value()), (4,), Int32)
        y[0] = answer[0] + answer[3]
        memory.store_bulk(a.iterator.ir_value(), Int64(4096).ir_value())


I32, F32, F16 = np.int32, np.float32, np.float16
CASES = {
    "integers": launched(integers, I32, I32),
    "floats": launched(floats, F32, F32),
    "doubles": launched(doubles, F32, F32),
    "conversions": launched(conversions, F32, F32),
    "vectors": launched(vectors, F32, F32),
    "control": launched(control, I32, I32),
    "lanes": launched(lanes, I32, I32),
    "barriers": launched(barriers, I32, I32),
    "atomics": launched(atomics, I32, I32),
    "mbarriers": launched(mbarriers, I32, I32),
    "clusters": launched(clusters, I32, I32, cluster=2),
    "copies": launched(copies, F16, F16),
    "boxes": lambda: run_boxes(*(from_dlpack(np.ones((16, 64), F16), assumed_align=16) for _ in range(2))),
    "mma m16n8k16": launched(product(Float16, (16, 8, 16)), F16, F32, block=32),
    "mma m16n8k8": launched(product(Float16, (16, 8, 8)), F16, F32, block=32),
    "tcgen05": launched(tensor_memory, F16, I32, block=128, n=4096),
    "assembly": launched(assembly, I32, I32),
    "printing": launched(printing, I32, I32),
    "packed": lambda: run_packed(*(from_dlpack(np.ones(1024, F32)) for _ in range(2))),
}
