"""Kernels inside a library of C++: exported for several architectures by one process, linked together, called by ctypes.

This is how PyTorch ships kernels with its operators: adapters with a fixed number of tensors around kernels that take
lists, descriptions of the arguments, `--gpu-arch` for each function, a prefix for each architecture, launchers that
load a module once and fill the structures of the header.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exporting import build, needs_compiler

import kiln
from kiln import BFloat16, Constexpr, Float32, cute
from kiln.cute import arch
from kiln.cute.runtime import make_fake_stream, make_fake_tensor

HERE = Path(__file__).parent
VALUES = 4


class Elementwise:
    """One thread for each vector of the inputs."""

    def __init__(self, function: Callable[..., Any], result: type) -> None:
        self.function = function
        self.result = result

    @cute.jit
    def __call__(self, inputs: list, outputs: list, by: Float32, stream):  # type: ignore[type-arg]
        n = cute.size(outputs[0], mode=[0])
        self.kernel(inputs, outputs, by).launch(grid=[cute.ceil_div(n, 64), 1, 1], block=[64, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, inputs: list, outputs: list, by: Float32):  # type: ignore[type-arg]
        i = arch.block_idx()[0] * 64 + arch.thread_idx()[0]
        if i < cute.size(outputs[0], mode=[0]):
            values = [tensor[i, None].load().to(Float32) for tensor in inputs]
            outputs[0][i, None].store(self.function(*values, by).to(self.result))


class Two:
    """Headers have no lists: the adapter names each tensor."""

    def __init__(self, op: Elementwise) -> None:
        self.op = op

    @cute.jit
    def __call__(self, mIn0: cute.Tensor, mIn1: cute.Tensor, mOut0: cute.Tensor, by: Float32, stream):
        self.op([mIn0, mIn1], [mOut0], by, stream)


class RowSums:
    @cute.jit
    def __call__(self, mX: cute.Tensor, mY: cute.Tensor, stream):
        self.kernel(mX, mY, 32).launch(grid=[mX.shape[0], 1, 1], block=[32, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor, threads: Constexpr[int]):
        row, lane = arch.block_idx()[0], arch.thread_idx()[0]
        total = Float32(0)
        for i in range(lane, x.shape[1], threads):
            total += x[row, i].to(Float32)
        total = arch.warp_reduction_sum(total)
        if lane == 0:
            y[row] = total


@cute.jit
def nothing(a: Float32):
    return a + Float32(1)


def vectors(dtype: Any) -> Any:
    return make_fake_tensor(
        dtype, (cute.sym_int(), VALUES), stride=(VALUES, 1), assumed_align=VALUES * dtype.width // 8
    )


def export(folder: Path, name: str, gpu: str, function: Any, *arguments: Any) -> None:
    prefix = f"{name}__{gpu.replace('_', '')}"
    compiled = cute.compile(function, *arguments, make_fake_stream(), options=f"--gpu-arch {gpu}")
    compiled.export_to_c(file_path=str(folder), file_name=prefix, function_prefix=prefix)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ops")
    add = Two(Elementwise(lambda a, b, by: a + b * by, Float32))
    x = make_fake_tensor(BFloat16, (cute.sym_int(), cute.sym_int()), stride=(cute.sym_int64(), 1))
    y = make_fake_tensor(Float32, (cute.sym_int(),), stride=(1,))
    with kiln.target("cpu"):
        cute.compile(nothing, Float32(1))
        for gpu in ("sm_90a", "sm_100a"):
            export(made, "add", gpu, add, vectors(BFloat16), vectors(Float32), vectors(Float32), Float32(1))
        export(made, "row_sums", "sm_90a", RowSums(), x, y)
    return made


def test_headers_have_a_structure_for_each_tensor(folder: Path) -> None:
    """Extents of 32 bits, strides of 64, and no member where all is compiled in: what launchers are written against."""
    header = (folder / "row_sums__sm90a.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    structures = {name: body.split() for body, name in re.findall(r"typedef struct \{([^{}]*)\} (\w+);", text)}
    assert structures == {
        "row_sums__sm90a_Tensor_mX_t": "void *data; int32_t dynamic_shapes[2]; int64_t dynamic_strides[1];".split(),
        "row_sums__sm90a_Tensor_mY_t": "void *data; int32_t dynamic_shapes[1];".split(),
        "row_sums__sm90a_Kernel_Module_t": "void *function;".split(),
    }
    assert "dynamic_strides" not in (folder / "add__sm90a.h").read_text()


class Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("sizes", ctypes.c_int64 * 2), ("strides", ctypes.c_int64 * 2))

    @classmethod
    def of(cls, array: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        strides = [stride // array.itemsize for stride in array.strides]
        return cls(array.ctypes.data, (ctypes.c_int64 * 2)(*shape), (ctypes.c_int64 * 2)(*strides))


@needs_compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_library_calls_the_kernels_of_its_architectures(folder: Path, child: Any) -> None:
    found = child("-m", "kiln", "run", str(HERE / "find_libraries.py"))
    assert found.returncode == 0, found.stderr
    libraries, by_distribution, version = found.stdout.splitlines()
    assert libraries == by_distribution and version == "4.8.1"
    flags = ["-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs"]
    linked = ["add__sm90a.o", "add__sm100a.o", "row_sums__sm90a.o"]
    library = [f"-L{libraries}", "-lcuda_dialect_runtime_static", "-Wl,--exclude-libs,libcuda_dialect_runtime_static.a"]
    build(
        folder,
        "-x",
        "c++",
        *flags,
        "-o",
        "libops.so",
        str(HERE / "native_ops.cpp"),
        "-x",
        "none",
        *linked,
        *library,
        "-lstdc++",
    )
    ops = ctypes.CDLL(str(folder / "libops.so"))
    ops.add.restype = ops.row_sums.restype = ctypes.c_char_p
    ops.add.argtypes = [ctypes.c_int, *[ctypes.POINTER(Tensor)] * 3, ctypes.c_float]
    random = np.random.default_rng(0)
    for major in (9, 10):
        a = random.standard_normal((101, VALUES)).astype(ml_dtypes.bfloat16)
        b, out = random.standard_normal((101, VALUES)).astype(np.float32), np.zeros((101, VALUES), np.float32)
        tensors = [ctypes.byref(Tensor.of(array, array.shape)) for array in (a, b, out)]
        assert ops.add(major, *tensors, 0.5) is None
        np.testing.assert_allclose(out, a.astype(np.float32) + b * np.float32(0.5), rtol=1e-6)
        misplaced = Tensor.of(b, b.shape)
        misplaced.data += 4
        refused = ops.add(major, tensors[0], ctypes.byref(misplaced), tensors[2], 1)
        assert refused is not None and b"mIn1" in refused and b"multiple of 16" in refused
    x, y = random.integers(-8, 8, (7, 80)).astype(ml_dtypes.bfloat16), np.zeros(7, np.float32)
    assert ops.row_sums(ctypes.byref(Tensor.of(x[:, :53], (7, 53))), ctypes.byref(Tensor.of(y, (7,)))) is None
    np.testing.assert_array_equal(y, x[:, :53].astype(np.float32).sum(1))


def test_packages_of_the_wheels_are_served_without_modules(child: Any) -> None:
    asked = "import importlib.util as u; print(u.find_spec('nvidia_cutlass_dsl') is None)"
    done = child(
        "-m", "kiln", "run", "-c", f"import nvidia_cutlass_dsl as n; print(len(n.__path__), n.__file__); {asked}"
    )
    assert done.stdout.split() == ["1", "None", "False"], done.stderr
    assert child("-c", f"import kiln; {asked}").stdout.split() == ["True"]  # where `cutlass` is not Kiln
