"""An operator in a package of AOTInductor, which another process loads; on the GPU, where there is one. A C++ compiler works for minutes: KILN_LONG_TESTS=1."""

import os
import shutil

import pytest

LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")
OPERATOR = """
import torch
import kiln.cute as cute, kiln.torch
from kiln import Float32

@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, by: Float32):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    if thread < x.shape[1]:
        y[block, thread] = x[block, thread] * by

@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, by: Float32):
    scaled(x, y, by).launch(grid=x.shape[0], block=64)

operator = kiln.torch.op("kiln_aoti::scale", scale, outputs={"y": "x"})
device = "cuda" if torch.cuda.is_available() else "cpu"
"""
MAKE = """
import torch
from operators import device, operator

class Model(torch.nn.Module):
    def forward(self, x):
        return operator(x + 1, 3.0) - 1

rows = torch.export.Dim("rows", min=2, max=64)
program = torch.export.export(Model(), (torch.ones(3, 4, device=device),), dynamic_shapes={"x": {0: rows}})
quickly = {"aot_inductor.compile_wrapper_opt_level": "O0"}
torch._inductor.aoti_compile_and_package(program, package_path="model.pt2", inductor_configs=quickly)
"""
USE = """
import torch
import operators

model = torch._inductor.aoti_load_package("model.pt2")
for rows in (3, 7, 5):
    x = torch.arange(4.0 * rows, device=operators.device).reshape(rows, 4)
    assert torch.equal(model(x), 3 * (x + 1) - 1)
print("equal", flush=True)
"""


@pytest.mark.skipif(not LONG, reason="set KILN_LONG_TESTS=1")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_package_of_aot_inductor(child, tmp_path):
    pytest.importorskip("torch")
    for name, text in (("operators", OPERATOR), ("make", MAKE), ("use", USE)):
        (tmp_path / f"{name}.py").write_text(text)
    env = {
        "TORCHINDUCTOR_VEC_ISA_OK": "0"
    }  # else torch compiles programs to see what the processor can do, also to load a package
    made = child("make.py", **env)
    assert (tmp_path / "model.pt2").exists(), made.stderr
    used = child("use.py", **env)
    assert (used.returncode, used.stdout) == (0, "equal\n"), used.stderr
