"""`kiln mcp`: a server of the Model Context Protocol on standard input and output.

Its tools are verbs: each runs `kiln VERB --json` in a process of its own, and returns that object. So a kernel that
crashes, hangs or prints does not disturb the server.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

import kiln

from .core import answers
from .core.options import Parser, option

_MOST_TEXT = 20_000
"""The most characters of what was printed that an answer has."""
_TIMEOUT = 600.0
_SANITIZED = "--sanitize=race,memory,sync"

INSTRUCTIONS = """Tools for kernels in Kiln, a Python language with CuTe's layouts (`import cutlass.cute as cute`).
No GPU is needed. Write a kernel, then: sanitize until findings is empty, verify until passed is true, inspect or profile
to see what limits it, kb for what is known about that, and verify again after each change."""

_EXPLAIN = """
import json, re, sys
import numpy as np
from kiln import kernels
name, texts = json.loads(sys.argv[1])
kinds = {"f16": np.float16, "f32": np.float32, "i32": np.int32, "i64": np.int64}
if any(text.startswith("bf16") for text in texts):
    import ml_dtypes
    kinds["bf16"] = ml_dtypes.bfloat16
def array(text):
    match = re.fullmatch(r"(\\w+)\\[([\\d,\\s]+)\\]", text.strip())
    if match is None or match[1] not in kinds:
        sys.exit(f"{text!r}: write a type of {', '.join(kinds)} and extents, as in f16[4096,4096]")
    return np.empty([int(extent) for extent in match[2].split(",")], kinds[match[1]])
function = getattr(kernels, name, None)
if function is None:
    sys.exit(f"kiln.kernels has no {name!r}; there are: {', '.join(sorted(n for n in dir(kernels) if n[0].islower()))}")
print(kernels.explain(function, *map(array, texts)))
"""


def verify(case: str, quick: bool = True, options: str = "", folder: str = ".") -> dict[str, object]:
    """Check a kernel against its reference: kinds of data, odd extents, strides, determinism, races and bounds.

    Args:
        case: A file with kernel_fn, get_inputs and reference_fn, or a module; `:NAME` picks a plan in it.
        quick: Only two kinds of data with one seed.
        options: More options of `kiln verify`, such as "--m 512 --kinds=odd".
        folder: The folder to work in.
    """
    return _ask("verify", [case, *(["--quick"] if quick else []), *shlex.split(options)], folder)


def sanitize(program: str, arguments: str = "", folder: str = ".") -> dict[str, object]:
    """Run a program on the CPU target and look for races, accesses out of bounds, misused barriers and deadlocks.

    Args:
        program: A Python file.
        arguments: The program's own arguments.
        folder: The folder to work in.
    """
    return _ask("run", ["--target", "cpu", _SANITIZED, program, *shlex.split(arguments)], folder)


def run(program: str, arguments: str = "", arch: str = "sm_90a", folder: str = ".") -> dict[str, object]:
    """Run a program on the CPU target, and return what it prints.

    Args:
        program: A Python file.
        arguments: The program's own arguments.
        arch: The GPU that the program sees.
        folder: The folder to work in.
    """
    return _ask("run", ["--target", "cpu", "--arch", arch, program, *shlex.split(arguments)], folder)


def profile(case: str, arch: str = "sm_90a", options: str = "", folder: str = ".") -> dict[str, object]:
    """Say what limits a kernel, from its machine code: registers, shared memory, instructions by line, occupancy.

    Args:
        case: A file with kernel_fn and get_inputs, or a module.
        arch: The architecture to compile for.
        options: More options of `kiln profile`.
        folder: The folder to work in.
    """
    return _ask("profile", [case, "--arch", arch, *shlex.split(options)], folder)


def inspect(program: str, what: str = "outline", arch: str = "sm_90a", folder: str = ".") -> dict[str, object]:
    """Show what became of a program.

    Args:
        program: A Python file, or a file with kernel_fn and get_inputs.
        what: "outline": roles, waits and copies; "resources": registers, spills, shared memory; "bank-conflicts";
            "coalescing".
        arch: The architecture to compile for.
        folder: The folder to work in.
    """
    counted = what in ("bank-conflicts", "coalescing")
    return _ask("inspect", [f"--{what}", *([] if counted else ["--arch", arch]), program], folder)


def kb(query: str, folder: str = ".") -> dict[str, object]:
    """Search what is known about kernels: optimizations with measured claims, mistakes, documentation, errors.

    Args:
        query: Words.
        folder: The project, whose own pages are searched, too.
    """
    return _ask("kb", ["search", *query.split()], folder)


def kb_page(name: str, folder: str = ".") -> dict[str, object]:
    """Return a page of the knowledge base as Markdown.

    Args:
        name: Its name, as `kb` lists it or an error's last line says.
        folder: The project.
    """
    return _ask("kb", ["show", name], folder)


def explain(function: str, arguments: list[str], arch: str = "sm_90a") -> dict[str, object]:
    """Say which kernel of the library a call takes, what bounds it, and why others were not chosen.

    Args:
        function: A function of kiln.kernels: gemm, flash_attention, softmax, rmsnorm.
        arguments: Its arrays, as "f16[4096,4096]".
        arch: The architecture of the GPU.
    """
    words = ["--target", "cpu", "--arch", arch, "-c", _EXPLAIN, json.dumps([function, arguments])]
    return _ask("run", words, ".")


TOOLS: tuple[Callable[..., dict[str, object]], ...] = (verify, sanitize, run, profile, inspect, kb, kb_page, explain)


def _ask(verb: str, words: list[str], folder: str) -> dict[str, object]:
    """Return the answer of a verb, with long texts cut in the middle."""
    answered = dataclasses.asdict(answers.ask(verb, words, timeout=_TIMEOUT, folder=folder))
    for name in ("output", "errors"):
        text = answered[name]
        if len(text) > _MOST_TEXT:
            half = _MOST_TEXT // 2
            answered[name] = f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
    return answered


class Server(Protocol):
    """What is used of the package `mcp`'s servers."""

    def tool(self) -> Callable[[Callable[..., dict[str, object]]], object]: ...

    def run(self, transport: str) -> None: ...


def server() -> Server:
    """Return the server with its tools, of version 2 of the package `mcp` or of version 1."""
    try:
        from mcp.server import MCPServer  # pyright: ignore[reportMissingImports]
    except ImportError:
        from mcp.server.fastmcp import FastMCP as MCPServer  # pyright: ignore[reportMissingImports]
    serving = MCPServer("kiln", instructions=INSTRUCTIONS)
    for tool in TOOLS:
        serving.tool()(tool)
    return serving


def main(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    if args.list:
        print("\n".join(f"{tool.__name__}: {(tool.__doc__ or '').splitlines()[0]}" for tool in TOOLS))
        return 0
    try:
        serving = server()
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] != "mcp":
            raise
        print("kiln mcp needs the package mcp: pip install 'kiln-dsl[mcp]'", file=sys.stderr)
        return 3
    serving.run("stdio")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln mcp",
        description="Serve the Model Context Protocol on standard input and output: tools that verify, sanitize, run, "
        f"profile and inspect kernels, and search the knowledge base. For Kiln {kiln.__version__}.",
    )
    option(parser, "--list", "list the tools", action="store_true")
    return parser
