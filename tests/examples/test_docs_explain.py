"""Every example of `docs/explain` and `docs/sanitizer.md` is run, and prints or is refused as the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_examples import run_page

from kiln.base_dsl.diagnostics import DSLBaseError

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted((DOCS / "explain").glob("*.md")), DOCS / "sanitizer.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_example_of_the_page(page, tmp_path, capsys, monkeypatch):
    run_page(page, tmp_path, capsys, monkeypatch, DSLBaseError)
