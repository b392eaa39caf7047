"""Calls of library functions, recorded once and repeated.

A function of arrays that works out how to launch its kernels is run once by Python, under a `Recorder`: every array it makes
and every launch is noted, and the arrays it was given are known by their places. What comes out is a `Program`: calls of Python
functions (that make, copy or fill arrays) and launches of compiled code, in order. A call with arguments of the same key
repeats the program on its own arrays. Native code does that where it can (`calls/caller/programs.py`), Python
everywhere else.

In memory a program is a `ProgramHead`, the steps, each of a kind and a size in bytes, and the items of its results. Registers hold
arrays: first those of the arguments, as a walk through positional and named arguments meets them, then those that are made.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._support import fork_safe
from ...base_dsl.guards import table as guard_table
from ...native import Array, Fn, Ptr, i64, struct, u64
from . import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...base_dsl.function import CompiledFunction
    from ...base_dsl.guards import Guard

CALL, LAUNCH = 1, 2
"""Kinds of steps."""
OBJECT, REGISTER = 0, 1
"""Kinds of arguments and results."""
ADDRESS, STREAM, NUMBER32, NUMBER64 = range(4)
"""Kinds of slots that differ from call to call: where the array of a register lies, the stream, a number of the arguments."""


@struct
class Item:
    """An argument or a result: an object, or the number of a register."""

    kind: i64
    value: i64


@struct
class Step:
    kind: i64
    size: i64


@struct
class CallStep:
    """A call of a Python function."""

    kind: i64
    size: i64
    function: Ptr
    positional: u64
    names: Ptr
    """Of the other arguments; null: there are none."""
    register: i64
    """For what it gives, or -1."""
    count: i64
    items: Array[Item, 0]


@struct
class Patch:
    """A slot that differs from call to call."""

    offset: i64
    kind: i64
    place: i64
    """Register or number."""
    further: i64
    """How far from where the array begins."""


@struct
class LaunchStep:
    """A launch of compiled code."""

    kind: i64
    size: i64
    entry: Fn[[Ptr], Ptr]
    slots: Ptr
    """As they were packed."""
    bytes: u64
    report: Ptr
    count: i64
    patches: Array[Patch, 0]


@struct
class ProgramHead:
    guards: Ptr
    step_count: i64
    result_count: i64
    """How many there are in a tuple, or -1 for one that is no tuple."""
    results_at: i64
    """In bytes."""
    slot_bytes: u64
    items: i64
    """The most slots of a launch, and arguments of a call."""
    address_of: Ptr
    """A function that tells where an array lies."""
    steps: Array[Step, 0]


MOST_REGISTERS, MOST_NUMBERS = 48, 8


class Passed(float):
    """A number of the arguments that a program takes anew in each call, while a function is recorded.

    It may only be passed on to a launch: what is computed from it is an ordinary number.
    """

    __slots__ = ("place",)

    place: int


class Call(NamedTuple):
    """A call of a Python function."""

    function: Callable[..., Any]
    items: tuple[tuple[int, Any], ...]
    names: tuple[str, ...]
    """Of the last items."""
    register: int


class Launch(NamedTuple):
    """A launch of compiled code."""

    compiled: CompiledFunction
    leaves: list[Any]
    patches: tuple[tuple[int, int, int, int], ...]
    """(leaf, kind, register or number, bytes to add to an address) of those that differ from call to call."""


class Program:
    """What a function does with arguments of a kind. Its slot `_native` holds it in memory, for native code."""

    __slots__ = ("_address_of", "_keep", "_native", "calls", "device", "holds", "result", "steps")

    def __init__(self, steps: Sequence[Call | Launch], result: Any, address_of: Callable[[Any], int]) -> None:
        self.steps = tuple(steps)
        self.result = result
        """(kind, object or register), or a list of them for a tuple."""
        self.device: int | None = None
        """The number of the device that its arrays are on."""
        self.holds: Callable[[], bool] = _always
        """Whether all is as it was when it was recorded, besides the arguments."""
        self.calls = 0
        self._address_of = address_of
        self._keep: list[Any] = []

    def keep(self, *objects: Any) -> None:
        """Keep objects alive that keys name by their addresses."""
        self._keep += objects

    def run(self, arrays: Sequence[Any], numbers: Sequence[float], stream: int) -> Any:
        """Repeat it on the arrays and numbers of a call."""
        registers = list(arrays)
        for step in self.steps:
            if isinstance(step, Call):
                given = [registers[value] if kind == REGISTER else value for kind, value in step.items]
                split = len(given) - len(step.names)
                made = step.function(*given[:split], **dict(zip(step.names, given[split:], strict=True)))
                if step.register >= 0:
                    registers.append(made)
            else:
                leaves = step.leaves.copy()
                for leaf, kind, place, further in step.patches:
                    if kind == ADDRESS:
                        leaves[leaf] = self._address_of(registers[place]) + further
                    else:
                        leaves[leaf] = stream if kind == STREAM else numbers[place]
                step.compiled.run_leaves(leaves)
        if isinstance(self.result, list):
            return tuple(registers[value] if kind == REGISTER else value for kind, value in self.result)
        kind, value = self.result
        return registers[value] if kind == REGISTER else value

    def prepare(self, guards: Sequence[Guard]) -> bool:
        """See to it that native code can repeat it while the guards hold; whether it can."""
        made = self._encoded(guards)
        if made is None:
            return False
        self._keep.append(made)  # another thread may be repeating what this replaces
        self._native = made
        return True

    def _reference(self, value: Any) -> int:
        self._keep.append(value)
        return id(value)

    def _data(self, data: bytes) -> int:
        self._keep.append(data)
        return plan.address_of(data)

    def _encoded(self, guards: Sequence[Guard]) -> bytes | None:
        if any(isinstance(step, Call) and step.register >= MOST_REGISTERS for step in self.steps):
            return None
        body: list[int] = []
        slot_bytes = items = 0
        for step in self.steps:
            if isinstance(step, Call):
                words = self._encoded_call(step)
                items = max(items, len(step.items))
            else:
                launch = self._encoded_launch(step)
                if launch is None:
                    return None
                words, size = launch
                slot_bytes = max(slot_bytes, size)
            body += [CALL if isinstance(step, Call) else LAUNCH, 8 * (2 + len(words)), *words]
        result = self.result if isinstance(self.result, list) else [self.result]
        self._keep.append(guards)
        head = ProgramHead(
            guards=self._data(guard_table(guards)),
            step_count=len(self.steps),
            result_count=len(result) if isinstance(self.result, list) else -1,
            results_at=ctypes.sizeof(ProgramHead) + 8 * len(body),
            slot_bytes=max(slot_bytes, 8),
            items=items,
            address_of=self._reference(self._address_of),
        )
        return bytes(head) + plan.words([*body, *(word for item in result for word in self._item(item))])

    def _item(self, item: tuple[int, Any]) -> tuple[int, int]:
        kind, value = item
        return kind, value if kind == REGISTER else self._reference(value)

    def _encoded_call(self, step: Call) -> list[int]:
        names = self._reference(step.names) if step.names else 0
        positional = len(step.items) - len(step.names)
        words = [self._reference(step.function), positional, names, step.register, len(step.items)]
        return words + [word for item in step.items for word in self._item(item)]

    def _encoded_launch(self, step: Launch) -> tuple[list[int], int] | None:
        compiled = step.compiled
        report = compiled.reporter()
        if report is None or compiled.has_results:
            return None
        slots, offsets = compiled.packed(step.leaves)
        size = -(-max(len(slots), compiled.slot_bytes) // 8) * 8
        self._keep.append(compiled)
        entry, data = compiled.executable.address, self._data(slots.ljust(size, b"\0"))
        words = [entry, data, size, self._reference(report)]
        words.append(len(step.patches))
        for leaf, kind, place, further in step.patches:
            offset, format_ = offsets[leaf]
            if kind not in (ADDRESS, STREAM):
                if format_ not in _NUMBER_KINDS:
                    return None
                kind = _NUMBER_KINDS[format_]
            words += [offset, kind, place, further]
        return words, size


_NUMBER_KINDS = {"f": NUMBER32, "d": NUMBER64}


def _always() -> bool:
    return True


# --- recording -------------------------------------------------------------------------------------------------------


class _Current(threading.local):
    recorder: Recorder | None = None


_current = _Current()
recording = fork_safe.Count()
"""How many recorders there are in all threads: while there is one, native code repeats nothing."""


def recorder() -> Recorder | None:
    """The recorder of this thread."""
    return _current.recorder


class Recorder:
    """Notes what a function does to arrays while it is open.

    What it does not know it does not guess: a launch or a call with an array that it has not met makes the record useless.
    """

    def __init__(self, arrays: Sequence[Any], numbers: Sequence[Passed], is_array: Callable[[Any], bool]) -> None:
        self._registers: list[Any] = list(arrays)
        self._known = {id(x): place for place, x in enumerate(arrays)}
        self._numbers = len(numbers)
        self._numbers_used: set[int] = set()
        self._is_array = is_array
        self._steps: list[Call | Launch] = []
        self._begins: dict[int, tuple[int, int]] = {}
        """Registers of views, with those of the arrays that they are of, and how many bytes further they begin."""
        self._arguments = len(self._registers)
        self._versions = [_version(x) for x in arrays]
        self._useless = ""

    def __enter__(self) -> Recorder:
        _current.recorder = self
        recording.add(1)
        return self

    def __exit__(self, *_: object) -> None:
        _current.recorder = None
        recording.add(-1)

    def give_up(self, why: str) -> None:
        """Say that what was done cannot be repeated."""
        self._useless = self._useless or why

    def make(self, function: Callable[..., Any], *given: Any, constants: tuple[Any, ...] = (), **named: Any) -> Any:
        """What a function gives that makes an array of its arguments, or a view of one, and does nothing else.

        `constants` are arrays among its arguments that are the same in every call.
        """
        items = self._items(given, named, constants)
        made = function(*given, **named)
        if id(made) not in self._known:
            register = len(self._registers)
            self._known[id(made)] = register
            self._registers.append(made)
            self._versions.append(_version(made))
            self._steps.append(Call(function, items, tuple(named), register))
        return made

    def change(self, function: Callable[..., Any], *given: Any) -> None:
        """Call a function that changes its first argument, an array."""
        items = self._items(given, {})
        function(*given)
        kind, place = items[0]
        if kind == REGISTER:
            self._versions[place] = _version(self._registers[place])
        self._steps.append(Call(function, items, (), -1))

    def begins_in(self, view: Any, array: Any, further: int) -> None:
        """Note that a view begins so many bytes after an array does: a launch on it need not make it."""
        first, second = self._known.get(id(view)), self._known.get(id(array))
        if first is not None and second is not None and first != second:
            place, before = self._begins.get(second, (second, 0))
            self._begins[first] = (place, before + further)

    def launched(
        self, compiled: CompiledFunction, leaves: list[Any], places: Sequence[tuple[int, Any]], stream: int
    ) -> None:
        """Note a launch: `places` are leaves that are where arrays begin, `stream` the leaf that is the stream, or -1."""
        patches: list[tuple[int, int, int, int]] = []
        for leaf, array in places:
            place = self._known.get(id(array))
            if place is None:
                self.give_up("a launch on an array that was not seen before")
                return
            patches.append((leaf, ADDRESS, *self._begins.get(place, (place, 0))))
        if stream >= 0:
            patches.append((stream, STREAM, 0, 0))
        for leaf, value in enumerate(leaves):
            if type(value) is Passed:
                patches.append((leaf, NUMBER64, value.place, 0))
                self._numbers_used.add(value.place)
        self._steps.append(Launch(compiled, [float(x) if type(x) is Passed else x for x in leaves], tuple(patches)))

    def _items(
        self, given: Sequence[Any], named: Mapping[str, Any], constants: tuple[Any, ...] = ()
    ) -> tuple[tuple[int, Any], ...]:
        return tuple(self._item(value, constants) for value in (*given, *named.values()))

    def _item(self, value: Any, constants: tuple[Any, ...]) -> tuple[int, Any]:
        place = self._known.get(id(value))
        if place is not None:
            return REGISTER, place
        if type(value) is Passed or (self._is_array(value) and all(value is not x for x in constants)):
            self.give_up("a call with an array that was not seen before")
        return OBJECT, value

    def place_of(self, value: Any) -> int | None:
        """The register of an array."""
        return self._known.get(id(value))

    def program(self, result: Any, address_of: Callable[[Any], int]) -> Program | None:
        """The program, given what the function returned; None if it cannot be repeated."""
        if self._useless or len(self._numbers_used) < self._numbers:
            return None
        if not any(isinstance(step, Launch) for step in self._steps):
            return None
        if any(_version(x) != seen for x, seen in zip(self._registers, self._versions, strict=True)):
            return None  # something was written to past the recorder
        items = [self._result_item(x) for x in result] if type(result) is tuple else self._result_item(result)
        if items is None or (isinstance(items, list) and None in items):
            return None
        return Program(*_without_the_unused(self._steps, items, self._arguments), address_of)

    def _result_item(self, value: Any) -> tuple[int, Any] | None:
        if value is None:
            return OBJECT, None
        place = self.place_of(value)
        return None if place is None else (REGISTER, place)


def _without_the_unused(steps: list[Call | Launch], result: Any, arguments: int) -> tuple[list[Call | Launch], Any]:
    """Steps and results without arrays that were made and not used: examples, and views that are known by their addresses."""
    results = result if isinstance(result, list) else [result]
    used = {value for kind, value in results if kind == REGISTER}
    kept: list[Call | Launch] = []
    for step in reversed(steps):
        if isinstance(step, Launch):
            used |= {place for _, kind, place, _ in step.patches if kind == ADDRESS}
        elif step.register < 0 or step.register in used:
            used |= {value for kind, value in step.items if kind == REGISTER}
        else:
            continue
        kept.append(step)
    made = sorted(place for place in used if place >= arguments)
    places = {place: place for place in range(arguments)} | {place: arguments + n for n, place in enumerate(made)}

    def item(old: tuple[int, Any]) -> tuple[int, Any]:
        kind, value = old
        return kind, places[value] if kind == REGISTER else value

    def moved(step: Call | Launch) -> Call | Launch:
        if isinstance(step, Call):
            return step._replace(items=tuple(map(item, step.items)), register=places.get(step.register, -1))
        patches = [(leaf, kind, places[n] if kind == ADDRESS else n, more) for leaf, kind, n, more in step.patches]
        return step._replace(patches=tuple(patches))

    return [moved(step) for step in reversed(kept)], list(map(item, result)) if isinstance(result, list) else item(
        result
    )


def _version(x: Any) -> Any:
    """How often an array was written to, where its library counts that."""
    try:
        return getattr(x, "_version", None)
    except RuntimeError:  # tensors of torch's inference mode have no count
        return None
