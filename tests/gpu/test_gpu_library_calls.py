"""Calls of library functions that native code repeats on a GPU: other arrays, streams, graphs, devices."""

from __future__ import annotations

from typing import Any

import pytest

from kiln import kernels
from kiln.base_dsl import target
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.interop.arguments import loading

torch = pytest.importorskip("torch")
ENOUGH = 6


@pytest.fixture(autouse=True)
def _native(_on_the_gpu, monkeypatch):
    """As outside of the `with target(...)` that tests of GPUs are in: inside, Python takes the calls."""
    if loading.engine() is None:
        pytest.skip("calls are made by Python here")
    monkeypatch.setattr(target._choice, "name", "")
    monkeypatch.setattr(target, "_process_choice", "nvidia")
    opened = target._open_choices.value
    target._open_choices.value = 0
    yield
    target._open_choices.value = opened


def normal(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def python_calls(function: Any) -> int:
    return sum(program.calls for program in function._programs.values() if program is not None)


def classes() -> Any:
    return torch.randint(0, 64, (8,), device="cuda")


HALF = torch.float16
CALLS: dict[str, Any] = {
    "softmax": lambda: (kernels.softmax, (normal(8, 64),), {}),
    "softmax of columns": lambda: (kernels.softmax, (normal(64, 8).T,), {}),
    "softmax, not aligned": lambda: (kernels.softmax, (normal(8 * 64 + 1)[1:].view(8, 64),), {}),
    "layer_norm": lambda: (kernels.layer_norm, (normal(8, 64), normal(64), normal(64)), {}),
    "layer_norm_backward": lambda: (kernels.layer_norm_backward, (normal(8, 64), normal(8, 64), normal(64)), {"bias": True}),
    "sum": lambda: (kernels.sum, (normal(8, 64), 1), {}),
    "sum of all": lambda: (kernels.sum, (normal(1 << 16),), {}),
    "elementwise": lambda: (kernels.elementwise, (lambda a, b: a * 2.0 + b, normal(8, 64), normal(64)), {}),
    "cross_entropy": lambda: (kernels.cross_entropy, (normal(8, 64), classes()), {}),
    "cross_entropy_backward": lambda: (kernels.cross_entropy_backward, (1.0, normal(8, 64), classes()), {}),
    "gemm": lambda: (kernels.gemm, (normal(64, 64, dtype=HALF), normal(64, 64, dtype=HALF)), {"bias": normal(64, dtype=HALF)}),
    "gemm in parts": lambda: (kernels.gemm, (normal(64, 4096, dtype=HALF), normal(64, 4096, dtype=HALF).T), {"alpha": 0.5}),
    "flash_attention": lambda: (
        kernels.flash_attention, tuple(normal(1, 64, 2, 64, dtype=HALF) for _ in range(3)), {"causal": True, "return_lse": True},
    ),
}  # fmt: skip


def same(got: Any, wanted: Any) -> None:
    for g, w in zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]:
        assert (g is None and w is None) or torch.equal(g, w)


@pytest.mark.parametrize("name", CALLS)
def test_other_arrays_streams_and_graphs(name):
    function, _, _ = CALLS[name]()
    for _ in range(ENOUGH):
        _, given, options = CALLS[name]()
        same(function(*given, **options), function._function(*given, **options))
    before = python_calls(function)
    _, given, options = CALLS[name]()
    wanted = function._function(*given, **options)
    same(function(*given, **options), wanted)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        same(function(*given, **options), wanted)
    stream.synchronize()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = function(*given, **options)
    _, others, _ = CALLS[name]()
    for array, other in zip(given, others, strict=True):
        if isinstance(array, torch.Tensor):
            array.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    same(made, function._function(*given, **options))
    assert python_calls(function) == before, "Python took a call"


def test_an_array_of_the_host_is_refused_as_at_first():
    x = normal(8, 64)
    for _ in range(ENOUGH):
        kernels.softmax(x)
        with pytest.raises(DSLUserCodeTypeError, match="memory of the host"):
            kernels.softmax(x.cpu())


def test_what_is_written_and_read_is_refused_however_often_the_call_was_made():
    q, k, v, dout = (normal(1, 64, 2, 64, dtype=HALF) for _ in range(4))
    for _ in range(ENOUGH + 6):
        out, lse = kernels.flash_attention(q, k, v, out=torch.empty_like(q), return_lse=True)
        dq, dk, dv = (torch.empty_like(q) for _ in range(3))
        kernels.flash_attention_backward(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv)
        kernels.gemm(q[0, :, 0], k[0, :, 0].T, out=torch.empty(64, 64, device="cuda", dtype=HALF))
        kernels.softmax(dout, out=torch.empty_like(dout))
    before = python_calls(kernels.flash_attention)
    kernels.flash_attention(q, k, v, out=torch.empty_like(q), return_lse=True)
    assert python_calls(kernels.flash_attention) == before, "Python took a call"
    memory = normal(2 * dout.numel(), dtype=HALF)
    moved = memory[64 : 64 + dout.numel()].view(dout.shape)
    for call in (
        lambda: kernels.flash_attention(q, k, v, out=k, return_lse=True),
        lambda: kernels.flash_attention_backward(dout, q, k, v, out, lse, dq=dq, dk=k, dv=dv),
        lambda: kernels.flash_attention_backward(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dk),
        lambda: kernels.gemm(q[0, :, 0], k[0, :, 0].T, out=k[0, :, 0]),
        lambda: kernels.softmax(memory[: dout.numel()].view(dout.shape), out=moved),
    ):
        for _ in range(ENOUGH):
            with pytest.raises(DSLUserCodeTypeError, match="memory in common|shares memory|begins where"):
                call()
    x = dout.clone()
    wanted = kernels.softmax(dout)
    for _ in range(ENOUGH):
        x.copy_(dout)
        same(kernels.softmax(x, out=x), wanted)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices():
    here, there = (torch.randn(8, 64, device=f"cuda:{n}") for n in range(2))
    for _ in range(ENOUGH):
        for x in (here, there):
            got = kernels.softmax(x)
            assert got.device == x.device
            torch.testing.assert_close(got, torch.softmax(x, -1))
        assert torch.cuda.current_device() == 0
        with pytest.raises(DSLUserCodeTypeError, match="cuda:0, cuda:1"):
            kernels.elementwise(lambda a, b: a + b, here, there)
