"""`kiln export FILE.py:FUNCTION`: writes a jit function as an object file or shared library."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import math
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kiln
from kiln import _alias
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute import SymInt
from kiln.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr

from .core import command_line
from .core.contracts import ContractError
from .core.options import Parser, flag, option

_TYPES = {
    "bool": "Boolean", "bf16": "BFloat16", "tf32": "TFloat32", "f8e4m3": "Float8E4M3FN", "f8e5m2": "Float8E5M2",
    **{f"f{bits}": f"Float{bits}" for bits in (16, 32, 64)}, **{f"i{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"Uint{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_ARGUMENT = re.compile(r"([a-z0-9]+)(?:\[([^\]]*)\]|(\*))?(?:@([^\]@]*))?")
_EXTENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:%(.*))?")
_MOST_EXTENT = (1 << 63) - 1
_MOST_ALIGNMENT = 1 << 30
_MOST_MODES = 32
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
            function, *arguments, to=args.output, name=name, archs=args.archs, ptx=not args.no_ptx,
            entry_points=args.entry_points, outputs=dict(map(_result, args.result)), host=args.host,
            options=args.options or None,
        )  # fmt: skip
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
    option(parser, "--archs", "architectures, such as sm_80,sm_90a,cpu; by default what this machine has", default="")
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
        raise ContractError(f"there is no file {path}")
    _alias.take_over()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _from_program(path: Path, function: Any) -> Callable[..., list[str]]:
    """Return `kiln.export`, called from the function's line of the program, which errors and code then name."""
    code = getattr(getattr(function, "function", function), "__code__", None)
    called = ast.parse("lambda *args, **options: export(*args, **options)", mode="eval")
    for node in ast.walk(called):
        if isinstance(node, ast.expr):
            node.lineno = code.co_firstlineno if code else 1
            node.col_offset, node.end_lineno = 0, node.lineno + 1  # spans the whole line
    return eval(compile(called, str(path), "eval"), {"export": kiln.export})


def _argument(text: str, symbols: dict[str, Any]) -> Any:
    """Return the argument that --arg describes; `symbols` are the named extents so far."""
    found = _ARGUMENT.fullmatch(re.sub(r"\s", "", text))
    if text.strip() == "stream":
        return make_fake_stream()
    if found is None or found[1] not in _TYPES:
        return _value(text)
    kind, align = getattr(kiln, _TYPES[found[1]]), None
    if found[4] is not None:
        align = _number(found[4], text, "an alignment", _MOST_ALIGNMENT)
        least = max(1, kind.width // 8)
        if found[2] is None and not found[3]:
            raise ContractError(f"--arg {text}: a number has no address: @{found[4]} is for tensors and pointers")
        if align & (align - 1) or align < least:
            rule = f"an alignment is a power of two, {least} or more for {found[1]}"
            raise ContractError(f"--arg {text}: {rule}, and not {align}")
    if found[2] is not None:
        shape = tuple(_extent(part, text, symbols) for part in found[2].split(",")) if found[2] else ()
        if len(shape) > _MOST_MODES:
            raise ContractError(f"--arg {text}: {len(shape)} extents, and a tensor has {_MOST_MODES} at most")
        if math.prod(each for each in shape if isinstance(each, int)) > _MOST_EXTENT:
            raise ContractError(f"--arg {text}: more elements than 64 bits count")
        order = tuple(reversed(range(len(shape))))
        return make_fake_compact_tensor(kind, shape, stride_order=order, assumed_align=align)
    if found[3]:
        return make_ptr(kind, 0, assumed_align=align)
    return kind(0)


def _value(text: str) -> Any:
    """Return the Python value that --arg gives."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)
            return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, SyntaxWarning, TypeError, MemoryError, RecursionError):
        shown = text if len(text) < 80 else f"{text[:77]}..."
        types = f"f32, f16[m,n%16], i32*, stream; elements {', '.join(_TYPES)}"
        raise ContractError(f"--arg {shown}: this is neither a type ({types}) nor a Python value") from None


def _number(digits: str, text: str, what: str, most: int) -> int:
    """Return a positive number in --arg."""
    if not re.fullmatch("[0-9]{1,19}", digits) or not 0 < int(digits) <= most:
        shown = text if len(text) < 80 else f"{text[:77]}..."
        raise ContractError(f"--arg {shown}: {what} is a number from 1 to {most}, and not {digits[:20]!r}")
    return int(digits)


def _result(text: str) -> tuple[str, Any]:
    name, equals, made = text.partition("=")
    if not equals:
        raise ContractError(f"--result {text}: write NAME=INPUT, or NAME=EXTENT,EXTENT")
    extents = [int(part) if re.fullmatch("[0-9]{1,18}", part) else part for part in made.split(",")]
    return name, extents[0] if len(extents) == 1 and isinstance(extents[0], str) and "." not in made else tuple(extents)


def _extent(part: str, text: str, symbols: dict[str, Any]) -> Any:
    if part[:1].isdigit():
        return _number(part, text, "an extent", _MOST_EXTENT)
    found = _EXTENT.fullmatch(part)
    if found is None:
        raise ContractError(f"--arg {text}: {part!r} is not an extent: write a number, a name, or a name%16")
    has_multiple = found[2] is not None
    multiple = _number(found[2], text, f"the divisor of {found[1]}", _MOST_ALIGNMENT) if has_multiple else 1
    symbol = symbols.setdefault(found[1], SymInt(divisibility=multiple))
    if has_multiple and multiple != symbol.divisibility:
        where = f"and of {symbol.divisibility} where it was named first: write {part} there"
        raise ContractError(f"--arg {text}: {found[1]} is a multiple of {multiple} here, {where}")
    return symbol
