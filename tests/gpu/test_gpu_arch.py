# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""`cute.arch` on a GPU, against the CPU target's definition of the same operations."""

from __future__ import annotations

import pytest

import kiln
import kiln.cute as cute
from kiln import BFloat16, Float16, Float32, Float64, Int16, Int32, Int64, Uint32
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")

arch = cute.arch


def on_both(function, shape, dtype=torch.int32, fill=0):
    """Run a jit function of one tensor on both targets; its contents on each."""
    results = []
    for target, device in (("cpu", "cpu"), ("nvidia", "cuda")):
        out = torch.full(shape, fill, dtype=dtype, device=device)
        cute.compile(function, from_dlpack(out), target=target)(from_dlpack(out))
        results.append(out.cpu())
    return results


def same(function, shape, dtype=torch.int32, fill=0):
    cpu, gpu = on_both(function, shape, dtype, fill)
    assert torch.equal(cpu, gpu), (cpu, gpu)
    return gpu


def jit_of(kernel, block=64, grid=1, cluster=1):
    @cute.jit
    def run(out: cute.Tensor):
        kernel(out).launch(grid=(grid, 1, 1), block=(block, 1, 1), cluster=(cluster, 1, 1))

    return run


@pytest.mark.parametrize("kind", ["idx", "up", "down", "bfly"])
@pytest.mark.parametrize("offset", [0, 1, 5, 16, 31])
def test_shuffles(kind, offset):
    clamp = 0 if kind == "up" else 31

    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        out[t] = arch.shuffle_sync_op(t * 3 + 1, offset, 0xFFFFFFFF, clamp, kind)

    same(jit_of(kernel), (64,))


@pytest.mark.parametrize("width", [4, 8, 16])
def test_shuffles_in_segments(width):
    segment = (32 - width) << 8

    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        a = arch.shuffle_sync_down(t, 1, mask_and_clamp=segment | 31)
        b = arch.shuffle_sync_up(t, 1, mask_and_clamp=segment)
        c = arch.shuffle_sync(t, 2, mask_and_clamp=segment | 31)
        out[t] = a + 1000 * b + 1000000 * c

    same(jit_of(kernel), (64,))


@pytest.mark.parametrize("kind", [Float32, Float16, Int64, Float64, Uint32])
def test_shuffles_of_other_types(kind):
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        out[t] = Int32(arch.shuffle_sync_bfly(kind(t * 7), 9))

    got = same(jit_of(kernel, 32), (32,))
    assert torch.equal(got, (torch.arange(32) ^ 9).to(torch.int32) * 7)


def test_votes_and_reductions():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        lane = arch.lane_idx()
        out[t] = arch.vote_ballot_sync(lane % 3 == 0)
        out[t + 64] = Int32(arch.vote_all_sync(lane < 32)) + 2 * Int32(arch.vote_any_sync(lane > 40))
        out[t + 128] = Int32(arch.vote_uni_sync(lane < 5)) + 2 * Int32(arch.vote_uni_sync(lane < 50))
        out[t + 192] = arch.warp_reduction_sum(t, threads_in_group=8)
        out[t + 256] = arch.warp_reduction_max(t * 37 % 64)
        out[t + 320] = arch.warp_redux_sync(t, "add")
        out[t + 384] = arch.warp_redux_sync(t * 37 % 64, "max")
        out[t + 448] = arch.warp_redux_sync(t, "xor")
        out[t + 512] = Int32(arch.warp_reduction_sum(Float32(t)))

    same(jit_of(kernel), (576,))


def test_one_thread_is_elected_per_warp():
    @cute.kernel
    def kernel(out: cute.Tensor):
        with arch.elect_one():
            arch.atomic_add(out.iterator, 1)
        arch.sync_threads()

    assert same(jit_of(kernel, 128), (1,)).item() == 4


def test_integer_units():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x = t * 0x01234567
        out[t] = arch.popc(x)
        out[t + 64] = arch.clz(x)
        out[t + 128] = arch.prmt(x, x * 3, 0x7531 + t)
        out[t + 192] = arch.lop3(x, x * 3, x * 5, 0xE8)
        out[t + 256] = arch.mul_hi(x, x * 7)
        out[t + 320] = Int32(arch.mul_wide(x, x) >> 32)
        out[t + 384] = Int32(arch.mul_hi(Uint32(x), Uint32(x)))

    same(jit_of(kernel), (448,))


@pytest.mark.parametrize(
    ("operation", "kind"),
    [(name, kind) for kind in (Int32, Uint32, Int64) for name in ("add", "min", "max", "and", "or", "xor", "exch")]
    + [(name, Int16) for name in ("add", "min", "xor", "exch")]
    + [(name, kind) for kind in (Float32, Float64, Float16) for name in ("add", "min", "max", "exch")]
    + [(name, BFloat16) for name in ("min", "max", "exch")],  # its sums depend on the order
)
@pytest.mark.parametrize("space", ["gmem", "smem"])
def test_atomics(operation, kind, space):
    dtype = {
        Int32: torch.int32,
        Uint32: torch.int32,
        Int64: torch.int64,
        Int16: torch.int16,
        Float16: torch.float16,
        BFloat16: torch.bfloat16,
        Float32: torch.float32,
        Float64: torch.float64,
    }[kind]
    apply = getattr(arch, f"atomic_{operation}")
    shared = space == "smem"

    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        place = out.iterator
        if kiln.const_expr(shared):
            place = arch.alloc_smem(out.element_type, 2)
            if t == 0:
                place.store(out.element_type(5))
            arch.sync_threads()
        old = apply(place, kind(3) if kiln.const_expr(operation == "exch") else kind(t * 5 % 32))
        out[t + 1] = out.element_type(1) if old >= kind(0) else out.element_type(0)
        arch.sync_threads()
        if t == 0:
            out[0] = place.load()

    same(jit_of(kernel), (65,), dtype, 5)


def test_compare_and_swap_finds_one_winner():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        if arch.atomic_cas(out.iterator, 0, t + 1) == 0:
            arch.atomic_add(out.iterator + 1, 1)

    cpu, gpu = on_both(jit_of(kernel), (2,))
    assert cpu[1] == gpu[1] == 1
    assert 1 <= gpu[0] <= 64


def test_extremes_of_floats():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x = Float32(t * 37 % 64) - 31.5
        arch.atomic_fmax(out.iterator, x)
        arch.atomic_fmin(out.iterator + 1, x)

    got = same(jit_of(kernel), (2,), torch.float32)
    assert got.tolist() == [31.5, -31.5]


def test_named_barriers_hand_over():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        memory = cute.make_tensor(arch.alloc_smem(Int32, 64), cute.make_layout(64))
        if t < 64:
            memory[t] = t * 11
            arch.barrier_arrive(barrier_id=1, number_of_threads=128)
        else:
            arch.barrier(barrier_id=1, number_of_threads=128)
            out[t - 64] = memory[127 - t]

    got = same(jit_of(kernel, 128), (64,))
    assert torch.equal(got, torch.arange(63, -1, -1, dtype=torch.int32) * 11)


def test_mbarriers_over_phases():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        barrier = arch.alloc_smem(Int64, 1)
        memory = cute.make_tensor(arch.alloc_smem(Int32, 64), cute.make_layout(64))
        if t == 0:
            arch.mbarrier_init(barrier, 64)
        arch.sync_threads()
        total = Int32(0)
        for phase in range(4):
            memory[t] = t + phase
            arch.mbarrier_arrive(barrier)
            arch.mbarrier_wait(barrier, phase % 2)
            total = total + memory[63 - t]
            arch.sync_threads()
        out[t] = total

    got = same(jit_of(kernel), (64,))
    assert torch.equal(got, (63 - torch.arange(64, dtype=torch.int32)) * 4 + 6)


def test_cluster_indices():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        b, _, _ = arch.block_idx()
        if t == 0:
            x, _, _ = arch.block_in_cluster_idx()
            n, _, _ = arch.block_in_cluster_dim()
            c, _, _ = arch.cluster_idx()
            m, _, _ = arch.cluster_dim()
            out[b] = (
                x + 10 * n + 100 * c + 1000 * m + 10000 * arch.block_idx_in_cluster() + 100000 * arch.cluster_size()
            )

    same(jit_of(kernel, 32, 8, 2), (8,))


def test_ordered_accesses():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        if t == 0:
            arch.store(out.iterator, 42)
            arch.fence_acq_rel_gpu()
            arch.store(out.iterator + 1, 1, sem="release", scope="gpu")
        arch.sync_threads()
        seen = arch.load(out.iterator + 1, Int32, sem="acquire", scope="gpu")
        out[t + 2] = arch.load(out.iterator, Int32) * seen

    assert same(jit_of(kernel, 32), (34,))[2:].eq(42).all()


def test_packed_arithmetic():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        a, b, c = (Float32(t) * 0.1, Float32(t) * 0.3), (Float32(t) - 7.7, 1.1), (Float32(3.3), 0.01 * Float32(t))
        for number, pair in enumerate(
            (
                arch.fma_packed_f32x2(a, b, c),
                arch.add_packed_f32x2(a, b),
                arch.mul_packed_f32x2(a, b),
                arch.sub_packed_f32x2(a, b),
            )
        ):
            out[128 * number + t] = pair[0]
            out[128 * number + 64 + t] = pair[1]

    same(jit_of(kernel), (512,), torch.float32)


def test_inline_ptx():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        a = arch.inline_ptx(
            "mad.lo.s32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Int32], read_only_args=[t, 3, 4]
        )
        b, c = arch.inline_ptx(
            "add.s32 {$w0}, {$r0}, 1; mul.f32 {$w1}, {$r1}, {$r1};",
            write_only_types=[Int32, Float32],
            read_only_args=[t, Float32(t)],
        )
        d = arch.inline_ptx("add.s32 {$rw0}, {$rw0}, 5;", read_write_args=[t])
        e = arch.inline_ptx("add.s32 {$rw0}, {$rw0}, 100;", read_write_args=[t], predicate=t > 10)
        out[t] = a
        out[t + 32] = b + Int32(c)
        out[t + 64] = d
        out[t + 96] = e

    out = torch.zeros(128, dtype=torch.int32, device="cuda")
    jit_of(kernel, 32)(from_dlpack(out))
    t = torch.arange(32, dtype=torch.int32)
    want = torch.cat([t * 3 + 4, t + 1 + t * t, t + 5, torch.where(t > 10, t + 100, t)])
    assert torch.equal(out.cpu(), want)


def test_clocks_go_on():
    @cute.kernel
    def kernel(out: cute.Tensor):
        a, b = arch.clock64(), arch.globaltimer()
        arch.nanosleep(2000)
        c, d = arch.clock64(), arch.globaltimer()
        out[0] = c - a
        out[1] = d - b

    out = torch.zeros(2, dtype=torch.int64, device="cuda")
    jit_of(kernel, 1)(from_dlpack(out))
    assert out.min().item() > 0


def test_asynchronous_copies_without_their_predicate_write_zeros():
    """Rows 8 to 15 come from global memory, the others are zeros: neither what was there, nor what lies in the source."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        source = cute.make_tensor(out.iterator, cute.make_layout((64, 4), stride=(4, 1)))
        target = cute.make_tensor(out.iterator + 256, cute.make_layout((64, 4), stride=(4, 1)))
        staged = cute.make_tensor(arch.alloc_smem(Int32, 256, alignment=16), cute.make_layout((64, 4), stride=(4, 1)))
        for i in kiln.range_constexpr(4):
            source[t, i] = t * 4 + i + 1
            staged[t, i] = Int32(-7)
        arch.sync_threads()
        atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(), Int32, num_bits_per_copy=128)
        there = cute.make_rmem_tensor(1, kiln.Boolean)
        there[0] = (t >= 8) & (t < 16)
        cute.copy(atom, source[t, None], staged[t, None], pred=there)
        arch.cp_async_commit_group()
        arch.cp_async_wait_group(0)
        arch.sync_threads()
        for i in kiln.range_constexpr(4):
            target[t, i] = staged[t, i]

    @cute.jit
    def run(out: cute.Tensor):
        aligned = cute.make_tensor(out.iterator.align(16), out.layout)
        kernel(aligned).launch(grid=1, block=64)

    got = same(run, (512,))[256:]
    assert torch.equal(got, torch.where((torch.arange(256) // 32) == 1, torch.arange(1, 257), 0).to(torch.int32))


def test_division_of_vectors_of_integers():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x = cute.full((2,), t - 31, Int32)
        y = cute.full((2,), t % 7 - 3, Int32)
        z = x / cute.where(y == 0, 5, y)
        out[t] = z[0]
        out[t + 64] = (x / 4)[1]

    got = same(jit_of(kernel), (128,)).tolist()
    assert got[64:] == [int((t - 31) / 4) for t in range(64)]
