"""Builds loops of the program around Python callables.

A body is traced once, and again if its first trace shows that a number or an object has to be carried in another way.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import merging, tree, value_trees
from .. import trace as tracing
from ..bindings import ir
from ..diagnostics import DSLBaseError, DSLUserCodeError, error, runtime_error, type_error
from ..tree import UNDEFINED
from ..typing import Boolean, Integer, Numeric
from . import merged_objects, unset_attributes
from .carry import Reached, Scope, Slot, Snapshot, objects_in
from .code_facts import stored_attributes
from .jumps import is_internal_name
from .merged_objects import Noted
from .regions import (
    DetachedBlock,
    WrongChoice,
    as_condition,
    assignment_notes,
    check_globals,
    readable,
    region,
    unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .construct import Construct


class _Choices:
    """The ways in which a loop carries what its body may change, as learned by tracing the body.

    `promoted`: Python numbers that become values of the program. `by_value`: variables and attributes that hold
    another object after an iteration, so that the object's parts are carried; all others refer to the object itself.
    `likes`: values that are less precisely described after an iteration (alignment, divisibility), by variable or
    attribute and path.
    """

    def __init__(self) -> None:
        self.promoted: set[str] = set()
        self.by_value: dict[str, int] = {}
        self.likes: dict[str, dict[str, Any]] = {}
        self._weakened = self._unset = 0

    def learn(self, wrong: WrongChoice) -> bool:
        """Adapt to a wrong choice; return whether there was something to learn."""
        if wrong.unset is not None:
            for slot in wrong.unset:
                slot.set(UNDEFINED)
            self._unset += 1
            return self._unset <= _MOST_UNSET
        if wrong.promote is not None:
            new = wrong.promote not in self.promoted
            self.promoted.add(wrong.promote)
            return new
        if wrong.like is not None:
            path, like = wrong.like
            self.likes.setdefault(wrong.by_value, {})[path] = like
            self._weakened += 1
            return self._weakened <= _MOST_WEAKENED
        level = self.by_value.get(wrong.by_value, 0)
        self.by_value[wrong.by_value] = level + 1
        return level < 2

    def kept(self, name: str, value: object, shared: tree.Kept) -> tree.Kept:
        """Return the objects in the value of a variable or attribute that keep their identity."""
        level = self.by_value.get(name, 0)
        if level == 0:
            return shared
        return {} if level > 1 else {number: x for number, x in shared.items() if x is not value}


_MOST_WEAKENED = 16
"""The most retraces of a loop because a value's description gets weaker; alignments and divisors get small soon."""
_MOST_UNSET = 16
"""The most retraces of a loop because objects gain attributes in it; a program may make up names without end."""


def _retraced(attempt: Callable[..., object]) -> Callable[..., Any]:
    """Decorate a function that traces a loop by some choices: it runs again if the body shows that one was wrong."""

    @functools.wraps(attempt)
    def run(rec: Construct, *args: object) -> Any:
        trace = tracing.require("a loop")
        choices = trace.choices.setdefault(id(rec.function), {}).setdefault(rec.span, _Choices())
        first: DSLBaseError | None = None
        while True:
            watched = len(trace.watched)
            complaints = len(trace.complaints)
            unavailable = dict(trace.unavailable)
            try:
                return attempt(choices, rec, *args)
            except WrongChoice as wrong:
                if not choices.learn(wrong):
                    raise (first or wrong.error) from None
                if not wrong.by_value and wrong.unset is None:  # the error of the next trace says more
                    first = first or wrong.error
                del trace.watched[watched:], trace.complaints[complaints:]
                trace.unavailable = unavailable
            except DSLBaseError as failure:
                if first is None:
                    raise
                trace.broken = first
                raise first from failure

    return run


class _Entry:
    """A variable or slot whose leaves are block arguments of the loop. Objects of `kept` in it keep their identity."""

    def __init__(
        self,
        name: str,
        value: Any,
        set_: Callable[[Any], None],
        get: Callable[[], Any],
        promote: bool,
        kept: tree.Kept,
        holds_object: bool = True,
        likes: dict[str, Any] | None = None,
    ) -> None:
        """Open the value's leaves. `holds_object`: it is no copy of a kept object's state. `likes`: see `_Choices`."""
        self.name = name
        self.original = value
        self.get = get
        self.set = set_
        self.kept = kept
        try:
            began = value if likes is None else merging.weakened(value, likes)
            self.promoted, self.inits, self._rebuild = merging.open_value(began, promote, kept)
        except merging.Mismatch as m:
            raise type_error(
                f"{name} becomes a value of the program, because a loop changes it, and {m.why}", m.hint
            ) from None
        self.holds_object = holds_object
        self.opened: Any = None
        self.now: Any = None
        self._began: Any = None
        self._arguments: list[ir.Value] = []
        self.changed_in_place = isinstance(value, (list, dict)) or tree.is_plain_object(value)

    def enter(self, arguments: Iterator[ir.Value]) -> None:
        """Let the variable stand for block arguments."""
        mine = self._arguments = [next(arguments) for _ in self.inits]
        self.opened = self._rebuild(iter(mine))
        # The body may change the object in place: its initial state is copied.
        self._began = tree.frozen(self.opened, kept=self.kept)
        self.set(self.opened)

    def leaves_now(self, rec: Construct) -> list[ir.Value]:
        """Return the leaves of what it holds now, for the next iteration."""
        now = self.now = self.get()
        self.changed_in_place &= now is self.opened
        if tree.same_state(now, self._began):
            return list(self._arguments)
        try:
            if now is UNDEFINED:
                raise merging.Mismatch("", self._began, now)
            return merging.match(self._began, now, self.kept)
        except merging.Mismatch as m:
            was = tree.describe(m.first)
            refusal = type_error(
                f"{self.name}{m.path} is {was} when {rec.title} begins and {tree.describe(m.second)} after an iteration"
                + (f": {m.why}" if m.why else ""),
                m.hint
                or f"a variable keeps its type across iterations: write {self.name} = {_suggest(m)} before the loop, "
                "convert the new value, or use another name",
                span=rec.span,
                notes=assignment_notes(rec, self.name),
            )
            if isinstance(m, merging.OtherObject):
                raise WrongChoice(refusal, by_value=self.name) from None
            if isinstance(m, merging.WeakerDescription):
                raise WrongChoice(refusal, by_value=self.name, like=(m.path, m.like)) from None
            raise refusal from None

    @property
    def is_as_it_began(self) -> bool:
        """Whether its value is the same after an iteration as before."""
        return tree.same_state(self.now, self._began)

    @property
    def is_changed(self) -> bool:
        """Whether the body changed its object in place."""
        return not tree.same_state(self.opened, self._began)

    def finish(self, values: Iterator[ir.Value], kept: list[bool]) -> None:
        """Set the value after the loop: results for the leaves that changed; the original object where nothing did."""
        if not any(kept):
            self.set(self.original)
            return
        merged = [next(values) if keep else init for keep, init in zip(kept, self.inits, strict=True)]
        merged_object = self._rebuild(iter(merged))
        if self.changed_in_place:  # other names may stand for the same object
            tree.overwrite(self.original, merged_object)
            merged_object = self.original
        self.set(merged_object)
        self.merged_object = merged_object


def _connected(sets: list[set[int]]) -> list[list[int]]:
    """Return the connected components of some sets, by common elements, as lists of indices."""
    groups: list[tuple[list[int], set[int]]] = []
    for index, each in enumerate(sets):
        joined = [index]
        elements = set(each)
        for group in [g for g in groups if not g[1].isdisjoint(each)]:
            groups.remove(group)
            joined = [*group[0], *joined]
            elements = elements | group[1]
        groups.append((joined, elements))
    return [indices for indices, _ in groups]


def _stay_in(value: object, shared: tree.Kept) -> list[Any]:
    """Return the objects of `shared` that a value holds."""
    return [x for number, x in objects_in(value).items() if number in shared] if shared else []


def _suggest(m: merging.Mismatch) -> str:
    if isinstance(m.second, Numeric) and isinstance(m.first, Numeric):
        return f"{type(m.second).__name__}(...)"
    return "a value of that type"


_ONE_OBJECT = "change the object in place, or make a new one of its parts in every iteration"


def _is_another(old: object, now: object) -> bool:
    """Return whether a second object of one class has taken the place of the first."""
    return tree.is_mutable(old) and type(old) is type(now)


def _is_unchanged(old: object, now: object) -> bool:
    """Return whether a value that a loop does not carry is the same after an iteration: a new tuple of the same objects is."""
    if old is now:
        return True
    if isinstance(old, tuple) and isinstance(now, tuple):
        return type(old) is type(now) and len(old) == len(now) and all(map(_is_unchanged, old, now))
    return not tree.has_dynamic((old, now)) and tree.static_equal(old, now)


def _later(old: object, now: object) -> str:
    return f"another {type(now).__name__}" if _is_another(old, now) else tree.describe(now)


class _LoopState:
    """The state that a loop carries: opened before its body is traced, settled afterwards."""

    def __init__(self, rec: Construct, scope: Scope, choices: _Choices) -> None:
        self.rec = rec
        self.scope = scope
        self.choices = choices
        self.noted = Noted(rec.span)
        check_globals(rec)
        flow = rec.flow
        self.before = scope.save(n for n in sorted(flow.writes) if n in scope.cells)
        user = [n for n in self.before if not is_internal_name(n)]
        for name in user:
            if name in flow.live_head and self.before[name] is UNDEFINED:
                unavailable(
                    rec,
                    name,
                    f"{name!r} has no value when {rec.title} begins, and an iteration may read it before it is assigned",
                    f"give {name!r} a value before the loop",
                )
        heads = [n for n in user if n in flow.live_head and self.before[n] is not UNDEFINED]
        carried = [n for n in heads if n not in rec.function.constexpr_names]
        self.late = [n for n in self.before if n not in heads and n in flow.live_out]
        self.dead = [n for n in self.before if n not in heads and n not in self.late]
        self.entries: list[_Entry] = []
        self.fixed: list[str] = [n for n in heads if n in rec.function.constexpr_names]
        self.shared = self._shared_objects(carried)
        self._opening = DetachedBlock([])
        """What takes values apart in front of the loop: part of the program only if the loop is built."""
        self._openings: list[ir.Operation] = []
        """The same operations, and those that put the values together inside the loop."""
        for name in carried:
            kept = choices.kept(name, self.before[name], self.shared)
            with self._opening.open():
                entry = _Entry(
                    name,
                    self.before[name],
                    lambda v, n=name: scope.set(n, v),
                    lambda n=name: scope.get(n),
                    True,
                    kept,
                    likes=choices.likes.get(name),
                )
            if entry.inits:
                self.entries.append(entry)
            else:
                self.fixed.append(name)
        others = sorted((flow.reads | flow.writes) - {e.name for e in self.entries})
        roots = scope.roots(others)
        taken_apart = {e.name for e in self.entries}
        roots += [(n, x) for n in carried if n in taken_apart for x in _stay_in(self.before[n], self.shared)]
        self.snapshot = Snapshot(roots, scope.cells_of(self.before))
        # Objects may hold block arguments by the time these are merged.
        self._copies: dict[int, Any] = {}
        self.before_late = {n: tree.frozen(self.before[n], self._copies) for n in self.late}
        self._open_slots()
        self.types = [init.type for entry in self.entries for init in entry.inits]
        self._unset = unset_attributes.count()

    def _shared_objects(self, carried: list[str]) -> tree.Kept:
        """Return objects in carried variables with other references, which keep their identity and get the values."""
        values = [(n, self.before[n]) for n in carried if tree.is_mutable(self.before[n])]
        if not values:
            return {}
        flow = self.rec.flow
        scope = self.scope
        names = sorted(n for n in flow.reads | flow.writes | flow.live_out if not is_internal_name(n))
        reached = Reached([*scope.roots(names), *merged_objects.used_by_callers(scope)], scope.cells_of(names))
        inside = objects_in(*(value for _, value in values))
        return {number: x for number, x in inside.items() if reached.references.get(number, 0) > 1}

    def _open_slots(self) -> None:
        rec = self.rec
        snapshot = self.snapshot
        choices = self.choices
        stored = set(rec.attribute_stores)
        if any(type(v) in (bool, int, float) for v in snapshot.values):
            functions = (self.scope.get(n) for n in rec.calls if n in self.scope.cells)
            more = (self.scope.globals.get(n) for n in rec.calls if n not in self.scope.cells)
            stored |= stored_attributes(snapshot.classes(), rec.calls, [*functions, *more])
        self.slot_entries: dict[int, _Entry] = {}
        owned: set[int] = set()
        for index, (slot, value) in enumerate(zip(snapshot.slots, snapshot.values, strict=True)):
            if id(slot.owner) in owned:
                continue  # part of an object whose place another object takes
            kept: tree.Kept = {}
            promote = slot.path in choices.promoted
            if isinstance(value, tuple):
                kept = snapshot.objects
                promote = promote or (slot.kind == "attribute" and slot.key in rec.attribute_stores)
            elif slot.kind != "state" and id(value) in snapshot.objects:
                if not self._is_replaced(slot, value):
                    continue  # its own slots are listed
                inside = objects_in(value)
                kept = {n: x for n, x in inside.items() if snapshot.references[n] > 1 and x is not value}
                owned |= inside.keys() - kept.keys()
            elif type(value) in (bool, int, float):
                promote = promote or (
                    (slot.kind == "attribute" and slot.key in stored)
                    or (slot.kind == "item" and rec.stores_item(slot.container_path, slot.key))
                )
            if not promote and tree.is_atomic_class(type(value)) and not isinstance(value, Numeric):
                continue
            likes = choices.likes.get(slot.path)
            with self._opening.open():
                entry = _Entry(slot.path, value, slot.set, slot.get, promote, kept, slot.kind != "state", likes)
            if entry.inits:
                self.slot_entries[index] = entry
                self.entries.append(entry)

    def _is_replaced(self, slot: Slot, value: object) -> bool:
        """Return whether an iteration puts another object into a place."""
        if slot.path in self.choices.by_value:
            return True
        return (
            tree.is_protocol(value)
            and slot.kind == "attribute"
            and slot.key in self.rec.attribute_stores
            and self.snapshot.references[id(value)] == 1
        )

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Trace the loop's test or body while open; restore variables and objects if that fails."""
        try:
            with region(self.rec.title, self.rec.span, self.snapshot):
                yield
        except BaseException:
            self.scope.restore(self.before)
            for entry in self.entries:
                entry.set(entry.original)
            raise

    def add(self, entry: _Entry) -> None:
        """Carry one more variable, found when the test of the loop was traced."""
        self.entries.append(entry)
        self.types += [init.type for init in entry.inits]
        for names in (self.late, self.dead, self.fixed):
            if entry.name in names:
                names.remove(entry.name)

    def enter(self, arguments: list[ir.Value]) -> None:
        """Let variables and objects stand for block arguments; jump flags are clear at the start of an iteration."""
        iterator = iter(arguments)
        trace = tracing.require("a loop")
        watched = merged_objects.objects_watched(trace.watched)
        for entry in self.entries:
            entry.enter(iterator)
            if watched and entry.opened is not entry.original and not watched.isdisjoint(objects_in(entry.original)):
                trace.watched.append(merged_objects.watched_copy(entry.name, entry.opened, self.rec.span))
        self._openings += [view.operation for view in ir.InsertionPoint.current.block.operations]
        for flag in self.rec.exits:
            self.scope.set(flag, False)
        if value_trees.debug is not None:
            value_trees.report_loop(self.rec.title, self.rec.span, [(e.name, e.opened) for e in self.entries])

    def leaves_now(self) -> list[ir.Value]:
        """Return every carried leaf as it is now."""
        merged_objects.check(self.snapshot.watched())
        self.snapshot.check_unchanged(self.rec.title)
        return [leaf for entry in self.entries for leaf in entry.leaves_now(self.rec)]

    def check_static(self) -> None:
        """Check that nothing else changed, and that no object got a second name that the loop cannot follow."""
        rec = self.rec
        for name in self.fixed:
            now = self.scope.get(name)
            old = self.before[name]
            if _is_unchanged(old, now):
                continue
            constexpr = name in rec.function.constexpr_names
            refusal = type_error(
                f"{name!r} is {tree.describe(old)} when {rec.title} begins and {_later(old, now)} after an iteration",
                f"{name!r} is annotated Constexpr: drop the annotation"
                if constexpr
                else _ONE_OBJECT
                if _is_another(old, now)
                else f"only numbers, tensors and objects made of them can change in a loop that runs in the program: "
                f"give {name!r} a value of its later type before the loop, or unroll with range_constexpr",
                span=rec.span,
                notes=assignment_notes(rec, name),
            )
            if not constexpr and tree.is_mutable(old):
                raise WrongChoice(refusal, by_value=name)
            raise refusal
        self._drop_gained()
        for index, now in self.snapshot.changes().items():
            slot = self.snapshot.slots[index]
            old = self.snapshot.values[index]
            if index in self.slot_entries or any(slot.owner is e.opened for e in self.entries):
                continue
            if not tree.is_mutable(now) and not tree.has_dynamic(now) and tree.static_equal(old, now):
                continue
            refusal = type_error(
                f"{slot.path} is {tree.describe(old)} when {rec.title} begins and {_later(old, now)} after an iteration",
                f"make {slot.path} an object-stage value before the loop, for example Int32({old})"
                if isinstance(old, int)
                else _ONE_OBJECT
                if _is_another(old, now)
                else f"give {slot.path} a value of its later type before the loop",
                span=rec.span,
            )
            if type(old) in (bool, int, float) or isinstance(old, tuple):
                raise WrongChoice(refusal, promote=slot.path)
            if slot.kind == "attribute" and old is None:
                if unset_attributes.refuse_reads(slot.owner, slot.key, slot.path, rec.title, rec.span, slot.is_own):
                    raise WrongChoice(refusal, unset=[slot])
            if _is_another(old, now):
                raise WrongChoice(refusal, by_value=slot.path)
            raise refusal
        self._check_objects()

    def _drop_gained(self) -> None:
        """Remove the attributes that objects gained in an iteration: in a kernel, if nothing reads them without one.

        Another iteration may have set them before this one, so the body is traced again with reading refused.
        """
        rec = self.rec
        snapshot = self.snapshot
        gained = merged_objects.without_cached(snapshot, snapshot.changes())
        for key in gained:
            path = snapshot.path_of(key)
            if not unset_attributes.refuse_reads(snapshot.owner_of(key), key[1], path, rec.title, rec.span):
                raise error(
                    DSLUserCodeError,
                    f"{path} first gets its value inside {rec.title}, which may not run at all",
                    hint=f"give {path} a value before the loop",
                    span=rec.span,
                )
        if unset_attributes.count() > self._unset:
            why = f"objects get other new attributes in {rec.title} each time it is traced"
            raise WrongChoice(runtime_error(why, "give them values before the loop", span=rec.span), unset=())
        snapshot.drop_attributes(gained)

    def _check_objects(self) -> None:
        """Refuse objects that the loop rebuilds from their parts where a second reference would show it."""
        merged_entries = [
            e for e in self.entries if e.holds_object and tree.is_mutable(e.original) and id(e.original) not in e.kept
        ]
        if not merged_entries:
            return
        originals = set[int]().union(*(objects_in(e.original).keys() - e.kept.keys() for e in merged_entries))
        for index, entry in self.slot_entries.items():
            if id(self.snapshot.slots[index].owner) in originals and not entry.is_as_it_began:
                raise self._second_name(entry)
        changed = [entry for entry in merged_entries if entry.is_changed]
        if not changed:
            return
        taken = [objects_in(e.opened).keys() - e.kept.keys() for e in merged_entries]
        held = [objects_in(e.now).keys() - e.kept.keys() for e in merged_entries]
        groups = _connected([t | merged_objects.with_origins(h) for t, h in zip(taken, held, strict=True)])
        for group in groups:  # entries that hand objects on to each other
            mine = [merged_entries[i] for i in group]
            blamed = next((e for e in mine if e in changed), None)
            second_name = any(
                (id(e.original) in self.shared and e.now is not e.opened) or held[i] & self.snapshot.objects.keys()
                for i, e in zip(group, mine, strict=True)
            )
            second_name |= len(set[int]().union(*(held[i] for i in group))) < sum(len(held[i]) for i in group)
            if blamed is not None and second_name:
                raise self._second_name(blamed)

    def _second_name(self, entry: _Entry) -> DSLBaseError:
        return error(
            DSLUserCodeError,
            f"{entry.name} is changed in {self.rec.title}, and its object has a second name, one of which stands for another object "
            "after an iteration",
            hint=_ONE_OBJECT,
            span=self.rec.span,
            notes=assignment_notes(self.rec, entry.name),
        )

    def place(self) -> None:
        """Put the operations that take values apart in front of the loop, which is about to be built there."""
        self._openings[:0] = self._opening.splice()

    def clean(self) -> None:
        """Remove what was only there in case that an iteration changes a value, which may even be one of the host."""
        for operation in reversed(self._openings):
            if not any(True for result in operation.results for _ in result.uses):
                operation.erase()

    def late_plan(self, certain: bool) -> tuple[list[merging.Leaf], list[Callable[[Iterator[ir.Value]], None]]]:
        """Return the leaves of variables that the body sets before reading, and functions that set them after the loop.

        `certain`: the body runs at least once, so that they need no value before it.
        """
        kept = dict(self.snapshot.objects)
        for number, copy in self._copies.items():
            if number in self.snapshot.objects:
                kept[id(copy)] = self.snapshot.objects[number]
        merge = merging.Merge(kept)
        steps: list[Callable[[Iterator[ir.Value]], None]] = []
        for name in self.late:
            old = self.before_late[name]
            now = self.scope.get(name)
            if name in self.rec.exits:
                old = False
            set_later = is_internal_name(name) or name in self.rec.function.break_bound
            if old is UNDEFINED and now is not UNDEFINED and not certain and not set_later:
                unavailable(
                    self.rec,
                    name,
                    f"{name!r} first gets its value inside {self.rec.title}, which may not run at all",
                    f"give {name!r} a value before the loop",
                )
                steps.append(lambda _, name=name: self.scope.set(name, UNDEFINED))
                continue
            if now is UNDEFINED:
                steps.append(lambda _, name=name: self.scope.set(name, UNDEFINED))
                continue
            if certain and name not in self.rec.exits and not is_internal_name(name):
                old = UNDEFINED  # overwritten in any case
            try:
                make = merge.unify(old, now)
            except merging.Mismatch as m:
                raise type_error(
                    f"{readable(name)}{m.path} is {tree.describe(m.first)} before {self.rec.title} and "
                    f"{tree.describe(m.second)} inside it" + (f": {m.why}" if m.why else ""),
                    m.hint
                    or f"a variable keeps its type across a loop: convert one of them or use another name, or "
                    f"unroll the loop with range_constexpr if {readable(name)} must stay a Python value",
                    span=self.rec.span,
                    notes=assignment_notes(self.rec, name),
                ) from None
            set_ = functools.partial(self.scope.set, name)
            steps.append(self.noted.setting(set_, make, self.before[name], now, readable(name)))
        return merge.leaves, steps

    def finish(
        self, results: list[ir.Value], kept: list[bool], late: list[Callable[[Iterator[ir.Value]], None]]
    ) -> None:
        """Give variables and objects their values after the loop."""
        self.clean()
        for name in self.dead:
            self.scope.set(name, UNDEFINED)
        for name in self.fixed:
            self.scope.set(name, self.before[name])
        values = iter(results)
        position = 0
        moved: list[_Entry] = []
        for entry in self.entries:
            count = len(entry.inits)
            entry.finish(values, kept[position : position + count])
            position += count
            if entry.holds_object and entry.now is not entry.opened and any(kept[position - count : position]):
                moved.append(entry)
        handed_on = [objects_in(e.opened, e.now).keys() - e.kept.keys() for e in moved]
        for group in _connected([merged_objects.with_origins(each) for each in handed_on]):
            passed_on = [moved[i].original for i in group]  # after some iterations each may be any of them
            for entry in (moved[i] for i in group):
                self.noted.add(entry.merged_object, [entry.original, entry.now], entry.name, passed_on)
        for step in late:
            step(values)
        merged_objects.look_again(self.snapshot.watched())
        self.noted.settle(lambda: [self.scope.get(n) for n in sorted(self.rec.flow.live_out)])


def _any(flags: Sequence[object]) -> Any:
    """Return the disjunction of flags, each a Python bool or a Boolean."""
    dynamic = [f for f in flags if tree.is_dynamic(f)]
    if any(f is True for f in flags):
        return True
    result: Any = False
    for flag in dynamic:
        result = flag if result is False else result | flag
    return result


@_retraced
def dynamic_for(
    choices: _Choices,
    rec: Construct,
    scope: Scope,
    lower: Integer,
    upper: Integer,
    step: Integer,
    hints: Mapping[str, object],
    body: Callable[[Any], None],
    certain: bool,
) -> None:
    """Build a counted loop with positive `step`. `certain`: it runs at least once."""
    trace = tracing.require("a loop")
    kind: Any = type(lower)
    state = _LoopState(rec, scope, choices)
    block = DetachedBlock([kind.mlir_type, *state.types])
    arguments = list(block.block.arguments)
    with block.open(), state.traced():
        state.enter(arguments[1:])
        body(kind._make(arguments[0], lower.nonneg, math.gcd(lower.divisibility, step.divisibility)))
        yields = state.leaves_now()
        state.check_static()
        stop = _any([scope.get(f) for f in rec.exits])
        leaves, late = state.late_plan(certain)
        late_values = [leaf.second() for leaf in leaves]
    state.place()
    inits = [init for entry in state.entries for init in entry.inits]
    kept = [y != a for y, a in zip(yields, arguments[1:], strict=True)]
    kept_inits = [i for i, keep in zip(inits, kept, strict=True) if keep] + [leaf.first() for leaf in leaves]
    kept_yields = [y for y, keep in zip(yields, kept, strict=True) if keep] + late_values
    _prune(block.block, 1, kept, inits, kept_yields)
    for leaf in leaves:
        block.block.add_argument(leaf.type, ir.Location.unknown())

    if stop is False:
        results = trace.dsl.make_for(
            lower.ir_value(),
            upper.ir_value(),
            step.ir_value(),
            block.block,
            kept_inits,
            kept_yields,
            unsigned=not kind.signed,
            hints=hints,
        )
        state.finish(results, kept, late)
        return

    # An early exit: count in a `while` that also looks at the flag. The flag is one more carried value.
    flag_type = Boolean.mlir_type
    with block.open():
        one_more = lower._make(arguments[0]) + step
        kept_yields = [one_more.ir_value(), *kept_yields, Boolean(stop).ir_value()]
    block.block.add_argument(flag_type, ir.Location.unknown())
    kept_inits = [lower.ir_value(), *kept_inits, Boolean(False).ir_value()]
    before = DetachedBlock([v.type for v in kept_inits])
    heads = list(before.block.arguments)
    with before.open():
        goes_on = (kind._make(heads[0]) < upper) & (Boolean._make(heads[-1]) ^ True)
    results = trace.dsl.make_while(before.block, goes_on.ir_value(), heads, block.block, kept_inits, kept_yields)
    state.finish(list(results)[1:-1], kept, late)


def _prune(block: ir.Block, offset: int, kept: list[bool], inits: list[ir.Value], yields: list[ir.Value]) -> None:
    """Remove the block arguments of values that no iteration changes; their uses become the value from outside."""
    for index in reversed(range(len(kept))):
        if kept[index]:
            continue
        argument = block.arguments[offset + index]
        for position, value in enumerate(yields):
            if value == argument:
                yields[position] = inits[index]
        argument.replace_all_uses_with(inits[index])
        block.erase_argument(offset + index)


def _bound_by_test(rec: Construct, state: _LoopState) -> list[_Entry]:
    """Return entries for names that the test of a `while` binds: later code sees the test's values."""
    scope = state.scope
    carried = {entry.name for entry in state.entries}
    names = [n for n in sorted(rec.test_writes - carried) if n in scope.cells and scope.get(n) is not UNDEFINED]
    return [_Entry(n, scope.get(n), lambda v, n=n: scope.set(n, v), lambda n=n: scope.get(n), False, {}) for n in names]


@_retraced
def dynamic_while(
    choices: _Choices, rec: Construct, scope: Scope, test: Callable[[], object], body: Callable[[], None]
) -> Any:
    """Build a `while` of the program.

    Returns True when it was built. When the test turns out to be a Python value after all, nothing is built, its
    operations stay in front, variables are as before, and the value is returned for the caller to go on with.
    """
    trace = tracing.require("a loop")
    state = _LoopState(rec, scope, choices)
    before = DetachedBlock(list(state.types))
    heads = list(before.block.arguments)
    inits = [init for entry in state.entries for init in entry.inits]
    with before.open(), state.traced():
        state.enter(heads)
        condition = test()
        if not tree.is_dynamic(condition) and not (rec.constant_test and condition):
            for head, init in zip(heads, inits, strict=True):
                head.replace_all_uses_with(init)
        else:
            condition = as_condition(condition) if tree.is_dynamic(condition) else Boolean(True)
            goes_on = condition.ir_value()
            forwards = state.leaves_now()
            bound = _bound_by_test(rec, state)
            forwards += [leaf for entry in bound for leaf in entry.inits]
    if not isinstance(condition, Numeric):
        state.place()
        before.splice()
        state.clean()
        scope.restore(state.before)
        state.snapshot.restore()
        return StaticTest(condition)

    for entry in bound:  # nobody reads what they hold before the first test
        inits += [trace.dsl.make_undefined(leaf.type) for leaf in entry.inits]
        heads += [before.block.add_argument(leaf.type, ir.Location.unknown()) for leaf in entry.inits]
        state.add(entry)
    block = DetachedBlock(list(state.types))
    arguments = list(block.block.arguments)
    with block.open(), state.traced():
        state.enter(arguments)
        body()
        yields = state.leaves_now()
        state.check_static()
        stop = _any([scope.get(f) for f in rec.exits])
        leaves, late = state.late_plan(certain=False)
        late_values = [leaf.second() for leaf in leaves]
    state.place()
    kept = [not (y == a and f == h) for y, a, f, h in zip(yields, arguments, forwards, heads, strict=True)]
    late_inits = [leaf.first() for leaf in leaves]
    kept_inits = [i for i, keep in zip(inits, kept, strict=True) if keep] + late_inits
    kept_yields = [y for y, keep in zip(yields, kept, strict=True) if keep] + late_values
    kept_forwards = [f for f, keep in zip(forwards, kept, strict=True) if keep]
    _prune(block.block, 0, kept, inits, kept_yields)
    _prune(before.block, 0, kept, inits, kept_forwards)
    if goes_on in heads:  # a pruned block argument as the condition itself
        goes_on = inits[heads.index(goes_on)] if not kept[heads.index(goes_on)] else goes_on
    for leaf in leaves:
        block.block.add_argument(leaf.type, ir.Location.unknown())
        kept_forwards.append(before.block.add_argument(leaf.type, ir.Location.unknown()))
    if stop is not False:
        with block.open():
            kept_yields.append(Boolean(stop).ir_value())
        kept_inits.append(Boolean(False).ir_value())
        block.block.add_argument(Boolean.mlir_type, ir.Location.unknown())
        stopped = before.block.add_argument(Boolean.mlir_type, ir.Location.unknown())
        kept_forwards.append(stopped)
        before = _guarded_test(trace, before, goes_on, stopped, kept_forwards)
        goes_on = before.goes_on
        kept_forwards = before.forwards
    results = trace.dsl.make_while(before.block, goes_on, kept_forwards, block.block, kept_inits, kept_yields)
    results = list(results)[: len(results) - (stop is not False)]
    state.finish(results, kept, late)
    if rec.constant_test and len(rec.exits) == 1:
        scope.set(rec.exits[0], True)  # nothing else ends the loop
    return True


class StaticTest:
    """The test of a `while` was a Python value."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _guarded_test:
    """The test of a loop that may have been left: evaluated only if it was not, as Python would.

    `before` becomes the first arm of an `if` inside a new block.
    """

    def __init__(
        self,
        trace: tracing.Trace,
        before: DetachedBlock,
        goes_on: ir.Value,
        stopped: ir.Value,
        forwards: list[ir.Value],
    ) -> None:
        types = [a.type for a in before.block.arguments]
        outer = DetachedBlock(types)
        arguments = list(outer.block.arguments)
        old = list(before.block.arguments)
        position = {a: i for i, a in enumerate(old)}
        same = [position.get(f) for f in forwards]
        for o, n in zip(old, arguments, strict=True):
            o.replace_all_uses_with(n)
        replaced = [arguments[i] if i is not None else f for i, f in zip(same, forwards, strict=True)]
        stopped_now = arguments[old.index(stopped)]
        going = arguments[old.index(goes_on)] if goes_on in position else goes_on
        self._keep = before
        self.block = outer.block
        self._outer = outer
        if before.is_empty:  # the test is free: no branch around it
            with outer.open():
                self.goes_on = (Boolean._make(going) & (Boolean._make(stopped_now) ^ True)).ir_value()
            self.forwards = replaced
            return
        for index in reversed(range(len(old))):
            before.block.erase_argument(index)
        other = DetachedBlock([])
        changed = [i for i, f in enumerate(replaced) if f not in arguments]
        with outer.open():
            runs = (Boolean._make(stopped_now) ^ True).ir_value()
            first = [going, *(replaced[i] for i in changed)]
            with other.open():
                second = [Boolean(False).ir_value()]
                second += [arguments[i] for i in changed]  # forwarded value i belongs to argument i
            results = list(trace.dsl.make_if(runs, before.block, first, other.block, second))
        self.goes_on = results[0]
        self.forwards = list(replaced)
        for value, i in zip(results[1:], changed, strict=True):
            self.forwards[i] = value
