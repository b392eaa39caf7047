"""Element-wise programs: add two matrices, apply any function, ReLU on 16 bytes at a time.

    python examples/elementwise.py

Three ways to hand the elements of an array to threads, from the most explicit to the shortest:

- `add` cuts matrices into tiles; a *tiled copy* says which values of a tile a thread holds, and a tensor of coordinates
  says which of them lie inside the matrix. Any strides will do.
- `apply` takes a Python function of vectors (a lambda, say) and any number of arrays. The function is traced into the
  kernel: nothing is called at run time.
- `relu` does the same for one array in place, to show the plain case.

The last two see an array as one long row of vectors of 16 bytes. Whole vectors are loaded and stored in one access; the
last one is predicated element by element, so no length has to divide anything. Kiln compiles them for arrays that begin
at a multiple of 16 bytes, and once more for others, such as `x[1:]`.
"""

from __future__ import annotations

import sys
from typing import Any

import kiln
from kiln import cute

THREADS = 128
VECTOR_BYTES = 16


# --- add: tiles of a matrix, by a tiled copy -------------------------------------------------------------------------


@cute.kernel
def add_kernel(
    gA: cute.Tensor,
    gB: cute.Tensor,
    gC: cute.Tensor,
    coordinates: cute.Tensor,
    shape: cute.Shape,
    threads: cute.Layout,
    values: cute.Layout,
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    tile = ((None, None), block)

    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), gA.element_type)
    mine = cute.make_tiled_copy_tv(atom, threads, values).get_slice(thread)
    a, b, c = (mine.partition_S(g[tile]) for g in (gA, gB, gC))
    where = mine.partition_S(coordinates[tile])

    inside = cute.make_rmem_tensor(where.shape, cute.Boolean)
    for i in kiln.range_constexpr(cute.size(inside)):
        inside[i] = cute.elem_less(where[i], shape)

    x, y = cute.make_fragment_like(a), cute.make_fragment_like(b)
    x.fill(0)
    y.fill(0)
    cute.copy(atom, a, x, pred=inside)
    cute.copy(atom, b, y, pred=inside)
    x.store(x.load() + y.load())
    cute.copy(atom, x, c, pred=inside)


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """c = a + b for matrices of one shape and type."""
    threads = cute.make_ordered_layout((4, 32), order=(1, 0))
    values = cute.make_ordered_layout((2, 4), order=(1, 0))
    tiler, _ = cute.make_layout_tv(threads, values)
    gA, gB, gC = (cute.zipped_divide(t, tiler) for t in (a, b, c))  # ((TileM,TileN),(RestM,RestN))
    coordinates = cute.zipped_divide(cute.make_identity_tensor(c.shape), tiler)
    add_kernel(gA, gB, gC, coordinates, c.shape, threads, values).launch(
        grid=cute.size(gA, mode=[1]), block=cute.size(threads)
    )


# --- apply: any function, on vectors of 16 bytes ---------------------------------------------------------------------


@cute.kernel
def apply_kernel(function: kiln.Constexpr, inputs: list, output: cute.Tensor, vector: kiln.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * THREADS + thread
    first = index * vector
    count = cute.size(output)
    sources = [cute.local_tile(t, (vector,), (index,)) for t in inputs]
    target = cute.local_tile(output, (vector,), (index,))
    if first + vector <= count:
        target.store(function(*[t.load() for t in sources]).to(output.element_type))
    elif first < count:
        inside = cute.make_rmem_tensor(vector, cute.Boolean)
        for i in kiln.range_constexpr(vector):
            inside[i] = first + i < count
        registers = [cute.make_rmem_tensor_like(t) for t in sources]
        for t, r in zip(sources, registers):
            r.fill(0)
            cute.basic_copy_if(inside, t, r)
        result = cute.make_rmem_tensor_like(target)
        result.store(function(*[r.load() for r in registers]).to(output.element_type))
        cute.basic_copy_if(inside, result, target)


@cute.jit
def apply(function: kiln.Constexpr, inputs: list, output: cute.Tensor):
    """output = function(*inputs), element by element, for arrays of one mode."""
    vector = VECTOR_BYTES * 8 // max(t.element_type.width for t in (*inputs, output))
    vectors = cute.ceil_div(cute.size(output), vector)
    apply_kernel(function, inputs, output, vector).launch(grid=cute.ceil_div(vectors, THREADS), block=THREADS)


def relu(x: Any) -> None:
    """x = max(x, 0) in place."""
    flat = x.reshape(-1)
    apply(lambda v: cute.where(v > 0, v, 0), [flat], flat)


# --- checks ----------------------------------------------------------------------------------------------------------


def main() -> None:
    with kiln.target("cpu"):  # arrays of numpy are in the memory of the host
        check_numpy()
    try:
        import torch
    except ImportError:
        print("torch is not installed: its half is skipped")
    else:
        check_torch(torch)


def check_numpy() -> None:
    import ml_dtypes
    import numpy as np

    rng = np.random.default_rng(0)
    types = (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
    for dtype in types:
        for shape in ((64, 256), (3, 12), (37, 129)):
            a, b = (rng.normal(size=shape).astype(dtype) for _ in range(2))
            # one rounding: additions and multiplications of narrow types are exact in float64
            want = (a.astype(np.float64) + b.astype(np.float64)).astype(np.float32).astype(dtype)
            c = np.zeros_like(a)
            add(a, b, c)
            check("add", c, want)

            c[:] = 0
            apply(lambda x, y: x * y, [a.reshape(-1), b.reshape(-1)], c.reshape(-1))
            check("apply", c, (a.astype(np.float64) * b.astype(np.float64)).astype(np.float32).astype(dtype))

            relu(a)
            check("relu", a, np.maximum(a.astype(np.float32), 0).astype(dtype))
        print(f"{np.dtype(dtype).name:14} add, apply, relu agree with numpy")


def check_torch(torch: Any) -> None:
    # on the GPU if there is one; also with the device that `kiln run --target cpu` serves from host memory
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(11, 13, dtype=torch.bfloat16, device=device)
    y, z = torch.randn_like(x), torch.zeros_like(x)
    add(x, y, z)
    assert torch.equal(z, x + y)
    apply(lambda v: cute.math.tanh(v) * 2.0, [x.reshape(-1)], z.reshape(-1))
    torch.testing.assert_close(z, torch.tanh(x) * 2.0)
    relu(x)
    assert (x >= 0).all()
    print("torch          add, apply, relu agree with torch")


def check(what: str, got: Any, want: Any) -> None:
    import numpy as np

    if not np.array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}")):
        wrong = np.argwhere(got.view(f"u{got.itemsize}") != want.view(f"u{want.itemsize}"))[0]
        sys.exit(f"{what}: element {tuple(wrong)} is {got[tuple(wrong)]}, not {want[tuple(wrong)]}")


if __name__ == "__main__":
    main()
