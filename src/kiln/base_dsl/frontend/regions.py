"""Builds branches of the program around Python callables, and what loops share with them.

Blocks are traced detached. When the trace of a body shows what changed, the operation is made around the finished
blocks: unchanged values are pruned, values created inside are added. The operations themselves are the language's: see
`BaseDSL.make_if`, `make_for`, `make_while`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import merging, tree
from .. import trace as tracing
from ..bindings import ir
from ..diagnostics import (
    DSLBaseError,
    DSLSyntaxError,
    DSLUserCodeError,
    Span,
    error,
    function_name,
    runtime_error,
    type_error,
    user_frame,
)
from ..tree import UNDEFINED
from ..typing import Boolean, as_numeric
from . import merged_objects, unset_attributes
from .carry import Scope, Slot, Snapshot
from .jumps import RETURN_VALUE, is_internal_name
from .merged_objects import Noted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .construct import Construct


class DetachedBlock:
    """A block that is not yet part of a function."""

    def __init__(self, types: list[ir.Type]) -> None:
        self.block: ir.Block = tracing.require("a region").detached_block(types)

    def open(self) -> ir.InsertionPoint:
        """Return the insertion point at the end of the block."""
        return ir.InsertionPoint(self.block)

    @property
    def is_empty(self) -> bool:
        return next(iter(self.block.operations), None) is None

    def splice(self) -> list[ir.Operation]:
        """Move the operations to the current insertion point, and return them."""
        operations = [view.operation for view in self.block.operations]
        for operation in operations:
            ir.InsertionPoint.current.insert(operation.detach_from_parent())
        return operations


def as_condition(value: object) -> Any:
    """Return a dynamic truth value as a Boolean, following Python's truth of numbers."""
    if isinstance(value, ir.Value):
        value = as_numeric(value)
    return value if isinstance(value, Boolean) else value != 0


def _flag_is_set(value: object) -> bool:
    return value is True


def unavailable(rec: Construct, name: str, why: str, hint: str) -> None:
    trace = tracing.require("a region")
    notes = tuple((span, f"{name!r} is assigned here") for span in rec.assigned.get(name, [])[:2])
    trace.unavailable[rec.function.filename, rec.function.name, name] = (why, hint, notes)


def unavailable_name(name: str, why: str, hint: str) -> None:
    """Mark a variable of the function that is being traced as unavailable: reading it is an error with this reason."""
    frame = user_frame()
    if frame is not None:
        trace = tracing.require("a region")
        trace.unavailable[frame.f_code.co_filename, function_name(frame.f_code), name] = (why, hint, ())


def assignment_notes(rec: Construct, name: str) -> tuple[Any, ...]:
    """Return notes of where a name is assigned: inside the construct, and last before it."""
    inside = rec.assigned.get(name, [])[:3]
    if is_internal_name(name):
        return tuple((span, "returned here") for span in rec.function.returns[:3])
    notes = [(span, f"{name!r} is assigned here") for span in inside]
    earlier = [s for s in rec.function.assigned.get(name, []) if s.line < rec.span.line and s not in inside]
    if earlier and len(inside) < 2:
        notes.insert(0, (earlier[-1], f"{name!r} got its earlier value here"))
    return tuple(notes)


def readable(name: str) -> str:
    return "the returned value" if is_internal_name(name) else repr(name)


def check_globals(rec: Construct) -> None:
    if rec.global_writes:
        name = rec.global_writes[0]
        raise error(
            DSLSyntaxError,
            f"the global {name!r} is assigned inside {rec.title}, whose course is only known when the program runs",
            hint=f"compute {name!r} in a local variable and return it, or keep it in an object that is passed in",
            span=rec.span,
            notes=assignment_notes(rec, name),
        )


# ------------------------------------------------------------------------------------------------- branches


class WrongChoice(Exception):
    """A loop's body shows that something has to be carried in another way; `error` is raised if it cannot."""

    def __init__(
        self,
        error: DSLBaseError,
        promote: str | None = None,
        by_value: str = "",
        like: tuple[str, Any] | None = None,
        unset: Sequence[Slot] | None = None,
    ) -> None:
        super().__init__()
        self.error = error
        self.promote = promote
        self.by_value = by_value
        self.like = like
        self.unset = unset


class region:
    """The context of tracing a region. An exception that leaves it restores objects and ends the trace for good.

    A handler outside would handle one path only, and could use values of a region that is not part of the program.
    """

    def __init__(self, title: str, span: Span | None, snapshot: Snapshot | None = None) -> None:
        self._title = title
        self._span = span
        self._snapshot = snapshot

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, failure: BaseException | None, _traceback: object) -> None:
        if failure is None:
            return
        if self._snapshot is not None:
            self._snapshot.undo()
        trace = tracing.current()
        if trace is None or trace.broken is not None or isinstance(failure, WrongChoice):
            return
        if isinstance(failure, Exception):
            trace.broken = failure if isinstance(failure, DSLBaseError) else _left_by(failure, self._title, self._span)
            trace.broken_by = failure


def _left_by(failure: Exception, title: str, span: Span | None) -> DSLBaseError:
    return runtime_error(
        f"{type(failure).__name__} is raised inside {title}, whose course is only known when the program runs, and caught "
        "outside of it",
        "whether it is raised is only known when the program runs, too: catch it inside, or make the condition a Python "
        "value (const_expr)",
        span=span,
    )


class ArmEnd:
    """The state of objects at the end of one of two arms."""

    def ended(self, snapshot: Snapshot) -> None:
        """Record what objects hold now, and remove the attributes they gained."""
        merged_objects.check(snapshot.watched())
        self.changes: dict[int, Any] = snapshot.changes()
        self.gained: dict[tuple[int, str], Any] = merged_objects.without_cached(snapshot, self.changes)
        snapshot.drop_attributes(self.gained)
        self._snapshot = snapshot
        self._copies: dict[int, Any] = {}

    def at_end(self, value: object, kept: tree.Kept) -> Any:
        """Return a copy of a value with its objects as they were at the arm's end; they have been restored since.

        Objects from before the branch are added to `kept`, by the identity of their copies.
        """
        if not tree.is_mutable(value):
            return value
        with self._snapshot.state(self.changes, self.gained):
            copy = tree.frozen(value, self._copies)
        originals = self._snapshot.objects
        for number, copied in self._copies.items():
            if number in originals:
                kept[id(copied)] = originals[number]
        return copy


class Arm(ArmEnd):
    """One branch after its trace: its block, and what variables and objects hold at its end."""

    def __init__(
        self, rec: Construct, scope: Scope, names: list[str], snapshot: Snapshot, run: Callable[[], object]
    ) -> None:
        self.block: DetachedBlock = DetachedBlock([])
        with self.block.open():
            self.result: Any = run()
        self.values: dict[str, Any] = scope.save(names)
        snapshot.check_unchanged(f"a branch of {rec.title}")
        self.ended(snapshot)
        self.jumped: tuple[str, ...] = tuple(f for f in rec.flags if _flag_is_set(scope.get(f)))

    def strict(self, rec: Construct, name: str) -> bool:
        """Return whether this arm's value of `name` may be read later: not if the arm has returned, for example."""
        if not self.jumped or is_internal_name(name):
            return True
        return any(name in rec.function.flag_targets.get(flag, ()) for flag in self.jumped)


def dynamic_if(
    rec: Construct,
    scope: Scope,
    condition: object,
    then: Callable[[], object],
    orelse: Callable[[], object],
    else_jumped: tuple[str, ...] = (),
) -> None:
    """Trace both arms and merge what they leave behind. `else_jumped`: flags known to be set in the second arm."""
    trace = tracing.require("a branch")
    check_globals(rec)
    writes = sorted(n for n in rec.flow.writes if n in scope.cells)
    snapshot = Snapshot(scope.roots(sorted(rec.flow.reads | rec.flow.writes)), scope.cells_of(writes))
    before = scope.save(writes)

    with region(rec.title, rec.span, snapshot):
        first = Arm(rec, scope, writes, snapshot, then)
        scope.restore(before)
        snapshot.restore(first.changes)
        second = Arm(rec, scope, writes, snapshot, orelse)
    second.jumped += else_jumped
    scope.restore(before)
    snapshot.restore(second.changes)

    merge = merging.Merge(dict(snapshot.objects))
    finish: list[Callable[[Iterator[ir.Value]], None]] = []
    noted = Noted(rec.span)
    for name in writes:
        if name not in rec.flow.live_out:
            finish.append(lambda _, name=name: scope.set(name, UNDEFINED))
            continue
        finish.append(_merge_name(rec, scope, name, before[name], first, second, merge, noted))
    drops = functools.partial(
        _is_dropped, [x for n in sorted(rec.flow.live_out) if (x := scope.get(n)) is not UNDEFINED]
    )
    unset = functools.partial(unset_attributes.refuse_reads, title=rec.title, span=rec.span)
    for place in merged_places(snapshot, first, second, drops, unset):
        planned = merge.planned()
        try:
            make = unify_arms(first, place.first, second, place.second, merge)
        except merging.Mismatch as m:
            if drops(place.owner) or place.loses():
                merge.forget(planned)
                continue
            raise _branch_error(rec, place.path, m) from None
        finish.append(place.setting(make, noted))

    leaves = merge.leaves
    with first.block.open():
        first_values = [leaf.first() for leaf in leaves]
    with second.block.open():
        second_values = [leaf.second() for leaf in leaves]
    if leaves or not (first.block.is_empty and second.block.is_empty):
        results = trace.dsl.make_if(
            as_condition(condition).ir_value(), first.block.block, first_values, second.block.block, second_values
        )
    else:
        results = []
    values = iter(results)
    for step in finish:
        step(values)
    merged_objects.look_again(snapshot.watched())
    noted.settle(lambda: [scope.get(n) for n in sorted(rec.flow.live_out)])


class MergedPlace(NamedTuple):
    """A slot of an object that an arm changed, and its value at the end of each arm."""

    path: str
    first: Any
    second: Any
    set: Callable[[Any], None]
    copies: bool = False
    """Whether it stores the state of a value rather than the value itself."""
    owner: Any = None
    """The object whose attribute it is."""
    loses: Callable[[], bool] = lambda: False
    """Removes an attribute that was None before the branch; returns whether reading it can be refused."""

    def setting(
        self, make: Callable[[Iterator[ir.Value]], object], noted: Noted
    ) -> Callable[[Iterator[ir.Value]], None]:
        """Return a function that sets the merged value."""
        if self.copies:
            return lambda values: self.set(make(values))
        return noted.setting(self.set, make, self.first, self.second, self.path)


def merged_places(
    snapshot: Snapshot,
    first: Any,
    second: Any,
    drops: Callable[[Any], bool] = lambda owner: False,
    unset: Callable[..., bool] = lambda *_, **__: False,
) -> Iterator[MergedPlace]:
    """Yield the slots of objects that an arm changed.

    Raises an error for attributes that exist on one path only, unless `drops` tells that nobody reads the object later,
    or `unset` has reading them refused.
    """
    for index in sorted(first.changes.keys() | second.changes.keys()):
        slot = snapshot.slots[index]
        old = snapshot.values[index]
        a = first.changes.get(index, old)
        b = second.changes.get(index, old)
        owner = slot.owner if slot.kind == "attribute" else None
        loses = functools.partial(_loses, slot, old, unset)
        if _on_both(a, b, first, second) or not (drops(owner) or loses()):
            _exists_on_both(slot.path, a, b, first, second)
            yield MergedPlace(slot.path, a, b, slot.set, slot.kind == "state", owner, loses)
    for key in sorted(first.gained.keys() | second.gained.keys()):
        path = snapshot.path_of(key)
        owner = snapshot.owner_of(key)
        a = first.gained.get(key, UNDEFINED)
        b = second.gained.get(key, UNDEFINED)
        if _on_both(a, b, first, second) or not (drops(owner) or unset(owner, key[1], path)):
            _exists_on_both(path, a, b, first, second)
            yield MergedPlace(path, a, b, functools.partial(snapshot.set_attribute, key), owner=owner)


def _loses(slot: Slot, before: object, unset: Callable[..., bool]) -> bool:
    """Remove an attribute that was None before a branch and cannot be merged; return whether reading it is refused."""
    if slot.kind != "attribute" or before is not None:
        return False
    if not unset(slot.owner, slot.key, slot.path, was_none=slot.is_own):
        return False
    slot.set(UNDEFINED)
    return True


def _on_both(a: object, b: object, first: object, second: object) -> bool:
    """Return whether a slot exists at the end of both paths; one that has left the function or loop does not count."""
    lacking = first if a is UNDEFINED else second
    return (a is UNDEFINED) == (b is UNDEFINED) or bool(getattr(lacking, "jumped", ()))


def _exists_on_both(path: str, a: object, b: object, first: object, second: object) -> None:
    """Refuse an attribute that exists on one path only."""
    if not _on_both(a, b, first, second):
        raise error(
            DSLUserCodeError,
            f"{path} exists on one path only, and which one is taken is only known when the program runs",
            hint=f"give {path} a value before",
        )


def _is_dropped(in_use: Sequence[object], owner: object) -> bool:
    """Return whether a branch's change of an object is dropped: in a kernel, if nothing reads the object afterwards.

    The object is then as it was before the branch. In functions of the host nothing is dropped: Python may read the
    object after the call.
    """
    if owner is None or tracing.require("a branch").function.kind != "kernel":
        return False
    reached = merged_objects.reached_later(in_use)
    return reached is not None and id(owner) not in reached


def unify_arms(first: Any, a: Any, second: Any, b: Any, merge: merging.Merge) -> Callable[[Iterator[ir.Value]], Any]:
    """Merge a value of two arms: add its leaves, and return a function that makes it of the merged values."""
    if a is b or a is UNDEFINED or b is UNDEFINED:
        return merge.unify(a, b)
    return merge.unify(first.at_end(a, merge.kept), second.at_end(b, merge.kept))


def _merge_name(
    rec: Construct, scope: Scope, name: str, before: object, first: Arm, second: Arm, merge: merging.Merge, noted: Noted
) -> Callable[[Iterator[ir.Value]], None]:
    a = first.values[name]
    b = second.values[name]
    if not first.strict(rec, name) and not second.strict(rec, name):
        # Nobody reads it on either path. What is traced after this point is dead, but must find some value.
        return lambda _: scope.set(name, before)
    if not first.strict(rec, name):
        a = UNDEFINED
    if not second.strict(rec, name):
        b = UNDEFINED
    # UNDEFINED now means "nobody reads it" where the arm jumped away, or "unbound" where it did not.
    one_sided = (a is UNDEFINED) != (b is UNDEFINED)
    if one_sided and not is_internal_name(name) and name not in rec.function.break_bound:
        side = first if a is UNDEFINED else second
        if side.strict(rec, name):
            unavailable(
                rec,
                name,
                f"{name!r} has a value in only one branch of {rec.title}, whose condition is only known when the program runs",
                f"give {name!r} a value before the `if`, or in both branches",
            )
            return lambda _: scope.set(name, UNDEFINED)
    try:
        make = unify_arms(first, a, second, b, merge)
    except merging.Mismatch as m:
        raise _branch_error(rec, name, m) from None
    return noted.setting(lambda value: scope.set(name, value), make, a, b, readable(name))


def _branch_error(rec: Construct, name: str, m: merging.Mismatch) -> Exception:
    what = readable(name) if not m.path else f"{name}{m.path}"
    detail = m.why or f"it is {tree.describe(m.first)} in one and {tree.describe(m.second)} in the other"
    hint = (
        "a value that is only chosen when the program runs has one type: convert one of them, or make the condition a "
        "Python value (const_expr)"
    )
    differ = "types"
    if type(m.first) is type(m.second) and not m.why:
        differ = "values that only Python can tell apart"
        hint = (
            "only numbers, tensors and objects made of them can be chosen when the program runs: use a number instead, "
            "or make the condition a Python value (const_expr)"
        )
    message = f"the branches of {rec.title} leave {what} with different {differ}: {detail}"
    if name == RETURN_VALUE:
        message = f"the function returns {tree.describe(m.first)} on one path and {tree.describe(m.second)} on another"
        if m.hint:
            message += f": {m.why}"
    return type_error(message, m.hint or hint, span=rec.span, notes=assignment_notes(rec, name))
