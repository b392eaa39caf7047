"""Examples of the reference run and print what they say, and every public function has one, but for a list that shrinks."""

from __future__ import annotations

import doctest
import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from doc_examples import run_page

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference" / "examples").glob("*.md"))
WITHOUT = {
    "kiln.cute": 2,
    "kiln.cute.arch": 15,
    "kiln.cute.nvgpu": 2,
    "kiln.cute.nvgpu.cpasync": 8,
    "kiln.cute.nvgpu.tcgen05": 11,
    "kiln.cute.runtime": 1,
    "kiln.cute.testing": 2,
    "kiln.kernels": 13,
    "kiln.nn": 5,
    "kiln.pipeline": 1,
    "kiln.testing": 3,
    "kiln.torch": 8,
    "kiln.utils": 5,
    "kiln.utils.blockscaled_layout": 7,
    "kiln.utils.schedulers": 9,
    "kiln.utils.sm100": 23,
    "kiln.utils.sm90": 1,
}
"""How many public functions of a module have no example yet. Numbers only shrink."""


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_pages", ROOT / "tools" / "api_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_example_runs(page: Path, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("KILN_CPU_OPT", "0")
    if page.stem == "torch":
        pytest.importorskip("torch")
    text = page.read_text()
    if ">>> " not in text:
        assert run_page(page, tmp_path, capsys, monkeypatch, Exception) > 3
        return
    from kiln import cute

    blocks = text.replace("\n```\n", "\n\n")  # a fence would be taken for output
    test = doctest.DocTestParser().get_doctest(blocks, {"cute": cute}, page.stem, str(page), 0)
    failed, tried = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test)
    assert tried > 50
    assert failed == 0, capsys.readouterr().out


def test_functions_without_an_example_are_counted() -> None:
    api = tool()
    shown = {id(api.found(name)) for name in api.examples()}
    missing: Counter[str] = Counter()
    names: list[str] = []
    for module in api.SITE:
        if module in ("kiln.torch", "kiln.nn"):
            pytest.importorskip("torch")
        for name, value in api.public(module):
            if not isinstance(value, type) and id(value) not in shown:
                missing[module] += 1
                names.append(f"{module}.{name}")
    assert missing == WITHOUT, f"give these an example in docs/reference/examples, or lower the number: {names}"


def test_examples_are_of_public_functions() -> None:
    api = tool()
    public = {f"{module}.{name}" for module in api.SITE for name, _ in api.public(module)}
    assert sorted(name for name in api.examples() if name not in public) == []
