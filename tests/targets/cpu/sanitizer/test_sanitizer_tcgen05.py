"""Tensor memory under the sanitizer: right kernels are silent, and one wrong thing in them is found."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from kernel_testing import launcher
from sanitizer_testing import found
from tcgen05_testing import allocate, commit, free, holder, lanes_of_warp, load, mbarriers, store, wait, word

import kiln
from kiln import cute, pipeline
from kiln.cute import arch
from kiln.dialects.nvgpu import launch_control, mbarrier, tcgen05
from kiln.dialects.nvgpu.tcgen05_descriptors import block_scaled_instruction_descriptor, instruction_descriptor
from kiln.targets.cpu.faults import TensorMemoryFault
from kiln.targets.cpu.sanitizer.default_checks import ACCESSES

A_BYTES, B_AT, BYTES = 4096, 4096, 8192
IDESC = instruction_descriptor("f16", "f16", "f16", "f32", 128, 16)
OF_A_PAIR = instruction_descriptor("f16", "f16", "f16", "f32", 256, 16, cta_group=2)
WIDER = instruction_descriptor("f16", "f16", "f16", "f32", 128, 32)


def descriptor(smem, offset: int, leading: int):
    return tcgen05.tcgen05_matrix_descriptor((smem + offset // 4).ir_value(), leading, 128, "none")


def mma(d, a, b, accumulate, idesc: int = IDESC, **options):
    adds = cute.Boolean(accumulate).ir_value()
    tcgen05.tcgen05_mma(d.ir_value(), a, b, word(idesc), adds, kind="f16", **{"cta_group": 1, **options})


def findings(kernel, **options) -> set[tuple[str, str]]:
    """(rule, space) of what is found in a launch; warnings have the rule "warning"."""
    out = np.zeros(128, np.int32)
    with kiln.target("cpu"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = found(launcher(kernel, 1, **{"grid": 1, "block": 128, **options}), out)
    rules = {(finding.rule, finding.space) for finding in made}
    return rules | {("warning", "tensor") for warning in said if "tensor memory" in str(warning.message)}


# --- a GEMM of one CTA -------------------------------------------------------------------------------------------------


def gemm(*wrong: str):
    """Two rounds of two MMAs by thread 32, whose operands all threads write; four warps load the accumulator."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, BYTES // 4, 1024)
        words = cute.make_tensor(smem, cute.make_layout(BYTES // 4))
        t, full = arch.thread_idx()[0], mbarriers(1)
        if t == 0:
            arch.mbarrier_init(full, 1)
        address = allocate(holder(), 64)
        a, b = descriptor(smem, 0, 2048), descriptor(smem, B_AT, 512)
        if "A from D" in wrong or "A in tensor memory" in wrong:
            a = (address + 32).ir_value()
        total = cute.Int32(0)
        for i in range(cute.Int32(2)):
            for j in range(cute.Int32(BYTES // 512)):
                words[j * 128 + t] = t + j
            if "A in tensor memory" in wrong:
                store(lanes_of_warp(address) + 32, [t] * 8, "32x32b", 8)
                if "no wait for stores" not in wrong:
                    tcgen05.tcgen05_wait(kind="ld" if "waits for loads" in wrong else "st")
            if "no proxy fence" not in wrong:
                arch.fence_view_async_shared()
            if "no barrier before" not in wrong:
                arch.sync_threads()
            if t // 32 == 1:
                if t == 32 or "no election" in wrong:
                    mma(address, a, b, i != 0 if "accumulates" in wrong else "unset" in wrong)
                    if "commit too early" in wrong:
                        commit(full)
                    if "two shapes" in wrong:
                        mma(address, a, b, accumulate=False, idesc=WIDER)
                    elif "A from D" in wrong:
                        mma(address + 32, descriptor(smem, 0, 2048), b, accumulate=False)
                        mma(address, a, b, accumulate=True)
                    else:
                        mma(address, a, b, accumulate=True)
                    if "commit too early" not in wrong and "another thread commits" not in wrong:
                        commit(full)
                if "another thread commits" in wrong:
                    if t == 33:
                        commit(full)
            if "overwritten" in wrong:
                words[t] = cute.Int32(0)
            if "no wait" not in wrong:
                wait(full, i)
            if "fences" in wrong:
                tcgen05.tcgen05_fence(kind="after_thread_sync")
            loaded = load(lanes_of_warp(address), "32x32b", 16)[3]
            if "used late" not in wrong:
                total += loaded
            if "no wait for loads" not in wrong:
                tcgen05.tcgen05_wait(kind="ld")
            if "fences" in wrong:
                tcgen05.tcgen05_fence(kind="before_thread_sync")
            if "no barrier after" not in wrong:
                arch.sync_threads()
            if "used late" in wrong:
                total += loaded
        out[t] = total
        if "freed before the last MMA" in wrong:
            if t == 32:
                mma(address, a, b, accumulate=False)
        if "freed too early" in wrong:
            more = load(lanes_of_warp(address), "32x32b", 1)
            out[t] = more[0]
            tcgen05.tcgen05_wait(kind="ld")
            if t < 32:
                tcgen05.tcgen05_dealloc(address.ir_value(), word(64), cta_group=1)
        else:
            free(address, 64)

    return kernel


@pytest.mark.quick(0)  # 2^26 accesses
def test_operands_written_after_the_checks_by_default_have_ended(monkeypatch):
    monkeypatch.setenv("KILN_CHECKS", "first")

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, BYTES // 4, 1024)
        words = cute.make_tensor(smem, cute.make_layout(BYTES // 4))
        t, full = arch.thread_idx()[0], mbarriers(1)
        if t == 0:
            arch.mbarrier_init(full, 1)
        address = allocate(holder(), 64)
        for i in range(cute.Int32(ACCESSES // 128)):
            words[t] = i
        for j in range(cute.Int32(BYTES // 512)):
            words[j * 128 + t] = t + j
        arch.fence_view_async_shared()
        arch.sync_threads()
        if t == 32:
            mma(address, descriptor(smem, 0, 2048), descriptor(smem, B_AT, 512), accumulate=False)
            commit(full)
        wait(full, 0)
        out[t] = load(lanes_of_warp(address), "32x32b", 16)[3]
        tcgen05.tcgen05_wait(kind="ld")
        arch.sync_threads()
        free(address, 64)

    with kiln.target("cpu"), warnings.catch_warnings():
        warnings.simplefilter("error")
        launcher(kernel, 1, grid=1, block=128)(np.zeros(128, np.int32))


@pytest.mark.parametrize("used", [True, False])
def test_an_elected_lane_releases_what_its_warp_has_loaded(used):
    """Without a wait for the loads it is a warning, if all lanes have used them when they elect one, as public programs
    do; else an error."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, BYTES // 4, 1024)
        words = cute.make_tensor(smem, cute.make_layout(BYTES // 4))
        t, full, empty = arch.thread_idx()[0], mbarriers(1), mbarriers(1)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init(empty, 4)
        address = allocate(holder(), 32)
        for j in range(cute.Int32(BYTES // 640)):
            words[j * 160 + t] = 0
        arch.fence_view_async_shared()
        arch.sync_threads()
        a, b = descriptor(smem, 0, 2048), descriptor(smem, B_AT, 512)
        if t == 128:
            mma(address, a, b, accumulate=False)
            commit(full)
            wait(empty, 0)
            mma(address, a, b, accumulate=False)
            commit(full)
        if t < 128:
            wait(full, 0)
            loaded = load(lanes_of_warp(address), "32x32b", 1)[0]
            total = loaded + 1 if used else loaded
            with arch.elect_one():
                arch.mbarrier_arrive(empty)
            out[t] = total if used else total + 1
        wait(full, 1)
        free(address, 32)

    wanted = {("warning", "tensor")} if used else {("tmem-unwaited", "tensor")}
    got = findings(kernel, block=160)
    assert wanted <= got and (not used or got == wanted)


RIGHT = [(), ("fences",), ("accumulates",), ("A in tensor memory",), ("used late",)]


@pytest.mark.parametrize("kind", RIGHT, ids=str)
def test_right_kernels(kind):
    assert findings(gemm(*kind)) == set()


WRONG = [
    ({("proxy", "shared")}, ("no proxy fence",)),
    ({("write-read", "shared")}, ("no barrier before",)),
    ({("write-read", "tensor")}, ("no wait",)),
    ({("write-read", "tensor")}, ("commit too early",)),
    ({("write-read", "tensor")}, ("another thread commits",)),
    ({("read-write", "shared")}, ("overwritten",)),
    ({("uninitialized", "tensor")}, ("unset",)),
    ({("write-write", "tensor")}, ("two shapes",)),
    ({("write-write", "tensor")}, ("no election",)),
    ({("tmem-unwaited", "tensor")}, ("A in tensor memory", "no wait for stores")),
    ({("tmem-unwaited", "tensor")}, ("A in tensor memory", "waits for loads")),
    ({("tmem-format", "tensor")}, ("A from D",)),
    ({("warning", "tensor")}, ("no wait for loads",)),
    ({("tmem-unwaited", "tensor")}, ("no wait for loads", "used late", "no barrier before")),
    ({("read-write", "tensor")}, ("no barrier after", "no barrier before")),
    ({("read-write", "tensor")}, ("freed too early",)),
    ({("write-write", "tensor")}, ("freed before the last MMA",)),
]


@pytest.mark.quick(9)
@pytest.mark.parametrize(("rules", "wrong"), WRONG, ids=[" ".join(wrong) for _, wrong in WRONG])
def test_one_wrong_thing_is_found(rules, wrong):
    assert rules <= findings(gemm(*wrong))


FAULTS = [
    (r"tcgen05.ld accesses columns 0 to 0, which the CTA has not allocated", "before the allocation"),
    (r"tcgen05.ld accesses columns 0 to 0, which the CTA has not allocated", "after the release"),
    (r"tcgen05.mma .*56 to 71", "beyond the allocation"),
    (r"has not freed when it ends: 64 columns", "leaked"),
    (r"tcgen05.ld accesses lanes from 32 on in warp", "lanes of another warp"),
    (r"of 32 columns, and the other CTA of the pair allocates 64", "pair of other sizes"),
]


@pytest.mark.parametrize(("text", "wrong"), FAULTS, ids=[wrong for _, wrong in FAULTS])
def test_faults_of_the_cpu_target_under_the_sanitizer(text, wrong):
    """Each is a fault without the sanitizer, too, but for freed columns, of which the CPU target only warns.

    The kernel without `wrong` is right (`test_right_lifetimes`).
    """
    group = 2 if "pair" in wrong else 1
    options = {"grid": 2, "cluster": (2, 1, 1)} if group == 2 else {}
    with pytest.raises(TensorMemoryFault, match=text):
        findings(lifetime(wrong, group), **options)


@pytest.mark.parametrize("wrong", ["allocation of columns that nobody frees", "allocation of one CTA of a pair"])
def test_allocations_that_wait_for_ever(wrong):
    group = 2 if "pair" in wrong else 1
    options = {"grid": 2, "cluster": (2, 1, 1)} if group == 2 else {}
    assert ("deadlock", "") in findings(lifetime(wrong, group), **options)


@pytest.mark.parametrize("group", [1, 2])
def test_right_lifetimes(group):
    got = findings(lifetime("", group), **({"grid": 2, "cluster": (2, 1, 1)} if group == 2 else {}))
    assert got <= {("write-write", "global")}  # both CTAs write the same


def lifetime(wrong: str, cta_group: int):
    """Allocate, store, load and free columns."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, BYTES // 4, 1024)
        t, place, rank = arch.thread_idx()[0], holder(), arch.block_idx()[0]
        arch.cluster_arrive()
        arch.cluster_wait()
        if wrong == "before the allocation":
            load(lanes_of_warp(cute.Int32(0)), "32x32b", 1)
        columns = cute.Int32(64) >> (rank if wrong == "pair of other sizes" else 0)
        if t < 32:
            if wrong != "allocation of one CTA of a pair" or rank == 0:
                tcgen05.tcgen05_alloc(place.iterator.ir_value(), columns.ir_value(), cta_group=cta_group)
            if wrong == "allocation of columns that nobody frees":
                for _ in range(cute.Int32(8)):
                    tcgen05.tcgen05_alloc((place.iterator + 1).ir_value(), word(64), cta_group=1)
        arch.sync_threads()
        arch.cluster_arrive()
        arch.cluster_wait()
        address = place[0]
        store(lanes_of_warp(address), [t], "32x32b", 1)
        tcgen05.tcgen05_wait(kind="st")
        if wrong == "beyond the allocation":
            if t == 0:
                mma(address + 56, descriptor(smem, 0, 2048), descriptor(smem, B_AT, 256), accumulate=False)
        at = address + (32 << 16) if wrong == "lanes of another warp" else lanes_of_warp(address)
        out[t] = load(at, "32x32b", 1)[0]
        tcgen05.tcgen05_wait(kind="ld")
        arch.cluster_arrive()
        arch.cluster_wait()
        if wrong != "leaked":
            free(address, 64, cta_group)
        if wrong == "after the release":
            arch.sync_threads()
            load(lanes_of_warp(address), "32x32b", 1)

    return kernel


@pytest.mark.parametrize(("issuer", "cluster"), [(0, 2), (1, 2), (2, 4), (3, 4)])
def test_the_even_cta_of_a_pair_issues_its_mmas(issuer: int, cluster: int):
    both = 3 << (issuer & ~1)

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, BYTES // 4, 1024)
        words = cute.make_tensor(smem, cute.make_layout(BYTES // 4))
        t, full, rank = arch.thread_idx()[0], mbarriers(1), arch.block_idx_in_cluster()
        for i in range(cute.Int32(BYTES // 512)):
            words[i * 128 + t] = t + i
        if t == 0:
            arch.mbarrier_init(full, 1)
        arch.fence_view_async_shared()
        arch.cluster_arrive()
        arch.cluster_wait()
        address = allocate(holder(), 64, 2)
        arch.cluster_arrive()
        arch.cluster_wait()
        if rank // 2 == issuer // 2:
            if t == 32 and rank == issuer:
                mma(
                    address,
                    descriptor(smem, 0, 2048),
                    descriptor(smem, B_AT, 128),
                    accumulate=False,
                    idesc=OF_A_PAIR,
                    cta_group=2,
                )
                commit(full, both, cta_group=2)
            wait(full)
        if rank == issuer:
            out[t] = load(lanes_of_warp(address), "32x32b", 1)[0]
        tcgen05.tcgen05_wait(kind="ld")
        arch.cluster_arrive()
        arch.cluster_wait()
        free(address, 64, 2)

    found_in_it = findings(kernel, grid=cluster, cluster=(cluster, 1, 1))
    assert found_in_it == ({("pair-issuer", "")} if issuer % 2 else set())


def test_a_fault_is_raised_alone():
    """Other threads find that the thread which the fault ended comes to no barrier: that is not worth a finding."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        address = allocate(holder(), 64)
        load(address + (32 << 16), "32x32b", 1)
        free(address, 64)

    with pytest.raises(TensorMemoryFault, match="accesses lanes from 32 on in warp 0"):
        findings(kernel)


# --- scale factors -----------------------------------------------------------------------------------------------------

SCALED = [
    block_scaled_instruction_descriptor("mxf8f6f4", "e4m3", "e4m3", "ue8m0", 128, 16, sfa_id=n, sfb_id=n)
    for n in (0, 1)
]
"""Instruction descriptors whose scale factors are byte n of their cells."""
SFA_AT, SFB_AT = 5120, 5632


def scaled(*wrong: str):
    """Two MMAs of a thread, whose scale factors it copies before each of them: to the same columns."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, BYTES // 4, 1024)
        words = cute.make_tensor(smem, cute.make_layout(BYTES // 4))
        t, full, copied = arch.thread_idx()[0], mbarriers(1), mbarriers(1)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init(copied, 1)
        address = allocate(holder(), 64)
        for j in range(cute.Int32(BYTES // 512)):
            words[j * 128 + t] = t + j
        if "a warp's scales overwritten" in wrong:
            arch.fence_view_async_shared()
            arch.sync_threads()
        if "scales of one warp" in wrong:
            if t < 32:
                store(address + 36, [t], "32x32b", 1)
                tcgen05.tcgen05_wait(kind="st")
        if "a warp's scales overwritten" in wrong:
            if t == 32:
                source = descriptor(smem, SFA_AT, 0)
                tcgen05.tcgen05_cp((address + 32).ir_value(), source, shape="32x128b.warpx4", cta_group=1)
                tcgen05.tcgen05_cp((address + 36).ir_value(), source, shape="32x128b.warpx4", cta_group=1)
                commit(copied)
            wait(copied)
            if t // 32 == 2:
                store(lanes_of_warp(address) + 33, [t], "32x32b", 1)
                tcgen05.tcgen05_wait(kind="st")
        arch.fence_view_async_shared()
        arch.sync_threads()
        if t == 32:
            for k, idesc in enumerate(SCALED):
                for at, column in () if "a warp's scales overwritten" in wrong else ((SFA_AT, 32), (SFB_AT, 36)):
                    if column == 32 or ("no copy" not in wrong and "scales of one warp" not in wrong):
                        source = descriptor(smem, at, 0)
                        tcgen05.tcgen05_cp((address + column).ir_value(), source, shape="32x128b.warpx4", cta_group=1)
                a, b = descriptor(smem, 0, 2048), descriptor(smem, B_AT, 256)
                sfa = address + (33 if "scales of other rows" in wrong else 32)
                tcgen05.tcgen05_mma_block_scale(
                    address.ir_value(), a, b, word(idesc), sfa.ir_value(), (address + 36).ir_value(),
                    cute.Boolean(k != 0).ir_value(), kind="mxf8f6f4", block=32, cta_group=1,
                )  # fmt: skip
            if "copy to D" in wrong:
                source = descriptor(smem, SFA_AT, 0)
                tcgen05.tcgen05_cp(address.ir_value(), source, shape="32x128b.warpx4", cta_group=1)
            if "scales from D" in wrong:
                tcgen05.tcgen05_mma_block_scale(
                    (address + 40).ir_value(), a, b, word(SCALED[0]), address.ir_value(), (address + 36).ir_value(),
                    cute.Boolean(False).ir_value(), kind="mxf8f6f4", block=32, cta_group=1,
                )  # fmt: skip
            commit(full)
        if "refilled" in wrong:
            words[SFA_AT // 4 + t] = cute.Int32(0)
        wait(full)
        out[t] = load(lanes_of_warp(address), "32x32b", 16)[3]
        tcgen05.tcgen05_wait(kind="ld")
        free(address, 64)

    return kernel


WIDE = block_scaled_instruction_descriptor("mxf8f6f4", "e4m3", "e4m3", "ue8m0", 128, 192)


@pytest.mark.parametrize("column", [0, 1, 2, 3])
def test_tiles_of_columns_start_in_the_middle_of_scale_factors(column):
    """B of 192 columns: scale factors of the first tile start with a copy, those of the next one 64 rows later."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, 4096, 1024)
        words = cute.make_tensor(smem, cute.make_layout(4096))
        t, full = arch.thread_idx()[0], mbarriers(1)
        if t == 0:
            arch.mbarrier_init(full, 1)
        address = allocate(holder(), 256)
        for j in range(cute.Int32(32)):
            words[j * 128 + t] = t + j
        arch.fence_view_async_shared()
        arch.sync_threads()
        if t == 32:
            for at in (192, 196, 200, 204):
                source = descriptor(smem, 0, 0)
                tcgen05.tcgen05_cp((address + at).ir_value(), source, shape="32x128b.warpx4", cta_group=1)
            a, b = descriptor(smem, 0, 2048), descriptor(smem, 4096, 3072)
            tcgen05.tcgen05_mma_block_scale(
                address.ir_value(), a, b, word(WIDE), (address + 192).ir_value(), (address + 196 + column).ir_value(),
                cute.Boolean(False).ir_value(), kind="mxf8f6f4", block=32, cta_group=1,
            )  # fmt: skip
            commit(full)
        wait(full)
        out[t] = load(lanes_of_warp(address), "32x32b", 16)[3]
        tcgen05.tcgen05_wait(kind="ld")
        free(address, 256)

    assert findings(kernel) == ({("tmem-scales", "tensor")} if column % 2 else set())


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        (set(), ()),
        ({("uninitialized", "tensor")}, ("no copy",)),
        ({("uninitialized", "tensor")}, ("scales of one warp",)),
        ({("write-write", "tensor")}, ("copy to D",)),
        ({("tmem-format", "tensor")}, ("scales from D",)),
        ({("tmem-scales", "tensor")}, ("scales of other rows",)),
        ({("tmem-scales", "tensor")}, ("a warp's scales overwritten",)),
        ({("read-write", "shared")}, ("refilled",)),
    ],
    ids=str,
)
def test_scale_factors(rules, wrong):
    got = findings(scaled(*wrong))
    assert rules <= got and (rules or not got)


# --- relaxed synchronization -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fenced", [True, False])
def test_relaxed_arrivals_need_a_fence(fenced):
    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, BYTES // 4, 1024)
        words = cute.make_tensor(smem, cute.make_layout(BYTES // 4))
        t, stored, full = arch.thread_idx()[0], mbarriers(1), mbarriers(1)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init(stored, 128)
        address = allocate(holder(), 64)
        words[B_AT // 4 + t] = t
        arch.fence_view_async_shared()
        arch.sync_threads()
        store(lanes_of_warp(address) + 32, [t] * 8, "32x32b", 8)
        tcgen05.tcgen05_wait(kind="st")
        if fenced:
            tcgen05.tcgen05_fence(kind="before_thread_sync")
        mbarrier.mbarrier_arrive(stored.ir_value(), word(1), word(0), word(-1), order="relaxed", scope="cta")
        if t == 32:
            wait(stored)
            tcgen05.tcgen05_fence(kind="after_thread_sync")
            mma(address, (address + 32).ir_value(), descriptor(smem, B_AT, 256), accumulate=False)
            commit(full)
        wait(full)
        out[t] = load(lanes_of_warp(address), "32x32b", 16)[3]
        tcgen05.tcgen05_wait(kind="ld")
        free(address, 64)

    assert findings(kernel) == (set() if fenced else {("write-read", "tensor")})


@pytest.mark.parametrize("missing", ["", "before", "after"])
def test_relaxed_flags_need_both_fences(missing):
    """Warp 0 stores to tensor memory, and warp 4, which accesses the same lanes, waits for a flag."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        flag = arch.alloc_smem(cute.Int32, 4, 16)
        t = arch.thread_idx()[0]
        if t == 0:
            arch.store(flag, cute.Int32(0), sem="relaxed", scope="cta")
        address = allocate(holder(), 32)
        if t < 32:
            store(address, [t], "32x32b", 1)
            tcgen05.tcgen05_wait(kind="st")
            if missing != "before":
                tcgen05.tcgen05_fence(kind="before_thread_sync")
            if t == 0:
                arch.store(flag, cute.Int32(1), sem="relaxed", scope="cta")
        if t >= 128:
            seen = cute.Int32(0)
            while seen == 0:
                seen = arch.load(flag, cute.Int32, sem="relaxed", scope="cta")
            if missing != "after":
                tcgen05.tcgen05_fence(kind="after_thread_sync")
            value = load(address, "32x32b", 1)[0]
            tcgen05.tcgen05_wait(kind="ld")
            out[t - 128] = value
        free(address, 32)

    assert findings(kernel, block=160) == ({("write-read", "tensor")} if missing else set())


# --- pairs -------------------------------------------------------------------------------------------------------------

PAIR = instruction_descriptor("f16", "f16", "f16", "f32", 256, 32, cta_group=2)


def pair(*wrong: str):
    """An MMA of a pair of CTAs, which both write operands for and whose accumulators both load."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, BYTES // 4, 1024)
        words = cute.make_tensor(smem, cute.make_layout(BYTES // 4))
        t, rank, full, late = arch.thread_idx()[0], arch.block_idx_in_cluster(), mbarriers(1), mbarriers(1)
        if t == 0:
            arch.mbarrier_init(late, 1)
            arch.mbarrier_init(full, 2 if "both issue" in wrong else 1)
            arch.mbarrier_init_fence()
        threads = (
            pipeline.CooperativeGroup(pipeline.Agent.Thread, 256),
            pipeline.CooperativeGroup(pipeline.Agent.Thread),
        )
        producer, consumer = pipeline.PipelineAsyncUmma.create(
            num_stages=1, producer_group=threads[0], consumer_group=threads[1], defer_sync=True,
            cta_layout_vmnk=cute.make_layout((2, 1, 1, 1)),
        ).make_participants()  # fmt: skip
        if "allocates too early" not in wrong:
            arch.cluster_arrive_relaxed()
            arch.cluster_wait()
        address = allocate(holder(), 64, cta_group=2)
        for j in range(cute.Int32(BYTES // 512)):
            words[j * 128 + t] = t + j
        if "no fence" not in wrong:
            arch.fence_view_async_shared()
        if "pipeline" in wrong:
            producer.acquire_and_advance().commit()
            if rank == 0:
                consumer.wait_and_advance()
        elif "peer not ready" in wrong:
            arch.sync_threads()
        else:
            arch.cluster_arrive()
            arch.cluster_wait()
        if rank == 0 or "both issue" in wrong:
            if t == 0:
                a, b = descriptor(smem, 0, 2048), descriptor(smem, B_AT, 256)
                mma(address, a, b, accumulate=False, idesc=PAIR, cta_group=2)
                commit(full, 3, cta_group=2)
        if "peer does not wait" not in wrong or rank == 0:
            wait(full)
        value = load(lanes_of_warp(address), "32x32b", 32)[3]
        tcgen05.tcgen05_wait(kind="ld")
        out[t] = value
        if "freed too early" not in wrong:
            arch.cluster_arrive()
            arch.cluster_wait()
        free(address, 64, cta_group=2)
        if "commits at the end" in wrong or "commits to a CTA that ends" in wrong:
            if rank == 0:
                if t == 0:
                    commit(late, 3, cta_group=2)
            if rank == 0 or "commits to a CTA that ends" not in wrong:
                wait(late)
        if "freed too early" in wrong:
            arch.cluster_arrive()
            arch.cluster_wait()

    return kernel


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        (set(), ()),
        (set(), ("commits at the end",)),
        (set(), ("pipeline",)),
        ({("proxy", "shared")}, ("pipeline", "no fence")),
        ({("block-exited", "")}, ("commits to a CTA that ends",)),
        ({("block-started", "")}, ("allocates too early",)),
        ({("write-read", "shared")}, ("peer not ready",)),
        ({("write-read", "tensor")}, ("peer does not wait",)),
        ({("write-write", "tensor")}, ("both issue",)),
        ({("read-write", "tensor")}, ("freed too early",)),
    ],
    ids=str,
)
def test_pairs(rules, wrong):
    got = {found for found in findings(pair(*wrong), grid=2, cluster=(2, 1, 1)) if found != ("write-write", "global")}
    assert rules <= got and (rules or not got)


# --- cluster launch control --------------------------------------------------------------------------------------------


def requests(*wrong: str):
    """Two requests; two warps read the answers."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        response, full = arch.alloc_smem(cute.Int32, 4, 16), mbarriers(2)
        t = arch.thread_idx()[0]
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init(full + 1, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        for i in range(cute.Int32(2)):
            if t == 0:
                arch.mbarrier_arrive_and_expect_tx(full + i, 16)
                launch_control.clc_try_cancel(response.ir_value(), (full + i).ir_value())
                if "nobody waits" not in wrong:
                    wait(full + i)
            if t >= 64 and "nobody waits" not in wrong:
                if "no wait" not in wrong:
                    wait(full + i)
                launch_control.clc_query_cancel(response.ir_value())
                arch.fence_view_async_shared()
            if "no barrier" not in wrong:
                arch.sync_threads()

    return kernel


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        (set(), ()),
        ({("write-read", "shared")}, ("no wait",)),
        ({("write-read", "shared")}, ("no barrier",)),
        ({("copy-unseen", "shared")}, ("nobody waits",)),
    ],
    ids=str,
)
def test_requests_of_launch_control(rules, wrong):
    got = findings(requests(*wrong))
    assert rules <= got and (rules or not got)
