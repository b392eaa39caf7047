# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Functions on a GPU against f64: the stated errors, and narrow types."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kiln
import kiln.cute as cute
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")

COUNT = 1 << 18


def apply(name, x):
    """A function of `cute.math`, element by element."""
    function = getattr(cute.math, name)

    @cute.kernel
    def kernel(source: cute.Tensor, target: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        b, _, _ = cute.arch.block_idx()
        i = b * 256 + t
        target[None, i] = function(source[None, i].load())

    @cute.jit
    def run(source: cute.Tensor, target: cute.Tensor):
        layout = cute.make_layout((4, COUNT // 4), stride=(1, 4))
        views = [cute.make_tensor(t.iterator, layout) for t in (source, target)]
        kernel(*views).launch(grid=(COUNT // 1024, 1, 1), block=(256, 1, 1))

    result = torch.full_like(x, 123.0)
    run(from_dlpack(x), from_dlpack(result))
    return result


def ulps(got, want):
    """The largest error in units of the last place of the exact result."""
    rounded = want.to(torch.float32)
    special = ~torch.isfinite(rounded)
    assert torch.equal(torch.isnan(got), torch.isnan(rounded))
    assert torch.equal(got[special & ~torch.isnan(rounded)], rounded[special & ~torch.isnan(rounded)])
    got, want, rounded = got[~special], want[~special], rounded[~special]
    exponent = torch.frexp(rounded.abs().clamp(min=2.0**-126))[1]
    return ((got.double() - want).abs() / torch.ldexp(torch.ones_like(want), exponent - 24)).max().item()


@pytest.mark.parametrize(
    ("name", "low", "high", "bound"),
    [
        ("exp", -104, 89, 1.0), ("exp2", -149, 128, 2.5), ("log", 0, 3e38, 1.0), ("log2", 0, 3e38, 2.0),
        ("log10", 0, 3e38, 2.0), ("sin", -1e5, 1e5, 2.0), ("cos", -1e5, 1e5, 2.0), ("tan", -1e4, 1e4, 4.0),
        ("tanh", -12, 12, 2.0), ("rsqrt", 1e-38, 3e38, 2.0), ("sqrt", 0, 3e38, 0.5), ("erf", -5, 5, 2.0),
        ("atan", -1e6, 1e6, 3.0), ("asin", -1, 1, 3.0), ("acos", -1, 1, 4.0),
    ],
)  # fmt: skip
def test_errors(name, low, high, bound):
    generator = torch.Generator(device="cuda").manual_seed(1)
    x = torch.rand(COUNT, device="cuda", generator=generator, dtype=torch.float64) * (high - low) + low
    small = torch.exp2(-140 * torch.rand(COUNT // 4, device="cuda", generator=generator, dtype=torch.float64)) * max(
        abs(low), abs(high)
    )
    x[: COUNT // 4] = (
        small if low >= 0 else small * torch.where(torch.arange(COUNT // 4, device="cuda") % 2 == 0, 1, -1)
    )
    x = x.clamp(low, high).to(torch.float32)
    x[-8:] = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e-45])
    error = ulps(apply(name, x), getattr(torch, name)(x.double()))
    print(f"{name}: {error:.2f} ulp")
    assert error <= bound


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["exp", "sin", "tanh", "log2"])
def test_narrow_types_are_rounded_once(name, dtype):
    x = torch.randn(COUNT, device="cuda").to(dtype)
    got, want = apply(name, x), getattr(torch, name)(x.double()).to(dtype)
    same = torch.isnan(want) | (got == want)
    # f32 results within 2 ulp round differently only next to the middle of two numbers
    assert same.float().mean().item() > 0.999


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double")
@pytest.mark.parametrize(
    ("name", "low", "high", "bound"),
    [
        ("exp", -745, 709, 1.0), ("exp2", -1074, 1023, 1.0), ("expm1", -60, 709, 1.5), ("log", 0, 1e300, 1.0),
        ("log2", 0, 1e300, 0.51), ("log10", 0, 1e300, 0.51), ("log1p", -1, 1e10, 1.5), ("sin", -1e12, 1e12, 1.0),
        ("cos", -1e12, 1e12, 1.0), ("tan", -1e12, 1e12, 2.0), ("tanh", -25, 25, 2.5), ("sinh", -700, 700, 2.5),
        ("cosh", -700, 700, 1.5), ("atan", -1e6, 1e6, 2.0), ("asin", -1, 1, 1.5), ("acos", -1, 1, 1.0),
        ("rsqrt", 0, 1e300, 0.51), ("cbrt", -1e300, 1e300, 0.51), ("asinh", -1e12, 1e12, 2.0), ("acosh", 1, 1e12, 2.5),
        ("atanh", -1, 1, 2.0), ("erf", -6, 6, 2.0), ("erfc", -6, 26, 6.0),
    ],
)  # fmt: skip
def test_doubles(name, low, high, bound):
    generator = np.random.default_rng(1)
    x = generator.uniform(low, high, COUNT)
    small = np.exp2(generator.uniform(-30, np.log2(max(abs(low), abs(high))), COUNT // 4))
    x[: COUNT // 4] = np.clip(small * generator.choice([-1, 1], COUNT // 4), low, high)
    x[-7:] = [0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 5e-324]
    got = apply(name, torch.from_numpy(x).cuda()).cpu().numpy()
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        if name == "rsqrt":
            want = 1 / np.sqrt(wide)
        elif name.startswith("erf"):  # the C library's double, itself not exact
            want = np.vectorize(getattr(math, name), otypes=[np.float64])(x)
        else:
            numpy_name = {"a" + f: "arc" + f for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh")}.get(name, name)
            want = getattr(np, numpy_name)(wide)
    rounded = want.astype(np.float64)
    special = ~np.isfinite(rounded)
    assert np.array_equal(got[special], rounded[special], equal_nan=True)
    spacing = np.spacing(np.maximum(np.abs(rounded[~special]), 2.2250738585072014e-308))
    error = float(np.max(np.abs(got[~special] - want[~special]) / spacing))
    print(f"{name}: {error:.2f} ulp")
    assert error <= bound


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("dtype", [kiln.Float8E4M3FN, kiln.Float8E5M2])
@pytest.mark.parametrize("source", [kiln.Float32, kiln.Float16])
def test_conversions_to_8_bits_are_those_of_the_cpu_target(source, dtype, lanes):
    """By one instruction for two of them, or by arithmetic: the same bits, but for those of what is no number."""
    blocks = 65536 // (256 * lanes)

    @cute.kernel
    def kernel(given: cute.Tensor, made: cute.Tensor):
        i = cute.arch.block_idx()[0] * 256 + cute.arch.thread_idx()[0]
        made[None, i] = given[None, i].load().to(source).to(dtype).bitcast(kiln.Uint8)

    @cute.jit
    def run(given: cute.Tensor, made: cute.Tensor):
        layout = cute.make_layout((lanes, blocks * 256), stride=(1, lanes))
        kernel(*(cute.make_tensor(t.iterator, layout) for t in (given, made))).launch(
            grid=(blocks, 1, 1), block=(256, 1, 1)
        )

    x = (torch.arange(65536, dtype=torch.int32) << 16).view(torch.float32)  # all of bf16
    x[::7] *= 1.0 + 3 * 2.0**-9  # and between them
    made = [torch.zeros(65536, dtype=torch.uint8, device=where) for where in ("cuda", "cpu")]
    run(from_dlpack(x.cuda()), from_dlpack(made[0]))
    with kiln.target("cpu"):
        run(from_dlpack(x), from_dlpack(made[1]))
    number, found = ~torch.isnan(x), made[0].cpu()
    assert torch.equal(found[number], made[1][number])
    done = blocks * 256 * lanes
    kind = getattr(torch, f"float8_{dtype.__name__[6:].lower()}")
    assert torch.isnan(found[:done][~number[:done]].view(kind).float()).all()


def test_a_product_and_its_rounding_error_agree():
    """Sines of angles of many turns: the whole turns are taken off the rounded product, and its error is added."""

    @cute.kernel
    def kernel(x: cute.Tensor, high: cute.Tensor, low: cute.Tensor, sine: cute.Tensor):
        i = cute.arch.block_idx()[0] * 256 + cute.arch.thread_idx()[0]
        turns = x[i] * high[i]
        error = cute.math.fma(x[i], low[i], cute.math.fma(x[i], high[i], -turns))
        whole = cute.math.fma(turns, 1.0, 12582912.0) - 12582912.0
        sine[i] = cute.math.sin(((turns - whole) + error) * (2 * math.pi), fastmath=True)

    @cute.jit
    def run(x: cute.Tensor, high: cute.Tensor, low: cute.Tensor, sine: cute.Tensor):
        kernel(x, high, low, sine).launch(grid=COUNT // 256, block=256)

    position = (2**24 - 1 - torch.arange(COUNT, device="cuda")).float()
    frequency = torch.rand(COUNT, device="cuda", dtype=torch.float64, generator=torch.Generator("cuda").manual_seed(0))
    high = (frequency / (2 * math.pi)).float()
    low = (frequency / (2 * math.pi) - high.double()).float()
    sine = torch.zeros_like(high)
    run(*map(from_dlpack, (position, high, low, sine)))
    assert (sine - (position.double() * frequency).sin()).abs().max() < 2e-6
