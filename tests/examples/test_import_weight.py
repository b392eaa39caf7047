"""What importing Kiln must not load: a program that only imports it pays for nothing else."""

from __future__ import annotations

import pytest

HEAVY = ("torch_mlir", "numpy", "ml_dtypes", "llvmlite", "torch", "jax", "cuda", "tvm_ffi", "rich", "tempfile")


@pytest.mark.parametrize(
    "module", ["kiln", "kiln.base_dsl", "kiln.cute", "kiln.cutlass_dsl", "cutlass", "cutlass.cute"]
)
def test_importing_loads_nothing_heavy(child, module: str):
    done = child("-c", f"import {module}, sys; print(*(name for name in {HEAVY} if name in sys.modules))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_typed_scalars_and_layouts_need_no_mlir(child):
    program = """
import sys
import kiln.cute as cute
from kiln import Float32, Int32
assert (Int32(7) + 2).value == 9 and float(Float32(1.5) * 2) == 3.0
layout = cute.make_layout((4, 8), stride=(8, 1))
assert cute.size(layout) == 32
@cute.jit
def f(x): return x
assert "torch_mlir" not in sys.modules and "llvmlite" not in sys.modules, "loaded"
"""
    done = child("-c", program)
    assert done.returncode == 0, done.stderr


def test_compiling_does_not_load_the_generated_dialects(child, tmp_path):
    """The bindings would load them to look for the classes of operations, which nobody needs."""
    program = """
import sys
import kiln.cute as cute
@cute.jit
def f(n):
    total = 0
    for i in range(n):
        total += i // 3
    return total
assert f(10) == 12
assert "numpy" not in sys.modules, "loaded"
from kiln.mlir import context, ir
with context():
    assert "array<" not in str(ir.AttrBuilder.get("F64ElementsAttr")([1.5, 2.5], context=context()))
assert "numpy" in sys.modules
print(*(d for d in ("llvm", "nvvm", "arith", "scf") if f"torch_mlir.dialects._{d}_ops_gen" in sys.modules))
from cutlass._mlir.dialects import arith, gpu, llvm, nvvm, vector
from cutlass._mlir.dialects.scf import *
assert ForOp and callable(llvm.inline_asm) and len(dir(nvvm)) > 100
assert callable(arith.addi) and callable(vector.load) and callable(gpu.thread_id) and not hasattr(arith, "nothing")
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    done = child(file, KILN_TARGET="cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
