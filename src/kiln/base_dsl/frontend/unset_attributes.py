"""Attributes that objects of a kernel first get inside a branch or loop, and that later code may not read.

The region may not run at all, and an iteration may be the first, so the attribute has no value after the region and at
the head of an iteration. Python's own error for reading it would not say why, and `hasattr` would have one answer where
a program may see either. So a class attribute stands in for it until the kernel has been traced: an object's own
attribute comes first, and where there is none, reading is refused with the line of the region, also by `hasattr`.

An attribute that is None before the region and gets there what no None can be merged with is one of these, too: the
object loses it until the kernel has been traced.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from ..._support import fork_safe
from .. import trace as tracing
from .. import tree
from ..dependencies import is_own_class
from ..diagnostics import DSLUserCodeError, Span, error
from ..tree import UNDEFINED

_lock = fork_safe.lock()
_FRONT_END = os.path.dirname(__file__)


class Unset:
    """A class attribute that refuses to be read through the objects it knows."""

    __kiln_immutable__ = True

    def __init__(self, name: str, default: object = UNDEFINED, is_own: bool = False) -> None:
        """Stand in for an attribute. `default`: what objects of the class inherit; `is_own`: from this class itself."""
        self._name = name
        self._default = default
        self.is_own = is_own
        self.refusals: dict[int, tuple[Any, str, str, Span | None]] = {}
        """The objects, by identity, each with the path of the attribute, and the title and place of the region."""

    def __get__(self, owner: object, kind: type) -> Any:
        if not sys._getframe(1).f_code.co_filename.startswith(_FRONT_END):  # snapshots find no attribute
            self.refuse(owner)
        if self._default is not UNDEFINED and id(owner) not in self.refusals:
            return self._default
        if owner is None:
            raise AttributeError(f"type object {kind.__name__!r} has no attribute {self._name!r}")
        raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}", name=self._name, obj=owner)

    def refuse(self, owner: object) -> None:
        """Raise an error if it stands in for an attribute of this object."""
        refused = self.refusals.get(id(owner))
        if refused is not None:
            _, path, title, span = refused
            trace = tracing.current()
            refusal = error(
                DSLUserCodeError,
                f"{path} first gets its value inside {title}, whose course is only known when the program runs, and is read "
                "where it may have none",
                hint=f"give {path} a value before",
                notes=() if span is None else ((span, "it gets its value in here"),),
            )
            if trace is not None and trace.broken is None:
                trace.broken = trace.broken_by = refusal  # the program must not go on if it catches this
            raise refusal


_of_namespaces: dict[str, Unset] = {}
"""What stands in for attributes of namespaces, by name."""


def check_read(owner: object, name: str) -> None:
    """Refuse asking by `getattr` or `hasattr` for an attribute that an object first gets inside a branch or loop."""
    kind = type(owner)
    stand_in = _of_namespaces.get(name) if kind is types.SimpleNamespace else _of_class(kind, name)
    if isinstance(stand_in, Unset) and name not in tree.attributes_of(owner):
        stand_in.refuse(owner)


def _of_class(kind: type, name: str) -> object:
    """Return what a class or its bases have under a name, without calling it."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), UNDEFINED)


def count() -> int:
    """Return for how many attributes reading is refused in the function under trace."""
    return len(tracing.require("a region").function.at_end)


def refuse_reads(owner: Any, name: str, path: str, title: str, span: Span | None, was_none: bool = False) -> bool:
    """Refuse reading an attribute that an object has not, until the kernel under trace is complete.

    `was_none`: the object had it, and gets it back. Returns False where that is impossible: in functions of the host,
    after which Python may read the object, and for objects of Kiln's own classes or of those whose attributes are fixed.
    """
    kind = type(owner)
    function = tracing.require("a region").function
    is_namespace = kind is types.SimpleNamespace
    if function.kind != "kernel" or is_own_class(kind):
        return False
    with _lock:
        stand_in = _of_namespaces.setdefault(name, Unset(name)) if is_namespace else vars(kind).get(name)
        if not isinstance(stand_in, Unset):
            inherited = getattr(kind, name, UNDEFINED)
            if inherited is not UNDEFINED and inherited is not None:
                return False
            stand_in = Unset(name, inherited, name in vars(kind))
            try:
                type.__setattr__(kind, name, stand_in)
            except TypeError:  # a class that is written in C
                return False
        if id(owner) in stand_in.refusals:
            return True
        stand_in.refusals[id(owner)] = owner, path, title, span
    function.at_end.append(lambda: _allow_reads(kind, name, owner, was_none))
    return True


def _allow_reads(kind: type, name: str, owner: object, was_none: bool) -> None:
    if was_none and name not in tree.attributes_of(owner):
        tree.set_attribute(owner, name, None)
    with _lock:
        is_namespace = kind is types.SimpleNamespace
        stand_in = _of_namespaces.get(name) if is_namespace else vars(kind).get(name)
        if isinstance(stand_in, Unset):
            stand_in.refusals.pop(id(owner), None)
            if stand_in.refusals:
                return
            if is_namespace:
                del _of_namespaces[name]
            elif stand_in.is_own:
                type.__setattr__(kind, name, None)
            else:
                type.__delattr__(kind, name)
