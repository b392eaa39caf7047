"""GEMMs of random problems with random configs, beside float64.

    python tests/helpers/random_gemms.py 300 [mixed_inputs ...]     # of some kinds, for so many seconds; problems that fail are told by their seeds

Extents are odd and even, arrays lie at any strides and offsets, any epilogue may be fused. A config is one of those that are offered for the problem, or
one that is offered for a larger problem of its kind and works for this one. All that are offered for either have to pass their checks, a second call has to
give the same bits, and what lies around a result has to stay.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple
from unittest import mock

import ml_dtypes
import numpy as np
from random_search import search

import kiln
from kiln import cute, kernels
from kiln.kernels.dispatch import devices, registry
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm.problem import GroupedGemmProblem

BF16, F16, F32, E4M3, E5M2 = ml_dtypes.bfloat16, np.float16, np.float32, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
H200 = devices.device_of("sm_90a")
FEW = (1, 2, 5, 8, 9, 16, 24, 31, 40, 64, 72, 100, 129)
LARGE = (512, 1024, 4096, 7168, 11008)
BESIDE = 7
"""What is around results."""
Rng = np.random.Generator


class Numbers(NamedTuple):
    """Numbers of a result, and what each may be off by before it is rounded to its type."""

    value: np.ndarray
    off: np.ndarray


@dataclasses.dataclass
class Drawn:
    """A call, and what it gives: of each result, of those rows that count."""

    function: Any
    arrays: tuple[np.ndarray, ...]
    options: dict[str, Any]
    wanted: list[Numbers]
    row_sum: Numbers | None = None
    counts: np.ndarray | None = None


def exact(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def one_of(rng: Rng, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def extent(rng: Rng) -> int:
    return int(one_of(rng, rng.integers(1, 20), 8 * rng.integers(1, 33), rng.integers(1, 260)))


def laid(rng: Rng, shape: tuple[int, ...], dtype: Any, transposed: bool = False) -> np.ndarray:
    """An array, some of which begin anywhere, and have rows (or columns) that are parts of longer ones; nothing but `BESIDE` is in it."""
    *batch, rows, columns = shape if not transposed else (*shape[:-2], shape[-1], shape[-2])
    odd, few = rng.random() < 0.1, int(rng.integers(1, 9))
    first, whole = one_of(rng, 0, few) if odd else 0, columns + (few if odd else one_of(rng, 0, -columns % 16))
    size = math.prod(batch) * rows * whole
    memory = np.full(first + size + 16, BESIDE, dtype)
    found = memory[first : first + size].reshape(*batch, rows, whole)[..., :columns]
    return found.swapaxes(-1, -2) if transposed else found


def drawn(rng: Rng, shape: tuple[int, ...], dtype: Any, transposed: bool | None = None) -> np.ndarray:
    x = laid(rng, shape, dtype, bool(rng.integers(2)) if transposed is None else transposed)
    whole = np.dtype(dtype).kind in "iu"
    x[...] = rng.integers(0 if np.dtype(dtype).kind == "u" else -9, 10, shape) if whole else rng.standard_normal(shape)
    return x


# --- epilogues -----------------------------------------------------------------------------------------------------


def _gated(value, x):
    return value * x


def _twice(value):
    return value, value * 0.5


def _chosen(value, x):
    return value if value > x else x


def _where(value, flag):
    return cute.where(flag, value, value * 0.5)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[float])(x / 2**0.5)),
}
EPILOGUES = {
    _gated: lambda x, other: [Numbers(x.value * other, x.off * abs(other))],
    _twice: lambda x: [x, Numbers(x.value * 0.5, x.off)],
    _chosen: lambda x, other: [Numbers(np.maximum(x.value, other), x.off)],
    _where: lambda x, flag: [Numbers(np.where(flag, x.value, x.value * 0.5), x.off)],
}


def followed(rng: Rng, x: Numbers, options: dict[str, Any], adds: bool = True) -> list[Numbers]:
    """The numbers of each result for some `options`, which are drawn: other arrays (`adds`: of C and a bias too), an activation, an epilogue."""
    shape = x.value.shape

    def other() -> np.ndarray:
        own = one_of(rng, shape[-1:], (shape[-2], 1), shape[-2:], shape, (*shape[:-2], 1, shape[-1]))
        own = own if len(own) > 1 else (1, *own)
        return drawn(rng, own, one_of(rng, F32, F16, BF16))

    for name in ("c", "bias") if adds else ():
        if rng.random() < 0.35:
            options[name] = other()
            x = Numbers(x.value + exact(options[name]), x.off)
    if rng.random() < 0.3:
        options["activation"] = one_of(rng, *ACTIVATIONS)
        x = Numbers(ACTIVATIONS[options["activation"]](x.value), 1.2 * x.off)
    results = [x]
    if rng.random() < 0.4:
        epilogue = one_of(rng, *EPILOGUES) if adds else one_of(rng, _gated, _chosen, _where)
        flags = rng.integers(0, 2, shape[-2:]).astype(bool)
        extras = [] if epilogue is _twice else [flags if epilogue is _where else other()]
        options |= {"epilogue": epilogue, "extras": extras}
        results = EPILOGUES[epilogue](x, *[x if x.dtype == bool else exact(x) for x in extras])
    # f32's arithmetic costs each a few of its last bits, of what was added up too.
    return [Numbers(*np.broadcast_arrays(y.value, y.off + 2.0**-18 * (abs(y.value) + 4.0))) for y in results]


def accumulated(left: np.ndarray, right: np.ndarray, lost: float, factor: Any = 1.0) -> Numbers:
    """Return the accumulators, which lose so much of the sum of absolute values of the addends."""
    return Numbers(factor * (left @ right), lost * abs(factor) * (abs(left) @ abs(right)))


# --- kinds of problems -----------------------------------------------------------------------------------------------


def gemms(rng: Rng) -> Drawn:
    """Draw a GEMM of one element type, some with scales."""
    left, right, lost, options = one_of(
        rng, (F16, F16, 2.0**-19, {}), *2 * [(BF16, BF16, 2.0**-19, {})], (F32, F32, 2.0**-19, {}), (F32, F32, 2.0**-9, {"precision": "tf32"}),
        (E4M3, E5M2, 2.0**-12, {}), (E4M3, E4M3, 2.0**-9, {"precision": "fast"}), (np.int8, np.uint8, 2.0**-20, {}),
    )  # fmt: skip
    options, (m, n, k) = dict(options), (extent(rng) for _ in range(3))
    batches = one_of(rng, (), (), (2,))
    if rng.random() < 0.5:
        m, k = int(one_of(rng, *FEW)), 64 * int(rng.integers(1, 17))
    a, b = drawn(rng, (*batches, m, k), left), drawn(rng, (*one_of(rng, batches, ()), k, n), right)
    x, y, factor = exact(a), exact(b), 1.0
    if left is E4M3 and max(n, k) > 128 and rng.random() < 0.5:
        depth, across = -(-k // 128), -(-n // 128)
        of_a, of_b = (rng.random(shape).astype(F32) for shape in ((m, depth), (depth, across)))
        options |= {"scale_a": of_a, "scale_b": of_b}
        x = x * np.repeat(exact(of_a), 128, 1)[:, :k]
        y = y * np.repeat(np.repeat(exact(of_b), 128, 0)[:k], 128, 1)[:, :n]
    elif rng.random() < 0.3:
        of_a, of_b = rng.random((m, 1)).astype(F32), rng.random(one_of(rng, (n,), (1,))).astype(F32)
        options |= {"scale_a": of_a, "scale_b": of_b}
        factor = exact(of_a) * exact(of_b)
    return finished(rng, kernels.gemm, (a, b), options, accumulated(x, y, lost, factor), (F32, F16, BF16, left))


def mixed_inputs(rng: Rng) -> Drawn:
    """Draw a GEMM with an integer B of 8 or 4 bits, with scales of columns, of groups or none."""
    bits, m, n, k = (
        one_of(rng, 8, 4),
        int(one_of(rng, *FEW)),
        extent(rng),
        int(one_of(rng, 64, 128, 128, 128, 2)) * int(rng.integers(1, 8)),
    )
    dtype, lost = one_of(rng, F16, BF16), 2.0**-18
    a, whole = drawn(rng, (m, k), dtype, False), rng.integers(-(1 << bits - 1), 1 << bits - 1, (k, n)).astype(np.int8)
    stored = whole if bits == 8 else (whole[::2] & 15 | whole[1::2] << 4).astype(np.uint8)
    b = laid(rng, stored.shape, stored.dtype, rng.random() < 0.8)
    b[...] = stored
    groups = one_of(rng, 1, 1, *(g for g in (2, 4, 8) if k % g == 0))
    scale, options = rng.random((groups, n)).astype(F32), {}
    if groups > 1 or rng.random() < 0.5:
        options["scale_b"] = scale if groups > 1 else scale[0]
        if groups > 1:  # integers times scales are rounded to the type of a
            lost = float(ml_dtypes.finfo(dtype).eps)
    else:
        scale[...] = 1.0
    right = exact(whole) * np.repeat(exact(scale), k // groups, 0)
    options["alpha"] = 0.125  # results are of f16
    return finished(rng, kernels.gemm, (a, b), options, accumulated(exact(a), right, lost, 0.125), (F32, dtype))


def groups(rng: Rng) -> Drawn:
    """Of rows that lie one after another, or of which some count; some are empty."""
    (left, right, lost), count = (
        one_of(rng, (F16, F16, 2.0**-19), (BF16, BF16, 2.0**-19), (E4M3, E5M2, 2.0**-12)),
        int(rng.integers(1, 6)),
    )
    n, k, options = extent(rng), extent(rng), {}
    rows = rng.integers(0, one_of(rng, 3, 20, 150), count)
    most, after = int(rows.max()) + 1, bool(rng.integers(2))
    ends = np.cumsum(rows)
    shape = (int(ends[-1]) + int(rng.integers(1, 5)),) if after else (count, most)
    a, b = drawn(rng, (*shape, k), left), drawn(rng, (count, k, n), right)
    options["offsets" if after else "counts"] = (ends if after else rows).astype(one_of(rng, np.int32, np.int64))
    if rng.random() < 0.5:
        options["expected_rows"] = one_of(rng, 1, 64, 200, 1024)
    x, y = exact(a), exact(b)
    if left is E4M3 and max(n, k) > 128 and rng.random() < 0.5:
        of_a, of_b = (
            rng.random(own).astype(F32) for own in ((*shape, -(-k // 128)), (count, -(-k // 128), -(-n // 128)))
        )
        options |= {"scale_a": of_a, "scale_b": of_b}
        x = x * np.repeat(exact(of_a), 128, -1)[..., :k]
        y = y * np.repeat(np.repeat(exact(of_b), 128, 1)[:, :k], 128, 2)[..., :n]
    if after:
        group = np.minimum(np.searchsorted(ends, np.arange(shape[0]), "right"), count - 1)
        found = [accumulated(x[i : i + 1], y[g], lost) for i, g in enumerate(group)]
        numbers, counts = Numbers(*map(np.concatenate, zip(*found, strict=True))), np.arange(shape[0]) < ends[-1]
    else:
        numbers, counts = accumulated(x, y, lost), np.arange(most) < rows[:, None]
    made = finished(rng, kernels.grouped_gemm, (a, b), options, numbers, (F32, BF16))
    return dataclasses.replace(made, counts=counts)


def finished(
    rng: Rng, function: Any, arrays: tuple[np.ndarray, ...], options: dict[str, Any], numbers: Numbers, types: tuple[Any, ...]
) -> Drawn:  # fmt: skip
    """With what follows, and results of some types; integers that stay what they are have neither."""
    whole, row_sum = arrays[0].dtype == np.int8, None
    if whole and "scale_a" not in options:
        return Drawn(function, arrays, options, [numbers])
    wanted = followed(rng, numbers, options, function is kernels.gemm)
    kinds = [F32 if kind is np.int8 else kind for kind in (one_of(rng, *types) for _ in wanted)]
    kinds = [
        kind if abs(x.value).max(initial=0) < float(ml_dtypes.finfo(kind).max) / 2 else F32
        for kind, x in zip(kinds, wanted, strict=True)
    ]
    outs = [
        laid(rng, x.value.shape, kind, function is kernels.gemm and rng.random() < 0.2)
        for kind, x in zip(kinds, wanted, strict=True)
    ]
    options["out"] = outs[0] if len(outs) == 1 else tuple(outs)
    if function is kernels.gemm and rng.random() < 0.15:
        options["row_reduction"] = "squares"
        value, off = wanted[0]
        row_sum = Numbers((value**2).sum(-1), (2 * abs(value) * off + off**2 + 2.0**-20 * value**2).sum(-1))
    return Drawn(function, arrays, options, wanted, row_sum)


KINDS = {f.__name__: f for f in (gemms, mixed_inputs, groups)}


# --- configs -----------------------------------------------------------------------------------------------------------


def larger(rng: Rng, problem: Any) -> Any:
    """A problem of the same kind, whose rows are few or many."""
    count, m = problem.b.shape[0], int(one_of(rng, *FEW, *FEW, *LARGE))
    n, k = int(one_of(rng, *LARGE)), int(one_of(rng, *LARGE))
    depth, deep = k // 128, k // 2 if problem.int4 else k

    def like(x: Any, *shape: int) -> Any:
        return TensorLayout.dense(x.dtype, count, *shape)

    options: dict[str, Any] = (
        {"contiguous": False, "expected_rows": m} if isinstance(problem, GroupedGemmProblem) else {}
    )
    return dataclasses.replace(
        problem, a=like(problem.a, m, k), b=TensorLayout(problem.b.dtype, (count, deep, n), (deep * n, 1, deep)), out=like(problem.out, m, n),
        epilogue_inputs=tuple(like(x, m, n) for x in problem.epilogue_inputs), extra_outs=tuple(like(x, m, n) for x in problem.extra_outs),
        block_scales=tuple(like(x, *shape) for x, shape in zip(problem.block_scales, ((m, depth), (depth, -(-n // 128))), strict=False)),
        group_scales=None if problem.group_scales is None else like(problem.group_scales, depth, n), **options,
    )  # fmt: skip


def offered(kind: registry.Registry, problem: Any) -> list[Any]:
    """Configs of a problem, the most promising first; all of them work."""
    found = kind.choices(problem, H200)
    for choice in found:
        choice.implementation.check(problem, choice.config, H200)
    assert kind.choose(problem, H200).config in [choice.config for choice in found]
    return [choice.config for choice in found]


def config_of(rng: Rng, kind: registry.Registry, problem: Any) -> Any:
    """One of the configs offered for a problem, or for a larger one if it works for this one; all kinds of configs are as likely."""
    own, others = offered(kind, problem), offered(kind, larger(rng, problem))
    others = [config for config in others if not kind.validate(problem, config, H200)]
    kinds: dict[Any, list[Any]] = {}
    for config in others if others and rng.random() < 0.6 else own:
        flags = (getattr(config, name, False) for name in ("pingpong", "swap_ab", "transpose_out"))
        counts = (getattr(config, name, 1) > 1 for name in ("split_k_cluster", "split_k"))
        kinds.setdefault((type(config), *flags, *counts), []).append(config)
    return one_of(rng, *one_of(rng, *kinds.values()))


# --- one attempt -----------------------------------------------------------------------------------------------------


def near(got: np.ndarray, wanted: Numbers, counts: np.ndarray | None) -> None:
    """Within what it may be off by and half a step of its type, where rows count."""
    step, least = (
        (0.0, 0.0)
        if np.dtype(got.dtype).kind in "iu"
        else (float(ml_dtypes.finfo(got.dtype).eps), float(ml_dtypes.finfo(got.dtype).smallest_normal))
    )
    allowed = wanted.off + 0.51 * step * (abs(wanted.value) + wanted.off) + least
    wrong = ~(abs(exact(got) - wanted.value) <= allowed)
    if counts is not None:
        wrong &= counts[..., None]
    if wrong.any():
        place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        told = f"{exact(got)[place]}, not {wanted.value[place]} within {allowed[place]}"
        raise AssertionError(f"{wrong.sum()} of {wrong.size}; at {place} {told}")


def untouched(out: np.ndarray) -> bool:
    """Whether what is around a result is as it was; the result is lost."""
    out[...] = BESIDE
    whole = out
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return bool((whole == whole.dtype.type(BESIDE)).all())


def attempt(name: str, seed: int) -> None:
    """One problem, on the CPU target; blocks have one tile after the other."""
    rng = np.random.default_rng([seed, *name.encode()])
    with np.errstate(all="ignore"), kiln.target("cpu"):
        made = KINDS[name](rng)
        with registry.collecting_problems() as asked:
            made.function(*made.arrays, **made.options)
        config, count = config_of(rng, *asked[0]), one_of(rng, 1, 2, 66)
        with mock.patch.object(devices, "max_active_clusters", lambda size: count):
            runs = []
            for _ in range(2):
                found = made.function(*made.arrays, **made.options, config=config)
                results = list(found) if isinstance(found, tuple) else [found]
                runs.append([x.tobytes() for x in results])
        if made.counts is None:
            assert runs[0] == runs[1], f"other bits the second time, by {config}"
        try:
            if made.row_sum is not None:
                near(results.pop(), made.row_sum, None)
            for got, wanted in zip(results, made.wanted, strict=True):
                near(got, wanted, made.counts)
                assert "out" not in made.options or untouched(got), "what is around the result was written"
        except AssertionError as wrong:
            raise AssertionError(f"{wrong}; by {config}") from None


if __name__ == "__main__":
    search(attempt, KINDS)
