"""Exported code on a GPU: first calls while a graph is captured, streams, tensor maps, PTX, errors."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from exporting import ROOT, compiled_scale, copy_boxes, exported_scale, matrix, say, scale_here, without_kiln

import kiln
import kiln.cute as cute
from kiln import Float64, Int64
from kiln.base_dsl.diagnostics import DSLCudaRuntimeError
from kiln.cute.runtime import load_module, make_fake_compact_tensor

torch = pytest.importorskip("torch")


def matrices():
    return torch.randn(16, 32, device="cuda"), torch.zeros(16, 32, device="cuda")


def test_the_first_call_may_be_captured(tmp_path: Path) -> None:
    compiled_scale().export_to_c(tmp_path, "scale")
    scale = load_module(tmp_path / "scale.o").scale
    (x, y), graph = matrices(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale(x, y, 3.0, torch.cuda.current_stream())
    assert not y.any()
    graph.replay()
    assert torch.equal(y, 3 * x)
    stream = torch.cuda.Stream()
    scale(x, y, 2.0, stream)
    stream.synchronize()
    assert torch.equal(y, 2 * x)


def test_tensor_maps_are_made(tmp_path: Path) -> None:
    described = matrix(32, 16)
    kiln.export(copy_boxes, described, described, to=tmp_path / "boxes.o")
    x, y = matrices()
    load_module(tmp_path / "boxes.o").boxes(x, y)
    assert torch.equal(x, y)


def test_ptx_serves_later_gpus_and_tvm_ffi_calls(tmp_path: Path) -> None:
    pytest.importorskip("tvm_ffi")
    written = kiln.export(
        scale_here, matrix(), matrix(), 1.0, to=tmp_path / "libscale.so", archs=("sm_80",), entry_points=("tvm_ffi",)
    )
    x, y = matrices()
    load_module(written[0], enable_tvm_ffi=True).scale(x, y, 2.0)
    assert torch.equal(y, 2 * x)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With all entry_points, for this GPU and for the host."""
    with kiln.target("nvidia"):
        arch = kiln.hardware.current.architecture().name
    return exported_scale(tmp_path_factory.mktemp("exported"), "gpu", (arch, "cpu"))


def test_processes_without_kiln(library: str, tmp_path: Path) -> None:
    """The library of the example, on the GPU, by all entry_points that there are packages for."""
    told = without_kiln(ROOT / "examples" / "exported" / "use.py", library)
    assert told[0] == "torch: cuda" and told[-1] == "ctypes: host", told


def test_one_library_serves_where_tensors_are(library: str) -> None:
    torch.ops.load_library(library)
    scale = torch.ops.examples.scale
    x, _ = matrices()
    assert torch.equal(scale(x, 3.0), 3 * x) and torch.equal(scale(x.cpu(), 3.0), 3 * x.cpu())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scale(x, 2.0)
    x.normal_()
    graph.replay()
    assert torch.equal(y, 2 * x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.fill_(7)
        y = scale(x, 2.0)
    stream.synchronize()
    assert (y == 14).all()
    assert scale(x[:0], 1.0).shape == (0, 32)
    with pytest.raises(RuntimeError, match="its extent 1 is 30, expected a multiple of 4"):
        scale(x[:, :30], 1.0)


def test_tensors_of_two_devices(tmp_path: Path) -> None:
    given = matrix(), matrix(), 1.0
    (path,) = kiln.export(
        scale_here, *given, to=tmp_path / "libscale_into.so", name="examples::scale_into", entry_points=("torch",)
    )
    torch.ops.load_library(path)
    x, y = matrices()
    torch.ops.examples.scale_into(x, y, 3.0)
    assert torch.equal(y, 3 * x)
    with pytest.raises(RuntimeError, match="(?s)argument 2 .y.*tensors of one call are on one device"):
        torch.ops.examples.scale_into(x, y.cpu(), 1.0)


def test_c_programs_pass_memory_of_either_kind(library: str) -> None:
    class Matrix(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 2), ("stride", ctypes.c_int64)]

    call = ctypes.CDLL(library).cute_dsl_scale_wrapper
    for device in ("cuda", "cpu"):
        x, y = (t.to(device) for t in matrices())
        given = [ctypes.byref(Matrix(t.data_ptr(), (16, 32), 32)) for t in (x, y)]
        torch.cuda.synchronize()
        assert call(None, *given, ctypes.c_float(3)) == 0
        torch.cuda.synchronize()
        assert torch.equal(y, 3 * x)


def test_tensor_maps_that_break_a_rule(tmp_path: Path) -> None:
    described = matrix(1, 4)
    kiln.export(copy_boxes, described, described, to=tmp_path / "boxes.so")
    x = torch.zeros(16, 33, device="cuda")
    with pytest.raises(
        DSLCudaRuntimeError, match="mode 1 has a stride of 132 bytes, expected: strides are multiples of 16 bytes"
    ):
        load_module(tmp_path / "boxes.so").boxes(x, x)


def test_errors(tmp_path: Path) -> None:
    cute.compile(say, make_fake_compact_tensor(Float64, (cute.SymInt(),)), Int64(1), options="--enable-assertions").export_to_c(tmp_path, "say")  # fmt: skip
    compiled_scale().export_to_c(tmp_path, "scale")
    out = torch.zeros(4, dtype=torch.float64, device="cuda")
    function = load_module(tmp_path / "say.o").say
    function(out, 3)
    assert out[0] == 3
    with pytest.raises(AssertionError, match="n is too large .kernel said, block .0, 0, 0., thread .0, 0, 0."):
        function(out, 5)
    with pytest.raises(DSLCudaRuntimeError, match="cannot launch kernel"):
        none = torch.zeros(0, 32, device="cuda")
        load_module(tmp_path / "scale.o").scale(none, none, 1.0, torch.cuda.current_stream())
