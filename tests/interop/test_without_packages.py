"""Kiln without any of the packages that are optional: it works, and says which to install where one is needed."""

from pathlib import Path

import pytest

PROGRAM = """
import importlib, os, sys
from importlib.machinery import PathFinder

class Folders:
    '''Finds mere folders, which Python takes for packages, and nothing that is installed.'''

    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, [os.path.join(os.getcwd(), "folders")]) if name in {names!r} else None

if {how!r} == "missing":
    sys.modules.update(dict.fromkeys({names!r}))  # as if they were not installed
else:
    sys.meta_path.insert(0, Folders())
if {how!r} == "loaded folders":
    for name in {names!r}:
        assert importlib.import_module(name).__file__ is None
import numpy as np
import cutlass, kiln, kiln.cute as cute
from kiln.cute.runtime import from_dlpack

@cute.kernel
def increased(x: cute.Tensor):
    i, _, _ = cute.arch.thread_idx()
    x[i] = x[i] + 1.0

@cute.jit
def increase(x: cute.Tensor):
    increased(x).launch(grid=1, block=4)

x = np.zeros(4, np.float32)
for call in (increase, increase, cute.compile(increase, from_dlpack(x), options="--enable-tvm-ffi")):
    call(x)
print(x.tolist(), kiln.kernels.softmax(np.zeros((1, 4), np.float32)).tolist())
for module in ("torch", "nn", "jax"):
    try:
        getattr(kiln, module)
    except ImportError as failure:
        print(failure)
"""
OPTIONAL = (
    "torch", "jax", "jaxlib", "tvm_ffi", "jax_tvm_ffi", "cuda", "yaml", "plotly", "optuna", "ray", "nvtx", "cupy",
    "ncu_report", "pynvml", "triton", "flatbuffers",
)  # fmt: skip


@pytest.mark.parametrize("how", ["missing", "folders", "loaded folders"])
def test_import_and_calls(how, child, tmp_path):
    for name in OPTIONAL:
        (tmp_path / "folders" / name).mkdir(parents=True)
    (tmp_path / "program.py").write_text(PROGRAM.format(names=OPTIONAL, how=how))
    done = child("program.py", KILN_TARGET="cpu")
    assert done.stdout.splitlines() == [
        "[3.0, 3.0, 3.0, 3.0] [[0.25, 0.25, 0.25, 0.25]]",
        "kiln.torch needs PyTorch: pip install 'kiln-dsl[torch]'",
        "kiln.nn needs PyTorch: pip install 'kiln-dsl[torch]'",
        "kiln.jax needs JAX: pip install 'kiln-dsl[jax]'",
    ], done.stderr


def test_what_is_optional_is_an_extra():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {"cuda", "torch", "jax", "tvm-ffi", "workbench", "tune", "ray"} <= set(extras)
    needed = " ".join(project["dependencies"])
    assert not any(name in needed for name in ("jax", "tvm-ffi", "torch>", "plotly", "ray", "optuna", "cuda"))
