"""Files of units, and the kernels that measure them."""

from __future__ import annotations

import re

import pytest

from kiln import DSLRuntimeError, cute
from kiln.base_dsl.target import target
from kiln.clock import known, units
from kiln.clock.calibration import instructions, wgmma
from kiln.clock.rates import Rates, sustained_mhz, tensor_mhz
from kiln.clock.units import Quantity, Units
from kiln.hardware import devices, sass, toolchain
from kiln.hardware.architectures import Arch


def test_a_file_keeps_quantities():
    made = Units(
        "H200",
        1305.0,
        "2026-11-19",
        {"wgmma n64": Quantity(32.8, 32.5, 33.0, "cycles"), "b": Quantity(1, 1, 2, "ns", "x")},
    )
    again = units.loads(made.dumps())
    assert again == made and again["wgmma n64"].source == units.MEASURED
    assert again.matching(r"wgmma n(\d+)") == {("64",): made["wgmma n64"]}
    assert made.dumps().count("\n") == 4


def test_what_is_wrong_in_a_file_is_said():
    with pytest.raises(DSLRuntimeError, match="kiln.units/1"):
        units.loads('{"format": "kiln.units/0"}')
    with pytest.raises(DSLRuntimeError, match="does not lie in"):
        Quantity(3.0, 1.0, 2.0, "ns")
    with pytest.raises(DSLRuntimeError, match="have no 'tma'"):
        Units("H200", 1305.0, "2026-11-19", {})["tma"]


OPCODES = {
    "ffma": "FFMA",
    "mufu.ex2": "MUFU.EX2",
    "shfl": "SHFL",
    "lds.128": "LDS.128",
    "ldsm.x4": "LDSM",
    "hmma.16816.f16": "HMMA",
}


@pytest.mark.skipif(not (toolchain.find("ptxas") and toolchain.find("nvdisasm")), reason="needs ptxas and nvdisasm")
def test_ptxas_keeps_what_is_measured():
    """An instruction that is not there would be measured as very fast."""
    chosen = [row for row in instructions.sections() if row[0] in OPCODES]
    assert len(chosen) == len(OPCODES)
    with target("nvidia"):
        results = cute.make_ptr(cute.Int64, 256, cute.AddressSpace.gmem, assumed_align=16)
        for chains in (1, instructions.CHAINS):
            kernel = instructions.Sections(
                [instructions.Section(name, ptx, chains, stride) for name, ptx, stride in chosen]
            )
            compiled = cute.compile(kernel, results, 1, 32, 1, 0, options="--gpu-arch sm_90a --keep-sass")
            (code,) = sass.kernels(compiled.__sass__).values()
            names = [one.name for one in code.instructions]
            for opcode in OPCODES.values():
                assert sum(name.startswith(opcode) for name in names) >= instructions.UNROLLED, opcode
        groups = (wgmma.Group(4, 1), wgmma.Group(16, 1, 4))
        compiled = cute.compile(
            wgmma.Groups(wgmma.Kind(n=64), groups), results, 1, 1, 0, options="--gpu-arch sm_90a --keep-sass"
        )
        assert len(re.findall(r"HGMMA\.64x64x16", compiled.__sass__)) == 20


def test_the_units_of_an_h200():
    """WGMMA takes N / 2 cycles from N 64 on; rates follow from the file."""
    h200 = units.of("H200")
    model = devices.model_of("H200")
    assert model is not None
    rates = Rates.measured(h200, model, 1305.0, 132)
    assert [round(rates.mma(n)) for n in (64, 72, 128, 256)] == [32, 36, 64, 128]
    assert round(rates.mma_latency) == 72 and rates.wake < rates.arrive
    assert 0.9 < rates.mma_stolen < 1.1  # an instruction of the FMA pipe takes a cycle of the tensor core
    fast, few = Rates.measured(h200, model, 1980.0, 132), Rates.measured(h200, model, 1305.0, 4)
    assert fast.l2_bytes < rates.l2_bytes < few.l2_bytes and fast.dram_latency > rates.dram_latency
    assert tensor_mhz(h200, model, 1305.0) < 1230 < 1700 < tensor_mhz(h200, model, 1980.0) < 1980
    assert sustained_mhz(h200, model, 1.0) < sustained_mhz(h200, model, 0.3) < sustained_mhz(h200, model, 0.0) == 1980
    with pytest.raises(DSLRuntimeError, match="no units of H300"):
        units.of("H300")


def test_a_gpu_stands_for_its_own_compute_capability():
    names = ("sm_90a", "sm_100a", "sm_103a", "sm_107a")
    assert [known.device_of(Arch[name]) for name in names] == ["H200", "B200", None, None]
