"""Compile a fixed corpus with two checkouts and compare what comes out: `make replay`, or

    python tools/replay                        # the working tree against HEAD
    python tools/replay main~3 --only gemm     # against another revision; cases with "gemm" in their name
    python tools/replay --renames old-new.txt  # the traced IR after words of the old one were renamed: a pair in each line

For each case (`corpus.py`) and target it compares the traced IR without locations, the PTX, statistics of the SASS (instructions by
kind, registers, spills, shared memory) and, on the CPU target, the sizes of the machine code. It prints a table of differences
and exits with 1 if there are any. What a revision gave is kept in the user's cache directory, so that only the working tree is compiled
the next time. The corpus is always the working tree's, and uses public names only.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from corpus import ROOT, TARGETS

HERE = Path(__file__).resolve().parent


def git(*words: str, cwd: Path = ROOT) -> str:
    return subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


def corpus_digest() -> str:
    """Of everything the corpus is made of, and of the tools that compile it."""
    made = hashlib.sha256()
    folders = (HERE, ROOT / "examples", ROOT / "tests" / "targets" / "cpu" / "sanitizer" / "mutants")
    for file in sorted(f for folder in folders for f in folder.rglob("*.py")):
        made.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
    made.update(subprocess.run([sys.executable, "-m", "pip", "freeze"], capture_output=True, check=False).stdout)
    return made.hexdigest()[:16]


def compile_corpus(checkout: Path, out: Path, only: str, jobs: int, label: str) -> None:
    """Compile all cases with the Kiln of a checkout; each writes a folder below `out`."""
    listed = [sys.executable, str(HERE / "corpus.py"), "--list"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True, env=_environment(ROOT)).stdout
    wanted = [(*line.split("\t"),) for line in names.splitlines() if only in line.replace("\t", "/")]
    # a process compiles for one target; shards of a few cases keep all cores busy to the end
    shards: list[tuple[str, list[str]]] = []
    for target in TARGETS:
        mine = [name for of, name in wanted if of == target]
        shards += [(target, mine[k :: max(1, len(mine) // 8)]) for k in range(max(1, len(mine) // 8))] if mine else []
    done = 0

    def run(shard: tuple[str, list[str]]) -> int:
        target, cases = shard
        left = cases
        while left:
            words = [sys.executable, str(HERE / "corpus.py"), "--target", target, "--out", str(out), *left]
            ended = subprocess.run(words, env=_environment(checkout), capture_output=True, text=True, check=False)
            left = [case for case in left if not (out / target / case / "result.json").exists()]
            if left and not (out / target / left[0]).exists():
                raise SystemExit(f"replay: {label}: {target}: {', '.join(left)}\n{ended.stderr}")
            if left:  # it died in this case
                said = json.dumps({"error": f"the process ended with {ended.returncode}: {ended.stderr[-300:]}"})
                (out / target / left.pop(0) / "result.json").write_text(said)
        return len(cases)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for count in pool.map(run, shards):
            done += count
            print(f"\r{label}: {done} of {len(wanted)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _environment(checkout: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "CUTE_DSL_"))}
    return {**kept, "PYTHONPATH": str(checkout / "src"), "CUTE_DSL_DISABLE_FILE_CACHING": "1"}


def of_revision(revision: str, only: str, jobs: int) -> Path:
    """The results of a revision: kept ones, or made now in a worktree that is removed again."""
    commit = git("rev-parse", revision + "^{commit}")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kiln-replay"
    whole, kept = (
        home / "-".join((commit[:16], corpus_digest(), part)).rstrip("-") for part in ("", only.replace("/", "+"))
    )
    for folder in (whole, kept):
        if folder.is_dir():
            return folder
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as place:
        checkout, out = Path(place) / "checkout", Path(place) / "out"
        git("worktree", "add", "--detach", str(checkout), commit)
        try:
            compile_corpus(checkout, out, only, jobs, commit[:10])
        finally:
            git("worktree", "remove", "--force", str(checkout))
        with contextlib.suppress(OSError):  # another process may have been faster
            shutil.move(str(out), kept)
    return kept


def load(folder: Path, only: str) -> dict[str, dict[str, object]]:
    files = {str(f.parent.relative_to(folder)): f for f in folder.rglob("result.json")}
    return {case: json.loads(file.read_text()) for case, file in files.items() if only in case}


def differences(before: dict[str, object], after: dict[str, object], renames: dict[str, str]) -> list[tuple[str, str]]:
    """(what, how it changed) of one case."""
    found: list[tuple[str, str]] = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if key.endswith(".mlir") and isinstance(old, str):
            for word, other in renames.items():
                old = old.replace(word, other)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            for part in sorted({*old, *new}):
                if old.get(part) != new.get(part):
                    found.append((f"{key} {part}", f"{old.get(part, 0)} -> {new.get(part, 0)}"))
        elif isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
            lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
            removed, added = (sum(line.startswith(sign) for line in lines) for sign in "-+")
            found.append((key, f"-{removed} +{added} lines of {old.count(chr(10))}"))
        else:
            found.append((key, f"{_short(old)} -> {_short(new)}"))
    return found


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value).strip().splitlines()[-1] if str(value).strip() else ""
    return text if len(text) < 100 else text[:97] + "..."


def main() -> int:
    options = argparse.ArgumentParser(
        "replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("revision", nargs="?", default="HEAD")
    options.add_argument("--only", default="", help="cases with this in their name")
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--renames", type=Path, help="a file: an old and a new word of the IR in each line")
    options.add_argument(
        "--keep", type=Path, help="leave the results of the working tree there, beside those of the revision"
    )
    asked = options.parse_args()
    renames = (
        dict(line.split() for line in asked.renames.read_text().splitlines() if line.strip()) if asked.renames else {}
    )
    old_folder = of_revision(asked.revision, asked.only, asked.jobs)
    with tempfile.TemporaryDirectory() as place:
        new_folder = Path(place) / "out"
        compile_corpus(ROOT, new_folder, asked.only, asked.jobs, "working tree")
        before, after = load(old_folder, asked.only), load(new_folder, asked.only)
        if asked.keep:
            for name, folder in (("before", old_folder), ("after", new_folder)):
                shutil.copytree(folder, asked.keep / name, dirs_exist_ok=True)
    rows = [
        (case, what, how)
        for case in sorted({*before, *after})
        for what, how in differences(before.get(case, {}), after.get(case, {}), renames)
    ]
    width = [max((len(row[k]) for row in rows), default=0) for k in range(2)]
    for case, what, how in rows:
        print(f"{case:<{width[0]}}  {what:<{width[1]}}  {how}")
    changed = len({row[0] for row in rows})
    print(
        f"{len({*before, *after})} cases, {changed} with differences"
        if changed
        else f"{len(after)} cases, no differences"
    )
    return 1 if rows else 0


if __name__ == "__main__":
    sys.exit(main())
