"""Writes libscale.so, one file with a kernel that C, TVM-FFI, PyTorch and JAX call (`use.py`, `use.c`), on GPUs and on
the host, without Kiln.

python export.py FOLDER [sm_80 sm_90a cpu ...]
"""

import sys
from pathlib import Path

import kiln
import kiln.cute as cute
from kiln import Float32
from kiln.cute.runtime import make_fake_compact_tensor


@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, by: Float32):
    row, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    for column in range(thread, x.shape[1], 32):
        y[row, column] = x[row, column] * by


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, by: Float32):
    """y = by * x, for row-major matrices with a multiple of 4 columns."""
    scaled(x, y, by).launch(grid=x.shape[0], block=32)


if __name__ == "__main__":
    folder, archs = Path(sys.argv[1]), sys.argv[2:] or ["sm_80", "sm_90a", "cpu"]
    x, y = (
        make_fake_compact_tensor(Float32, (cute.SymInt(), cute.SymInt(divisibility=4)), stride_order=(1, 0))
        for _ in range(2)
    )
    written = kiln.export(
        scale,
        x,
        y,
        1.0,
        to=folder / "libscale.so",
        name="examples::scale",
        archs=archs,
        entry_points=("c", "tvm_ffi", "torch", "jax"),
        outputs={"y": "x"},
    )
    print(*written)
