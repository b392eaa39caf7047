"""Exported code on a GPU: first calls while a graph is captured, streams, tensor maps, PTX, errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from exporting import compiled_scale, copy_boxes, matrix, needs_compiler, say, scale_here

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


@needs_compiler
def test_ptx_serves_later_gpus_and_tvm_ffi_calls(tmp_path: Path) -> None:
    pytest.importorskip("tvm_ffi")
    written = kiln.export(
        scale_here, matrix(), matrix(), 1.0, to=tmp_path / "libscale.so", archs=("sm_80",), doors=("tvm_ffi",)
    )
    x, y = matrices()
    load_module(written[0], enable_tvm_ffi=True).scale(x, y, 2.0)
    assert torch.equal(y, 2 * x)


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
