"""Every how-to page runs as it stands, and stays one screen of text."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_examples import run_page

from kiln.base_dsl.diagnostics import DSLBaseError

PAGES = sorted((Path(__file__).parents[2] / "docs" / "howto").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_example_of_the_page(page, tmp_path, capsys, monkeypatch):
    run_page(page, tmp_path, capsys, monkeypatch, DSLBaseError)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short(page):
    assert len(page.read_text().splitlines()) < 60


def test_all_tasks_have_a_page():
    assert len(PAGES) >= 12
