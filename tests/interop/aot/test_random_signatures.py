"""Functions of random signatures give the same bits however they are called: compiled, loaded, from C, by TVM-FFI, PyTorch and JAX."""

from __future__ import annotations

import ctypes
import importlib.util
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax_testing import with_x64

import kiln
import kiln.cute as cute
from kiln.cute.runtime import load_module, make_fake_compact_tensor

NUMBERS = {
    "Int8": ctypes.c_int8, "Int16": ctypes.c_int16, "Int32": ctypes.c_int32, "Int64": ctypes.c_int64,
    "Uint8": ctypes.c_uint8, "Uint16": ctypes.c_uint16, "Uint32": ctypes.c_uint32, "Boolean": ctypes.c_uint8,
    "Float32": ctypes.c_float, "Float64": ctypes.c_double,
}  # fmt: skip


def some_value(kind: str, generator: random.Random) -> Any:
    if kind.startswith("Float"):
        return float(np.float32(generator.uniform(-1e6, 1e6)))
    if kind == "Boolean":
        return generator.random() < 0.5
    bits = ctypes.sizeof(NUMBERS[kind]) * 8
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "I" else (0, (1 << bits) - 1)
    return generator.choice([low, high, generator.randint(low, high)])


def some_function(kinds: list[str], folder: Path) -> Any:
    """A function of numbers and matrices that writes all it is told of them."""
    lines, parameters = [], []
    for number, kind in enumerate(kinds):
        if kind in NUMBERS:
            parameters.append(f"p{number}: kiln.{kind}")
            lines.append(f"    out[{len(lines)}] = p{number}.to(kiln.Float64)")
        else:
            parameters.append(f"p{number}: cute.Tensor")
            lines.append(f"    out[{len(lines)}] = p{number}.shape[0].to(kiln.Float64)")
            lines.append(
                f"    out[{len(lines)}] = p{number}[1, 2].to(kiln.Float64) + p{number}.shape[1].to(kiln.Float64)"
            )
    file = folder / f"signature_{folder.name}.py"
    head = "import kiln\nimport kiln.cute as cute\n\n@cute.jit\ndef told(out: cute.Tensor, "
    file.write_text(f"{head}{', '.join(parameters)}):\n" + "\n".join(lines) + "\n")
    spec: Any = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.told


class Matrix(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 2), ("stride", ctypes.c_int64)]


class Vector(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int32)]


def by_torch(name: str, path: str) -> Any:
    """The operator."""
    import torch

    torch.ops.load_library(path)
    operator = getattr(torch.ops.kiln, name)

    def call(*values: Any) -> None:
        operator(*(torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values))

    return call


def by_jax(name: str, path: str, kinds: list[str]) -> Any:
    """The handler: the first array is a result as well, and numbers are attributes."""
    import jax

    library = ctypes.CDLL(path)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, f"kiln_xla_{name}")), platform="cpu")

    def call(out: np.ndarray, *values: Any) -> None:
        named = zip([f"p{number}" for number in range(len(kinds))], kinds, values, strict=True)
        numbers, arrays = {}, [out]
        for parameter, kind, value in named:
            if kind in NUMBERS:
                numbers[parameter] = value if kind == "Boolean" else np.dtype(kind.lower()).type(value)
            else:
                arrays.append(value)
        with with_x64():
            result = jax.ShapeDtypeStruct(out.shape, out.dtype)
            out[:] = jax.ffi.ffi_call(name, result, input_output_aliases={0: 0})(*arrays, **numbers)

    return call


@pytest.mark.parametrize("seed", range(3))
def test_entry_points_agree(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    kinds = [generator.choice([*NUMBERS, "matrix", "matrix"]) for _ in range(9)]
    function = some_function(kinds, tmp_path)
    shape = cute.SymInt(), cute.SymInt()
    matrix = make_fake_compact_tensor(kiln.Float32, shape, stride_order=(1, 0))
    vector = make_fake_compact_tensor(kiln.Float64, (cute.SymInt(),))
    described = [getattr(kiln, kind)(0) if kind in NUMBERS else matrix for kind in kinds]
    with kiln.target("cpu"):
        compiled = cute.compile(function, vector, *described)
        entry_points, name = ("c", "tvm_ffi", "torch", "jax"), f"told{seed}"
        path, library = (
            kiln.export(
                function, vector, *described, to=tmp_path / file, name=name, archs=("cpu",), entry_points=entry_points
            )[0]
            for file in ("told.o", "libtold.so")
        )
    array = np.random.default_rng(seed).standard_normal((3, 5)).astype(np.float32)
    values = [some_value(kind, generator) if kind in NUMBERS else array for kind in kinds]

    def from_c(out: np.ndarray, *values: Any) -> None:
        given: list[Any] = [Vector(out.ctypes.data, out.size)]
        given += [
            NUMBERS[kind](value) if kind in NUMBERS else Matrix(array.ctypes.data, (3, 5), 5)
            for kind, value in zip(kinds, values, strict=True)
        ]
        status = ctypes.c_int32(-1)
        pointers = [ctypes.addressof(each) for each in (*given, status)]
        packed = getattr(ctypes.CDLL(library), f"__kiln_packed_{name}")
        assert packed((ctypes.c_void_p * len(pointers))(*pointers), len(pointers)) == 0
        assert status.value == 0
        wrapper = getattr(ctypes.CDLL(library), f"cute_dsl_{name}_wrapper")
        wrapper.argtypes = [
            ctypes.c_void_p, *(type(each) if type(each) in NUMBERS.values() else ctypes.c_void_p for each in given)
        ]  # fmt: skip
        out[:] = -1.0
        passed = [each if type(each) in NUMBERS.values() else ctypes.addressof(each) for each in given]
        assert wrapper(None, *passed) == 0

    calls = [load_module(path)[name], load_module(library)[name], from_c]
    if importlib.util.find_spec("tvm_ffi") is not None:
        calls.append(load_module(path, enable_tvm_ffi=True)[name])
    if importlib.util.find_spec("torch") is not None:
        calls.append(by_torch(name, library))
    if importlib.util.find_spec("jax") is not None:
        calls.append(by_jax(name, library, kinds))
    wanted = np.full(24, -1.0)
    with kiln.target("cpu"):
        compiled(wanted, *values)
    assert wanted[0] != -1
    for call in calls:
        found = np.full(24, -1.0)
        call(found, *values)
        assert found.tobytes() == wanted.tobytes()
