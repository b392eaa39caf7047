"""Modules that load when a name in them is first used."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import kiln
from kiln._support import lazy


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A module that counts how often it runs."""
    (tmp_path / "lazily_loaded.py").write_text(
        "import sys\nsys.lazy_runs = getattr(sys, 'lazy_runs', 0) + 1\nclass part:\n    x = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "lazy_runs", 0, raising=False)
    yield lambda: sys.lazy_runs  # type: ignore[attr-defined]
    sys.modules.pop("lazily_loaded", None)


def test_a_module_runs_at_its_first_use(counted) -> None:
    module = lazy.Module("lazily_loaded")
    assert counted() == 0
    assert module.part.x == 3 and counted() == 1
    assert module.part is sys.modules["lazily_loaded"].part and "part" in vars(module)
    with pytest.raises(AttributeError):
        module.nothing  # noqa: B018


def test_an_attribute_of_a_module(counted) -> None:
    part = lazy.Module("lazily_loaded", "part")
    assert counted() == 0
    assert part.x == 3 and counted() == 1


def test_a_module_that_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError):
        lazy.Module("no_such_module").x  # noqa: B018


def test_no_module_is_called_as_what_it_gives_to_its_package() -> None:
    """Once it is imported, Python puts the module itself under that name."""
    for file in Path(kiln.__file__).parent.rglob("__init__.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Dict):
                places = {k.value: v.value for k, v in zip(node.keys, node.values, strict=True)
                          if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)}  # fmt: skip
                assert [name for name, place in places.items() if place == f".{name}"] == [], file
