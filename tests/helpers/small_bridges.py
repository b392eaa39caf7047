"""Imports PyTorch, JAX and TVM-FFI, and makes a call with each, on the CPU target: a first look at other versions of them.

Packages that are not there are left out. Nothing may be warned of: Kiln has all that it uses of the others.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("torch", "jax", "numpy", "apache-tvm-ffi")
SERVED = """
import torch

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        assert gradient.is_cuda
        return gradient * 2

x = torch.ones(3, device="cuda", requires_grad=True)
Twice.apply(x).sum().backward()
assert x.grad.is_cuda and x.grad.tolist() == [2, 2, 2]
"""


def main() -> None:
    if "--versions" in sys.argv:
        print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS if has(name)))
        return
    os.environ.setdefault("KILN_TARGET", "cpu")
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("kiln").addHandler(handler)
    for name, call in (("numpy", numpy), ("torch", torch), ("jax", jax), ("apache-tvm-ffi", tvm_ffi)):
        if has(name):
            call()
    if has("torch"):
        served()
    assert not said, said
    print("good")


def has(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def launch():
    """A jit function of three arrays: two inputs and what it writes to."""
    import kiln.cute as cute

    @cute.kernel
    def added(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
        i, _, _ = cute.arch.thread_idx()
        z[i] = x[i] + y[i]

    @cute.jit
    def add(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
        added(x, y, z).launch(grid=1, block=cute.size(z))

    return add


def numpy() -> None:
    import numpy as np

    add, x, z = launch(), np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    for _ in range(3):
        add(x, x, z)
        assert z.tolist() == [0, 2, 4, 6]
        z[:] = 0


def torch() -> None:
    import torch

    import kiln.torch

    add = launch()
    x, z = torch.arange(4.0), torch.zeros(4)
    for _ in range(3):
        add(x, x, z)
        assert z.tolist() == [0, 2, 4, 6]
        z.zero_()
    op = kiln.torch.op("kiln_small::add", add, outputs={"z": "x"}, backward=lambda gradient: (gradient, gradient))
    into = kiln.torch.op("kiln_small::add_into", add, mutates=("z",))
    for call in (op, torch.ops.kiln_small.add, op, torch.compile(op, backend="eager")):
        y = x.clone().requires_grad_()
        call(y, x).sum().backward()
        assert y.grad.tolist() == [1] * 4 and call(x, x).tolist() == [0, 2, 4, 6]
    for call in (into, torch.ops.kiln_small.add_into, into):
        before = z._version
        call(x, x, z)
        assert z.tolist() == [0, 2, 4, 6] and z._version > before


def jax() -> None:
    import jax
    import jax.numpy as jnp

    import kiln.jax

    add, x = launch(), jnp.arange(4.0)
    call = kiln.jax.cutlass_call(
        lambda stream, x, y, z: add(x, y, z), output_shape_dtype=jax.ShapeDtypeStruct(x.shape, x.dtype)
    )
    for _ in range(2):
        assert jax.jit(call)(x, x).tolist() == [0, 2, 4, 6]
    importlib.import_module("kiln.cute.runtime").from_dlpack(x)


def tvm_ffi() -> None:
    import numpy as np

    import kiln.cute as cute

    x, z = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    function = cute.compile(launch(), x, x, z, options="--enable-tvm-ffi")
    function(x, x, z)
    assert z.tolist() == [0, 2, 4, 6]


def served() -> None:
    """`kiln run --target cpu` of a program for a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(SERVED)
        command = [sys.executable, "-m", "kiln", "run", "--target", "cpu", "program.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


if __name__ == "__main__":
    main()
