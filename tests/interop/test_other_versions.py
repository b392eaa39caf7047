"""Other versions of PyTorch, JAX, numpy and TVM-FFI than those that the tests run with: `make test STAGE=versions` tries them in full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEWEST = ROOT / ".venv" / "versions" / "newest" / "bin" / "python"


@pytest.mark.quick(0)
@pytest.mark.torch
def test_a_call_with_the_newest_packages():
    """With the environment that the stage made, where it is there; else with the newest that is installed."""
    python = str(NEWEST if NEWEST.exists() else sys.executable)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "KILN_TARGET": "cpu"}
    program = ROOT / "tests" / "helpers" / "small_bridges.py"
    done = subprocess.run([python, program], capture_output=True, text=True, env=environment)
    assert done.stdout == "good\n", done.stdout + done.stderr
