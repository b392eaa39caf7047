# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Calls on a GPU that native code takes: arguments of every kind, streams, graphs, failed launches, threads."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading

import pytest
from native_calls_testing import wait_for_compilers

import kiln.cute as cute
from kiln import Float32, Int32
from kiln.base_dsl import target
from kiln.base_dsl.compiled_function import CompiledFunction
from kiln.base_dsl.diagnostics import DSLCudaRuntimeError, DSLUserCodeTypeError
from kiln.base_dsl.function import JitFunction
from kiln.cute.runtime import from_dlpack, make_fake_stream
from kiln.interop.arguments import loading

torch = pytest.importorskip("torch")

arch = cute.arch


@pytest.fixture(autouse=True)
def _native(_on_the_gpu):
    if loading.engine() is None:
        pytest.skip("calls are made by Python here")


@cute.kernel
def add_kernel(x: cute.Tensor, by: Float32):
    i = arch.block_idx()[0] * 64 + arch.thread_idx()[0]
    if i < cute.size(x):
        x[i] = x[i] + by


@cute.jit
def add(x: cute.Tensor, by: Float32, stream):
    add_kernel(x, by).launch(grid=(cute.ceil_div(cute.size(x), 64), 1, 1), block=(64, 1, 1), stream=stream)


@cute.jit
def add_by_default(x: cute.Tensor, by: Float32):
    add_kernel(x, by).launch(grid=(cute.ceil_div(cute.size(x), 64), 1, 1), block=(64, 1, 1))


def python_calls(run):
    count = 0
    codes = {CompiledFunction._run_in_python.__code__, JitFunction._run_in_python.__code__}

    def profile(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code in codes

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def ways(x):
    yield "torch", x
    yield "prepared", from_dlpack(x)
    yield "dynamic", from_dlpack(x).mark_layout_dynamic()


@pytest.mark.parametrize("example", ["torch", "dynamic"])
def test_tensors(example):
    x = torch.zeros(1000, device="cuda")
    compiled = cute.compile(add_by_default, dict(ways(x))[example], 1.0)
    for _, argument in ways(x):
        before = x[0].item()

        def run(argument=argument):
            for _ in range(20):
                compiled(argument, 0.5)

        run()
        assert python_calls(run) == 0
        torch.cuda.synchronize()
        assert torch.equal(x, torch.full_like(x, before + 20.0))
    for wrong in (torch.zeros(8), torch.zeros(8, device="cuda", dtype=torch.float16), torch.zeros(2, 4, device="cuda")):
        with pytest.raises(DSLUserCodeTypeError):
            compiled(wrong, 1.0)
    strided = torch.zeros(64, device="cuda")[::2]
    with pytest.raises(DSLUserCodeTypeError, match="stride"):
        compiled(strided, 1.0)


@contextlib.contextmanager
def _outside_of_choices():
    """As outside of the `with target(...)` that these tests are in: inside, Python takes the calls of jit functions."""
    before = target._choice.name, target._open_choices.value
    target._choice.name, target._open_choices.value = "", 0
    try:
        yield
    finally:
        target._choice.name, target._open_choices.value = before


def test_a_jit_function():
    x = torch.zeros(100, device="cuda")

    def run():
        for _ in range(10):
            add_by_default(x, 1.0)

    with _outside_of_choices():
        run()
        wait_for_compilers()
        run()
        assert python_calls(run) == 0
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full_like(x, 30.0))


@pytest.mark.parametrize("kind", ["torch", "bindings", "external"])
def test_streams(kind):
    stream = torch.cuda.Stream()
    given = stream
    if kind == "bindings":
        given = pytest.importorskip("cuda.bindings.driver").CUstream(stream.cuda_stream)
    elif kind == "external":
        given = torch.cuda.ExternalStream(stream.cuda_stream)
    x = torch.zeros(1 << 24, device="cuda")
    compiled = cute.compile(add, x, 1.0, given)
    torch.cuda.synchronize()

    def run():
        for _ in range(10):
            compiled(x, 1.0, given)

    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.fill_(1.0)  # what is added on another stream is gone
    run()
    assert python_calls(run) == 0
    stream.synchronize()
    assert torch.equal(x, torch.full_like(x, 21.0))


def test_the_stream_of_the_framework():
    x = torch.zeros(1 << 24, device="cuda")
    compiled = cute.compile(add, x, 1.0, make_fake_stream(use_tvm_ffi_env_stream=True))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    def run():
        for _ in range(10):
            compiled(x, 1.0)

    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.fill_(1.0)  # what is added on another stream is gone
        run()
        assert python_calls(run) == 0
    assert torch.cuda.default_stream().query()
    stream.synchronize()
    assert torch.equal(x, torch.full_like(x, 21.0))


def test_a_graph_records_the_launches():
    x = torch.zeros(256, device="cuda")
    compiled = cute.compile(add, x, 1.0, torch.cuda.current_stream())
    for _ in range(10):
        compiled(x, 0.0, torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert python_calls(lambda: compiled(x, 1.0, torch.cuda.current_stream())) == 0
    x.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full_like(x, 3.0))


@cute.kernel
def nothing():
    pass


@cute.jit
def launch(threads: Int32):
    nothing().launch(grid=(1, 1, 1), block=(threads, 1, 1))


def test_a_refused_launch_says_why():
    compiled = cute.compile(launch, 32)
    for _ in range(10):
        compiled(32)

    def run():
        with pytest.raises(DSLCudaRuntimeError, match="at most 1024"):
            compiled(2000)
        compiled(64)

    assert python_calls(run) == 0
    torch.cuda.synchronize()


def test_threads():
    x = torch.zeros(4, 1000, device="cuda")
    rows = [x[i] for i in range(4)]
    compiled = cute.compile(add_by_default, rows[0], 1.0)
    for _ in range(10):
        compiled(rows[0], 0.0)

    def work(number):
        for _ in range(500):
            compiled(rows[number], float(number))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert x[:, 0].tolist() == [0.0, 500.0, 1000.0, 1500.0]


def test_ten_thousand_launches_leave_nothing():
    x = torch.zeros(64, device="cuda")
    compiled = cute.compile(add_by_default, x, 1.0)

    def run():
        for _ in range(10_000):
            compiled(x, 1.0)
        torch.cuda.synchronize()

    run()
    gc.collect()
    count, memory, blocks = sys.getrefcount(x), torch.cuda.memory_allocated(), sys.getallocatedblocks()
    run()
    gc.collect()
    assert (sys.getrefcount(x), torch.cuda.memory_allocated()) == (count, memory)
    assert abs(sys.getallocatedblocks() - blocks) < 1000
    assert x[0].item() == 20_000.0
