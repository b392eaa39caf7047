"""Rows of any length, beginning anywhere: functions of rows, cross-entropy and reductions against float64, on the CPU target."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import row_formulas

import kiln
from kiln import kernels
from kiln.kernels.dispatch import arrays
from kiln.kernels.dispatch.matrices import shared_alignment
from kiln.kernels.impl.rowwise import arguments, default_configs, implementations, softmax_and_norms
from kiln.kernels.impl.rowwise.config import UnalignedRowwiseConfig

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
LENGTHS = range(1, 41)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def placed(rows: int, n: int, dtype: Any, offset: int, padding: int) -> tuple[Any, Any]:
    """Memory filled with 7 and a view of rows in it that begins `offset` elements in, with gaps between rows."""
    memory = np.full((offset + rows * (n + padding) + 3,), 7.0, dtype)
    return memory, memory[offset : offset + rows * (n + padding)].reshape(rows, n + padding)[:, :n]


def untouched(memory: Any, view: Any) -> bool:
    """Whether all elements around a view are still 7."""
    view[...] = 7.0
    return bool((memory == 7).all())


def close(got: np.ndarray, wanted: Any, relative: float, absolute: float) -> None:
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=relative, atol=absolute)


def check_loss(
    n: int, dtype: Any, out: Any = None, offset: int = 0, padding: int = 0, shift: int = 0, **options: Any
) -> None:
    """Loss and gradient of 9 rows, so that every alignment occurs where the length is odd; one of them does not count."""
    _, logits = placed(9, n, dtype, offset, padding)
    made = np.random.default_rng(n)
    logits[...] = made.standard_normal((9, n)) * 3
    target = made.integers(0, n, 9)
    target[:3] = 0, n - 1, -100
    losses, gradient, _ = row_formulas.loss_and_gradient(logits, target, options.get("label_smoothing", 0.0))
    count = 1 if options.get("reduction") == "sum" else 8
    loss, lse = kernels.cross_entropy(logits, target, return_lse=True, **options)
    close(loss, losses.sum() / count, 2e-6, 2e-6)
    memory, result = placed(9, n, out or dtype, offset + shift, padding)
    kernels.cross_entropy_backward(1.0, logits, target, lse, out=result, **options)
    close(result, gradient / count, 2 * float(ml_dtypes.finfo(result.dtype).eps) + 2e-6, 1e-7)
    assert untouched(memory, result)


def test_losses_of_every_length():
    for n in LENGTHS:
        options: dict[str, Any] = {"label_smoothing": 0.1, "reduction": "sum"} if n % 3 == 0 else {}
        check_loss(n, BF16, **options)


@pytest.mark.parametrize(
    ("n", "dtype", "out", "offset", "padding", "shift"),
    [
        (33, F32, F32, 1, 0, 0),
        (64, F16, F16, 3, 0, 0),
        (64, BF16, BF16, 0, 5, 0),
        (61, BF16, F32, 1, 2, 0),  # vectors of the wider type
        (61, BF16, BF16, 1, 2, 1),  # the gradient begins elsewhere: no vectors
        (500, BF16, BF16, 4, 0, 0),
    ],
)
def test_losses_that_begin_anywhere(n, dtype, out, offset, padding, shift):
    check_loss(n, dtype, out, offset, padding, shift)


@pytest.mark.parametrize(
    "config", [kernels.RowwiseConfig(64, 64), kernels.RowwiseConfig(64, 64, 2), kernels.RowwiseConfig(64, 4)]
)
def test_losses_are_cut(config):
    logits, target = RNG.standard_normal((5, 1027)).astype(BF16), RNG.integers(0, 1027, 5)
    loss = kernels.cross_entropy(logits, target, config=config)
    close(loss, row_formulas.loss_and_gradient(logits, target, 0.0)[0].mean(), 2e-6, 0)


def check_reduction(name: str, x: np.ndarray, axis: Any, **options: Any) -> None:
    got, wanted = getattr(kernels, name)(x, axis, **options), getattr(np, name)(x.astype(np.float64), axis=axis)
    step = 0.0 if name != "sum" else float(ml_dtypes.finfo(x.dtype).eps) + 1e-6
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=step, atol=10 * step)


@pytest.mark.parametrize("name", ["max", "argmax"])
def test_reductions_of_every_length(name):
    for n in LENGTHS:
        memory = RNG.standard_normal(9 * (n + 1) + 4).astype(ml_dtypes.bfloat16)
        check_reduction(name, memory[: 9 * n].reshape(9, n), 1)
        check_reduction(name, memory[n % 4 :][: 9 * (n + 1)].reshape(9, n + 1)[:, :n], 1)


@pytest.mark.parametrize("name", ["sum", "argmin"])
def test_reductions_of_several_modes(name):
    x = RNG.standard_normal((4, 3, 5, 39)).astype(np.float32)
    for view in (x[:, 0], x[:, 1, :, 1:], x[0, :, :, 2:37]):
        check_reduction(name, view, None)
    check_reduction("sum", x[:, :, 2, 1:], (0, 2))
    check_reduction("max", x[:, :, 2, 1:], (0, 2))


@pytest.mark.parametrize("name", ["mean", "argmax"])
@pytest.mark.parametrize("n", [1003, 1000])
def test_parts_of_odd_rows_are_merged(name, n):
    x = RNG.standard_normal((3, n + 1)).astype(np.float16)[:, 1:]
    wanted = getattr(np, name)(x.astype(np.float64), axis=1)
    for config in (kernels.ReductionConfig(64, 32, 1, 3), kernels.ReductionConfig(64, 64, 2, 2)):
        np.testing.assert_allclose(getattr(kernels, name)(x, 1, config=config), wanted, rtol=1e-3, atol=1e-5)


def test_the_first_of_equals_at_the_edges():
    """Places of extrema among elements before, in and after the vectors of a row."""
    x = np.zeros((8, 29), np.float16)
    x[:, 28] = x[:, 3] = x[:, 10] = 1
    x[4:, 0] = x[4:, 28] = np.nan
    np.testing.assert_array_equal(kernels.argmax(x, 1), [3] * 4 + [0] * 4)
    np.testing.assert_array_equal(kernels.argmin(-x, 1), [3] * 4 + [0] * 4)
    np.testing.assert_array_equal(kernels.argmax(np.full((3, 29), -np.inf, np.float16), 1), [0] * 3)
    np.testing.assert_array_equal(kernels.argmax(np.array([[-0.0, 0.0], [0.0, -0.0]]), 1), [0, 0])


def cut(k: int, x: Any, out: Any, columns: Any, config: UnalignedRowwiseConfig) -> None:
    """Softmax (0) or LayerNorm (1), cut like this."""
    kind, numbers = ((softmax_and_norms.Softmax, ()), (softmax_and_norms.LayerNorm, (1e-5, 1.0 / x.shape[-1])))[k]
    arguments.run_rows("", kind, [x], [out], columns, numbers, default_configs.softmax_config, config)


def check_rows(
    n: int, dtype: Any, offset: int = 0, padding: int = 0, rows: int = 9, config: UnalignedRowwiseConfig | None = None
) -> None:
    """Softmax, its gradient and norms; what lies between and around rows stays as it was."""
    made = np.random.default_rng(n)

    def filled() -> np.ndarray:
        view = placed(rows, n, dtype, offset, padding)[1]
        view[...] = made.standard_normal((rows, n)) * 2 + 1
        return view

    x, dy, y = filled(), filled(), filled()
    weight, bias = (made.standard_normal(n).astype(dtype) for _ in range(2))
    cases = [
        (lambda out: kernels.softmax(x, out=out), row_formulas.softmax(x)),
        (lambda out: kernels.rms_norm(x, weight, out=out), row_formulas.rms_norm(x, weight)),
        (lambda out: kernels.layer_norm(x, weight, bias, out=out), row_formulas.layer_norm(x, weight, bias)),
        (lambda out: kernels.layer_norm(x, None, bias, out=out), row_formulas.layer_norm(x, bias=bias)),
        (lambda out: kernels.softmax_backward(dy, y, out=out), row_formulas.softmax_gradient(dy, y)),
    ]
    if config is not None:
        cases = [(lambda out, k=k: cut(k, x, out, (weight, bias)[: 2 * k], config), cases[2 * k][1]) for k in range(2)]
    for run, wanted in cases:
        memory, out = placed(rows, n, dtype, offset, padding)
        run(out)
        step = 2 * float(ml_dtypes.finfo(dtype).eps)
        close(out, wanted, step, 2 * step * float(np.abs(wanted).max()))
        assert untouched(memory, out)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("n", "dtype", "offset", "padding"), [(257, BF16, 0, 0), (270, F16, 1, 2), (1031, BF16, 3, 0), (133, F32, 0, 0)]
)
def test_functions_of_rows(n, dtype, offset, padding):
    check_rows(n, dtype, offset, padding)


def test_functions_of_rows_that_clusters_share():
    check_rows(18001, BF16, rows=2)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("n", "dtype", "count", "config"),
    [
        (301, BF16, 9, UnalignedRowwiseConfig(64, 32)),
        (519, BF16, 9, UnalignedRowwiseConfig(64, 64)),
        (1030, F16, 5, UnalignedRowwiseConfig(64, 64, 1, 1, prefetch=2)),  # some in registers
        (1100, BF16, 9, UnalignedRowwiseConfig(32, 32, 4, 8)),
        (517, BF16, 21, UnalignedRowwiseConfig(64, 64, 1, 8, rows_per_cta=2, prefetch=2)),
        (523, F16, 25, UnalignedRowwiseConfig(32, 32, 2, 8, rows_per_cta=3)),
        (259, F32, 11, UnalignedRowwiseConfig(32, 32, 1, 1, rows_per_cta=2)),
        (263, BF16, 3, UnalignedRowwiseConfig(64, 64, rows_per_cta=4)),
    ],
)
def test_how_odd_rows_are_cut(n, dtype, count, config):
    check_rows(n, dtype, n % 3, n % 2, count, config)


def test_odd_rows_in_place():
    """Each of some rows of a block is read before one is written, also where rows are missing and others stand for them."""
    x = RNG.standard_normal((19, 261)).astype(F16)
    wanted = row_formulas.layer_norm(x)
    cut(1, x, x, (None, None), UnalignedRowwiseConfig(32, 32, 1, 8, rows_per_cta=4))
    close(x, wanted, 2e-3, 2e-3)


@pytest.mark.parametrize(
    ("config", "n", "message"),
    [
        (UnalignedRowwiseConfig(64, 64), 512, "for unaligned rows"),
        (UnalignedRowwiseConfig(64, 16), 517, "edges of unaligned rows take a warp"),
        (UnalignedRowwiseConfig(64, 32, rows_per_cta=2), 517, "needs row_threads=64"),
        (UnalignedRowwiseConfig(64, 64, 1, 8, rows_per_cta=300), 517, "bytes of shared memory"),
        (UnalignedRowwiseConfig(96, 96), 517, "not a power of two"),
    ],
)
def test_configs_that_cannot_work(config, n, message):
    x = np.zeros((3, n), BF16)
    with pytest.raises(TypeError, match=message):
        cut(0, x, x, (), config)


def test_which_rows_have_edges():
    """Rows that are aligned, too short, or out of step with what is written are not taken as rows with edges."""
    x = RNG.standard_normal((4, 1031)).astype(BF16)
    launches = []
    unaligned_problem = implementations.unaligned_problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            implementations, "unaligned_problem", lambda *given: launches.append(given) or unaligned_problem(*given)
        )
        for given in (x[:, :1024].copy(), x[:, :33].copy()):
            kernels.softmax(given, out=np.empty_like(given))
        kernels.softmax(x, out=placed(4, 1031, BF16, 1, 0)[1])
        assert not launches
        kernels.softmax(x, out=np.empty_like(x))
        kernels.softmax(x, out=np.empty(x.shape, F32))
    assert len(launches) == 2


def test_arrays_in_step():
    x = np.zeros(64, BF16)

    def found(given: list[Any], steps: list[int], columns: Any = ()) -> Any:
        return shared_alignment([arrays.layout_of(y) for y in given], steps, [arrays.layout_of(y) for y in columns])

    assert found([x], [5]) == (8, 0)
    assert found([x[3:], x[11:]], [5, 13]) == (8, 3)
    assert found([x[3:], x[4:]], [5, 5]) is None
    assert found([x, x], [5, 6]) is None
    assert found([x[1:], np.zeros(64, F32)[5:]], [7, 3]) == (4, 1)
    assert found([x[1:]], [7], [np.zeros(64, F32)]) == (4, 1)
    assert found([x[1:]], [7], [x[1:]]) is None


@pytest.mark.quick(0)
def test_clean_under_the_sanitizer():
    with kiln.sanitize():
        check_loss(29, BF16, label_smoothing=0.1, offset=1, padding=1)
        x = RNG.standard_normal((3, 29)).astype(np.float16)
        check_reduction("sum", x, 1)
        check_reduction("argmax", x[:, 1:], 1)
        check_rows(261, F16, rows=2)
        check_rows(257, BF16, rows=3, config=UnalignedRowwiseConfig(32, 32, 1, 8, rows_per_cta=2))
