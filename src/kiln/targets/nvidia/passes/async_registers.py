"""Data flow of registers that asynchronous instructions use: where code must hold them.

An asynchronous instruction (WGMMA; next `tcgen05.ld`) reads and writes registers after it was issued. In the dialect
these are register arrays; LLVM promotes them to values and knows nothing of the asynchrony: it would use results above
the wait that completes them, and compute inputs below the fence that orders them. So

- after a wait the arrays are held whose instructions it completes,
- before a fence those that were written and that instructions behind it read, or, if all that happened before a loop
  with the fence, before the loop: in the loop they may be in flight. (Arrays that an instruction overwrites are not
  read: scores that became P need not be carried on.)

Which arrays these are is found by following the groups of instructions through the function. `Instructions` says what
an instruction of a kind is called and what it reads; this module knows none of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ....dialects import cute
from ....mlir import find, ir

_NEVER = 9
"""The age, in groups, of instructions that are complete or were never issued: waits leave at most 7 groups."""


@dataclasses.dataclass(eq=False)
class RegisterArray:
    """Registers that asynchronous instructions use: the memory of one `cute.alloc_rmem`."""

    alloc: cute.AllocRmem
    accesses: list[cute.Load | cute.Store]

    @property
    def bits(self) -> int:
        """Bits of all registers of the array."""
        return self.alloc.count * cute.element_bits(cute.info(self.alloc.result.type).element)


Reads = dict[Any, list[RegisterArray]]
"""What instructions read, by keys of places in registers, with the arrays of each."""
Holds = dict[tuple[ir.Operation, bool], dict[RegisterArray, None]]
"""The arrays to hold before (True) and after operations."""


class Use(NamedTuple):
    """What one instruction does to registers."""

    written: Any
    """The key of the place that it writes."""
    reads: Reads


class Instructions(NamedTuple):
    """A kind of asynchronous instruction, by the names of its operations."""

    issue: str
    fence: str
    commit: str
    wait: str
    use: Callable[[ir.Operation], Use]
    """What an issued instruction does."""
    left: Callable[[ir.Operation], int]
    """The groups that a wait leaves in flight."""


def holds(
    instructions: Instructions, function: ir.Operation, writers: dict[ir.Operation, list[RegisterArray]]
) -> Holds:
    """Return where arrays are to be held in a function; `writers` are the operations that write some, with these."""
    events = _events(instructions, function, writers)
    return _Flow(instructions, writers, _Needs(instructions).follow(events)).follow(events)


# --- events ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class _Event:
    """An operation that matters to registers, or one with regions that has such operations in its `bodies`."""

    op: ir.Operation
    bodies: list[list[_Event]]


def _events(instructions: Instructions, function: ir.Operation, writers: Mapping[ir.Operation, object]) -> list[_Event]:
    """Return the operations that order instructions or write their registers, in the regions that they stand in."""
    bodies: dict[ir.Block, list[_Event]] = {}

    def body_of(block: ir.Block) -> list[_Event]:
        body = bodies.get(block)
        if body is None:
            body = bodies[block] = []
            owner = block.owner.operation
            if owner != function:
                event = regions.get(owner)
                if event is None:
                    event = regions[owner] = _Event(owner, [[] for _ in owner.regions])
                    body_of(owner.block).append(event)
                number = next(n for n, r in enumerate(owner.regions) if len(r.blocks) and r.blocks[0] == block)
                event.bodies[number] = body
        return body

    regions: dict[ir.Operation, _Event] = {}
    order = (instructions.fence, instructions.commit, instructions.wait)
    other = {op.name for op in writers} - {instructions.issue}
    for op in find(function, (instructions.issue, *order, *other)):
        if op in writers or op.name in order:
            body_of(op.block).append(_Event(op, []))
    return bodies.get(function.regions[0].blocks[0], [])


def _fences(instructions: Instructions, bodies: list[list[_Event]]) -> Iterator[ir.Operation]:
    for event in itertools.chain(*bodies):
        if event.op.name == instructions.fence:
            yield event.op
        yield from _fences(instructions, event.bodies)


# --- backwards: what is read behind a fence
# -----------------------------------------------------------------------------


class _Needs:
    """Follows the function backwards, for what instructions read behind each fence and before the next."""

    def __init__(self, instructions: Instructions) -> None:
        self._instructions = instructions
        self._behind: dict[ir.Operation, set[RegisterArray]] = {}

    def follow(self, body: list[_Event]) -> dict[ir.Operation, set[RegisterArray]]:
        """Return the arrays that are read behind a fence, and those of all fences of a loop."""
        self._body(body, {})
        return self._behind

    def _body(self, body: list[_Event], reads: Reads) -> Reads:
        """Return what is read from the beginning of a body on, given what is read from its end on."""
        for event in reversed(body):
            reads = self._event(event, reads)
        return reads

    def _event(self, event: _Event, reads: Reads) -> Reads:
        op = event.op
        if op.name == self._instructions.fence:
            self._behind.setdefault(op, set()).update(*reads.values())
            return {}
        if op.name == self._instructions.issue:
            use = self._instructions.use(op)
            return {place: arrays for place, arrays in reads.items() if place != use.written} | use.reads
        if op.name == "scf.if":
            ways = [self._body(body, reads) for body in event.bodies]
            return ways[0] | ways[1]
        if not event.bodies:
            return reads
        while True:  # a turn of the loop may follow each
            before = reads
            for body in reversed(event.bodies):
                reads = before | self._body(body, reads)
            if reads == before:
                break
        fences = [self._behind[fence] for fence in _fences(self._instructions, event.bodies)]
        if fences:
            self._behind[op] = set().union(*fences)
        return reads


# --- forwards: what was written, and what is in flight
# ------------------------------------------------------------------


@dataclasses.dataclass
class _State:
    """What is known of arrays at a place of the function, whichever way it was reached."""

    written: set[RegisterArray]
    """Arrays that may have been written since a fence, or since they were held."""
    ages: dict[RegisterArray, tuple[int, int]]
    """The least and most groups begun since the latest instruction of an array; other arrays have none in flight."""

    def copy(self) -> _State:
        return _State(set(self.written), dict(self.ages))

    def join(self, other: _State) -> _State:
        ages: dict[RegisterArray, tuple[int, int]] = {}
        for array in {**self.ages, **other.ages}:
            ours, theirs = (state.ages.get(array, (_NEVER, _NEVER)) for state in (self, other))
            ages[array] = (min(ours[0], theirs[0]), max(ours[1], theirs[1]))
        return _State(self.written | other.written, ages)


class _Flow:
    """Follows the groups of instructions."""

    def __init__(
        self,
        instructions: Instructions,
        writers: dict[ir.Operation, list[RegisterArray]],
        needs: dict[ir.Operation, set[RegisterArray]],
    ) -> None:
        self._instructions = instructions
        self._writers = writers
        self._needs = needs
        self._holds: Holds = {}

    def follow(self, body: list[_Event]) -> Holds:
        self._body(body, _State(set(), {}))
        return self._holds

    def _hold(self, op: ir.Operation, is_before: bool, arrays: Iterable[RegisterArray]) -> None:
        for array in arrays:
            self._holds.setdefault((op, is_before), {})[array] = None

    def _hold_written(self, op: ir.Operation, state: _State) -> None:
        """Before a fence, or a loop with fences, hold what was written and is read behind it."""
        held = state.written & self._needs.get(op, set())
        self._hold(op, True, held)
        state.written -= held

    def _body(self, body: list[_Event], state: _State) -> _State:
        for event in body:
            state = self._event(event, state)
        return state

    def _event(self, event: _Event, state: _State) -> _State:
        op = event.op
        kinds = self._instructions
        name = op.name
        if event.bodies:
            return self._regions(event, state)
        if name == kinds.issue:
            arrays = self._writers[op]
            state.ages.update(dict.fromkeys(arrays, (0, 0)))
            # overwritten if they were not held: they are in flight from here on
            state.written.difference_update(arrays)
        elif name == kinds.fence:
            self._hold_written(op, state)
        elif name == kinds.commit:
            state.ages = {array: (_older(least), _older(most)) for array, (least, most) in state.ages.items()}
        elif name == kinds.wait:
            left = kinds.left(op)
            complete = [array for array, (_, most) in state.ages.items() if most > left or not left]
            self._hold(op, False, complete)
            for array in complete:
                least = state.ages[array][0]
                if left and least <= left:  # there is a way on which some are in flight still
                    state.ages[array] = (least, _NEVER)
                else:
                    del state.ages[array]
        else:
            state.written.update(self._writers[op])
        return state

    def _regions(self, event: _Event, state: _State) -> _State:
        if event.op.name == "scf.if":
            outcomes = [self._body(body, state.copy()) for body in event.bodies]
            return outcomes[0].join(outcomes[1])
        self._hold_written(event.op, state)
        while True:
            if event.op.name == "scf.while":
                left = self._body(event.bodies[0], state.copy())
                after = self._body(event.bodies[1], left.copy())
            else:
                left = state
                after = self._body(event.bodies[0], state.copy())
            joined = state.join(after)
            if joined == state:
                return left.copy()
            state = joined


def _older(age: int) -> int:
    return min(age + 1, _NEVER)
