"""Machine code read: classes, lines, loops; and what follows for a launch."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from types import SimpleNamespace

import pytest
from rich.console import Console

from kiln.hardware import sass
from kiln.hardware.devices import device_of
from kiln.targets.nvidia.codegen import Resources
from kiln.workbench.profile.cli import _static_tables
from kiln.workbench.profile.static_profile import StaticProfile, calls_of, static_profile

CODE = r"""
.text.product:
	//## File "/a/product.py", line 3
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R8, SR_TID.X ;
        /*0020*/              @P0  BRA `(.L_x_9) ;
	//## File "/a/product.py", line 5
        /*0030*/                   LDG.E.128 R4, desc[UR4][R38.64] ;
        /*0040*/                   LDG.E R12, desc[UR4][R38.64+0x10] ;
        /*0050*/                   STL.64 [R1+0x8], R12 ;
.L_x_4:
        /*0060*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR5], R4 ;
        /*0070*/              @!P1 BRA `(.L_x_3) ;
.L_x_5:
	//## File "/a/product.py", line 8
        /*0080*/                   UTMALDG.2D [UR8], [UR4] ;
        /*0090*/                   HGMMA.64x128x16.F32 R24, gdesc[UR12], R24 ;
        /*00a0*/                   FFMA R24, R24, R25, R26 ;
        /*00b0*/                   UIADD3 UR16, UR16, -0x1, URZ ;
        /*00c0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
	//## File "/a/product.py", line 6
        /*00d0*/               @P2 BRA `(.L_x_4) ;
.L_x_9:
	//## File "/a/product.py", line 9
        /*00e0*/                   LDL R3, [R0] ;
        /*00f0*/                   STG.E desc[UR4][R38.64], R3 ;
        /*0100*/                   EXIT ;
.L_x_3:
	//## File "/a/product.py", line 7
        /*0110*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR5], R4 ;
        /*0120*/              @!P1 BRA `(.L_x_3) ;
        /*0130*/                   BRA `(.L_x_5) ;
.L_x_10:
        /*0140*/                   BRA `(.L_x_10);
        /*0150*/                   NOP;
"""


@dataclasses.dataclass
class Launch:
    kernel: str = "product"
    arch: str = "sm_90a"
    grid: tuple = (264, 1, 1)
    block: tuple = (256, 1, 1)
    cluster: tuple = (1, 1, 1)
    smem: int = 90_000
    resources: Resources = dataclasses.field(
        default_factory=lambda: Resources(registers=90, spill_stores=8, spill_loads=4, stack=16, smem=1000, barriers=1)
    )
    artifacts: dict = dataclasses.field(default_factory=lambda: {"sass": CODE})


def test_instructions_have_a_class():
    classes = {
        "HGMMA.64x8x16": "tensor", "HMMA.16816.F32": "tensor", "IMMA.16832": "tensor", "DMMA.884": "tensor", "UTCHMMA": "tensor",
        "HADD2": "fp", "FFMA": "fp", "MUFU.EX2": "fp", "F2FP.F16": "fp", "DADD": "fp", "I2FP.F32.S32": "fp",
        "IADD3": "int", "LOP3.LUT": "int", "MOV": "int", "FLO.U32": "int", "DEPBAR.LE": "barrier",
        "LDG.E.128": "global", "RED.E.ADD": "global", "LD.E": "global", "ATOMG.E": "global",
        "LDS.128": "shared", "LDSM.16.M88": "shared", "STS": "shared", "ATOMS.ADD": "shared", "STL.64": "local", "LDL": "local",
        "LDGSTS.E.BYPASS": "copy", "UTMALDG.2D": "copy", "UBLKCP.S.G": "copy", "LDTM.x16": "tmem",
        "BAR.SYNC": "barrier", "SYNCS.ARRIVE": "barrier", "LDGDEPBAR": "barrier", "WARPGROUP.ARRIVE": "barrier", "UTMACMDFLUSH": "barrier",
        "BRA": "control", "EXIT": "control", "USETMAXREG.DEALLOC": "control", "LDC.64": "constant", "ULDC": "constant",
        "UIADD3": "uniform", "R2UR": "uniform", "SHFL.BFLY": "lanes", "VOTE.ANY": "lanes", "VOTEU.ANY": "uniform",
    }  # fmt: skip
    assert {name: sass.class_of(name) for name in classes} == classes


def test_code_is_read_with_lines_loops_and_loads():
    (code,) = sass.kernels(CODE).values()
    assert len(code.instructions) == 20  # what pads the end is no code
    assert code.mix() == {
        "tensor": 1, "fp": 1, "int": 1, "global": 3, "local": 2, "constant": 1, "copy": 1, "barrier": 3, "control": 6, "uniform": 1,
    }  # fmt: skip
    lines = {line: sass.mix(found) for (_, line), found in code.by_line().items()}
    assert lines[5] == {"global": 2, "local": 1} and lines[7] == {
        "barrier": 2,
        "control": 3,
    }  # with the first round of the wait, whose line was that before it
    loops = [(loop.place[1], loop.depth, loop.mmas, len(loop.instructions), loop.only_waits) for loop in code.loops()]
    # The wait behind the code belongs to the loop it goes back to, and is one itself.
    assert loops == [(6, 0, 1, 11, False), (7, 1, 0, 2, True)]
    assert code.bytes_loaded_at_a_time() == 20
    assert code.widths() == {"16": 1, "4": 2}


def test_what_is_called_has_no_loops_but_its_own():
    """Square roots and quotients call functions behind the code, to which no branch leads."""
    called = """
        /*0140*/              @!P0 BRA `(.L_x_11) ;
        /*0150*/               @P0 BRA `(.L_x_12) ;
        /*0160*/                   MOV R1, R2 ;
.L_x_11:
        /*0170*/                   FFMA R1, R1, R2, R3 ;
.L_x_12:
        /*0180*/                   RET.REL.NODEC R4 `(product) ;
.L_x_10:"""
    (code,) = sass.kernels(CODE.replace("\n.L_x_10:", called)).values()
    assert [loop.place[1] for loop in code.loops()] == [6, 7]


def test_a_launch_has_a_profile():
    (found,) = static_profile([Launch()] * 2)
    assert (found.launches, found.smem, found.threads, found.copies) == (2, 91_000, 256, True)
    assert str(found.occupancy) == "2 blocks, 16 of 64 warps, limited by registers, shared memory"
    assert found.bytes_in_flight == 2 * (256 * 20 + 91_000)
    assert found.waves(device_of("sm_90")) == 1.0
    assert [(loop.line, loop.per_mma) for loop in found.loops] == [(6, 11.0)]
    assert [(line.line, line.local_stores, line.local_loads) for line in found.lines if line.mix.get("local")] == [
        (5, 1, 0),
        (9, 0, 1),
    ]
    assert StaticProfile.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert found.to_json()["limited_by"] == "registers, shared memory"
    tight = dataclasses.replace(found, dynamic_smem=300_000)
    assert tight.occupancy.blocks == 0 and tight.waves(device_of("sm_90")) == math.inf


@pytest.mark.parametrize(
    ("instruction", "cluster", "lacks"),
    [
        ("HGMMA.64x128x16.F32 R24, gdesc[UR12], R24", (1, 1, 1), ["no WGMMA", "", "no WGMMA", "no WGMMA"]),
        ("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4]", (1, 1, 1), ["no tcgen05", "no tcgen05", "", "no tcgen05"]),
        ("UTMASTG.2D [UR8], [UR4]", (1, 1, 1), ["no TMA", "", "", ""]),
        ("HMMA.16816.F32 R4, R8, R12, R4", (2, 1, 1), ["no clusters", "", "", ""]),
        ("HMMA.16816.F32 R4, R8, R12, R4", (1, 1, 1), ["", "", "", ""]),
    ],
)
def test_architectures_without_an_instruction_cannot_run_it(instruction, cluster, lacks):
    code = CODE.replace("HGMMA.64x128x16.F32 R24, gdesc[UR12], R24", instruction).replace("UTMALDG.2D", "LDG.E")
    (found,) = static_profile([Launch(cluster=cluster, artifacts={"sass": code})])
    devices = [device_of(arch) for arch in ("sm_80", "sm_90a", "sm_100a", "sm_120a")]
    assert [found.lacks(device.generation) for device in devices] == lacks
    shown = Console(width=200, file=io.StringIO())
    for part in _static_tables(found, None):
        shown.print(part)
    text = " ".join(shown.file.getvalue().split())
    for device, why in zip(devices, lacks, strict=True):
        assert (f"sm_{device.generation.number}" in text.split()) != bool(why)
        reasons = [line for line in text.split("Cannot run on ")[1:] if line.strip().endswith(f"{why}.")]
        assert not why or any(device.model.name in line for line in reasons)


def test_what_a_kernel_calls_is_not_charged_to_its_launch(tmp_path):
    program = tmp_path / "k.py"
    program.write_text("def half(x):\n    return x / 2\n\ndef kernel(x):\n    return half(x)\n\nkernel(1)\n")
    at = lambda line, *callers: f'"{program}":{line}:1' if not callers else f"callsite({at(line)} at {at(*callers)})"
    # a function of Python has no call of its own in the locations, one with @cute.jit has
    text = "\n".join(f"  op() loc({place})" for place in (at(2, 7), at(5, 7), at(1, 5, 7)))
    remark = SimpleNamespace(kind="resources", file=str(program), line=4)
    launch = SimpleNamespace(remarks=[remark], artifacts={"mlir_located": text})
    assert calls_of([launch]) == [(str(program), 1, str(program), 5)]


@pytest.mark.parametrize(
    ("artifacts", "why"), [({}, "ptxas was not found"), ({"sass": ".text.other:\n"}, "not in the code")]
)
def test_without_code_there_are_still_resources(artifacts, why):
    (found,) = static_profile([Launch(artifacts=artifacts)])
    assert why in found.unread and not found.mix and found.occupancy.blocks == 2
