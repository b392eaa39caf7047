"""`--json`: one object with the same fields for every verb, whatever it prints and however it ends."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from kiln.workbench.core import answers
from kiln.workbench.main import VERBS, main
from kiln.workbench.verify.check import Check

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()
RACE = """
import kiln
import numpy as np
from kiln import Float32, cute


@cute.kernel
def reversed_(x: cute.Tensor):
    i, _, _ = cute.arch.thread_idx()
    s = kiln.utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(64))
    s[i] = x[i]
    x[i] = s[63 - i]


@cute.jit
def run(x: cute.Tensor):
    reversed_(x).launch(grid=1, block=64)


run(np.zeros(64, np.float32))
"""


@pytest.mark.parametrize(
    ("verb", "words", "target", "rest"),
    [
        ("kb", "search x --json", "-", "search x"),
        ("verify", "--json - case.py", "-", "case.py"),
        ("verify", "--json out.json case.py", "out.json", "case.py"),
        ("verify", "--json=results case.py", "results", "case.py"),
        ("verify", "--json case.py", "-", "case.py"),
        ("verify", "case.py --quick", None, "case.py --quick"),
        ("run", "--json --sanitize p.py --json", "-", "--sanitize p.py --json"),
        ("run", "--target cpu --json p.py", "-", "--target cpu p.py"),
        ("run", "p.py --json", None, "p.py --json"),
        ("run", "--json -", "-", "-"),
        ("run", "-m pkg --json", None, "-m pkg --json"),
        ("inspect", "--bank-conflicts --json counts.json p.py a", "counts.json", "--bank-conflicts p.py a"),
    ],
)
def test_where_it_goes_and_what_is_the_programs(verb, words, target, rest):
    assert answers.split(verb, words.split()) == (target, rest.split())


def test_options_may_stand_after_a_case(tmp_path):
    case = tmp_path / "case.py"
    case.write_text("def kernel_fn(x): ...\n\n\ndef get_inputs(): ...\n")
    words = [str(case), "--resources", "--json", "model.json", "--no-run"]
    assert answers.split("inspect", words) == ("model.json", [str(case), "--resources", "--no-run"])


def test_findings_of_the_sanitizer(tmp_path, capfd):
    program = tmp_path / "race.py"
    program.write_text(RACE)
    assert main(["run", "--json", "--sanitize", str(program)]) == 1
    answer = json.loads(capfd.readouterr().out)
    assert (answer["verb"], answer["exit"], answer["status"], answer["passed"]) == ("run", 1, "failed", False)
    first = answer["findings"][0]
    assert (first["kind"], first["severity"], first["file"]) == ("race", "error", str(program))
    assert first["line"] == 11 and "sync_threads()" in first["help"]
    assert answer["schema"] == answers.SCHEMA and len(answer["result"]) == len(answer["findings"])


def test_whatever_a_program_prints_and_however_it_ends(tmp_path, capfd):
    file = tmp_path / "answer.json"
    program = "import os, sys; print('{'); sys.stderr.write('oh'); sys.stdout.flush(); os.abort()"
    assert main(["run", f"--json={file}", "-c", program]) == 134
    answer = json.loads(file.read_text())
    assert answer["output"] == "{\n" and "oh" in answer["errors"] and answer["status"] == "ended"
    printed = capfd.readouterr()
    assert printed.out == "{\n" and "oh" in printed.err


def test_a_program_that_does_not_end():
    answer = answers.ask("run", ["-c", "while True: pass"], timeout=0.5)
    assert not answer.passed and "0.5 seconds" in answer.status


def test_pages_and_bad_use(capfd):
    assert main(["kb", "search", "bank conflicts", "--json"]) == 0
    pages = json.loads(capfd.readouterr().out)["result"]
    assert {"file", "line", "title", "name"} == set(pages[0]) and len(pages) > 2
    assert main(["draw", "--json"]) == 2
    answer = json.loads(capfd.readouterr().out)
    assert answer["status"] == "bad use" and "usage" in answer["errors"]


def test_checks_that_failed_are_findings():
    check = Check("case.py", "odd", {"m": 3}, {"m": 2})
    passed, failed = check.result("ok", ""), check.result("wrong", "3 of 4 are wrong")
    verdict = {"checks": [passed.to_json(), failed.to_json()]}
    (found,) = answers._findings("verify", [verdict])
    assert (found.kind, found.severity, found.message) == ("odd", "error", "3 of 4 are wrong")


def test_findings_of_the_sanitizer_in_a_check_are_findings():
    race = {
        "kind": "race",
        "severity": "error",
        "message": "a race",
        "span": {"file": "k.py", "line": 11},
        "hint": "sync_threads()",
    }
    check = Check("case.py", "sanitizer", {}, {}).result("wrong", "race: a race")
    check.findings = [race]
    (finding,) = answers._findings("verify", {"checks": [check.to_json()]})
    assert (finding.kind, finding.file, finding.line, finding.help) == ("race", "k.py", 11, "sync_threads()")


def test_what_limits_a_kernel_is_found_at_any_depth():
    assert answers._first([{"kernels": [{"limited_by": "registers"}]}], "limited_by") == "registers"
    assert answers._first([{"kernels": []}], "limited_by") is None


def test_the_page_has_all_fields_and_statuses():
    for kind in (answers.Answer, answers.Finding):
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in PAGE, field.name
    table = dict(re.findall(r"^\| (\d+) \| `([\w ]+)`", PAGE, re.MULTILINE))
    assert table == {str(number): word for number, word in answers.STATUSES.items()}
    for verb in VERBS:
        assert re.search(rf"`{verb}`", PAGE), verb
