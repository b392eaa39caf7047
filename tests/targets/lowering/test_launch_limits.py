# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportOperatorIssue=false
"""Launches that no GPU of the architecture takes are refused when they are compiled, with the same words for every target."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import pytest
from nvidia_testing import needs_ptxas

import kiln
import kiln.utils as utils
from kiln import Float32, Int32, cute
from kiln.base_dsl.diagnostics import DSLOptimizationWarning, DSLRuntimeError, DSLWarning

TARGETS = ["cpu", pytest.param("nvidia", marks=needs_ptxas)]
KIB = 1 << 10


@cute.kernel
def staged(out: cute.Tensor, stages: kiln.Constexpr):
    t, _, _ = cute.arch.thread_idx()
    memory = utils.SmemAllocator()
    barriers = memory.allocate_array(cute.Int64, stages)
    tiles = [memory.allocate_tensor(Float32, cute.make_layout(16384), 128) for _ in range(stages)]
    barriers.store(cute.Int64(0))
    for tile in tiles:
        tile[t] = Float32(t)
    cute.arch.sync_threads()
    out[t] = sum(tile[31 - t] for tile in tiles)


@cute.jit
def launch_staged(out: cute.Tensor, stages: kiln.Constexpr, options: kiln.Constexpr):
    staged(out, stages).launch(**{"grid": 1, "block": 32, **options})


@cute.kernel
def plain(out: cute.Tensor):
    out[0] = Int32(1)


@cute.kernel
def dynamic(out: cute.Tensor, allocated: kiln.Constexpr):
    own = cute.arch.alloc_smem(Int32, allocated // 4)
    own.store(Int32(1))
    more = cute.arch.get_dyn_smem(Int32)
    more.store(own.load())
    out[0] = cute.arch.dynamic_smem_size()


@cute.jit
def launch_plain(out: cute.Tensor, options: kiln.Constexpr):
    plain(out).launch(**{"grid": 1, "block": 32, **options})


@cute.jit
def launch_dynamic(out: cute.Tensor, allocated: kiln.Constexpr, smem: kiln.Constexpr):
    dynamic(out, allocated).launch(grid=1, block=32, smem=smem)


def compiled(target: str, function: Any, dtype: Any, *arguments: Any, arch: str = "sm_90a") -> Any:
    out = cute.runtime.make_fake_tensor(dtype, (32,), stride=(1,))
    return cute.compile(function, out, *arguments, target=target, options=f"--gpu-arch {arch}")


@pytest.mark.parametrize("target", TARGETS)
def test_shared_memory_past_the_limit_lists_every_allocation(target):
    with pytest.raises(DSLRuntimeError) as caught:
        compiled(target, launch_staged, Float32, 6, {})
    first = staged.function.__code__.co_firstlineno
    where = f"\n  {os.path.basename(__file__)}:"
    assert (
        f"cannot launch kernel staged with grid=(1, 1, 1), block=(32, 1, 1): {6 * 64 * KIB + KIB} bytes"
        in caught.value.message
    )
    assert f"{where}{first + 4}: 48 bytes{where}{first + 5}: 6 x 65536 bytes\n  for alignment: 976 bytes" in str(
        caught.value
    )
    assert caught.value.hint == "a block has at most 232448 bytes of it on sm_90, static and dynamic"
    assert caught.value.span.line == launch_staged.function.__code__.co_firstlineno + 2


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("arch", "stages", "most"),
    [
        ("sm_80", 2, 163),
        ("sm_86", 1, 99),
        ("sm_89", 1, 99),
        ("sm_90a", 3, 227),
        ("sm_100a", 3, 227),
        ("sm_120a", 1, 99),
    ],
)
def test_each_architecture_has_its_limit(target, arch, stages, most):
    compiled(target, launch_staged, Float32, stages, {}, arch=arch)
    with pytest.raises(DSLRuntimeError, match=f"at most {most * KIB} bytes of it on {arch.rstrip('a')},"):
        compiled(target, launch_staged, Float32, stages + 1, {}, arch=arch)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        ({"block": 2048}, "block x is 2048", "block x is at most 1024"),
        ({"block": (1, 1, 65)}, "block z is 65", "block z is at most 64"),
        ({"block": (64, 32, 1)}, "2048 threads per block", "a block has at most 1024 threads"),
        ({"block": 0}, "block x is 0", "at least 1"),
        ({"grid": (1, 65536)}, "grid y is 65536", "grid y is at most 65535"),
        ({"grid": (1, 1, 65536)}, "grid z is 65536", "grid z is at most 65535"),
        ({"grid": 32, "cluster": (32, 1, 1)}, "clusters of 32 blocks", "a cluster has at most 16 blocks on sm_90"),
        ({"grid": (4, 6), "cluster": (2, 4)}, "grid y is 6 and cluster y is 4", "whole clusters"),
        ({"smem": 232_449}, "smem=232449: 232449 bytes of shared memory per block", "at most 232448 bytes"),
        ({"smem": -1}, "smem is -1", "at least 0"),
        (
            {"block": 256, "max_number_threads": 128},
            "256 threads per block, and max_number_threads is 128",
            "so many threads",
        ),
    ],
)
def test_sizes_of_a_launch(target, options, words, hint):
    with pytest.raises(DSLRuntimeError) as caught:
        compiled(target, launch_plain, Int32, options)
    assert "cannot launch kernel plain with grid=(" in caught.value.message
    assert words in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.span.line == launch_plain.function.__code__.co_firstlineno + 2


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_at_the_limit(target):
    for options in (
        {"block": 1024},
        {"block": (16, 1, 64)},
        {"grid": (0x7FFFFFFF, 65535, 65535)},
        {"smem": 232_448},
        {"grid": 16, "cluster": 16},
    ):
        compiled(target, launch_plain, Int32, options)
    compiled(target, launch_staged, Float32, 3, {"smem": 232_448})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("arch", "most"), [("sm_80", 1), ("sm_90a", 16), ("sm_120a", 8)])
def test_clusters_of_an_architecture(target, arch, most):
    compiled(target, launch_plain, Int32, {"grid": 64, "cluster": most}, arch=arch)
    with pytest.raises(DSLRuntimeError, match="has no clusters" if most == 1 else f"at most {most} blocks"):
        compiled(target, launch_plain, Int32, {"grid": 64, "cluster": 2 * most}, arch=arch)


@pytest.mark.parametrize("target", TARGETS)
def test_clusters_that_are_preferred(target):
    options = {"grid": 64, "cluster": 32, "fallback_cluster": 1}
    for arch in ("sm_80", "sm_90a"):  # they have those that are sure alone
        compiled(target, launch_plain, Int32, options, arch=arch)
    with pytest.raises(DSLRuntimeError, match=r"cluster=\(32, 1, 1\): clusters of 32 blocks"):
        compiled(target, launch_plain, Int32, options, arch="sm_100a")
    compiled(target, launch_plain, Int32, {**options, "cluster": 16}, arch="sm_100a")


@pytest.mark.parametrize("target", TARGETS)
def test_dynamic_shared_memory_is_counted_with_what_is_allocated(target):
    compiled(target, launch_dynamic, Int32, 100 * KIB, 127 * KIB)
    with pytest.raises(DSLRuntimeError) as caught:
        compiled(target, launch_dynamic, Int32, 100 * KIB, 128 * KIB)
    assert f"{228 * KIB} bytes of shared memory per block\n" in caught.value.message
    assert (
        f": {100 * KIB} bytes\n  launch(smem={128 * KIB}): {128 * KIB} bytes of dynamic shared memory besides"
        in str(caught.value)
    )


@cute.kernel
def branching(out: cute.Tensor, which: Int32):
    t, _, _ = cute.arch.thread_idx()
    if which > 0:
        first = cute.make_tensor(cute.arch.alloc_smem(Int32, 40_000), cute.make_layout(40_000))
        first[t] = t
        out[t] = first[t]
        out[31] = Int32(first.iterator.toint() % 1024)
    else:
        second = cute.make_tensor(cute.arch.alloc_smem(Int32, 30_000), cute.make_layout(30_000))
        second[t] = t + 1
        out[t] = second[t]
        out[31] = Int32(second.iterator.toint() % 1024)


@cute.jit
def launch_branching(out: cute.Tensor, which: Int32, merge: kiln.Constexpr):
    branching(out, which).launch(grid=1, block=32, smem_merge_branch_allocs=merge)


@pytest.mark.parametrize("target", TARGETS)
def test_branches_that_share_memory_are_counted_once(target):
    compiled(target, launch_branching, Int32, Int32(0), True)
    with pytest.raises(DSLRuntimeError, match="280576 bytes of shared memory"):
        compiled(target, launch_branching, Int32, Int32(0), False)


def test_branches_that_share_memory_run():
    places: set[int] = set()
    for which in (0, 1):
        out = np.zeros(32, np.int32)
        launch_branching(out, which, True)
        assert out[:31].tolist() == [t + 1 - which for t in range(31)]
        places.add(int(out[31]))
    assert len(places) == 1  # the memory of a block is aligned to 1024


@cute.kernel
def giving(out: cute.Tensor, more: kiln.Constexpr, less: kiln.Constexpr):
    t, _, _ = cute.arch.thread_idx()
    if t < 128:
        cute.arch.setmaxregister_increase(more)
    elif kiln.const_expr(less):
        cute.arch.setmaxregister_decrease(less)
    out[t] = t


@cute.jit
def launch_giving(
    out: cute.Tensor, more: kiln.Constexpr, less: kiln.Constexpr, threads: kiln.Constexpr, blocks: kiln.Constexpr
):
    giving(out, more, less).launch(grid=1, block=threads, min_blocks_per_mp=blocks)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("threads", "blocks", "more", "less", "most"),
    [(384, 1, 240, 0, 168), (256, 2, 240, 24, 232), (1024, 2, 96, 24, 88), (384, 2, 232, 40, 160)],
)
def test_registers_that_a_warp_group_never_gets(target, threads, blocks, more, less, most):
    with pytest.raises(DSLRuntimeError) as caught:
        compiled(target, launch_giving, Int32, more, less, threads, blocks)
    assert f"setmaxnreg.inc to {more} registers in a block of {threads} threads" in caught.value.message
    assert f"min_blocks_per_mp={blocks} " in caught.value.hint
    assert f"at most {most} for each" in caught.value.hint
    assert caught.value.span.line == giving.function.__code__.co_firstlineno + 4
    compiled(target, launch_giving, Int32, most, less, threads, blocks)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("blocks", "threads"), [(3, 1024), (33, 32)])
def test_more_blocks_than_an_sm_has_are_a_warning(target, blocks, threads):
    with pytest.warns(
        DSLOptimizationWarning,
        match=f"min_blocks_per_mp={blocks} blocks of {threads} threads, .* at most 32 blocks and 2048",
    ):
        compiled(target, launch_plain, Int32, {"block": threads, "min_blocks_per_mp": blocks})


@pytest.mark.parametrize("target", TARGETS)
def test_less_shared_memory_than_is_allocated_is_a_warning(target):
    first = staged.function.__code__.co_firstlineno
    name = os.path.basename(__file__)
    with pytest.warns(DSLWarning) as warned:
        compiled(target, launch_staged, Float32, 2, {"smem": 1000})
    (one,) = warned
    assert str(one.message) == (
        "kernel staged: launch(smem=1000) is less than the 131088 bytes that it allocates, which are used"
        f"\n  {name}:{first + 4}: 16 bytes\n  {name}:{first + 5}: 2 x 65536 bytes\n  for alignment: 1008 bytes"
    )
    assert (one.filename, one.lineno) == (__file__, launch_staged.function.__code__.co_firstlineno + 2)


@pytest.mark.parametrize("options", [{}, {"smem": 0}, {"smem": 131088}, {"smem": 200_000}])
def test_as_much_shared_memory_as_is_allocated_is_fine(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled("cpu", launch_staged, Float32, 2, options)
        compiled("cpu", launch_dynamic, Int32, 4096, 1024)


# --- the CPU target ---------------------------------------------------------------------------------------------------


@cute.kernel
def sized(out: cute.Tensor, allocated: kiln.Constexpr):
    own = cute.arch.alloc_smem(Int32, allocated // 4)
    own.store(Int32(1))
    cute.arch.sync_threads()
    out[0] = cute.arch.dynamic_smem_size()


@cute.jit
def launch_sized(out: cute.Tensor, allocated: kiln.Constexpr, smem: Int32):
    sized(out, allocated).launch(grid=1, block=32, smem=smem)


@pytest.mark.parametrize(
    ("allocated", "asked", "size"),
    [(4096, 0, 4096), (4096, 1000, 4096), (4096, 9000, 9000), (200_704, 232_448, 232_448)],
)
def test_the_size_of_dynamic_shared_memory_counts_allocations(allocated, asked, size):
    out = np.zeros(32, np.int32)
    launch_sized(out, allocated, asked)
    assert out[0] == size


def test_memory_that_a_kernel_takes_the_address_of_is_what_the_launch_gave():
    out = np.zeros(32, np.int32)
    launch_dynamic(out, 4096, 1000)
    assert out[0] == 1000


def test_a_launch_is_refused_by_the_same_words_when_it_is_made():
    out = np.zeros(32, np.int32)
    with pytest.raises(DSLRuntimeError) as caught:
        launch_sized(out, 4096, 300_000)
    line = sized.function.__code__.co_firstlineno + 2
    assert "cannot launch kernel sized with grid=(1, 1, 1), block=(32, 1, 1), smem=300000: 300000 bytes of" in str(
        caught.value
    )
    assert f"\n  {os.path.basename(__file__)}:{line}: 4096 bytes" in str(caught.value)
    assert caught.value.hint == "a block has at most 232448 bytes of it on sm_90, static and dynamic"
    assert not out.any()


@cute.jit
def launch_by(out: cute.Tensor, grid: Int32, block: Int32, cluster: Int32):
    plain(out).launch(grid=grid, block=block, cluster=cluster, max_number_threads=512)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((64, 32, 32), "clusters of 32 blocks"),
        ((64, 1000, 1), "1000 threads per block, and max_number_threads is 512"),
        ((64, 2048, 1), "block x is 2048"),
    ],
)
def test_sizes_that_are_known_when_a_launch_is_made(sizes, words):
    out = np.zeros(32, np.int32)
    with pytest.raises(DSLRuntimeError, match=words):
        launch_by(out, *sizes)
    assert not out.any()
    launch_by(out, 64, 512, 16)
    assert out[0] == 1


def test_the_sanitizer_refuses_what_the_cpu_target_does():
    with kiln.sanitize(), pytest.raises(DSLRuntimeError, match="394240 bytes of shared memory per block"):
        launch_staged(np.zeros(32, np.float32), 6, {})


def test_the_limits_of_another_architecture_are_not_those_of_code_that_is_there(monkeypatch):
    out = np.zeros(32, np.float32)
    launch_staged(out, 3, {})
    assert out.tolist() == [3.0 * (31 - t) for t in range(32)]
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_86")
    with pytest.raises(DSLRuntimeError, match="at most 101376 bytes of it on sm_86"):
        launch_staged(out, 3, {})
