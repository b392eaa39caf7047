"""`tools/site_check.py` finds what a page of the site must not have; `tools/site_pages.py` needs a browser."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_problems_of_a_page_are_found(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("site_check", ROOT / "tools" / "site_check.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1><img src="b.html" alt="b">')
    (tmp_path / "a.html").write_text(
        '<script src="https://elsewhere.example/x.js"></script><a href="https://elsewhere.example">out</a><img src="b.html">'
        '<a href="b.html#there">b</a><a href="b.html#gone">b</a><a href="c.html">c</a>'
    )
    assert sorted(tool.problems(tmp_path)) == [
        "a.html: a dead link, c.html",
        "a.html: loads https://elsewhere.example/x.js from another site",
        "a.html: no such place, b.html#gone",
        "a.html: the picture b.html has no description",
    ]


def test_pages_that_no_browser_can_open_are_an_error(tmp_path: Path) -> None:
    tool, environment = ROOT / "tools" / "site_pages.py", os.environ | {"PATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, tool, tmp_path, tmp_path / "shots"], env=environment, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert "install Chromium or Chrome" in run.stderr
