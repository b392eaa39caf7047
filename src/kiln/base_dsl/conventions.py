"""Calling conventions of compiled functions. Rooms above register theirs by name; each is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import settings
from .settings import TRUTH, Setting, truth

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .compiled_function import CompiledFunction

settings.register(
    Setting(
        "KILN_AOT_STRICT",
        TRUTH,
        False,
        "Functions of loaded modules refuse tensors of another layout than the one that was compiled for, which they else take as they are, with a warning.",
        truth,
    )
)


class Convention:
    """How a compiled function is called, and what its errors say. This one is Python's."""

    plain_tuples = False
    """Whether callers know plain tuples only, where the function takes named ones."""
    ambient_stream = False
    """Whether launches that name no stream go to the one on which the caller's framework works."""

    def wrap(self, compiled: CompiledFunction[Any]) -> Any:
        """Return a compiled function as callers of the convention take it."""
        return compiled

    def mismatch(self, compiled: CompiledFunction[Any], name: str, key: Hashable, expected: Hashable, why: str) -> str:
        """Return the message for an argument with this key that does not fit the expected one; `why`, or "": by keys."""
        return (
            f"argument {name!r} of {compiled.function_name} is {describe_key(key)}, and it was compiled for "
            f"{describe_key(expected)}" + (f": {why}" if why else "")
        )

    def complaint(self, compiled: CompiledFunction[Any]) -> str:
        """Return what comes before the message of compiled code that checks its arguments."""
        return ""


PYTHON = Convention()
_loaders: dict[str, Callable[[], Convention]] = {}


def register(name: str, load: Callable[[], Convention]) -> None:
    """Register a convention by the name that compile options choose it by (`CompileOption.convention`)."""
    _loaders[name] = load


def convention(name: str) -> Convention:
    """Return a registered convention."""
    return _loaders[name]()


exporter: Callable[[], Any]
"""Returns the module that exports compiled functions as object files (`export_to_c`) and loads them (`load_module`)."""


def describe_key(key: object) -> str:
    """Return a part of a key as error messages show it."""
    if isinstance(key, type):
        return key.__name__
    if type(key) is tuple and key and isinstance(key[0], type):
        inner = ", ".join(describe_key(k) for k in key[1:])
        return f"{key[0].__name__}({inner})"
    return str(key)


def brief_key(key: object) -> str:
    """Return a part of a key as signatures show it."""
    return "None" if key is None else getattr(key, "brief", None) or describe_key(key)
