"""Random programs, run by Kiln and by plain Python, for as long as one likes.

    python tests/helpers/fuzz.py --seeds 0:1000 [--jobs 2] [--resume FILE] [--only P] [--without P] [--save]
    python tests/helpers/fuzz.py --show SEED | --minimize SEED | --each

Programs run in worker processes, which may crash or hang. With `--resume FILE` each verdict is a line of FILE, and seeds that
are there already are not run again. `--save` adds a row to docs/data/fuzz.md. Exit status 1: a program was wrong, crashed, hung, or was refused without saying why.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import platform
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import program_minimizer
import random_programs
from program_productions import PRODUCTIONS
from program_verdicts import BAD, CRASH, HANG, REFUSED, RIGHT, VERDICTS, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PROGRAMS_OF_A_WORKER = 400
"""Then a new one starts: compiled code is kept for as long as a process lives."""
SECONDS_OF_A_PROGRAM = 30
SETTINGS = {"KILN_TARGET": "cpu", "KILN_CPU_OPT": "0", "CUTE_DSL_DISABLE_FILE_CACHING": "1"}
"""Of workers, where the environment does not say otherwise."""


def outcome_of(made: random_programs.Program, alone: bool = False) -> dict[str, Any]:
    """Run one program here, and say what became of it."""
    found = judge(made, random_programs.inputs(made.seed), alone)
    return {
        "seed": made.seed,
        "verdict": found.verdict,
        "productions": list(made.productions),
        "daring": made.daring,
        "kernel": made.in_kernel,
        "detail": found.detail if found.verdict != RIGHT else "",
        "kind": found.kind,
    }


def work() -> None:
    """A worker: takes seeds from standard input, or programs, a line each, and answers each with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # programs may print
    options = json.loads(sys.stdin.readline())
    prepare(options)
    for line in sys.stdin:
        task = json.loads(line)
        if isinstance(task, dict):
            found = outcome_of(random_programs.Program(**task), alone=True)
        else:
            found = outcome_of(random_programs.program(task, options["only"], options["without"]))
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def prepare(options: dict[str, Any]) -> None:
    """Switch off what the command line asks for."""
    if options["without_check"]:
        import program_checks

        program_checks.switch_off(options["without_check"])


class Worker:
    """A process that runs programs, one at a time."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**SETTINGS, **os.environ},
        )
        self.seed: int | None = None
        self.since = 0.0
        self.done = 0
        self._write(json.dumps(options))

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def start(self, seed: int, program: random_programs.Program | None = None) -> None:
        """Give it a seed, or a program that was one's."""
        self.seed, self.since = seed, time.monotonic()
        self._write(json.dumps(seed if program is None else dataclasses.asdict(program)))

    def answer(self) -> dict[str, Any] | None:
        """What became of the seed; None if the process ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.done += 1
        return json.loads(line) if line else None

    def end(self) -> int:
        """End the process, and say how it ended."""
        self.process.kill()
        code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass
        return code


def run(seeds: Iterable[int], options: dict[str, Any], jobs: int = 1) -> Iterator[dict[str, Any]]:
    """Outcomes of seeds, in the order in which they come."""
    left = iter(seeds)
    with selectors.DefaultSelector() as selector:
        workers: list[Worker] = []

        def lost(worker: Worker, verdict: str) -> dict[str, Any]:
            made = random_programs.program(worker.seed or 0, options["only"], options["without"])
            code = worker.end()
            return {
                "seed": worker.seed,
                "verdict": verdict,
                "productions": list(made.productions),
                "daring": made.daring,
                "kernel": made.in_kernel,
                "detail": f"the process ended with {code}" if verdict == CRASH else "no end",
                "kind": verdict,
            }

        def begin(worker: Worker | None) -> None:
            """Go on with the next seed, in a new process where there is none or it has done enough."""
            seed = next(left, None)
            if worker is not None and (seed is None or worker.done >= PROGRAMS_OF_A_WORKER):
                remove(worker)
                worker.end()
                worker = None
            if seed is None:
                return
            if worker is None:
                worker = Worker(options)
                workers.append(worker)
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            worker.start(seed)

        def remove(worker: Worker) -> None:
            assert worker.process.stdout is not None
            selector.unregister(worker.process.stdout)
            workers.remove(worker)

        try:
            for _ in range(jobs):
                begin(None)
            while workers:
                for key, _ in selector.select(1.0):
                    worker = key.data
                    found = worker.answer()
                    if found is None:
                        remove(worker)
                        yield lost(worker, CRASH)
                        begin(None)
                    else:
                        yield found
                        begin(worker)
                now = time.monotonic()
                for worker in list(workers):
                    if now - worker.since > SECONDS_OF_A_PROGRAM:
                        remove(worker)
                        yield lost(worker, HANG)
                        begin(None)
        finally:
            for worker in workers:
                worker.end()


class Bench:
    """A worker for programs that are no longer those of their seeds, replaced when it dies."""

    def __init__(self, options: dict[str, Any], seconds: float) -> None:
        self._options, self._seconds = options, seconds
        self._worker: Worker | None = None

    def kind(self, program: random_programs.Program) -> str:
        """What becomes of a program, in the words of `Verdict.kind`."""
        worker = self._worker or Worker(self._options)
        self._worker = None
        worker.start(program.seed, program)
        with selectors.DefaultSelector() as selector:
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ)
            if not selector.select(self._seconds):
                worker.end()
                return HANG
        found = worker.answer()
        if found is None:
            worker.end()
            return CRASH
        self._worker = worker
        self.detail = found["detail"]
        return found["kind"]

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.end()


def shrink(seed: int, options: dict[str, Any], seconds: float = 2.0) -> tuple[random_programs.Program, str]:
    """The program of a seed made small, and what becomes of it."""
    made = random_programs.program(seed, options["only"], options["without"])
    bench = Bench(options, seconds)
    try:
        wanted = bench.kind(made)
        if wanted == RIGHT:
            return made, wanted
        small = program_minimizer.minimized(made, lambda program: bench.kind(program) == wanted)
        bench.kind(small)
        return small, wanted if wanted in (CRASH, HANG) else f"{wanted}\n{bench.detail}"
    finally:
        bench.close()


def found_without(check: str, options: dict[str, Any], seeds: range, jobs: int) -> dict[str, Any] | None:
    """The first bad program of these seeds that is good with the check, once it is switched off; None if there is none.

    Only programs with a production that needs the check are run.
    """
    import program_checks

    needed = set(program_checks.CHECKS[check].productions)

    def concerned(seed: int) -> bool:
        return not needed.isdisjoint(random_programs.program(seed, options["only"], options["without"]).productions)

    for found in run(filter(concerned, seeds), {**options, "without_check": [check]}, jobs):
        if found["verdict"] in BAD and next(run([found["seed"]], options))["verdict"] not in BAD:
            return found
    return None


class Summary:
    """Counts of verdicts, in all and by production."""

    def __init__(self) -> None:
        self.verdicts: collections.Counter[str] = collections.Counter()
        self.by_production: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.bad: list[dict[str, Any]] = []
        self.refusals: collections.Counter[str] = collections.Counter()
        self.careful: list[int] = []
        """Seeds of programs that were refused although they dare nothing: somebody may want to write them."""

    def add(self, found: dict[str, Any]) -> None:
        """Count one outcome."""
        self.verdicts[found["verdict"]] += 1
        for name in found["productions"]:
            self.by_production[name][found["verdict"]] += 1
        if found["verdict"] in BAD:
            self.bad.append(found)
        elif found["verdict"] == REFUSED:
            self.refusals[found["kind"]] += 1
            if not found["daring"]:
                self.careful.append(found["seed"])

    @property
    def run(self) -> float:
        """The share of programs that ran rather than being refused, in percent."""
        return 100 * self.verdicts[RIGHT] / max(1, self.verdicts.total())

    def show(self, write: Callable[[str], Any], refusals: int = 0) -> None:
        """Write the tables."""
        write(f"{'production':<22}" + "".join(f"{v:>9}" for v in VERDICTS))
        for name in sorted(self.by_production):
            write(f"{name:<22}" + "".join(f"{self.by_production[name][v]:>9}" for v in VERDICTS))
        write(f"{'programs':<22}" + "".join(f"{self.verdicts[v]:>9}" for v in VERDICTS))
        for kind, count in self.refusals.most_common(refusals):
            write(f"{count:>6} {kind}")
        kinds: dict[str, list[int]] = collections.defaultdict(list)
        for found in self.bad:
            kinds[found["kind"]].append(found["seed"])
        for kind, seeds in sorted(kinds.items()):
            write(f"{kind}\n    seeds {' '.join(map(str, sorted(seeds)[:12]))}{' ...' if len(seeds) > 12 else ''}")
        write(f"{len(self.careful)} refused that dare nothing: seeds {' '.join(map(str, sorted(self.careful)[:12]))}")
        write(f"{self.verdicts.total()} programs, {self.run:.1f} % run")


def recorded(path: str | None, options: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The outcomes that a file has of earlier runs with the same options."""
    if path is None or not os.path.exists(path):
        return {}
    found: dict[int, dict[str, Any]] = {}
    with open(path) as file:
        for line in file:
            entry = json.loads(line)
            if entry.pop("options", options) == options:
                found[entry["seed"]] = entry
    return found


def sweep(seeds: range, options: dict[str, Any], jobs: int, path: str | None, write: Callable[[str], Any]) -> Summary:
    """Run the seeds that are not recorded yet."""
    known = recorded(path, options)
    summary = Summary()
    for seed in seeds:
        if seed in known:
            summary.add(known[seed])
    file = open(path, "a") if path is not None else None
    try:
        start, count = time.monotonic(), 0
        for found in run((seed for seed in seeds if seed not in known), options, jobs):
            summary.add(found)
            count += 1
            if file is not None:
                file.write(json.dumps({**found, "options": options}) + "\n")
                file.flush()
            if found["verdict"] in BAD:
                write(f"seed {found['seed']}: {found['verdict']} {found['productions']}\n    {found['detail'][:600]}")
            if count % 500 == 0:
                write(f"{count} programs, {count / (time.monotonic() - start):.1f} a second")
    finally:
        if file is not None:
            file.close()
    return summary


def show_checks(names: list[str], options: dict[str, Any], seeds: range, jobs: int) -> int:
    """Say for each check which program needs it."""
    import program_checks

    missing = 0
    for check in names or program_checks.CHECKS:
        found = found_without(check, options, seeds, jobs)
        missing += found is None
        print(
            f"{check:<26}" + ("not found" if found is None else f"seed {found['seed']:>5}: {found['kind'][:90]}"),
            flush=True,
        )
    return 1 if missing else 0


def save(seeds: str, summary: Summary) -> None:
    """Add a row to docs/data/fuzz.md."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from results import Page, Table

    table = Table(
        "Programs as plain Python and as Kiln programs, four inputs each",
        ("seeds", "machine", "right", "refused", "bad", "run"),
    )
    page = Page(__file__, "Random programs", table)
    page.restore()
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    counts = (f"{count:,}" for count in (summary.verdicts[RIGHT], summary.verdicts[REFUSED], len(summary.bad)))
    table.add(seeds, machine, *counts, f"{summary.run:.1f} %")
    page.finish(True)


def main() -> int:
    """The command line."""
    if "--worker" in sys.argv[1:]:
        work()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:300", metavar="A:B", help="seeds from A to B, without B")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--resume", metavar="FILE", help="keep verdicts there, and go on where an earlier run stopped")
    parser.add_argument("--only", action="append", default=[], choices=sorted(PRODUCTIONS), metavar="P")
    parser.add_argument("--without", action="append", default=[], choices=sorted(PRODUCTIONS), metavar="P")
    parser.add_argument(
        "--without-check", action="append", default=[], metavar="C", help="a check of the front end to switch off"
    )
    parser.add_argument("--refusals", type=int, default=0, metavar="N", help="show the N most frequent refusals")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the program of a seed and its verdict")
    parser.add_argument("--minimize", type=int, metavar="SEED", help="print the program of a seed made small")
    parser.add_argument("--each", action="store_true", help="the seeds for each production alone")
    parser.add_argument(
        "--checks", action="store_true", help="switch off each check, or those of --without-check, in turn"
    )
    parser.add_argument("--save", action="store_true", help="add a row to docs/data/fuzz.md")
    given = parser.parse_args()
    options = {"only": given.only, "without": given.without, "without_check": given.without_check}
    if given.show is not None:
        print(random_programs.program(given.show, given.only, given.without).text)
        print(next(run([given.show], options))["detail"])
        return 0
    if given.minimize is not None:
        small, kind = shrink(given.minimize, options)
        print(small.text)
        print(f"# seed {given.minimize}: " + kind.replace("\n", "\n# "))
        return 0
    first, last = map(int, given.seeds.split(":"))
    if given.checks:
        return show_checks(given.without_check, {**options, "without_check": []}, range(first, last), given.jobs)
    bad = 0
    for only in sorted(PRODUCTIONS) if given.each else [None]:
        chosen = {**options, "only": [only]} if only else options
        summary = sweep(range(first, last), chosen, given.jobs, given.resume, lambda text: print(text, flush=True))
        summary.show(print, given.refusals)
        bad += len(summary.bad)
        if given.save and not given.each:
            save(given.seeds, summary)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
