"""The GEMM on the tensor cores against float64, on the CPU target: layouts, ragged shapes, types, epilogues."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute, kernels

SMALL = kernels.Tiling((32, 32, 32), (1, 2), 3)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def normal(shape: Any, dtype: Any) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def operand(rows: int, columns: int, dtype: Any, transposed: bool, batch: tuple[int, ...] = ()) -> np.ndarray:
    """A matrix whose rows, or columns, are contiguous."""
    if not transposed:
        return normal((*batch, rows, columns), dtype)
    return normal((*batch, columns, rows), dtype).swapaxes(-1, -2)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def close(got: np.ndarray, wanted: np.ndarray, ulps: float = 4.0) -> None:
    """Within the rounding of the result's type, of sums made in f32."""
    step = float(ml_dtypes.finfo(got.dtype).eps) if got.dtype.kind in "fV" else 0.0
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=ulps * step, atol=ulps * step * 8 + 1e-5)


@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("a_transposed", [False, True])
def test_layouts(a_transposed, b_transposed):
    a, b = operand(64, 72, np.float16, a_transposed), operand(72, 40, np.float16, b_transposed)
    close(kernels.gemm(a, b, tiling=SMALL), exact(a, b))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (33, 17, 5), (32, 32, 32), (31, 70, 100)])
def test_ragged_shapes(m, n, k):
    a, b = normal((m, k), np.float16), normal((k, n), np.float16)
    close(kernels.gemm(a, b, tiling=SMALL), exact(a, b))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "k"),
    [(ml_dtypes.bfloat16, 32), (np.float32, 16), (ml_dtypes.float8_e4m3fn, 64), (ml_dtypes.float8_e5m2, 64)],
)
def test_types(dtype, k, transposed):
    tiling = kernels.Tiling((32, 32, k), (1, 2), 2)
    a, b = operand(40, 80, dtype, transposed), operand(80, 24, dtype, not transposed)
    if dtype is np.float32:  # what TF32 keeps
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    got = kernels.gemm(a, b, tiling=tiling)
    assert got.dtype == (np.float32 if a.itemsize == 1 else dtype)
    close(got, exact(a, b), 64.0 if dtype is np.float32 or a.itemsize == 1 else 4.0)


@pytest.mark.parametrize(("a_type", "b_type"), [(np.int8, np.int8), (np.uint8, np.int8)])
def test_integers_are_exact(a_type, b_type):
    low = {np.int8: -128, np.uint8: 0}
    a = RNG.integers(low[a_type], low[a_type] + 256, (40, 80)).astype(a_type)
    b = RNG.integers(low[b_type], low[b_type] + 256, (80, 24)).astype(b_type)
    got = kernels.gemm(a, b, tiling=kernels.Tiling((32, 32, 64), (1, 2), 2))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


def test_batches():
    a, b = normal((3, 40, 24), np.float16), normal((24, 16), np.float16)
    close(kernels.gemm(a, b, tiling=SMALL), exact(a, b))


def test_slices_of_arrays():
    whole = normal((50, 100), np.float16)
    a, b = whole[3:40, 7:60], normal((53, 20), np.float16)
    close(kernels.gemm(a, b, tiling=SMALL), exact(a, b))


@pytest.mark.parametrize("order", ["C", "F"])
def test_into_an_array(order):
    a, b = normal((40, 24), np.float16), normal((24, 56), np.float16)
    out = np.zeros((40, 56), np.float32, order=order)
    row = normal((56,), np.float32)
    assert kernels.gemm(a, b, bias=row, out=out, tiling=SMALL) is out
    close(out, exact(a, b) + row, 64.0)


def test_epilogues():
    a, b, c = normal((40, 24), np.float16), normal((24, 40), np.float16), normal((40, 40), np.float16)
    bias, scale = normal((40,), np.float32), normal((40, 1), np.float32)
    sums = 0.5 * exact(a, b) + 2.0 * c.astype(np.float64) + bias
    got = kernels.gemm(
        a,
        b,
        alpha=0.5,
        beta=2.0,
        c=c,
        bias=bias,
        activation="relu",
        epilogue=lambda value, scale: value * scale + 1.0,
        extras=[scale],
        out_dtype=np.float32,
        tiling=SMALL,
    )
    close(got, np.maximum(sums, 0) * scale.astype(np.float64) + 1.0, 64.0)


@pytest.mark.parametrize("activation", ["silu", "gelu", lambda x: cute.math.tanh(x)])
def test_activations(activation):
    from math import erf

    a, b = normal((16, 16), np.float16), normal((16, 16), np.float16)
    sums = exact(a, b)
    wanted = {
        "silu": sums / (1 + np.exp(-sums)),
        "gelu": sums * 0.5 * (1 + np.vectorize(erf)(sums / np.sqrt(2))),
    }.get(activation, np.tanh(sums))
    close(kernels.gemm(a, b, activation=activation, out_dtype=np.float32, tiling=SMALL), wanted, 64.0)


REFUSED = [
    (lambda: kernels.gemm(np.zeros((4, 4), np.float16), np.zeros((5, 4), np.float16)), "shapes"),
    (lambda: kernels.gemm(np.zeros((4, 4), np.float16), np.zeros((4, 4), np.float32)), "Float16 and Float32"),
    (lambda: kernels.gemm(np.zeros((4, 4), np.float64), np.zeros((4, 4), np.float64)), "Float64"),
    (lambda: kernels.gemm(np.zeros((4, 4, 4), np.float16)[:, :, 0], np.zeros((4, 4), np.float16)), "contiguous"),
    (lambda: kernels.gemm(np.zeros(4, np.float16), np.zeros((4, 4), np.float16)), "modes"),
    (
        lambda: kernels.gemm(np.zeros((4, 4), np.float16), np.zeros((4, 4), np.float16), activation="sine"),
        "activation",
    ),
    (
        lambda: kernels.gemm(
            np.zeros((4, 4), np.float16), np.zeros((4, 4), np.float16), tiling=kernels.Tiling((32, 32, 16), (1, 1), 2)
        ),
        "at least two",
    ),
    (
        lambda: kernels.gemm(
            np.zeros((4, 4), np.float16),
            np.zeros((4, 4), np.float16),
            tiling=kernels.Tiling((256, 256, 64), (2, 2), 16),
        ),
        "shared memory",
    ),
]


@pytest.mark.parametrize(("call", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


def test_chosen_tilings_fit():
    from kiln.kernels.tensor_core_gemm import _k_step, _tiling

    for capacity in (99 * 1024, 163 * 1024, 227 * 1024):
        for dtype in (kiln.Float16, kiln.Float32, kiln.Int8):
            for shape in ((1, 8192, 8192), (1, 100, 100), (16, 512, 512)):
                chosen = _tiling(dtype, 32, shape, capacity)
                chosen.check(dtype.width, _k_step(dtype), 32, capacity)
    assert _tiling(kiln.Float16, 16, (1, 8192, 8192), 227 * 1024).block_mnk == (128, 256, 64)


def test_empty_results():
    assert kernels.gemm(np.zeros((0, 8), np.float16), np.zeros((8, 4), np.float16)).shape == (0, 4)


@pytest.mark.parametrize(("number", "arch"), [(0, "sm_90a"), (1, "sm_80")])
def test_default_tilings_do_not_spill(number, arch):
    from kiln.kernels import arrays
    from kiln.kernels import tensor_core_gemm as module
    from kiln.targets.nvidia import codegen

    if codegen.ptxas_version() is None:
        pytest.skip("there is no ptxas: pip install nvidia-cuda-nvcc")
    (m, n, steps), warps, stages = module._CANDIDATES[number]
    a, b, d = (np.zeros((1, 8, 8), np.float16) for _ in range(3))
    operands = [module._operand(a, 2), module._operand(b.swapaxes(1, 2), 1)]
    tensors = [arrays.dynamic(x, leading, 8) for x, leading, _ in operands]
    kinds = [module._typed(o, t) for (_, _, o), t in zip(operands, tensors)]
    kernel = module._kernel(
        kinds[0],
        kinds[1],
        kiln.Float16,
        8,
        kernels.Tiling((m, n, 16 * steps), warps, stages),
        module._combiner(False, False, module._identity, None, True),
    )
    compiled = cute.compile(
        kernel, *tensors, arrays.dynamic(d, 2, 8), [], 1.0, 1.0, 0, target="nvidia", options=f"--gpu-arch {arch}"
    )
    executable: Any = compiled.executable
    (used,) = executable.resources.values()
    assert used.spill_stores == used.spill_loads == used.stack == 0
    assert used.registers * 32 * warps[0] * warps[1] <= 65536


def test_clean_under_the_sanitizer():
    a, b = normal((40, 72), np.float16), normal((72, 24), np.float16)
    with kiln.sanitize():
        close(kernels.gemm(a, b, tiling=SMALL), exact(a, b))
