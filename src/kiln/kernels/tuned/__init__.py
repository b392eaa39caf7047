"""Coefficients of the cost models, and choices by measurement: a JSON file for each GPU that was measured."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("h200.json").read_text())


def coefficients(model: str) -> dict[str, Any]:
    """Return the coefficients of a model, by name. They are an H200's: other GPUs of its architecture have the same SMs."""
    return _table()[model]
