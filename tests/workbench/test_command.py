"""The `kiln` command finds its verbs and says so when it does not."""

from __future__ import annotations

import os
import sys

import pytest

import kiln
from kiln.workbench.main import VERBS, main, module_of


def test_every_verb_is_a_module_with_a_main():
    for verb in VERBS:
        assert callable(module_of(verb).main)


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in VERBS)
    assert len(out.splitlines()) <= 24  # one screen
    assert max(map(len, out.splitlines())) <= 110


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kiln {kiln.__version__}\n"


@pytest.mark.parametrize("words", [[], ["bake"], ["--bake"], [""]])
def test_bad_command_lines(words, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "doctor" in captured.err  # what there is instead


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    assert f"kiln {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("size", [10, 100_000])  # a buffer holds the first, and not the second
def test_who_reads_may_go_away(size, monkeypatch):
    """As `| head` does: no traceback, and the status of a program that is ended by that."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        monkeypatch.setattr("kiln.workbench.devices.main", lambda words: print("x" * size))
        assert main(["devices"]) == 141
