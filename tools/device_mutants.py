"""Deletes or weakens each flag of programs for several GPUs, and writes which of them the sanitizer finds.

    python tools/device_mutants.py --devices 2 --arch sm_100a prog.py -- --M 64 --N 128

A flag is a call that raises one or waits for one. It is deleted, its order becomes relaxed, its scope narrower. The
mutant is found if `kiln run --devices N --sanitize` says something that it does not say of the program: a finding, a
deadlock, or the program's own check. A mutant that is refused before it runs is not counted. A row of Markdown for each
comes out, and a count.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

RAISES = ("multimem_red_add1", "red_add1", "multimem_red_relaxed_gpu_add1", "multimem_red_release_sys_add1")
WAITS = {
    "spin_lock_atom_cas_acquire_wait": "spin_lock_atom_cas_relaxed_wait",
    "spin_lock_atom_cas_relaxed_wait": "",
    "spin_lock_ld_lt_relaxed_wait": "",
}
"""Functions that wait, and those that do it relaxed."""
ATOMICS = ("atomic_add", "atomic_cas", "atomic_exch", "load", "store")
"""Functions that are flags where they say an order or a scope."""
NARROWER = {"sys": "gpu", "gpu": "cta"}
OF_ATOMS = {"memory_scope": {"SYS": "GPU", "GPU": "CTA"}, "memory_order": {"VOLATILE": "WEAK", "RELAXED": "WEAK"}}
"""Options of copy atoms, and what is weaker."""
_FINDING = re.compile(r"([\w./-]+\.py):(\d+): (?:DSLWarning: )?(race|sync|memory|deadlock)( in [^\n]*)")
_DEADLOCK = re.compile(r"deadlock (in kernel|of several devices)")
_ERROR = re.compile(r"^\[\d+\] ([\w.]*(?:Error|Fault|Exception))\b", re.MULTILINE)


_REFUSED = re.compile(
    r"DSL\w+|CompilerDiagnosticError|(Syntax|Indentation|Name|Attribute|Type|Import|ModuleNotFound)Error"
)
"""Errors of a mutant that does not run."""
NOT_RUN = "not run"


class Mutant(NamedTuple):
    """A changed program."""

    line: int
    what: str
    text: str


def _replaced(text: str, node: ast.AST, new: str) -> str:
    """Return a program with other text in place of a node."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole = text.encode()
    begin = starts[node.lineno - 1] + node.col_offset  # pyright: ignore[reportAttributeAccessIssue]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # pyright: ignore[reportAttributeAccessIssue]
    return (whole[:begin] + new.encode() + whole[end:]).decode()


def mutants(text: str) -> Iterator[Mutant]:
    """Yield all mutants of a program."""
    tree = ast.parse(text)
    statements = {id(node.value): node for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Attribute) and node.arg in OF_ATOMS:
            weaker = OF_ATOMS[node.arg].get(node.value.attr)
            if weaker is not None:
                name = ast.unparse(node.value)[: -len(node.value.attr)] + weaker
                yield Mutant(node.lineno, f"{node.arg} becomes {weaker}", _replaced(text, node.value, name))
            continue
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        words = {
            each.arg: each.value
            for each in node.keywords
            if isinstance(each.value, ast.Constant) and each.arg in ("order", "sem", "scope")
        }
        if name not in RAISES and name not in WAITS and not (name in ATOMICS and words):
            continue
        if id(node) in statements:
            statement = statements[id(node)]
            nothing = "pass" + "\n" * ((statement.end_lineno or statement.lineno) - statement.lineno)
            yield Mutant(node.lineno, f"{name} deleted", _replaced(text, statement, nothing))
        relaxed = WAITS.get(name)
        if relaxed:
            plain = _replaced(text, node.func, ast.unparse(node.func).replace(name, relaxed))
            yield Mutant(node.lineno, f"{name} relaxed", plain)
        for word, value in words.items():
            if word == "scope" and value.value in NARROWER:
                narrow = NARROWER[str(value.value)]
                yield Mutant(node.lineno, f"{name}: scope {narrow}", _replaced(text, value, repr(narrow)))
            elif word != "scope" and value.value != "relaxed":
                yield Mutant(node.lineno, f"{name}: {value.value} becomes relaxed", _replaced(text, value, '"relaxed"'))


class Outcome(NamedTuple):
    """What a run says."""

    findings: frozenset[tuple[int, str, bool]]
    """Lines, kinds, and whether they are about scopes."""
    status: int
    text: str
    seconds: float


def run(path: Path, options: argparse.Namespace, arguments: Sequence[str], seed: int = 0) -> Outcome:
    """Run a program with the sanitizer. A mutant imports what is beside the program."""
    command = [sys.executable, "-m", "kiln", "run", "--devices", str(options.devices), "--sanitize"]
    command += [*(["--arch", options.arch] if options.arch else []), str(path), *arguments]
    places = [str(options.program.parent.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "KILN_CPU_SEED": str(seed), "PYTHONPATH": os.pathsep.join(places)}
    begun = time.monotonic()
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=options.timeout, env=environment
        )
        text, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        text, status = "", 124
    found = [match for match in _FINDING.finditer(text) if match[1].endswith(path.name)]
    lines = frozenset((int(match[2]), match[3], "with scope" in match[4]) for match in found)
    return Outcome(lines, status, text, time.monotonic() - begun)


def verdict(before: Outcome, after: Outcome) -> str:
    """Return how a mutant is found; empty if it is not, `NOT_RUN` if it was refused."""
    new = after.findings - before.findings
    if new:
        return ", ".join(sorted({"scope" if scope else kind for _, kind, scope in new}))
    if _DEADLOCK.search(after.text) and not _DEADLOCK.search(before.text):
        return "deadlock"
    if after.status == 124 and before.status != 124:
        return "no end"
    errors = {*_ERROR.findall(after.text)} - {*_ERROR.findall(before.text)}
    if errors and all(_REFUSED.fullmatch(each.rpartition(".")[2]) for each in errors):
        return NOT_RUN
    return "wrong result" if errors or (after.status and not before.status) else ""


def main(argv: Sequence[str]) -> int:
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--arch")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--seeds", type=int, default=1, help="seeds under which the program itself runs")
    options = parser.parse_args(words[:at])
    arguments = words[at + 1 :]
    text = options.program.read_text()
    every = [run(options.program, options, arguments, seed) for seed in range(options.seeds)]
    before = every[0]._replace(findings=frozenset().union(*(each.findings for each in every)))
    said = ", ".join(f"{line}: {'scope' if scope else kind}" for line, kind, scope in sorted(before.findings))
    print(f"{options.program.name}: {every[0].seconds:.0f} s, status {before.status}, {said or 'silent'}", flush=True)
    if before.status == 124:
        print("nothing can be said of mutants of a program that does not end: see --timeout")
        return 1
    found = planted = 0
    for mutant in mutants(text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / options.program.name
            path.write_text(mutant.text)
            after = run(path, options, arguments)
        how = verdict(before, after)
        planted += how != NOT_RUN
        found += how not in ("", NOT_RUN)
        print(f"| {mutant.line} | {mutant.what} | {how or 'not found'} | {after.seconds:.0f} s |", flush=True)
    print(f"{found} of {planted} found")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
