"""Tests that need a GPU: skipped where there is none, or no PyTorch that sees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take 75 % of all memory


def _why_not() -> str:
    from kiln.hardware import driver

    if not driver.available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        return "the GPU is hidden: make test STAGE=gpu" if hidden else "there is no NVIDIA GPU"
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return "" if torch.cuda.is_available() else "PyTorch does not see the GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if _HERE in item.path.parents]
    if not ours:
        return
    reason = _why_not()
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _on_the_gpu():
    import kiln

    with kiln.target("nvidia"):
        yield
