"""Machine code of the GEMM with tcgen05, for GPUs that are not there: registers, tensor memory, and instructions by role."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nvidia_testing import needs_nvdisasm

from kiln import kernels
from kiln.hardware.sass import Code, Loop, registers
from kiln.hardware.sass import kernels as kernels_of
from kiln.testing import dry_run

F16, BF16, F32, E4M3 = np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn
SIZE = 4096
PAIR = kernels.Sm100GemmConfig()
TWO = kernels.Sm100GemmConfig((512, 256, 64), (2, 1), 4, 1, 2)
ONE = kernels.Sm100GemmConfig((128, 128, 64), (1, 1), 5, 2, 2, pair=False)
FEW = kernels.Sm100GemmConfig((128, 64, 64), (1, 1), 6, 2, 2, pair=False, swap_ab=True)
FP8 = dataclasses.replace(PAIR, tile_shape_mnk=(256, 256, 128), ab_stages=5)
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "f16, pair": (F16, PAIR, {}),
    "bf16, everything": (BF16, dataclasses.replace(PAIR, ab_stages=5), {"c": F32, "bias": BF16, "activation": "gelu"}),
    "f16, two accumulators": (F16, TWO, {}),
    "f16, few rows": (F16, FEW, {"rows": 64}),
    "e4m3, cluster launch control": (E4M3, dataclasses.replace(FP8, dynamic=True), {"out": BF16}),
    "f16, one CTA": (F16, ONE, {}),
    "f16, clusters": (F16, dataclasses.replace(PAIR, cluster_shape_mn=(4, 2)), {}),
    "i8": (np.int8, dataclasses.replace(FP8, ab_stages=4), {"out": np.int32}),
    "tf32": (F32, dataclasses.replace(PAIR, tile_shape_mnk=(256, 256, 32), ab_stages=5), {"precision": "tf32"}),
    "bf16, two results, rows": (BF16, dataclasses.replace(PAIR, ab_stages=4), {"two": True}),
    "f16, two accumulators, everything": (F16, dataclasses.replace(TWO, dynamic=True), {"c": F16, "bias": F32, "activation": "silu"}),
    "mxfp8, pair": (E4M3, dataclasses.replace(FP8, acc_stages=1, ab_stages=4), {"scales": ml_dtypes.float8_e8m0fnu}),
    "mxfp8, one CTA": (E4M3, dataclasses.replace(ONE, tile_shape_mnk=(128, 128, 128), dynamic=True), {"scales": ml_dtypes.float8_e8m0fnu}),
    "mxfp8, split-K": (E4M3, dataclasses.replace(FP8, acc_stages=1, ab_stages=4, split_k=3), {"scales": ml_dtypes.float8_e8m0fnu}),
    "nvfp4, pair": (np.uint8, dataclasses.replace(FP8, tile_shape_mnk=(256, 256, 256), acc_stages=1, ab_stages=4), {"scales": ml_dtypes.float8_e4m3fn}),
    "f16, groups": (F16, PAIR, {"groups": 8}),
    "f16, groups, everything": (F16, TWO, {"groups": 8, "activation": "gelu"}),
    "e4m3, groups of few rows": (E4M3, dataclasses.replace(FEW, tile_shape_mnk=(128, 32, 128), ab_stages=8), {"groups": 64, "out": BF16}),
    "mxfp8, groups": (E4M3, dataclasses.replace(FP8, acc_stages=1, ab_stages=4), {"groups": 8, "scales": ml_dtypes.float8_e8m0fnu}),
    "nvfp4, groups": (np.uint8, dataclasses.replace(FP8, tile_shape_mnk=(256, 128, 256), ab_stages=4), {"groups": 8, "scales": ml_dtypes.float8_e4m3fn}),
    "f16, columns": (F16, dataclasses.replace(PAIR, dynamic=True), {"layout": "TN"}),
}  # fmt: skip
MMA = re.compile("UTC[HQIO]MMA")


@functools.lru_cache(maxsize=4)
def compiled(name: str, arch: str) -> tuple[Any, Code]:
    """What ptxas made of a call, and its machine code."""
    dtype, config, options = CASES[name]
    given = {key: value for key, value in options.items() if key in ("activation", "precision")}
    rows = options.get("rows", SIZE)
    if "c" in options:
        given["c"] = np.zeros((rows, SIZE), options["c"])
    if "bias" in options:
        given["bias"] = np.zeros(SIZE, options["bias"])
    if "out" in options:
        given["out_dtype"] = np.dtype(options["out"])
    if "two" in options:
        given |= {"epilogue": lambda value: (value, value * 0.5), "out_dtype": (BF16, BF16), "row_reduction": "squares"}
    a, b = np.zeros((rows, SIZE), dtype), np.zeros((SIZE, SIZE), dtype).T
    if "scales" in options:
        vectors = SIZE // 32 if dtype is not np.uint8 else 2 * SIZE // 16  # of as many bytes of K
        scales = np.zeros((SIZE, vectors), options["scales"])
        given |= {"scale_a": scales, "scale_b": scales.T}
    if groups := options.get("groups"):  # B, and its scale factors, are those of all groups
        b = np.broadcast_to(b, (groups, *b.shape))
        given["offsets"] = np.zeros(groups, np.int32)
        if "scales" in options:
            given["scale_b"] = np.broadcast_to(scales.T, (groups, *scales.T.shape))
    if options.get("layout") == "TN":
        a, b = b, a
    with dry_run(arch) as launches:
        (kernels.grouped_gemm if groups else kernels.gemm)(a, b, config=config, **given)
    launch = next(one for one in launches if one.kernel.startswith("Sm100"))
    (code,) = kernels_of(launch.artifacts["sass"]).values()
    return launch, code


def innermost(code: Code, name: re.Pattern[str]) -> list[Loop]:
    """The innermost loops with an instruction."""
    found: list[Loop] = []
    taken: set[int] = set()
    for loop in sorted(code.loops(), key=lambda loop: len(loop.instructions)):
        places = {one.address for one in loop.instructions if name.match(one.name)}
        if places - taken:
            found.append(loop)
            taken |= places
    return found


@pytest.mark.quick(3)
@needs_nvdisasm
@pytest.mark.parametrize("name", CASES)
def test_roles(name):
    """Nothing is spilled; what issues copies and MMAs does little else, with all it holds in uniform registers."""
    launch, code = compiled(name, "sm_100a")
    config = CASES[name][1]
    used = launch.resources
    assert (used.stack, used.spill_stores, used.spill_loads, used.messages) == (0, 0, 0, ())
    assert used.registers <= (168 if config.accumulators > 1 else 255)
    assert launch.smem + used.static_smem <= 227 << 10
    scaled = "scales" in CASES[name][2]
    assert used.tmem_columns == (config.scaled_columns(16 if "nvfp4" in name else 32) if scaled else config.acc_columns)
    names = Counter(one.name for one in code.instructions)
    assert not [x for x in names if re.match(r"LDL|STL|BRA\.U\.ANY", x)]
    mmas = innermost(code, MMA)
    k_blocks = 4
    assert len(mmas) == config.accumulators
    for loop in mmas:
        assert loop.mmas == k_blocks
        copies = sum(one.name.startswith("UTCCP") for one in loop.instructions)  # of scale factors, 128 rows each
        blocks = 4 if "nvfp4" in name else 1  # of four scale factors of a row
        assert copies == (blocks * (1 + config.tile_shape_mnk[1] // 128) if scaled else 0)
        assert len(loop.instructions) <= 12 * k_blocks + 4 * copies
        assert sum(one.name.startswith("UTCBAR") for one in loop.instructions) == 1
        assert not [one for one in loop.instructions if one.name.startswith("R2UR")]
        assert all((".2CTA" in one.name) == config.pair for one in loop.instructions if MMA.match(one.name))
    (loads,) = innermost(code, re.compile("UTMALDG"))
    boxes = 2 if CASES[name][2].get("layout") == "TN" else 1  # of 64 neighbours along M or N, of 128
    assert (
        sum(one.name.startswith("UTMALDG") for one in loads.instructions)
        == boxes * (1 + config.accumulators) + 2 * scaled
    )
    assert not [one for one in loads.instructions if one.name.startswith("R2UR")]
    for loop in (*mmas, loads):
        assert len({number for one in loop.instructions for number in registers(one.operands)}) <= 8


@needs_nvdisasm
@pytest.mark.parametrize("name", ["f16, pair", "f16, few rows"])
def test_the_epilogue(name):
    """Of 128 x 256 accumulators: loads of 32 columns, a conversion for two, a store of 16 bytes for eight; of transposed
    results matrices. The rest is the tile's place, and one warp's TMA stores."""
    _, code = compiled(name, "sm_100a")
    (epilogue,) = [loop for loop in innermost(code, re.compile("LDTM")) if loop.depth == 0]
    names = Counter(one.name.partition(".")[0] for one in epilogue.instructions)
    loads = {one.name for one in epilogue.instructions if one.name.startswith("LDTM")}
    if name == "f16, pair":
        assert loads == {"LDTM.x32"}
        assert (names["LDTM"], names["F2FP"], names["STS"], names["UTMASTG"]) == (8, 128, 32, 8)
        assert len(epilogue.instructions) <= 355
    else:
        assert loads == {"LDTM.16dp256bit.x4"}
        assert (names["F2FP"], names["STSM"]) == (32, 8)
        assert len(epilogue.instructions) <= 140
    assert names["R2UR"] <= 1


@pytest.mark.quick(1)
@needs_nvdisasm
@pytest.mark.parametrize("name", [name for name in CASES if name != "i8"])
@pytest.mark.parametrize("arch", ["sm_103a", "sm_110a"])
def test_other_chips_with_tensor_memory(name, arch):
    """ptxas makes the same of it."""
    launch, code = compiled(name, arch)
    used = launch.resources
    assert (used.stack, used.spill_stores, used.spill_loads, used.messages) == (0, 0, 0, ())
    assert len(innermost(code, MMA)) == CASES[name][1].accumulators
