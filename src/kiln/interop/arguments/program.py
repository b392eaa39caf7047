"""Calls of library functions, recorded once and repeated.

A function of arrays that works out how to launch its kernels runs once in Python, under a `Recorder`, which notes every
array it makes and every launch, and refers to its arguments by position. The result is a `Program`: calls of Python
functions (that make, copy or fill arrays) and launches of compiled code, in order. A call with arguments of the same
key repeats the program on its own arrays, in native code where that is possible (`recorded_calls.py`), else in Python.

In memory a program is a `ProgramHead`, the steps, each with its kind and size in bytes, and the items of its results.
Registers hold arrays: first the arguments, in the order of positional and keyword arguments, then those that are made.
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...base_dsl.compiled_function import CompiledFunction
    from ...base_dsl.guards import Guard

CALL = 1
LAUNCH = 2
"""Kinds of steps."""
OBJECT = 0
REGISTER = 1
"""Kinds of arguments and results."""
ADDRESS, STREAM, NUMBER32, NUMBER64 = range(4)
"""Kinds of slots that differ from call to call: the address of a register's array, the stream, a float argument."""


@struct
class Item:
    """An argument or a result: the address of an object, or the number of a register."""

    kind: i64
    value: i64


@struct
class Step:
    """The head of every step."""

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
    """The names of keyword arguments; null if there are none."""
    register: i64
    """The register for the result, or -1."""
    count: i64
    items: Array[Item, 0]


@struct
class Patch:
    """A slot that differs from call to call."""

    offset: i64
    kind: i64
    place: i64
    """The number of a register or of a number."""
    further: i64
    """Bytes to add to the address of the array."""


@struct
class LaunchStep:
    """A launch of compiled code."""

    kind: i64
    size: i64
    entry: Fn[[Ptr], Ptr]
    slots: Ptr
    """The slots of the recorded call."""
    bytes: u64
    report: Ptr
    count: i64
    patches: Array[Patch, 0]


@struct
class ProgramHead:
    """The head of a program."""

    guards: Ptr
    step_count: i64
    result_count: i64
    """The length of the tuple of results, or -1 for one that is no tuple."""
    results_at: i64
    """The offset of the results, in bytes."""
    slot_bytes: u64
    items: i64
    """The most bytes of slots that a launch has, and the most arguments of a call."""
    address_of: Ptr
    """A Python function that returns the address of an array."""
    written: u64
    """A bit for each argument that a launch is known to write to."""
    steps: Array[Step, 0]


MOST_REGISTERS = 48
MOST_NUMBERS = 8


class Passed(float):
    """A number of the arguments that a program takes anew in each call, while a function is recorded.

    It may only be passed on to a launch: what is computed from it is an ordinary number.
    """

    __slots__ = ("place",)

    place: int


class Value(NamedTuple):
    """An argument or a result."""

    kind: int
    """OBJECT or REGISTER."""
    value: Any


class Call(NamedTuple):
    """A call of a Python function."""

    function: Callable[..., Any]
    items: tuple[Value, ...]
    names: tuple[str, ...]
    """The names of the last items."""
    register: int


class Changed(NamedTuple):
    """A leaf of a launch that differs from call to call."""

    leaf: int
    kind: int
    place: int
    """The number of a register or of a number."""
    further: int = 0
    """Bytes to add to an address."""


class Launch(NamedTuple):
    """A launch of compiled code."""

    compiled: CompiledFunction[Any]
    leaves: list[Any]
    patches: tuple[Changed, ...]


class Program:
    """The recorded steps of a function for arguments of one key. `_native` holds the structures for native code."""

    __slots__ = ("_address_of", "_keep", "_native", "calls", "device", "holds", "result", "steps", "written")

    def __init__(
        self, steps: Sequence[Call | Launch], result: Any, arguments: int, address_of: Callable[[Any], int]
    ) -> None:
        self.steps: tuple[Call | Launch, ...] = tuple(steps)
        self.result: Value | list[Value] = result
        """A list for a tuple."""
        self.device: int | None = None
        """The number of the device that its arrays are on."""
        self.holds: Callable[[], bool] = _always
        """Whether everything but the arguments is as it was when recorded."""
        self.calls: int = 0
        self.written: frozenset[int] = frozenset(
            place for step in steps for place in _written_by(step) if place < arguments
        )
        """The registers of arguments that a launch is known to write to."""
        self._address_of = address_of
        self._keep: list[Any] = []

    def keep(self, *objects: object) -> None:
        """Keep objects alive that keys contain by address."""
        self._keep += objects

    def run(self, arrays: Sequence[object], numbers: Sequence[float], stream: int) -> Any:
        """Repeat the program on the arrays and numbers of a call."""
        registers = list(arrays)

        def read(item: Value) -> Any:
            return registers[item.value] if item.kind == REGISTER else item.value

        for step in self.steps:
            if isinstance(step, Call):
                values = list(map(read, step.items))
                split = len(values) - len(step.names)
                result = step.function(*values[:split], **dict(zip(step.names, values[split:], strict=True)))
                if step.register >= 0:
                    registers.append(result)
            else:
                leaves = step.leaves.copy()
                for patch in step.patches:
                    if patch.kind == ADDRESS:
                        leaves[patch.leaf] = self._address_of(registers[patch.place]) + patch.further
                    else:
                        leaves[patch.leaf] = stream if patch.kind == STREAM else numbers[patch.place]
                step.compiled.run_leaves(leaves)
        return tuple(map(read, self.result)) if isinstance(self.result, list) else read(self.result)

    def prepare(self, guards: Sequence[Guard]) -> bool:
        """Let native code repeat the program while the guards hold. Returns whether it can."""
        encoded = self._encoded(guards)
        if encoded is None:
            return False
        self._keep.append(encoded)  # another thread may be repeating the one that this replaces
        self._native = encoded
        return True

    def _reference(self, value: object) -> int:
        self._keep.append(value)
        return id(value)

    def _data(self, data: bytes) -> int:
        self._keep.append(data)
        return plan.address_of(data)

    def _encoded(self, guards: Sequence[Guard]) -> bytes | None:
        if any(isinstance(step, Call) and step.register >= MOST_REGISTERS for step in self.steps):
            return None
        steps = b""
        slot_bytes = 8
        items = 0
        for step in self.steps:
            if isinstance(step, Call):
                steps += self._encoded_call(step)
                items = max(items, len(step.items))
            else:
                launch = self._encoded_launch(step)
                if launch is None:
                    return None
                steps += launch
                slot_bytes = max(slot_bytes, LaunchStep.from_buffer_copy(launch).bytes)
        results = self.result if isinstance(self.result, list) else [self.result]
        self._keep.append(guards)
        head = ProgramHead(
            guards=self._data(guard_table(guards)),
            step_count=len(self.steps),
            result_count=len(results) if isinstance(self.result, list) else -1,
            results_at=ctypes.sizeof(ProgramHead) + len(steps),
            slot_bytes=slot_bytes,
            items=items,
            address_of=self._reference(self._address_of),
            written=sum(1 << place for place in self.written if place < MOST_REGISTERS),
        )
        return bytes(head) + steps + b"".join(map(self._item, results))

    def _item(self, item: Value) -> bytes:
        return bytes(Item(item.kind, item.value if item.kind == REGISTER else self._reference(item.value)))

    def _encoded_call(self, step: Call) -> bytes:
        items = b"".join(map(self._item, step.items))
        head = CallStep(
            kind=CALL,
            size=ctypes.sizeof(CallStep) + len(items),
            function=self._reference(step.function),
            positional=len(step.items) - len(step.names),
            names=self._reference(step.names) if step.names else 0,
            register=step.register,
            count=len(step.items),
        )
        return bytes(head) + items

    def _encoded_launch(self, step: Launch) -> bytes | None:
        compiled = step.compiled
        report = compiled.reporter()
        if report is None or compiled.has_results:
            return None
        slots, offsets = compiled.packed(step.leaves)
        size = -(-max(len(slots), compiled.slot_bytes) // 8) * 8
        self._keep.append(compiled)
        patches = b""
        for patch in step.patches:
            offset, format_ = offsets[patch.leaf]
            kind = patch.kind if patch.kind in (ADDRESS, STREAM) else _NUMBER_KINDS.get(format_)
            if kind is None:
                return None
            patches += bytes(Patch(offset, kind, patch.place, patch.further))
        head = LaunchStep(
            kind=LAUNCH,
            size=ctypes.sizeof(LaunchStep) + len(patches),
            entry=compiled.executable.address,
            slots=self._data(slots.ljust(size, b"\0")),
            bytes=size,
            report=self._reference(report),
            count=len(step.patches),
        )
        return bytes(head) + patches


def _written_by(step: Call | Launch) -> Iterator[int]:
    """Return the registers whose arrays a step is known to write to; calls tell frameworks themselves."""
    if isinstance(step, Launch):
        written = step.compiled.written_slots
        _, offsets = step.compiled.packed(step.leaves)
        for patch in step.patches:
            if patch.kind == ADDRESS and offsets[patch.leaf][0] in written:
                yield patch.place


_NUMBER_KINDS = {"f": NUMBER32, "d": NUMBER64}


def _always() -> bool:
    return True


# --- recording -------------------------------------------------------------------------------------------------------


class _Current(threading.local):
    recorder: Recorder | None = None


_current = _Current()
recording: fork_safe.Count = fork_safe.Count()
"""The number of open recorders in all threads: while there is one, native code repeats nothing."""


def recorder() -> Recorder | None:
    """Return the recorder of this thread."""
    return _current.recorder


class Recorder:
    """Notes what a function does to arrays while it is open.

    It guesses nothing: a launch or a call with an array that it has not met makes the record useless.
    """

    def __init__(self, arrays: Sequence[Any], numbers: Sequence[Passed], is_array: Callable[[Any], bool]) -> None:
        self._registers: list[Any] = list(arrays)
        self._place_of = {id(x): place for place, x in enumerate(arrays)}
        self._numbers = len(numbers)
        self._numbers_used: set[int] = set()
        self._is_array = is_array
        self._steps: list[Call | Launch] = []
        self._begins: dict[int, tuple[int, int]] = {}
        """By registers of views: the register of the array that each views, and how many bytes further it begins."""
        self._arguments = len(self._registers)
        self._versions = [version(x) for x in arrays]
        self._useless = ""

    def __enter__(self) -> Recorder:
        _current.recorder = self
        recording.add(1)
        return self

    def __exit__(self, *_: object) -> None:
        _current.recorder = None
        recording.add(-1)

    def give_up(self, why: str) -> None:
        """Mark the record as one that cannot be repeated."""
        self._useless = self._useless or why

    def make(
        self, function: Callable[..., object], *args: object, constants: tuple[object, ...] = (), **kwargs: object
    ) -> Any:
        """Call a function that only makes an array, or a view of one, from its arguments, and return that.

        `constants` are arrays among its arguments that are the same in every call.
        """
        items = self._items(args, kwargs, constants)
        value = function(*args, **kwargs)
        if id(value) not in self._place_of:
            register = len(self._registers)
            self._place_of[id(value)] = register
            self._registers.append(value)
            self._versions.append(version(value))
            self._steps.append(Call(function, items, tuple(kwargs), register))
        return value

    def change(self, function: Callable[..., object], *args: object) -> None:
        """Call a function that changes its first argument, an array."""
        items = self._items(args, {})
        function(*args)
        if items[0].kind == REGISTER:
            place = items[0].value
            self._versions[place] = version(self._registers[place])
        self._steps.append(Call(function, items, (), -1))

    def begins_in(self, view: object, array: object, further: int) -> None:
        """Note that a view begins `further` bytes after an array: a launch on it need not make the view."""
        first = self._place_of.get(id(view))
        second = self._place_of.get(id(array))
        if first is not None and second is not None and first != second:
            place, before = self._begins.get(second, (second, 0))
            self._begins[first] = (place, before + further)

    def launched(
        self,
        compiled: CompiledFunction[Any],
        leaves: Sequence[object],
        places: Sequence[tuple[int, object]],
        stream: int,
    ) -> None:
        """Note a launch.

        `places` are pairs of a leaf and the array whose address it is; `stream` is the leaf of the stream, or -1.
        """
        patches: list[Changed] = []
        for leaf, array in places:
            place = self._place_of.get(id(array))
            if place is None:
                self.give_up("a launch on an array that was not seen before")
                return
            patches.append(Changed(leaf, ADDRESS, *self._begins.get(place, (place, 0))))
        if stream >= 0:
            patches.append(Changed(stream, STREAM, 0))
        for leaf, value in enumerate(leaves):
            if type(value) is Passed:
                patches.append(Changed(leaf, NUMBER64, value.place))
                self._numbers_used.add(value.place)
        self._steps.append(Launch(compiled, [float(x) if type(x) is Passed else x for x in leaves], tuple(patches)))

    def _items(
        self, args: Sequence[object], kwargs: Mapping[str, object], constants: tuple[object, ...] = ()
    ) -> tuple[Value, ...]:
        return tuple(self._item(value, constants) for value in (*args, *kwargs.values()))

    def _item(self, value: object, constants: tuple[object, ...]) -> Value:
        place = self._place_of.get(id(value))
        if place is not None:
            return Value(REGISTER, place)
        if type(value) is Passed or (self._is_array(value) and all(value is not x for x in constants)):
            self.give_up("a call with an array that was not seen before")
        return Value(OBJECT, value)

    def place_of(self, value: object) -> int | None:
        """Return the register of an array, or None."""
        return self._place_of.get(id(value))

    def program(self, result: object, address_of: Callable[[Any], int]) -> Program | None:
        """Return the program of a function that returned `result`, or None if it cannot be repeated."""
        if self._useless or len(self._numbers_used) < self._numbers:
            return None
        if not any(isinstance(step, Launch) for step in self._steps):
            return None
        if any(version(x) != seen for x, seen in zip(self._registers, self._versions, strict=True)):
            return None  # something was written to past the recorder
        items = [self._result_item(x) for x in result] if type(result) is tuple else self._result_item(result)
        if items is None or (isinstance(items, list) and None in items):
            return None
        steps, items = _without_unused(self._steps, items, self._arguments)
        return Program(steps, items, self._arguments, address_of)

    def _result_item(self, value: object) -> Value | None:
        if value is None:
            return Value(OBJECT, None)
        place = self.place_of(value)
        return None if place is None else Value(REGISTER, place)


def _without_unused(steps: list[Call | Launch], result: Any, arguments: int) -> tuple[list[Call | Launch], Any]:
    """Drop arrays that were made and not used, such as views that launches take by address, and renumber registers."""
    results = result if isinstance(result, list) else [result]
    used = {item.value for item in results if item.kind == REGISTER}
    kept: list[Call | Launch] = []
    for step in reversed(steps):
        if isinstance(step, Launch):
            used |= {patch.place for patch in step.patches if patch.kind == ADDRESS}
        elif step.register < 0 or step.register in used:
            used |= {item.value for item in step.items if item.kind == REGISTER}
        else:
            continue
        kept.append(step)
    places_kept = sorted(place for place in used if place >= arguments)
    places = {place: place for place in range(arguments)} | {
        place: arguments + n for n, place in enumerate(places_kept)
    }

    def moved(item: Value) -> Value:
        return Value(REGISTER, places[item.value]) if item.kind == REGISTER else item

    def moved_step(step: Call | Launch) -> Call | Launch:
        if isinstance(step, Call):
            return step._replace(items=tuple(map(moved, step.items)), register=places.get(step.register, -1))
        patches = (p._replace(place=places[p.place]) if p.kind == ADDRESS else p for p in step.patches)
        return step._replace(patches=tuple(patches))

    renumbered = list(map(moved, result)) if isinstance(result, list) else moved(result)
    return [moved_step(step) for step in reversed(kept)], renumbered


def version(x: object) -> Any:
    """Return how often an array was written to, where its library counts that."""
    try:
        return getattr(x, "_version", None)
    except RuntimeError:  # tensors of torch's inference mode have no count
        return None
