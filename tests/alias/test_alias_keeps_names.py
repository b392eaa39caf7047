"""Importing the modules of a package by their alias replaces nothing the package exports."""

from __future__ import annotations

import importlib
import pkgutil

import kiln.cute as cute


def test_functions_are_not_replaced_by_modules():
    before = {name: getattr(cute, name) for name in dir(cute)}
    for module in pkgutil.iter_modules(cute.__path__):
        importlib.import_module(f"cutlass.cute.{module.name}")
    assert [name for name, value in before.items() if getattr(cute, name) is not value] == []
    assert callable(cute.compile)
