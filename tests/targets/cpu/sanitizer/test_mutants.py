"""The corpus: nothing is found in the programs as they are, and every mutant that is not equivalent is detected.

Here every synchronizing statement is deleted, but for those that others imply; of attention only those of two products in
flight, and of kernels with tcgen05 one of five: smaller programs have the others. `KILN_MUTANTS=all` adds all these, the other changes, more schedules, and the mutants of the
kernel library. `mutation.py` is the whole corpus as a command.
"""

from __future__ import annotations

import os
from pathlib import Path

import mutation
import pytest

ALL = os.environ.get("KILN_MUTANTS") == "all"
PROGRAMS = [program for program in mutation.programs() if not mutation.library_of(program)]
LIBRARY = [program for program in mutation.programs() if mutation.library_of(program)]
SHORT = ["library_gradients", "library_loss", "library_reductions", "library_rows", "library_sgemm"]
"""Of the library: their mutants take a second or two."""
IN_FLIGHT = ("wait_group(1)", "commit_group() (2)", "keys.release() (2)", "values.release() (2)")


@pytest.mark.quick(5)
@pytest.mark.parametrize("program", mutation.programs() if ALL else PROGRAMS)
def test_nothing_is_found_in_right_programs(program: str, tmp_path: Path) -> None:
    """Kernels of the library are also run under the sanitizer by tests of their own."""
    run = mutation.load(program, f"right_{program}", None, tmp_path)
    seeds = range(5) if ALL else (0, 3)
    for seed in seeds:
        right, findings, fault = mutation.outcome(run, seed, threads=1 + seed % 2)
        assert right, fault
        assert not findings, "\n".join(map(str, findings))


@pytest.mark.quick(3)
@pytest.mark.parametrize("program", mutation.programs() if ALL else PROGRAMS)
def test_mutants_are_detected(program: str, tmp_path: Path) -> None:
    missed: list[str] = []
    for number, mutant in enumerate(mutation.mutants(program)):
        if not ALL and mutant.change not in ("deleted", "without waiting", "one arrival fewer"):
            continue
        if not ALL and (mutant.statement, mutant.change) in mutation.EQUIVALENT.get(program, {}):
            continue  # nothing would come of it, under any schedule
        if not ALL and program.startswith("blackwell") and number % 5:
            continue  # a sample: they take half a second each
        if not ALL and program == "hopper_attention" and not mutant.statement.endswith(IN_FLIGHT):
            continue
        verdict = mutation.judge(mutant, tmp_path, number)
        if verdict.outcome == "missed":
            missed.append(f"{mutant.name}: {verdict.reason}")
    assert not missed, "\n".join(missed)


@pytest.mark.quick(2)
@pytest.mark.parametrize("program", LIBRARY if ALL else SHORT)
def test_a_barrier_gone_from_the_library_is_detected(program: str, tmp_path: Path) -> None:
    barriers = "sync_threads", "cluster_wait", "arrive_and_wait"
    deletions = [
        m for m in mutation.mutants(program) if m.change == "deleted" and any(name in m.statement for name in barriers)
    ]
    # some may be implied by others
    assert any(mutation.judge(m, tmp_path, number).outcome == "detected" for number, m in enumerate(deletions))


@pytest.mark.parametrize("program", mutation.programs() if ALL else PROGRAMS)
def test_the_record_has_the_mutants_there_are(program: str) -> None:
    """Those of the library, too, where they are judged: judging them takes minutes, and kernels change often."""
    stale = mutation.stale(program)
    told = f"docs/data/mutants.md is of other kernels: python tests/helpers/mutation.py --new --save {program}"
    assert not stale, "\n".join([told, *stale])


def test_equivalent_mutants_exist() -> None:
    existing = {(m.program, m.statement, m.change) for program in PROGRAMS for m in mutation.mutants(program)}
    listed = {(program, *key) for program in PROGRAMS for key in mutation.EQUIVALENT.get(program, {})}
    assert listed <= existing
