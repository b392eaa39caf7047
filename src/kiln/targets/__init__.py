"""Targets: each turns a module of the `cute` dialect into code that runs somewhere. Loaded by name, when chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ..base_dsl.target import Target, register_target
from ..interop.arguments import loading
from . import settings


def _loader(name: str) -> Callable[[], Target]:
    return lambda: importlib.import_module(f"{__name__}.{name}").load_target()


loading.provide(lambda: importlib.import_module(f"{__name__}.host.jit").loading)
register_target("cpu", _loader("cpu"), preference=0, sanitizes=True)
register_target("nvidia", _loader("nvidia"), preference=1)
