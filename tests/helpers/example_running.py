"""Run the programs of `examples/` as a user does, and import them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(path: str) -> ModuleType:
    """An example as a module, with its folder importable as it is when the example is run."""
    file = EXAMPLES / path
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = f"example_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
