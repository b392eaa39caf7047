"""Importing a module under its alias sets the attribute of that name on its package: it must not hide what the package exports."""

from __future__ import annotations

import importlib
import pkgutil
import types

import kiln
import kiln.cute as cute


def test_no_module_bears_the_name_of_something_else_in_its_package() -> None:
    hidden: list[str] = []
    for module in pkgutil.walk_packages(kiln.__path__, "kiln."):
        package, _, name = module.name.rpartition(".")
        if ".workbench." in module.name:
            continue  # programs do not import these
        found = vars(importlib.import_module(package)).get(name)
        if found is not None and not isinstance(found, types.ModuleType):
            hidden.append(module.name)
    assert not hidden


def test_functions_are_not_replaced_by_modules():
    before = {name: getattr(cute, name) for name in dir(cute)}
    for module in pkgutil.iter_modules(cute.__path__):
        importlib.import_module(f"cutlass.cute.{module.name}")
    assert [name for name, value in before.items() if getattr(cute, name) is not value] == []
    assert callable(cute.compile)
