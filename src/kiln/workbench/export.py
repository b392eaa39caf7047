"""`kiln export FILE.py:FUNCTION`: writes a jit function as an object file or shared library."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kiln
from kiln import _alias
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.host import argument_text
from kiln.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr

from .core import command_line
from .core.contracts import ContractError
from .core.options import Parser, flag, option
from .core.text import no_file

_DESCRIPTION = """\
Compile FUNCTION, which has @cute.jit, of FILE.py and write it as one file that needs neither Python nor
Kiln, with a header for C. --arg describes its parameters in order. `f32[m,n%16]` is a row-major tensor: a number is a
static extent, a name a dynamic one (the same name, the same extent), %16 what the extent is a multiple of; `@16` behind
it is the alignment of its address. `f32` is a number, `f16*` a pointer, `stream` a stream; anything else is a Python
value that is compiled in."""


@command_line.report_errors
def main(argv: Sequence[str]) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    path, colon, name = args.function.rpartition(":")
    if not colon:
        parser.error(f"{args.function}: write FILE.py:FUNCTION")
    try:
        function = getattr(_module(Path(path)), name, None)
        if function is None:
            raise ContractError(f"{path} has no function {name}")
        symbols: dict[str, Any] = {}
        arguments = [_argument(text, symbols) for text in args.arg]
        name = args.name or ("" if args.output.endswith((".o", ".so")) else name)
        written = _from_program(Path(path), function)(
            function,
            *arguments,
            to=args.output,
            name=name,
            archs=args.arch,
            ptx=not args.no_ptx,
            entry_points=args.entry_points,
            outputs=dict(map(_result, args.result)),
            host=args.host,
            options=args.options or None,
        )
    except DSLBaseError as reason:
        print(f"kiln export: {reason}", file=sys.stderr)
        return command_line.EXIT.BAD_USE
    print("\n".join(written))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="kiln export", description=_DESCRIPTION)
    parser.add_argument("function", metavar="FILE.py:FUNCTION")
    name_help = (
        "the prefix of all names; by default that of the file without lib, or in a folder that of the function. "
        "mylib::NAME also names PyTorch's operator, which is else kiln::NAME"
    )
    result_help = "a parameter that is a result: y=x is like x, y=x.0,n,64 has these extents"
    option(parser, "--arg TYPE", "a parameter; once for each", action="append", default=[])
    archs_help = "architectures, such as sm_80,sm_90a,cpu; by default what this machine has"
    option(parser, "--arch LIST", archs_help, also="--archs", default="")
    option(parser, "-o --output", "a folder, an object (.o) or a shared library (.so)", default=".")
    option(parser, "--name", name_help, default="")
    option(parser, "--entry-points", "calling conventions, of c,tvm_ffi,torch,jax; by default c", default="c")
    option(parser, "--result NAME=INPUT", result_help, action="append", default=[])
    option(parser, "--host", "another machine for the host's part, such as linux-aarch64", default="")
    option(parser, "--options", "options of cute.compile", default="")
    flag(parser, "--no-ptx", "leave out the PTX that later GPUs could run")
    return parser


def _module(path: Path) -> Any:
    if not path.is_file():
        raise ContractError(no_file(path))
    _alias.take_over()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _from_program(path: Path, function: object) -> Callable[..., list[str]]:
    """Return `kiln.export`, called from the function's line of the program, which errors and code then name."""
    code = getattr(getattr(function, "function", function), "__code__", None)
    called = ast.parse("lambda *args, **options: export(*args, **options)", mode="eval")
    for node in ast.walk(called):
        if isinstance(node, ast.expr):
            node.lineno = code.co_firstlineno if code else 1
            # spans the whole line
            node.col_offset = 0
            node.end_lineno = node.lineno + 1
    return eval(compile(called, str(path), "eval"), {"export": kiln.export})


def _argument(text: str, symbols: dict[str, Any]) -> Any:
    """Return the argument that --arg describes; `symbols` are the named extents so far."""
    if text.strip() == "stream":
        return make_fake_stream()
    try:
        description = argument_text.described(text, symbols)
    except argument_text.WrongText as wrong:
        raise ContractError(f"--arg {_shown(text)}: {wrong}") from None
    if description is None:
        return _value(text)
    if description.shape is not None:
        order = tuple(reversed(range(len(description.shape))))
        return make_fake_compact_tensor(
            description.dtype, description.shape, stride_order=order, assumed_align=description.alignment
        )
    return (
        make_ptr(description.dtype, 0, assumed_align=description.alignment)
        if description.is_pointer
        else description.dtype(0)
    )


def _shown(text: str) -> str:
    return text if len(text) < 80 else f"{text[:77]}..."


def _value(text: str) -> Any:
    """Return the Python value that --arg gives."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)
            return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, SyntaxWarning, TypeError, MemoryError, RecursionError):
        types = f"f32, f16[m,n%16], i32*, stream; elements {', '.join(argument_text.ELEMENTS)}"
        raise ContractError(f"--arg {_shown(text)}: this is neither a type ({types}) nor a Python value") from None


def _result(text: str) -> tuple[str, Any]:
    name, equals, extents_text = text.partition("=")
    if not equals:
        raise ContractError(f"--result {text}: write NAME=INPUT, or NAME=EXTENT,EXTENT")
    extents = [int(part) if re.fullmatch("[0-9]{1,18}", part) else part for part in extents_text.split(",")]
    return name, extents[0] if len(extents) == 1 and isinstance(extents[0], str) and "." not in extents_text else tuple(
        extents
    )
