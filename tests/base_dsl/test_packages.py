"""Packages of others: whether they are there, and what is done without their internals."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from kiln.base_dsl import packages
from kiln.base_dsl.packages import INTERNALS, TRIED

ROOT = Path(__file__).parents[2]


def test_a_folder_is_no_package(tmp_path, monkeypatch):
    for name in ("kiln_folder", "kiln_package"):
        (tmp_path / name).mkdir()
    (tmp_path / "kiln_package" / "__init__.py").write_text("here = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not packages.is_here("kiln_folder") and not packages.is_here("kiln_missing.part")
    assert packages.is_here("kiln_package") and packages.loaded("kiln_package") is None
    with pytest.raises(ModuleNotFoundError, match=f"'kiln_folder': {tmp_path}/kiln_folder is a folder"):
        packages.load("kiln_folder")
    with pytest.raises(ModuleNotFoundError, match="No module named 'kiln_missing'$"):
        packages.load("kiln_missing")
    assert packages.load("kiln_package").here and packages.is_here("kiln_package")
    importlib.import_module("kiln_folder")  # Python does

    try:
        assert packages.loaded("kiln_folder") is None and not packages.is_here("kiln_folder")
        with pytest.raises(ModuleNotFoundError, match="is a folder"):
            packages.load("kiln_folder")
    finally:
        del sys.modules["kiln_folder"], sys.modules["kiln_package"]


def test_what_is_missing_is_told_once_in_one_line(monkeypatch, caplog):
    monkeypatch.setattr(packages, "_warned", set())
    monkeypatch.setattr(packages, "version_of", lambda package: "2.16.1+cpu")
    for _ in range(2):
        with packages.leaning_on("torch autograd"):
            raise AttributeError("no attribute\n'__func__'")
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelname == "WARNING" and "\n" not in text
    assert text.startswith("torch 2.16.1+cpu: on the CPU target backward functions")
    assert "(AttributeError: no attribute '__func__')" in text and TRIED["torch"][1] in text


def test_nobody_is_told_what_an_older_version_lacks(monkeypatch, caplog):
    monkeypatch.setattr(packages, "version_of", lambda package: "2.6.0")
    packages.without("torch dispatcher", "there is no torch_library_impl")
    assert not caplog.records


def test_others_errors_pass():
    with pytest.raises(RuntimeError), packages.leaning_on("torch autograd"):
        raise RuntimeError("of the program")


def test_the_list_is_true():
    """Each internal is used by the file it names, under its name, and no name is used that is not listed."""
    sources = {path: path.read_text() for path in (ROOT / "src" / "kiln").rglob("*.py")}
    used = {
        name
        for path, text in sources.items()
        for name in re.findall(r"(?:packages\.without|leaning_on)\(\s*\"([^\"]+)\"", text)
    }
    assert used == set(INTERNALS)
    for internal in INTERNALS.values():
        assert (ROOT / "src" / "kiln" / internal.uses.rpartition(": ")[2]).is_file(), internal.uses


def test_the_bounds_are_what_was_tried():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    for name, (oldest, newest) in TRIED.items():
        found = [each.replace(" ", "") for each in wanted if re.match(rf"{re.escape(name)}\b(?!-)", each)]
        first, last = oldest.split("."), newest.split(".")
        assert found, name
        for each in found:
            least, most = re.fullmatch(rf"{re.escape(name)}>=([\d.]+),<([\d.]+)", each).groups()
            assert first[: len(least.split("."))] == least.split("."), each
            assert tuple(map(int, most.split("."))) > tuple(int(part) for part in last if part.isdigit()), each
