"""Examples of the reference run and print what they say; every public function has one, and names its parameters."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from doc_examples import run_page

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference" / "examples").glob("*.md"))


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


def test_every_public_function_has_an_example() -> None:
    pytest.importorskip("torch")
    api = tool()
    shown = {id(api.found(name)) for name in api.examples()}
    functions = [
        (f"{module}.{name}", value)
        for module in api.SITE
        for name, value in api.public(module)
        if not isinstance(value, type)
    ]
    assert len(functions) > 490
    missing = [name for name, value in functions if id(value) not in shown]
    assert missing == [], "give them an example in docs/reference/examples"


def test_docstrings_name_every_parameter() -> None:
    """In backticks, or in a section `Args:`, which editors show for the argument under the cursor."""
    pytest.importorskip("torch")
    api = tool()
    unnamed: dict[str, list[str]] = {}
    for module in api.SITE:
        for name, value in api.public(module):
            if isinstance(value, type):
                continue
            text = inspect.getdoc(value) or ""
            parameters = re.findall(r"(?:\(|, )\*{0,2}(\w+)", api.parameters(value))
            missing = [x for x in parameters if not re.search(rf"`{x}`|^    {x}: \S", text, re.MULTILINE)]
            if {*missing} - {"args", "kwargs"}:
                unnamed[f"{module}.{name}"] = missing
    assert unnamed == {}


def test_examples_are_of_public_functions() -> None:
    api = tool()
    public = {f"{module}.{name}" for module in api.SITE for name, _ in api.public(module)}
    assert sorted(name for name in api.examples() if name not in public) == []
