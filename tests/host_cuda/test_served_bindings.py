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
        """,
    )
