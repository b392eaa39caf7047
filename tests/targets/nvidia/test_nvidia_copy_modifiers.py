# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Copies with a memory order, or a hint for the cache: the instructions, and the same results on the CPU."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nvidia_testing import needs_ptxas

import kiln.cute as cute
from kiln import Float32, Int32
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute.nvgpu import CopyG2ROp, CopyR2GOp, CopyR2SOp, CopyS2ROp, CopyUniversalOp
from kiln.cute.nvgpu.common import (
    CacheEvictionPriority,
    L2PrefetchSize,
    LoadCacheMode,
    MemoryOrder,
    MemoryScope,
    SharedSpace,
    StoreCacheMode,
)
from kiln.cute.nvgpu.cpasync import CopyG2SOp
from kiln.targets.nvidia import codegen, copy_hints


def copier(options):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        atom = cute.make_copy_atom(CopyUniversalOp(), x.element_type, num_bits_per_copy=128, **options)
        held = cute.make_rmem_tensor((4,), x.element_type)
        memory = cute.arch.alloc_smem(x.element_type, 128, 16)
        shared = cute.make_tensor(memory, cute.make_layout((4, 32), stride=(1, 4)))
        cute.copy(atom, x[None, t], held)
        cute.copy(atom, held, shared[None, t])
        cute.copy(atom, shared[None, t], held)
        cute.copy(atom, held, y[None, t])

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=1, block=32)

    return launch


CASES = {
    "plain": ({}, ["ld.global.v4.b32", "st.global.v4.b32"]),
    "relaxed": (
        {"memory_order": MemoryOrder.RELAXED, "memory_scope": MemoryScope.GPU},
        ["ld.relaxed.gpu.global", "st.relaxed.gpu.shared", "ld.relaxed.gpu.shared", "st.relaxed.gpu.global"],
    ),
    "acquire and release": (
        {"memory_order": MemoryOrder.ACQ_REL, "memory_scope": MemoryScope.SYS},
        ["ld.acquire.sys.global", "st.release.sys.shared", "ld.acquire.sys.shared", "st.release.sys.global"],
    ),
    "release": (
        {"memory_order": MemoryOrder.RELEASE, "memory_scope": MemoryScope.CTA},
        ["ld.relaxed.cta.global", "st.release.cta.shared", "ld.relaxed.cta.shared", "st.release.cta.global"],
    ),
    "volatile": (
        {"memory_order": MemoryOrder.VOLATILE},
        ["ld.volatile.global", "st.volatile.shared", "ld.volatile.shared", "st.volatile.global"],
    ),
    "constant": ({"memory_order": MemoryOrder.CONSTANT}, ["ld.global.nc", "st.global"]),
    "invariant": ({"invariant": True}, ["ld.global.nc", "st.global"]),
    "streaming": (
        {"invariant": True, "l1c_evict_priority": CacheEvictionPriority.NO_ALLOCATE},
        ["ld.global.nc.L1::no_allocate", "st.global.L1::no_allocate"],
    ),
    "first": (
        {"l1c_evict_priority": CacheEvictionPriority.EVICT_FIRST},
        ["ld.global.L1::evict_first", "st.global.L1::evict_first"],
    ),
    "last in L2": (
        {"l2_evict_priority": CacheEvictionPriority.EVICT_LAST},
        ["ld.global.L2::cache_hint.v2.b64", "st.global.L2::cache_hint.v2.b64"],
    ),
    "in both caches": (
        {
            "l1c_evict_priority": CacheEvictionPriority.NO_ALLOCATE,
            "l2_evict_priority": CacheEvictionPriority.EVICT_FIRST,
        },
        ["ld.global.L1::no_allocate.L2::cache_hint", "st.global.L1::no_allocate.L2::cache_hint"],
    ),
}


@needs_ptxas
@pytest.mark.parametrize("name", CASES)
def test_instructions(name):
    options, wanted = CASES[name]
    tensors = [cute.runtime.make_fake_compact_tensor(Float32, (4, 32), assumed_align=16) for _ in range(2)]
    compiled = cute.compile(copier(options), *tensors, target="nvidia", options="--gpu-arch sm_90a")
    found = re.findall(r"^\s*((?:ld|st)\.(?!param)\S+)", str(compiled.__ptx__), re.MULTILINE)
    assert len(found) == len(wanted), found
    assert all(have.startswith(want) for have, want in zip(found, wanted, strict=True)), found


@needs_ptxas
def test_a_load_of_a_generic_address_is_no_load_of_global_memory():
    fake = cute.runtime.make_fake_compact_tensor
    tensors = [fake(Float32, (4, 32), assumed_align=16, memspace=cute.AddressSpace.generic) for _ in range(2)]
    ptx = cute.compile(copier({"invariant": True}), *tensors, target="nvidia", options="--gpu-arch sm_90a").__ptx__
    assert re.search(r"\bld\.v[24]\.b(32|64)", ptx) and ".nc" not in ptx


@needs_ptxas
def test_device_registers_are_accessed_one_by_one():
    options = {"memory_order": MemoryOrder.MMIO}
    tensors = [cute.runtime.make_fake_compact_tensor(Float32, (4, 32), assumed_align=16) for _ in range(2)]
    ptx = cute.compile(copier(options), *tensors, target="nvidia", options="--gpu-arch sm_90a").__ptx__
    assert ptx.count("ld.mmio.relaxed.sys.global.b32") == ptx.count("st.mmio.relaxed.sys.global.b32") == 4
    assert ptx.count("st.relaxed.sys.shared.b32") == 4


@pytest.mark.parametrize("name", CASES)
def test_results_on_the_cpu(name):
    x, y = np.arange(128, dtype=np.float32).reshape(32, 4).T, np.zeros((32, 4), np.float32).T
    arguments = [cute.runtime.from_dlpack(array, assumed_align=16) for array in (x, y)]
    cute.compile(copier(CASES[name][0]), *arguments, target="cpu")(*arguments)
    assert np.array_equal(x, y)


@needs_ptxas
def test_autovec_copy_takes_a_hint():
    @cute.kernel
    def kernel(x: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        held = cute.make_rmem_tensor((4,), x.element_type)
        cute.autovec_copy(x[None, t], held, l1c_evict_priority=CacheEvictionPriority.EVICT_LAST)
        cute.autovec_copy(held, x[None, 31 - t])

    @cute.jit
    def launch(x: cute.Tensor):
        kernel(x).launch(grid=1, block=32)

    x = cute.runtime.make_fake_compact_tensor(Float32, (4, 32), assumed_align=16)
    ptx = cute.compile(launch, x, target="nvidia", options="--gpu-arch sm_90a").__ptx__
    assert "ld.global.L1::evict_last.v2.b64" in ptx
    assert re.search(r"st\.global\.v[24]\.", str(ptx))


def staged(options):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, count: Int32):
        t, _, _ = cute.arch.thread_idx()
        op = CopyG2SOp(LoadCacheMode.GLOBAL)
        atom = cute.make_copy_atom(op, x.element_type, num_bits_per_copy=128, **options)
        memory = cute.arch.alloc_smem(x.element_type, 256, 16)
        shared = cute.make_tensor(memory, cute.make_layout((4, 32, 2), stride=(1, 4, 128)))
        cute.copy(atom, x[None, t], shared[None, t, 0])
        cute.copy(atom, x[None, t], shared[None, t, 1], pred=t < count)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        for k in range(4):
            y[k, t] = shared[k, t, 0] + shared[k, t, 1]

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, count: Int32):
        kernel(x, y, count).launch(grid=1, block=32)

    return launch


@needs_ptxas
def test_asynchronous_copies_take_a_hint():
    tensors = [cute.runtime.make_fake_compact_tensor(Float32, (4, 32), assumed_align=16) for _ in range(2)]
    last = {"l2_evict_priority": CacheEvictionPriority.EVICT_LAST}
    cases = (
        ({}, ""),
        (last, ".L2::cache_hint"),
        ({"l2_prefetch_size": 128}, ".L2::128B"),
        ({"l2_prefetch_size": 256, **last}, ".L2::cache_hint.L2::256B"),
    )
    for options, hint in cases:
        compiled = cute.compile(staged(options), *tensors, Int32(1), target="nvidia", options="--gpu-arch sm_80")
        ptx = str(compiled.__ptx__)
        assert ptx.count(f"cp.async.cg.shared.global{hint} [") == 2
        # the predicate says how many bytes are read (the rest is zeros), and is no branch around the copy
        assert len(re.findall(r"cp\.async\.cg[^;]*, 16, %r\d+", ptx)) == 1
        assert not re.search(r"@!?%p\d+ +(bra|cp\.async)[^;]*;(?=[^}]*cp\.async\.wait)", ptx)
        assert ("createpolicy.fractional.L2::evict_last.b64" in ptx) == ("cache_hint" in hint)
        left = copy_hints.without_hints(ptx)
        assert "cache_hint" not in left
        assert left.count(f"cp.async.cg.shared.global{hint.removeprefix('.L2::cache_hint')} [") == 2


def test_asynchronous_copies_with_a_hint_on_the_cpu():
    x, y = np.arange(128, dtype=np.float32).reshape(32, 4).T, np.zeros((32, 4), np.float32).T
    arguments = [cute.runtime.from_dlpack(array, assumed_align=16) for array in (x, y)]
    launch = staged({"l2_evict_priority": CacheEvictionPriority.EVICT_LAST, "l2_prefetch_size": 64})
    cute.compile(launch, *arguments, Int32(1), target="cpu")(*arguments, 5)
    assert np.array_equal(y, np.where(np.arange(32) < 5, 2 * x, x))


@pytest.mark.parametrize("priority", [CacheEvictionPriority.NO_ALLOCATE, "evict_last"])
def test_what_is_no_priority_in_l2(priority):
    tensors = [cute.runtime.make_fake_compact_tensor(Float32, (4, 32), assumed_align=16) for _ in range(2)]
    for made, more in ((copier, ()), (staged, (Int32(1),))):
        with pytest.raises(DSLUserCodeTypeError, match="l2_evict_priority is"):
            cute.compile(made({"l2_evict_priority": priority}), *tensors, *more, target="cpu")


def test_what_is_no_size_to_prefetch():
    tensors = [cute.runtime.make_fake_compact_tensor(Float32, (4, 32), assumed_align=16) for _ in range(2)]
    with pytest.raises(DSLUserCodeTypeError, match="l2_prefetch_size is 32"):
        cute.compile(staged({"l2_prefetch_size": 32}), *tensors, Int32(1), target="cpu")


def test_what_is_no_order():
    with pytest.raises(DSLUserCodeTypeError, match="memory_order is 'relaxed'"):
        cute.compile(
            copier({"memory_order": "relaxed"}),
            *[cute.runtime.make_fake_compact_tensor(Float32, (4, 32), assumed_align=16) for _ in range(2)],
            target="cpu",
        )


@needs_ptxas
def test_hints_that_ptxas_cannot_write_down_are_left_out(monkeypatch):
    tensors = [cute.runtime.make_fake_compact_tensor(Float32, (4, 32), assumed_align=16) for _ in range(2)]
    launch = staged({"l2_evict_priority": CacheEvictionPriority.EVICT_LAST})

    def compiled():
        return cute.compile(launch, *tensors, Int32(1), target="nvidia", options="--gpu-arch sm_90a")

    kept = compiled()
    ptx, cubin = kept.__ptx__, kept.__cubin__
    assert ptx.count("cp.async.cg.shared.global.L2::cache_hint") == 2
    assert not copy_hints.are_wrong(ptx, cubin)
    form = (0x7FAE).to_bytes(2, "little")  # LDGSTS; the other form differs in one bit
    assert cubin.count(form) == 2
    assert copy_hints.are_wrong(ptx, cubin.replace(form, (0x7DAE).to_bytes(2, "little"), 1))
    monkeypatch.setattr(copy_hints, "_UNIFORM_COPY", 0xFAE)
    left_out = compiled()
    assert left_out.__ptx__ == copy_hints.without_hints(ptx)
    assert "cache_hint" not in left_out.__ptx__
    assert left_out.__ptx__.count("cp.async.cg.shared.global [") == 2
    assert left_out.__cubin__ != cubin


CACHED = {
    "by default": ({"load_cache_mode": LoadCacheMode.ALWAYS}, {"store_cache_mode": StoreCacheMode.WRITE_BACK}, "", ""),
    "in L2": ({"load_cache_mode": LoadCacheMode.GLOBAL}, {"store_cache_mode": StoreCacheMode.GLOBAL}, "cg", "cg"),
    "streaming": (
        {"load_cache_mode": LoadCacheMode.STREAMING, "l2_prefetch_size": L2PrefetchSize.SIZE_256B},
        {"store_cache_mode": StoreCacheMode.STREAMING},
        "cs.L2::256B",
        "cs",
    ),
    "once": (
        {"load_cache_mode": LoadCacheMode.LAST_USE},
        {"store_cache_mode": StoreCacheMode.WRITE_THROUGH},
        "lu",
        "wt",
    ),
    "ahead": (
        {"invariant": True, "l2_prefetch_size": L2PrefetchSize.SIZE_64B, "shared_space": SharedSpace.CTA},
        {"memory_order": MemoryOrder.RELEASE, "memory_scope": MemoryScope.GPU},
        "nc.L2::64B",
        "release.gpu",
    ),
}


def test_cache_modes():
    """Loads and stores of one kernel for all cases: the instructions, and the same values on the CPU target."""

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        shared = cute.make_tensor(cute.arch.alloc_smem(x.element_type, 4, 16), cute.make_layout(4))
        for n, (load, store, _, _) in enumerate(CACHED.values()):
            held = cute.make_rmem_tensor((4,), x.element_type)
            cute.copy(cute.make_copy_atom(CopyG2ROp(), x.element_type, num_bits_per_copy=128, **load), x[None, n], held)
            for op, pair in ((CopyR2SOp(), (held, shared)), (CopyS2ROp(), (shared, held))):
                cute.copy(cute.make_copy_atom(op, x.element_type, shared_space=SharedSpace.CTA), *pair)
            cute.copy(
                cute.make_copy_atom(CopyR2GOp(), x.element_type, num_bits_per_copy=128, **store), held, y[None, n]
            )

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=1, block=1)

    count = len(CACHED)
    x, y = np.arange(4 * count, dtype=np.float32).reshape(count, 4).T, np.zeros((count, 4), np.float32).T
    arguments = [cute.runtime.from_dlpack(array, assumed_align=16) for array in (x, y)]
    cute.compile(launch, *arguments, target="cpu")(*arguments)
    assert np.array_equal(x, y)
    if codegen.ptxas_version() is None:
        return
    fakes = [cute.runtime.make_fake_compact_tensor(Float32, (4, count), assumed_align=16) for _ in range(2)]
    ptx = str(cute.compile(launch, *fakes, target="nvidia", options="--gpu-arch sm_90a").__ptx__)
    found = re.findall(r"^\s*(?:ld|st)\.(?!param)((?:\w|\.)*global\S*)\.v", ptx, re.MULTILINE)
    wanted = [words for *_, load, store in CACHED.values() for words in (load, store)]
    assert [".".join(w for w in words.split(".") if w != "global") for words in found] == wanted


@pytest.mark.parametrize(
    ("op", "options", "words"),
    [
        (CopyG2ROp, {"load_cache_mode": "cg"}, "load_cache_mode is 'cg'"),
        (CopyG2ROp, {"store_cache_mode": StoreCacheMode.GLOBAL}, "takes no 'store_cache_mode'"),
        (CopyG2ROp, {"l2_prefetch_size": 128}, "l2_prefetch_size is 128"),
        (CopyG2ROp, {"l2_prefetch_size": L2PrefetchSize.RESERVED}, "RESERVED"),
        (CopyS2ROp, {"load_cache_mode": LoadCacheMode.GLOBAL}, "takes no 'load_cache_mode'"),
        (CopyR2SOp, {"shared_space": "cta"}, "shared_space is 'cta'"),
        (
            CopyG2ROp,
            {"load_cache_mode": LoadCacheMode.GLOBAL, "memory_order": MemoryOrder.ACQUIRE},
            "goes with no ACQUIRE",
        ),
        (CopyG2ROp, {"load_cache_mode": LoadCacheMode.LAST_USE, "invariant": True}, "LAST_USE with invariant"),
    ],
)
def test_cache_modes_that_do_not_go_together(op, options, words):
    with pytest.raises(DSLUserCodeTypeError, match=words):
        cute.make_copy_atom(op(), Float32, **options)
