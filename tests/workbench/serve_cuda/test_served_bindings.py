"""`cuda.bindings` from host memory, with the package and without."""

from __future__ import annotations

import pytest

HIDE_PACKAGE = "import sys; sys.path[:] = [entry for entry in sys.path if 'site-packages' not in entry]\n"


@pytest.mark.parametrize("installed", [True, False])
def test_driver_and_runtime(gpu_program, installed: bool):
    if installed:
        pytest.importorskip("cuda.bindings")
    program = """
import ctypes
import cuda.bindings.driver as cuda
import cuda.bindings.runtime as cudart
from cuda.bindings.driver import CUresult, CUstream

def good(returned):
    assert returned[0] == 0, returned
    return returned[1] if len(returned) == 2 else returned[1:]

assert cuda.cuInit(0) == (CUresult.CUDA_SUCCESS,)
assert good(cuda.cuDeviceGetCount()) == 1
device = good(cuda.cuDeviceGet(0))
assert cuda.cuDeviceGet(1)[0] == CUresult.CUDA_ERROR_INVALID_DEVICE
which = cuda.CUdevice_attribute
assert good(cuda.cuDeviceGetAttribute(which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)) == 8
assert good(cuda.cuDeviceGetAttribute(which.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)) == 108
context = good(cuda.cuDevicePrimaryCtxRetain(device))
good(cuda.cuCtxSetCurrent(context))

memory = good(cuda.cuMemAlloc(64))
assert int(memory) % 256 == 0
good(cuda.cuMemsetD8(memory, 0x5A, 64))
good(cuda.cuMemsetD32(memory, 7, 4))
read = bytearray(64)
good(cuda.cuMemcpyDtoH(read, memory, 64))
assert read == b"\\x07\\0\\0\\0" * 4 + b"\\x5a" * 48
good(cuda.cuMemcpyHtoD(memory, b"kiln" * 16, 64))
other = good(cuda.cuMemAlloc(64))
good(cuda.cuMemcpyDtoDAsync(other, memory, 64, 0))
assert ctypes.string_at(int(other), 64) == b"kiln" * 16
good(cuda.cuMemFree(memory)); good(cuda.cuMemFree(other))
assert cuda.cuMemFree(memory)[0] == CUresult.CUDA_ERROR_INVALID_VALUE

stream = good(cuda.cuStreamCreate(0))
assert int(stream) != 0 and int(CUstream(12)) == 12
start, end = good(cuda.cuEventCreate(0)), good(cuda.cuEventCreate(0))
assert cuda.cuEventElapsedTime(start, end)[0] != 0
good(cuda.cuEventRecord(start, stream)); good(cuda.cuEventRecord(end, stream)); good(cuda.cuStreamSynchronize(stream))
assert good(cuda.cuEventElapsedTime(start, end)) >= 0

address = good(cudart.cudaMalloc(16))
good(cudart.cudaMemset(address, 1, 16))
back = (ctypes.c_uint8 * 16)()
good(cudart.cudaMemcpy(back, address, 16, cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost))
assert bytes(back) == b"\\x01" * 16
assert cudart.cudaFree(address) == (cudart.cudaError_t.cudaSuccess,)
assert good(cudart.cudaGetDeviceCount()) == 1
good(cudart.cudaDeviceSynchronize())
try:
    cuda.cuModuleLoad(b"x.cubin")
except (NotImplementedError, AttributeError):
    pass
else:
    raise AssertionError("a function that is not served")
"""
    gpu_program(program if installed else HIDE_PACKAGE + program, CUTE_DSL_ARCH="sm_80")


def test_kiln_cuda_needs_no_gpu(gpu_program):
    gpu_program(
        """
        import cutlass, cutlass.cute as cute
        from cutlass.base_dsl.runtime.cuda import checkCudaErrors
        import cuda.bindings.runtime as cudart

        cutlass.cuda.initialize_cuda_context()
        stream = cutlass.cuda.default_stream()

        @cute.kernel
        def fill(x: cute.Tensor):
            i, _, _ = cute.arch.thread_idx()
            x[i] = cutlass.Int32(i) * 3

        @cute.jit
        def launch(pointer: cute.Pointer, stream):
            fill(cute.make_tensor(pointer, cute.make_layout(8))).launch(grid=1, block=8, stream=stream)

        address = checkCudaErrors(cudart.cudaMalloc(32))
        launch(cute.runtime.make_ptr(cutlass.Int32, address, cute.AddressSpace.gmem), stream)
        cutlass.cuda.stream_sync(stream)
        host = bytearray(32)
        checkCudaErrors(cudart.cudaMemcpy(host, address, 32, cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost))
        assert list(memoryview(host).cast("i")) == [3 * i for i in range(8)]
        checkCudaErrors(cudart.cudaFree(address))
        try:
            checkCudaErrors(cudart.cudaFree(address))
        except cutlass.DSLCudaRuntimeError as error:
            assert error.error_code == cudart.cudaError_t.cudaErrorInvalidValue
        else:
            raise AssertionError("freed twice")
        """
    )


def test_copies_of_rows_and_between_devices(gpu_program):
    pytest.importorskip("cuda.bindings")
    gpu_program(
        """
        import ctypes
        import cuda.bindings.driver as cuda
        import cuda.bindings.runtime as cudart

        BAD, WRONG = cuda.CUresult.CUDA_ERROR_INVALID_VALUE, cudart.cudaError_t.cudaErrorInvalidValue
        any_way = cudart.cudaMemcpyKind.cudaMemcpyDefault
        small = cuda.cuMemAlloc(16)[1]
        for how, stream in (("", ()), ("Async", (0,))):
            copy = getattr(cudart, f"cudaMemcpy2D{how}")
            assert cudart.cudaMemset(int(small), 0, 16)[0] == 0
            assert copy(int(small), 8, b"ab--cd--", 4, 2, 2, any_way, *stream)[0] == 0
            assert ctypes.string_at(int(small), 16) == b"ab" + bytes(6) + b"cd" + bytes(6)
            assert copy(int(small), 8, b"ab--cd--", 4, 2, 3, any_way, *stream) == (WRONG,)  # a third row ends outside
            assert copy(int(small), 8, b"ab--cd--", 4, 5, 1, any_way, *stream) == (WRONG,)  # wider than its pitch
            assert copy(int(small), 1 << 40, b"ab--cd--", 4, 0, 9, any_way, *stream)[0] == 0
            assert getattr(cudart, f"cudaMemcpyPeer{how}")(int(small), 0, int(small) + 8, 0, 8, *stream)[0] == 0
            assert ctypes.string_at(int(small), 4) == b"cd" + bytes(2)
            assert getattr(cudart, f"cudaMemcpyPeer{how}")(int(small), 1, int(small), 0, 8, *stream)[0] != 0
            assert getattr(cudart, f"cudaMemcpyPeer{how}")(int(small), 0, int(small), 0, 17, *stream) == (WRONG,)

        host = (ctypes.c_char * 8)(*b"01234567")
        rows = cuda.CUDA_MEMCPY2D()
        rows.srcMemoryType, rows.srcHost, rows.srcPitch, rows.srcY = cuda.CUmemorytype.CU_MEMORYTYPE_HOST, host, 4, 1
        rows.dstMemoryType, rows.dstDevice, rows.dstPitch = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE, small, 8
        rows.dstXInBytes, rows.WidthInBytes, rows.Height = 1, 3, 1
        for call in (cuda.cuMemcpy2D, cuda.cuMemcpy2DUnaligned, lambda copy: cuda.cuMemcpy2DAsync(copy, 0)):
            assert call(rows)[0] == 0
        assert ctypes.string_at(int(small), 4) == b"c456"
        rows.dstY = 2
        assert cuda.cuMemcpy2D(rows) == (BAD,)
        """
    )


def test_copies_and_fills_are_checked(gpu_program):
    gpu_program(
        """
        import array, ctypes, mmap
        import cuda.bindings.driver as cuda
        import cuda.bindings.runtime as cudart

        BAD, WRONG = cuda.CUresult.CUDA_ERROR_INVALID_VALUE, cudart.cudaError_t.cudaErrorInvalidValue

        def good(returned):
            assert returned[0] == 0, returned
            return returned[1] if len(returned) == 2 else None

        small, large = good(cuda.cuMemAlloc(16)), good(cuda.cuMemAlloc(1 << 20))
        megabyte = bytearray(1 << 20)
        inside = cuda.CUdeviceptr(int(small) + 8)
        for how, stream in (("", ()), ("Async", (0,))):
            up, down, across, either = (getattr(cuda, f"cuMemcpy{way}{how}") for way in ("HtoD", "DtoH", "DtoD", ""))
            for target in (small, inside, cuda.CUdeviceptr(int(small) + 16), cuda.CUdeviceptr(0)):
                assert up(target, megabyte, 1 << 20, *stream) == (BAD,)
            assert down(megabyte, small, 1 << 20, *stream) == (BAD,)
            assert down(None, small, 16, *stream) == (BAD,)
            assert down(bytearray(8), small, 16, *stream) == (BAD,)  # the program's own buffers, too
            assert up(small, b"12345678", 16, *stream) == (BAD,)
            assert across(small, large, 17, *stream) == (BAD,)
            assert across(large, small, 17, *stream) == (BAD,)
            assert either(small, large, 1 << 20, *stream) == (BAD,)
            assert up(inside, b"12345678", 8, *stream) == (cuda.CUresult.CUDA_SUCCESS,)
            assert up(inside, megabyte, 0, *stream) == (cuda.CUresult.CUDA_SUCCESS,)
            for width in (1, 2, 4):
                fill = getattr(cuda, f"cuMemsetD{8 * width}{how}")
                assert fill(small, 1, 16 // width, *stream) == (cuda.CUresult.CUDA_SUCCESS,)
                assert fill(small, 1, 16 // width + 1, *stream) == (BAD,)
                assert fill(inside, 1, 1 << 40, *stream) == (BAD,)
                if width > 1:
                    assert fill(cuda.CUdeviceptr(int(small) + 1), 1, 1, *stream) == (BAD,)
            copy, clear = (getattr(cudart, f"cuda{what}{how}") for what in ("Memcpy", "Memset"))
            up, any_way = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice, cudart.cudaMemcpyKind.cudaMemcpyDefault
            assert copy(int(small), megabyte, 1 << 20, up, *stream) == (WRONG,)
            assert copy(megabyte, int(small), 17, any_way, *stream) == (WRONG,)
            assert clear(int(small), 0, 17, *stream) == (WRONG,)
            assert clear(int(small), 7, 16, *stream)[0] == 0
        assert ctypes.string_at(int(small), 16) == b"\\x07" * 16
        number = array.array("i", [1])
        good(cuda.cuMemcpyHtoD(small, number, 4))
        assert ctypes.string_at(int(small), 4) == number.tobytes()

        try:
            cuda.cuMemcpyHtoD(small, megabyte, -1)
        except OverflowError:
            pass
        else:
            raise AssertionError("a negative size")

        # what was given back
        assert cuda.cuMemFree(inside) == (BAD,) and cuda.cuMemFreeHost(int(small)) == (BAD,)
        assert cudart.cudaFreeHost(int(small)) == (WRONG,)
        pinned = good(cuda.cuMemAllocHost(64))
        assert cuda.cuMemFree(cuda.CUdeviceptr(pinned)) == (BAD,)
        good(cuda.cuMemFreeHost(pinned))
        for memory in (small, large):
            good(cuda.cuMemFree(memory))
            assert cuda.cuMemFree(memory) == (BAD,)
            assert cuda.cuMemcpyHtoD(memory, b"1234", 4) == (BAD,)
            assert cuda.cuMemcpyDtoH(bytearray(4), memory, 4) == (BAD,)
            assert cuda.cuMemsetD8(memory, 0, 4) == (BAD,)
            assert cudart.cudaMemset(int(memory), 0, 4) == (WRONG,)
        again = good(cuda.cuMemAlloc(16))
        assert int(again) not in (int(small), int(large))

        # memory of others: it is there, or it is not
        other = mmap.mmap(-1, mmap.PAGESIZE)
        place = ctypes.addressof(ctypes.c_char.from_buffer(other))
        good(cudart.cudaMemcpy(int(again), place, 16, any_way))
        assert cudart.cudaMemcpy(int(again), 4096, 16, any_way) == (WRONG,)
        assert cudart.cudaMemcpy((1 << 64) - 8, int(again), 16, any_way) == (WRONG,)
        """
    )


def test_a_kernel_that_uses_memory_that_was_given_back(gpu_program):
    gpu_program(
        """
        import cutlass, cutlass.cute as cute
        import cuda.bindings.driver as cuda

        @cute.kernel
        def fill(x: cute.Tensor):
            i, _, _ = cute.arch.thread_idx()
            x[i] = i

        @cute.jit
        def launch(pointer: cute.Pointer):
            fill(cute.make_tensor(pointer, cute.make_layout(8))).launch(grid=1, block=8)

        status, memory = cuda.cuMemAlloc(32)
        pointer = cute.runtime.make_ptr(cutlass.Int32, int(memory), cute.AddressSpace.gmem)
        launch(pointer)
        cuda.cuMemFree(memory)
        try:
            launch(pointer)
        except cutlass.DSLCudaRuntimeError as error:
            assert error.error_code == cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        else:
            raise AssertionError("memory that was given back")
        """
    )


def test_a_graph_does_not_copy_to_memory_that_was_given_back(torch_program):
    pytest.importorskip("torch")
    torch_program(
        """
        import torch
        import cuda.bindings.driver as cuda

        status, memory = cuda.cuMemAlloc(16)
        x = torch.arange(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert cuda.cuMemcpyDtoDAsync(memory, x.data_ptr(), 16, 0)[0] == 0
            assert cuda.cuMemcpyDtoDAsync(memory, x.data_ptr(), 17, 0)[0] == cuda.CUresult.CUDA_ERROR_INVALID_VALUE
        graph.replay()
        cuda.cuMemFree(memory)
        try:
            graph.replay()
        except RuntimeError as failure:
            assert "illegal memory access" in str(failure) and "given back" in str(failure)
        else:
            raise AssertionError("copied")
        """
    )
