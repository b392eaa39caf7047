"""What the tests of served CUDA share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def gpu_program(child, tmp_path: Path) -> Callable[..., str]:
    """Runs the text of a program written for a GPU with `kiln run --target cpu`; its output. Its failure is the test's."""

    def run(text: str, *options: str, **env: str) -> str:
        (tmp_path / "program.py").write_text(textwrap.dedent(text))
        done = child("-m", "kiln", "run", *(options or ("--target", "cpu")), "program.py", **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
