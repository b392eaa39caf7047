"""The programs of docs/bridges.md."""

import re
import subprocess
from pathlib import Path

import pytest
from exporting import COMPILER

PAGE = Path(__file__).parents[2] / "docs" / "bridges.md"
SECTIONS = re.findall(r"^## (.+?)\n(.+?)(?=^## |\Z)", PAGE.read_text(), re.S | re.M)
PROGRAMS = [
    (name, "\n\n".join(found)) for name, text in SECTIONS if (found := re.findall(r"```python\n(.+?)```", text, re.S))
]
"""All of a section is one program."""


@pytest.mark.parametrize("program", [text for _, text in PROGRAMS], ids=[name for name, _ in PROGRAMS])
def test_programs_of_the_page(program, tmp_path, monkeypatch):
    for needed in re.findall(r"^import (tvm_ffi|torch|jax)", program, re.M):
        pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "program.py"  # the language reads the source of functions
    file.write_text(program)
    exec(compile(program, str(file), "exec"), {"__name__": "program", "__file__": str(file)})
    if "export_to_c" in program and COMPILER is not None:
        (tmp_path / "program.c").write_text(re.findall(r"```c\n(.+?)```", PAGE.read_text(), re.S)[0])
        subprocess.run([COMPILER, "-Ibuild", "program.c", "build/scale.o", "-o", "program"], check=True)
        subprocess.run(["./program"], check=True)
