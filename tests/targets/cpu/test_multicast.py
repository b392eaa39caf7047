# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Accesses to multicast memory on the CPU target, against their definitions in plain Python."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

import kiln
from kiln import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int32, cute
from kiln.base_dsl.diagnostics import DSLUserCodeRuntimeError
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack, make_ptr
from kiln.dialects.nvgpu import definitions
from kiln.targets.cpu.runtime import multicast
from kiln.utils import distributed

DEVICES = 3
TYPES = {
    Float32: ("f32", "", 4),
    Float16: ("f16x2", "acc::f32", 8),
    BFloat16: ("bf16x2", "acc::f32", 8),
    Float8E4M3FN: ("e4m3x4", "acc::f16", 16),
    Float8E5M2: ("e5m2x4", "acc::f16", 16),
}


class Copies:
    """Memory of some devices, and the multicast address that stands for it, at which nothing is mapped."""

    def __init__(self, words: int, devices: int = DEVICES) -> None:
        self.memory = [np.zeros(words, np.uint32) for _ in range(devices)]
        self._range = mmap.mmap(-1, 1 << 16, prot=0)
        self.address: int = _libc_address(self._range)
        multicast.bind(self.address, 4 * words, [x.ctypes.data for x in self.memory])

    def pointer(self, dtype: object = Int32) -> cute.Pointer:
        return make_ptr(dtype, self.address, cute.AddressSpace.gmem, assumed_align=16)


_reserved: list[int] = []


def _libc_address(_range: mmap.mmap) -> int:
    """Addresses that nobody else has, each above the last: the table of ranges is sorted."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    if not _reserved:
        _reserved.append(libc.mmap(None, 1 << 24, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))
    _reserved.append(_reserved[-1] + (1 << 16))
    return _reserved[-2]


@pytest.mark.parametrize("dtype", TYPES)
def test_loads_reduce_as_defined(dtype):
    kind, acc, count = TYPES[dtype]

    @cute.kernel
    def kernel(source: cute.Pointer, out: cute.Tensor):
        words = distributed.multimem_ld_reduce(source, dtype=dtype, num_elements=count)
        for number in kiln.range_constexpr(4):
            out[number] = words[number]

    @cute.jit
    def launch(source: cute.Pointer, out: cute.Tensor):
        kernel(source, out).launch(grid=1, block=1)

    copies = Copies(4)
    random = np.random.default_rng(1)
    options = "--gpu-arch sm_100a"
    compiled = cute.compile(launch, copies.pointer(), from_dlpack(np.zeros(4, np.int32)), target="cpu", options=options)
    for attempt in range(20):
        for copy in copies.memory:
            if dtype is Float32:
                copy[:] = random.normal(size=4).astype(np.float32).view(np.uint32)
            else:  # all bit patterns, NaNs and infinities among them; few of the exponents of large numbers
                copy[:] = random.integers(0, 1 << 32, 4, np.uint64).astype(np.uint32) & (
                    0xFFFFFFFF if attempt < 3 else 0x9F9F9F9F
                )
        out = np.zeros(4, np.int32)
        compiled(copies.pointer(), from_dlpack(out))
        expected = [
            definitions.multimem_ld_reduce("add", kind, acc, [int(c[n]) for c in copies.memory]) for n in range(4)
        ]
        for got, want in zip(out.view(np.uint32), expected, strict=True):
            assert _same(int(got), want, kind), (attempt, hex(got), hex(want))


def _same(got: int, want: int, kind: str) -> bool:
    """Whether two words have the same numbers; NaNs are alike."""
    width = {"f32": 32, "f16x2": 16, "bf16x2": 16}.get(kind, 8)
    format_ = definitions._WORDS_OF_FLOATS[kind][0]
    for place in range(0, 32, width):
        mine, others = (format_.decode(word >> place & (1 << width) - 1) for word in (got, want))
        if mine != others and not (mine != mine and others != others):
            return False
    return True


def test_integers_reduce_as_defined():
    cases = [
        ("add", "u32"),
        ("min", "s32"),
        ("max", "u32"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
        ("min", "u32"),
    ]

    @cute.kernel
    def kernel(source: cute.Pointer, out: cute.Tensor):
        for number in kiln.range_constexpr(len(cases)):
            kind, type_ = cases[number]
            out[number] = cute.arch.inline_ptx(
                f"multimem.ld_reduce.acquire.sys.global.{kind}.{type_} {{$w0}}, [{{$r0}}];",
                write_only_types=[Int32],
                read_only_args=[source.toint()],
            )
            distributed.multicast.red(source + 1 + number, Int32(-7), kind, type_, "relaxed", "sys")

    @cute.jit
    def launch(source: cute.Pointer, out: cute.Tensor):
        kernel(source, out).launch(grid=1, block=1)

    copies = Copies(1 + len(cases))
    numbers = [
        [0x80000001, 5, 6, 7, 8, 9, 10, 11],
        [3, 0x90000000, 1, 2, 3, 4, 5, 6],
        [0xFFFFFFFE, 8, 9, 1, 1, 2, 3, 4],
    ]
    for copy, values in zip(copies.memory, numbers, strict=True):
        copy[:] = values
    out = np.zeros(len(cases), np.int32)
    with kiln.target("cpu"):
        launch(copies.pointer(), from_dlpack(out))
    words = [values[0] for values in numbers]
    assert out.view(np.uint32).tolist() == [
        definitions.multimem_ld_reduce(kind, type_, "", words) for kind, type_ in cases
    ]
    for number, (kind, type_) in enumerate(cases):
        column = [values[1 + number] for values in numbers]
        assert [int(c[1 + number]) for c in copies.memory] == definitions.multimem_red(
            kind, type_, column, -7 & 0xFFFFFFFF
        )


def test_stores_and_reductions_go_to_every_copy():
    @cute.kernel
    def kernel(target: cute.Pointer):
        thread = cute.arch.thread_idx()[0]
        distributed.multimem_st_4xb32(target + 4 * thread, thread, 1, 2, 3)
        cute.arch.sync_threads()
        distributed.multimem_red_release_sys_add1(target + 1)
        distributed.multicast.red(target + 2, kiln.Float32(0.5).bitcast(Int32), "add", "f32", "relaxed", "gpu")

    @cute.jit
    def launch(target: cute.Pointer):
        kernel(target).launch(grid=1, block=8)

    copies = Copies(32)
    with kiln.target("cpu"):
        launch(copies.pointer())
    expected = np.stack([np.arange(8), np.full(8, 1), np.full(8, 2), np.full(8, 3)], axis=1).ravel().astype(np.uint32)
    expected[1] += 8
    expected[2] = (np.float32(4.0) + expected[2:3].view(np.float32)).view(np.uint32)[0]
    for copy in copies.memory:
        assert copy.tolist() == expected.tolist()


def test_tma_stores_go_to_every_copy():
    tile = 64

    @cute.kernel
    def kernel(store: cute.CopyAtom, target: cute.Tensor):
        allocator = kiln.utils.SmemAllocator()
        shared = allocator.allocate_tensor(Float32, cute.make_layout(tile), 128)
        thread = cute.arch.thread_idx()[0]
        block = cute.arch.block_idx()[0]
        for number in range(thread, tile, 32):
            shared[number] = Float32(100 * block + number)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        part = cute.local_tile(target, (tile,), (block,))
        ours, theirs = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(shared, 0, 1), cute.group_modes(part, 0, 1)
        )
        cute.copy(store, ours, theirs)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def launch(target: cute.Pointer):
        tensor = cute.make_tensor(target, cute.make_layout((2 * tile,)))
        store, coordinates = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), tensor, cute.make_layout(tile), (tile,)
        )
        kernel(store, coordinates).launch(grid=2, block=32)

    copies = Copies(2 * tile)
    with kiln.target("cpu"):
        launch(copies.pointer(Float32))
    expected = np.concatenate([np.arange(tile), 100 + np.arange(tile)]).astype(np.float32)
    for copy in copies.memory:
        assert np.array_equal(copy.view(np.float32), expected)


def test_other_addresses_are_faults():
    @cute.kernel
    def kernel(target: cute.Pointer):
        distributed.multimem_red_add1(target, order="relaxed", scope="gpu")

    @cute.jit
    def launch(target: cute.Pointer):
        kernel(target).launch(grid=1, block=1)

    copies = Copies(4)
    with kiln.target("cpu"):
        launch(copies.pointer() + 3)
        for wrong in (make_ptr(Int32, copies.memory[0].ctypes.data, cute.AddressSpace.gmem), copies.pointer() + 4):
            with pytest.raises(DSLUserCodeRuntimeError, match="which is no multicast address"):
                launch(wrong)
    assert [int(copy[3]) for copy in copies.memory] == [1] * DEVICES


def test_asynchronous_stores_and_reductions_to_other_devices():
    @cute.kernel
    def kernel(x: cute.Pointer, copies: cute.Pointer):
        for number in kiln.range_constexpr(4):
            text = (
                "st.async.release.sys.global.b32 [{$r0}], {$r1};",
                "red.async.release.sys.global.add.u32 [{$r0}], {$r1};",
                "red.async.release.gpu.global.min.s32 [{$r0}], {$r1};",
                "red.async.relaxed.sys.global.max.u32 [{$r0}], {$r1};",
            )[number]
            cute.arch.inline_ptx(text, read_only_args=[(x + number).toint(), Int32(-5)])
        text = "multimem.st.async.release.sys.global.b32 [{$r0}], {$r1};"
        cute.arch.inline_ptx(text, read_only_args=[(copies + 1).toint(), Int32(9)])

    @cute.jit
    def launch(x: cute.Pointer, copies: cute.Pointer):
        kernel(x, copies).launch(grid=1, block=1)

    copies = Copies(4)
    x = np.array([1, 7, 7, 7], np.int32)
    with kiln.target("cpu"):
        launch(make_ptr(Int32, x.ctypes.data, cute.AddressSpace.gmem), copies.pointer())
    assert x.tolist() == [-5, 2, -5, -5]
    assert [copy.tolist() for copy in copies.memory] == [[0, 9, 0, 0]] * DEVICES
