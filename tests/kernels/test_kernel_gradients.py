"""Gradients of softmax, norms and cross-entropy, and cross-entropy itself, against torch in float64, on the CPU target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import kernels
from kiln.kernels import RowTiling, StreamTiling

torch = pytest.importorskip("torch")
functional = torch.nn.functional

SHARED = StreamTiling(64, 64, 2, 0, overlapped=True)  # two blocks share a row
WARPS = StreamTiling(64, 32, 1, 1)  # a warp to a row


@pytest.fixture(autouse=True)
def _cpu():
    torch.manual_seed(0)
    with kiln.target("cpu"):
        yield


def exact(function: Any, dy: Any, *inputs: Any) -> list[Any]:
    """Gradients in float64."""
    given = [x.double().requires_grad_() for x in inputs]
    function(*given).backward(dy.double())
    return [x.grad for x in given]


def close(got: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("rows", "n", "tiling"),
    [
        (7, 256, None),
        (1, 512, SHARED),  # one row, fewer than there are blocks
        (300, 512, SHARED),  # rows in turn, more than findings are kept of
        (140, 1000, SHARED),  # that do not fill the threads
        (140, 1000, StreamTiling(64, 64, 2)),
        (600, 100, WARPS),
        (150, 260, StreamTiling(128, 64, 1, 3, True)),  # two warps to a row, several rows to a block
        (601, 20, StreamTiling(64, 4)),  # eight rows to a warp
        (9, 34, StreamTiling(32, 32)),  # two elements at once
    ],
)
def test_norms(rows, n, tiling):
    x, dy, weight, bias = torch.randn(rows, n) + 2, torch.randn(rows, n), torch.randn(n), torch.randn(n)
    for got, wanted in zip(
        kernels.rms_norm_backward(dy, x, weight, tiling=tiling),
        exact(lambda x, w: functional.rms_norm(x, (n,), w, 1e-6), dy, x, weight),
        strict=True,
    ):
        close(got, wanted)
    for got, wanted in zip(
        kernels.layer_norm_backward(dy, x, weight, bias=True, tiling=tiling),
        exact(lambda x, w, b: functional.layer_norm(x, (n,), w, b), dy, x, weight, bias),
        strict=True,
    ):
        close(got, wanted)


@pytest.mark.parametrize("tiling", [RowTiling(64, 64, 2, 1), RowTiling(64, 8)])
def test_rows_that_are_read_again_for_sums(tiling):
    """Without blocks that take rows in turn; rows that are held, and rows that are not."""
    n = 1000
    x, dy, weight = torch.randn(35, n) + 1, torch.randn(35, n), torch.randn(n)
    wanted = exact(lambda x, w, b: functional.layer_norm(x, (n,), w, b), dy, x, weight, weight)
    for got, value in zip(kernels.layer_norm_backward(dy, x, weight, bias=True, tiling=tiling), wanted, strict=True):
        close(got, value)
    dx, dweight = kernels.rms_norm_backward(dy, x, weight, tiling=tiling)
    wanted = exact(lambda x, w: functional.rms_norm(x, (n,), w, 1e-6), dy, x, weight)
    close(dx, wanted[0])
    close(dweight, wanted[1])


@pytest.mark.parametrize("tiling", [None, RowTiling(64, 64, 2, 1), RowTiling(32, 32), SHARED])
def test_softmax(tiling):
    x, dy = torch.randn(3, 700), torch.randn(3, 700)
    y = torch.softmax(x, -1)
    (wanted,) = exact(lambda x: torch.softmax(x, -1), dy, x)
    close(kernels.softmax_backward(dy, y, tiling=tiling), wanted, 1e-6)


def test_a_large_mean_costs_no_accuracy():
    """The mean is a thousand times the spread: sums of squares would have no digits left."""
    x, dy, weight = torch.randn(4, 512) + 1000, torch.randn(4, 512), torch.randn(512)
    dx, _, _ = kernels.layer_norm_backward(dy, x, weight)
    wanted = exact(lambda x, w: functional.layer_norm(x, (512,), w), dy, x, weight)[0]
    close(dx, wanted, 1e-3)
    close(kernels.layer_norm(x, weight), functional.layer_norm(x.double(), (512,), weight.double()), 1e-3)


def test_without_weights_views_and_nothing():
    x, dy = torch.randn(40, 3).T.reshape(3, 1, 40), torch.randn(3, 1, 40)
    for tiling in (None, RowTiling(32, 32)):
        out = torch.empty(40, 3).T.reshape(3, 1, 40)
        dx, dweight, dbias = kernels.layer_norm_backward(dy, x, out=out, tiling=tiling)
        assert dx is out
        close(dx, exact(lambda x: functional.layer_norm(x, (40,)), dy, x)[0])
        assert dweight is None
        assert dbias is None
        dx, dweight, dbias = kernels.layer_norm_backward(dy, x, bias=True, tiling=tiling)
        assert dweight is None
        close(dbias, dy.double().sum((0, 1)))
    _, dweight = kernels.rms_norm_backward(torch.zeros(0, 8), torch.zeros(0, 8), torch.ones(8))
    assert (dweight == 0).all()


def test_types():
    x, dy, weight = (torch.randn(*s).bfloat16() for s in ((6, 64), (6, 64), (64,)))
    dx, dweight = kernels.rms_norm_backward(dy, x, weight)
    wanted = exact(lambda x, w: functional.rms_norm(x, (64,), w, 1e-6), dy, x, weight)
    close(dx, wanted[0], 2e-2)
    close(dweight, wanted[1], 2e-2)
    assert dx.dtype == dweight.dtype == torch.bfloat16


# --- cross-entropy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction, smoothing):
    logits, target = torch.randn(9, 300) * 3, torch.randint(0, 300, (9,))
    target[[1, 4]] = 7
    options: dict[str, Any] = {"ignore_index": 7, "label_smoothing": smoothing, "reduction": reduction}
    given = logits.double().requires_grad_()
    wanted = functional.cross_entropy(given, target, **options)
    outer = torch.randn(wanted.shape)
    wanted.backward(outer.double())
    loss, lse = kernels.cross_entropy(logits, target, return_lse=True, **options)
    close(loss, wanted.detach(), 2e-6)
    close(lse, torch.logsumexp(logits.double(), -1), 2e-6)
    close(kernels.cross_entropy_backward(outer, logits, target, lse, **options), given.grad, 1e-6)
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("tiling", [RowTiling(64, 64, 2), RowTiling(64, 8), RowTiling(128, 128)])
def test_cross_entropy_is_cut(tiling):
    logits, target = torch.randn(5, 1001), torch.randint(0, 1001, (5,), dtype=torch.int32)
    wanted = functional.cross_entropy(logits.double(), target.long())
    close(kernels.cross_entropy(logits, target, tiling=tiling), wanted, 2e-6)


def test_gradient_in_place_and_of_a_number():
    logits, target = torch.randn(4, 64).half(), torch.randint(0, 64, (4,))
    given = logits.double().requires_grad_()
    functional.cross_entropy(given, target, reduction="sum").backward()
    made = kernels.cross_entropy_backward(2.0, logits, target, reduction="sum", out=logits)
    assert made is logits
    close(made, 2 * given.grad, 2e-3)


def test_classes_that_do_not_exist_and_masked_logits():
    logits, target = torch.randn(3, 10), torch.tensor([4, 10, -1])
    losses = kernels.cross_entropy(logits, target, reduction="none")
    assert torch.isnan(losses).tolist() == [False, True, True]
    masked = torch.tensor([[float("-inf"), 1.0, 2.0]])
    wanted = functional.cross_entropy(masked.double(), torch.tensor([2]))
    close(kernels.cross_entropy(masked, torch.tensor([2])), wanted, 1e-6)


def test_no_rows():
    logits, target = torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)
    assert torch.isnan(kernels.cross_entropy(logits, target))
    assert kernels.cross_entropy(logits, target, reduction="sum") == 0
    assert kernels.cross_entropy_backward(1.0, logits, target).shape == (0, 5)


X, T = torch.zeros(3, 8), torch.zeros(3, dtype=torch.int64)
W, H = torch.zeros(1, 4096), torch.zeros(2, 7, dtype=torch.float16)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kernels.cross_entropy(X, T[:2]), r"targets of shape \(2,\)"),
        (lambda: kernels.cross_entropy(X, T.float()), "Float32 targets"),
        (lambda: kernels.cross_entropy(X.double(), T), "Float64 logits"),
        (lambda: kernels.cross_entropy(X[:, :0], T), "no classes"),
        (lambda: kernels.cross_entropy(X, T, reduction="average"), "'average'"),
        (lambda: kernels.cross_entropy(X, T, label_smoothing=1.5), "0 to 1"),
        (lambda: kernels.cross_entropy(X, T, tiling=RowTiling(64, 64, shared=1)), "nothing is in shared memory"),
        (lambda: kernels.cross_entropy_backward(X, X, T), "dloss of shape"),
        (lambda: kernels.cross_entropy_backward(1.0, X, T, X[0]), "lse of shape"),
        (lambda: kernels.rms_norm_backward(X[:2], X), r"\(2, 8\)"),
        (lambda: kernels.rms_norm_backward(X, X, tiling=RowTiling(2048, 16)), "not 2048"),
        (lambda: kernels.rms_norm_backward(X, X, tiling=StreamTiling(2048, 16)), "not 2048"),
        (lambda: kernels.rms_norm_backward(X, X, tiling=StreamTiling(48, 16)), "threads is 48"),
        (lambda: kernels.rms_norm_backward(X, X, tiling=StreamTiling(64, 128)), "128 threads of a row"),
        (lambda: kernels.rms_norm_backward(X, X, tiling=StreamTiling(64, 32, 2)), "row_threads is 64"),
        (lambda: kernels.rms_norm_backward(X, X, tiling=StreamTiling(64, 64, 32)), "at most 16 blocks"),
        (lambda: kernels.rms_norm_backward(X, X, tiling=StreamTiling(64, 64, 1, -1)), "-1 vectors ahead"),
        (lambda: kernels.rms_norm_backward(X, X, tiling=StreamTiling(512, 512, 1, 50)), "bytes of shared memory"),
        (lambda: kernels.rms_norm_backward(W, W, tiling=StreamTiling(32, 32)), "at most 64 elements"),
        (lambda: kernels.rms_norm_backward(H, H, tiling=StreamTiling(32, 32)), "4 bytes or more"),
        (lambda: kernels.softmax_backward(X, X.int()), "Int32 elements"),
    ],
)
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


def test_clean_under_the_sanitizer():
    x, dy, weight = torch.randn(5, 100), torch.randn(5, 100), torch.randn(100)
    target = torch.randint(0, 100, (5,))
    with kiln.sanitize():
        kernels.layer_norm_backward(dy, x, weight, bias=True, tiling=StreamTiling(64, 64))
        for tiling in (StreamTiling(32, 16), RowTiling(64, 64, 2)):
            kernels.rms_norm_backward(dy, x, weight, tiling=tiling)
        for tiling in (SHARED, StreamTiling(64, 64, 2)):  # more rows than findings are kept of
            kernels.rms_norm_backward(dy.repeat(70, 1), x.repeat(70, 1), weight, tiling=tiling)
        loss, lse = kernels.cross_entropy(x, target, return_lse=True, tiling=RowTiling(64, 64, 2))
        kernels.cross_entropy_backward(1.0, x, target, lse)
    close(loss, functional.cross_entropy(x.double(), target), 2e-6)


def test_numpy():
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    target = np.array([3, 0, 39])
    loss = kernels.cross_entropy(x, target)
    assert loss.shape == ()
    wanted = functional.cross_entropy(torch.from_numpy(x).double(), torch.from_numpy(target))
    np.testing.assert_allclose(loss, wanted.item(), rtol=1e-6)
