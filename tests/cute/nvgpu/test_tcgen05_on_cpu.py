"""MMAs and copies of `tcgen05` on the CPU target: small GEMMs of integers, which are exact, against numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import Float16, Float32, Int32, Int64, TFloat32, Uint8, const_expr, cute, pipeline, utils
from kiln.cute.nvgpu import CtaGroup, OperandMajorMode, tcgen05
from kiln.cute.runtime import from_dlpack
from kiln.utils import blockscaled_layout, sm100

K, MN = OperandMajorMode.K, OperandMajorMode.MN
THREADS = 128


@cute.struct
class Storage:
    done: cute.struct.MemRange[Int64, 1]
    holder: Int32


@cute.jit
def begin(columns: kiln.Constexpr):
    """Allocate shared memory for a barrier, and tensor memory."""
    smem = utils.SmemAllocator()
    storage = smem.allocate(Storage)
    assert storage.done._size == len(storage.done) == 1  # libraries ask for it
    tmem = utils.TmemAllocator(storage.holder.ptr, barrier_for_retrieve=pipeline.NamedBarrier(1, THREADS))
    if cute.arch.warp_idx() == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(storage.done.data_ptr(), 1)
    cute.arch.mbarrier_init_fence()
    tmem.allocate(columns)
    cute.arch.sync_threads()
    tmem.wait_for_alloc()
    return smem, tmem, storage.done.data_ptr(), tmem.retrieve_ptr(Float32)


@cute.jit
def store_accumulators(mma: Any, acc: Any, c: cute.Tensor, load_op: kiln.Constexpr):
    """Copy accumulators of a tile to global memory."""
    tidx, _, _ = cute.arch.thread_idx()
    tile = acc[(None, None), 0, 0]
    atom = cute.make_copy_atom(load_op, mma.op.acc_dtype)
    load = tcgen05.make_tmem_copy(atom, tile).get_slice(tidx)
    target = load.partition_D(c)
    registers = cute.make_rmem_tensor(target.shape, mma.op.acc_dtype)
    cute.copy(load, load.partition_S(tile), registers)
    cute.arch.fence_view_async_tmem_load()
    cute.autovec_copy(registers, target)


@cute.jit
def fill(tile: cute.Tensor, source: cute.Tensor, rows: kiln.Constexpr, depth: kiln.Constexpr):
    """Copy (rows, K) to the operand ((MN, K) of an MMA, rest of MN, rest of K, stages) in shared memory."""
    tidx, _, _ = cute.arch.thread_idx()
    of_call = cute.size(tile, mode=[0, 1])
    for row in range(tidx, rows, THREADS):
        for k in range(depth):
            tile[(row, k % of_call), 0, k // of_call, 0] = source[row, k]


def dense(
    ab: Any,
    acc: Any,
    shape: tuple[int, int],
    majors: Any,
    load_op: Any,
    *,
    from_tmem: bool = False,
    staged: bool = False,
) -> Any:
    """Return a function C = A B^T with one tile, of two instructions along K.

    With `staged` the accumulator is the second of two stages, at a dynamic index, and C and D are slices of their own.
    """
    in_smem = kiln.Float32 if ab is TFloat32 else ab

    @cute.kernel
    def kernel(mma: cute.TiledMma, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, la: Any, lb: Any):
        tidx, _, _ = cute.arch.thread_idx()
        smem, tmem, done, pointer = begin(512)
        b_tile = smem.allocate_tensor(in_smem, lb.outer, 1024, lb.inner)
        fill(b_tile, b, shape[1], la.depth)
        stages = cute.append(mma.partition_shape_C(shape), 2)
        accumulators = cute.make_tensor(cute.recast_ptr(pointer, dtype=acc), mma.make_fragment_C(stages).layout)
        stage = tidx // THREADS + 1 if const_expr(staged) else 0
        acc_tile, acc_again = accumulators[None, None, None, stage], accumulators[None, None, None, stage]
        if const_expr(from_tmem):
            a_operand = mma.make_fragment_A(mma.partition_shape_A((shape[0], la.depth)))
            columns = tcgen05.find_tmem_tensor_col_offset(accumulators)
            a_operand = cute.make_tensor(cute.recast_ptr(pointer + columns, dtype=ab), a_operand.layout)
            words = cute.recast_tensor(a_operand[(None, None), 0, 0], Float32)
            atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(la.depth // 4)), Float32)
            both = cute.make_tensor(words.iterator, cute.make_layout((128, la.depth // 2), stride=(65536, 1)))
            store = tcgen05.make_tmem_copy(atom, both).get_slice(tidx)
            target = store.partition_D(both)
            registers = cute.make_rmem_tensor(store.partition_S(cute.make_identity_tensor(both.shape)).shape, Float32)
            halves = cute.recast_tensor(registers, ab)
            for k in range(la.depth):
                halves[k] = a[tidx, k]
            cute.copy(store, registers, target)
            cute.arch.fence_view_async_tmem_store()
        else:
            a_tile = smem.allocate_tensor(in_smem, la.layout.outer, 1024, la.layout.inner)
            fill(a_tile, a, shape[0], la.depth)
            a_operand = mma.make_fragment_A(a_tile)[None, None, None, 0]
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        if cute.arch.warp_idx() == 0:
            cute.gemm(mma, acc_tile, a_operand, mma.make_fragment_B(b_tile)[None, None, None, 0], acc_again)
            with cute.arch.elect_one():
                tcgen05.commit(done)
        cute.arch.mbarrier_wait(done, 0)
        store_accumulators(mma, acc_tile, c, load_op)
        cute.arch.sync_threads()
        tmem.relinquish_alloc_permit()
        tmem.free(pointer)

    @cute.jit
    def launch(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        source = tcgen05.OperandSource.TMEM if from_tmem else tcgen05.OperandSource.SMEM
        mma = sm100.make_trivial_tiled_mma(ab, *majors, acc, CtaGroup.ONE, shape, source)
        tile = (*shape, 2 * mma.shape_mnk[2])
        la = sm100.make_smem_layout_a(mma, tile, ab, 1)
        lb = sm100.make_smem_layout_b(mma, tile, ab, 1)
        kernel(mma, a, b, c, Given(la, tile[2]), lb).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))

    return launch


class Given:
    """A layout and the elements along K, known when compiling."""

    __kiln_static__ = True

    def __init__(self, layout: Any, depth: int) -> None:
        self.layout, self.depth = layout, depth


def arrays(rng: Any, shape: tuple[int, int], depth: int, kinds: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    a, b = (rng.integers(-3, 4, (rows, depth)).astype(kinds[0]) for rows in shape)
    return a, b, np.zeros(shape, kinds[1])


LD, x = tcgen05.Ld32x32bOp, tcgen05.Repetition


@pytest.mark.parametrize(
    ("ab", "acc", "shape", "majors", "load_op"),
    [
        (Float16, Float32, (128, 64), (K, K), LD(x.x32)),
        (Float16, Float32, (64, 32), (MN, K), tcgen05.Ld16x256bOp(x.x4)),
        (Float16, Float16, (128, 32), (K, MN), LD(x.x16, tcgen05.Pack.PACK_16b_IN_32b)),
        (TFloat32, Float32, (128, 32), (MN, MN), LD(x.x16)),
        (kiln.Int8, Int32, (128, 32), (K, K), LD(x.x32)),
    ],
    ids=["f16", "m64", "f16 sums", "tf32 mn", "i8"],
)
def test_gemm(ab: Any, acc: Any, shape: tuple[int, int], majors: Any, load_op: Any) -> None:
    depth = {Float16: 32, TFloat32: 16}.get(ab, 64)
    kinds = {TFloat32: np.float32, Float16: np.float16, kiln.Int8: np.int8}[ab], np.dtype(acc.__name__.lower())
    a, b, c = arrays(np.random.default_rng(0), shape, depth, kinds)
    given = [from_dlpack(array, assumed_align=16) for array in (a, b, c)]
    dense(ab, acc, shape, majors, load_op)(*given)
    assert np.array_equal(c, (a.astype(np.float32) @ b.astype(np.float32).T).astype(c.dtype))


def test_c_and_d_are_slices_at_one_dynamic_stage() -> None:
    a, b, c = arrays(np.random.default_rng(0), (128, 64), 32, (np.float16, np.float32))
    given = [from_dlpack(array, assumed_align=16) for array in (a, b, c)]
    dense(Float16, Float32, (128, 64), (K, K), LD(x.x32), staged=True)(*given)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


def test_a_from_tensor_memory() -> None:
    a, b, c = arrays(np.random.default_rng(0), (128, 32), 32, (np.float16, np.float32))
    given = [from_dlpack(array, assumed_align=16) for array in (a, b, c)]
    dense(Float16, Float32, (128, 32), (K, K), LD(x.x32), from_tmem=True)(*given)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


# --- scale factors ---------------------------------------------------------------------------------------------------


def scaled(ab: Any, sf: Any, vector: int, n: int, fields: bool) -> Any:
    """Return a function C = (A SFA) (B SFB)^T with one tile, of 4 instructions along K, operands as bytes.

    With `fields` scale factors are set as fields of each instruction, else they are passed beside operands.
    """

    @cute.jit
    def fill_scales(tile: cute.Tensor, source: cute.Tensor, rows: kiln.Constexpr):
        tidx, _, _ = cute.arch.thread_idx()
        chunk = cute.make_layout(((32, 4, 2), (4, 4)), stride=((16, 4, 512 * (source.shape[1] // 4)), (1, 512)))
        plain = cute.make_tensor(tile.iterator, chunk)
        for row in range(tidx, rows, THREADS):
            for q in range(source.shape[1]):
                plain[row, q] = source[row, q]

    @cute.kernel
    def kernel(
        mma: cute.TiledMma, a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor,
        given: Any,
    ):  # fmt: skip
        la, lb, lsa, lsb = given.layout
        tile, shape = given.depth, given.depth[:2]
        smem, tmem, done, pointer = begin(512)
        a_tile = smem.allocate_tensor(ab, la.outer, 1024, la.inner)
        b_tile = smem.allocate_tensor(ab, lb.outer, 1024, lb.inner)
        scales = [smem.allocate_tensor(sf, layout, 128) for layout in (lsa, lsb)]
        fill(cute.recast_tensor(a_tile, Uint8), a, shape[0], a.shape[1])
        fill(cute.recast_tensor(b_tile, Uint8), b, shape[1], b.shape[1])
        fill_scales(scales[0], sfa, shape[0])
        fill_scales(scales[1], sfb, shape[1])
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        acc = cute.make_tensor(pointer, mma.make_fragment_C(mma.partition_shape_C(shape)).layout)
        columns = tcgen05.find_tmem_tensor_col_offset(acc)
        factors = []
        for name, layout in (("sfa", lsa), ("sfb", lsb)):
            make = getattr(blockscaled_layout, f"make_tmem_layout_{name}")
            found = make(mma, tile, vector, cute.slice_(layout, (None, None, None, 0)))
            factors.append(cute.make_tensor(cute.recast_ptr(pointer + columns, dtype=sf), found))
            columns += tcgen05.find_tmem_tensor_col_offset(factors[-1])
        ra, rb = mma.make_fragment_A(a_tile), mma.make_fragment_B(b_tile)
        if cute.arch.warp_idx() == 0:
            for source, target in zip(scales, factors, strict=True):
                compact = cute.filter_zeros(target)
                copy = tcgen05.make_s2t_copy(cute.make_copy_atom(tcgen05.Cp4x32x128bOp(CtaGroup.ONE), sf), compact)
                thread = copy.get_slice(0)
                rows = tcgen05.get_s2t_smem_desc_tensor(copy, thread.partition_S(cute.filter_zeros(source)))
                cute.copy(copy, rows[None, None, None, None, 0], thread.partition_D(compact))
            if const_expr(fields):
                for k in kiln.range(cute.size(ra, mode=[2]), unroll_full=True):
                    mma.set(tcgen05.Field.SFA, factors[0][None, None, k].iterator)
                    mma.set(tcgen05.Field.SFB, factors[1][None, None, k].iterator)
                    cute.gemm(mma, acc, ra[None, None, k, 0], rb[None, None, k, 0], acc)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
            else:
                at = (None, None, None, 0)
                cute.gemm(mma, acc, [ra[at], factors[0]], [rb[at], factors[1]], acc)
            with cute.arch.elect_one():
                tcgen05.commit(done)
        cute.arch.mbarrier_wait(done, 0)
        store_accumulators(mma, acc, c, LD(x.x32))
        cute.arch.sync_threads()
        tmem.relinquish_alloc_permit()
        tmem.free(pointer)

    @cute.jit
    def launch(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor):
        mma = sm100.make_blockscaled_trivial_tiled_mma(ab, K, K, sf, vector, CtaGroup.ONE, (128, n))
        tile = (128, n, 4 * mma.shape_mnk[2])
        operands = [getattr(sm100, f"make_smem_layout_{name}")(mma, tile, ab, 1) for name in "ab"]
        factors = [getattr(blockscaled_layout, f"make_smem_layout_sf{name}")(mma, tile, vector, 1) for name in "ab"]
        kernel(mma, a, b, sfa, sfb, c, Given((*operands, *factors), tile)).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))

    return launch


@pytest.mark.parametrize(
    ("kind", "sf", "vector", "n", "fields"),
    [("e4m3", kiln.Float8E8M0FNU, 32, 64, False), ("e2m1", kiln.Float8E4M3FN, 16, 192, True)],
    ids=["mxf8", "nvf4"],
)
def test_block_scaled_gemm(kind: str, sf: Any, vector: int, n: int, fields: bool) -> None:
    rng = np.random.default_rng(1)
    depth = 128 if kind == "e4m3" else 256
    a, b = (rng.integers(-3, 4, (rows, depth)).astype(np.float32) for rows in (128, n))
    exponents = [rng.integers(0, 3, (rows, depth // vector)) for rows in (128, n)]
    factors = [(2.0**e).astype(np.float32) for e in exponents]
    if sf is kiln.Float8E8M0FNU:
        stored = [(e + 127).astype(np.uint8) for e in exponents]
    else:
        stored = [f.astype(ml_dtypes.float8_e4m3fn).view(np.uint8) for f in factors]
    if kind == "e4m3":
        ab, operands = kiln.Float8E4M3FN, [z.astype(ml_dtypes.float8_e4m3fn).view(np.uint8) for z in (a, b)]
    else:
        codes = [z.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15 for z in (a, b)]
        ab, operands = kiln.Float4E2M1FN, [code[:, ::2] | code[:, 1::2] << 4 for code in codes]
    c = np.zeros((128, n), np.float32)
    given = [from_dlpack(array, assumed_align=16) for array in (*operands, *stored, c)]
    for tensor in given[2:4]:
        tensor.element_type = sf
    scaled(ab, sf, vector, n, fields)(*given)
    left, right = (z * np.repeat(f, vector, 1) for z, f in zip((a, b), factors, strict=True))
    assert np.array_equal(c, left @ right.T)


# --- code ------------------------------------------------------------------------------------------------------------


def test_one_thread_issues_in_a_row() -> None:
    """A call of gemm elects one thread for all its MMAs; ptxas makes no loop over lanes of it."""
    a, b, c = arrays(np.random.default_rng(0), (128, 64), 32, (np.float16, np.float32))
    given = [from_dlpack(array, assumed_align=16) for array in (a, b, c)]
    program = dense(Float16, Float32, (128, 64), (K, K), LD(x.x32))
    made = cute.compile(program, *given, target="nvidia", options="--gpu-arch sm_100a")
    ptx = made.__ptx__
    assert ptx.count("tcgen05.mma.cta_group::1.kind::f16") == 2
    first, second = (ptx.index("tcgen05.mma", at) for at in (0, ptx.index("tcgen05.mma") + 1))
    assert "elect.sync" not in ptx[first:second] and "$L__" not in ptx[first:second]


def test_tensor_memory_partitioned_as_registers_are():
    """A thread's part of tensor memory is its own cells, and the instruction takes the address of lane 0's."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        smem = utils.SmemAllocator()
        tmem = utils.TmemAllocator(smem.allocate_array(Int32), pipeline.NamedBarrier(1, 128))
        tmem.allocate(64)
        tmem.wait_for_alloc()
        pointer = tmem.retrieve_ptr(Float32)
        cells = cute.make_tensor(pointer, cute.make_layout((128, 64), stride=(65536, 1)))
        load, store = (
            tcgen05.make_tmem_copy(cute.make_copy_atom(op(tcgen05.Repetition.x16), Float32), cells)
            for op in (tcgen05.Ld32x32bOp, tcgen05.St32x32bOp)
        )
        mine = load.get_slice(thread).partition_D(cells)
        registers = cute.make_rmem_tensor(mine.shape, Float32)
        for i in kiln.range_constexpr(64):
            registers[i] = Float32(64 * thread + i)
        cute.copy(store, registers, mine)
        cute.arch.fence_view_async_tmem_store()
        for i in kiln.range_constexpr(4):
            cute.copy(load, mine[None, 0, i], registers[None, 0, 3 - i])
        cute.arch.fence_view_async_tmem_load()
        for i in kiln.range_constexpr(64):
            out[thread, i] = registers[i]
        cute.arch.sync_threads()
        tmem.free(pointer)

    @cute.jit
    def launch(out: cute.Tensor):
        kernel(out).launch(grid=1, block=128)

    out = np.zeros((128, 64), np.float32)
    launch(out)
    turned = np.arange(128 * 64, dtype=np.float32).reshape(128, 4, 16)[:, ::-1]
    np.testing.assert_array_equal(out, turned.reshape(128, 64))


def test_warps_past_the_lanes_of_a_tensor_repeat_the_others():
    """A tensor of 64 lanes, copied by 128 threads: warps 2 and 3 have the addresses of warps 0 and 1, and their own lanes."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        tmem = utils.TmemAllocator(
            barrier_for_retrieve=pipeline.NamedBarrier(1, 128)
        )  # allocates its shared memory itself
        tmem.allocate(32)
        tmem.wait_for_alloc()
        pointer = tmem.retrieve_ptr(Float32)
        cells = cute.make_tensor(pointer, cute.make_layout((64, 4, 2), stride=(65536, 1, 8)))
        store, load = (
            tcgen05.make_tmem_copy(cute.make_copy_atom(op(tcgen05.Repetition.x4), Float32), cells).get_slice(thread)
            for op in (tcgen05.St32x32bOp, tcgen05.Ld32x32bOp)
        )
        place = cute.make_identity_tensor(cells.shape)
        registers = cute.make_rmem_tensor(store.partition_S(place)[None, None, None, 0].shape, Float32)
        for i in kiln.range_constexpr(4):
            registers[i] = Float32(4 * thread + i)
        cute.copy(store, registers, store.partition_D(cells)[None, None, None, 1])
        cute.arch.fence_view_async_tmem_store()
        again = cute.make_rmem_tensor(registers.shape, Float32)
        cute.copy(load, load.partition_S(cells)[None, None, None, 1], again)
        for i in kiln.range_constexpr(4):
            out[thread, i] = again[i]
        cute.arch.sync_threads()
        tmem.relinquish_alloc_permit()
        tmem.free(pointer)

    @cute.jit
    def launch(out: cute.Tensor):
        kernel(out).launch(grid=1, block=128)

    out = np.zeros((128, 4), np.float32)
    with kiln.target("cpu"):
        launch(out)
    np.testing.assert_array_equal(out, np.arange(512).reshape(128, 4))
