"""Rows quantised in blocks (mxfp8, mxfp4, nvfp4) on the CPU target: bit for bit where elements are as they were, the result of norms and
activations within the steps of the format, layouts of scale factors, and the way to `gemm` and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.testing import dry_run

F16, F32, BF16, E4M3 = np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
E8M0, E2M1 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn
FORMATS = {"mxfp8": (32, 448.0), "mxfp4": (32, 6.0), "nvfp4": (16, 6.0)}
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def rows(*shape: int, dtype: Any = F16) -> np.ndarray:
    """Normal data of many magnitudes."""
    return (RNG.standard_normal(shape) * np.exp2(RNG.integers(-6, 3, shape))).astype(dtype)


def reference(x: np.ndarray, name: str, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of elements, one each, and of scale factors, by the definition: (blocks, elements) and (blocks,)."""
    vector, most = FORMATS[name]
    x = (x.astype(F32) * F32(scale)).reshape(-1, vector)
    largest = np.abs(x).max(1)
    if name == "nvfp4":
        own = np.minimum(largest * F32(1 / 6), 448).astype(E4M3)
        wide = own.astype(F32)
        inverse = np.divide(F32(1), wide, out=np.zeros_like(wide), where=wide > 0)
        return np.clip(x * inverse[:, None], -6, 6).astype(E2M1).view(np.uint8), own.view(np.uint8)
    with np.errstate(divide="ignore"):
        exponent = np.maximum(np.ceil(np.log2(largest.astype(np.float64) / most)), -127)
    elements = (x * np.exp2(-exponent)[:, None]).astype(E4M3 if name == "mxfp8" else E2M1)
    return elements.view(np.uint8), (exponent + 127).astype(np.uint8)


def codes(data: np.ndarray, name: str) -> np.ndarray:
    """The bytes of elements, one each, of what `quantize` returns."""
    return (
        data.view(np.uint8) if name == "mxfp8" else np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], -1)
    )


def values(data: np.ndarray, own: np.ndarray, name: str) -> np.ndarray:
    """What elements and scale factors in rows stand for."""
    elements = codes(data, name).view(E4M3 if name == "mxfp8" else E2M1).astype(np.float64)
    return elements * np.repeat(own.astype(np.float64), FORMATS[name][0], -1)


def near(got: np.ndarray, wanted: np.ndarray, name: str, scale: float = 1.0) -> None:
    """Within half a step of the type of elements, at their size or where steps are smallest; for e4m3 scale factors, too."""
    vector, _ = FORMATS[name]
    largest = np.repeat(np.abs(wanted).reshape(-1, vector).max(1), vector).reshape(wanted.shape)
    of_own, of_largest, least = {
        "mxfp8": (2.0**-4, 1e-5, 0),
        "mxfp4": (0.2, 0.084, 0),
        "nvfp4": (0.25, 0.05, 6 * 2.0**-10),
    }[name]
    assert (np.abs(got - wanted) <= of_own * np.abs(wanted) + of_largest * largest + least / scale + 1e-6).all()


def in_rows(atoms: np.ndarray, count: int, vectors: int) -> np.ndarray:
    """Bytes of scale factors in atoms, in rows: that of row r and vector s is at 16 (r % 32) + 4 (r % 128 / 32) + s % 4."""
    depth = -(-vectors // 4)
    return np.array([
        [atoms[((r // 128) * depth + s // 4) * 512 + 16 * (r % 32) + 4 * (r % 128 // 32) + s % 4] for s in range(vectors)]
        for r in range(count)
    ])  # fmt: skip


@pytest.mark.quick(5)
@pytest.mark.parametrize("columns", [32, 96, 544, 8192])
@pytest.mark.parametrize("dtype", [F16, F32, BF16])
@pytest.mark.parametrize("name", FORMATS)
def test_elements_and_scales(name, dtype, columns):
    """Bit for bit, with blocks of zeros."""
    x = rows(5, columns, dtype=dtype)
    x[3] = 0
    with kiln.sanitize("all") as found:
        data, own = kernels.quantize(x, name, scale_layout="rows")
    assert not found
    elements, scales = reference(x, name)
    np.testing.assert_array_equal(codes(data, name).reshape(elements.shape), elements)
    np.testing.assert_array_equal(own.view(np.uint8).reshape(-1), scales)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(7, 64), (128, 128), (260, 96), (3, 130, 64)])
def test_scales_in_atoms(name, shape):
    """As tensor cores take them, those of each matrix of a batch one behind the other; what belongs to no block is 0."""
    x = rows(*shape)
    with kiln.sanitize("all") as found:
        data, own = kernels.quantize(x, name)
    assert not found
    same, plain = kernels.quantize(x, name, scale_layout="rows")
    assert data.tobytes() == same.tobytes() and own.ndim == len(shape) - 1
    for mine, wanted in zip(np.atleast_2d(own.view(np.uint8)), plain.reshape(-1, *plain.shape[-2:]), strict=True):
        np.testing.assert_array_equal(in_rows(mine, *wanted.shape), wanted.view(np.uint8))
        assert np.count_nonzero(mine) == np.count_nonzero(wanted.view(np.uint8))


@pytest.mark.parametrize("name", FORMATS)
def test_special_values(name):
    """A block with a NaN or an infinity is no number; the least numbers, and the largest, are as near as can be."""
    vector, most = FORMATS[name]
    x = np.zeros((6, 2 * vector), F32)
    x[0, 3], x[1, vector], x[2], x[3], x[4, 0], x[5, 1] = (
        np.nan,
        -np.inf,
        1e-42,
        3e38,
        most,
        np.nextafter(F32(most), F32(1e9)),
    )
    data, own = kernels.quantize(x, name, scale_layout="rows")
    scales = own.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(scales), [[1, 0], [0, 1], [0, 0], [0, 0], [0, 0], [0, 0]])
    got = values(data, own, name)
    assert np.isfinite(got[2:]).all() and got[4, 0] == most
    assert own[4, 0] == 1.0 and own[5, 0] == (1.0 if name == "nvfp4" else 2.0)  # the least that holds the largest
    if name != "nvfp4":
        np.testing.assert_allclose(got[3], x[3], rtol=0.2)


def test_a_scale_for_all():
    """Of nvfp4 it uses what e4m3 scale factors hold."""
    x = rows(40, 64) * F16(1e-3)
    scale = 2688.0 / float(np.abs(x).max())
    data, own = kernels.quantize(x, "nvfp4", scale_layout="rows", scale=scale)
    elements, scales = reference(x, "nvfp4", scale)
    np.testing.assert_array_equal(codes(data, "nvfp4").reshape(elements.shape), elements)
    np.testing.assert_array_equal(own.view(np.uint8).reshape(-1), scales)
    near(values(data, own, "nvfp4") / scale, x.astype(np.float64), "nvfp4", scale)


def test_rows_anywhere():
    """Of an array that begins between multiples of 16 bytes, with rows that are parts of longer ones, or columns."""
    for x in (rows(9, 80)[:, 1:65], rows(9, 81)[:, :64], rows(64, 9).T):
        data, own = kernels.quantize(x, "mxfp8", scale_layout="rows")
        elements, scales = reference(x, "mxfp8")
        np.testing.assert_array_equal(codes(data, "mxfp8").reshape(elements.shape), elements)
        np.testing.assert_array_equal(own.view(np.uint8).reshape(-1), scales)


# --- norms and activations in the same pass --------------------------------------------------------------------------


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight.astype(np.float64)


def functions() -> dict[str, tuple[Any, Any]]:
    x, other, weight, bias = np.clip(rows(6, 192), -5, 5), rows(6, 192), rows(192), rows(192)
    wide, more = x.astype(np.float64), other.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    summed = (x.astype(F32) + other.astype(F32)).astype(F16)
    return {
        "rms_norm": (lambda **how: kernels.rms_norm(x, weight, **how), rms(x, weight)),
        "layer_norm": (
            lambda **how: kernels.layer_norm(x, weight, bias, **how),
            normal * weight.astype(np.float64) + bias.astype(np.float64),
        ),
        "softmax": (lambda **how: kernels.softmax(x, **how), powers / powers.sum(-1, keepdims=True)),
        "swiglu": (lambda **how: kernels.swiglu(x, other, **how), wide / (1 + np.exp(-wide)) * more),
        "geglu": (lambda **how: kernels.geglu(x, other, approximate="tanh", **how), 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))) * more),
        "fused_add_rms_norm": (lambda **how: kernels.fused_add_rms_norm(x, other, weight, **how), rms(summed, weight)),
    }  # fmt: skip


@pytest.mark.quick(7)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("function", functions())
def test_results_of_row_functions(function, name):
    """Nearly the same bytes as those of the result in f32: that is within an ulp or two, as sums are added in another order."""
    call, wanted = functions()[function]
    with kiln.sanitize("all") as found:
        data, own, *rest = call(quantize=name, scale_layout="rows")
    assert not found
    near(values(data, own, name), wanted, name)
    if function != "fused_add_rms_norm":
        elements, scales = reference(call(out=np.empty(wanted.shape, F32)), name)
        assert (codes(data, name).reshape(elements.shape) == elements).mean() > 0.97
        assert (own.view(np.uint8).reshape(-1) == scales).mean() > 0.97
    atoms = call(quantize=name)
    assert atoms[0].tobytes() == data.tobytes()
    np.testing.assert_array_equal(in_rows(atoms[1].view(np.uint8), *own.shape), own.view(np.uint8))
    assert len(rest) == (function == "fused_add_rms_norm")


@pytest.mark.parametrize("config", [kernels.RowwiseConfig(64, 64), kernels.RowwiseConfig(128, 128, 2), kernels.RowwiseConfig(128, 8, smem_vectors=2)])  # fmt: skip
def test_configs(config):
    """Rows of one CTA, of a cluster, and of a few threads each, in shared memory."""
    x, weight = rows(5, 2048 if config.cluster > 1 else 512), rows(2048)
    weight = weight[: x.shape[1]]
    plain = kernels.rms_norm(x, weight, out=np.empty(x.shape, F32))
    data, own = kernels.rms_norm(x, weight, quantize="mxfp8", scale_layout="rows", config=config)
    near(values(data, own, "mxfp8"), plain.astype(np.float64), "mxfp8")


# --- to gemm and back ------------------------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
@pytest.mark.parametrize("name", FORMATS)
def test_quantised_rows_are_operands(name, arch, monkeypatch):
    """RMSNorm to quantised rows, times quantised weights, with the scale factors as they are: against f64 of what they stand for."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    x, weight, b = rows(140, 256), rows(256), rows(136, 256)
    left, of_left = kernels.rms_norm(x, weight, quantize=name)
    right, of_right = kernels.quantize(b, name)
    k = 128 if name == "mxfp8" else 256
    config = kernels.Sm100GemmConfig((128, 128, k), (1, 1), 2, 2, 2, 1, pair=False) if arch == "sm_100a" else None
    with kiln.sanitize("all") as found:
        got = kernels.gemm(left, right.T, scale_a=of_left, scale_b=of_right, out_dtype=np.dtype(F32), config=config)
    assert not found
    wide = [
        values(*both, name)
        for both in (
            kernels.rms_norm(x, weight, quantize=name, scale_layout="rows"),
            kernels.quantize(b, name, scale_layout="rows"),
        )
    ]
    assert (np.abs(got - wide[0] @ wide[1].T) <= 2.0**-17 * (np.abs(wide[0]) @ np.abs(wide[1].T)) + 1e-4).all()
    exact = rms(x, weight) @ b.astype(np.float64).T
    error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    assert error < {"mxfp8": 0.04, "mxfp4": 0.25, "nvfp4": 0.18}[name]


def test_tensors_of_pytorch():
    torch = pytest.importorskip("torch")
    x = rows(130, 128)
    for _ in range(3):  # the last calls repeat the launches of the first
        data, own = kernels.quantize(torch.from_numpy(x), "mxfp8")
    assert (data.dtype, own.dtype) == (torch.float8_e4m3fn, torch.float8_e8m0fnu)
    same, scales = kernels.quantize(x, "mxfp8")
    assert data.view(torch.uint8).numpy().tobytes() == same.tobytes()
    assert own.view(torch.uint8).numpy().tobytes() == scales.tobytes()
    packed, _ = kernels.quantize(torch.from_numpy(x), "nvfp4")
    assert packed.dtype == torch.uint8 and tuple(packed.shape) == (130, 64)


def test_arrays_of_jax():
    jax = pytest.importorskip("jax")
    x = rows(6, 64, dtype=F32)
    data, own = kernels.quantize(jax.numpy.asarray(x), "mxfp8", scale_layout="rows")
    elements, scales = reference(x, "mxfp8")
    np.testing.assert_array_equal(np.asarray(data).view(np.uint8).reshape(elements.shape), elements)
    np.testing.assert_array_equal(np.asarray(own).view(np.uint8).reshape(-1), scales)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: kernels.quantize(rows(4, 48), "mxfp8"), "a scale factor for each 32 neighbours"),
        (lambda: kernels.quantize(rows(4, 64), "mxfp6"), "quantize is 'mxfp6'"),
        (lambda: kernels.quantize(rows(4, 64), "mxfp8", scale_layout="columns"), "scale_layout is 'columns'"),
        (lambda: kernels.quantize(rows(4, 64), "mxfp8", scale="1"), "scale is '1'"),
        (lambda: kernels.softmax(rows(4, 64), quantize="e4m3"), "softmax: quantize is 'e4m3'"),
        (lambda: kernels.rms_norm(rows(4, 64), quantize="mxfp6"), "'mxfp6' is no type of elements"),
        (lambda: kernels.rms_norm(rows(4, 64), quantize="mxfp8", out=rows(4, 64)), "out must be None with quantize"),
        (lambda: kernels.quantize(RNG.integers(0, 9, (4, 64)), "mxfp8"), "quantize of Int64 elements"),
        (
            lambda: kernels.quantize(rows(4, 64), "mxfp8", config=kernels.RowwiseConfig(64, 2)),
            "4 neighbouring threads share a scale factor, and a row has 2",
        ),
    ],
)
def test_refused(call, why):
    with pytest.raises(DSLUserCodeTypeError, match=why):
        call()


@pytest.mark.parametrize("scale", [0.0, -0.0, 0, np.nan, np.inf, -np.inf, 1e39, 1e-50])
def test_scales_that_are_no_factors_are_refused(scale):
    """Also after calls with other numbers, which are repeated without Python."""
    x = rows(4, 64)
    for _ in range(4):
        for usual in (0.5, -0.5, 2.0):
            kernels.quantize(x, scale=usual)
        with pytest.raises(DSLUserCodeTypeError, match="(?s)quantize: scale is .*finite and not 0"):
            kernels.quantize(x, scale=scale)


@pytest.mark.quick(3)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("name", FORMATS)
def test_code_for_gpus(name, arch):
    """Nothing is spilled; where there is an instruction for the conversion, it is taken."""
    x, weight = np.zeros((4096, 4096), BF16), np.zeros(4096, BF16)
    with kiln.target("nvidia"), dry_run(arch) as launched:
        kernels.rms_norm(x, weight, quantize=name)
    used = launched[-1].resources
    assert (used.stack, used.spill_stores, used.spill_loads, used.messages) == (0, 0, 0, ())
    kind = "e4m3x2" if name == "mxfp8" else "e2m1x2"
    has = name == "mxfp8" or arch != "sm_90a"
    assert (f"cvt.rn.satfinite.{kind}.f32" in launched[-1].artifacts["ptx"]) == has
