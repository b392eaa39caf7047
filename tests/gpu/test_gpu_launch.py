# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Launching on a GPU: sizes, streams, shared memory, clusters, reports, errors."""

from __future__ import annotations

import threading

import pytest

import kiln
import kiln.cute as cute
import kiln.utils as utils
from kiln import Float32, Int32, Int64
from kiln.base_dsl.diagnostics import DSLCudaRuntimeError, DSLUserCodeRuntimeError
from kiln.cute.runtime import from_dlpack
from kiln.hardware import driver, limits
from kiln.hardware.architectures import generation_of
from kiln.targets.nvidia import codegen

torch = pytest.importorskip("torch")

arch = cute.arch


def ints(*shape):
    return torch.full(shape, -1, dtype=torch.int32, device="cuda")


@cute.kernel
def indices(out: cute.Tensor):
    tx, ty, _ = arch.thread_idx()
    bx, by, _ = arch.block_idx()
    dx, dy, _ = arch.block_dim()
    gx, _, _ = arch.grid_dim()
    out[((by * gx + bx) * dy + ty) * dx + tx] = bx + 10 * by + 100 * tx + 1000 * ty


@cute.jit
def launch_indices(out: cute.Tensor, gx: Int32, gy: Int32):
    indices(out).launch(grid=(gx, gy, 1), block=(4, 2, 1))


def test_every_thread_runs_once():
    out = ints(3 * 2 * 8)
    launch_indices(from_dlpack(out), 3, 2)
    got = out.reshape(2, 3, 2, 4).cpu()
    for by in range(2):
        for bx in range(3):
            for ty in range(2):
                for tx in range(4):
                    assert got[by, bx, ty, tx] == bx + 10 * by + 100 * tx + 1000 * ty


@cute.kernel
def scale(out: cute.Tensor, by: Float32, wide: Int64, flag: kiln.Boolean):
    t, _, _ = arch.thread_idx()
    if flag:
        out[t] = out[t] * by + Float32(wide)


@cute.jit
def launch_scale(out: cute.Tensor, by: Float32, wide: Int64, flag: kiln.Boolean, stream):
    scale(out, by, wide, flag).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


@pytest.mark.parametrize("kind", ["integer", "torch", "bindings"])
def test_streams(kind):
    stream = torch.cuda.Stream()
    if kind == "integer":
        given = stream.cuda_stream
    elif kind == "torch":
        given = stream
    else:
        given = pytest.importorskip("cuda.bindings.driver").CUstream(stream.cuda_stream)
    x = torch.arange(32, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    launch_scale(from_dlpack(x), 2.0, 1 << 20, True, given)
    stream.synchronize()
    assert torch.equal(x.cpu(), torch.arange(32) * 2.0 + (1 << 20))


@cute.kernel
def reverse_dynamic(out: cute.Tensor, n: Int32):
    t, _, _ = arch.thread_idx()
    memory = cute.make_tensor(arch.get_dyn_smem(Int32), cute.make_layout(40000))
    i = t
    while i < n:
        memory[i] = i
        i = i + 128
    arch.sync_threads()
    i = t
    while i < n:
        out[i] = memory[n - 1 - i]
        i = i + 128


@cute.jit
def launch_reverse(out: cute.Tensor, n: Int32):
    reverse_dynamic(out, n).launch(grid=(1, 1, 1), block=(128, 1, 1), smem=n * 4)


@pytest.mark.parametrize("n", [100, 12_000, 40_000])
def test_dynamic_shared_memory_beyond_the_default_limit(n):
    out = ints(n)
    launch_reverse(from_dlpack(out).mark_layout_dynamic(), n)
    assert torch.equal(out.cpu(), torch.arange(n - 1, -1, -1, dtype=torch.int32))


@cute.kernel
def big_static(out: cute.Tensor):
    t, _, _ = arch.thread_idx()
    a = cute.make_tensor(arch.alloc_smem(Int32, 10_000), cute.make_layout(10_000))
    b = cute.make_tensor(arch.alloc_smem(Int32, 10_000), cute.make_layout(10_000))
    c = cute.make_tensor(arch.get_dyn_smem(Int32), cute.make_layout(256))
    for i in kiln.range(t, 10_000, 256):
        a[i] = i
        b[i] = 2 * i
    c[t] = t
    arch.sync_threads()
    out[t] = a[9_999 - t] + b[t] + c[255 - t]


@cute.jit
def launch_big_static(out: cute.Tensor):
    big_static(out).launch(grid=(1, 1, 1), block=(256, 1, 1), smem=1024)


def test_static_shared_memory_beyond_the_static_limit():
    out = ints(256)
    launch_big_static(from_dlpack(out))
    t = torch.arange(256, dtype=torch.int32)
    assert torch.equal(out.cpu(), (9_999 - t) + 2 * t + (255 - t))


@cute.kernel
def reverse_allocated(out: cute.Tensor, n: kiln.Constexpr):
    t, _, _ = arch.thread_idx()
    memory = utils.SmemAllocator().allocate_tensor(Int32, cute.make_layout(n), 16)
    memory[t] = t
    memory[n - 1 - t] = arch.dynamic_smem_size()
    arch.sync_threads()
    out[t] = memory[255 - t]
    out[256 + t] = memory[n - 256 + t]


@cute.jit
def launch_allocated(out: cute.Tensor, n: kiln.Constexpr, known: kiln.Constexpr, smem: Int32):
    reverse_allocated(out, n).launch(grid=1, block=256, smem=smem if known is None else known)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("allocated", "smem"),
    [
        (32768, 0),
        (32768, 32768),
        (24000, 24000),
        (4096, 65536),
        (16384, 232448),
        (65536, 0),
        (65536, 65536),
        (65536, 232448),
        (232448, 232448),
    ],
)
def test_smem_of_a_launch_beside_the_allocator(allocated, smem, known):
    out = ints(512)
    launch_allocated(from_dlpack(out), allocated // 4, smem if known else None, smem)
    assert torch.equal(out[:256].cpu(), torch.arange(255, -1, -1, dtype=torch.int32))
    assert (out[256:] == max(allocated, smem)).all()


@cute.kernel
def both_kinds(out: cute.Tensor, allocated: kiln.Constexpr, last: kiln.Constexpr):
    t, _, _ = arch.thread_idx()
    own = cute.make_tensor(arch.alloc_smem(Int32, allocated // 4), cute.make_layout(allocated // 4))
    more = cute.make_tensor(arch.get_dyn_smem(Int32), cute.make_layout(last + 1))
    for i in kiln.range(t, allocated // 4, 32):
        own[i] = i
    more[t] = 1000 + t
    more[last - t] = 2000 + t
    arch.sync_threads()
    out[t] = own[allocated // 4 - 1 - t]
    out[32 + t] = more[31 - t]
    out[64 + t] = more[last - t]


@cute.jit
def launch_both_kinds(out: cute.Tensor, allocated: kiln.Constexpr, smem: kiln.Constexpr):
    both_kinds(out, allocated, smem // 4 - 1).launch(grid=1, block=32, smem=smem)


@pytest.mark.parametrize("allocated", [4000, 49152, 100_000])
def test_dynamic_shared_memory_up_to_the_limit(allocated):
    of = generation_of("sm_%d%d" % driver.capability())
    smem = limits.Needs(allocated, True).room(of)
    if smem < 4096:
        pytest.skip("this GPU has less shared memory")
    out = ints(96)
    launch_both_kinds(from_dlpack(out), allocated, smem)
    t = torch.arange(32, dtype=torch.int32)
    assert torch.equal(out.cpu(), torch.cat([allocated // 4 - 1 - t, 1031 - t, 2000 + t]))


def test_smem_of_a_launch_past_the_limit_lists_allocations():
    with pytest.raises(DSLCudaRuntimeError, match="300000 bytes of shared memory per block; CUDA_ERROR") as caught:
        launch_allocated(from_dlpack(ints(512)), 8192, None, 300_000)
    line = reverse_allocated.function.__code__.co_firstlineno + 3
    assert f"\n  test_gpu_launch.py:{line}: 32768 bytes" in str(caught.value)


def test_the_table_of_limits_is_what_the_driver_says():
    attribute, of = driver.attribute, generation_of("sm_%d%d" % driver.capability())
    for axis, grid, block in zip("xyz", limits.GRID, limits.BLOCK):
        assert attribute(f"max_grid_{axis}", 0) == grid
        assert attribute(f"max_block_{axis}", 0) == block
    assert attribute("max_threads_per_block", 0) == of.threads_per_block
    assert attribute("smem_optin", 0) == of.smem_optin
    assert attribute("registers_per_block", 0) == of.registers
    assert bool(attribute("cluster_launch", 0)) == (of.cluster > 1)


@cute.jit
def launch_ranks_by(out: cute.Tensor, blocks: Int32):
    ranks(out).launch(grid=blocks, block=(32, 1, 1), cluster=(blocks, 1, 1))


@pytest.mark.parametrize("blocks", [2, 8, 16])
def test_clusters_whose_size_is_known_at_the_launch(blocks):
    if generation_of("sm_%d%d" % driver.capability()).cluster < blocks:
        pytest.skip("this GPU has smaller clusters")
    out = ints(blocks * 32)
    launch_ranks_by(from_dlpack(out), blocks)
    want = [100 * ((b + 1) % blocks) + t for b in range(blocks) for t in range(32)]
    assert out.tolist() == want


@cute.kernel
def ranks(out: cute.Tensor):
    t, _, _ = arch.thread_idx()
    b, _, _ = arch.block_idx()
    word = arch.alloc_smem(Int32, 32)
    mine = cute.make_tensor(word, cute.make_layout(32))
    mine[t] = 100 * b + t
    arch.cluster_arrive()
    arch.cluster_wait()
    rank = arch.block_idx_in_cluster()
    size = arch.cluster_size()
    other = arch.map_dsmem_ptr(word, (rank + 1) % size)
    theirs = (other + t).load()
    arch.cluster_arrive()
    arch.cluster_wait()
    out[b * 32 + t] = theirs


@cute.jit
def launch_ranks(out: cute.Tensor):
    ranks(out).launch(grid=(8, 1, 1), block=(32, 1, 1), cluster=(4, 1, 1))


def test_clusters_read_each_others_shared_memory():
    out = ints(8 * 32)
    launch_ranks(from_dlpack(out))
    got = out.reshape(8, 32).cpu()
    for b in range(8):
        neighbour = b // 4 * 4 + (b % 4 + 1) % 4
        assert torch.equal(got[b], 100 * neighbour + torch.arange(32, dtype=torch.int32))


@cute.kernel
def count(out: cute.Tensor):
    arch.griddepcontrol_wait()
    arch.griddepcontrol_launch_dependents()
    arch.atomic_add(out.iterator, 1)


@cute.jit
def launch_counts(out: cute.Tensor):
    count(out).launch(grid=(4, 1, 1), block=(32, 1, 1), use_pdl=True)
    count(out).launch(grid=(4, 1, 1), block=(32, 1, 1), cooperative=True)
    for _ in range(3):
        count(out).launch(grid=(1, 1, 1), block=(32, 1, 1))


def test_launch_attributes_and_loops_of_launches():
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    launch_counts(from_dlpack(out))
    assert out.item() == 128 + 128 + 96


def test_a_graph_captures_and_replays():
    x = torch.ones(32, device="cuda")
    stream = torch.cuda.Stream()
    compiled = cute.compile(launch_scale, from_dlpack(x), 2.0, 0, True, stream)
    compiled(from_dlpack(x), 1.0, 0, True, stream)  # loads the kernel
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        compiled(from_dlpack(x), 2.0, 0, True, stream)
    torch.cuda.synchronize()
    assert torch.equal(x.cpu(), torch.ones(32))  # captured, not run
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x.cpu(), torch.full((32,), 8.0))


def test_a_kernel_that_is_captured_before_it_was_loaded():
    x = torch.ones(32, device="cuda")
    stream = torch.cuda.Stream()
    compiled = cute.compile(launch_scale, from_dlpack(x), 2.0, 0, True, stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        compiled(from_dlpack(x), 2.0, 0, True, stream)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x.cpu(), torch.full((32,), 4.0))


def test_the_streams_of_the_environment():
    x = torch.ones(32, device="cuda")
    fake = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    compiled = cute.compile(launch_scale, from_dlpack(x), 2.0, 0, True, fake, options="--enable-tvm-ffi")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.mul_(3.0)  # the kernel must come after it
        compiled(x, 2.0, 0, True)
    stream.synchronize()
    assert torch.equal(x.cpu(), torch.full((32,), 6.0))


def test_without_ptxas_the_driver_compiles(monkeypatch):
    monkeypatch.setattr(codegen, "ptxas_version", lambda: None)
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    x = torch.ones(32, device="cuda")
    stream = torch.cuda.current_stream()
    compiled = cute.compile(launch_scale, from_dlpack(x), 2.0, 0, True, stream)
    assert compiled.__cubin__ is None
    compiled(from_dlpack(x), 2.0, 5, True, stream)
    torch.cuda.synchronize()
    assert torch.equal(x.cpu(), torch.full((32,), 7.0))


def test_a_thread_without_a_context():
    out = ints(48)
    prepared = from_dlpack(out)
    failed = []

    def work():
        try:
            launch_indices(prepared, 3, 2)
        except BaseException as failure:
            failed.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failed
    assert out.min().item() >= 0


# --- reports ---------------------------------------------------------------------------------------------------------


@cute.kernel
def speaker(n: Int32, x: Float32):
    t, _, _ = arch.thread_idx()
    if t == n:
        cute.printf("thread %d says %f and %lld", t, x, Int64(1) << 40)


@cute.jit
def launch_speaker(n: Int32, x: Float32):
    speaker(n, x).launch(grid=(1, 1, 1), block=(32, 1, 1))


def test_printed_text_is_there_when_the_call_returns(capfd):
    print("before", end="\n")
    launch_speaker(7, 1.5)
    print("after")
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert lines == ["before", f"thread 7 says 1.500000 and {1 << 40}", "after"]


@cute.kernel
def long_speaker(n: Int32):
    t, _, _ = arch.thread_idx()
    b, _, _ = arch.block_idx()
    cute.printf("<{} {} {}>", b, t, [n * i for i in range(20)])


@cute.kernel
def longer_speaker(n: Int32):
    cute.printf("many {} end", [n + i for i in range(70)])


@cute.jit
def launch_long_speaker(n: Int32):
    long_speaker(n).launch(grid=(4, 1, 1), block=(32, 1, 1))
    longer_speaker(n).launch(grid=(1, 1, 1), block=(1, 1, 1))


def test_text_of_a_call_comes_out_in_one_piece(capfd):
    launch_long_speaker(3)
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    numbers = ",".join(str(3 * i) for i in range(20))
    wanted = {f"<{b} {t} [{numbers}]>" for b in range(4) for t in range(32)}
    assert set(lines[:-1]) == wanted
    assert len(lines) == 4 * 32 + 1
    assert lines[-1] == f"many [{','.join(str(3 + i) for i in range(70))}] end"


@cute.kernel
def checker(limit: Int32):
    t, _, _ = arch.thread_idx()
    b, _, _ = arch.block_idx()
    assert t + b < limit, "too large"


@cute.jit
def launch_checker(limit: Int32):
    checker(limit).launch(grid=(2, 1, 1), block=(64, 1, 1))


def test_a_failed_assertion_is_an_exception_and_the_next_call_works():
    launch_checker(1000)
    with pytest.raises(AssertionError, match=r"too large.*kernel checker, block \(1, 0, 0\), thread \(63, 0, 0\)"):
        launch_checker(64)
    launch_checker(1000)
    assert issubclass(DSLUserCodeRuntimeError, Exception)


# --- errors ----------------------------------------------------------------------------------------------------------


@cute.kernel
def nothing():
    pass


@cute.jit
def launch_nothing(gx: Int32, bx: Int32, smem: Int32):
    nothing().launch(grid=(gx, 1, 1), block=(bx, 1, 1), smem=smem)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 32, 0), r"grid x is 0.*CUDA_ERROR_INVALID_VALUE"),
        ((1, 0, 0), r"block x is 0"),
        ((1, 2000, 0), r"block x is 2000"),
        ((1, 32, 500_000), r"500000 bytes of shared memory"),
    ],
)
def test_a_launch_no_device_takes_names_the_rule(sizes, words):
    with pytest.raises(DSLCudaRuntimeError, match=words) as caught:
        launch_nothing(*sizes)
    assert caught.value.error_code == 1
    assert "launch_nothing" in str(caught.value) or ".launch(" in str(caught.value)
    launch_nothing(1, 32, 0)


def test_a_failure_stops_the_launches_after_it():
    @cute.jit
    def two(out: cute.Tensor, n: Int32):
        nothing().launch(grid=(n, 1, 1), block=(32, 1, 1))
        count(out).launch(grid=(1, 1, 1), block=(32, 1, 1))

    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(DSLCudaRuntimeError):
        two(from_dlpack(out), 0)
    assert out.item() == 0


def test_code_for_another_architecture_is_refused():
    compiled = cute.compile(launch_nothing, 1, 32, 0, options="--gpu-arch sm_120a")
    with pytest.raises(DSLCudaRuntimeError, match="compiled for sm_120a, and the GPU .* is sm_"):
        compiled(1, 32, 0)


def test_many_launches_take_no_memory():
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    prepared = from_dlpack(out)
    compiled = cute.compile(launch_counts, prepared)
    compiled(prepared)
    torch.cuda.synchronize()
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10_000):
        compiled(prepared)
    torch.cuda.synchronize()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10
    assert out.item() == 352 * 10_001


# --- options of a launch ---------------------------------------------------------------------------------------------


@cute.kernel
def branches(out: cute.Tensor, which: Int32):
    t, _, _ = arch.thread_idx()
    common = cute.make_tensor(arch.alloc_smem(Int32, 64), cute.make_layout(64))
    common[t] = 100 * t
    if which > 0:
        first = cute.make_tensor(arch.alloc_smem(Int32, 512), cute.make_layout(512))
        first[t] = t
        arch.sync_threads()
        out[t] = first[31 - t] + common[31 - t]
    else:
        second = cute.make_tensor(arch.alloc_smem(Int64, 512), cute.make_layout(512))
        second[t] = Int64(t)
        arch.sync_threads()
        out[t] = Int32(second[t ^ 1]) + common[t ^ 1]


@cute.jit
def launch_branches(out: cute.Tensor, which: Int32):
    branches(out, which).launch(
        grid=1, block=32, smem_merge_branch_allocs=True, preferred_smem_carveout=50, cluster=2, fallback_cluster=1
    )


def test_branches_that_share_memory():
    t = torch.arange(32, dtype=torch.int32)
    for which, want in ((1, 101 * (31 - t)), (0, 101 * (t ^ 1))):
        out = ints(32)
        launch_branches(from_dlpack(out), which)
        assert torch.equal(out.cpu(), want)


@cute.jit
def launch_with_events(out: cute.Tensor, completed, triggered, stream):
    count(out).launch(grid=4, block=32, stream=stream, launch_completion_event=completed)
    count(out).launch(grid=4, block=32, stream=stream, use_pdl=True, programmatic_event=triggered)


def test_events_of_a_launch():
    cuda = pytest.importorskip("cuda.bindings.driver")
    torch.cuda.init()
    events = []
    for _ in range(2):
        status, event = cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        assert not int(status)
        events.append(event)
    stream = torch.cuda.Stream()
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    launch_with_events(from_dlpack(out), *events, stream)
    for event in events:
        assert not int(cuda.cuEventSynchronize(event)[0])
    stream.synchronize()
    assert out.item() == 256
    for event in events:
        cuda.cuEventDestroy(event)


def test_the_suspects_of_an_illegal_access(tmp_path):
    """In a process of its own: the error stays with it."""
    import os
    import subprocess
    import sys

    (tmp_path / "program.py").write_text(
        """
import kiln.cute as cute
import torch
from kiln import Int64
from kiln.base_dsl.diagnostics import DSLCudaRuntimeError

@cute.kernel
def wild(address: Int64):
    pointer = cute.make_ptr(cute.Int32, address, cute.AddressSpace.gmem, assumed_align=4)
    pointer.store(cute.Int32(1))

@cute.jit
def launch_wild(address: Int64):
    wild(address).launch(grid=1, block=1)

torch.cuda.init()
x = torch.zeros(4, device="cuda", dtype=torch.int32)
launch_wild(x.data_ptr())
torch.cuda.synchronize()
launch_wild(16)
try:
    torch.cuda.synchronize()
except Exception:
    pass
try:
    launch_wild(x.data_ptr())
except DSLCudaRuntimeError as failure:
    print(int(failure.error_code), str(failure))
"""
    )
    root = os.path.dirname(os.path.dirname(kiln.__file__))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.startswith("700 "), done.stdout + done.stderr
    assert "from a kernel launched earlier" in done.stdout
    assert "kernel wild, launched at" in done.stdout
    assert "program.py:14" in done.stdout
