"""Mistakes that an editor marks; the comment of each line has words of its message."""

import cutlass.cute as cute
import numpy as np

import cutlass
import kiln
from cutlass import Constexpr, Float32, Int32
from cutlass.experimental import primitives as prims
from cutlass.cute.nvgpu import warpgrop  # error: unknown import symbol
from kiln import kernels, nn
from kiln import pipelin  # error: unknown import symbol


@cute.kernel
def kernel(x: cute.Tensor, n: Int32, tile: Constexpr[int]):
    tid, _, _ = cute.arch.thread_id()  # error: not a known attribute
    cute.prinft("{}", n)  # error: not a known attribute
    x.loda()  # error: Cannot access attribute "loda"
    x[0].too(Float32)  # error: Cannot access attribute "too"
    y = Float32(1) & 1  # error: Operator "&" not supported
    z = Float32(1) + "a"  # error: Operator "+" not supported
    cute.exp(x)  # error: cannot be assigned to parameter "x"
    x.store(3)  # error: cannot be assigned to parameter "data"
    x.fill("0")  # error: cannot be assigned to parameter "value"
    x[0] = "a"  # error: cannot be assigned to parameter "value"
    cute.copy(x)  # error: Arguments missing for parameters "src", "dst"
    cute.autovec_copy(x, x, x)  # error: Expected 2 positional arguments
    prims.fence_sync_restrict(prims.MemScope.CLUSTR)  # error: Cannot access attribute "CLUSTR"
    cute.make_rmem_tensor(4)  # error: Argument missing for parameter "dtype"
    cute.make_rmem_tensor(4, Float32(1))  # error: cannot be assigned to parameter "dtype"
    cute.make_layout((4, 8), strides=(8, 1))  # error: No parameter named "strides"
    cute.arch.sync_threads(1)  # error: Expected 0 positional arguments
    for i in cutlass.range(n, unrol=2):  # error: No parameter named "unrol"
        pass
    if cute.arch.lane_idx() < "0":  # error: Operator "<" not supported
        pass


@cute.jit
def main(x: cute.Tensor, n: Int32):
    kernel(x, n, 4).launch(grid=1, blok=32)  # error: No parameter named "blok"
    kernel(x, n, 4).launch(grid=1)  # error: Argument missing for parameter "block"
    kernel(x, n, 4).launch(grid="1", block=32)  # error: cannot be assigned to parameter "grid"
    kernel(x, n, 4).lauch(grid=1, block=32)  # error: Cannot access attribute "lauch"
    kernel(x, n)  # error: cannot be assigned to parameter "python_value"
    kernel(n, x, n)  # error: No overloads for "__call__"
    kernel[1](x, n, 4)  # error: __getitem__


cute.compil(main, np.zeros(4), 4)  # error: not a known attribute
main.retrce()  # error: Cannot access attribute "retrce"
kernels.gemm(np.zeros((4, 4)))  # error: Argument missing for parameter "b"
kernels.flash_attention(1, 1, 1, casual=True)  # error: No parameter named "casual"
kernels.softmax("x")  # error: cannot be assigned to parameter "x"
nn.layer_norm(wieght=None)  # error: No parameter named "wieght"
kiln.sanitize(raise_=False)  # error: No parameter named "raise_"
