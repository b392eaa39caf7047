"""Types that an editor shows in a program; the comment after each call says which."""

from typing import Annotated

import cutlass.cute as cute
import ml_dtypes
import numpy as np
import torch

import cutlass
import kiln
from cutlass import Boolean, Constexpr, Float16, Float32, Int32, Int64
from kiln import kernels, nn, pipeline, utils
from kiln.cute.nvgpu import cpasync, warp
from kiln.cute.runtime import from_dlpack
from kiln.experimental import primitives as prims
from kiln.utils import sm100


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor[Float32], n: Int32, tile: Constexpr[int]):
    tid, _, _ = cute.arch.thread_idx()
    reveal_type(tid)  # Int32
    reveal_type(cute.arch.block_idx())  # tuple[Int32, Int32, Int32]
    reveal_type(cute.arch.lane_idx())  # Int32
    reveal_type(tile)  # int
    reveal_type(tid + 1)  # Int32
    reveal_type(tid / 2)  # Float32
    reveal_type(tid < n)  # Boolean
    reveal_type(1.0 * Float32(tid))  # Float32
    reveal_type(Float32(2) + Float16(1))  # Float32
    reveal_type(Int64(tid) * 4)  # Int64
    reveal_type(Boolean(True) & (tid == 0))  # Boolean
    reveal_type(Float32(1).to(Float16))  # Float16
    reveal_type(x[tid])  # Number
    reveal_type(x[tid] * 2)  # Number
    reveal_type(y[0, tid])  # Float32
    reveal_type(y[None, 0])  # Tensor[Float32]
    reveal_type(x.load())  # TensorSSA
    reveal_type(x.load() * 2 + 1)  # TensorSSA
    reveal_type(x.load()[0])  # Number
    reveal_type(x.shape)  # tuple[Extent, ...]
    reveal_type(x.shape[0])  # Extent
    reveal_type(cute.size(x))  # Extent
    reveal_type(cute.ceil_div(n, 128))  # Extent
    reveal_type(x.iterator)  # Pointer
    reveal_type(x.layout)  # Layout
    registers = cute.make_rmem_tensor((4, 2), Int32)
    reveal_type(registers[0])  # Int32
    reveal_type(cute.make_fragment_like(y))  # TracedTensor[Float32]
    reveal_type(cute.make_identity_tensor((4, 4))[0])  # Extent
    reveal_type(cute.local_tile(y, (4, 4), (0, 0)))  # Tensor[Float32]
    reveal_type(cute.zipped_divide(cute.make_layout((4, 4)), (2, 2)))  # Layout
    reveal_type(cute.exp(Float32(1)))  # Float32
    reveal_type(cute.math.tanh(x.load()))  # TensorSSA
    reveal_type(cute.where(x.load() > 0, x.load(), 0.0))  # TensorSSA
    reveal_type(cute.arch.warp_reduction_sum(Float32(1)))  # Float32
    reveal_type(cutlass.min(tid, n))  # Number
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float32)
    reveal_type(atom)  # CopyAtom
    copy = cute.make_tiled_copy_tv(atom, cute.make_layout(32), cute.make_layout(4))
    reveal_type(copy.get_slice(tid))  # ThrCopy
    reveal_type(copy.get_slice(tid).partition_S(y))  # Tensor[Float32]
    mma = cute.make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)))
    reveal_type(mma)  # TiledMma
    reveal_type(mma.get_slice(tid).partition_A(x))  # Tensor[Any]
    smem = utils.SmemAllocator()
    reveal_type(smem.allocate_tensor(Float16, cute.make_layout((8, 8)), 16))  # TracedTensor[Float16]
    reveal_type(smem.allocate_array(Float16, 8))  # Pointer
    reveal_type(cpasync.CopyG2SOp())  # CopyG2SOp
    reveal_type(pipeline.PipelineCpAsyncGroups.create(num_stages=2))  # PipelineCpAsyncGroups
    group = pipeline.CooperativeGroup(pipeline.Agent.Thread, 32)
    pipe = pipeline.PipelineCpAsync.create(num_stages=2, producer_group=group, consumer_group=group)
    reveal_type(pipe.make_producer().acquire_and_advance().index)  # Int32
    reveal_type(cute.slice_(cute.make_layout((4, 4)), (None, 0)))  # Layout
    reveal_type(cute.composition(cute.make_layout(4), cute.make_layout(2)))  # Layout
    for i in cutlass.range(n, unroll=2):
        reveal_type(i)  # Int32
    for j in cutlass.range_constexpr(4):
        reveal_type(j)  # int


@cute.jit
def described(x: Annotated[cute.Tensor, "f16[m,n%8]@16"], w: Annotated[cute.Tensor[Float16], "f16[n]"]):
    reveal_type(x[0, 0])  # Number
    reveal_type(w[0])  # Float16


@cute.jit
def scaled(v: Float32, by: Float32) -> Float32:
    """Return v times by."""
    return v * by


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor, n: Int32, tile: Constexpr[int] = 4):
    reveal_type(kernel(x, y, n, tile))  # KernelLaunch
    reveal_type(kernel(x, y, n, tile).launch(grid=(cute.ceil_div(n, 128), 1, 1), block=128))  # None
    reveal_type(scaled(Float32(1), Float32(2)))  # Float32


class Gemm:
    """A kernel with its host function, as methods."""

    @cute.kernel
    def kernel(self, a: cute.Tensor):
        pass

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor):
        reveal_type(self.kernel)  # KernelFunction[(a: Tensor[Any])]
        self.kernel(a).launch(grid=1, block=32)


array = np.zeros((4, 4), np.float32)
reveal_type(main)  # JitFunction[(x: Tensor[Any], y: Tensor[Any], n: Int32, tile: int = 4), None]
reveal_type(main(array, array, 3))  # None
reveal_type(scaled(1.0, 2))  # Float32
reveal_type(cute.compile(scaled, 1.0, 2.0))  # CompiledFunction[Float32]
reveal_type(cute.compile(Gemm(), array, array))  # CompiledFunction[None]
reveal_type(from_dlpack(array).mark_layout_dynamic())  # RuntimeTensor
reveal_type(kiln.sanitize(raises=False))  # Session
reveal_type(prims.MemScope.CTA.value)  # Literal['cta']
reveal_type(sm100.make_smem_layout_epi(Float16, utils.LayoutEnum.ROW_MAJOR, (64, 64), 1))  # ComposedLayout
x = torch.ones(4, 4)
reveal_type(kernels.softmax(np.empty((4, 128), ml_dtypes.bfloat16)))  # ndarray[tuple[int, int], dtype[generic[Any]]]
reveal_type(kernels.softmax(x))  # Tensor
reveal_type(kernels.sum(x, 1))  # Tensor
reveal_type(nn.rms_norm(x, eps=1e-6))  # Tensor
reveal_type(nn.swiglu(gate=x, up=x))  # Tensor
