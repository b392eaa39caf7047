"""`kiln new NAME`: writes a folder with a working kernel, its test and its benchmark, and the next commands."""

from __future__ import annotations

import argparse
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
    files = contents(args.name, args.kind)
    there = [name for name in files if (folder / name).exists()]
    if there and not args.force:
        raise ContractError(f"{folder / there[0]} already exists; --force overwrites it")
    write_files(folder, files)
    for part in [*folder.parents][:-1]:
        (part / "__init__.py").touch()
    print("\n".join(f"wrote {folder / name}" for name in files), file=sys.stderr)
    if not packages.is_here("torch"):
        print("the kernel needs PyTorch: pip install torch", file=sys.stderr)
        return EXIT.NOT_HERE
    # Small problems: templates are right, but this machine may lack a tool.
    status = verify.main([str(folder / "kernel.py"), "--quick", "--max-elements=16384"])
    if status == EXIT.GOOD:
        print(f"\nIt works. Now:\n  cd {folder}\n  kiln verify kernel.py\n  kiln bench kernel.py")
    return status


def contents(name: str, kind: str) -> dict[str, str]:
    """Return the files of a new kernel."""
    camel = class_name(name)

    def renamed(text: str) -> str:
        return re.sub(r"\bmy_kernel\b", name, text).replace("MyKernel", camel).replace("_my_kernel", f"_{name}")

    return {
        "__init__.py": "",  # so that pytest takes the tests of two kernels for two modules
        "kernel.py": renamed((TEMPLATES / f"{kind}.py").read_text()),
        "test_kernel.py": renamed(_TEST),
        "bench_kernel.py": renamed(_BENCH),
        "scripts/verify_kernel.py": _SCRIPT.format(verb="verify"),
        "scripts/benchmark_kernel.py": _SCRIPT.format(verb="bench"),
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
    option(parser, "--package PKG", "make it part of a Python package, as in my.kernels")
    flag(parser, "--force", "overwrite existing files")
    return parser
