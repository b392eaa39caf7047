"""The corpus: nothing is found in the programs as they are, and every mutant that is not equivalent is detected."""

from __future__ import annotations

from pathlib import Path

import mutation
import pytest


@pytest.mark.parametrize("program", mutation.programs())
def test_nothing_is_found_in_right_programs(program: str, tmp_path: Path) -> None:
    module = mutation.load(f"right_{program}", mutation.source_of(program), tmp_path)
    for seed in (0, 1, 2, 3, 4):
        right, findings, fault = mutation.outcome(module, seed)
        assert right, fault
        assert not findings, "\n".join(map(str, findings))


@pytest.mark.parametrize("program", mutation.programs())
def test_mutants_are_detected(program: str, tmp_path: Path) -> None:
    missed: list[str] = []
    for number, mutant in enumerate(mutation.mutants(program)):
        verdict = mutation.judge(mutant, tmp_path, number)
        if verdict.outcome == "missed":
            missed.append(f"{mutant.name}: {verdict.reason}")
    assert not missed, "\n".join(missed)


def test_equivalent_mutants_exist() -> None:
    existing = {(m.program, m.line, m.change) for program in mutation.programs() for m in mutation.mutants(program)}
    assert set(mutation.EQUIVALENT) <= existing
