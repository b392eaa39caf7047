"""README and the site's front page say the same, run as they stand, and take their speeds from the data pages."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from doc_examples import run_page

ROOT = Path(__file__).parents[2]
FRONT = [ROOT / "README.md", ROOT / "docs" / "index.md"]
COME_FROM = sorted((ROOT / "docs" / "come-from").glob("*.md"))


def speeds() -> ModuleType:
    spec = importlib.util.spec_from_file_location("speeds", ROOT / "tools" / "speeds.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("page", [FRONT[0], *COME_FROM], ids=lambda page: page.stem)
def test_every_example_of_the_page(page: Path, tmp_path, capsys, monkeypatch) -> None:
    run_page(page, tmp_path, capsys, monkeypatch, Exception)


def test_both_front_pages_say_the_same() -> None:
    readme, index = ([*re.findall(r"^```.*?^```$|^#.*?$", page.read_text(), re.M | re.S)] for page in FRONT)
    assert readme[:-1] == index[:-1]  # README goes on with links, the other has its table of contents


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_speeds_are_those_of_the_data(name: str) -> None:
    assert speeds().page_text(name) == (ROOT / name).read_text(), "run `python tools/speeds.py`"


def test_sources_and_pages_of_the_gallery_exist() -> None:
    tool = speeds()
    for each in tool.GALLERY:
        assert tool.measured(each.speed).ours > 0
        for path in (each.source, each.page.partition("#")[0]):
            assert (ROOT / "docs" / path).exists(), path
