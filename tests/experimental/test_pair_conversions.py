"""Conversions of two floats to a narrow format in one word."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute import arch
from kiln.experimental import primitives as prims

FORMATS = {
    "f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16, "e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2,
    "e2m3x2": ml_dtypes.float6_e2m3fn, "e3m2x2": ml_dtypes.float6_e3m2fn, "e2m1x2": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
KINDS = tuple(FORMATS)


@cute.kernel
def of_pairs(x: cute.Tensor, out: cute.Tensor):
    t = arch.thread_idx()[0] + 256 * arch.block_idx()[0]
    low = x[2 * t]
    high = x[2 * t + 1]
    for n, kind in enumerate(KINDS):
        member = prims.CVTPackFloat[kind.upper()]
        out[n, t] = prims.cvt_packfloat_f32(
            high, low, 0x12345678, member, rnd=prims.FPRoundingMode.RN, sat=prims.SaturationModeKind.SATFINITE
        )
    out[7, t] = prims.cvt_packfloat_f32(high, low, 0x12345678, "e4m3x2", extract_hi=True)
    out[8, t] = prims.cvt_packfloat_f32(high, low, 0, "bf16x2", rnd=prims.FPRoundingMode.RZ)
    out[9, t] = prims.cvt_packfloat_f32(high, low, 0, "f16x2", relu=True)
    out[10, t] = prims.cvt_packfloat_f32(high, low, 0, prims.CVTPackFloat.UE8M0X2, rnd="rp", sat="satfinite")

    two = prims.cvt_packfloat_f32(high, low, 0, prims.CVTPackFloat.BF16X2)
    out[11, t] = prims.mul_bf16x2(two, two)
    x2, y2 = (low, high), (high, high)
    sums = prims.add_packed_f32x2(prims.mul_packed_f32x2(x2, y2), prims.sub_packed_f32x2(x2, y2), rnd="rz")
    first, second = prims.fma_packed_f32x2(x2, y2, sums, ftz=True)
    out[12, t] = prims.mov_b32(first)
    out[13, t] = prims.mov_b32(second)
    # pairs of 8 bits in f16x2 again, from the lower and the upper half
    eights = prims.cvt_packfloat_f32(high, low, 0x12340000, "e5m2x2")
    out[14, t] = prims.cvt_packfloat(eights, 0, "e5m2x2", "f16x2")
    out[15, t] = prims.cvt_packfloat(eights << 16, 0, prims.CVTPackFloat.E5M2X2, "f16x2", extract_hi=True)


@cute.jit
def pairs(x: cute.Tensor, out: cute.Tensor):
    of_pairs(x, out).launch(grid=x.shape[0] // 512, block=256)


def numbers():
    """Return 2048 numbers: of all exponents near those of the formats, ties between their neighbours, and special ones."""
    random = np.random.default_rng(3)
    x = (random.uniform(-1, 1, 2048) * 2.0 ** random.integers(-30, 18, 2048)).astype(np.float32)
    for n, kind in enumerate(FORMATS.values()):
        finite = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        near = np.sort(finite[np.isfinite(finite)].astype(kind).astype(np.float32))
        ties = (near[1:] + near[:-1]) / 2
        x[200 * n : 200 * n + 200] = ties[np.isfinite(ties)][:200]
    x[-12:] = [0.0, -0.0, 1e-40, -1e-40, 448, 464, 465, -480, 57344, 1e9, -1e38, 65520]
    return x


def nearest(x, kind):
    """Return numbers rounded to a format, to nearest even, the finite number of the largest magnitude at most."""
    largest = float(ml_dtypes.finfo(kind).max)
    return np.clip(x, -largest, largest).astype(kind)


def test_pairs_are_rounded_once():
    x = numbers()
    out = np.zeros((16, 1024), np.int32)
    with kiln.target("cpu"):
        pairs(x, out)
    out = out.view(np.uint32)
    for n, (name, kind) in enumerate(FORMATS.items()):
        codes = nearest(x, kind).view(np.uint16 if name.startswith(("f", "b")) else np.uint8).astype(np.uint32)
        bits = {"f": 16, "b": 16}.get(name[0], 4 if name == "e2m1x2" else 8)
        joined = codes[::2] | codes[1::2] << bits
        np.testing.assert_array_equal(out[n], joined if bits == 16 else 0x12340000 | joined, name)
        if name == "e4m3x2":
            np.testing.assert_array_equal(out[7], joined << 16 | 0x5678)
    dropped = x.view(np.uint32) >> 16
    np.testing.assert_array_equal(out[8], dropped[::2] | dropped[1::2] << 16)
    with np.errstate(over="ignore"):
        halves = np.maximum(x.astype(np.float16), np.float16(0)).view(np.uint16).astype(np.uint32) & 0x7FFF
    np.testing.assert_array_equal(out[9] & 0x7FFF7FFF, halves[::2] | halves[1::2] << 16)
    powers = np.clip(np.ceil(np.log2(np.maximum(np.abs(x.astype(np.float64)), 2.0**-127))) + 127, 0, 254).astype(
        np.uint32
    )
    np.testing.assert_array_equal(out[10], powers[::2] | powers[1::2] << 8)
    rounded = x.astype(ml_dtypes.bfloat16)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (rounded * rounded).view(np.uint16).astype(np.uint32)
    np.testing.assert_array_equal(out[11], squares[::2] | squares[1::2] << 16)
    eights = nearest(x, ml_dtypes.float8_e5m2).astype(np.float16).view(np.uint16).astype(np.uint32)
    for n in (14, 15):
        np.testing.assert_array_equal(out[n], eights[::2] | eights[1::2] << 16)
    assert (out[12:14] != 0).mean() > 0.9  # tests/targets/cpu/ptx/test_ptx_rounding.py compares the numbers


@needs_ptxas
def test_gpus_convert_them():
    text = compile_for(pairs, numbers(), np.zeros((16, 1024), np.int32), arch="sm_100a").__ptx__
    for kind in KINDS:
        assert f"cvt.rn.satfinite.{kind}.f32" in text
    for part in ("cvt.rz.bf16x2.f32", "cvt.rn.relu.f16x2.f32", "cvt.rp.satfinite.ue8m0x2.f32"):
        assert part in text


@pytest.mark.parametrize(
    ("match", "operands"),
    [
        ("kind is 'e9m9x2'", {"kind": "e9m9x2"}),
        ("to e4m3x2 rounded by rz", {"kind": "e4m3x2", "rnd": prims.FPRoundingMode.RZ}),
        ("to f16x2 rounded by rm", {"kind": "f16x2", "rnd": "rm"}),
        ("rnd is 'up'", {"kind": "f16x2", "rnd": "up"}),
        ("ue8m0x2 with relu", {"kind": "ue8m0x2", "relu": True}),
        ("sat is 'yes'", {"kind": "f16x2", "sat": "yes"}),
    ],
)
def test_conversions_that_do_not_exist_are_refused(match, operands):
    @cute.kernel
    def kernel():
        prims.cvt_packfloat_f32(1.0, 2.0, 0, **operands)

    @cute.jit
    def main():
        kernel().launch(grid=1, block=1)

    with kiln.target("cpu"), pytest.raises(DSLBaseError, match=match):
        main()


def test_widening_that_does_not_exist_is_refused():
    def refused(call, match):
        @cute.kernel
        def kernel():
            call()

        @cute.jit
        def main():
            kernel().launch(grid=1, block=1)

        with kiln.target("cpu"), pytest.raises(DSLBaseError, match=match):
            main()

    refused(lambda: prims.cvt_packfloat(1, 0, "e5m2x2", "bf16x2"), "from e5m2x2 to bf16x2")
    refused(lambda: prims.cvt_packfloat(1, 0, "f16x2", "f16x2"), "from f16x2 to f16x2")
    refused(lambda: prims.cvt_packfloat(1, 0, "ue8m0x2", "bf16x2", relu=True), "ue8m0x2 with relu")
