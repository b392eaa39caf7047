"""Contract modules: the names they define, how they are imported, and the errors of a wrong one."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import linecache
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kiln import _alias
from kiln.base_dsl.target import get_target

from .. import serve_cuda
from . import source_closure
from .text import near_path

NAMES = {
    "kernel_fn": "kernel_fn(*inputs) runs the kernel and returns its output; with `configs` it takes config=",
    "reference_fn": "reference_fn(*inputs) computes the same in plain PyTorch or numpy",
    "get_inputs": "get_inputs(**problem) returns a list of arrays",
    "problems": "a list of dicts, or a function that returns one",
    "tolerance": '{"rtol": , "atol": }, "exact", or {"factor": 4} for the error model',
    "oracle_fn": "oracle_fn(*inputs) computes in fp64 what reference_fn computes in the inputs' own type",
    "flops_bytes": "flops_bytes(**problem) returns the algorithm's floating-point operations and bytes",
    "configs": "configs(**problem): a list of dicts or Tilings, or a dict of lists",
    "validate": "validate(config, problem, device) refuses a config with a reason",
    "perf_model": "perf_model(config, problem, device) predicts microseconds",
    "baselines": "a dict of names and functions of the inputs",
    "arch": '"sm_80+", "sm_90a", "sm_100a, sm_103a"',
    "mutates": "numbers of the inputs that the kernel changes, or True for all",
    "aliases": "whether an output may be a view of an input",
    "nondeterministic": "whether the same inputs may give different bits",
    "streams": "whether the kernel uses streams of its own",
}
"""The names that a contract module may define, with their meaning; the first three are required."""

REQUIRED = ("kernel_fn", "reference_fn", "get_inputs")


class ContractError(Exception):
    """A contract is wrong. Verbs print it and end with exit status 2."""

    def __init__(self, message: str, file: str | os.PathLike[str] | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.file: str | None = str(file) if file else None
        self.line = line

    def __str__(self) -> str:
        place = f"{near_path(self.file)}:{self.line or 1}: " if self.file else ""
        source = linecache.getline(self.file, self.line).strip() if self.file and self.line else ""
        return f"{place}{self.message}" + (f"\n    {source}" if source else "")


def import_file(path: Path) -> ModuleType:
    """Run a file as a new module, with its folder first on the path as for a program.

    The folder of its package comes before that, for modules that import the package by name.
    """
    package = path.parent
    while (package / "__init__.py").exists():
        package = package.parent
    for folder in dict.fromkeys((path.parent, package)):
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        sys.path.insert(0, str(folder))
    if package != path.parent:  # in a package: relative imports have to work
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        # Another project may have a package of the same name.
        if path_of(name) == path:
            return import_name(name)
    name = f"kiln_case_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    linecache.checkcache(str(path))
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__spec__ = importlib.util.spec_from_file_location(name, path)
    files = prepare(path)
    sys.modules[name] = module
    try:
        # Not by the loader, which would reuse code compiled for a file of the same size and second.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        raise contract_error("importing it raised", error, files, path) from error
    return module


def import_name(name: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        raise ContractError(f"there is no file and no module {name!r}")
    files = prepare(Path(spec.origin)) if spec.origin else {}
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise contract_error(f"importing {name} raised", error, files, spec.origin) from error


def path_of(where: str) -> Path:
    """Return the file of a contract that is named as `loading.load` takes it."""
    name = where if os.path.exists(where) else re.sub(r":[A-Za-z_]\w*$", "", where)
    if os.path.isdir(name):
        return Path(name, "kernel.py").resolve()
    if name.endswith(".py") or os.path.isfile(name):
        return Path(name).resolve()
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(name)
        return Path(spec.origin if spec is not None and spec.origin else name).resolve()
    return Path(name)


def prepare(path: Path) -> dict[Path, bytes]:
    """Install the alias `cutlass`, and serve_cuda for a contract that uses CUDA on the host; return the sources."""
    _alias.take_over()
    files = source_closure.source_files(path)
    if get_target().on_host and source_closure.asks_for_cuda(files):
        serve_cuda.activate()
    return files


def check_names(names: Mapping[str, object], file: str | None) -> None:
    """Raise ContractError if a name is missing or looks like a misspelt one of `NAMES`."""
    own = [name for name, value in names.items() if not name.startswith("_") and not isinstance(value, ModuleType)]
    for name, what in NAMES.items():
        if name in names:
            continue
        others = [each for each in own if each not in NAMES]
        near = difflib.get_close_matches(name, others, 1, 0.6 if name in REQUIRED else 0.85)
        near = near or [each for each in others if name in REQUIRED and each == name.removesuffix("_fn")]
        if name in REQUIRED:
            meant = f"; it has {near[0]!r}: did you mean that?" if near else ""
            line = line_of(file, near[0]) if near else None
            raise ContractError(f"a contract defines {name!r}, and this one does not{meant}\n    {what}", file, line)
        if near:
            text = f"{near[0]!r} is not a name of contracts; did you mean {name!r}? (or begin it with an underscore)"
            raise ContractError(f"{text}\n    {what}", file, line_of(file, near[0]))


def line_of(file: str | None, name: str) -> int | None:
    """Return the line that defines a name at the top level of a file; None if there is none."""
    if not file:
        return None
    pattern = re.compile(
        rf"(async\s+)?(def|class)\s+{re.escape(name)}\b|{re.escape(name)}\s*[:=]|(from|import)\b.*\b{re.escape(name)}\b"
    )
    for number, line in enumerate(linecache.getlines(file), 1):
        if pattern.match(line):
            return number
    return None


def contract_error(what: str, error: BaseException, files: Mapping[Path, bytes], file: Any) -> ContractError:
    """Return what a contract's code raised as a ContractError at the innermost line of the project."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() in files:
        return ContractError(f"{type(error).__name__}: {error.msg}", error.filename, error.lineno)
    own = {str(path) for path in files} | {str(file)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.realpath(frame.filename) in own]
    place = (frames[-1].filename, frames[-1].lineno) if frames else (file, None)
    text = str(error).strip()
    return ContractError(f"{what} {type(error).__name__}{': ' + text if text else ''}", *place)


def is_array(value: object) -> bool:
    """Return whether a value is an array: it has a shape and a dtype."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def short(value: Any) -> str:
    if is_array(value):
        return f"an array of shape {tuple(value.shape)}; write [x]"
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."
