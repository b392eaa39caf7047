"""Files and folders that the documentation names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "kiln"
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])

TOPS = ("src/", "kiln/", "tests/", "tools/", "docs/", "benchmarks/", "examples/")
PATH = re.compile(r"(?<![\w/.<-])((?:[\w.-]+/)+[\w.-]*)")
ENDS = (".py", ".md", ".json", ".txt", ".ipynb")


def named(page: Path) -> Iterator[str]:
    """Paths in code and links: those of a folder on top, and those that end as our files do."""
    text = page.read_text()
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link]
    yield from filter(None, links)
    for code in re.findall(r"`([^`\n]+)`", text):
        yield from (path for path in PATH.findall(code) if path.startswith(TOPS) or path.endswith(ENDS))


def exists(path: str, page: Path) -> bool:
    """By its whole path, or below `src/kiln`, `dialects` or the folder of the page."""
    return any((base / path).exists() for base in (ROOT, ROOT / "src", SOURCE, SOURCE / "dialects", page.parent))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_is_there(page: Path) -> None:
    assert [path for path in named(page) if not exists(path, page)] == []


def test_a_path_that_is_not_there_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md), [b](gone.md#part), `python tests/gone.py -x`, `hardware/gone.py`, `f32/f64`, `kiln/mlir.py`"
    )
    (tmp_path / "there.md").touch()
    assert [path for path in named(page) if not exists(path, page)] == ["gone.md", "tests/gone.py", "hardware/gone.py"]
