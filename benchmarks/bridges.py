"""What a call of one small kernel costs the host through each bridge, beside what the frameworks' own calls cost.

    python benchmarks/bridges.py [--cpu] [--rounds N]

Medians of batches of 100 calls, the cases taking turns; the device is drained between batches. `--cpu` runs on the CPU target, where the work
itself is part of the time. Frameworks that are not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import statistics
import struct as struct_packing
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU's memory is shared with torch

import torch

import kiln
import kiln.cute as cute
import kiln.torch
from kiln.cute.runtime import from_dlpack
from kiln.native import Fn, Ptr, address, i32, i64, native, struct

Case = tuple[Any, ...]
"""A name and a function; after them how many calls it makes at once, if that is not 1."""
BATCH = 100


@cute.kernel
def increased(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    if thread < x.shape[0]:
        y[thread] = x[thread] + 1.0


@cute.jit
def one(x: cute.Tensor):
    increased(x, x).launch(grid=1, block=64)


@cute.jit
def three(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    increased(x, y).launch(grid=1, block=64)


@cute.jit
def into(x: cute.Tensor, y: cute.Tensor):
    increased(x, y).launch(grid=1, block=64)


@cute.jit
def operator(x: cute.Tensor, y: cute.Tensor, stream):
    increased(x, y).launch(grid=1, block=64, stream=stream)


@cute.jit
def from_jax(stream, x: cute.Tensor, y: cute.Tensor):
    increased(x, y).launch(grid=1, block=64, stream=stream)


def python_cases(x: torch.Tensor) -> list[Case]:
    """Compiled and jit functions."""
    fake = from_dlpack(x).mark_layout_dynamic()
    short, long, y = cute.compile(one, fake), cute.compile(three, fake, fake, fake), torch.empty_like(x)
    return [
        ("compiled function, a prepared tensor (the launch)", lambda: short(fake)),
        ("compiled function, 1 tensor", lambda: short(x)),
        ("compiled function, 3 tensors", lambda: long(x, y, x)),
        ("jit function, 3 tensors", lambda: three(x, y, x)),
    ]


def tvm_cases(x: torch.Tensor) -> list[Case]:
    """TVM-FFI's functions."""
    import tvm_ffi  # pyright: ignore[reportMissingImports]

    fake, y = from_dlpack(x).mark_layout_dynamic(), torch.empty_like(x)
    options = "--enable-tvm-ffi"
    short, long = cute.compile(one, fake, options=options), cute.compile(three, fake, fake, fake, options=options)
    for name, function in (("one", short), ("three", long)):
        tvm_ffi.register_global_func(f"kiln.benchmark.{name}", function, override=True)
    registered = tvm_ffi.get_global_func("kiln.benchmark.one"), tvm_ffi.get_global_func("kiln.benchmark.three")
    nothing = tvm_ffi.convert(tvm_ffi.get_global_func("testing.nop")) if _has(tvm_ffi, "testing.nop") else None
    cases: list[Case] = [
        ("TVM-FFI function called from Python, 1 tensor", lambda: short(x)),
        ("TVM-FFI function called from Python, 3 tensors", lambda: long(x, y, x)),
        ("TVM-FFI function from the registry, 1 tensor", lambda: registered[0](x)),
        ("TVM-FFI function from the registry, 3 tensors", lambda: registered[1](x, y, x)),
    ]
    if nothing is not None:
        cases.append(("peer: TVM-FFI, a function that does nothing, 3 tensors", lambda: nothing(x, y, x)))
    return cases


def _has(tvm_ffi: Any, name: str) -> bool:
    with contextlib.suppress(ImportError):
        import tvm_ffi.testing  # pyright: ignore[reportMissingImports]
    return tvm_ffi.get_global_func(name, allow_missing=True) is not None


def torch_cases(x: torch.Tensor) -> list[Case]:
    """Operators."""
    ours = kiln.torch.op("kiln_benchmark::increase", operator, outputs={"y": "x"})
    inside = kiln.torch.op("kiln_benchmark::increase_into", operator, mutates=("y",))
    fake, y = from_dlpack(x).mark_layout_dynamic(), torch.empty_like(x)
    compiled = cute.compile(three, fake, fake, fake)

    @torch.library.custom_op("kiln_benchmark::custom", mutates_args=())
    def custom(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        compiled(x, y, x)
        return y

    with_gradient = torch.ops.kiln_benchmark.increase.default
    leaf = x.clone().requires_grad_()
    return [
        ("kiln.torch.op, output allocated", lambda: ours(x)),
        ("the same under torch.ops, where autograd comes first", lambda: with_gradient(x)),
        ("the same where a gradient is asked for", lambda: ours(leaf)),
        ("kiln.torch.op, no output", lambda: inside(x, y)),
        ("peer: torch, x + 1", lambda: x + 1),
        ("peer: torch, empty_like(x)", lambda: torch.empty_like(x)),
        ("peer: torch.library.custom_op around a compiled function", lambda: custom(x)),
    ]


def jax_cases(device: str) -> list[Case]:
    """JAX."""
    import jax
    import jax.numpy as jnp

    import kiln.jax

    x = jax.device_put(jnp.arange(64, dtype=jnp.float32), jax.devices("gpu" if device == "cuda" else "cpu")[0])
    y, z = x + 1, x + 2
    fake = from_dlpack(x).mark_layout_dynamic()
    short, long = cute.compile(one, fake), cute.compile(three, fake, fake, fake)

    def call(x: Any) -> Any:
        return kiln.jax.cutlass_call(from_jax, output_shape_dtype=x)(x)

    plain, ours, twice = jax.jit(lambda x: x + 1), jax.jit(call), jax.jit(lambda x: call(call(x)))
    cases: list[Case] = [
        ("compiled function, 1 array of JAX", lambda: short(x)),
        ("compiled function, 3 arrays of JAX", lambda: long(x, y, z)),
        ("jax.jit of one cutlass_call", lambda: ours(x)),
        ("jax.jit of two", lambda: twice(x)),
        ("peer: jax.jit of x + 1", lambda: plain(x)),
    ]
    try:
        import jax_tvm_ffi  # pyright: ignore[reportMissingImports]

        function = cute.compile(three, fake, fake, fake, options="--enable-tvm-ffi")
        jax_tvm_ffi.register_ffi_target("kiln_benchmark", function, platform="gpu" if device == "cuda" else "cpu")
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        through = jax.jit(lambda x: jax.ffi.ffi_call("kiln_benchmark", (result, result))(x))
        through(x)[0].block_until_ready()
        cases.append(("peer: jax.jit of the same kernel through jax-tvm-ffi", lambda: through(x)))
    except ImportError:
        pass
    return cases


@struct
class Called:
    """What `repeat` calls: a wrapper of an exported function, or compiled code itself."""

    exported: i64
    wrapper: Fn[[Ptr, Ptr], i32]
    code: Fn[[Ptr], Ptr]
    tensor: Ptr


@native
def repeat(called: Ptr[Called], count: i64) -> i32:
    """The first status that is not 0."""
    for _ in range(count):
        if called.exported != 0:
            status = called.wrapper(Ptr(None), called.tensor)
            if status != 0:
                return status
        elif address(called.code(called.tensor)) != 0:
            return i32(-1)
    return i32(0)


def c_cases(x: torch.Tensor) -> list[Case]:
    """The function in a shared library, as C programs call it; beside it compiled code, called with its slots."""
    fake = from_dlpack(x).mark_layout_dynamic()
    compiled = cute.compile(one, fake)
    path, _ = kiln.export(one, fake, to=Path(tempfile.mkdtemp()) / "libone.so")
    library = ctypes.CDLL(path)
    wrapper = ctypes.cast(library.cute_dsl_one_wrapper, ctypes.c_void_p).value
    tensor = ctypes.create_string_buffer(struct_packing.pack("<Qi", x.data_ptr(), x.shape[0]), 64)
    exported = Called(1, wrapper, 0, ctypes.addressof(tensor))
    direct = Called(0, 0, compiled.executable.address, ctypes.addressof(tensor))
    _kept.extend((library, tensor, compiled))

    def call(called: Any) -> None:
        status = repeat(called, BATCH)
        if status != 0:
            raise RuntimeError(f"status {status}")

    call(exported)
    call(direct)
    return [
        ("C: wrapper of an exported function, 1 tensor", lambda: call(exported), BATCH),
        ("peer: C, the launch (compiled code with its slots)", lambda: call(direct), BATCH),
    ]


def exported_cases(x: torch.Tensor) -> list[Case]:
    """One exported file, as frameworks call it that know nothing of Kiln."""
    fake, y = from_dlpack(x).mark_layout_dynamic(), torch.empty_like(x)
    path = Path(tempfile.mkdtemp()) / "libinto.so"
    doors = ("tvm_ffi", "torch", "jax")
    kiln.export(into, fake, fake, to=path, name="kiln_benchmark::into", doors=doors, outputs={"y": "x"})
    torch.ops.load_library(path)
    operator = torch.ops.kiln_benchmark.into.default
    cases: list[Case] = [("exported file: torch.ops, output allocated", lambda: operator(x))]
    with contextlib.suppress(ImportError):
        import tvm_ffi  # pyright: ignore[reportMissingImports]

        function = tvm_ffi.load_module(str(path)).into
        cases.append(("exported file: TVM-FFI, 2 tensors", lambda: function(x, y)))
    with contextlib.suppress(ImportError):
        import jax

        platform = "gpu" if x.is_cuda else "cpu"
        handler = jax.ffi.pycapsule(ctypes.CDLL(str(path)).kiln_xla_into)
        jax.ffi.register_ffi_target("kiln_exported", handler, platform="CUDA" if x.is_cuda else "cpu")
        array = jax.device_put(jax.numpy.arange(64.0), jax.devices(platform)[0])
        jitted = jax.jit(lambda a: jax.ffi.ffi_call("kiln_exported", jax.ShapeDtypeStruct(a.shape, a.dtype))(a))
        cases.append(("exported file: jax.jit of its handler", lambda: jitted(array)))
    return cases


_kept: list[Any] = []


def measure(cases: list[Case], rounds: int, device: str) -> dict[str, list[float]]:
    """Microseconds of a call in each round, by case."""

    def drain(last: Any) -> None:
        if hasattr(last, "block_until_ready"):
            last.block_until_ready()
        if device == "cuda":
            torch.cuda.synchronize()

    times: dict[str, list[float]] = {name: [] for name, *_ in cases}
    for _, call, *_ in cases:
        for _ in range(5):
            drain(call())
    for _ in range(rounds):
        for name, call, *at_once in cases:
            begin = time.perf_counter()
            for _ in range(BATCH // (at_once or [1])[0]):
                last = call()
            times[name].append((time.perf_counter() - begin) / BATCH * 1e6)
            drain(last)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="run on the CPU target")
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    device = "cpu" if given.cpu or not torch.cuda.is_available() else "cuda"
    if device == "cpu":
        os.environ.setdefault("KILN_TARGET", "cpu")
    x = torch.arange(64, dtype=torch.float32, device=device)
    cases: list[Case] = []
    for make, argument in (
        (python_cases, x),
        (tvm_cases, x),
        (torch_cases, x),
        (jax_cases, device),
        (c_cases, x),
        (exported_cases, x),
    ):
        try:
            cases += make(argument)
        except (ImportError, RuntimeError) as failure:
            print(f"left out: {make.__name__}: {failure}")
    print(f"| call ({device}) | median us | least | greatest |\n|---|--:|--:|--:|")
    for name, found in measure(cases, given.rounds, device).items():
        print(f"| {name} | {statistics.median(found):.2f} | {min(found):.2f} | {max(found):.2f} |")


if __name__ == "__main__":
    main()
