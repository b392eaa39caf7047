"""Memory-bound kernels on a GPU, at full sizes, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest

from kiln import cute, kernels
from kiln.kernels import RowwiseConfig, StreamingRowwiseConfig

torch = pytest.importorskip("torch")
functional = torch.nn.functional

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SHAPES = [
    (4096, 1, F32),
    (1000, 7, F16),
    (100003, 64, BF16),
    (8192, 1024, F32),
    (4096, 4096, F32),
    (4096, 4096, F16),
    (777, 7000, F16),
    (2048, 8192, BF16),
    (2000, 4097, F32),
    (3000, 8191, BF16),
    (1000, 16384, BF16),
    (1000, 16383, F16),
    (500, 32768, BF16),
    (333, 50257, BF16),
    (1100, 50257, BF16),
    (200, 65536, F32),
    (700, 40960, F16),
    (300, 65536, BF16),
    (100, 128256, BF16),
    (100, 131071, BF16),
    (500, 131072, BF16),
    (33, 262144, BF16),
    (1, 262144, F32),
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def normal(*shape: int, dtype: Any = F32) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def close(got: Any, wanted: Any, factor: float = 4.0) -> None:
    """By the norm of the difference, within some steps of the result's type; f32 sums are not exact either."""
    step = torch.finfo(got.dtype).eps
    difference = (got.double() - wanted).norm() / wanted.norm().clamp_min(1e-30)
    assert difference < factor * step, f"relative difference {difference:.2e}"


@pytest.mark.parametrize(("rows", "n", "dtype"), SHAPES)
def test_functions_of_rows(rows, n, dtype):
    x, weight, bias = normal(rows, n, dtype=dtype), normal(n, dtype=dtype), normal(n, dtype=dtype)
    exact = x.double()
    close(kernels.softmax(x), torch.softmax(exact, -1))
    close(kernels.rms_norm(x, weight), functional.rms_norm(exact, (n,), weight.double(), 1e-6))
    if n > 1:
        wanted = functional.layer_norm(exact, (n,), weight.double(), bias.double())
        close(kernels.layer_norm(x, weight, bias), wanted)


@pytest.mark.parametrize(("rows", "n", "dtype"), SHAPES)
def test_gradients(rows, n, dtype):
    if n == 1:
        pytest.skip("the gradient of one element is zero")
    x, dy, weight, bias = (normal(*s, dtype=dtype) for s in ((rows, n), (rows, n), (n,), (n,)))
    given = [t.double().requires_grad_() for t in (x, weight, bias)]
    functional.layer_norm(given[0], (n,), given[1], given[2]).backward(dy.double())
    found = kernels.layer_norm_backward(dy, x, weight, bias=True)
    for got, t in zip(found, given, strict=True):
        close(got, t.grad, 20)
    for got, again in zip(found, kernels.layer_norm_backward(dy, x, weight, bias=True), strict=True):
        assert torch.equal(got, again)
    given = [t.double().requires_grad_() for t in (x, weight)]
    functional.rms_norm(given[0], (n,), given[1], 1e-6).backward(dy.double())
    for got, t in zip(kernels.rms_norm_backward(dy, x, weight), given, strict=True):
        close(got, t.grad, 20)
    y = torch.softmax(x.double(), -1)
    close(kernels.softmax_backward(dy, y.to(dtype)), y * (dy.double() - (y * dy.double()).sum(-1, keepdim=True)), 20)


@pytest.mark.parametrize(
    ("rows", "n", "dtype", "config"),
    [
        (5000, 4096, F32, StreamingRowwiseConfig(512, 256, 1, 3)),
        (5000, 128, BF16, StreamingRowwiseConfig(256, 16)),
        (1, 16384, BF16, StreamingRowwiseConfig(512, 512, 4, overlapped=True)),
        (100, 30008, F16, StreamingRowwiseConfig(512, 512, 2, 1)),
        (1000, 65536, BF16, StreamingRowwiseConfig(512, 512, 8, 0, overlapped=True)),
        (77, 262144, BF16, StreamingRowwiseConfig(512, 512, 16)),
        (1000, 5000, BF16, RowwiseConfig(256, 256)),
    ],
)
def test_gradients_by_tilings(rows, n, dtype, config):
    x, dy, weight = normal(rows, n, dtype=dtype) + 1, normal(rows, n, dtype=dtype), normal(n, dtype=dtype)
    given = [t.double().requires_grad_() for t in (x, weight)]
    functional.layer_norm(given[0], (n,), given[1]).backward(dy.double())
    dx, dweight, dbias = kernels.layer_norm_backward(dy, x, weight, bias=True, config=config)
    for got, wanted in ((dx, given[0].grad), (dweight, given[1].grad), (dbias, dy.double().sum(0))):
        close(got, wanted, 20)
    plain = x.double().requires_grad_()
    functional.rms_norm(plain, (n,), None, 1e-6).backward(dy.double())
    dx, dweight = kernels.rms_norm_backward(dy, x, config=config)
    assert dweight is None
    close(dx, plain.grad, 20)


@pytest.mark.parametrize(("rows", "n", "dtype"), SHAPES)
def test_cross_entropy(rows, n, dtype):
    logits, target = normal(rows, n, dtype=dtype), torch.randint(0, n, (rows,), device="cuda")
    target[0] = -100 if rows > 1 else 0
    given = logits.double().requires_grad_()
    wanted = functional.cross_entropy(given, target, label_smoothing=0.1)
    wanted.backward()
    loss, lse = kernels.cross_entropy(logits, target, label_smoothing=0.1, return_lse=True)
    torch.testing.assert_close(loss.double(), wanted.detach(), rtol=1e-5, atol=1e-6)
    made = kernels.cross_entropy_backward(torch.ones((), device="cuda"), logits, target, lse, label_smoothing=0.1)
    if n > 1:
        close(made, given.grad, 8)


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((16384, 8192), 1, BF16),
        ((16384, 8192), 0, BF16),
        ((262144, 1000), 1, F16),
        ((100000, 333), 0, F32),
        ((1, 1 << 26), 1, BF16),
        ((1 << 26,), None, F32),
        ((32, 2048, 1024), 1, BF16),
        ((32, 2048, 1024), (0, 2), F32),
        ((1 << 20, 3), 1, F32),
        ((3, 1 << 20), 0, F32),
        ((4096, 8191), 1, BF16),
        ((1 << 18, 100), 1, BF16),
        ((3, (1 << 24) + 5), 1, F16),
    ],
)
def test_reductions(shape, axis, dtype):
    x = normal(*shape, dtype=dtype)
    options = {} if axis is None else {"dim": axis}
    total = kernels.sum(x, axis)
    wanted = x.double().sum(**options)
    spread = (x.numel() / wanted.numel()) ** 0.5
    torch.testing.assert_close(total.double(), wanted, rtol=torch.finfo(dtype).eps, atol=spread * 1e-5)
    assert torch.equal(total, kernels.sum(x, axis))
    assert torch.equal(kernels.max(x, axis), torch.amax(x, **options))
    assert torch.equal(kernels.min(x, axis), torch.amin(x, **options))
    if not isinstance(axis, tuple):
        found = kernels.argmax(x, axis)
        flat = x if axis is not None else x.flatten()
        along = 0 if axis is None else axis
        values = torch.take_along_dim(flat, found.unsqueeze(along) if axis is not None else found[None], along)
        assert torch.equal(values.squeeze(along), torch.amax(x, **options))


@pytest.mark.parametrize(("offset", "padding"), [(0, 47), (3, 0), (1, 46)])
def test_rows_that_begin_anywhere(offset, padding):
    """Rows of 50257 between elements that are not to be read or written."""
    rows, n = 301, 50257
    memory = torch.full((2, offset + rows * (n + padding)), float("nan"), device="cuda", dtype=BF16)
    logits, made = (m[offset:].view(rows, n + padding)[:, :n] for m in memory)
    logits.copy_(normal(rows, n))
    target = torch.randint(0, n, (rows,), device="cuda")
    given = logits.double().requires_grad_()
    wanted = functional.cross_entropy(given, target, reduction="sum")
    wanted.backward()
    loss, lse = kernels.cross_entropy(logits, target, reduction="sum", return_lse=True)
    torch.testing.assert_close(loss.double(), wanted.detach(), rtol=1e-5, atol=0)
    kernels.cross_entropy_backward(1.0, logits, target, lse, reduction="sum", out=made)
    close(made, given.grad)
    close(kernels.softmax(logits, out=made), torch.softmax(logits.double(), -1))
    assert torch.equal(kernels.argmax(logits, 1), logits.double().argmax(1))
    assert int(memory[1].isnan().sum()) == offset + rows * padding


def test_nan_comes_first():
    x = normal(100, 5000)
    x[:, 1234] = x[:, 4000] = float("nan")
    assert torch.isnan(kernels.max(x, 1)).all()
    assert (kernels.argmax(x, 1) == 1234).all()
    assert (kernels.argmin(x.T, 0) == 1234).all()


@pytest.mark.parametrize("dtype", [BF16, F16, F32, torch.float8_e4m3fn, torch.int32])
@pytest.mark.parametrize("n", [1, 1000003, 1 << 24])
def test_elements(n, dtype):
    x, y = (normal(n).mul(10).to(dtype) for _ in range(2))
    made = kernels.elementwise(lambda a, b: a.to(cute.Float32) * 2 + b.to(cute.Float32), x, y)
    assert made.dtype == F32
    torch.testing.assert_close(made, x.float() * 2 + y.float(), rtol=1e-6, atol=1e-6)


def test_elements_that_are_broadcast_and_strided():
    x, row, column = normal(1000, 3000), normal(3000), normal(1000, 1)
    made = kernels.elementwise(lambda a, b, c: cute.where(a > 0, a * b, c), x, row, column)
    torch.testing.assert_close(made, torch.where(x > 0, x * row, column.expand_as(x)))
    turned = kernels.elementwise(lambda a, b: a - b, x.T, row[:, None])
    torch.testing.assert_close(turned, x.T - row[:, None])
    part = x[::3, 1::2]
    torch.testing.assert_close(kernels.elementwise(lambda a: -a, part), -part)


def test_large_arrays_are_counted_in_64_bits():
    x = torch.ones((1 << 31) + 5, device="cuda", dtype=torch.int8)
    x[-1] = 7
    made = kernels.elementwise(lambda a: a + 1, x, out_dtype=torch.int8)
    assert int(made[-1]) == 8
    assert int(kernels.sum(x)) == (1 << 31) + 4 + 7
    assert int(kernels.argmax(x)) == (1 << 31) + 4


def test_other_streams_and_graphs():
    x = normal(64, 4096)
    wanted = torch.softmax(x, -1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        made = kernels.softmax(x)
    stream.synchronize()
    torch.testing.assert_close(made, wanted)
    out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.softmax(x, out=out)
    graph.replay()
    torch.testing.assert_close(out, wanted)


@pytest.mark.parametrize(("rows", "n"), [(300, 4096), (40, 70000)])
def test_kernels_that_begin_before_others_end(rows, n):
    """Each call reads what the one before it wrote, and writes what the one before that read."""
    x, weight = normal(rows, n), normal(n)
    a, b = x.clone(), torch.empty_like(x)
    wanted = x.double()
    for _ in range(20):
        kernels.rms_norm(a, weight, out=b)
        torch.add(b, 0.5, out=a)
        kernels.layer_norm(a, weight, out=b)
        kernels.layer_norm(b, out=a)
        wanted = functional.rms_norm(wanted, (n,), weight.double(), 1e-6) + 0.5
        wanted = functional.layer_norm(functional.layer_norm(wanted, (n,), weight.double()), (n,))
    close(a, wanted, 1000)


def test_arrays_of_the_host_are_refused():
    with pytest.raises(TypeError, match="memory of the host"):
        kernels.softmax(torch.randn(4, 8))
