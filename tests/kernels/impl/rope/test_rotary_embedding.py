"""Rotary embeddings against their formula in float64, on the CPU target: within one rounding of the result and 1e-6 of f32's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import kernels

BF16, F32 = ml_dtypes.bfloat16, np.float32
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def normal(*shape: int, dtype: Any = F32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def table(positions: int, pairs: int, dtype: Any = F32) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(positions)[:, None] * 100.0 ** (-np.arange(pairs) / pairs)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def turned(x: Any, cos: Any, sin: Any, places: Any, interleaved: bool = False) -> np.ndarray:
    """Of (batch, tokens, heads, D), with the position of each token."""
    made, pairs = x.astype(np.float64), cos.shape[1]
    c, s = (t.astype(np.float64)[places][:, :, None] for t in (cos, sin))
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(0, pairs), slice(pairs, 2 * pairs))
    )
    a, b = made[..., first].copy(), made[..., second].copy()
    made[..., first], made[..., second] = a * c - b * s, b * c + a * s
    return made


def close(got: Any, wanted: Any) -> None:
    error = float(ml_dtypes.finfo(got.dtype).eps) + 1e-6
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=error, atol=error)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "size", "pairs", "dtype", "angles"),
    [(3, 32, 16, BF16, F32), (5, 48, 8, F32, F32), (1, 10, 3, BF16, BF16)],
)
def test_both_conventions_in_part_and_whole(heads, size, pairs, dtype, angles, interleaved):
    x, (cos, sin) = normal(2, 7, heads, size, dtype=dtype), table(20, pairs, angles)
    places = np.broadcast_to(np.arange(7), (2, 7))
    wanted = turned(x, cos, sin, places, interleaved)
    y = kernels.rotary_embedding(x, cos, sin, interleaved)
    close(y, wanted)
    back = kernels.rotary_embedding(y.astype(F32), cos, sin, interleaved, conjugate=True)
    np.testing.assert_allclose(back, x.astype(F32), atol=2e-2)
    made = kernels.rotary_embedding(x, cos, sin, interleaved, inplace=True)
    assert made is x
    close(x, wanted)


def test_positions():
    x, (cos, sin) = normal(2, 5, 2, 16), table(12, 8)
    count = np.arange(5)[None]
    close(kernels.rotary_embedding(x, cos, sin, seqlen_offsets=3), turned(x, cos, sin, count + [[3], [3]]))
    offsets = np.array([4, -2], np.int32)  # beyond both ends of the table: the nearest
    wanted = turned(x, cos, sin, (count + offsets[:, None]).clip(0, 11))
    close(kernels.rotary_embedding(x, cos, sin, seqlen_offsets=offsets), wanted)
    places = RNG.integers(0, 12, (2, 5))
    close(kernels.rotary_embedding(x, cos, sin, positions=places), turned(x, cos, sin, places))
    both = places[:1].repeat(2, 0)
    close(kernels.rotary_embedding(x, cos, sin, positions=places[0]), turned(x, cos, sin, both))
    close(kernels.rotary_embedding(x[0], cos, sin, positions=places[0]), turned(x[:1], cos, sin, places[:1])[0])


def test_strided_heads_and_results():
    packed, (cos, sin) = normal(2, 3, 4, 3, 16), table(9, 8)
    x, out = packed[:, :, :, 1].transpose(0, 2, 1, 3), np.empty((2, 4, 3, 16), BF16)
    assert kernels.rotary_embedding(x, cos, sin, out=out) is out
    close(out, turned(x, cos, sin, np.broadcast_to(np.arange(4), (2, 4))))
    kernels.rotary_embedding(x, cos[:, 1:5], sin[:, 1:5], out=x)  # what is behind stays, whether copied or not
    kernels.rotary_embedding(x, cos[:, 1:5], sin[:, 1:5], out=out)
    close(out[..., 8:], x[..., 8:].astype(BF16))


def test_what_is_no_number_stays_in_its_pair():
    x, (cos, sin) = normal(1, 5, 2, 16), table(12, 8)
    x[0, 1, 0, 2], x[0, 2, 1, 11], x[0, 3] = np.nan, np.inf, 1e-40
    wanted = np.zeros(x.shape, bool)
    wanted[0, 1, 0, [2, 10]], wanted[0, 2, 1, [3, 11]] = True, True
    y = kernels.rotary_embedding(x, cos, sin)
    np.testing.assert_array_equal(~np.isfinite(y), wanted)
    assert (abs(y[0, 3]) < 1e-37).all()


X, (COS, SIN) = np.zeros((1, 3, 2, 16), F32), table(5, 8)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kernels.rotary_embedding(X[0, 0], COS, SIN), r"of shape \(2, 16\)"),
        (lambda: kernels.rotary_embedding(X, COS, SIN[:, :4]), "sines of"),
        (lambda: kernels.rotary_embedding(X[..., :8], COS, SIN), "heads of 8"),
        (lambda: kernels.rotary_embedding(X[..., ::2], COS[:, :4], SIN[:, :4]), "not contiguous"),
        (
            lambda: kernels.rotary_embedding(X, COS, SIN, positions=np.zeros((1, 2), np.int32)),
            r"positions of shape \(1, 2\)",
        ),
        (lambda: kernels.rotary_embedding(X, COS, SIN, positions=np.zeros((1, 3), F32)), "positions of Float32"),
        (lambda: kernels.rotary_embedding(X, COS, SIN, False, True, out=X.copy()), "inplace is True, and out"),
        (lambda: kernels.rotary_embedding(X, COS, SIN, config=kernels.RopeConfig(100)), "whole warps"),
        (lambda: kernels.rotary_embedding(X, COS[:0], SIN[:0]), "no positions"),
    ],
)
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.parametrize("taken", [0, 2, 4])
def test_in_place_apart_from_what_is_read(taken):
    """Also after calls that were allowed: a program that was recorded for arrays that lie apart is not taken for others."""
    places = np.zeros((1, 4), np.int32)
    for _ in range(taken):
        kernels.rotary_embedding(normal(1, 4, 2, 16), *table(4, 8), inplace=True, positions=places)
    memory = np.zeros(128 + 32, F32)
    x, apart = memory[:128].reshape(1, 4, 2, 16), table(4, 8)
    for cos, sin, index, name in (
        (memory[120:152].reshape(4, 8), apart[1], places, "cos"),
        (apart[0], memory[128 - 1 :][:32].reshape(4, 8), places, "sin"),
        (*apart, memory[4:8].view(np.int32)[None], "positions"),
    ):
        with pytest.raises(TypeError, match=f"memory in common with {name}"):
            kernels.rotary_embedding(x, cos, sin, inplace=True, positions=index)
    kernels.rotary_embedding(x, memory[128:].reshape(4, 8), apart[1], inplace=True, positions=places)
    with pytest.raises(TypeError, match="its elements lie apart"):
        kernels.rotary_embedding(np.lib.stride_tricks.as_strided(x, (1, 4, 2, 16), (0, 64, 0, 4)), *apart, inplace=True)


def test_clean_under_the_sanitizer():
    with kiln.sanitize():
        y = kernels.rotary_embedding(X + 1, COS[:, :6], SIN[:, :6], positions=np.array([[0, 4, 2]]))
    assert "RotatedPairs" in str(kernels.explain(kernels.rotary_embedding, X, COS, SIN))
    close(y[..., 12:], np.ones((1, 3, 2, 4)))
