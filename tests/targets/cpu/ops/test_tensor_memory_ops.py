"""Tensor memory on the CPU target: allocation, loads, stores, copies and shifts, against their plain definitions."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest
import tcgen05_testing
from kernel_testing import asm, launcher, run, runs
from mma_cases import elements_of
from tcgen05_testing import (
    allocate,
    commit,
    fill,
    free,
    holder,
    lanes_of_warp,
    load,
    long,
    mbarriers,
    read_all,
    store,
    wait,
    word,
)

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import CompilerDiagnosticError, DSLArchitectureError, DSLRuntimeError, DSLWarning
from kiln.cute import arch
from kiln.dialects.nvgpu import definitions, tcgen05
from kiln.dialects.nvgpu import tensor_memory as tmem
from kiln.dialects.nvgpu.tcgen05_descriptors import instruction_descriptor, tcgen05_matrix_descriptor
from kiln.targets.cpu.faults import TensorMemoryFault
from kiln.targets.cpu.runtime import tensor_memory as runtime
from kiln.targets.cpu.runtime.deadlock_report import DeadlockFault

SEEDS = [(1, 0), (2, 0), (1, 1), (1, 2)]
COLUMNS = 128


def words(*shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32).view(np.int32)


def test_the_tables_of_the_runtime_are_those_of_the_definitions():
    assert tuple(tmem.LD_SHAPES) == runtime.SHAPES and tuple(tmem.CP_SHAPES) == runtime.COPIES
    assert tuple(shape.columns for shape in tmem.LD_SHAPES.values()) == runtime.WIDTHS
    assert tuple(shape.registers for shape in tmem.LD_SHAPES.values()) == runtime.REGISTERS
    assert tuple(shape.rows for shape in tmem.CP_SHAPES.values()) == runtime.ROWS
    assert tuple(shape.row_bytes // 16 for shape in tmem.CP_SHAPES.values()) == runtime.PIECES


# --- loads and stores --------------------------------------------------------------------------------------------------

LOADS = [
    ("32x32b", 4, 0, False), ("32x32b", 2, 0, True), ("16x64b", 4, 0, False), ("16x64b", 2, 0, True), ("16x128b", 2, 0, False),
    ("16x128b", 1, 0, True), ("16x256b", 2, 0, False), ("16x256b", 1, 0, True), ("16x32bx2", 4, 40, False), ("16x32bx2", 2, 40, True),
]  # fmt: skip


def place(t, address, shape):
    """An address of the lanes of a warp: of 16 lanes, the upper ones in every other warp."""
    upper = 0 if tmem.LD_SHAPES[shape].lanes == 32 else (t // 32 % 2) << 20
    return lanes_of_warp(address) + upper + 8


def place_of(warp: int, shape: str) -> int:
    return tmem.address(32 * warp + (16 * (warp % 2) if tmem.LD_SHAPES[shape].lanes == 16 else 0), 8)


def test_addresses_without_lanes_are_of_the_warp():
    """Public programs give all warps the address that alloc returned: the hardware reaches a warp's own lanes only."""

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t, address = arch.thread_idx()[0], allocate(holder(), 32)
        store(address, [x[t]], "32x32b", 1)
        tcgen05.tcgen05_wait("st")
        part = address + (t // 96 << 21)  # warp 3 says lane 32
        values = [load(at, "32x32b", 1)[0] for at in (lanes_of_warp(address), address, part)]
        out[t] = values[0] + values[1] + values[2]
        tcgen05.tcgen05_wait("ld")
        arch.sync_threads()
        free(address, 32)

    x, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    run(kernel, x, out, block=128)
    assert out.tolist() == (3 * x).tolist()


def test_loads():
    total = sum(tmem.ld_registers(shape, repeat) for shape, repeat, _, _ in LOADS)

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t, address = arch.thread_idx()[0], allocate(holder(), COLUMNS)
        fill(address, x, COLUMNS)
        at = 0
        for shape, repeat, split, pack in LOADS:
            options = {"split": split} if split else {}
            for value in load(place(t, address, shape), shape, repeat, pack=pack, **options):
                out[t, at] = value
                at += 1
        tcgen05.tcgen05_wait(kind="ld")
        free(address, COLUMNS)

    x, out = words(128, COLUMNS), np.zeros((128, total), np.int32)
    for _, found in runs(kernel, x, out, block=128, schedules=SEEDS):
        at = 0
        for shape, repeat, split, pack in LOADS:
            count = tmem.ld_registers(shape, repeat)
            for warp in range(4):
                wanted = definitions.tcgen05_ld(x.view(np.uint32), place_of(warp, shape), shape, repeat, split, pack)
                got = found[32 * warp : 32 * warp + 32, at : at + count].view(np.uint32)
                np.testing.assert_array_equal(got, np.array(wanted, np.uint32), f"{shape} {repeat} {pack}")
            at += count


@pytest.mark.quick(4)
@pytest.mark.parametrize(("shape", "repeat", "split", "unpack"), [LOADS[n] for n in (0, 1, 3, 5, 6, 8, 9)])
def test_stores(shape, repeat, split, unpack):
    count = tmem.ld_registers(shape, repeat)
    options = {"split": split} if split else {}

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
        t, address = arch.thread_idx()[0], allocate(holder(), COLUMNS)
        fill(address, x, COLUMNS)
        store(place(t, address, shape), [y[t, n] for n in range(count)], shape, repeat, unpack=unpack, **options)
        tcgen05.tcgen05_wait(kind="st")
        read_all(address, out, COLUMNS)
        free(address, COLUMNS)

    x, y = words(128, COLUMNS), words(128, count, seed=4)
    wanted = x.copy().view(np.uint32)
    for warp in range(4):
        given = y[32 * warp : 32 * warp + 32].view(np.uint32).tolist()
        definitions.tcgen05_st(wanted, place_of(warp, shape), given, shape, repeat, split, unpack)
    for _, _, out in runs(kernel, x, y, np.zeros((128, COLUMNS), np.int32), block=128, schedules=SEEDS[1:]):
        np.testing.assert_array_equal(out.view(np.uint32), wanted)


def test_a_store_may_land_as_late_as_its_wait():
    """Under a seed loads before the wait find what was there before, sometimes."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t, address = arch.thread_idx()[0], allocate(holder(), 32)
        here = lanes_of_warp(address)
        store(here, [cute.Int32(1)], "32x32b", 1)
        tcgen05.tcgen05_wait(kind="st")
        store(here, [cute.Int32(2)], "32x32b", 1)
        out[t, 0] = load(here, "32x32b", 1)[0]
        tcgen05.tcgen05_wait(kind="st")
        out[t, 1] = load(here, "32x32b", 1)[0]
        free(address, 32)

    early = set()
    for (out,) in runs(kernel, np.zeros((128, 2), np.int32), block=128, schedules=[(1, seed) for seed in range(4)]):
        assert (out[:, 1] == 2).all()
        early |= set(out[:, 0].tolist())
    assert early == {1, 2}


REDUCTIONS = [
    ("32x32b", 4, 0, "max", "f32", {}), ("32x32b", 8, 0, "min", "f32", {"abs": True, "nan": True}),
    ("16x32bx2", 4, 64, "min", "s32", {}), ("32x32b", 2, 0, "max", "u32", {}), ("32x32b", 4, 0, "min", "f32", {"nan": True}),
]  # fmt: skip


def test_loads_that_reduce():
    total = sum(repeat + 1 for _, repeat, *_ in REDUCTIONS)

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t, address = arch.thread_idx()[0], allocate(holder(), COLUMNS)
        fill(address, x, COLUMNS)
        at = 0
        for shape, repeat, split, kind, type_, options in REDUCTIONS:
            given = {"split": split, **options} if split else options
            made = tcgen05.tcgen05_ld_red(place(t, address, shape).ir_value(), shape, repeat, kind, type_, **given)
            for value in elements_of(made, cute.Int32):
                out[t, at] = value
                at += 1
        free(address, COLUMNS)

    special = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x80000000, 0, 0x3F800000, 0xBF800000, 1]
    x = np.random.default_rng(5).choice(np.array(special, np.uint32), (128, COLUMNS))
    out = np.zeros((128, total), np.int32)
    run(kernel, x.view(np.int32), out, block=128)
    at = 0
    for shape, repeat, split, kind, type_, options in REDUCTIONS:
        flags = (split, options.get("abs", False), options.get("nan", False))
        for warp in range(4):
            wanted = definitions.tcgen05_ld_red(x, place_of(warp, shape), shape, repeat, kind, type_, *flags)
            got = out[32 * warp : 32 * warp + 32, at : at + repeat + 1].view(np.uint32)
            np.testing.assert_array_equal(got, np.array(wanted, np.uint32), f"{kind} {type_} {options}")
        at += repeat + 1


# --- copies and shifts -------------------------------------------------------------------------------------------------

COPIES = [
    ("128x256b", None, "128b", 16, 1024), ("128x128b", None, "none", 4096, 128), ("4x256b", None, "32b", 16, 256),
    ("64x128b.warpx2::02_13", None, "64b", 16, 512), ("64x128b.warpx2::01_23", "b4x16_p64", "none", 0, 128),
    ("32x128b.warpx4", None, "none", 0, 128), ("128x256b", "b6x16_p32", "128b_32b", 16, 1024),
]  # fmt: skip


def test_copies_and_a_shift():
    @cute.kernel
    def kernel(x: cute.Tensor, rows: cute.Tensor, out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, 8192, 1024)
        shared = cute.make_tensor(smem, cute.make_layout(8192))
        t, barrier, address = arch.thread_idx()[0], mbarriers(1), allocate(holder(), COLUMNS)
        for n in range(cute.Int32(64)):
            shared[n * 128 + t] = rows[n * 128 + t]
        if t == 0:
            arch.mbarrier_init(barrier, 1)
        arch.fence_view_async_shared()
        fill(address, x, COLUMNS)
        arch.sync_threads()
        if t == 96:
            for number, (shape, format_, swizzle, leading, stride) in enumerate(COPIES):
                made = tcgen05.tcgen05_matrix_descriptor(
                    (smem + 256 * (number % 2)).ir_value(), leading, stride, swizzle
                )
                at = (address + 8 * number).ir_value()
                tcgen05.tcgen05_cp(at, made, shape=shape, format=format_, cta_group=1)
            tcgen05.tcgen05_shift((address + 64 + (32 << 16)).ir_value(), cta_group=1)
            tcgen05.tcgen05_shift((address + 80).ir_value(), cta_group=1)
            commit(barrier)
        wait(barrier)
        read_all(address, out, COLUMNS)
        free(address, COLUMNS)

    x, rows = words(128, COLUMNS), words(8192, seed=6)
    wanted = x.copy().view(np.uint32)
    for number, (shape, format_, swizzle, leading, stride) in enumerate(COPIES):
        descriptor = tcgen05_matrix_descriptor(1024 * (number % 2), leading, stride, swizzle)
        definitions.tcgen05_cp(wanted, rows.tobytes(), 8 * number, descriptor, shape, format_)
    definitions.tcgen05_shift(wanted, tmem.address(32, 64))
    definitions.tcgen05_shift(wanted, tmem.address(0, 80))
    before = x.view(np.uint32)  # PTX ISA 9.7.16.2.3, 9.7.16.9.3: shape 31x256b, all rows of a warp but the last
    np.testing.assert_array_equal(wanted[32:64, 64:72], before[[*range(33, 64), 63], 64:72])
    np.testing.assert_array_equal(wanted[:32, 80:88], before[[*range(1, 32), 31], 80:88])
    np.testing.assert_array_equal(
        np.delete(wanted[:, 64:72], range(32, 64), 0), np.delete(before[:, 64:72], range(32, 64), 0)
    )
    np.testing.assert_array_equal(wanted[32:, 80:88], before[32:, 80:88])
    for _, _, out in runs(kernel, x, rows, np.zeros((128, COLUMNS), np.int32), block=128, schedules=SEEDS):
        np.testing.assert_array_equal(out.view(np.uint32), wanted)


def test_copies_land_late_and_in_the_order_of_issue():
    """A copy reads shared memory when it is carried out: as late as the commit's arrival under a seed."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, 256, 1024)
        shared = cute.make_tensor(smem, cute.make_layout(256))
        t, barrier, address = arch.thread_idx()[0], mbarriers(1), allocate(holder(), 32)
        shared[t] = cute.Int32(1)
        shared[t + 128] = cute.Int32(2)
        if t == 0:
            arch.mbarrier_init(barrier, 1)
        arch.sync_threads()
        if t == 0:
            for n in range(2):
                made = tcgen05.tcgen05_matrix_descriptor((smem + 128 * n).ir_value(), 0, 128, "none")
                tcgen05.tcgen05_cp(address.ir_value(), made, shape="32x128b.warpx4", cta_group=1)
            commit(barrier)
        shared[t + 128] = cute.Int32(3)
        wait(barrier)
        out[t] = load(lanes_of_warp(address), "32x32b", 1)[0]
        free(address, 32)

    got = set()
    for (out,) in runs(kernel, np.zeros(128, np.int32), block=128, schedules=[(1, seed) for seed in range(5)]):
        got |= set(out.tolist())
    assert got == {2, 3}


def test_a_copy_for_a_pair_takes_the_shared_memory_of_each_cta():
    @cute.kernel
    def kernel(out: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, 128, 1024)
        shared = cute.make_tensor(smem, cute.make_layout(128))
        t, barrier, rank = arch.thread_idx()[0], mbarriers(1), arch.block_idx()[0]
        if t == 0:
            arch.mbarrier_init(barrier, 1)
        shared[t] = rank * 1000 + t
        arch.fence_view_async_shared()
        address = allocate(holder(), 64, cta_group=2)
        arch.cluster_arrive()
        arch.cluster_wait()
        if rank == 0:
            if t == 0:
                made = tcgen05.tcgen05_matrix_descriptor(smem.ir_value(), 0, 128, "none")
                tcgen05.tcgen05_cp(address.ir_value(), made, shape="32x128b.warpx4", cta_group=2)
                tcgen05.tcgen05_shift((address + 32).ir_value(), cta_group=2)
                commit(barrier, 3, cta_group=2)
        wait(barrier)
        out[rank, t] = load(lanes_of_warp(address), "32x32b", 2)[1]
        arch.cluster_arrive()
        arch.cluster_wait()
        free(address, 64, cta_group=2)

    out = np.zeros((2, 128), np.int32)
    for (found,) in runs(kernel, out, grid=2, block=128, cluster=(2, 1, 1), schedules=SEEDS):
        for rank in range(2):
            assert found[rank].tolist() == [1000 * rank + 4 * (t % 32) + 1 for t in range(128)]


# --- allocation --------------------------------------------------------------------------------------------------------


def test_allocations_are_aligned_runs_of_free_slots():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, place = arch.thread_idx()[0], holder()
        at = []
        for columns in (128, 64, 64, 32):
            at.append(allocate(place, columns))
            arch.sync_threads()
        free(at[1], 64)
        arch.sync_threads()
        for n, value in enumerate(at):
            out[n] = value
        if t < 32:
            for n, columns in ((0, 128), (2, 64), (3, 32)):
                tcgen05.tcgen05_dealloc(at[n].ir_value(), word(columns), cta_group=1)

    out = np.zeros(4, np.int32)
    run(kernel, out, block=64)
    assert out.tolist() == [0, 128, 192, 256]


def test_memory_is_nan_after_an_allocation():
    @cute.kernel
    def kernel(out: cute.Tensor):
        address = allocate(holder(), 32)
        read_all(address, out, 32)
        free(address, 32)

    out = np.zeros((128, 32), np.int32)
    run(kernel, out, block=128)
    assert (out == -1).all()


def test_an_allocation_waits_for_columns():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, place = arch.thread_idx()[0], cute.make_tensor(arch.alloc_smem(cute.Int32, 8, 16), cute.make_layout(8))
        if t < 32:
            tcgen05.tcgen05_alloc(place.iterator.ir_value(), word(512), cta_group=1)
        arch.sync_threads()
        if t >= 32:
            tcgen05.tcgen05_alloc((place.iterator + 4).ir_value(), word(256), cta_group=1)
            out[0] = place[4]
            tcgen05.tcgen05_dealloc(place[4].ir_value(), word(256), cta_group=1)
        else:
            arch.sync_warp()
            tcgen05.tcgen05_dealloc(place[0].ir_value(), word(512), cta_group=1)

    for (out,) in runs(kernel, np.full(1, 9, np.int32), block=64):
        assert out[0] == 0


@cute.jit
def write_zeros(address, multiplies: bool):
    """Copy zeros to the first columns, or let an MMA write them, and wait."""
    smem, full = arch.alloc_smem(cute.Int32, 4096, 1024), mbarriers(1)
    words_, t = cute.make_tensor(smem, cute.make_layout(4096)), arch.thread_idx()[0]
    for i in range(cute.Int32(32)):
        words_[i * 128 + t] = 0
    if t == 0:
        arch.mbarrier_init(full, 1)
    arch.fence_view_async_shared()
    arch.sync_threads()
    if t == 0:
        at = tcgen05.tcgen05_matrix_descriptor(smem.ir_value(), 2048, 128, "none")
        if multiplies:
            idesc, adds = instruction_descriptor("f16", "f16", "f16", "f32", 128, 16), cute.Boolean(False).ir_value()
            tcgen05.tcgen05_mma(address.ir_value(), at, at, word(idesc), adds, kind="f16", cta_group=1)
        else:
            tcgen05.tcgen05_cp(address.ir_value(), at, shape="128x256b", cta_group=1)
        commit(full)
    wait(full, 0)


LATE = {
    "ld": lambda at: load(lanes_of_warp(at), "32x32b", 1),
    "st": lambda at: store(lanes_of_warp(at), [arch.thread_idx()[0]], "32x32b", 1),
    "cp": lambda at: write_zeros(at, multiplies=False),
    "mma": lambda at: write_zeros(at, multiplies=True),
}


@pytest.mark.parametrize("late", LATE)
def test_freed_columns_can_be_accessed_until_they_are_allocated_again(late):
    """As on a GPU, where a public program does so; a warning names the rule and the line."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t, place = arch.thread_idx()[0], holder()
        address = allocate(place, 32)
        store(lanes_of_warp(address), [t + 7] * 32, "32x32b", 32)
        tcgen05.tcgen05_wait(kind="st")
        arch.sync_threads()
        if t < 32:
            tcgen05.tcgen05_dealloc(address.ir_value(), word(32), cta_group=1)
        arch.sync_threads()
        LATE[late](address)
        tcgen05.tcgen05_wait(kind="st")
        out[t, 0] = load(lanes_of_warp(address), "32x32b", 1)[0]
        out[t, 1] = load(lanes_of_warp(address) + 31, "32x32b", 1)[0]
        arch.sync_threads()
        again = allocate(place, 32)
        out[t, 2] = load(lanes_of_warp(again), "32x32b", 1)[0]
        free(again, 32)

    lane = np.arange(128)
    first = {"ld": lane + 7, "st": lane}.get(late, 0 * lane)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for (out,) in runs(kernel, np.zeros((128, 3), np.int32), block=128, schedules=SEEDS):
            np.testing.assert_array_equal(out, np.stack([first, lane + 7, np.full(128, -1)], 1))
    text = f"tcgen05.{late} accesses columns of tensor memory that the CTA has freed (kernel kernel, block (0, 0, 0)"
    assert said and all(warning.category is DSLWarning and text in str(warning.message) for warning in said)
    assert said[0].filename == (tcgen05_testing.__file__ if late in ("ld", "st") else __file__) and said[0].lineno


@pytest.mark.parametrize("first", [0, 1])
def test_the_ctas_of_a_pair_allocate_together(first):
    """CTA `first` comes much earlier; both get the same columns, twice."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t, rank, place = arch.thread_idx()[0], arch.block_idx()[0], holder()
        if rank != first:
            for _ in range(cute.Int32(5)):
                arch.sync_threads()
        one = allocate(place, 256, cta_group=2)
        arch.sync_threads()
        two = allocate(place, 128, cta_group=2, warp=1)
        free(one, 256, cta_group=2)
        arch.sync_threads()
        if t == 0:
            out[rank, 0], out[rank, 1] = one, two
        if t < 32:
            tcgen05.tcgen05_dealloc(two.ir_value(), word(128), cta_group=2)

    out = np.full((4, 2), 9, np.int32)
    for (found,) in runs(kernel, out, grid=4, block=64, cluster=(2, 1, 1), schedules=SEEDS):
        assert found.tolist() == [[0, 256]] * 4


def alone(body, columns: int = 64, cta_group: int = 1, **options):
    """Run `body(address, t)` in a kernel that allocates before and frees afterwards."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        address = allocate(holder(), columns, cta_group)
        body(address, arch.thread_idx()[0])
        free(address, columns, cta_group)

    run(kernel, np.zeros(1, np.int32), **{"block": 128, **options})


@cute.jit
def allocates(columns, t, warp: int = 0):
    place = holder()
    if t // 32 == warp:
        tcgen05.tcgen05_alloc(place.iterator.ir_value(), columns, cta_group=1)


@cute.jit
def frees(address, t, columns: int = 64):
    if t < 32:
        tcgen05.tcgen05_dealloc(address.ir_value(), word(columns), cta_group=1)


def odd(t, value: int):
    """A number that is not known when compiling."""
    return (cute.Int32(value) + t // 128).ir_value()


FAULTS = [
    (r"tcgen05.alloc is of 48 columns", lambda at, t: allocates(odd(t, 48), t)),
    (r"tcgen05.alloc of 128 columns, after the CTA allocated 64", lambda at, t: allocates(odd(t, 128), t)),
    (r"tcgen05.alloc is executed with operands that differ", lambda at, t: allocates((32 + t % 32).ir_value(), t)),
    (r"tcgen05.dealloc of 32 columns at address 0x0, where no", lambda at, t: frees(at, t, 32)),
    (r"tcgen05.dealloc of 64 columns at address 0x20, where no", lambda at, t: frees(at + 32, t)),
    (r"tcgen05.dealloc of 64 columns at address 0x0, where no", lambda at, t: frees(at, t)),
    (r"tcgen05.ld accesses lanes from 32 on in warp 0", lambda at, t: load(at + (32 << 16), "32x32b", 1)),
    (r"tcgen05.ld has an address with lane \d*8", lambda at, t: load(lanes_of_warp(at) + (8 << 16), "16x64b", 1)),
    (r"tcgen05.ld accesses columns 60 to 67, which", lambda at, t: load(lanes_of_warp(at) + 60, "32x32b", 8)),
    (r"tcgen05.ld accesses columns 64 to 65, which", lambda at, t: load(lanes_of_warp(at), "16x32bx2", 2, split=64)),
    (r"tcgen05.ld is executed with operands that differ", lambda at, t: load(lanes_of_warp(at) + t % 32, "32x32b", 1)),
    (r"tcgen05.shift has an address with lane 16", lambda at, t: tcgen05.tcgen05_shift((at + (16 << 16)).ir_value(), cta_group=1)),
    (
        r"tcgen05.cp accesses columns 60 to 67",
        lambda at, t: tcgen05.tcgen05_cp((at + 60).ir_value(), long(0), shape="128x256b", cta_group=1),
    ),
    (
        r"tcgen05.cp reads up to byte \d+ of shared memory",
        lambda at, t: tcgen05.tcgen05_cp(at.ir_value(), long(0x3FFF), shape="128x256b", cta_group=1),
    ),
    (r"tcgen05.commit has a mask with CTAs that a cluster of 1", lambda at, t: commit(mbarriers(1), 2)),
]  # fmt: skip


@pytest.mark.quick(8)
@pytest.mark.parametrize(("text", "body"), FAULTS, ids=[text[:40] for text, _ in FAULTS])
def test_what_the_hardware_does_not_do_is_a_fault(text, body):
    with pytest.raises(TensorMemoryFault, match=text):
        alone(body)


def test_pairs_need_clusters_of_an_even_number_of_ctas():
    text = r"clusters of 1 block, and the kernel has tcgen05 instructions of cta_group::2"
    with pytest.raises(DSLRuntimeError, match=text):
        alone(lambda at, t: None, cta_group=2)
    with pytest.raises(DSLRuntimeError, match="clusters of 3 blocks, and the kernel has tcgen05"):
        alone(lambda at, t: None, cta_group=2, grid=3, cluster=(1, 3, 1))


@pytest.mark.parametrize("ctas", [2, 1])
def test_pairs_of_inline_ptx_in_clusters_that_a_launch_decides(ctas):
    @cute.kernel
    def kernel(out: cute.Tensor):
        place = holder()
        if arch.thread_idx()[0] < 32:
            text = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [$0], 32;"
            asm(None, [place.iterator.toint()], text, "r")
        arch.sync_threads()
        out[arch.block_idx()[0]] = place[0]
        arch.cluster_arrive()
        arch.cluster_wait()
        if arch.thread_idx()[0] < 32:
            asm(None, [place[0]], "tcgen05.dealloc.cta_group::2.sync.aligned.b32 $0, 32;", "r")

    @cute.jit
    def main(out: cute.Tensor, count: cute.Int32):
        kernel(out).launch(grid=2, block=64, cluster=(count, 1, 1))

    with kiln.target("cpu"):
        out = np.full(2, 9, np.int32)
        if ctas == 2:
            main(out, ctas)
            assert out.tolist() == [0, 0]
        else:
            with pytest.raises(DSLRuntimeError, match="clusters of 1 block, and the kernel has tcgen05"):
                main(out, ctas)


@pytest.mark.parametrize(("columns", "blocks"), [(256, 2), (512, 2), (256, 3)])
def test_a_warning_of_ctas_whose_columns_do_not_fit_an_sm(columns, blocks):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        alone(lambda at, t: None, columns=columns, min_blocks_per_mp=blocks)
    text = f"min_blocks_per_mp={blocks} blocks, each of which allocates {columns} columns of tensor memory, and an SM has 512"
    assert [text in str(warning.message) for warning in said] == [True] * (columns * blocks > 512)


def test_more_faults_of_allocations():
    with pytest.raises(TensorMemoryFault, match="tcgen05.alloc is executed by 16 lanes of a warp"):
        alone(lambda at, t: None, block=16)

    @cute.jit
    def relinquish_first(at, t):
        if t < 32:
            tcgen05.tcgen05_relinquish_alloc_permit(cta_group=1)
        allocates(word(32), t)

    with pytest.raises(TensorMemoryFault, match="by a CTA that has given up its permit"):
        alone(relinquish_first)
    with pytest.raises(TensorMemoryFault, match="memory that the CTA has not freed when it ends: 32 columns") as caught:
        alone(lambda at, t: allocates(word(32), t))
    assert "thread (" not in str(caught.value)  # no thread of it does that
    with pytest.raises(DeadlockFault, match="threads 32-63 .* wait at a tcgen05_alloc"):
        alone(lambda at, t: allocates(word(512), t, warp=1), columns=512)
    with pytest.raises(CompilerDiagnosticError, match="tcgen05_alloc has cta_group 1 in a kernel with cta_group 2"):
        alone(lambda at, t: allocates(word(32), t), cta_group=2, grid=2, cluster=(2, 1, 1))
    with pytest.raises(TensorMemoryFault, match="the other CTA of the pair allocates"):

        @cute.kernel
        def kernel(out: cute.Tensor):
            columns = 32 << arch.block_idx()[0]
            if arch.thread_idx()[0] < 32:
                tcgen05.tcgen05_alloc(holder().iterator.ir_value(), columns.ir_value(), cta_group=2)

        run(kernel, np.zeros(1, np.int32), grid=2, block=32, cluster=(2, 1, 1))


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1), ()])
def test_the_ctas_of_a_pair_give_up_their_permits_together(ranks):
    """The CTA that does not ends before the other one, or after it."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        rank, place = arch.block_idx()[0], holder()
        address = allocate(place, 64, cta_group=2)
        arch.sync_threads()
        if arch.thread_idx()[0] < 32:
            tcgen05.tcgen05_dealloc(address.ir_value(), word(64), cta_group=2)
        for one in ranks:
            if rank == one and arch.thread_idx()[0] < 32:
                tcgen05.tcgen05_relinquish_alloc_permit(cta_group=2)
        if rank == 0:
            for _ in range(cute.Int32(20)):
                arch.sync_threads()

    said = pytest.raises(TensorMemoryFault, match="one of which has given up its permit to allocate")
    with said if len(ranks) == 1 else contextlib.nullcontext():
        run(kernel, np.zeros(1, np.int32), grid=2, block=128, cluster=(2, 1, 1))


def test_what_a_chip_with_tensor_memory_lacks_is_refused():
    """As for the NVIDIA target, if the program names an architecture."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        if out[0] == 1:
            tcgen05.tcgen05_shift(word(0), cta_group=1)

    with kiln.target("cpu"):
        cute.compile(launcher(kernel, 1, grid=1, block=32), np.zeros(1, np.int32), options="--gpu-arch sm_100a")
        with pytest.raises(DSLArchitectureError, match="shift needs .* and this is compiled for sm_100f"):
            cute.compile(launcher(kernel, 1, grid=1, block=32), np.zeros(1, np.int32), options="--gpu-arch sm_100f")
