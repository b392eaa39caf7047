"""Kiln refuses to compile in a sub-interpreter, where the MLIR bindings hang."""

from __future__ import annotations

import subprocess
import sys

import pytest

INNER = """
try:
    import kiln.mlir
except RuntimeError as refused:
    print(refused, flush=True)
"""
OUTER = f"""
import importlib, sys
interpreters = importlib.import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
made = interpreters.create("legacy") if sys.version_info >= (3, 13) else interpreters.create(isolated=False)
failed = interpreters.run_string(made, {INNER!r})
assert failed is None, failed
import kiln.mlir
"""


def test_a_sub_interpreter_is_refused():
    pytest.importorskip("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    child = subprocess.run([sys.executable, "-c", OUTER], capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    assert "in the main interpreter of a process only" in child.stdout
