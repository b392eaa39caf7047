"""What the tests of ranks share."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def ranks_program(child, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the text of a program that torchrun would start with `kiln run --devices N`."""

    def run(text: str, devices: int = 2, fails: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(textwrap.dedent(text))
        done = child("-m", "kiln", "run", "--devices", str(devices), "program.py", **env)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done

    return run
