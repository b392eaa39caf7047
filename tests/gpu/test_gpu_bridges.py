"""Kernels called from other frameworks, on the GPU: values, streams, graphs."""

import numpy as np
import pytest
from native_calls_testing import wait_for_compilers

import kiln.cute as cute
from kiln import Float32
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")


@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, by: Float32):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    if thread < x.shape[1]:
        y[block, thread] = x[block, thread] * by


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, by: Float32, stream):
    scaled(x, y, by).launch(grid=x.shape[0], block=128, stream=stream)


@pytest.fixture(autouse=True)
def _on_the_gpu():
    """The target is that of a program which says nothing: where one is chosen for a while, Python takes all calls."""
    return


@pytest.fixture(scope="session")  # a worker may come back to this module, and an operator is made once in a process
def operator():
    import kiln.torch as kt

    return kt.op("kiln_gpu_tests::scale", scale, outputs={"y": "x"}, backward=lambda by, g: (None,), save=("by",))


def matrix(rows=64, columns=100):
    return torch.arange(float(rows * columns), device="cuda").reshape(rows, columns)


def test_an_operator_runs_on_the_current_stream(operator):
    x = matrix()
    assert torch.equal(operator(x, 3.0), 3 * x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # what comes next on another stream would read too early
        y = operator(x + 1, 2.0)
    side.synchronize()
    assert torch.equal(y, 2 * (x + 1))


def test_an_operator_is_captured(operator):
    x = matrix()
    operator(x, 2.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = operator(x, 2.0)
    x += 5
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, 2 * x)


def test_native_code_takes_calls_of_operators(operator):
    from kiln.interop.torch import dispatch

    if dispatch.dispatcher() is None:
        pytest.skip("this PyTorch has no stable C interface that is known")
    import kiln.torch as kt

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, by: Float32):
        scaled(x, y, by).launch(grid=x.shape[0], block=128)  # no stream: torch's current one

    op, calls = kt.op("kiln_gpu_tests::native", launch, outputs={"y": ("x.0", "x.1")}), []
    run = op._run
    op._run = lambda *args: calls.append(args) or run(*args)
    op(matrix(), 2.0)
    wait_for_compilers()
    side, x = torch.cuda.Stream(), matrix(32)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        y = op(x + 1, 2.0)
    side.synchronize()
    assert torch.equal(y, 2 * (x + 1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = op(x, 3.0)
    x += 5
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(z, 3 * x) and len(calls) == 1


def test_an_operator_under_torch_compile(operator):
    f = torch.compile(lambda x: operator(x * 2, 3.0) + 1, fullgraph=True)
    assert torch.equal(f(matrix()), 6 * matrix() + 1)


def test_host_tensors_go_to_the_cpu_target(operator):
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(operator(x, 2.0), 2 * x)
    import kiln.torch as kt

    @cute.jit
    def launch(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor):
        scaled(x, y, 1.0).launch(grid=x.shape[0], block=128)

    both = kt.op("kiln_gpu_tests::both", launch, outputs={"y": lambda x, w: torch.empty_like(x)})
    with pytest.raises(RuntimeError, match="x on cpu, w on cuda:0"):
        both(x, x.cuda())


def test_layers_against_torchs():
    import kiln.nn

    torch.manual_seed(0)
    ours = torch.nn.Sequential(
        kiln.nn.Linear(256, 512, activation="gelu"), kiln.nn.RMSNorm(512, eps=1e-6), kiln.nn.Linear(512, 128)
    )
    theirs = torch.nn.Sequential(
        torch.nn.Linear(256, 512),
        torch.nn.GELU(approximate="tanh"),
        torch.nn.RMSNorm(512, eps=1e-6),
        torch.nn.Linear(512, 128),
    )
    theirs.load_state_dict({k.replace("2.", "3.").replace("1.", "2."): v for k, v in ours.state_dict().items()})
    ours, theirs = ours.cuda().bfloat16(), theirs.cuda().bfloat16()
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    y, z = ours(x), theirs(x)
    torch.testing.assert_close(y, z, rtol=2e-2, atol=2e-2)
    y.float().square().sum().backward()
    z.float().square().sum().backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (p.grad - q.grad).abs().max() <= 3e-2 * q.grad.abs().max()


def test_jax_calls_on_its_own_stream():
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip("this JAX has no GPU")
    import jax.numpy as jnp

    import kiln.jax as kj

    @cute.jit
    def launch(stream, x: cute.Tensor, y: cute.Tensor, *, by: Float32):
        scaled(x, y, by).launch(grid=x.shape[0], block=128, stream=stream)

    def call(x, by, **options):
        return kj.cutlass_call(launch, output_shape_dtype=x, by=by, **options)(x)

    x = jnp.arange(6400.0, dtype=jnp.float32).reshape(64, 100)
    f = jax.jit(lambda x: call(call(x + 1, 2.0) * 3, 0.5) - 1)
    for _ in range(20):
        assert np.array_equal(f(x), 3 * (x + 1) - 1)
    assert np.array_equal(jax.vmap(lambda x: call(x, 2.0))(jnp.stack([x, x + 1])), 2 * jnp.stack([x, x + 1]))
    assert np.array_equal(jax.jit(lambda x: call(x, 2.0, allow_cuda_graph=False))(x), 2 * x)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda i, c: call(c, 2.0), x))
    assert np.array_equal(loop(x), 1024 * x)


def test_arrays_of_jax_in_plain_calls():
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip("this JAX has no GPU")
    import jax.numpy as jnp

    from kiln.cute.host import jax_arrays

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, by: Float32):
        scaled(x, y, by).launch(grid=x.shape[0], block=128)

    x = jnp.arange(6400.0, dtype=jnp.float32).reshape(64, 100)
    y = torch.zeros(64, 100, device="cuda")
    fake = from_dlpack(y).mark_layout_dynamic()
    compiled = cute.compile(launch, fake, fake, 1.0)
    step = jax.jit(lambda x: (x @ x.T) @ x * 1e-6)
    for number in range(5):  # each is a new array, which may not be there yet
        z = step(x)
        compiled(z, y, 2.0)
        torch.cuda.synchronize()
        assert np.array_equal(y.cpu().numpy(), 2 * np.asarray(z))
        if number == 1:
            taught = jax_arrays._kinds._used
    assert jax_arrays._kinds._used == taught  # native code has read the others


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy")

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, by: Float32, stream):
        scaled(x, y, by).launch(grid=x.shape[0], block=128, stream=stream)

    x, y = cupy.arange(400.0, dtype=cupy.float32).reshape(4, 100), cupy.zeros((4, 100), cupy.float32)
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        x += 1
        launch(x, y, 3.0, side)
    side.synchronize()
    assert (y == 3 * x).all()
    shared = cupy.from_dlpack(from_dlpack(x))
    shared += 1
    assert (x == shared).all() and shared.data.ptr == x.data.ptr

    class Interface:  # an array that knows nothing but CUDA's array interface
        __cuda_array_interface__ = x.__cuda_array_interface__

    launch(Interface(), y, 2.0, cupy.cuda.get_current_stream())
    cupy.cuda.get_current_stream().synchronize()
    assert (y == 2 * x).all()


def test_tvm_ffi_calls_on_torchs_stream():
    tvm_ffi = pytest.importorskip("tvm_ffi")

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, by: Float32):
        scaled(x, y, by).launch(grid=x.shape[0], block=128)  # no stream: the caller's

    x = matrix()
    fake = from_dlpack(x).mark_layout_dynamic()
    function = cute.compile(launch, fake, fake, 1.0, options="--enable-tvm-ffi")
    tvm_ffi.register_global_func("kiln.gpu_test", function, override=True)
    for call in (function, tvm_ffi.get_global_func("kiln.gpu_test")):
        y = torch.zeros_like(x)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            z = x + 1
            call(z, y, 3.0)
        side.synchronize()
        assert torch.equal(y, 3 * (x + 1))
    with pytest.raises(ValueError, match="device|memory|CPU|cpu"):
        function(x.cpu(), y, 1.0)
