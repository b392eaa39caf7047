# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""What host code asks of the driver, with a stand-in for it."""

from __future__ import annotations

import ctypes
import platform
import re
import sys

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas, resources

import kiln
import kiln.cute as cute
from kiln import Boolean, Float32, Int32, Int64
from kiln.base_dsl.bindings import ir
from kiln.base_dsl.diagnostics import DSLCudaRuntimeError, DSLRuntimeError, DSLUserCodeTypeError
from kiln.cute.nvgpu import cuda_dialect
from kiln.hardware import driver, toolchain
from kiln.hardware.architectures import Arch
from kiln.targets.nvidia import codegen

pytestmark = needs_ptxas


@cute.kernel
def kernel(a: Int32, b: Float32, c: Int64, d: Boolean):
    pass


@cute.jit
def launch(a: Int32, b: Float32, c: Int64, d: Boolean, gx: Int32, smem: Int32, stream: Int64):
    kernel(a, b, c, d).launch(grid=(gx, 2, 3), block=(a, 4, 1), smem=smem, stream=stream)


def test_sizes_arguments_and_stream(fake_driver):
    fake_driver.reads = [(0, ctypes.c_int32), (1, ctypes.c_float), (2, ctypes.c_int64), (3, ctypes.c_uint8)]
    compiled = compile_for(launch, 1, 1.0, 1, True, 1, 0, 0)
    compiled(8, 2.5, 1 << 40, True, 7, 128, 1234)
    compiled(9, -1.0, -1, False, 1, 0, 0)
    first, second = fake_driver.launches
    assert (first.grid, first.block, first.smem, first.stream, first.kernel) == (
        (7, 2, 3),
        (8, 4, 1),
        128,
        1234,
        "kernel",
    )
    assert (second.grid, second.block, second.smem, second.stream) == ((1, 2, 3), (9, 4, 1), 0, 0)
    assert fake_driver.seen == [[8, 2.5, 1 << 40, 1], [9, -1.0, -1, 0]]
    assert first.attributes == {}
    assert len(fake_driver.loaded) == 1  # once, at the first launch
    assert fake_driver.loaded[0].startswith(b"\x7fELF")
    assert fake_driver.context == 77  # no context was current


def test_nothing_is_loaded_before_a_launch(fake_driver):
    compile_for(launch, 1, 1.0, 1, True, 1, 0, 0)
    assert not fake_driver.loaded


@cute.kernel
def empty():
    pass


@cute.jit
def with_attributes(x: Int32):
    empty().launch(grid=(8, 1, 1), block=(32, 1, 1), cooperative=True)
    empty().launch(grid=(8, 1, 1), block=(32, 1, 1), use_pdl=True, cluster=(2, 1, 1))
    empty().launch(grid=(x, 1, 1), block=(32, 1, 1), cluster=(x, 1, 1))


def test_attributes(fake_driver):
    compiled = compile_for(with_attributes, 1)
    compiled(4)
    compiled(1)
    cooperative, pdl, cluster = (launch.attributes for launch in fake_driver.launches[:3])
    assert cooperative[2][0] == 1
    assert pdl[6][0] == 1
    assert pdl[4] == (2, 1, 1)
    assert cluster[4] == (4, 1, 1)
    assert fake_driver.launches[5].attributes == {}  # a cluster of one block needs none


def spread(launcher, **sizes):
    """Launch with clusters spread over SMs, as libraries do: by the operation of the launch."""
    block = ir.InsertionPoint.current.block
    before = len(block.operations)
    launcher.launch(**sizes)
    (launch,) = [op for op in list(block.operations)[before:] if op.operation.name == "cuda.launch_ex"]
    with ir.InsertionPoint(launch):
        policy = cuda_dialect.CudaClusterSchedulingPolicy.cudaClusterSchedulingPolicySpread
        cuda_dialect.launch_cfg_cluster_scheduling_policy(launch.operands[0], policy)


@cute.jit
def with_spread_clusters():
    spread(empty(), grid=(8, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1))


def test_cluster_scheduling(fake_driver):
    compile_for(with_spread_clusters)()
    assert {key: fake_driver.launches[0].attributes[key][0] for key in (4, 5)} == {4: 2, 5: 1}


@cute.jit
def with_a_policy_of_nothing():
    empty().launch(grid=(8, 1, 1), block=(32, 1, 1))
    cuda_dialect.launch_cfg_cluster_scheduling_policy(Int32(1).ir_value(), cuda_dialect.CudaClusterSchedulingPolicy(1))


@cute.jit
def with_an_unknown_policy():
    cuda_dialect.launch_cfg_cluster_scheduling_policy(Int32(1).ir_value(), 1)


def test_wrong_uses_of_cluster_scheduling():
    with pytest.raises(DSLRuntimeError, match="is not before the launch"):
        compile_for(with_a_policy_of_nothing)
    with pytest.raises(DSLUserCodeTypeError, match="policy is 1"):
        compile_for(with_an_unknown_policy)


@cute.jit
def with_more_attributes(event: Int64, trigger: Int32):
    empty().launch(grid=(8, 1, 1), block=(32, 1, 1), launch_completion_event=event, launch_completion_event_flags=2)
    empty().launch(
        grid=(8, 1, 1), block=(32, 1, 1), programmatic_event=event, programmatic_event_trigger_at_block_start=trigger
    )
    empty().launch(grid=(8, 1, 1), block=(32, 1, 1), preferred_smem_carveout=40)
    empty().launch(grid=(8, 1, 1), block=(32, 1, 1), min_blocks_per_mp=2, smem=50_000)
    empty().launch(grid=(8, 1, 1), block=(32, 1, 1), min_blocks_per_mp=8, smem=50_000)
    empty().launch(grid=(8, 4, 1), block=(32, 1, 1), cluster=(4, 2, 1), fallback_cluster=(2, 1, 1))
    empty().launch(grid=(8, 1, 1), block=(32, 1, 1), async_deps=[event])


def test_events_carveouts_and_fallback_clusters(fake_driver):
    compile_for(with_more_attributes, 1, 1)((5 << 32) + 6, 1)
    completion, programmatic, asked, needed, all_of_it, fallback, plain = fake_driver.launches
    assert completion.attributes == {12: (6, 5, 2)}
    assert programmatic.attributes == {7: (6, 5, 0)}
    assert programmatic.fourth[7] == 1
    assert asked.attributes[14][0] == 40
    assert needed.attributes[14][0] == -(-2 * 50_000 * 100 // (228 << 10))
    assert all_of_it.attributes[14][0] == 100
    assert fallback.attributes == {4: (2, 1, 1)}  # this GPU has clusters of one size only
    assert plain.stream == (5 << 32) + 6


@cute.jit
def dependent_or_not(early: cute.Boolean):
    empty().launch(grid=1, block=32, use_pdl=early)


def test_a_flag_of_the_run_decides_on_a_dependent_launch(fake_driver):
    compiled = compile_for(dependent_or_not, True)
    for early in (True, False):
        compiled(early)
    assert [6 in launch.attributes for launch in fake_driver.launches] == [True, False]


def test_gpus_that_choose_get_both_sizes_of_clusters(fake_driver):
    fake_driver._attributes |= {75: 10, 76: 0}
    compiled = compile_for(with_more_attributes, 1, 1, arch="sm_100a")
    compiled(0, 0)
    assert fake_driver.launches[5].attributes == {11: (4, 2, 1), 4: (2, 1, 1)}
    assert ".reqnctapercluster" not in compiled.__ptx__


@pytest.mark.skipif(toolchain.newest_ptx_of(codegen.ptxas_version() or "0") < 94, reason="sm_107 needs CUDA 13.4")
def test_oversized_shared_memory_is_allowed_by_the_launch(fake_driver):
    """sm_107 has 327 KiB for a block, of which 227 need no permission."""
    fake_driver._attributes |= {75: 10, 76: 7}
    compiled = compile_for(launch, 1, 1.0, 1, True, 1, 0, 0, arch="sm_107a")
    for kib in (227, 228, 327):
        compiled(8, 2.5, 1, True, 1, kib << 10, 0)
    modes = [(one.smem >> 10, one.attributes[18][0]) for one in fake_driver.launches]
    assert modes == [(227, 0), (228, 3), (327, 3)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"cluster": (3, 1, 1), "fallback_cluster": (2, 1, 1)},
            r"cluster is \(3, 1, 1\) and fallback_cluster \(2, 1, 1\)",
        ),
        ({"preferred_smem_carveout": 120}, "preferred_smem_carveout is 120"),
        ({"async_deps": [1, 2]}, "async_deps has 2 streams"),
        ({"coopertive": True}, "unknown option 'coopertive'"),
    ],
)
def test_options_that_make_no_sense(options, words):
    @cute.jit
    def launch():
        empty().launch(grid=1, block=32, **options)

    with pytest.raises(DSLUserCodeTypeError, match=words):
        compile_for(launch)


@cute.kernel
def branches(out: cute.Tensor, which: Int32):
    t, _, _ = cute.arch.thread_idx()
    common = cute.make_tensor(cute.arch.alloc_smem(Int32, 64), cute.make_layout(64))
    common[t] = t
    if which > 0:
        first = cute.make_tensor(cute.arch.alloc_smem(Int32, 512), cute.make_layout(512))
        first[t] = out[t]
        cute.arch.sync_threads()
        out[t] = first[31 - t] + common[31 - t]
    else:
        second = cute.make_tensor(cute.arch.alloc_smem(Int64, 512), cute.make_layout(512))
        second[t] = Int64(out[t])
        cute.arch.sync_threads()
        out[t] = Int32(second[t ^ 1]) + common[t ^ 1]


@needs_ptxas
@pytest.mark.parametrize(("merge", "size"), [(False, 256 + 2048 + 4096), (True, 256 + 4096)])
def test_branches_share_memory_if_asked(merge, size):
    @cute.jit
    def launch(out: cute.Tensor, which: Int32):
        branches(out, which).launch(grid=1, block=32, smem_merge_branch_allocs=merge)

    out = cute.runtime.from_dlpack(np.zeros(64, np.int32))
    assert resources(compile_for(launch, out, 1)).smem == size


@cute.jit
def loop(n: Int32):
    for i in range(n):
        if i % 2 == 0:
            kernel(i, 1.0, 2, True).launch(grid=(i + 1, 1, 1), block=(32, 1, 1))


@cute.jit
def wide_sizes(grid: Int64, block: Int64, cluster: Int64, smem: Int64):
    empty().launch(grid=(grid, 1, 1), block=(block, 1, 1), cluster=(cluster, 1, 1), smem=smem)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((2**32 + 5, 1, 1, 0), "cannot launch kernel empty with .*grid x is 4294967301"),
        ((2**40, 1, 1, 0), "grid x is 1099511627776"),
        ((1, 2**33 + 1, 1, 0), "block x is 8589934593"),
        ((2, 1, 2**32 + 1, 0), r"cluster=\(4294967297, 1, 1\)"),
        ((1, 1, 1, 2**32), "smem=4294967296"),
    ],
)
def test_sizes_beyond_32_bits_do_not_reach_the_driver(fake_driver, numbers, words):
    compiled = compile_for(wide_sizes, 1, 1, 1, 1)
    with pytest.raises(DSLRuntimeError, match=words):
        compiled(*numbers)
    assert not fake_driver.launches
    compiled(7, 1, 1, 16)
    assert [(launch.grid[0], launch.smem) for launch in fake_driver.launches] == [(7, 16)]


def test_launches_in_loops_and_branches(fake_driver):
    compile_for(loop, 1)(5)
    assert [launch.grid[0] for launch in fake_driver.launches] == [1, 3, 5]


def test_a_refused_launch_stops_the_call_and_the_next_one_works(fake_driver):
    compiled = compile_for(loop, 1)
    compiled(1)
    fake_driver.launches.clear()
    fake_driver.status = [0, 1]
    with pytest.raises(
        DSLCudaRuntimeError, match=r"cannot launch kernel kernel with grid=\(3, 1, 1\).*INVALID_VALUE"
    ) as caught:
        compiled(9)
    assert caught.value.error_code == 1
    assert caught.value.span is not None
    assert len(fake_driver.launches) == 1
    compiled(9)
    assert len(fake_driver.launches) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((8, 1.0, 1, True, 0, 0, 0), "grid x is 0.*every size of a grid is at least 1"),
        ((8, 1.0, 1, True, -5, 0, 0), "grid x is -5"),
        ((2000, 1.0, 1, True, 1, 0, 0), "block x is 2000.*block x is at most 1024"),
        ((512, 1.0, 1, True, 1, 0, 0), "2048 threads per block.*at most 1024 threads"),
        ((8, 1.0, 1, True, 1, 300_000, 0), "300000 bytes of shared memory.*at most 232448"),
    ],
)
def test_the_rule_a_launch_broke(fake_driver, arguments, words):
    compiled = compile_for(launch, 1, 1.0, 1, True, 1, 0, 0)
    compiled(8, 1.0, 1, True, 1, 0, 0)
    fake_driver.status = [1]
    with pytest.raises(DSLCudaRuntimeError) as caught:
        compiled(*arguments)
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)


@cute.jit
def clustered(gx: Int32, cx: Int32):
    empty().launch(grid=(gx, 1, 1), block=(32, 1, 1), cluster=(cx, 1, 1))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((32, 32), r"cluster=\(32, 1, 1\): clusters of 32 blocks; .*INVALID"),
        ((6, 4), r"grid x is 6 and cluster x is 4; "),
        ((4, 0), "cluster x is 0; "),
    ],
)
def test_clusters_that_cannot_be(fake_driver, sizes, words):
    compiled = compile_for(clustered, 1, 1)
    compiled(1, 1)
    fake_driver.status = [1]
    with pytest.raises(DSLCudaRuntimeError, match=words):
        compiled(*sizes)


def test_code_is_loaded_also_while_a_stream_is_captured(fake_driver):
    compile_for(loop, 1)(1)
    assert fake_driver.modes == [2, 0]  # relaxed, and back


@cute.jit
def launch_on(a: Int32, b: Float32, c: Int64, d: Boolean, gx: Int32, smem: Int32, stream):
    kernel(a, b, c, d).launch(grid=gx, block=(32, 2, 1), smem=smem, stream=stream)


def test_a_stream_of_the_environment_is_left_out_of_calls(fake_driver, monkeypatch):
    compiled = compile_for(
        launch_on, 8, 1.5, 1 << 40, True, 5, 0, cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    )
    compiled(8, 1.5, 1 << 40, True, 5, 0)
    assert fake_driver.launches[-1].stream == 0

    class Torch:
        class cuda:
            is_available = staticmethod(lambda: True)
            current_stream = staticmethod(lambda: type("S", (), {"cuda_stream": 77})())

    monkeypatch.setitem(sys.modules, "torch", Torch)
    compiled(8, 1.5, 1 << 40, True, 5, 0)
    assert fake_driver.launches[-1].stream == 77
    compiled(8, 1.5, 1 << 40, True, 5, 0, cute.runtime.make_fake_stream())  # given: that one
    assert fake_driver.launches[-1].stream == 0


def test_without_ptxas_the_driver_limits_the_ptx(fake_driver, monkeypatch):
    monkeypatch.setattr(codegen, "ptxas_version", lambda: None)
    assert codegen.newest_ptx(Arch["sm_90a"]) == 84


def test_a_lost_context_is_made_current_again(fake_driver):
    compiled = compile_for(loop, 1)
    counted = driver.launches()
    compiled(1)
    fake_driver.context = 0
    fake_driver.status = [201]
    compiled(1)
    assert fake_driver.context == 77
    assert len(fake_driver.launches) == driver.launches() - counted == 2


def test_an_error_of_an_earlier_kernel_names_the_suspects(fake_driver):
    compile_for(with_attributes, 1)(4)
    compiled = compile_for(loop, 1)
    compiled(5)
    fake_driver.status = [700]
    with pytest.raises(DSLCudaRuntimeError, match="from a kernel launched earlier; the last launches were:") as caught:
        compiled(1)
    assert "compute-sanitizer" in caught.value.hint
    assert "CUDA_LAUNCH_BLOCKING=1" in caught.value.hint
    suspects = [line.strip() for line in str(caught.value).splitlines() if line.strip().startswith("kernel ")]
    assert suspects[0].startswith(f"kernel kernel, launched at {__file__}:")
    assert [line.partition(":")[0] for line in suspects[1:]] == [
        f"kernel {name}, launched at {__file__}" for name in ("empty_2", "empty_1", "empty")
    ]
    assert len(suspects) == 4  # the loop's three launches are one line
    if platform.machine() in ("x86_64", "aarch64"):
        times = [re.search(r", ([\d.]+) (us|ms|s) ago$", line) for line in suspects]
        seconds = [float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1}[found[2]] for found in times if found]
        assert len(seconds) == 4
        assert seconds == sorted(seconds)
        assert 0 < seconds[-1] < 60


def test_code_for_another_architecture(fake_driver):
    compiled = compile_for(loop, 1, arch="sm_100a")
    with pytest.raises(DSLCudaRuntimeError, match=r"compiled for sm_100a, and the GPU \(Test GPU\) is sm_90a"):
        compiled(1)
    assert not fake_driver.loaded


def test_no_driver(monkeypatch):
    monkeypatch.setattr(driver, "library", lambda: None)
    with pytest.raises(DSLCudaRuntimeError, match="no CUDA driver"):
        compile_for(loop, 1)(1)


@cute.kernel
def shared(out: kiln.Constexpr, big: kiln.Constexpr):
    a = cute.arch.alloc_smem(Int32, big)
    a.store(Int32(1))
    b = cute.arch.get_dyn_smem(Int32)
    b.store(a.load())


@cute.jit
def launch_shared(smem: Int32, big: kiln.Constexpr):
    shared(None, big).launch(grid=(1, 1, 1), block=(32, 1, 1), smem=smem)


def test_dynamic_shared_memory_is_allowed_up_to_the_devices_limit(fake_driver):
    compiled = compile_for(launch_shared, 0, 1000)
    compiled(100_000)
    (found,) = fake_driver.launches
    assert found.smem == 100_000
    assert fake_driver.kernel_attributes["shared", 8] == 232448 - 4000


def test_static_shared_memory_past_its_limit_becomes_dynamic(fake_driver):
    compiled = compile_for(launch_shared, 0, 20_000)
    compiled(512)
    (found,) = fake_driver.launches
    assert found.smem == 80_896 + 512  # rounded up to 1024
    assert fake_driver.kernel_attributes["shared", 8] == 232448
    (resources,) = compiled.executable.resources.values()
    assert (resources.smem, resources.static_smem, resources.dynamic_smem) == (80_896, 0, 80_896)


@cute.kernel
def allocating(big: kiln.Constexpr):
    a = cute.arch.alloc_smem(Int32, big)
    a.store(cute.arch.dynamic_smem_size())


@cute.jit
def launch_allocating(big: kiln.Constexpr, asked: kiln.Constexpr, smem: Int32):
    allocating(big).launch(grid=(1, 1, 1), block=(32, 1, 1), smem=smem if asked is None else asked)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("allocated", "asked", "dynamic", "total"),
    [
        (32768, 0, 0, 32768),
        (32768, 1000, 0, 32768),
        (32768, 32768, 0, 32768),
        (16384, 65536, 65536 - 16384, 65536),
        (65536, 0, 65536, 65536),
        (65536, 65536, 65536, 65536),
        (65536, 100_000, 100_000, 100_000),
        (232_448, 232_448, 232_448, 232_448),
    ],
)
def test_smem_of_a_launch_is_all_that_a_block_has(fake_driver, known, allocated, asked, dynamic, total):
    compiled = compile_for(launch_allocating, allocated // 4, asked if known else None, 0)
    compiled(asked)
    assert fake_driver.launches[0].smem == dynamic
    (resources,) = compiled.executable.resources.values()
    assert resources.static_smem == (allocated if allocated <= 49152 else 0)
    assert resources.smem == (total if known else allocated)
    static = resources.static_smem
    may = asked or not known or not static
    assert fake_driver.kernel_attributes.get(("allocating", 8)) == (232_448 - static if may else None)


def test_a_launch_that_asks_for_too_much_lists_what_is_allocated(fake_driver):
    compiled = compile_for(launch_allocating, 4096, None, 0)
    compiled(0)
    fake_driver.status = [1]
    with pytest.raises(DSLCudaRuntimeError) as caught:
        compiled(300_000)
    line = allocating.function.__code__.co_firstlineno + 2
    assert "smem=300000: 300000 bytes of shared memory per block; CUDA_ERROR_INVALID_VALUE" in str(caught.value)
    assert f"\n  test_nvidia_launch.py:{line}: 16384 bytes" in str(caught.value)
    assert "at most 232448 bytes of it on sm_90" in caught.value.hint


def test_results_come_back(fake_driver):
    @cute.jit
    def both(x: Int32):
        empty().launch(grid=(1, 1, 1), block=(32, 1, 1))
        return x + 1, Float32(x) * 0.5

    assert compile_for(both, 1)(6) == (7, 3.0)
    assert len(fake_driver.launches) == 1


def test_threads(fake_driver):
    import threading

    compiled = compile_for(loop, 1)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                compiled(1)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(fake_driver.launches) == 200
    assert len(fake_driver.loaded) == 1
