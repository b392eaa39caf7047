"""Functions of rows, elements and axes on random problems, beside their formulas in float64.

    python tests/helpers/random_rows.py 300 [norms ...]     # of some kinds, for so many seconds; problems that fail are told by their seeds

Lengths are odd and even, rows lie at any strides and offsets, of any type; among their numbers are large means, outliers, subnormals, rows
of one number, infinities and NaN. What a result may be off by is stated beside it: half a step of its type, and what f32's arithmetic
costs of the terms it is made of. A mean costs its last bit, an exponential what its argument's last bit is worth.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import row_formulas as formulas
from random_search import search

import kiln
from kiln import kernels

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
TYPES = (F32, F16, BF16)
NARROW = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
LENGTHS = (
    1, 2, 3, 7, 8, 31, 32, 33, 64, 100, 127, 128, 129, 255, 256, 257, 511, 513, 600, 1000, 1024, 1025, 2047, 2048, 2049, 3000, 4096, 4104,
    5000, 8191, 8192, 9000,
)  # fmt: skip
EXTENTS = (1, 2, 3, 5, 8, 17, 33, 64, 100, 257, 700)
MOST = 300_000
"""Elements of an array."""
Rng = np.random.Generator


def exact(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def half_step(dtype: Any) -> float:
    return 0.51 * float(ml_dtypes.finfo(dtype).eps)


def least(dtype: Any) -> float:
    """What is rounded to 0 at most: hardware takes subnormals of f32, and so those of bf16, for 0 in some instructions."""
    info = ml_dtypes.finfo(dtype)
    return float(info.smallest_normal) * (float(info.eps) if dtype is F16 else 1.01)


def finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, 0.0)


def numbers(rng: Rng, rows: int, n: int, dtype: Any, specials: bool = True) -> np.ndarray:
    """Rows, each with a trait of its own."""
    x = rng.standard_normal((rows, n))
    for row in x:
        trait = rng.integers(9)
        if trait == 0:
            row += 10.0 ** rng.integers(1, 4)
        elif trait == 1:
            row *= 10.0 ** rng.integers(-6, 4)
        elif trait == 2:
            row[:] = rng.choice([0.0, 1.0, -3.0])
        elif trait == 3:
            row *= 4 * float(ml_dtypes.finfo(dtype).smallest_normal)
        elif trait == 4:
            row[rng.integers(n)] *= 1e3
        elif trait == 5 and specials:
            row[rng.integers(n)] = rng.choice([np.inf, -np.inf, np.nan])
        elif trait == 6 and specials:
            row[rng.random(n) < 0.5] = -np.inf
        elif trait == 7 and specials and rng.random() < 0.3:
            row[:] = -np.inf
    return x.astype(dtype)


def laid(rng: Rng, x: np.ndarray) -> np.ndarray:
    """The same rows, lying in some other way."""
    rows, n = x.shape
    how, more = rng.integers(5), int(rng.integers(1, 9))
    views = [
        lambda: np.zeros((rows, n), x.dtype),
        lambda: np.zeros(rows * n + more, x.dtype)[more:].reshape(rows, n),
        lambda: np.zeros((rows, n + more), x.dtype)[:, :n],
        lambda: np.zeros((n, rows), x.dtype).T,
        lambda: np.zeros((2 * rows, n), x.dtype)[::2],
    ]
    view = views[how]()
    view[...] = x
    return view


def rows_of(rng: Rng, most: int = 7) -> tuple[int, int, Any]:
    """Rows, their length and type."""
    return int(rng.integers(1, most)), int(rng.choice(LENGTHS)), TYPES[rng.integers(3)]


def near(got: Any, wanted: Any, off: Any, dtype: Any) -> None:
    """Within what it may be off by and half a step of its type; NaN where that is wanted; infinite where the type ends."""
    found, wanted = exact(got), np.asarray(wanted, np.float64)
    most = float(ml_dtypes.finfo(dtype).max) * (1 + float(ml_dtypes.finfo(dtype).eps) / 4)
    wanted = np.where(abs(wanted) > most, np.sign(wanted) * np.inf, wanted)
    allowed = off + half_step(dtype) * abs(finite(wanted)) + least(dtype)
    right = (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | (abs(found - wanted) <= allowed)
    if not right.all():
        place = tuple(int(axis[0]) for axis in np.nonzero(~right))
        told = [np.broadcast_to(x, right.shape)[place] for x in (found, wanted, allowed)]
        raise AssertionError(f"{(~right).sum()} of {right.size}; at {place} {told[0]}, not {told[1]} within {told[2]}")


# --- kinds of problems -----------------------------------------------------------------------------------------------


def norms(rng: Rng) -> None:
    """RMSNorm and LayerNorm, of sums too, quantized or not."""
    rows, n, dtype = rows_of(rng)
    x, kind, eps = numbers(rng, rows, n, dtype), rng.integers(4), [1e-5, 1e-6][rng.integers(2)]
    centred, added = kind % 2 == 1, kind >= 2
    wide = dtype if rng.random() < 0.7 else F32
    weight, bias = (rng.standard_normal(n).astype(wide) if rng.random() < 0.7 else None for _ in range(2))
    to = (None, None, *NARROW)[rng.integers(4)]
    given, options = [laid(rng, x)], {"eps": eps, "quantize": to}
    if added:
        residual = numbers(rng, rows, n, dtype, specials=False)
        given.append(laid(rng, residual))
        x = (x.astype(F32) + residual.astype(F32)).astype(dtype)
    given += [weight, bias] if centred else [weight]
    found = (
        kernels.rms_norm, kernels.layer_norm, kernels.fused_add_rms_norm, kernels.fused_add_layer_norm,
    )[kind](*given, **options)  # fmt: skip
    found = list(found) if isinstance(found, tuple) else [found]
    if added:
        np.testing.assert_array_equal(exact(found.pop()), exact(x))
    scale = 1.0 if weight is None else exact(weight)
    shift = exact(bias) if centred and bias is not None else np.zeros(n)
    wanted = formulas.layer_norm(x, scale, shift, eps) if centred else formulas.rms_norm(x, scale, eps)
    whole = np.isfinite(exact(x)).all(-1, keepdims=True) if centred else ~np.isnan(exact(x)).any(-1, keepdims=True)
    wanted = np.where(whole, wanted, np.nan)
    deviation = np.sqrt(exact(x).var(-1, keepdims=True) + eps)
    mean = 2.0**-22 * finite(abs(exact(x).mean(-1, keepdims=True)) / deviation) * abs(scale) if centred else 0.0
    off = 3e-5 * (finite(abs(wanted - shift)) + 1e-3) + mean + 1e-6 * abs(shift)
    if to is None:
        near(found[0], wanted, off, dtype)
    else:
        quantized(found[0], found[1], wanted, off, to)


def quantized(q: Any, scales: Any, wanted: np.ndarray, off: np.ndarray, dtype: Any) -> None:
    """Rows without infinities: the largest is the largest of the type, and all are within half a step of it."""
    rows = np.isfinite(wanted).all(-1)
    info, off = ml_dtypes.finfo(dtype), np.broadcast_to(off, wanted.shape)[rows]
    most = np.maximum(abs(wanted[rows]).max(-1, keepdims=True), 1e-12)
    factor = exact(scales)[rows]
    assert (abs(factor * float(info.max) - most) <= 1e-5 * most + off.max(-1, keepdims=True)).all(), (factor, most)
    allowed = half_step(dtype) * abs(wanted[rows]) + 0.51 * factor * float(info.smallest_subnormal) + 2 * off
    error = abs(exact(q)[rows] * factor - wanted[rows])
    assert (error <= allowed).all(), (error - allowed).max()


def norm_gradients(rng: Rng) -> None:
    rows, n, dtype = rows_of(rng, 40)
    x, dy = numbers(rng, rows, n, dtype, specials=False), rng.standard_normal((rows, n)).astype(dtype)
    weight, centred, eps = rng.standard_normal(n).astype(dtype), bool(rng.integers(2)), 1e-5
    given = laid(rng, dy), laid(rng, x), weight if rng.random() < 0.8 else None
    scale = np.ones(n) if given[2] is None else exact(weight)
    dx, dweight, dbias = formulas.norm_gradients(dy, x, scale, eps, centred)
    distance = exact(x) - (exact(x).mean(-1, keepdims=True) if centred else 0)
    inverse = 1 / np.sqrt((distance**2).mean(-1, keepdims=True) + eps)
    mean = 2.0**-20 * abs(exact(x).mean(-1, keepdims=True)) * inverse if centred else 0.0
    y, g = abs(distance * inverse), abs(exact(dy) * scale)
    parts = g + y * (g * y).mean(-1, keepdims=True) + g.mean(-1, keepdims=True)
    if centred:
        found = kernels.layer_norm_backward(*given, eps=eps, bias=True)
        near(found[2], dbias, 1e-6 * abs(exact(dy)).sum(0), dtype)
    else:
        found = kernels.rms_norm_backward(*given, eps=eps)
    near(found[0], dx, inverse * (1e-5 * parts + mean * (g.max(-1, keepdims=True) + 1) * (1 + y)), dtype)
    if given[2] is not None:
        near(found[1], dweight, (abs(exact(dy)) * (2e-5 * y + mean)).sum(0), dtype)


def gates(rng: Rng) -> None:
    """SwiGLU and GEGLU of finite gates."""
    rows, n, dtype = rows_of(rng)
    gate, up = (numbers(rng, rows, n, dtype, specials=False) for _ in range(2))
    x, given = exact(gate), (laid(rng, gate), laid(rng, up))
    kind = rng.integers(3)
    if kind == 0:
        found, active = kernels.swiglu(*given), x / (1 + np.exp(-x))
    elif kind == 1:
        found, active = kernels.geglu(*given), x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))
    else:
        found = kernels.geglu(*given, approximate="tanh")
        active = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    near(found, active * exact(up), 2e-6 * abs(x * exact(up)), dtype)


def softmaxes(rng: Rng) -> None:
    """Softmax and its gradient."""
    rows, n, dtype = rows_of(rng)
    x = numbers(rng, rows, n, dtype)
    wanted, given = formulas.softmax(x), exact(x)
    wanted[np.isnan(given).any(-1) | (given == np.inf).any(-1) | (given == -np.inf).all(-1)] = np.nan
    found = kernels.softmax(laid(rng, x))
    near(found, wanted, finite(wanted) * (2e-6 + 3e-7 * abs(finite(given)).max(-1, keepdims=True)), dtype)
    y = np.ascontiguousarray(found[np.isfinite(wanted).all(-1)])
    if len(y):
        dy = numbers(rng, len(y), n, dtype, specials=False)
        terms = abs(exact(y) * exact(dy)).sum(-1, keepdims=True)
        made = kernels.softmax_backward(laid(rng, dy), laid(rng, y))
        near(made, formulas.softmax_gradient(dy, y), 3e-6 * exact(y) * (abs(exact(dy)) + terms), dtype)


def losses(rng: Rng) -> None:
    """Cross-entropy of logits, some of them masked, and its gradient."""
    rows, n, dtype = rows_of(rng, 9)
    n = max(2, n)
    x = numbers(rng, rows, n, dtype, specials=False)
    target = rng.integers(0, n, rows).astype([np.int32, np.int64][rng.integers(2)])
    target[rng.random(rows) < 0.2] = -100
    masked = rng.random((rows, n)) < (0.3 if rng.random() < 0.4 else 0.0)
    masked[np.arange(rows), np.maximum(target, 0)] = False
    x[masked] = -np.inf
    smoothing = 0.0 if masked.any() or rng.random() < 0.5 else 0.1
    given, options = laid(rng, x), {"label_smoothing": smoothing}
    loss, gradient, sums = formulas.loss_and_gradient(np.where(masked, -1e30, exact(x)), target, smoothing)
    largest = abs(finite(exact(x))).max(-1)
    reduction = ("none", "sum", "mean")[rng.integers(3)]
    found, lse = kernels.cross_entropy(given, target, reduction=reduction, return_lse=True, **options)
    near(lse, sums, 2e-6 * (1 + abs(sums) + largest), F32)
    off, counted = 2e-6 * (1 + largest + abs(loss)), (target != -100).sum()
    if reduction == "none":
        near(found, loss, off, F32)
    else:
        over = 1 if reduction == "sum" else counted
        near(found, loss.sum() / over if over else np.nan, 1.1 * off.sum() / max(over, 1), F32)
    made = kernels.cross_entropy_backward(1.0, given, target, lse, reduction="sum", **options)
    powers = np.where(masked, 0.0, np.exp(exact(x) - sums[:, None]))
    near(made, gradient, powers * (4e-6 + 4e-7 * largest[:, None]) + 1e-7, dtype)


def reductions(rng: Rng) -> None:
    """Of floats and integers over any axes of any strides; extrema and their places are exact."""
    dtype = (*TYPES, np.float64, np.int64, np.int32, np.int8, np.uint8)[rng.integers(8)]
    floats = dtype in (*TYPES, np.float64)
    shape = shape_of(rng)
    if floats:
        x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3) + rng.choice([0.0, 100.0])
        if rng.random() < 0.25:
            x.flat[rng.integers(x.size)] = rng.choice([np.nan, np.inf, -np.inf])
    else:
        x = rng.integers(0 if dtype is np.uint8 else -100, 100, shape)
    x = strided(rng, x.astype(dtype))
    name = ("sum", "mean", "max", "min", "argmax", "argmin")[rng.integers(6)]
    axes: Any = tuple(sorted(rng.choice(x.ndim, int(rng.integers(1, x.ndim + 1)), replace=False).tolist()))
    axes = None if rng.random() < 0.3 else axes[0] if name.startswith("arg") else axes
    found = np.asarray(getattr(kernels, name)(x, axes))
    given = exact(x) if floats else x.astype(np.int64)
    wanted = np.asarray(getattr(np, name)(given, axis=axes))
    if name == "mean" or (name == "sum" and floats):
        terms = abs(finite(exact(x))).sum(axis=axes) / (x.size / wanted.size if name == "mean" else 1)
        near(found, wanted, terms * (1e-14 if dtype is np.float64 else 3e-6), found.dtype.type)
    else:
        np.testing.assert_array_equal(exact(found) if floats else found, wanted)


def shape_of(rng: Rng) -> tuple[int, ...]:
    """One to three extents."""
    while True:
        shape = tuple(int(n) for n in rng.choice(EXTENTS, int(rng.integers(1, 4))))
        if math.prod(shape) <= MOST:
            return shape


def strided(rng: Rng, x: np.ndarray) -> np.ndarray:
    """The array in another order, or backwards, or a part of it."""
    if rng.random() < 0.3:
        x = np.asfortranarray(x)
    if rng.random() < 0.3 and x.shape[0] > 2:
        x = x[::2]
    return x[::-1] if rng.random() < 0.2 else x


def selections(rng: Rng) -> None:
    """The largest of a softmax, of equals the first."""
    rows, n, dtype = rows_of(rng, 9)
    n = min(n, 4096)
    k = int(min(n, rng.choice([1, 2, 3, 8, 20])))
    x = numbers(rng, rows, n, dtype, specials=False)
    x[rng.random((rows, n)) < rng.choice([0.0, 0.5])] = -np.inf
    x[:, rng.integers(n)] = dtype(1)
    if rng.random() < 0.3:
        x = np.round(exact(x)).astype(dtype)
    renormalize = bool(rng.integers(2))
    values, places = kernels.topk_softmax(laid(rng, x), k, renormalize)
    order = np.argsort(-exact(x), axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(np.asarray(places), order)
    wanted = np.take_along_axis(formulas.softmax(x), order, -1)
    if renormalize:
        wanted = wanted / wanted.sum(-1, keepdims=True)
    near(values, wanted, wanted * (5e-6 + 4e-7 * abs(finite(exact(x))).max(-1, keepdims=True)), F32)


def rotations(rng: Rng) -> None:
    """Rotary embeddings at any positions, of whole heads or of a part."""
    batch, tokens, heads = (int(rng.integers(1, most)) for most in (4, 20, 6))
    size, dtype, table = (
        int(rng.choice([2, 4, 6, 8, 10, 16, 24, 32, 64, 72, 128])),
        TYPES[rng.integers(3)],
        int(rng.integers(1, 40)),
    )
    pairs = int(rng.integers(1, size // 2 + 1)) if rng.random() < 0.4 else size // 2
    x = np.zeros((batch, tokens, heads, size + int(rng.integers(0, 4))), dtype)[..., :size]
    x[...] = rng.standard_normal(x.shape) * 10.0 ** rng.integers(-3, 3)
    angles = 6 * rng.random((table, pairs))
    cos, sin = (f(angles).astype(F32 if rng.random() < 0.6 else dtype) for f in (np.cos, np.sin))
    sin = sin.astype(cos.dtype)
    interleaved, conjugate = bool(rng.integers(2)), bool(rng.integers(2))
    options: dict[str, Any] = {}
    places = np.broadcast_to(np.arange(tokens), (batch, tokens))
    if rng.random() < 0.4:
        places = options["positions"] = rng.integers(-3, table + 5, (batch, tokens)).astype(
            [np.int32, np.int64][rng.integers(2)]
        )
    elif rng.random() < 0.5:
        options["seqlen_offsets"] = int(rng.integers(0, 5))
        places = places + options["seqlen_offsets"]
    found = kernels.rotary_embedding(x, cos, sin, interleaved, conjugate=conjugate, **options)
    inside = np.clip(places, 0, table - 1)
    c, s = exact(cos)[inside][:, :, None], exact(sin)[inside][:, :, None] * (-1 if conjugate else 1)
    wanted, off = exact(x), np.zeros(x.shape)
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(pairs), slice(pairs, 2 * pairs))
    )
    a, b = exact(x)[..., first], exact(x)[..., second]
    wanted[..., first], wanted[..., second] = a * c - b * s, b * c + a * s
    off[..., first] = off[..., second] = 2e-7 * (abs(a) + abs(b))
    near(found, wanted, off, dtype)


def elements(rng: Rng) -> None:
    """Functions of elements of arrays that are broadcast; each of their operations rounds to the type."""
    dtype, shape = TYPES[rng.integers(3)], shape_of(rng)

    def made() -> np.ndarray:
        own = [n if rng.random() < 0.75 else 1 for n in shape]
        return strided(rng, numbers(rng, 1, math.prod(own), dtype).reshape(own))

    function = (lambda p, q: p + q, lambda p, q: p * q - p, lambda p, q: p * 2.0 + q, lambda p, q: p - q)[
        rng.integers(4)
    ]
    a, b = made(), made()
    while a.shape != b.shape and any(m != n and 1 not in (m, n) for m, n in zip(a.shape, b.shape, strict=True)):
        a, b = made(), made()
    found = kernels.elementwise(function, a, b)
    with np.errstate(over="ignore"):
        terms = finite(abs(exact(a) * exact(b))) + 2 * finite(abs(exact(a))) + finite(abs(exact(b)))
    near(found, function(exact(a), exact(b)), 3 * half_step(dtype) * terms, dtype)


KINDS = {
    f.__name__: f
    for f in (norms, norm_gradients, gates, softmaxes, losses, reductions, selections, rotations, elements)
}


def attempt(kind: str, seed: int) -> None:
    """One problem, on the CPU target."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), kiln.target("cpu"):
        warnings.simplefilter("ignore", RuntimeWarning)
        KINDS[kind](np.random.default_rng([seed, *kind.encode()]))


if __name__ == "__main__":
    search(attempt, KINDS)
