"""Coefficients of cost models, and tile shapes: a JSON file for each GPU that was measured."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("h200.json").read_text(), object_hook=_with_tuples)


def _with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table with extents as tuples, as configs have them."""
    return {name: tuple(x) if isinstance(x, list) and isinstance(x[0], (int, float)) else x for name, x in row.items()}


def coefficients(model: str) -> dict[str, Any]:
    """Return the coefficients of a model, by name. They are an H200's, which other GPUs of its architecture share."""
    return _table()[model]
