"""Objects merged at the end of a region: two objects become a third, made of the chosen values.

Python would continue with one of the two, so that a later change in place is visible through both references. Here it
is visible through one of them only. So such a change is refused where both are still in use; reading is fine.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import trace as tracing
from .. import tree
from ..code_cache import by_code
from ..diagnostics import DSLUserCodeError, Span, frame_span, generated_name, is_internal, user_frame
from .carry import Reached, Snapshot, objects_in
from .jumps import is_internal_name

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator

    from .carry import Scope


_ORIGIN = "one of the two"


class Watched:
    """A watch on objects that must not change any more, with what they hold.

    `why` is the error message for a change of `{path}`.
    """

    def __init__(self, roots: list[tuple[str, Any]], why: str, hint: str, span: Span | None) -> None:
        self._roots = roots
        self._why = why
        self._hint = hint
        self._span = span
        self.look_again()

    def look_again(self) -> None:
        """Record what the objects hold, after a region has given them its results."""
        self.state: Snapshot = Snapshot(self._roots, code=False)

    def check(self) -> None:
        """Refuse a change."""
        for path in _changed(self.state):
            raise self.refusal(path)

    def refusal(self, path: str) -> DSLUserCodeError:
        """Return the error for a change of `path`."""
        if path.startswith(_ORIGIN):
            path = f"{path[len(_ORIGIN) :]} of {_ORIGIN}"
        return DSLUserCodeError(self._why.format(path=path), hint=self._hint, span=self._span)


class Noted:
    """The objects that one region merged from two."""

    def __init__(self, span: Span | None) -> None:
        """Begin for a region. `span`: where it is; None for the user's line that is running."""
        self._span = span
        self._merged: list[tuple[Any, list[Any], str, list[Any]]] = []

    def add(self, merged: Any, origins: list[Any], name: str, passed_on: list[Any] | None = None) -> None:
        """Record an object merged from `origins`, one of which it would be in Python, or those a loop passed on."""
        if tree.is_mutable(merged) and all(tree.is_mutable(x) and x is not merged for x in origins):
            self._merged.append((merged, origins, name, passed_on or []))
            tracing.require("a branch").merged[id(merged)] = merged, origins

    def setting(
        self,
        set_: Callable[[Any], None],
        make: Callable[[Iterator[Any]], Any],
        first: object,
        second: object,
        name: str,
    ) -> Callable[[Iterator[Any]], None]:
        """Return a function that makes a merged value, sets it, and records its origins."""

        def run(values: Iterator[object]) -> None:
            merged = make(values)
            set_(merged)
            self.add(merged, [first, second], name)

        return run

    def settle(self, in_use: Callable[[], Sequence[object]]) -> None:
        """Watch the recorded objects that share a part with values `in_use` or with what the stack uses later."""
        if not self._merged:
            return
        trace = tracing.require("a branch")
        origins = [_copied(merged, originals) for merged, originals, *_ in self._merged]
        used: Any = None
        already = objects_watched(trace.watched)
        for i, (merged, originals, name, passed_on) in enumerate(self._merged):
            mine = origins[i]
            others = [o for k, o in enumerate(origins) if k != i and self._merged[k][0] is not merged]
            if mine and used is None:
                used = objects_in(*in_use(), *used_later()).keys()
            all_origins = mine | _copied(merged, passed_on)
            elsewhere = any(not all_origins.isdisjoint(o) for o in (used or (), already))
            if mine and (elsewhere or any(not mine.isdisjoint(o) for o in others)):
                in_view = {*(used or ()), *(number for o in others for number in o)}
                origins_in_view = [x for x in [*originals, *passed_on] if not in_view.isdisjoint(objects_in(x))]
                roots = [(name, merged), *((_ORIGIN, x) for x in origins_in_view)]
                trace.watched.append(Watched(roots, *_two_objects(name), self._span or _here()))


def _copied(merged: object, origins: Sequence[object]) -> set[int]:
    """Return the objects of its origins that a merged object has copies of; objects common to all are not copied."""
    originals = objects_in(*origins).keys()
    return (originals - objects_in(merged).keys()) | (originals & {id(x) for x in origins})


def with_origins(objects: Iterable[int]) -> set[int]:
    """Return objects and those that they were made of, by identity."""
    merged = tracing.require("a loop").merged
    numbers = set[int]()
    todo = list(objects)
    while todo:
        number = todo.pop()
        if number not in numbers:
            numbers.add(number)
            todo += [id(x) for x in merged[number][1]] if number in merged else ()
    return numbers


def watched_copy(name: str, copy: object, span: Span | None) -> Watched:
    """Return a watch on the stand-in for a watched object inside a loop."""
    return Watched([(name, copy)], *_two_objects(name), span)


def _here() -> Span | None:
    frame = user_frame()
    return None if frame is None else frame_span(frame)


def _two_objects(name: str) -> tuple[str, str]:
    why = (
        f"{name} is one of two objects here, which one is only known when the program runs, and {{path}} is changed "
        "afterwards: the object that was chosen would not see it"
    )
    hint = "change the objects themselves in the branches, or choose between copies that are used under no other name"
    return why, hint


def without_cached(snapshot: Snapshot, changes: Mapping[int, object]) -> dict[tuple[int, str], Any]:
    """Return the attributes that objects gained in a region, except cached properties, which are dropped.

    They are computed again where they are read next, with the same result unless the object changes: so it is watched.
    """
    gained = snapshot.new_attributes()
    for key in list(gained):
        owner = snapshot.owner_of(key)
        path = snapshot.path_of(key)
        if not _is_cached(owner, key[1]):
            continue
        snapshot.drop_attributes([key])
        del gained[key]
        why = (
            f"{path} is a cached property that is first read on a path that is only known when the program runs, and {{path}}, "
            "which it may depend on, is changed"
        )
        watched = Watched([(path.rpartition(".")[0], owner)], why, f"read {path} before", _here())
        changed = [snapshot.slots[i] for i in changes if id(snapshot.slots[i].owner) in watched.state.objects]
        if changed:
            raise watched.refusal(changed[0].path)
        tracing.require("a region").watched.append(watched)
    return gained


def _is_cached(owner: object, name: str) -> bool:
    return isinstance(getattr(type(owner), name, None), functools.cached_property)


def check(watched: list[Watched]) -> None:
    """Refuse changes of objects that are watched. Called where a region or the trace is complete."""
    for each in watched:
        each.check()


def objects_watched(watched: list[Watched]) -> set[int]:
    """Return the objects that must not change any more, by identity."""
    return set[int]().union(*(each.state.objects for each in watched))


def look_again(watched: list[Watched]) -> None:
    """Continue watching after a region, whose results objects have now."""
    for each in watched:
        each.look_again()


def _changed(state: Snapshot) -> Iterator[str]:
    """Yield the paths of what has changed."""
    yield from (path for path, _ in state.resized())
    changed = [(state.slots[index], state.values[index]) for index in state.changes()]
    for slot, before in [*changed, *state.reassigned()]:
        if not _same(before, slot.get()):
            yield slot.path
    yield from (state.path_of(key) for key in state.new_attributes() if not _is_cached(state.owner_of(key), key[1]))


def _same(before: object, now: object) -> bool:
    return tree.same_state(before, now) or (not tree.has_dynamic((before, now)) and tree.static_equal(before, now))


def used_later() -> list[Any]:
    """Return the variables that functions on the stack, up to the outermost traced one, may read from here on."""
    return [value for frame in _frames() for _, value in _read_later(frame)]


def reached_later(values: Sequence[object]) -> dict[int, Any] | None:
    """Return the objects that the kernel under trace and its host functions may reach from here on, by identity.

    Called where a statement of the innermost function ends, whose values in use are `values`. None: it is not known.
    Functions around it are in the middle of an expression, so all they load counts, up to the kernel.
    """
    roots: list[tuple[str, Any]] = [("", value) for value in values]
    in_kernel = True
    innermost = True
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and (code := frame.f_code) not in tracing.entry_codes:
        in_kernel = in_kernel and code not in tracing.kernel_codes
        if not is_internal(code):
            if in_kernel and _has_with(code):
                return None  # the end of a `with` block reads objects that no name is loaded for
            whole = in_kernel and not innermost
            names = _loaded_after(code, -1 if whole or _runs_again(code) else frame.f_lasti)
            variables = {**frame.f_globals, **frame.f_locals}
            roots += [(name, variables[name]) for name in sorted(names) if name in variables]
            innermost = False
        frame = frame.f_back
    return Reached(roots).objects


@by_code
def _has_with(code: types.CodeType) -> bool:
    return any("WITH" in i.opname or i.opname == "LOAD_SPECIAL" for i in dis.get_instructions(code))


def used_by_callers(scope: Scope) -> list[tuple[str, Any]]:
    """Return the variables that the callers of the function with these variables may read from here on, by name."""
    roots: list[tuple[str, Any]] = []
    mine = True
    for frame in _frames():
        if not mine:
            roots += _read_later(frame)
        elif frame.f_locals.get("__kiln_scope") is scope and "__kiln_scope" not in frame.f_code.co_freevars:
            mine = False
    return roots


def _frames() -> Iterator[types.FrameType]:
    """Yield the frames of the user's functions, up to the outermost traced one."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in tracing.entry_codes:
        if not is_internal(frame.f_code):
            yield frame
        frame = frame.f_back


def _read_later(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return the variables that a function may read from here on: those loaded later, or in a loop around, by name."""
    code = frame.f_code
    names = _loaded_after(code, -1 if _runs_again(code) else frame.f_lasti)
    values = frame.f_locals
    return [(name, values[name]) for name in sorted(names) if name in values]


def _runs_again(code: types.CodeType) -> bool:
    """Return whether code is the body of a loop, which may run once more."""
    return generated_name(code).startswith("__kiln_body")


@by_code
def _places(_code: types.CodeType) -> dict[int, frozenset[str]]:
    """Return the cache of `_loaded_after` for a code object, by offset."""
    return {}


def _loaded_after(code: types.CodeType, offset: int) -> frozenset[str]:
    """Return the names of variables that code loads after an offset, or in a loop around it."""
    by_offset = _places(code)
    names = by_offset.get(offset)
    if names is None:
        names = by_offset[offset] = _find_loaded(code, offset)
    return names


def _find_loaded(code: types.CodeType, offset: int) -> frozenset[str]:
    instructions = list(dis.get_instructions(code))
    jumps = [i for i in instructions if i.opcode in _JUMPS and i.offset > offset and i.argval <= offset]
    start = min([offset, *(i.argval for i in jumps)])  # a jump back over this place: all of the loop may run again
    names: set[Any] = set()
    for instruction in instructions:
        if instruction.opname.startswith("LOAD") and instruction.offset > start:
            argument = instruction.argval
            names.update(argument if isinstance(argument, tuple) else (argument,))  # some load two at once
    return frozenset(name for name in names if isinstance(name, str) and not is_internal_name(name))


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
