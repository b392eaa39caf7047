"""The programs of docs/bridges.md."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "bridges.md"
PROGRAMS = re.findall(r"## (.+?)\n(?:(?!## ).)*?```python\n(.+?)```", PAGE.read_text(), re.S)


@pytest.mark.parametrize("program", [text for _, text in PROGRAMS], ids=[name for name, _ in PROGRAMS])
def test_programs_of_the_page(program, tmp_path):
    for needed in re.findall(r"^import (tvm_ffi|torch|jax)", program, re.M):
        pytest.importorskip(needed)
    file = tmp_path / "program.py"  # the language reads the source of functions
    file.write_text(program)
    exec(compile(program, str(file), "exec"), {"__name__": "program", "__file__": str(file)})
