"""One exported library, called by PyTorch, JAX, TVM-FFI and C, each with what it may pass and what it may not."""

from __future__ import annotations

import _ctypes
import ctypes
import importlib.util
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exporting import ROOT, exported_scale, matrix, needs_strip, say, scale_here, without_kiln
from exporting import scale as scale_on_stream
from jax_testing import with_x64

import kiln
import kiln.cute as cute
from kiln import Boolean, Float32, Float64, Int32, Int64
from kiln.base_dsl.diagnostics import DSLRuntimeError, DSLUserCodeTypeError
from kiln.cute.runtime import load_module, make_fake_compact_tensor, make_fake_stream
from kiln.interop.aot import objects, read_metadata
from kiln.targets.host.elf import shared_library

ALL = ("c", "tvm_ffi", "torch", "jax")
SIGNATURE = "scale_here(x: Tensor([?, ?], Float32), y: Tensor([?, ?], Float32), by: Float32)"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """For a GPU and the host."""
    return exported_scale(tmp_path_factory.mktemp("exported"), "scale", ("sm_90a", "cpu"))


def test_programs_without_kiln(library: str) -> None:
    """The program of the example, in a process of its own."""
    if importlib.util.find_spec("torch"):
        pytest.importorskip("torch", minversion="2.10")
    wanted = [name for name in ("torch", "jax", "tvm_ffi", "ctypes") if importlib.util.find_spec(name)]
    told = without_kiln(ROOT / "examples" / "exported" / "use.py", library)
    assert [line.partition(":")[0] for line in told] == wanted


# --- PyTorch ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scale(library: str) -> Any:
    torch = pytest.importorskip("torch", minversion="2.10")
    torch.ops.load_library(library)
    return torch.ops.examples.scale


def test_the_operator_is_what_pytorch_expects(scale: Any) -> None:
    import torch

    assert str(scale.default._schema) == "examples::scale(Tensor x, float by) -> Tensor"
    tags = {
        torch.Tag.pt2_compliant_tag,
        getattr(torch.Tag, "needs_exact_strides", None),
    }  # before 2.12 torch's interface takes none
    assert set(scale.default.tags) == (tags if torch.__version__ >= (2, 12) else set())
    x = torch.arange(24.0).reshape(3, 8)
    torch.library.opcheck(scale.default, (x, 2.0))  # schema, fake tensors, registration and symbolic shapes
    compiled = torch.compile(lambda x: scale(x, 2.0) + 1, fullgraph=True, dynamic=True, backend="eager")
    for rows in (2, 5):  # one graph for both: the shape is symbolic
        assert (compiled(torch.ones(rows, 8)) == 3).all()
    assert scale(x.half().to("meta"), 1.0).dtype == torch.float32  # the output's type is the kernel's
    gaps = torch.zeros(3, 16)[:, ::2]
    assert scale(torch.zeros(0, 8), 1.0).shape == (0, 8)
    assert scale(gaps.to("meta"), 1.0).stride() == (8, 1)


@pytest.mark.parametrize(
    ("change", "by", "words"),
    [
        (lambda x: x.double(), 1.0, "argument 1 (x) of {}: its elements are float64, expected float32"),
        (lambda x: x[0], 1.0, "argument 1 (x) of {}: its rank is 1, expected 2"),
        (lambda x: x[:, :6], 1.0, "argument 1 (x) of {}: its extent 1 is 6, expected a multiple of 4"),
        (lambda x: x.T.contiguous().T, 1.0, "argument 1 (x) of {}: its stride 0 is 1, expected a multiple of 4"),
        (lambda x: x.expand(2, 3, 8)[:, 0], 1e300, "argument 3 (by) of {}: it is 1e+300, expected a number that 32 bits hold"),
    ],
)  # fmt: skip
def test_what_operators_refuse(scale: Any, change: Any, by: float, words: str) -> None:
    import torch

    with pytest.raises(RuntimeError) as refused:
        scale(change(torch.zeros(3, 8)), by)
    assert words.format(SIGNATURE) in str(refused.value)


@cute.jit
def gather(out: cute.Tensor, tensors: tuple, n: Int32, flag: Boolean, nothing):
    """Arguments of all kinds that operators have."""
    for i in range(n):
        out[0, i] = tensors[0][i] + tensors[1][i] if flag else Float32(-1)


@pytest.fixture(scope="module")
def gathering(tmp_path_factory: pytest.TempPathFactory) -> str:
    vector = make_fake_compact_tensor(Float32, (cute.SymInt(),))
    out = make_fake_compact_tensor(Float32, (2, cute.SymInt()), stride_order=(1, 0))
    (path,) = kiln.export(
        gather, out, (vector, vector), 1, True, None, to=tmp_path_factory.mktemp("exported") / "libgather.so", archs=("cpu",),
        entry_points=("torch", "jax"), outputs={"out": (2, "n")},
    )  # fmt: skip
    return path


def test_lists_extents_and_numbers(gathering: str) -> None:
    torch = pytest.importorskip("torch", minversion="2.10")
    torch.ops.load_library(gathering)
    gather = torch.ops.kiln.gather
    assert str(gather.default._schema) == "kiln::gather(Tensor[] tensors, SymInt n, bool flag) -> Tensor"
    a, b = torch.arange(4.0), torch.ones(4)
    assert gather([a, b], 3, True).shape == (2, 3) and gather([a, b], 3, True)[0].tolist() == [1, 2, 3]
    assert gather([a, b], 1, False)[0].tolist() == [-1]
    for bad, words in (
        (([a], 3, True), "argument 2 (tensors) of gather("),
        (([a], 3, True), "its length is 1, expected 2"),
        (([a, b.double()], 3, True), "its elements are float64, expected float32"),
    ):
        with pytest.raises(RuntimeError) as refused:
            gather(*bad)
        assert words in str(refused.value)


@cute.jit
def accumulate(x: cute.Tensor, z: cute.Tensor):
    for i in range(cute.size(x)):
        x[i] += z[i]


def test_autograd_is_told_what_an_operator_wrote_to(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", minversion="2.10")
    vector = make_fake_compact_tensor(Float32, (cute.SymInt(),))
    (path,) = kiln.export(
        accumulate,
        vector,
        vector,
        to=tmp_path / "libaccumulate.so",
        archs=("cpu",),
        entry_points=("torch",),
        mutates=("x",),
    )
    torch.ops.load_library(path)
    accumulated = torch.ops.kiln.accumulate
    assert str(accumulated.default._schema) == "kiln::accumulate(Tensor(a!) x, Tensor z) -> ()"
    x, factor = torch.arange(4.0, requires_grad=True), torch.full((4,), 3.0)
    product = (x * factor).sum()
    accumulated(factor, torch.ones(4))
    assert factor._version == 1 and factor.tolist() == [4] * 4
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():
        of_inference = torch.zeros(4)
        accumulated(of_inference, torch.ones(4))
        accumulated(factor, torch.ones(4))
    assert of_inference.tolist() == [1] * 4 and factor._version == 2
    for bad, words in (
        (of_inference, "a tensor of inference mode"),
        (torch.zeros(1).expand(4), "one element at several coordinates"),
        (x, "it requires a gradient"),
    ):
        was = bad.tolist()
        with pytest.raises(RuntimeError) as refused:
            accumulated(bad, torch.ones(4))
        assert "argument 1 (x)" in str(refused.value) and words in str(refused.value) and bad.tolist() == was
    with torch.no_grad():
        accumulated(x, x.detach())
    assert x.tolist() == [0, 2, 4, 6]
    accumulated(torch.zeros(0), torch.zeros(0))


# --- JAX -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def call(library: str, gathering: str) -> Any:
    """Calls the function of a name with arrays and numbers."""
    jax = pytest.importorskip("jax")
    for name, path in (("scale", library), ("gather", gathering)):
        handler = jax.ffi.pycapsule(getattr(ctypes.CDLL(path), f"kiln_xla_{name}"))
        jax.ffi.register_ffi_target(f"exported_{name}", handler, platform="cpu")

    def call(name: str, shape: Any, dtype: Any, *arrays: Any, **numbers: Any) -> np.ndarray:
        results = jax.ShapeDtypeStruct(shape, dtype)
        aliases = numbers.pop("input_output_aliases", {})
        return np.asarray(
            jax.ffi.ffi_call(f"exported_{name}", results, input_output_aliases=aliases)(*arrays, **numbers)
        )

    return call


X = np.arange(24, dtype=np.float32).reshape(3, 8)


def test_jax_passes_arrays_and_attributes(call: Any) -> None:
    for by in (2.0, np.float32(2), 2, np.int8(2)):
        assert (call("scale", (3, 8), np.float32, X, by=by) == 2 * X).all()
    assert call("scale", (0, 8), np.float32, X[:0], by=1.0).shape == (0, 8)
    assert (call("gather", (2, 3), np.float32, X[0], X[1], n=3, flag=True)[0] == (X[0] + X[1])[:3]).all()


@pytest.mark.parametrize(
    ("shape", "dtype", "arrays", "numbers", "words"),
    [
        ((3, 8), "float32", [X], {}, "argument 3 (by) of {}: there is no attribute by that is a number"),
        ((3, 8), "float32", [X], {"by": "2"}, "argument 3 (by) of {}: there is no attribute by that is a number"),
        ((3, 8), "float32", [X], {"by": 1e300}, "argument 3 (by) of {}: it is 1e+300, expected a number that 32 bits hold"),
        ((3, 8), "float32", [X], {"by": 1.0, "also": 2}, "{}: the number of attributes is 2, expected 1, and none is also"),
        ((3, 8), "float32", [X, X], {"by": 1.0}, "{}: the number of arrays that are passed is 2, expected 1"),
        ((3, 8), "int32", [X], {"by": 1.0}, "argument 2 (y) of {}: its elements are int32, expected float32"),
        ((24,), "float32", [X], {"by": 1.0}, "argument 2 (y) of {}: its rank is 1, expected 2"),
        ((3, 6), "float32", [X], {"by": 1.0}, "argument 2 (y) of {}: its extent 1 is 6, expected a multiple of 4"),
        ((3, 4), "float32", [X], {"by": 1.0}, "both were compiled as one symbol"),
    ],
)  # fmt: skip
def test_what_handlers_refuse(call: Any, shape: Any, dtype: str, arrays: Any, numbers: Any, words: str) -> None:
    import jax

    with pytest.raises(jax.errors.JaxRuntimeError) as refused:
        call("scale", shape, dtype, *arrays, **numbers)
    assert "INVALID_ARGUMENT" in str(refused.value) and words.format(SIGNATURE) in str(refused.value)


# --- all of them -----------------------------------------------------------------------------------------------------


def test_what_is_written_to(tmp_path: Path) -> None:
    """Without outputs, tensors are passed and written to: PyTorch's schema says so, and JAX's results are their aliases. Streams are not passed."""
    torch, jax = pytest.importorskip("torch", minversion="2.10"), pytest.importorskip("jax")
    given = matrix(), matrix(), 1.0, make_fake_stream()
    (path,) = kiln.export(
        scale_on_stream, *given, to=tmp_path / "libinto.so", archs=("cpu",), entry_points=("torch", "jax")
    )
    torch.ops.load_library(path)
    into = torch.ops.kiln.into
    assert str(into.default._schema) == "kiln::into(Tensor(a!) x, Tensor(b!) y, float by) -> ()"
    x, y = torch.ones(3, 8), torch.zeros(3, 8)
    into(x, y, 3.0)
    assert (y == 3).all()
    with pytest.raises(RuntimeError, match=r"both were compiled as one symbol"):
        into(x, y[:2], 3.0)
    jax.ffi.register_ffi_target("exported_into", jax.ffi.pycapsule(ctypes.CDLL(path).kiln_xla_into), platform="cpu")
    result = jax.ShapeDtypeStruct((3, 8), np.float32)
    made = jax.ffi.ffi_call("exported_into", result, input_output_aliases={1: 0})(X, np.zeros_like(X), by=2.0)
    assert (np.asarray(made) == 2 * X).all()
    with pytest.raises(jax.errors.JaxRuntimeError, match="results that are no aliases of inputs is 1, expected 0"):
        np.asarray(jax.ffi.ffi_call("exported_into", result)(X, X, by=2.0))


def through_all_entry_points(path: str, name: str, *given: Any, **numbers: Any) -> list[str]:
    """What goes wrong by TVM-FFI, PyTorch and JAX: the class and the text; arrays come first."""
    pytest.importorskip("torch", minversion="2.10")
    tvm_ffi, torch, jax = (pytest.importorskip(package) for package in ("tvm_ffi", "torch", "jax"))
    torch.ops.load_library(path)
    handler = jax.ffi.pycapsule(getattr(ctypes.CDLL(path), f"kiln_xla_{name}"))
    jax.ffi.register_ffi_target(f"all_{name}", handler, platform="cpu")
    result = jax.ShapeDtypeStruct(given[0].shape, given[0].dtype)

    def by_jax() -> None:
        with with_x64():
            np.asarray(jax.ffi.ffi_call(f"all_{name}", result, input_output_aliases={0: 0})(*given, **numbers))

    said: list[str] = []
    for call in (
        lambda: tvm_ffi.load_module(path)[name](*given, *numbers.values()),
        lambda: getattr(torch.ops.kiln, name)(*map(torch.from_numpy, given), *numbers.values()),
        by_jax,
    ):
        with pytest.raises(Exception) as refused:  # noqa: PT011 - the class is part of what is looked at
            call()
        said.append(f"{refused.type.__name__}: {refused.value}")
    return said


ENTRY_POINTS = ("tvm_ffi", "torch", "jax")


def test_kernels_that_fail(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x, path = make_fake_compact_tensor(Float64, (cute.SymInt(),)), str(tmp_path / "libfails.so")
    kiln.export(say, x, Int64(1), to=path, archs=("cpu",), entry_points=ENTRY_POINTS, options="--enable-assertions")
    said = through_all_entry_points(path, "fails", np.zeros(4), n=5)
    assert [each.partition(":")[0] for each in said] == ["RuntimeError", "RuntimeError", "JaxRuntimeError"]
    assert all(
        "assertion failed: n is too large (kernel said, block (0, 0, 0), thread (0, 0, 0))" in each for each in said
    )
    assert "INTERNAL" in said[2] and capfd.readouterr().out.count("n is 5") == 3


def test_memory_that_the_file_has_no_code_for(tmp_path: Path) -> None:
    given, path = (matrix(), matrix(), 1.0), str(tmp_path / "libgpu.so")
    kiln.export(scale_here, *given, to=path, archs=("sm_90a",), entry_points=ENTRY_POINTS)
    by_tvm_ffi, by_torch, by_jax = through_all_entry_points(path, "gpu", X, np.zeros_like(X), by=1.0)
    assert by_tvm_ffi.startswith("ValueError") and "argument 1 (x)" in by_tvm_ffi
    assert by_tvm_ffi.endswith("it is on the host, expected a CUDA device")
    assert by_torch.startswith("NotImplementedError: Could not run 'kiln::gpu' with arguments from the 'CPU' backend")
    assert by_jax.startswith("JaxRuntimeError")


def test_tvm_ffi_is_told_of_it(library: str) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    module = tvm_ffi.load_module(library)
    schema = tvm_ffi.core.TypeSchema.from_json_str(module.get_function_metadata("scale")["type_schema"])
    assert str(schema) == "Callable[[Tensor, Tensor, float], None]"
    assert module.get_function_doc("scale") == "The same, on the stream of who calls it."
    y = np.zeros_like(X)
    module.scale(X, y, 3.0)
    assert (y == 3 * X).all()
    module.scale(X[:0], y[:0], 3.0)  # nothing to do
    with pytest.raises(TypeError, match=r"argument 2 \(y\).*: it is None, expected a tensor"):
        module.scale(X, None, 1.0)
    with pytest.raises(TypeError, match=r"argument 3 \(by\).*: it is a string, expected a number"):
        module.scale(X, y, "two")


def test_it_serves_python_again(library: str) -> None:
    y = np.zeros_like(X)
    load_module(library).scale(X, y, by=4.0)
    assert (y == 4 * X).all()


def test_what_a_file_says_of_itself(library: str) -> None:
    (about,) = read_metadata(library).values()
    assert len(about.pop("traced")) == 32 and about.pop("kiln") == kiln.__version__
    assert about.pop("host").endswith("-unknown-linux-gnu")
    sizes = about.pop("sizes")
    assert sizes["cpu"] == 0 and sizes["sm_90a"] > 1000
    leaf, rows = {"bits": 32, "divisibility": 4}, {"bits": 32, "divisibility": 1}
    tensor = {
        "kind": "tensor", "type": "Float32", "shape": [rows, leaf], "stride": [{"bits": 64, "divisibility": 4}, 1], "alignment": 4,
        "memory": "gmem", "readonly": False, "counted": False,
    }  # fmt: skip
    assert about == {
        "abi": 1, "function": "scale_here", "target": "nvidia", "targets": ["nvidia", "cpu"], "architectures": ["sm_90a", "cpu"],
        "signature": SIGNATURE, "slots": about["slots"], "result": [0, 0], "streams": 1, "stream_places": [3], "prints": False, "entry_points": list(ALL),
        "arguments": [{"name": "x", **tensor}, {"name": "y", **tensor}, {"name": "by", "kind": "number", "type": "Float32"}],
        "doc": "The same, on the stream of who calls it.", "outputs": {"y": "x"}, "schema": "scale(Tensor x, float by) -> Tensor",
    }  # fmt: skip
    assert json.dumps(about)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outputs": {"z": "x"}}, "outputs names 'z'"),
        ({"outputs": {"y": "by"}}, "the output 'y' is to be like 'by'"),
        ({"outputs": {"y": ("x.0",)}}, "the output 'y' is to be"),
        ({"outputs": {"y": ("x.0", "x.2")}}, "the output 'y' is to have the extent 'x.2'"),
        ({"outputs": {"y": "x"}, "mutates": ["by"]}, "mutates names 'by'"),
        ({"entry_points": ("torch", "java")}, "the entry point 'java'"),
        ({"entry_points": "torch,java"}, "the entry point 'java'"),
        ({"entry_points": ()}, "no entry point"),
        ({"name": "a-b::scale"}, "'a-b' is no name of C"),
        ({"to": "folder"}, "(?s)into the folder folder needs a name.*ends in .o or .so"),
        ({"archs": "sm_35"}, "(?s)unknown GPU architecture 'sm_35'.*the oldest is sm_80"),
        ({"host": "linux-mips"}, "(?s)host='linux-mips' names no machine.*linux-aarch64"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_for_frameworks(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((DSLUserCodeTypeError, DSLRuntimeError), match=words):
        kiln.export(
            scale_here,
            matrix(),
            matrix(),
            1.0,
            **{"to": tmp_path / "a.so", "entry_points": ("torch",), "archs": ("cpu",), **options},
        )
    assert not list(tmp_path.iterdir())


def test_damaged_libraries_are_not_loaded(library: str, tmp_path: Path) -> None:
    """What only tools read, the tables at the end, may be as it likes."""
    data, generator, bad = Path(library).read_bytes(), random.Random(3), tmp_path / "bad.so"
    loaded = objects._LIBRARY_CHECK.unpack_from(data, shared_library.FREE)[2]
    for end in (40, 64, loaded, loaded, len(data)) * 12:
        damaged = bytearray(data)
        for _ in range(generator.randint(1, 8)):
            damaged[generator.randrange(loaded if end > loaded else 0, end)] ^= generator.randrange(1, 256)
        bad.unlink(missing_ok=True)  # what is loaded stays as it is
        bad.write_bytes(damaged)
        told = None
        try:
            load_module(bad)
        except DSLRuntimeError as failure:
            told = failure
        assert told is not None or end in (64, len(data)), end


@pytest.mark.parametrize("stripped", [False, pytest.param(True, marks=needs_strip)])
def test_libraries_are_closed_and_opened_again(stripped: bool, tmp_path: Path) -> None:
    path, _ = kiln.export(scale_here, matrix(), matrix(), 1.0, to=tmp_path / "libagain.so", archs=("cpu",))
    assert Path(path).stat().st_size < 28 * 1024
    if stripped:
        subprocess.run(["strip", path], check=True)
    for _ in range(2):
        opened = ctypes.CDLL(path)
        assert opened.again_Kernel_Module_Load(None) == 0
        _ctypes.dlclose(opened._handle)
    y = np.zeros_like(X)
    load_module(path).again(X, y, 2.0)
    assert (y == 2 * X).all()


def test_operators_are_exported_with_what_is_known_of_them(tmp_path: Path) -> None:
    pytest.importorskip("torch", minversion="2.10")
    op = kiln.torch.op("examples::scaled", scale_here, outputs={"y": ("x.0", "x.1")})
    (path, _) = kiln.export(op, matrix(), matrix(), 1.0, to=tmp_path / "libscaled.so", archs=("cpu",))
    about = read_metadata(path)["scaled"]
    assert about["entry_points"] == ["c", "torch"] and about["schema"] == "scaled(Tensor x, float by) -> Tensor"
    made = kiln.torch.op("examples::made", scale_here, outputs={"y": lambda x, by: x.clone()})
    with pytest.raises(DSLUserCodeTypeError, match="Python makes the output 'y'"):
        kiln.export(made, matrix(), matrix(), 1.0, to=tmp_path / "libmade.so", archs=("cpu",))


def test_what_is_compiled_already(tmp_path: Path) -> None:
    compiled = cute.compile(scale_here, matrix(), matrix(), 1.0)
    with pytest.raises(DSLUserCodeTypeError, match="compiled already"):
        kiln.export(compiled, to=tmp_path / "a.so")
