"""Objects that a branch chose between: what was two objects becomes a third, made of the chosen values.

Python would go on with one of the two, so that a later change in place is seen under both names. Here it is seen under
the new name only. Such a change is refused where one of the two is still in use; reading the new object is right.
"""

from __future__ import annotations

import dis
import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import trace as tracing
from .. import tree
from ..diagnostics import DSLUserCodeError, Span, is_internal
from .carry import Snapshot

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator


class Merged(NamedTuple):
    """An object made of two, with what it held at first."""

    state: Snapshot
    name: str
    span: Span | None


def objects_in(*values: Any) -> set[int]:
    """The identities of objects and containers that can be changed in place and are reached through values."""
    kept = Snapshot([("", value) for value in values if tree.is_mutable(value)])._keep  # each is looked at once
    return {id(x) for x in kept if not isinstance(x, tuple)}


def note(merged: Any, first: Any, second: Any, in_use: Iterable[Any], name: str, span: Span | None) -> None:
    """Watch an object made of `first` and `second`, if something of them is among the values `in_use`."""
    origins = objects_in(first, second) - objects_in(merged)  # what both have in common is not copied
    if origins and not origins.isdisjoint(objects_in(*in_use)):
        trace = tracing.require("a branch")
        trace.merged.append(Merged(Snapshot([(name, merged)]), name, span))


def check(trace: tracing.Trace) -> None:
    """Refuse changes of the objects that were noted. Called when the trace is complete."""
    for state, name, span in trace.merged:
        for path in _changed(state):
            raise DSLUserCodeError(
                f"{name} is one of two objects here, which one is only known when the program runs, and "
                f"{path} is changed afterwards: the object that was chosen would not see it",
                hint="change the objects themselves in the branches, or choose between copies that are used under "
                "no other name",
                span=span,
            )


def _changed(state: Snapshot) -> Iterator[str]:
    """Where something is not as it was."""
    yield from (path for path, _ in state.resized())
    changed = [(state.slots[index], state.values[index]) for index in state.changes()]
    for slot, before in [*changed, *state.reassigned()]:
        if not _same(before, slot.get()):
            yield slot.path
    yield from map(state.path_of, state.new_attributes())


def _same(before: Any, now: Any) -> bool:
    return tree.same_state(before, now) or (not tree.has_dynamic((before, now)) and tree.static_equal(before, now))


def used_later() -> list[Any]:
    """The values of variables that the functions on the stack, up to the outermost traced one, may read from here on.

    Read off the byte code: a name that is loaded further on, or in a loop around this place.
    """
    found: list[Any] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _trace_code():
        code = frame.f_code
        if not is_internal(code):
            again = code.co_name.startswith("__kiln_body")  # the body of a loop, which may run once more
            names = _loaded_after(code, -1 if again else frame.f_lasti)
            values = frame.f_locals
            found += [values[name] for name in sorted(names) if name in values]
        frame = frame.f_back
    return found


@functools.cache
def _trace_code() -> types.CodeType:
    from ..dsl import BaseDSL

    return BaseDSL.trace.__code__


@functools.lru_cache(maxsize=1024)
def _loaded_after(code: types.CodeType, offset: int) -> frozenset[str]:
    instructions = list(dis.get_instructions(code))
    jumps = [i for i in instructions if i.opcode in _JUMPS and i.offset > offset and i.argval <= offset]
    start = min([offset, *(i.argval for i in jumps)])  # a jump back over this place: all of the loop may run again
    names: set[Any] = set()
    for instruction in instructions:
        if instruction.opname.startswith("LOAD") and instruction.offset > start:
            found = instruction.argval
            names.update(found if isinstance(found, tuple) else (found,))  # some load two at once
    return frozenset(name for name in names if isinstance(name, str))


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
