"""`kiln new NAME`: writes a folder with a working kernel, its test and its benchmark, and the next commands."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln.base_dsl import packages

from ..core.command_line import EXIT, report_errors
from ..core.contracts import ContractError
from ..core.options import Parser, flag, option, raw_formatter
from ..verify import cli as verify
from .generated_files import class_name, is_name, write_files

TEMPLATES = Path(__file__).with_name("templates")
KINDS = {
    "elementwise": "a function of each element, tiles with predicates",
    "reduction": "row sums: warps, shared memory",
    "gemm": "a GEMM on tensor cores",
    "attention": "softmax(q k) v in one pass over the keys",
    "plan": "a KernelPlan with tilings to tune",
    "empty": "a copy, to be replaced",
}
"""The templates."""

_TEST = '''"""Checks kernel.py, one test for each kind of data and of layout: what `kiln verify` does."""

from pathlib import Path

import pytest
from kiln import workbench as wb

CASE = wb.load(Path(__file__).with_name("kernel.py"))


@pytest.mark.parametrize("check", CASE.checks(), ids=str)
def test_my_kernel(check):
    check.run()
'''

_BENCH = '''"""Times kernel.py beside its baselines: what `kiln bench` does."""

import sys
from pathlib import Path

from kiln.workbench.main import main

sys.exit(main(["bench", str(Path(__file__).with_name("kernel.py")), *sys.argv[1:]]))
'''

_WORKFLOW = """# Tests the kernels without a GPU. GitHub reads workflows from .github/workflows at the root of a repository.
name: kernels
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install kiln-dsl pytest {arrays}
      - run: pytest --kiln-sanitize
        env:
          KILN_TARGET: cpu
"""

MESSAGE = r"^(?:[\w.]*(?:Error|Warning): )?([^\s:][^:]*\.py):(\d+): (?:(error|warning|note): )?(.*)$"
"""A line of an error, a warning or a finding: file, line, severity if it is said, message."""


def _tasks() -> str:
    """Return tasks of VS Code, which show errors and findings at their lines."""
    matcher = {
        "owner": "kiln",
        "fileLocation": ["autoDetect", "${workspaceFolder}"],
        "severity": "error",
        "pattern": {"regexp": MESSAGE, "file": 1, "line": 2, "severity": 3, "message": 4},
    }

    def task(label: str, words: list[str], group: str) -> dict[str, object]:
        return {
            "label": label,
            "type": "process",
            "command": "kiln",
            "args": words,
            "group": group,
            "problemMatcher": matcher,
        }

    tasks = [
        task("kiln: run this file on the CPU", ["run", "--target", "cpu", "${file}"], "none"),
        task("kiln: look for races in this file", ["run", "--sanitize", "${file}"], "test"),
        task("kiln: verify this kernel", ["verify", "${file}", "--quick"], "test"),
    ]
    return json.dumps({"version": "2.0.0", "tasks": tasks}, indent=2) + "\n"


_SCRIPT = """import sys

from kiln.workbench.main import main

sys.exit(main(["{verb}", *sys.argv[1:]]))
"""


@report_errors
def main(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    if not is_name(args.name):
        rule = "letters, digits and underscores, no digit first"
        raise ContractError(f"{args.name!r} is not a valid name of a kernel: {rule}")
    parents = args.package.split(".") if args.package is not None else []
    for part in parents:
        if not is_name(part):
            form = "write names with dots between them, as in my.kernels; it is made in the current folder"
            raise ContractError(f"--package {args.package}: {part!r} is not a valid name of a package: {form}")
    folder = Path(*parents, args.name)
    arrays = args.arrays or ("torch" if packages.is_here("torch") else "numpy")
    files = contents(args.name, args.kind, arrays)
    there = [name for name in files if (folder / name).exists()]
    if there and not args.force:
        raise ContractError(f"{folder / there[0]} already exists; --force overwrites it")
    write_files(folder, files)
    for part in [*folder.parents][:-1]:
        (part / "__init__.py").touch()
    print("\n".join(f"wrote {folder / name}" for name in files), file=sys.stderr)
    if not packages.is_here(arrays):
        print("the kernel needs PyTorch: pip install torch, or start again with --arrays numpy", file=sys.stderr)
        return EXIT.NOT_HERE
    # Small problems: templates are right, but this machine may lack a tool. Arrays of numpy are in host memory.
    target = ["--target=cpu"] if arrays == "numpy" else []
    status = verify.main([str(folder / "kernel.py"), "--quick", "--max-elements=16384", *target])
    if status == EXIT.GOOD:
        words = " ".join(target)
        verbs = "".join(f"\n  kiln {verb} kernel.py {words}".rstrip() for verb in ("verify", "bench"))
        print(f"\nIt works. Now:\n  cd {folder}{verbs}")
        if not packages.is_here("torch"):
            print("On a GPU it needs PyTorch: pip install torch, then kiln new again with another name.")
    return status


def template(kind: str, arrays: str = "torch") -> str:
    """Return the text of a kernel with its contract, for tensors of PyTorch or arrays of numpy."""
    text = (TEMPLATES / f"{kind}.py").read_text()
    if arrays == "torch":
        return text
    host = (TEMPLATES / "numpy" / f"{kind}.py").read_text()
    begin = "@dataclass\nclass MyKernel(" if kind == "plan" else "def kernel_fn("
    text = text[: text.index(begin)].replace("import torch\n", "import numpy as np\n") + host[host.index(begin) :]
    return text if "Any]" in text else text.replace("from typing import Any\n", "")


def contents(name: str, kind: str, arrays: str = "torch") -> dict[str, str]:
    """Return the files of a new kernel."""
    camel = class_name(name)

    def renamed(text: str) -> str:
        return re.sub(r"\bmy_kernel\b", name, text).replace("MyKernel", camel).replace("_my_kernel", f"_{name}")

    return {
        "__init__.py": "",  # so that pytest takes the tests of two kernels for two modules
        "kernel.py": renamed(template(kind, arrays)),
        "test_kernel.py": renamed(_TEST),
        "bench_kernel.py": renamed(_BENCH),
        "scripts/verify_kernel.py": _SCRIPT.format(verb="verify"),
        "scripts/benchmark_kernel.py": _SCRIPT.format(verb="bench"),
        ".vscode/tasks.json": _tasks(),
        ".github/workflows/kernels.yml": _WORKFLOW.format(arrays=arrays),
    }


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln new",
        description="Make a folder with a kernel that works, its test and its benchmark.",
        formatter_class=raw_formatter,
        epilog="kinds:\n" + "\n".join(f"  {kind:<12} {what}" for kind, what in KINDS.items()),
    )
    parser.add_argument("name", metavar="NAME", help="the name of the kernel and of its folder")
    option(parser, "--kind", "the template to start from (elementwise)", choices=KINDS, default="elementwise")
    arrays = "what inputs and outputs are; by default torch if it is installed"
    option(parser, "--arrays", arrays, choices=("torch", "numpy"))
    option(parser, "--package PKG", "make it part of a Python package, as in my.kernels")
    flag(parser, "--force", "overwrite existing files")
    return parser
