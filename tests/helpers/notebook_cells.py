"""Running the code cells of a notebook in order as parts of one program, without Jupyter, and comparing what they say.

    python tests/helpers/notebook_cells.py FILE.ipynb ...           # which cells say what is saved in the file
    python tests/helpers/notebook_cells.py --save FILE.ipynb ...    # save what they say now

Notebooks written for a GPU run too: `cutlass` is served by Kiln, and torch's `cuda` device from host memory. Cells are
counted that say the same, something else (with the difference), or whose output was not saved. Addresses are left out,
spaces and line breaks count as one; lines that start with % or ! are for Jupyter.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import io
import json
import linecache
import os
import re
import sys
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from kiln.base_dsl.diagnostics import DSLOptimizationWarning


def lines(text: str) -> list[str]:
    """A text as it is saved in a notebook, addresses masked."""
    return re.sub(r"0x[0-9a-f]{10,}", "0x...", text).splitlines(keepends=True)


def shown(value: Any) -> dict[str, list[str]]:
    """What Jupyter shows of a value."""
    data = {"text/plain": lines(repr(value))}
    picture = value._repr_svg_() if hasattr(value, "_repr_svg_") and not isinstance(value, type) else None
    return data if picture is None else {"image/svg+xml": lines(picture), **data}


class Program:
    """The cells that have run."""

    def __init__(self, name: str) -> None:
        self.module = ModuleType(f"notebook_{name}")
        self.count = 0

    def outputs(self, source: str) -> list[dict[str, Any]]:
        """Run a cell; what is saved below it."""
        self.count += 1
        file = f"{self.module.__name__}_cell_{self.count}.py"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        tree = ast.parse(source, file)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("error", DSLOptimizationWarning)
            exec(compile(tree, file, "exec"), self.module.__dict__)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), file, "eval"), self.module.__dict__)
        found: list[dict[str, Any]] = []
        if printed.getvalue():
            found.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
        if value is not None:
            found.append(
                {"data": shown(value), "execution_count": self.count, "metadata": {}, "output_type": "execute_result"}
            )
        return found


def code_cells(path: Path) -> list[dict[str, Any]]:
    """The code cells of a notebook."""
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def text_of(outputs: list[dict[str, Any]]) -> str:
    """What outputs say, without pictures."""
    texts: list[str] = []
    for output in outputs:
        parts = output["text"] if output["output_type"] == "stream" else output.get("data", {}).get("text/plain", [])
        texts.append("".join(lines("".join(parts))))
    return "\n".join(texts)


def compare(path: Path) -> tuple[int, int, int]:
    """Run a notebook and print which cells differ. How many say the same, something else, have nothing saved."""
    program = Program(path.stem)
    program.module.__name__ = "__main__"
    sys.modules["__main__"] = program.module
    same = other = unsaved = 0
    for cell in code_cells(path):
        source = "".join(line for line in cell["source"] if not line.lstrip().startswith(("%", "!")))
        failure, found = "", []
        try:
            found = program.outputs(source)
        except BaseException as error:
            failure = "".join(traceback.format_exception(error)[-3:])
        saved, said = text_of(cell["outputs"]), text_of(found)
        if not failure and saved.split() == said.split():
            same += 1
        elif not failure and not saved:
            unsaved += 1
        else:
            other += 1
            print(f"{path.stem}, cell {program.count}:")
            changes = difflib.unified_diff(saved.split("\n"), said.split("\n"), "saved", "said", lineterm="", n=0)
            print("\n".join(f"    {line}" for line in list(changes)[2:40]) + failure)
    return same, other, unsaved


def save(path: Path) -> None:
    """Run a notebook and put what it says into the file."""
    notebook = json.loads(path.read_text())
    program = Program(path.stem)
    sys.modules[program.module.__name__] = program.module
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = program.outputs("".join(cell["source"]))
            cell["execution_count"] = program.count
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def main(files: list[str]) -> None:
    os.environ["KILN_TARGET"] = "cpu"
    from kiln import _alias
    from kiln.workbench import serve_cuda

    _alias.take_over()
    serve_cuda.activate()
    for path in map(Path, filter(lambda word: word != "--save", files)):
        if "--save" in files:
            save(path)
            continue
        same, other, unsaved = compare(path)
        print(f"{path.stem}: {same} cells say the same, {other} something else, {unsaved} have no output saved")


if __name__ == "__main__":
    main(sys.argv[1:])
