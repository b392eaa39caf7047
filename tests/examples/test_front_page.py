"""README and the site's front page say the same, run as they stand, and take their speeds from the data pages."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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


PEERS = """<!-- Written by `python benchmarks/libraries.py --save`; not edited by hand. -->

# Peers

## GEMMs

2026-11-19, NVIDIA H200, CUDA 13.0

| function | shape | one us | two* us | Kiln us | Kiln TFLOP/s |
| --- | --- | --- | --- | --- | --- |
| gemm | 8 x 8 | 12.0 | 10.0 | 8.0 | 3 (0.5) |
| gemm | 9 x 9 | - (no module) | 10.0 | 12.5 | 4 |
| gemm | 7 x 7 | - | - | 12.5 | 4 |
"""


def test_the_best_peer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = speeds()
    results = tool._results()
    monkeypatch.setattr(tool, "_results", lambda: results)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "docs" / "data").mkdir(parents=True)
    (tmp_path / "docs" / "data" / "page.md").write_text(PEERS)

    def row(shape: str, unit: str = "us") -> Any:
        return tool.Speed(
            "a GEMM", "page", "GEMMs", ("gemm", shape), {"one": "one us", "two*": "two* us"}, "Kiln us", unit
        )

    assert tool.measured(row("8 x 8")) == ({"one": 12.0, "two*": 10.0}, 8.0, "two*", 1.25, "2026-11-19")
    assert tool.measured(row("9 x 9")) == ({"two*": 10.0}, 12.5, "two*", 0.8, "2026-11-19")
    assert tool.measured(row("8 x 8", "TFLOP/s")).best == "one"
    with pytest.raises(ValueError, match="page.md, GEMMs: no row gemm, 6 x 6"):
        tool.measured(row("6 x 6"))
    with pytest.raises(ValueError, match="page.md, GEMMs: gemm, 7 x 7 has no peer"):
        tool.measured(row("7 x 7"))
    monkeypatch.setattr(tool, "SPEEDS", {"slow": row("9 x 9")})
    lines = tool.table("docs/").splitlines()
    assert lines[2] == "| a GEMM | two* 10 | 12.5 | 0.80x |"
    assert lines[-1].startswith("Measured on 2026-11-19: [") and "docs/data/page.md" in lines[-1]


def test_sources_and_pages_of_the_gallery_exist() -> None:
    tool = speeds()
    for each in tool.GALLERY:
        found = tool.measured(each.speed)
        assert found.ours > 0 if found else "bank conflicts" in tool.static(each.title)
        pictures = [f"pictures/gallery/{each.picture}.{theme}.svg" for theme in ("light", "dark")]
        for path in (each.source, each.page.partition("#")[0], *pictures):
            assert (ROOT / "docs" / path).exists(), path
        assert len(each.alt) > 40


@pytest.mark.parametrize(("program", "folder"), [("gallery", "pictures/gallery"), ("performance", "pictures")])
def test_pictures_are_those_of_the_program(program: str, folder: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    there = ROOT / "docs" / folder
    written = runpy.run_path(str(ROOT / f"docs/figures/{program}.py"))["main"](tmp_path)
    assert {path.name for path in written} == {path.name for path in there.glob("*.svg")}
    for path in written:
        assert path.read_text() == (there / path.name).read_text(), f"{path.name}: run docs/figures/{program}.py"


def test_pictures_of_pages_have_descriptions() -> None:
    """Each picture is shown in both themes, with the same words for who does not see it."""
    block = re.compile(r"```\{image\} (\S+)\.(light|dark)\.svg\n:alt: (.{40,})\n:class: only-(\w+)\n")
    for page in ROOT.glob("docs/*.md"):
        text = page.read_text()
        found = block.findall(text)
        assert len(found) == text.count("```{image}"), page.name
        assert all(theme == only for _, theme, _, only in found)
        described = [{(name, words) for name, theme, words, _ in found if theme == each} for each in ("light", "dark")]
        assert described[0] == described[1], page.name
        assert all((page.parent / f"{name}.{theme}.svg").is_file() for name, theme, _, _ in found)
