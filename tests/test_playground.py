"""The site's playground: what it computes, what it ships to the browser, and the page in a headless Chromium."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kiln import cute

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("playground", ROOT / "tools" / "playground.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_answers_are_those_of_kiln(tool: Any) -> None:
    for title, operation, layout, operand in tool.answer.PRESETS:
        said = json.loads(tool.answer.answer(operation, layout, operand))
        assert said["svg"].startswith("<svg"), title
        assert str(eval(said["python"], {"cute": cute})) == said["text"]
    said = json.loads(tool.answer.answer("complement", "(2,2):(1,4)", "64"))
    assert said["text"] == str(cute.complement(cute.make_layout((2, 2), stride=(1, 4)), 64))


@pytest.mark.parametrize(
    ("operation", "layout", "operand", "error"),
    [
        ("draw", "(4,", "", "at the caret"),
        ("composition", "(4,2)", " ", "composition needs a second operand: layout or tiler"),
        ("logical_divide", "(4,8):(8,1)", "3:1", "cannot be divided by the tiler 3:1"),
        ("swizzle", "(8,8)", "S<3,0,1>", "S<b,m,s> needs |s| >= b"),
        ("draw", "100000", "", "more than 4096 elements"),
    ],
)
def test_errors_are_those_of_kiln(tool: Any, operation: str, layout: str, operand: str, error: str) -> None:
    said = json.loads(tool.answer.answer(operation, layout, operand))
    assert error in said["error"]
    assert "answer.py" not in said["error"]
    assert "svg" not in said


def test_the_zip_needs_the_standard_library_alone(tool: Any, tmp_path: Path) -> None:
    """Compiled extensions and the packages of this environment are not there in a browser."""
    tool.write_zip(tmp_path / "kiln.zip")
    with zipfile.ZipFile(tmp_path / "kiln.zip") as archive:
        assert {"answer.py", "kiln/__init__.py", "kiln/cute/pictures/draw.py"} <= set(archive.namelist())
        archive.extractall(tmp_path / "there")
    program = "import sys; sys.path.insert(0, '.'); import answer; print(answer.answer(*sys.argv[1:]))"
    typed = ["zipped_divide", "(8,8):(8,1)", "(4,4)"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *typed],
        cwd=tmp_path / "there", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == json.loads(tool.answer.answer(*typed))


def test_a_package_with_another_hash_is_refused(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "package.tgz").write_bytes(b"something else")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "ADDRESS", (tmp_path / "package.tgz").as_uri())
    with pytest.raises(ValueError, match=r"package\.tgz has the hash sha512-.*, but sha512-.* is expected"):
        tool.package()
    monkeypatch.setattr(tool, "ADDRESS", (tmp_path / "missing.tgz").as_uri())
    assert tool.package() is None


@pytest.mark.quick(0)
def test_the_page_draws_in_a_browser(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type layouts into the form, and compare what is shown with what Kiln says here."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    pages = importlib.import_module("site_pages")
    if pages.chromium.CHROMIUM is None:
        pytest.skip("there is no chromium")
    if (data := tool.package()) is None:
        pytest.skip("the npm package of Pyodide cannot be had")
    tool.install(tmp_path / "_static" / "playground", data)
    (tmp_path / "playground.html").write_text(f"<!doctype html><body class=bd-article>{tool.form()}", encoding="utf-8")
    with pages.chromium.served(tmp_path) as url, pages.chromium.browser() as page:
        page.open(f"{url}/playground.html#operation=swizzle&layout=(8,8):(8,1)&operand=S<3,0,3>")
        loaded = page.run('return performance.getEntriesByType("resource").map((each) => each.name)')
        assert [Path(name).name for name in loaded] == ["playground.js"], "Python is loaded on a click only"
        assert page.run('return document.getElementById("playground-form").operand.value') == "S<3,0,3>"
        for typed in (
            ("zipped_divide", "(8,8):(8,1)", "(4,4)"),
            ("coalesce", "(4,(2,2)):(2,(1,8))", ""),
            ("draw", "(4,", ""),
        ):
            shown, right = pages.drawn(page, typed), json.loads(tool.answer.answer(*typed))
            assert (shown["text"], shown["error"]) == (right.get("text", ""), right.get("error", ""))
            assert shown["svg"].count("<rect") == right.get("svg", "").count("<rect")
        page.open(f"{url}/playground.html")
        page.run('document.querySelector("[data-layout]").click()')
        assert pages.drawn(page, ("draw", "(4,8):(8,1)", ""))["link"] == "#operation=draw&layout=(4,8):(8,1)&operand="
