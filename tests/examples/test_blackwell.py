"""The programs of `examples/blackwell`: results on the CPU target, and machine code for sm_100a."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from blackwell_examples import SIZES, case, check_results
from nvidia_testing import compile_for, needs_nvdisasm, needs_ptxas

import kiln
from kiln.base_dsl.diagnostics import DSLArchitectureError
from kiln.hardware.sass import kernels, registers
from kiln.interop.aot import read_metadata

FIRST = (
    "step_6_clc", "step_1_mma", "step_2_pipeline", "MXFP8", "step_3_roles", "step_4_persistent", "attention",
    "step_5_pairs", "NVFP4",
)  # fmt: skip
"""All of them, in an order of which every third has most kinds of instructions: those run in the quick stage."""


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", SIZES)
def test_results(name: str):
    with kiln.target("cpu"):
        check_results(name)


def test_results_in_tensors_of_pytorch():
    """The arguments that `tests/gpu/test_gpu_blackwell.py` passes."""
    pytest.importorskip("torch")
    with kiln.target("cpu"):
        check_results("MXFP8", "cpu")


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", FIRST)
def test_clean_under_the_sanitizer(name: str):
    example = case(name)
    with kiln.target("cpu"), kiln.sanitize():
        example.function(*example.arguments)
    assert example.error() < 1


TILE_OF_FOUR = {"UTCHMMA": 4, "UTCBAR": 2, "UTMALDG.2D": 2}
"""A loop over tiles of K with four MMAs in each: the release of the tile, and the commit of the accumulator."""
STORES = {"LDTM.x32": 8, "UTMASTG.2D": 8}
"""256 columns of an accumulator in epilogue tiles of 32, stored by TMA."""
PAIRS = {
    "UTCHMMA.2CTA": 4, "UTCBAR.2CTA.MULTICAST": 2, "UTMALDG.2D.2CTA": 1, "UTMALDG.2D.MULTICAST.2CTA": 1, **STORES,
}  # fmt: skip
SASS: dict[str, dict[str, int]] = {
    "step_1_mma": {**TILE_OF_FOUR, "UTCBAR": 1, "LDTM.x32": 4},
    "step_2_pipeline": {**TILE_OF_FOUR, "UTMALDG.2D": 4, "LDTM.x32": 8},
    "step_3_roles": {**TILE_OF_FOUR, **STORES},
    "step_4_persistent": {**TILE_OF_FOUR, **STORES},
    "step_5_pairs": PAIRS,
    "step_6_clc": {**PAIRS, "UGETNEXTWORKID.BROADCAST": 1},
    "NVFP4": {"UTCOMMA.4X": 4, "UTCCP.T.S.4x32dp128bit": 8, "UTCBAR": 2, "LDTM.x32": 4, "UTMALDG.2D": 2, "UTMALDG.3D": 2},
    "MXFP8": {"UTCQMMA": 4, "UTCCP.T.S.4x32dp128bit": 2, "UTCBAR": 2, "LDTM.x32": 4, "UTMALDG.2D": 2, "UTMALDG.3D": 2},
    "attention": {"UTCHMMA": 12, "UTCBAR": 5, "LDTM.x32": 8, "STTM.x16": 4, "STTM.x32": 2, "UTMALDG.3D": 3},
}  # fmt: skip
_MMA = re.compile(r"UTC[HQIO]MMA")
_ISSUED = (_MMA, re.compile("UTMALDG"))
COLUMNS = {"step_1_mma": 128, "step_2_pipeline": 256, "step_3_roles": 256, "NVFP4": 256, "MXFP8": 256}
"""Columns of tensor memory, where they are not all 512."""
REGISTERS = {"attention": 176}
"""Registers of a thread, where they are more than 80: softmax warps hold a row of 128 scores."""
_COUNTED = re.compile(r"UTC[HQIO]MMA|UTCBAR|UTCCP|LDTM|STTM|UTMALDG|UTMASTG|UGETNEXTWORKID")


@pytest.mark.quick(2)
@needs_nvdisasm
@pytest.mark.parametrize("name", FIRST)
def test_machine_code(name: str):
    """The instructions are those that the program says, one thread issues them without a loop over lanes around them,
    and no register is spilled."""
    example = case(name)
    made = compile_for(example.function, *example.arguments, arch="sm_100a")
    (code,) = kernels(made.executable.artifacts["sass"]).values()
    names = Counter(one.name for one in code.instructions)
    assert {x: n for x, n in names.items() if _COUNTED.match(x)} == SASS[name]
    assert not [x for x in names if x.startswith("BRA.U.ANY")]
    with_mmas = [loop for loop in code.loops() if any(_MMA.match(one.name) for one in loop.instructions)]
    if with_mmas:  # descriptors are in uniform registers before the loop, and are advanced there
        innermost = min(with_mmas, key=lambda loop: len(loop.instructions))
        assert not [one for one in innermost.instructions if one.name.startswith("R2UR")]
    for pattern in _ISSUED:  # the roles of MMAs and of loads: all they hold is the same in a warp, in uniform registers
        loops = [loop for loop in code.loops() if any(pattern.match(one.name) for one in loop.instructions)]
        inner = min(loops, key=lambda loop: len(loop.instructions)).instructions if loops else ()
        assert not {number for one in inner for number in registers(one.operands) if number > 7}
    (used,) = made.executable.resources.values()
    assert (used.stack, used.spill_stores, used.spill_loads, used.messages) == (0, 0, 0, ())
    assert used.smem <= 227 * 1024 and used.tmem_columns == COLUMNS.get(name, 512)
    assert used.registers <= REGISTERS.get(name, 80)
    for load in re.findall(r"cp\.async\.bulk\.tensor\S+", made.artifacts["ptx"]):
        alone = ".multicast" not in load and ".cta_group" not in load
        assert ".shared::cta" in load if alone else ".shared::cluster" in load
        assert ".L2::cache_hint" in load


@pytest.mark.quick(0)
@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_100f", "sm_103a", "sm_110a"])
@pytest.mark.parametrize("name", SIZES)
def test_other_chips_with_tensor_memory(name: str, arch: str):
    """ptxas takes the programs for all chips with tcgen05."""
    example = case(name)
    assert compile_for(example.function, *example.arguments, arch=arch).artifacts["ptx"]


def test_a_geforce_gpu_is_refused_for_its_tensor_cores():
    """Its shared memory is too small for this kernel, too, but a smaller tile would not help."""
    example = case("step_2_pipeline")
    with pytest.raises(
        DSLArchitectureError, match="sm_120 has no tcgen05 and no tensor memory, but mma.sync with block"
    ):
        compile_for(example.function, *example.arguments, arch="sm_120a")


@needs_ptxas
def test_export_for_several_chips(tmp_path: Path):
    """One file has code for the family of sm_100 and for Thor, and a chip without tcgen05 is refused."""
    example = case("step_1_mma")
    path, *_ = kiln.export(example.function, *example.arguments, to=tmp_path / "gemm.o", archs=("sm_100f", "sm_110a"))
    (about,) = read_metadata(str(path)).values()
    assert about["architectures"] == ["sm_100f", "sm_110a"]
    with pytest.raises(DSLArchitectureError, match="tcgen05 needs sm_100a, .*: sm_120 has no tcgen05"):
        kiln.export(example.function, *example.arguments, to=tmp_path / "other.o", archs=("sm_120a",))
