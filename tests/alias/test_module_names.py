"""Importing a module under its alias sets the attribute of that name on its package: it must not hide a function."""

from __future__ import annotations

import importlib
import pkgutil
import types

import kiln


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
