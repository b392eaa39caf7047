"""Every example of the pages in `docs/reference` is run, and prints or is refused as the page says; `api-*.md` is made from docstrings.

Pages without examples of their own are written by the site, or list others.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from doc_examples import run_page

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES = sorted(page for page in FOLDER.glob("*.md") if not page.name.startswith("api-"))
WITHOUT_EXAMPLES = ("commands", "errors", "index", "json")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_example_of_the_page(page, tmp_path, capsys, monkeypatch):
    assert (run_page(page, tmp_path, capsys, monkeypatch, Exception) > 0) == (page.stem not in WITHOUT_EXAMPLES)


def test_pages_of_the_interface_are_what_docstrings_say():
    spec = importlib.util.spec_from_file_location("api_pages", FOLDER.parents[1] / "tools" / "api_pages.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for name in tool.PAGES:
        assert (FOLDER / f"{name}.md").read_text() == tool.page(name), f"{name}: run `python tools/api_pages.py`"
