"""`kiln import`: makes a package of somebody's program, so that all verbs work on it.

The source is copied as it is and never run here: its syntax tree says what it has. What that does not say is a hole in
the package, marked `# TODO(import)`. Problems of KernelBench and of GPU MODE say everything and have none.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..core.command_line import EXIT, report_errors
from ..core.contracts import ContractError
from ..core.options import Parser, flag, option
from ..kb.pages import shown
from .generated_files import class_name, docstring, is_name, literal, one_line, write_files
from .program_source import Source, beside, parameters, read

HOLE = "# TODO(import):"
UNFILLED = 'raise NotImplementedError("TODO(import) in the line above")'
_KERNEL_BENCH = {"Model", "get_inputs"}
_GPU_MODE = {"custom_kernel", "generate_input"}
_ROLES = ("original", "reference", "baseline")
"""Modules of a package that are copies."""
_RUN_ONLY = {
    "warmup_iterations",
    "iterations",
    "skip_ref_check",
    "use_cold_l2",
    "benchmark",
    "tolerance",
    "init_normal",
    "normal_mean",
    "normal_std",
    "profile",
    "verbose",
}
"""Options of public programs that say how they run, not on what."""


@report_errors
def main(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    source = read(Path(args.file))
    named = {"reference": args.reference, "baseline": args.baseline}
    also = {role: read(Path(text.partition(":")[0])) for role, text in named.items() if _is_file(text)}
    whole = {name for each in (source, *([also["reference"]] if "reference" in also else [])) for name in each.names}
    if args.entry and args.entry not in source.names:
        raise ContractError(f"it has no {args.entry!r}; it has: {', '.join(source.names) or 'nothing'}", source.path)
    name = args.name or re.sub(r"\W", "_", source.path.stem)
    if not is_name(name):
        raise ContractError(f"--as {name}: a package's name is an identifier")
    folder = Path(args.out or ".") / name
    if folder.exists() and any(folder.iterdir()) and not args.force:
        raise ContractError(f"{shown(folder)} exists: choose another name (--as), or --force")
    nearby = beside([source, *also.values()], _ROLES)
    if whole >= _KERNEL_BENCH or "ModelNew" in source.names:
        kind = "a KernelBench problem"
        files = _kernel_bench(source, also, args)
    elif whole >= _GPU_MODE:
        kind = "a GPU MODE problem"
        files = _gpu_mode(source, also, args)
    elif source.jit or source.kernels:
        kind = "a program with jit functions"
        files = _kernel_plan(source, also, args, name)
    else:
        neither = "neither Model and get_inputs (KernelBench) nor custom_kernel and generate_input (GPU MODE)"
        print(f"{shown(source.path)}: no function with @cute.jit or @cute.kernel, and {neither}")
        print(f"  it defines: {', '.join(source.names) or 'nothing'}")
        print(f"  it imports: {', '.join(source.imports) or 'nothing'}")
        return EXIT.FAILED
    copies = {f"{name}.py": each for name, each in {"original": source, **also, **nearby}.items()}
    if nearby:
        files = {file: _with_path(text, nearby) for file, text in files.items()}
    both = sorted(copies.keys() & files.keys())
    if name in ("__init__", "__main__"):
        raise ContractError(f"--as {name}: every package has a module of this name: choose another name (--as)")
    files = {"__init__.py": "", **files}
    if both:
        clash = f"{both[0]} would be a copy of {copies[both[0]].path} and the package's own"
        raise ContractError(f"{clash}: choose another name (--as)")
    for file, text in files.items():
        try:
            compile(text, file, "exec")
        except (SyntaxError, ValueError) as reason:
            raise ContractError(f"{file} would not be Python ({reason}): this is a bug of Kiln", source.path) from None
    write_files(folder, {**{file: each.data for file, each in copies.items()}, **files})
    del files["__init__.py"]
    _report(kind, source, folder, copies, files)
    return EXIT.GOOD


def _is_file(text: str | None) -> bool:
    return bool(text) and text.partition(":")[0].endswith(".py")  # pyright: ignore[reportOptionalMemberAccess]


# --- what every package has -----------------------------------------------------------------------------------------


def _with_path(text: str, nearby: dict[str, Source]) -> str:
    """Return the text with the package's folder on the path, before the package's modules are imported."""
    names = ", ".join(sorted(nearby))
    relative = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) and node.level]
    own = [node.lineno - 1 for node in relative if node.module is None]
    insert = f"sys.path.insert(0, str(Path(__file__).parent))  # for {names}"
    lines = text.split("\n")
    for at in own[:1]:
        lines[at:at] = ["import sys", "from pathlib import Path", "", insert]
    return "\n".join(lines)


def _head(source: Source, also: dict[str, Source]) -> str:
    lines = [f"Imported from `{source.path.name}`, which lies beside this file as original.py, unchanged.", ""]
    for file, each in (("original.py", source), *((f"{role}.py", other) for role, other in also.items())):
        lines.append(f"{file}: {each.path}\n  sha256 {each.hash}\n  {each.licence}")
    return docstring("\n".join(lines) + "\n") + "\n"


def _baselines(also: dict[str, Source], args: argparse.Namespace, indent: str = "") -> str:
    if not args.baseline:
        return ""
    function = args.baseline.partition(":")[2]
    if "baseline" not in also:
        raise ContractError(f"--baseline {args.baseline}: a file, or file:function")
    functions = [name for name, node in also["baseline"].names.items() if isinstance(node, ast.FunctionDef)]
    function = function or next(iter(functions), "")
    if function not in also["baseline"].names:
        raise ContractError(f"it has no function {function!r}", also["baseline"].path)
    return f"{indent}baselines = {{{also['baseline'].path.stem!r}: baseline.{function}}}\n"


# --- KernelBench and GPU MODE ----------------------------------------------------------------------------------------


def _kernel_bench(source: Source, also: dict[str, Source], args: argparse.Namespace) -> dict[str, str]:
    """Return a contract of `Model`, `ModelNew`, `get_inputs` and `get_init_inputs`, which may be in two files."""
    problem = "reference" if "reference" in also and "Model" in also["reference"].names else "original"
    solved = "ModelNew" in source.names or problem == "reference"
    new = args.entry or ("ModelNew" if "ModelNew" in source.names else "Model")
    modules = ["original"] + [role for role in ("reference", "baseline") if role in also]
    hole = "" if solved else f"    {HOLE} the source has no ModelNew: this runs the reference itself\n"
    init = f"{problem}.get_init_inputs()" if "get_init_inputs" in _of(problem, source, also).names else "[]"
    text = f'''{_head(source, also)}
import functools
import inspect

import torch

from . import {", ".join(modules)}

{_baselines(also, args)}

@functools.lru_cache(maxsize=1)
def models():
    """The reference and the kernel's model, on the GPU if there is one, with the same parameters."""
    made = []
    for kind in ({problem}.Model, original.{new}):
        torch.manual_seed(0)
        given = {init}
        # Some problems give a dict, or a list with one, of named arguments.
        named = given if isinstance(given, dict) else {{}}
        made.append(kind(*([] if named else given), **named).eval())
    before, after = made
    if [*before.state_dict()] == [*after.state_dict()]:
        after.load_state_dict(before.state_dict())
    return [model.cuda() if torch.cuda.is_available() else model for model in made]


def kernel_fn(*inputs):
{hole}    with torch.no_grad():
        return models()[1](*inputs)


def reference_fn(*inputs):
    model = models()[0]
    with torch.no_grad():  # parameters follow the type of the inputs, for a reference in fp64
        wide = [x for x in inputs if torch.is_tensor(x) and x.is_floating_point()]
        return (model.to(wide[0].dtype) if wide else model)(*inputs)


def get_inputs():
    made = {problem}.get_inputs()
    return [x.cuda() if torch.is_tensor(x) and torch.cuda.is_available() else x for x in made]
'''
    return {"kernel.py": re.sub(r"import inspect\n", "", re.sub(r"\n{4,}", "\n\n\n", text))}


def _of(role: str, source: Source, also: dict[str, Source]) -> Source:
    return source if role == "original" else also[role]


def _gpu_mode(source: Source, also: dict[str, Source], args: argparse.Namespace) -> dict[str, str]:
    """Return a contract of `custom_kernel`, `ref_kernel` and `generate_input`."""

    def place(name: str) -> str | None:
        roles = [role for role in ("original", "reference") if role in ("original", *also)]
        return next((role for role in roles if name in _of(role, source, also).names), None)

    make = place("generate_input")
    reference = place("ref_kernel")
    assert make is not None
    generator = _of(make, source, also).names["generate_input"]
    assert isinstance(generator, ast.FunctionDef)
    problems = _task(source) or [_default_problem(generator, source.path)]
    entry = args.entry or "custom_kernel"
    custom = source.names[entry]
    modules = ["original"] + [role for role in ("reference", "baseline") if role in also]
    wrong = f"    {HOLE} no ref_kernel was found: give its file by --reference\n    {UNFILLED}\n"
    right = f"    return {reference}.ref_kernel(packed(inputs))\n"
    writes = "mutates = aliases = True  # the kernel writes to an array of its input, and returns it\n"
    declared = writes if _returns_input(custom) else ""
    fields = ", ".join(name for name, _, _ in parameters(generator))
    text = f"""{_head(source, also)}
from . import {", ".join(modules)}

problems = {literal(problems, "problems", source.path)}
{declared}{_baselines(also, args)}_single = []  # whether the kernel takes one array, and not a tuple


def packed(inputs):
    return inputs[0] if _single else tuple(inputs)


def kernel_fn(*inputs):
    return original.{entry}(packed(inputs))


def reference_fn(*inputs):
{right if reference else wrong}

def get_inputs({fields}):
    data = {make}.generate_input({", ".join(f"{name}={name}" for name, _, _ in parameters(generator))})
    _single[:] = [] if isinstance(data, (tuple, list)) else [True]
    return [data] if _single else list(data)
"""
    return {"kernel.py": re.sub(r"\n{4,}", "\n\n\n", text)}


def _task(source: Source) -> list[dict[str, Any]]:
    """Return the tests of the `task.yml` beside a submission."""
    path = source.path.parent / "task.yml"
    if not path.is_file():
        return []
    import yaml  # an optional package

    try:
        task = yaml.safe_load(path.read_text()) or {}
    except (yaml.YAMLError, ValueError) as reason:
        raise ContractError(f"this cannot be read: {reason}", path) from None
    tests = task.get("tests") if isinstance(task, dict) else None
    return [each for each in tests if isinstance(each, dict)] if isinstance(tests, list) else []


def _default_problem(node: ast.FunctionDef, path: Path) -> dict[str, Any]:
    usual = {"seed": 0}
    problem: dict[str, Any] = {}
    for name, _, default in parameters(node):
        try:
            problem[name] = ast.literal_eval(default) if default is not None else usual.get(name, 64)
        except (ValueError, SyntaxError):
            what = f"the default of {name} is {one_line(default or '')}, and no constant"
            raise ContractError(f"{what}: name problems in a task.yml beside the file", path, node.lineno) from None
    return problem


def _returns_input(node: ast.AST) -> bool:
    """Return whether a function returns a name that it took from its argument."""
    taken = {
        name.id
        for each in ast.walk(node)
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Name)
        for target in each.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    returns = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
    returned = {value.id for value in returns if isinstance(value, ast.Name)}
    arguments = {arg.arg for arg in getattr(node, "args", ast.arguments([], [], None, [], [], None, [])).args}
    return bool(returned & (taken | arguments))


# --- programs with jit functions -------------------------------------------------------------------------------------


def _kernel_plan(source: Source, also: dict[str, Source], args: argparse.Namespace, name: str) -> dict[str, str]:
    entry = args.entry or _entry(source)
    function = source.jit.get(entry) or source.kernels.get(entry)
    if function is None and entry in source.names:  # a class: its __call__
        function = source.jit.get(f"{entry}.__call__")
    if function is None:
        raise ContractError(f"--entry {entry}: no jit function; there are: {', '.join(source.jit)}", source.path)
    kernel = next(iter(source.kernels), entry)
    plan = class_name(name)
    lines: list[str] = []
    for key, value in source.options.items():
        if key not in _RUN_ONLY and is_name(key):
            lines.append(f"    {key}: {_type(value)} = {literal(value, f'the default of {key}', source.path)}")
    lines = lines or ["    pass"]
    taken = ", ".join(f"{each}: {annotation}" if annotation else each for each, annotation, _ in parameters(function))
    taken = one_line(taken)
    run = next((node for each, node in source.names.items() if each == "run" or each.startswith("run_")), None)
    where = f"; the source does so in {run.name}(), from line {run.lineno} on" if run else ""
    reference = f"        {HOLE} what the kernel computes, in PyTorch or numpy{where}\n        {UNFILLED}\n"
    if args.reference:
        reference = f"        return {_reference(source, also, args)}(*inputs)\n"
    modules = ["original"] + [role for role in ("reference", "baseline") if role in also]
    is_class = "." in entry or (entry in source.names and entry not in source.jit)
    call = f"original.{entry.removesuffix('.__call__')}{'(...)' if is_class else ''}"
    text = f'''{_head(source, also)}
from dataclasses import dataclass

from kiln.workbench import CuteKernel, KernelPlan

from . import {", ".join(modules)}

# jit functions: {", ".join(f"{each} (line {node.lineno})" for each, node in source.jit.items()) or "none"}
# kernels: {", ".join(f"{each} (line {node.lineno})" for each, node in source.kernels.items()) or "none"}


@dataclass
class {plan}(KernelPlan):
    {docstring(f"{entry} of {source.path.name}.")}

    # options of its command line
{chr(10).join(lines)}

    arch = "{_arch(source.text)}"  {HOLE} guessed from the instructions that it names
{_baselines(also, args, "    ")}
    def prepare_inputs(self):
        {HOLE} the arrays that {entry}({taken}) takes{where}
        {UNFILLED}

    def reference_fn(self, *inputs):
{reference}
    def _algorithmic_flops_bytes(self):
        {HOLE} (operations, bytes) that no kernel can do without
        return None

    def plan(self, *inputs):
        def launch(tiling):
            {HOLE} how {entry}({taken}) is called with them
            {call}(*inputs)

        return CuteKernel(
            kernel_fn=original.{kernel.partition(".")[0]},
            launch_fn=launch,
            input_tensors=list(inputs),
            output_tensors=[inputs[-1]],  {HOLE} which of them it writes
            algorithmic_flops_bytes_fn=self._algorithmic_flops_bytes,
        )
'''
    command = f'''"""`python -m {name} --help`"""

from .{name} import {plan}

if __name__ == "__main__":
    {plan}().benchmark_kernel_argparse()
'''
    return {f"{name}.py": re.sub(r"\n{4,}", "\n\n\n", text), "__main__.py": command}


def _entry(source: Source) -> str:
    """Return the jit function that a host calls: one that launches a kernel, or that no other calls."""

    def launches(node: ast.AST) -> bool:
        return any(getattr(each, "attr", "") == "launch" for each in ast.walk(node))

    launching = [name for name, node in source.jit.items() if launches(node)]
    return (launching or list(source.jit) or list(source.kernels))[-1 if not launching else 0]


def _reference(source: Source, also: dict[str, Source], args: argparse.Namespace) -> str:
    if "reference" not in also:
        if args.reference not in source.names:
            wrong = f"--reference {args.reference}: neither a file nor a function of the source"
            raise ContractError(wrong, source.path)
        return f"original.{args.reference}"
    function = args.reference.partition(":")[2]
    functions = [name for name, node in also["reference"].names.items() if isinstance(node, ast.FunctionDef)]
    if function and function not in functions:
        has = ", ".join(functions) or "none"
        raise ContractError(f"it has no function {function!r}; it has: {has}", also["reference"].path)
    if not function and len(functions) != 1:
        raise ContractError(
            f"it has {len(functions)} functions: write {args.reference}:FUNCTION", also["reference"].path
        )
    return f"reference.{function or functions[0]}"


def _type(value: object) -> str:
    return type(value).__name__ if isinstance(value, (bool, int, float, str, tuple)) else "object"


def _arch(text: str) -> str:
    for words, arch in (("tcgen05", "sm_100a"), ("warpgroup|wgmma|sm90", "sm_90a"), ("CopyBulk|Tma|cluster", "sm_90+")):
        if re.search(words, text):
            return arch
    return "sm_80+"


# --- the command -----------------------------------------------------------------------------------------------------


def _report(kind: str, source: Source, folder: Path, copies: Iterable[str], new_files: Iterable[str]) -> None:
    files = [*copies, *new_files]
    print(f"{one_line(str(shown(source.path)))}: {kind} (sha256 {source.hash[:12]}; {source.licence})")
    for what, definitions in (("jit functions", source.jit), ("kernels", source.kernels)):
        if definitions:
            print(f"  {what}: " + ", ".join(f"{name} (line {node.lineno})" for name, node in definitions.items()))
    if source.options:
        print("  options: " + ", ".join(source.options))
    first = folder / next(iter(new_files))
    lines = enumerate(first.read_text().splitlines(), 1)
    holes = [f"  {shown(first)}:{n}: {line.partition(HOLE)[2].strip()}" for n, line in lines if HOLE in line]
    marked = ", each marked `TODO(import)`:" if holes else ""
    print(f"{shown(folder)}: {', '.join(files)}; {len(holes)} holes{marked}")
    print(*holes, f"next: kiln verify {shown(first)}", sep="\n")


def make_parser() -> argparse.ArgumentParser:
    description = (
        "Make a package of a program: its source as it is, and a KernelPlan or a contract for the other verbs."
    )
    parser = Parser(prog="kiln import", description=description)
    file_help = "a program with jit functions, a KernelBench or a GPU MODE problem; it is not run"
    parser.add_argument("file", metavar="FILE", help=file_help)
    option(parser, "--as NAME", "the package's name; by default the file's", dest="name")
    option(parser, "--entry NAME", "the jit function, model or function to call; by default it is found")
    option(parser, "--reference FILE[:NAME]|NAME", "the function that computes the right result")
    option(parser, "--baseline FILE[:NAME]", "a function to compare the speed with")
    option(parser, "-o --out FOLDER", "the folder in which to make the package; by default this one")
    flag(parser, "--force", "overwrite an existing package")
    return parser
