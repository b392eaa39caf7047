"""Objects for TVM-FFI, called by TVM-FFI itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exporting import build, matrix, needs_compiler, scale_here

import kiln
import kiln.cute as cute
from kiln import Float32, Int32
from kiln.cute.host.arrays import Array
from kiln.cute.host.dlpack_export import capsule
from kiln.cute.runtime import from_dlpack, load_module, make_fake_compact_tensor

tvm_ffi = pytest.importorskip("tvm_ffi")


@cute.jit
def picked(tensors: tuple, shape: cute.Shape, what: Int32):
    """Arguments of all kinds that only TVM-FFI passes."""
    tensors[0][0] = tensors[1][1] + Float32(shape[0]) + Float32(what)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("exported") / "scale.o"
    with kiln.target("cpu"):
        compiled = cute.compile(scale_here, matrix(), matrix(), 1.0, options="--enable-tvm-ffi")
        compiled.export_to_c(made, function_name="scale")
    return made


@needs_compiler
def test_calls(file: Path) -> None:
    build(file.parent, "-shared", "-o", "scale.so", "scale.o")
    x, y = np.arange(24, dtype=np.float32).reshape(3, 8), np.zeros((3, 8), np.float32)
    for path in (file, file.parent / "scale.so"):
        scale = load_module(path, enable_tvm_ffi=True).scale
        assert isinstance(scale, tvm_ffi.Function)
        for by in (3.0, 2, 0.5):
            scale(x, y, by)
            assert (y == by * x).all()
    load_module(file).scale(x, y, by=7.0)  # Kiln's own calls
    assert (y == 7 * x).all()


def test_tuples_shapes_and_numbers(tmp_path: Path) -> None:
    with kiln.target("cpu"):
        vector = make_fake_compact_tensor(Float32, (cute.SymInt(),))
        given = (vector, vector), (Int32(1), Int32(2)), 3
        cute.compile(picked, *given, options="--enable-tvm-ffi").export_to_c(tmp_path / "a.o", function_name="picked")
    call = load_module(tmp_path / "a.o", enable_tvm_ffi=True).picked
    a, b = np.zeros(2, np.float32), np.array([1, 2], np.float32)
    call((a, b), (10, 20), 3)
    assert a[0] == 15
    call([a, b], tvm_ffi.Shape((20, 20)), True)
    assert a[0] == 23
    with pytest.raises(ValueError, match="its length is 1, expected 2"):
        call((a,), (1, 2), 3)
    with pytest.raises(
        ValueError, match=r"argument 3 \(what\).*: it is 4294967296, expected -2147483648 to 2147483647"
    ):
        call((a, b), (1, 2), 1 << 32)
    with pytest.raises(TypeError, match=r"argument 3 \(what\).*: it is a float, expected an integer"):
        call((a, b), (1, 2), 1.5)
    with pytest.raises(
        TypeError, match=r"argument 1 \(tensors\).*: it is an integer, expected a tuple, a list or a shape"
    ):
        call(1, (1, 2), 3)


X = np.zeros((3, 8), np.float32)


def strided(shape: tuple[int, int], step: int) -> np.ndarray:
    """An array whose rows are so many elements apart, in memory that is not there."""
    return np.lib.stride_tricks.as_strided(X, shape, (4 * step, 4))


class Nowhere:
    """An array of 3 x 8 elements at no address."""

    def __dlpack__(self, **_: object) -> object:
        return capsule(Array(0, (3, 8), (8, 1), Float32, "cpu", False, None), versioned=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ((X, X), TypeError, "the number of arguments is 2, expected 3"),
        ((X, 1, 1.0), TypeError, r"Mismatched argument 2 \(y\) of scale_here\(x: Tensor"),
        ((X, X, "a"), TypeError, r"argument 3 \(by\)"),
        ((X, X.astype(np.float64), 1.0), ValueError, "its elements are float64, expected float32"),
        ((X[0], X, 1.0), ValueError, "its rank is 1, expected 2"),
        ((X[:, :6], X, 1.0), ValueError, "its extent 1 is 6, expected a multiple of 4"),
        ((X.T.copy().T, X, 1.0), ValueError, "its stride 0 is 1, expected a multiple of 4"),
        ((X[:2], X, 1.0), ValueError, "one symbol"),
    ],
)
def test_what_does_not_fit(file: Path, arguments: tuple, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        load_module(file, enable_tvm_ffi=True).scale(*arguments)


@cute.jit
def touch(x: cute.Tensor):
    x[0, 0] = Float32(1)


def test_sizes_and_addresses_have_their_limits(tmp_path: Path) -> None:
    with kiln.target("cpu"):
        x = from_dlpack(X, use_32bit_stride=True).mark_layout_dynamic()
        cute.compile(touch, x, options="--enable-tvm-ffi").export_to_c(tmp_path / "a.o", function_name="touch")
    call = load_module(tmp_path / "a.o", enable_tvm_ffi=True).touch
    for x, words in (
        (strided((1 << 28, 8), 0), "the number of its elements is 2147483648, expected at most 2147483647"),
        (strided((3, 8), 1 << 30), "the offset of its last element is 2147483648, expected at most 2147483647"),
        (Nowhere(), "its address is null, expected that of its elements"),
    ):
        failure = None
        try:
            call(x)
        except ValueError as caught:  # nobody may show the arrays: their memory is not there
            failure = str(caught)
        assert words in (failure or "")


def test_symbols_of_32_bits_have_no_limit_of_elements(tmp_path: Path) -> None:
    n, space = cute.sym_int(), cute.AddressSpace.generic
    fake = cute.runtime.make_fake_tensor(Float32, (n, 8), (cute.sym_int(64), 1), memspace=space)
    with kiln.target("cpu"):
        cute.compile(touch, fake, options="--enable-tvm-ffi").export_to_c(tmp_path / "a.o", function_name="touch")
    x = strided((1 << 28, 8), 0)
    for tvm_ffi in (True, False):
        X[0, 0] = 0
        load_module(tmp_path / "a.o", enable_tvm_ffi=tvm_ffi).touch(x)
        assert X[0, 0] == 1
    X[0, 0] = 0
