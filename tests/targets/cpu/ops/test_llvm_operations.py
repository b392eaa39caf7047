"""Operations of the LLVM dialect on `pointer.llvm_ptr`, in every address space, and what the sanitizer sees of them."""

from __future__ import annotations

import numpy as np
import pytest
from cutlass._mlir.dialects import llvm  # pyright: ignore[reportMissingImports]
from cutlass.cutlass_dsl import T  # pyright: ignore[reportMissingImports]

import kiln
from kiln import Float32, Int32, cute
from kiln.cute.runtime import from_dlpack, make_ptr

DYNAMIC = -(1 << 31)


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def _element(pointer, index, type_):
    return llvm.getelementptr(pointer.type, pointer, [Int32(index).ir_value()], [DYNAMIC], type_, 0)


@cute.kernel
def _reverse(x: cute.Pointer, wait: kiln.Constexpr):
    t = cute.arch.thread_idx()[0]
    smem = kiln.utils.SmemAllocator()
    tile = smem.allocate_tensor(Float32, cute.make_layout(4), byte_alignment=16)
    here, there = x.llvm_ptr, tile.iterator.llvm_ptr
    llvm.store(llvm.load(T.f32(), _element(here, t, T.f32())), _element(there, t, T.f32()))
    if kiln.const_expr(wait):
        cute.arch.sync_threads()
    back = llvm.addrspacecast(llvm.PointerType.get(), _element(here, t, T.f32()))
    llvm.store(llvm.load(T.f32(), _element(there, 3 - t, T.f32())), back)


@cute.jit
def reverse(x: cute.Pointer, wait: kiln.Constexpr):
    _reverse(x, wait).launch(grid=1, block=4)


def _pointer(x):
    return make_ptr(Float32, x.ctypes.data, cute.AddressSpace.gmem, assumed_align=4)


def test_loads_and_stores_in_global_and_shared_memory():
    x = np.arange(4, dtype=np.float32)
    reverse(_pointer(x), True)
    np.testing.assert_array_equal(x, [3, 2, 1, 0])


def test_the_sanitizer_sees_them():
    x = np.arange(4, dtype=np.float32)
    with kiln.sanitize():
        reverse(_pointer(x), True)
    np.testing.assert_array_equal(x, [3, 2, 1, 0])
    with kiln.sanitize("race"), pytest.raises(kiln.DSLBaseError, match="race"):
        reverse(_pointer(x), False)


def test_atomic_operations():
    @cute.kernel
    def kernel(x: cute.Tensor, n: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        relaxed, both = llvm.AtomicOrdering.monotonic, llvm.AtomicOrdering.acq_rel
        llvm.atomicrmw(llvm.AtomicBinOp.fadd, x.iterator.llvm_ptr, Float32(0.5).ir_value(), relaxed)
        llvm.atomicrmw(llvm.AtomicBinOp.add, n.iterator.llvm_ptr, t.ir_value(), both, syncscope="device")
        place = _element(n.iterator.llvm_ptr, 1, T.i32())
        llvm.cmpxchg(place, Int32(0).ir_value(), (t + 5).ir_value(), both, relaxed)

    @cute.jit
    def main(x: cute.Tensor, n: cute.Tensor):
        kernel(x, n).launch(grid=1, block=4)

    x, n = np.zeros(1, np.float32), np.zeros(2, np.int32)
    with kiln.sanitize():
        main(from_dlpack(x), from_dlpack(n))
    assert (x[0], n[0]) == (2.0, 6)
    assert n[1] in range(5, 9)


def test_waiting_for_a_value_lets_others_run(in_order):
    @cute.kernel
    def kernel(flag: cute.Tensor, y: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        pointer = flag.iterator.llvm_ptr
        if t == 0:
            seen = Int32(0)
            while seen == 0:
                seen = Int32(llvm.load(T.i32(), pointer, ordering=llvm.AtomicOrdering.acquire, alignment=4))
            y[0] = seen
        elif t == 64:
            llvm.store(Int32(7).ir_value(), pointer, ordering=llvm.AtomicOrdering.release, alignment=4)

    @cute.jit
    def main(flag: cute.Tensor, y: cute.Tensor):
        kernel(flag, y).launch(grid=1, block=96)

    flag, y = np.zeros(1, np.int32), np.zeros(1, np.int32)
    main(from_dlpack(flag), from_dlpack(y))
    assert y[0] == 7
