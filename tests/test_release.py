"""`tools/release.py` and the trial of the wheel: what they can be asked here, without an environment."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from kiln.workbench.kb import cli as kb

ROOT = Path(__file__).resolve().parents[1]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_interpreters_may_follow_the_root():
    args = load("release").arguments(["check", "--root", "debian", "python3.12", "python3.13"])
    assert (args.what, args.root, args.pythons) == ("check", "debian", ["python3.12", "python3.13"])
    assert load("release").arguments(["check"]).pythons == []


def test_the_trial_expects_pages_that_are_found(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    searches = [step for step in load("release_trial").steps(ROOT) if step.command[1:3] == ("kb", "search")]
    assert searches
    for step in searches:
        assert kb.main(list(step.command[2:])) == 0
        assert re.search(step.prints, capsys.readouterr().out), step.name
