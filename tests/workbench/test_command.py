"""The `kiln` command finds its verbs and says so when it does not."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

import kiln
from kiln.workbench import tour
from kiln.workbench.main import VERBS, main, module_of


def test_every_verb_is_a_module_with_a_main():
    for verb in VERBS:
        assert callable(module_of(verb).main)
        assert module_of(verb).make_parser().prog == f"kiln {verb}"


def test_help_has_colours_on_a_terminal(monkeypatch, capsys):
    pytest.importorskip("rich_argparse")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["--help"]) == 0 and "\x1b[" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert main(["--help"]) == 0 and "\x1b[36mverify" in capsys.readouterr().out
    for words in (["devices", "--help"], ["kb", "show", "--help"], ["new", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
        assert "\x1b[36m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["--help"]) == 0 and "\x1b[" not in capsys.readouterr().out


def test_brackets_in_help_are_text(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(SystemExit):
        main(["devices", "--help"])
    assert "lock [base|max|MHZ]" in capsys.readouterr().out


def test_a_mistyped_verb_is_told_what_was_meant(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prog.py").write_text("print(1)\n")
    assert main(["verfy"]) == 2 and "did you mean 'verify'?" in capsys.readouterr().err
    (tmp_path / "kernel.py").touch()
    for verb in ("verify", "inspect --resources"):
        with contextlib.suppress(SystemExit):
            assert main([*verb.split(), str(tmp_path / "kernl.py")]) == 2
        assert "did you mean 'kernel.py'?" in capsys.readouterr().err, verb
    assert main(["prog.py"]) == 2 and "to run it: kiln run prog.py" in capsys.readouterr().err
    assert main(["version"]) == 0 and capsys.readouterr().out == f"kiln {kiln.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_verbs_and_options(shell, tmp_path, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in VERBS) and all(word in script for word in ("prof-type", "sanitize", "kinds"))
    if shutil.which(shell) is None:
        return
    file = tmp_path / "kiln.completion"
    file.write_text(script)
    assert subprocess.run([shell, "-n", file], capture_output=True, check=False).returncode == 0
    if shell == "bash":
        complete = "COMP_WORDS=(kiln kb s); COMP_CWORD=2; _shtab_kiln kiln s; echo ${COMPREPLY[*]}"
        done = subprocess.run([shell, "-c", f". {file}; {complete}"], capture_output=True, text=True, check=False)
        assert done.stdout.split() == ["search", "show"], done.stderr


def test_completion_without_shtab_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 3 and "pip install shtab" in capsys.readouterr().err


def test_the_tour_finds_a_race_mends_it_and_names_the_page(capsys):
    assert main(["tour"]) == 0
    said = capsys.readouterr().out
    order = ["@cute.kernel", "race in kernel", "sync_threads", "the result is right", "found nothing", "Go on with"]
    assert [said.index(each) for each in order] == sorted(said.index(each) for each in order)
    assert "Traceback" not in said and tempfile.gettempdir() + "/" not in said and len(said.splitlines()) < 50


def test_the_tour_leaves_names_in_the_colour_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(tour, "_run", lambda kernel, folder: (1, "subtract_first.py:13: race in kernel subtract_first"))
    main(["tour"])
    said = capsys.readouterr().out
    assert re.search(r"\x1b\[34(;49)?mif\x1b", said)
    assert "y[thread] = x[thread] - first[" in said


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in VERBS)
    assert len(out.splitlines()) <= 30  # one screen
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
