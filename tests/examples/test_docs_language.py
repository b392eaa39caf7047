"""Every example of `docs/language.md` is run, and prints or is refused as the page says."""

from __future__ import annotations

from pathlib import Path

from doc_examples import run_page

from kiln.base_dsl.diagnostics import DSLBaseError

PAGE = Path(__file__).parents[2] / "docs" / "language.md"


def test_every_example_of_the_page(tmp_path, capsys, monkeypatch):
    assert run_page(PAGE, tmp_path, capsys, monkeypatch, DSLBaseError) > 15
