"""`kiln doctor --project`: what of `cutlass` a code base uses and Kiln lacks, read from its files without importing them."""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import metadata
from inspect import Parameter
from pathlib import Path
from typing import NamedTuple

from kiln import _alias
from kiln.base_dsl import settings
from kiln.hardware import architectures, toolchain
from kiln.workbench.core import cutlass_uses, served_names
from kiln.workbench.core.cutlass_uses import Use, Uses
from kiln.workbench.core.served_names import Lacking

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
_REQUIREMENTS = re.compile(
    r".*(requirements|constraints)[^/]*(/[^/]+)?\.(txt|in)|.*/(pyproject\.toml|setup\.cfg|METADATA|[^/]*\.ya?ml|Dockerfile[^/]*)"
)
"""Paths of files that may say which version they want."""
_LARGE = 8 << 20
"""Bytes of source from which several processes read it."""
_SHOWN = 3
"""Places of a finding that the table shows; JSON has all."""


@dataclass(order=True)
class Finding:
    """Something that the code base asks for, with the places that do."""

    group: str
    """"lacking", "optional" (the program goes on without it), "patched", "version" or "architecture"."""
    kind: str
    """"module", "name", "keyword" or "argument" for what is lacking."""
    name: str
    why: str = ""
    served: bool = False
    places: dict[str, None] = field(default_factory=dict)
    """`file:line`, relative to the project, each once."""


@dataclass
class Report:
    """What a code base asks of Kiln."""

    project: str
    findings: list[Finding]
    modules: int
    """Python files that use `cutlass`."""
    served: int
    """Those of them that use only what Kiln has."""
    unreadable: list[str]
    """Files that use `cutlass` and are no Python."""

    @property
    def summary(self) -> str:
        return f"{self.served} of {self.modules} modules use only what Kiln has"


def run(args: argparse.Namespace) -> int:
    """Examine `args.project` and print the report; 0 if nothing is lacking."""
    folder = Path(args.project)
    if not folder.is_dir():
        print(f"kiln doctor: --project {args.project}: there is no such folder", file=sys.stderr)
        return 2
    report = examine(folder, args.exclude)
    if args.json:
        findings = [{**asdict(one), "places": list(one.places)} for one in report.findings]
        print(json.dumps({**asdict(report), "findings": findings, "summary": report.summary}, indent=2))
    else:
        print("\n".join([*lines(report), report.summary]))
    return 0 if report.served == report.modules else 1


def examine(folder: Path, exclude: Sequence[str] = ()) -> Report:
    """Return what the Python files below a folder ask of `cutlass`."""
    by_name: dict[tuple[str, str], Finding] = {}
    report = Report(str(folder), [], 0, 0, [])

    def add(group: str, kind: str, name: str, places: Iterable[str], why: str = "", served: bool = False) -> None:
        one = by_name.setdefault((group, name), Finding(group, kind, name, why, served))
        one.kind = kind if kind == "module" else one.kind
        one.places.update(dict.fromkeys(places))

    paths = list(_files(folder, exclude))
    for path in (path for path in paths if path.suffix != ".py"):
        for line, specifier in _required(path):
            place = f"{path.relative_to(folder).as_posix()}:{line}"
            add("version", "requirement", specifier or "any", [place], *_satisfied(specifier))
    read = list(_read(path for path in paths if path.suffix == ".py"))
    put_there = {use.name for _, uses in read if uses is not None for use in uses.uses if use.kind == "patch"}
    for path, uses in read:
        name = path.relative_to(folder).as_posix()
        if uses is None:
            report.unreadable.append(name)
            continue
        for line, specifier in uses.versions:
            add("version", "code", specifier or "read by the program", [f"{name}:{line}"], *_satisfied(specifier))
        if not uses.uses:
            continue
        report.modules += 1
        for line, arch in uses.architectures:
            add("architecture", "", arch, [f"{name}:{line}"], *_compiled(arch))
        lacking = False
        for group, kind, what, why, lines_of_use in _lacking(uses, put_there):
            lacking |= group == "lacking"
            add(group, kind, what, (f"{name}:{line}" for line in lines_of_use), why)
        for use, lines_of_use in uses.uses.items():
            if use.kind == "patch":
                served = not isinstance(served_names.find(use.name), Lacking)
                why = "" if served else "Kiln has no such name"
                add("patched", "", use.name, (f"{name}:{line}" for line in lines_of_use), why, served)
        report.served += not lacking
    order = list(_TITLES)
    report.findings = sorted(by_name.values(), key=lambda one: (order.index(one.group), -len(one.places), one.name))
    return report


def _read(paths: Iterable[Path]) -> Iterator[tuple[Path, Uses | None]]:
    """Yield the files that name `cutlass`, with their uses; large code bases are read by several processes."""
    sources = {path: text for path in paths if b"cutlass" in (text := path.read_bytes())}
    if sum(map(len, sources.values())) < _LARGE:
        yield from zip(sources, map(_uses, sources.values()))
        return
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")) as pool:
        yield from zip(sources, pool.map(_uses, sources.values(), chunksize=4))


def _uses(source: bytes) -> Uses | None:
    try:
        return cutlass_uses.read(source.decode("utf-8", "replace"))
    except (SyntaxError, RecursionError, ValueError):
        return None


def _files(folder: Path, exclude: Sequence[str]) -> Iterator[Path]:
    """Yield Python files and those with requirements, but for another implementation of `cutlass` in the tree."""
    for parent, folders, names in os.walk(folder):
        below = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        folders[:] = sorted(name for name in below if not _is_left_out(Path(parent, name), folder, exclude))
        for name in sorted(names):
            path = Path(parent, name)
            if name.endswith(".py") or _REQUIREMENTS.fullmatch(f"/{path.relative_to(folder).as_posix()}"):
                yield path


def _is_left_out(path: Path, folder: Path, exclude: Sequence[str]) -> bool:
    implementation = path.name == _alias.ALIAS and (path / "__init__.py").exists()
    return implementation or any(path.relative_to(folder).match(pattern) for pattern in exclude)


def _required(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("#") and (match := cutlass_uses.REQUIREMENT.search(line)):
            yield number, "".join(match[1].split())


# ---- what Kiln lacks


def _lacking(uses: Uses, put_there: set[str]) -> Iterator[tuple[str, str, str, str, list[int]]]:
    """Yield what Kiln lacks: "lacking" or "optional", what kind of thing it is, its name, why, and lines.

    `put_there` has the names that the program itself gives to `cutlass`, in any file.
    """
    optional = uses.optional | put_there
    for use, lines_of_use in uses.uses.items():
        if use.kind == "patch":
            continue
        served = served_names.module(use.name) if use.kind == "module" else served_names.find(use.name)
        if isinstance(served, Lacking):
            free = use.optional or use.name in optional or served.name in optional
            if use.kind != "call":  # the name of a call has a use of its own
                why = "" if served.why == "missing" else served.why
                yield "optional" if free else "lacking", use.kind, served.name, why, lines_of_use
            if free:
                optional.add(served.name)
        elif use.kind == "call":
            for kind, name, why in _refused(use, served):
                yield "optional" if use.optional else "lacking", kind, name, why, lines_of_use


def _refused(use: Use, served: object) -> Iterator[tuple[str, str, str]]:
    """Yield arguments of a call that Kiln's function does not take."""
    takes = _taken(use.name, served)
    for name in use.keywords:
        if takes.names is not None and name not in takes.names:
            yield "keyword", f"{use.name}({name}=)", f"it has {', '.join(sorted(takes.names)) or 'none'}"
    if use.positional > takes.most:
        yield "argument", f"{use.name}: argument {use.positional}", f"it takes {takes.most} without names"


class _Taken(NamedTuple):
    names: frozenset[str] | None
    """The keywords that a function takes; None for all."""
    most: float
    """The number of positional arguments."""


_calls: dict[str, _Taken] = {}


def _taken(name: str, served: object) -> _Taken:
    if name not in _calls:
        signature = served_names.signature(served)
        parameters = [] if signature is None else list(signature.parameters.values())
        kinds = {one.kind for one in parameters}
        named = (one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
        positional = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)
        anything = signature is None or Parameter.VAR_KEYWORD in kinds
        any_number = signature is None or Parameter.VAR_POSITIONAL in kinds
        _calls[name] = _Taken(None if anything else frozenset(named), math.inf if any_number else positional)
    return _calls[name]


# ---- versions and architectures


@functools.cache
def _satisfied(specifier: str) -> tuple[str, bool]:
    """Return whether the version that Kiln serves is one that a specifier such as ">=4.5,<5" allows, with a reason."""
    served_names.module("cutlass")
    served = metadata.version(cutlass_uses.DISTRIBUTION)
    parts = [part for part in specifier.split(",") if part]
    allowed = [one for one in (*settings.CUTLASS_VERSIONS, served) if all(_allows(part, one) for part in parts)]
    if served in allowed or not allowed:
        return f"Kiln serves {served}", bool(allowed)
    return f"Kiln serves {served}, or another: KILN_CUTLASS_VERSION={allowed[-1]}", False


def _allows(part: str, version: str) -> bool:
    match = re.fullmatch(r"([<>=!~]=?|===)([\w.*+]+)", part)
    if match is None:
        return True
    sign, text = match.groups()
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    have = [int(number) for number in re.findall(r"\d+", version)]
    if text.endswith(".*") or sign == "~=":
        same = have[: len(numbers) - (sign == "~=")] == numbers[: len(numbers) - (sign == "~=")]
        return not same if sign == "!=" else same and (sign != "~=" or have >= numbers)
    width = max(len(numbers), len(have))
    numbers += [0] * (width - len(numbers))
    have += [0] * (width - len(have))
    return {
        "<": have < numbers,
        "<=": have <= numbers,
        ">": have > numbers,
        ">=": have >= numbers,
        "==": have == numbers,
        "===": have == numbers,
        "!=": have != numbers,
    }.get(sign, True)


@functools.cache
def _compiled(name: str) -> tuple[str, bool]:
    """Return whether Kiln compiles for an architecture, with what is in the way."""
    arch = architectures.Arch.__members__.get(name)
    if arch is None:
        return f"Kiln does not know it; {architectures.meant(name)}", False
    ptxas = toolchain.find("ptxas")
    version = ptxas.version() if ptxas else None
    if version is not None and arch.generation.ptx > toolchain.newest_ptx_of(version):
        return f"PTX only: ptxas of CUDA {version} is too old for cubins", True
    return "compiled", True


# ---- the report

_TITLES = {
    "lacking": "Kiln lacks",
    "optional": "Kiln lacks, and the program goes on without",
    "patched": "Names below `cutlass` that the program replaces",
    "version": f"Versions of {cutlass_uses.DISTRIBUTION} that it asks for",
    "architecture": "Architectures that it names",
}


def lines(report: Report) -> Iterator[str]:
    """Yield the report as text, without its last line."""
    for group, title in _TITLES.items():
        of_group = [one for one in report.findings if one.group == group]
        if of_group:
            yield f"{title}: {len(of_group)}"
            yield from (f"  {line}" for one in of_group for line in _finding(one))
            yield ""
    if report.unreadable:
        yield f"No Python of this version: {_places(report.unreadable)}"
        yield ""


def _finding(one: Finding) -> Iterator[str]:
    marked = {"version": "" if one.served else "refused: ", "architecture": "" if one.served else "refused: "}
    name = f"{one.kind} {one.name}" if one.group in ("lacking", "optional") else one.name
    why = f" ({marked.get(one.group, '')}{one.why})" if one.why else ""
    yield f"{len(one.places):5}  {name}{why}: {_places(one.places)}"


def _places(places: Iterable[str]) -> str:
    every = list(places)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more
