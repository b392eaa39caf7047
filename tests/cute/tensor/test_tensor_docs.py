"""The guide to tensors and the element-wise example run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "tensors.md"


def run(path: Path, tmp_path: Path) -> str:
    import os

    environment = {**os.environ, "KILN_TARGET": "cpu", "KILN_CPU_OPT": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_guide(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) > 6
    program = tmp_path / "guide.py"
    program.write_text("\n\n".join(blocks))
    text = run(program, tmp_path)
    for line in re.findall(r"# (tensor<.*>)$", GUIDE.read_text(), re.MULTILINE):
        assert line in text


def test_the_element_wise_example(tmp_path):
    text = run(ROOT / "examples" / "elementwise.py", tmp_path)
    assert text.count("agree with") >= 4
