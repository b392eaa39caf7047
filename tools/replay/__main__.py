"""Compile a fixed corpus with two revisions and compare what comes out: `make replay BASE=main`, or

    python tools/replay                              # the working tree against HEAD
    python tools/replay main~3 --only gemm           # against another revision; cases with "gemm" in target/name
    python tools/replay main --only 'sm_90a/attention backward/(64|128)' --only norm   # regular expressions
    python tools/replay main --record                # compile the revision's cases into the cache, compare nothing
    python tools/replay --sass                       # ptxas for all cases, not only for those whose PTX differs
    python tools/replay --renames old-new.txt        # IR in which words were renamed too: a pair in each line
    python tools/replay --list --only mla            # names of cases

For each case (`corpus.py`) and target it compares the traced IR without locations, the PTX, and how kernels are launched; on the CPU
target the IR and the size of the machine code. Symbols that follow the names of classes and functions are numbered, so that a rename
shows no difference. Where PTX differs, ptxas says what that means: registers, spills and instructions before and after. It exits with
1 if anything differs.

What a tree gave is kept in the cache (`--cache`, by default `replay` in the folder for temporary files) by the contents of its sources
and of the corpus: only cases that are not there are compiled. The corpus is the working tree's, and uses public names only; examples
and programs are each tree's own.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine_code
from corpus import RESULT, ROOT, TARGETS
from trees import Cache, Tree

HERE = Path(__file__).resolve().parent
SHARD = 12
"""Cases that a process compiles: enough that its start does not count, few enough that all cores are busy to the end."""
GROWTH = 1.0
"""Per cent by which registers, spills or instructions of a case may grow without a word at the end."""


# --- compiling -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which cases are compiled: patterns of which one is found in target/name, and whether ptxas runs."""

    patterns: tuple[re.Pattern[str], ...]
    sass: bool

    def __contains__(self, case: str) -> bool:
        return not self.patterns or any(pattern.search(case) for pattern in self.patterns)


def listed(tree: Tree, selection: Selection) -> list[tuple[str, str]]:
    """Return (target, name) of the selected cases of a tree."""
    words = [sys.executable, str(HERE / "corpus.py"), "--list"]
    lines = subprocess.run(words, check=True, capture_output=True, text=True, env=_environment(tree)).stdout
    found = (tuple(line.split("\t")) for line in lines.splitlines())
    return [(target, name) for target, name in found if f"{target}/{name}" in selection]


def _environment(tree: Tree, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "CUTE_DSL_"))}
    path = {"PYTHONPATH": str(tree.checkout / "src")}
    return {**kept, **path, "CUTE_DSL_DISABLE_FILE_CACHING": "1", **more}


def compile_corpus(tree: Tree, cases: list[tuple[str, str]], sass: bool, jobs: int, cache: Cache) -> None:
    """Compile the cases of a tree that its folder does not have."""
    out = _folder(tree, sass)
    missing = [(target, name) for target, name in cases if not (out / target / name / RESULT).exists()]
    shards: list[tuple[str, list[str]]] = []
    for target in TARGETS:
        names = [name for of, name in missing if of == target]
        count = -(-len(names) // SHARD)
        shards += [(target, names[k::count]) for k in range(count)]
    environment = _environment(tree) if sass else _environment(tree, KILN_PTXAS=str(cache.stand_in()))

    def run(shard: tuple[str, list[str]]) -> int:
        target, names = shard
        left = names
        while left:
            words = [sys.executable, str(HERE / "corpus.py"), "--target", target, "--out", str(out)]
            words += [*(["--sass"] if sass else []), *left]
            ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
            left = [name for name in left if not (out / target / name / RESULT).exists()]
            if left and not (out / target / left[0]).exists():
                raise SystemExit(f"replay: {tree.label}: {target}: {', '.join(left)}\n{ended.stderr}")
            if left:  # it died in this case
                said = json.dumps({"error": f"the process ended with {ended.returncode}: {ended.stderr[-300:]}"})
                (out / target / left.pop(0) / RESULT).write_bytes(gzip.compress(said.encode()))
        return len(names)

    done = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for count in pool.map(run, shards):
            done += count
            print(f"\r{tree.label}: {done} of {len(missing)}", end="", file=sys.stderr, flush=True)
    if missing:
        print(file=sys.stderr)


def _folder(tree: Tree, sass: bool) -> Path:
    return tree.results.with_name(tree.results.name + "-sass") if sass else tree.results


def load(tree: Tree, case: tuple[str, str], sass: bool) -> dict[str, Any] | None:
    """Return the results of a case; None if a tree does not have it."""
    file = _folder(tree, sass).joinpath(*case, RESULT)
    if not file.exists():
        return None
    made = json.loads(gzip.decompress(file.read_bytes()))
    made.pop("seconds", None)
    return made


# --- comparing -------------------------------------------------------------------------------------------------------


def differences(
    before: dict[str, Any], after: dict[str, Any], renames: dict[str, str], cache: Cache
) -> tuple[list[str], float]:
    """Return what differs in a case, in words, and the growth of its machine code in per cent."""
    found: list[str] = []
    growth = 0.0
    if "error" in before and "error" in after:  # both refuse it, in whatever words
        return [], 0.0
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if key.startswith("IR") and isinstance(old, str):
            for word, other in renames.items():
                old = old.replace(word, other)
        if old == new:
            continue
        if key.startswith("PTX") and isinstance(old, str) and isinstance(new, str):
            said, grown = machine_differences(old, new, cache)
            found.append(f"{key}: {said}")
            growth = max(growth, grown)
        elif isinstance(old, dict) and isinstance(new, dict):
            parts = [part for part in sorted({*old, *new}) if old.get(part) != new.get(part)]
            found.append(f"{key}: " + ", ".join(f"{p} {old.get(p, 0)} -> {new.get(p, 0)}" for p in parts))
        elif isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
            one, other = old.splitlines(), new.splitlines()
            changed = sum(a != b for a, b in zip(one, other, strict=False))
            found.append(f"{key}: lines {len(one)} -> {len(other)}, {changed} differ by position")
        else:
            found.append(f"{key}: {_short(old)} -> {_short(new)}")
    return found, growth


def machine_differences(old: str, new: str, cache: Cache) -> tuple[str, float]:
    """Return what other PTX means for the machine code, and the growth of it in per cent."""
    before, after = machine_code.assemble(old, cache.folder), machine_code.assemble(new, cache.folder)
    if isinstance(before, str) or isinstance(after, str):
        return f"{before if isinstance(before, str) else ''} -> {after if isinstance(after, str) else ''}", 100.0
    if before.digest == after.digest:
        return "differs, SASS equal", 0.0
    pairs = {
        "registers": (sum(before.registers), sum(after.registers)),
        "spills": (before.spills, after.spills),
        "stack": (before.stack, after.stack),
        "instructions": (before.instructions, after.instructions),
    }
    grown = {name: 100.0 * (b - a) / max(a, 1) for name, (a, b) in pairs.items()}
    pairs["registers"] = before.registers, after.registers  # type: ignore[assignment]
    shown = (f"{name} {a} -> {b}" + (f" ({grown[name]:+.1f} %)" if a != b else "") for name, (a, b) in pairs.items())
    return ", ".join(shown), max(grown.values())


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value).strip().splitlines()[-1] if str(value).strip() else ""
    return text if len(text) < 160 else text[:157] + "..."


def compare(
    trees: tuple[Tree, Tree], cases: tuple[list[Any], list[Any]], asked: argparse.Namespace, cache: Cache
) -> int:
    """Print what differs between two trees, and return how many cases do."""
    renames = dict(line.split() for line in asked.renames.read_text().splitlines() if line) if asked.renames else {}
    known = [{case: load(tree, case, asked.sass) or {} for case in found} for tree, found in zip(trees, cases)]
    both = [case for case in known[0] if case in known[1]]
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        each = pool.map(lambda case: differences(known[0][case], known[1][case], renames, cache), both)
        results = dict(zip(both, each))
    for case, (found, _) in results.items():
        name = "/".join(case)
        if not found and asked.verbose:
            print(f"{name}: IR equal, PTX equal{_failed(known[1][case])}")
        elif found:
            equal = [kind for kind in ("IR", "PTX") if not any(line.startswith(kind) for line in found)]
            print(f"{name}: {''.join(f'{kind} equal; ' for kind in equal)}{'; '.join(found)}")
    for label, own, other in zip(("before", "after"), known, reversed(known)):
        for case in own:
            if case not in other:
                print(f"{'/'.join(case)}: only {label}")
    failed = sum("error" in known[1][case] for case in both)
    changed = [case for case, (found, _) in results.items() if found]
    for case, (_, growth) in results.items():
        if growth > GROWTH:
            print(f"over +{GROWTH:g} %: {'/'.join(case)}: {growth:+.1f} %")
    print(f"{len(both)} cases ({failed} of them are refused), {len(changed) or 'no'} with differences")
    return len(changed)


def _failed(result: dict[str, Any]) -> str:
    return f" (refused: {_short(result['error'])})" if "error" in result else ""


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser("replay", description=__doc__, formatter_class=raw)
    options.add_argument("revision", nargs="?", default="HEAD")
    options.add_argument("--only", action="append", default=[], help="cases with this pattern in target/name")
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--sass", action="store_true", help="compare SASS and resources of all cases")
    options.add_argument("--renames", type=Path, help="a file: an old and a new word of the IR in each line")
    options.add_argument("--record", action="store_true", help="compile the revision's cases and compare nothing")
    options.add_argument("--list", action="store_true", help="print the names of the cases")
    options.add_argument("--verbose", action="store_true", help="print a line for cases without differences too")
    options.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "replay")
    asked = options.parse_args()
    cache, selection = Cache(asked.cache), Selection(tuple(map(re.compile, asked.only)), asked.sass)
    tree = cache.tree(ROOT, "working tree")
    if asked.list:
        print("\n".join("/".join(case) for case in listed(tree, selection)))
        return 0
    base = cache.revision(asked.revision)
    cases = listed(base, selection)
    compile_corpus(base, cases, asked.sass, asked.jobs, cache)
    if asked.record:
        return 0
    own = listed(tree, selection)
    compile_corpus(tree, own, asked.sass, asked.jobs, cache)
    return 1 if compare((base, tree), (cases, own), asked, cache) else 0


if __name__ == "__main__":
    sys.exit(main())
