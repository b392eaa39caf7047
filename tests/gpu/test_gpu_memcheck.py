"""Kernels under compute-sanitizer's memcheck, in processes of their own; skipped where the tool is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kiln

torch = pytest.importorskip("torch")

_PROGRAM = Path(__file__).with_name("memcheck_program.py")
_TOOL = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")

pytestmark = pytest.mark.skipif(_TOOL is None, reason="there is no compute-sanitizer")


def memcheck(*names: str) -> subprocess.CompletedProcess[str]:
    """Run functions of `memcheck_program.py` under memcheck; its exit status is 9 if an error was found."""
    root = str(Path(kiln.__file__ or "").parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
    # PyTorch's own pool would hide an access between two of its arrays
    env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    # errors of kernels, not what libraries ask the driver in vain
    command = [_TOOL or "", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9", sys.executable]
    return subprocess.run(
        [*command, str(_PROGRAM), *names], env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_kernels_are_clean():
    names = ("gemms", "rows", "shared_memory", "clusters")
    done = memcheck(*names)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"done {' '.join(names)}" in done.stdout
    assert "ERROR SUMMARY: 0 errors" in done.stdout


def test_an_overrun_is_found_at_its_line():
    done = memcheck("beyond")
    assert done.returncode == 9, done.stdout[-4000:] + done.stderr[-2000:]
    assert "Invalid __global__ write of size 4 bytes" in done.stdout
    line = 1 + next(n for n, text in enumerate(_PROGRAM.read_text().splitlines()) if "# the overrun" in text)
    assert f"memcheck_program.py:{line}" in done.stdout
