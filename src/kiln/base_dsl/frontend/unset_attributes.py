"""Attributes that objects of a kernel first get inside a branch or loop, and that later code may not read.

The region may not run at all, and an iteration may be the first, so the attribute has no value after the region and at
the head of an iteration. Python's own error for reading it would not say why, and `hasattr` would have one answer where
a program may see either. So a class attribute stands in for it until the kernel has been traced: an object's own
attribute comes first, and where there is none, reading is refused with the line of the region, also by `hasattr`.
"""

from __future__ import annotations

import types
from typing import Any

from ..._support import fork_safe
from .. import trace as tracing
from ..dependencies import is_library_class
from ..diagnostics import DSLUserCodeError, Span, error

_lock = fork_safe.lock()


class Unset:
    """A class attribute that refuses to be read through the objects it knows."""

    __kiln_immutable__ = True

    def __init__(self, name: str) -> None:
        self._name = name
        self.refusals: dict[int, tuple[Any, str, str, Span | None]] = {}
        """The objects, by identity, each with the path of the attribute, and the title and place of the region."""

    def __get__(self, owner: object, kind: type) -> Any:
        self.refuse(owner)
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
    """Refuse asking whether a namespace has an attribute that it first gets inside a branch or loop."""
    if type(owner) is types.SimpleNamespace and name in _of_namespaces and name not in vars(owner):
        _of_namespaces[name].refuse(owner)


def count() -> int:
    """Return for how many attributes reading is refused in the function under trace."""
    return len(tracing.require("a region").function.at_end)


def refuse_reads(owner: Any, name: str, path: str, title: str, span: Span | None) -> bool:
    """Refuse reading an attribute that an object has not, until the kernel under trace is complete.

    Returns False where that is impossible: in functions of the host, after which Python may read the object, and for
    objects of classes that a library owns or whose attributes are fixed.
    """
    kind = type(owner)
    function = tracing.require("a region").function
    is_namespace = kind is types.SimpleNamespace
    if function.kind != "kernel" or (is_library_class(kind) and not is_namespace):
        return False
    with _lock:
        stand_in = _of_namespaces.setdefault(name, Unset(name)) if is_namespace else vars(kind).get(name)
        if stand_in is None and not hasattr(kind, name):
            stand_in = Unset(name)
            type.__setattr__(kind, name, stand_in)
        if not isinstance(stand_in, Unset):
            return False
        if id(owner) in stand_in.refusals:
            return True
        stand_in.refusals[id(owner)] = owner, path, title, span
    function.at_end.append(lambda: _allow_reads(kind, name, owner))
    return True


def _allow_reads(kind: type, name: str, owner: object) -> None:
    with _lock:
        is_namespace = kind is types.SimpleNamespace
        stand_in = _of_namespaces.get(name) if is_namespace else vars(kind).get(name)
        if isinstance(stand_in, Unset):
            stand_in.refusals.pop(id(owner), None)
            if not stand_in.refusals and is_namespace:
                del _of_namespaces[name]
            elif not stand_in.refusals:
                type.__delattr__(kind, name)
