"""Control codes of instructions: what ptxas writes for a chain of multiplications and for a function unit."""

from __future__ import annotations

import pytest

from kiln import Float32, cute, range_constexpr
from kiln.hardware import sass, toolchain
from kiln.hardware.sass import Control
from kiln.targets.nvidia import codegen

TEXT = """
.text.k:
        /*0000*/                   MUFU.EX2 R6, R0 ;                           /* 0x0000000000067308 */
                                                                               /* 0x000e220000000800 */
        /*0010*/              @!P0 FFMA R3, R11, R6, R11 ;                     /* 0x0000000b0b038223 */
                                                                               /* 0x001fca000000000b */
"""


def test_fields_of_a_text():
    exp, fma = sass.kernels(TEXT)["k"].instructions
    assert exp.control == Control(stall=1, yields=False, writes=0, reads=None, waits=())
    assert fma.control == Control(stall=5, yields=True, writes=None, reads=None, waits=(0,))
    assert sass.kernels(TEXT.replace("/* 0x000e220000000800 */", ""))["k"].instructions[0].control is None


@cute.kernel
def _chains(x: cute.Tensor):
    value = x[0]
    for _ in range_constexpr(4):
        value = value * value + value
    x[1] = value
    x[2] = cute.math.exp2(value, fastmath=True) + 1.0


@cute.jit
def _launch(x: cute.Tensor):
    _chains(x).launch(grid=(1, 1, 1), block=(32, 1, 1))


@pytest.mark.skipif(not (toolchain.find("ptxas") and toolchain.find("nvdisasm")), reason="needs ptxas and nvdisasm")
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_chain_and_a_scoreboard(arch):
    x = cute.runtime.make_fake_tensor(Float32, (4,), stride=(1,))
    compiled = cute.compile(_launch, x, target="nvidia", options=f"--gpu-arch {arch} --keep-cubin")
    (code,) = sass.kernels(codegen.disassemble(compiled.__cubin__, "-g -c -hex")).values()
    controls = [(one.name, one.control) for one in code.instructions]
    assert all(control is not None for _, control in controls)
    fmas = [control.stall for name, control in controls if name == "FFMA" and control is not None]
    assert len(fmas) == 4 and all(stall >= 4 for stall in fmas[:-1])  # each needs the result of the one before
    at = next(number for number, (name, _) in enumerate(controls) if name.startswith("MUFU.EX2"))
    control = controls[at][1]
    assert control is not None and control.writes is not None
    after = [each.waits for _, each in controls[at + 1 :] if each is not None]
    assert any(control.writes in waits for waits in after)
