"""Host time of a call of one small kernel through each bridge, beside the frameworks' own calls.

    python benchmarks/bridges.py [--cpu] [--rounds N] [--save]

Medians of batches of 100 calls, the cases taking turns; the device is drained between batches. Hosts differ, and so
does one from minute to minute: the last column is what a call costs beyond the bare launch of its round (medians of
the differences). `--cpu` runs on the CPU target, where the work itself is part of the time. Frameworks that are not
installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import os
import statistics
import struct as struct_packing
import tempfile
import time
from pathlib import Path
from typing import Any

from results import Page, Table

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU's memory is shared with torch

import torch

import kiln
import kiln.cute as cute
import kiln.torch
from kiln import Float32
from kiln.cute.runtime import from_dlpack, make_fake_compact_tensor
from kiln.native import Fn, Ptr, address, f32, i32, i64, native, struct

Case = tuple[Any, ...]
"""A name and a function; after them how many calls it makes at once, if that is not 1."""
BATCH = 100
LAUNCH = "compiled function, a prepared tensor (the launch)"
C_LAUNCH = "peer: C, the launch (compiled code with its slots)"
CALLS = Table(
    "Host time of a call, median of 60 batches of 100",
    ("call", "median us", "least us", "greatest us", "over the launch us"),
)
PAGE = Page(__file__, "Calls through bridges", CALLS)


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


@cute.kernel
def multiplied(x: cute.Tensor, y: cute.Tensor, by: Float32):
    row, _, _ = cute.arch.block_idx()
    column, _, _ = cute.arch.thread_idx()
    if column < x.shape[1]:
        y[row, column] = x[row, column] * by


@cute.jit
def scaled(x: cute.Tensor, y: cute.Tensor, by: Float32):
    multiplied(x, y, by).launch(grid=1, block=64)


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
        (LAUNCH, lambda: short(fake)),
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
    guards = torch._C._dynamo.guards
    make = guards._empty_strided_cuda if x.is_cuda else guards._empty_strided_cpu
    return [
        ("kiln.torch.op, output allocated", lambda: ours(x)),
        ("the same under torch.ops, where autograd comes first", lambda: with_gradient(x)),
        ("the same where a gradient is asked for", lambda: ours(leaf)),
        ("kiln.torch.op, no output", lambda: inside(x, y)),
        ("peer: torch, x + 1", lambda: x + 1),
        ("peer: torch, empty_like(x)", lambda: torch.empty_like(x)),
        ("peer: torch, a tensor made as Inductor's code makes it", lambda: make((64,), (1,), torch.float32)),
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
    """What `repeat` calls: a wrapper of an exported function with one tensor, or with two and a number, or compiled
    code itself."""

    one: Fn[[Ptr, Ptr], i32]
    two: Fn[[Ptr, Ptr, Ptr, f32], i32]
    code: Fn[[Ptr], Ptr]
    tensor: Ptr


@native
def repeat(called: Ptr[Called], count: i64) -> i32:
    """The first status that is not 0."""
    for _ in range(count):
        status = i32(0)
        if address(called.one) != 0:
            status = called.one(Ptr(None), called.tensor)
        elif address(called.two) != 0:
            status = called.two(Ptr(None), called.tensor, called.tensor, 2.0)
        elif address(called.code(called.tensor)) != 0:
            status = i32(-1)
        if status != 0:
            return status
    return i32(0)


def c_cases(x: torch.Tensor) -> list[Case]:
    """Functions in a shared library, as C programs call them; beside them compiled code, called with its slots."""
    vector = from_dlpack(x).mark_layout_dynamic()
    matrix = make_fake_compact_tensor(Float32, (cute.SymInt(), cute.SymInt(divisibility=4)), stride_order=(1, 0))
    compiled, folder = cute.compile(one, vector), Path(tempfile.mkdtemp())

    def function(name: str) -> int:
        library = ctypes.CDLL(str(folder / f"{name}.so"))
        _kept.append(library)
        return ctypes.cast(library[f"cute_dsl_{name}_wrapper"], ctypes.c_void_p).value or 0

    kiln.export(one, vector, to=folder / "one.so")
    kiln.export(scaled, matrix, matrix, 1.0, to=folder / "two.so")
    tensors = [
        ctypes.create_string_buffer(struct_packing.pack(form, x.data_ptr(), *extents), 64)
        for form, extents in (("<Qi", (64,)), ("<Qiiq", (4, 16, 16)))
    ]
    vector_at, matrix_at = map(ctypes.addressof, tensors)
    cases = {
        "C: wrapper of an exported function, 1 tensor": Called(function("one"), 0, 0, vector_at),
        "C: wrapper of an exported function, 2 matrices and a number": Called(0, function("two"), 0, matrix_at),
        C_LAUNCH: Called(0, 0, compiled.executable.address, vector_at),
    }
    _kept.extend((tensors, compiled))

    def call(called: Any) -> None:
        status = repeat(called, BATCH)
        if status != 0:
            raise RuntimeError(f"status {status}")

    for called in cases.values():
        call(called)
    return [(name, functools.partial(call, called), BATCH) for name, called in cases.items()]


def exported_cases(x: torch.Tensor) -> list[Case]:
    """One exported file, as frameworks call it that know nothing of Kiln."""
    fake, y = from_dlpack(x).mark_layout_dynamic(), torch.empty_like(x)
    path = Path(tempfile.mkdtemp()) / "libinto.so"
    entry_points = ("tvm_ffi", "torch", "jax")
    kiln.export(into, fake, fake, to=path, name="kiln_benchmark::into", entry_points=entry_points, outputs={"y": "x"})
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
    for number in range(
        -(rounds // 4), rounds
    ):  # the first ones are not counted: native code may still be in the making
        for name, call, *at_once in cases:
            calls = BATCH // (at_once or [1])[0]
            for _ in range(-(-calls // 10)):  # what the case before drove out of the processor's caches comes back
                drain(call())
            begin = time.perf_counter()
            for _ in range(calls):
                last = call()
            took = (time.perf_counter() - begin) / BATCH * 1e6
            if number >= 0:
                times[name].append(took)
            drain(last)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="run on the CPU target")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--save", action="store_true", help="write docs/data/bridges.md")
    given = parser.parse_args()
    device = "cpu" if given.cpu or not torch.cuda.is_available() else "cuda"
    if device == "cpu":
        os.environ.setdefault("KILN_TARGET", "cpu")
    x = torch.arange(64, dtype=torch.float32, device=device)
    cases: list[Case] = []
    for make, argument in (
        (python_cases, x),
        (c_cases, x),  # before JAX: its threads are not done when its arrays are
        (tvm_cases, x),
        (torch_cases, x),
        (jax_cases, device),
        (exported_cases, x),
    ):
        try:
            cases += make(argument)
        except (ImportError, RuntimeError) as failure:
            print(f"left out: {make.__name__}: {failure}")
    times = measure(cases, given.rounds, device)
    for name, found in times.items():
        bare = times.get(C_LAUNCH if name.startswith("C:") else LAUNCH, found)
        over = statistics.median(mine - launch for mine, launch in zip(found, bare, strict=True))
        CALLS.add(name, *(f"{us:.2f}" for us in (statistics.median(found), min(found), max(found), over)))
    PAGE.finish(given.save)


if __name__ == "__main__":
    main()
