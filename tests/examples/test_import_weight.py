"""What importing Kiln must not load: a program that only imports it pays for nothing else."""

from __future__ import annotations

import importlib

import pytest

HEAVY = (
    "torch_mlir",
    "numpy",
    "ml_dtypes",
    "llvmlite",
    "torch",
    "jax",
    "cuda",
    "tvm_ffi",
    "rich",
    "tempfile",
    "pathlib",
    "json",
)
NOT_TO_LOAD = (
    "numpy", "logging", "tempfile", "pathlib", "shutil", "importlib.resources", "typing_extensions", "llvmlite.ir",
    "torch_mlir.dialects.ext", "torch_mlir.dialects.irdl",
    "kiln.cute.atoms.copying", "kiln.cute.atoms.mma", "kiln.cute.tensor.structures",
    "kiln.dialects.nvgpu", "kiln.targets.lowering.builder", "kiln.targets.host.lower", "kiln.targets.cpu.lower",
    "kiln.targets.cpu.runtime.deadlock_report", "kiln.targets.cpu.runtime.threads", "kiln.targets.cpu.runtime.tensor_core",
    "kiln.targets.host.signal_handler", "kiln.interop.arguments.planned_calls",
)  # fmt: skip
"""What a process that finds its kernel in the disk cache has no use for."""


@pytest.mark.parametrize(
    "module", ["kiln", "kiln.base_dsl", "kiln.cute", "kiln.cutlass_dsl", "cutlass", "cutlass.cute"]
)
def test_importing_loads_nothing_heavy(child, module: str):
    done = child("-c", f"import {module}, sys; print(*(name for name in {HEAVY} if name in sys.modules))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_names_that_cute_loads_later_are_all_there():
    from kiln import cute

    for place in (".atoms.copying", ".atoms.mma", ".program.fast_divmod", ".tensor.structures"):
        module = importlib.import_module(place, "kiln.cute")
        assert {name for name, found in cute._LAZY_NAMES.items() if found == place} == set(module.__all__), place
        assert all(getattr(cute, name) is getattr(module, name) for name in module.__all__)


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
assert not any(name in sys.modules for name in ("numpy", "torch_mlir.dialects.ext", "llvmlite.ir")), "loaded"
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


def test_a_kernel_in_the_disk_cache_loads_nothing_that_compiles(child, tmp_path):
    program = f"""
import sys
import kiln.cute as cute
from kiln import Int32
@cute.kernel
def kernel(n: Int32):
    cute.arch.thread_idx()
@cute.jit
def f(n: Int32):
    kernel(n).launch(grid=1, block=32)
f(1)
print(*(name for name in {NOT_TO_LOAD} if name in sys.modules))
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    settings = {
        "KILN_TARGET": "cpu",
        "CUTE_DSL_CACHE_DIR": str(tmp_path / "cache"),
        "CUTE_DSL_DISABLE_FILE_CACHING": "0",
    }
    for _ in range(2):
        done = child(file, **settings)
        assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_dialect_that_is_imported_is_known(child):
    """The context begins with those that Kiln uses; others come with their modules, before and after it was made."""
    program = """
from cutlass._mlir.dialects import affine
from kiln.mlir import context
assert context().is_dialect_loaded("affine") and not context().is_dialect_loaded("tensor")
from cutlass._mlir.dialects import tensor
assert context().is_dialect_loaded("tensor")
"""
    done = child("-c", program)
    assert done.returncode == 0, done.stderr
