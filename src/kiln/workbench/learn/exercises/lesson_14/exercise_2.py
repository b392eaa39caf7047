"""Exercise 2 of lesson 14: export a kernel as a shared library for C."""

from pathlib import Path

import kiln
import kiln.cute as cute
from kiln import Float32
from kiln.cute.runtime import make_fake_compact_tensor

THREADS = 64


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, by: Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(y):
        y[i] = by * x[i]


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, by: Float32):
    scale_kernel(x, y, by).launch(grid=cute.ceil_div(cute.size(y), THREADS), block=THREADS)


def ship(folder: Path) -> Path:
    """Write folder/libscale.so for the CPU target, for arrays of any length, both of the same; return its path."""
    # TODO: describe x and y (make_fake_compact_tensor, one cute.SymInt() for both), and call kiln.export
    n = cute.SymInt()
    x, y = (make_fake_compact_tensor(Float32, (n,)) for _ in range(2))
    library = kiln.export(scale, x, y, 1.0, to=folder / "libscale.so", archs=("cpu",))[0]
    # END
    return Path(library)
