"""Schedules: Python functions that record, in order, which work and barrier operations a task calls on its resources."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..._support import lazy
from ...base_dsl.diagnostics import type_error

__dir__ = lazy.listing(__name__)
__all__ = ["Schedule", "domain_loop", "schedule", "when_false", "when_true", "work_tile_loop"]

_active = threading.local()


class Call:
    """An operation on a resource: a work method or one of the reserved names (`acquire`, `commit`, ...)."""

    __kiln_static__ = True

    def __init__(
        self, resource: Any, name: str, work: Any = None, args: tuple[Any, ...] = (), **kwargs: object
    ) -> None:
        self.resource = resource
        self.name = name
        self.work = work
        self.args = args
        self.kwargs: dict[str, Any] = kwargs

    def __repr__(self) -> str:
        return f"{self.resource.name}.{self.name}()"


class Block:
    """Operations in order: a loop over a domain or over tiles, or those under a condition."""

    __kiln_static__ = True

    def __init__(self, kind: str, **facts: object) -> None:
        self.kind = kind
        self.facts: dict[str, Any] = facts
        self.body: list[Call | Block] = []

    # the handle of a domain loop
    def first_iter(self) -> Any:
        """Open operations that only the first iteration runs."""
        return _inside(Block("first", loop=self))

    def last_iter(self) -> Any:
        """Open operations that only the last iteration runs."""
        return _inside(Block("last", loop=self))

    def every(self, period: int, *, start: int = 0) -> Any:
        """Open operations that iterations `start`, `start + period`, ... run, counted from 0."""
        return _inside(Block("every", loop=self, period=period, start=start))

    # the handle of a work tile loop
    def skippable(self) -> Any:
        """Open operations that tiles for which `skip_if` holds leave out."""
        return _inside(Block("skippable", loop=self))


class Token:
    """The value that a work method returned, where a schedule passes it to another one."""

    __kiln_static__ = True

    def __init__(self, resource: Any, slot: str) -> None:
        self.resource = resource
        self.slot = slot

    @property
    def key(self) -> str:
        """The name of the variable."""
        return f"{self.resource.name}.{self.slot}"


class Schedule:
    """A recorded schedule."""

    __kiln_static__ = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: Block = Block("root")

    def nodes(self) -> list[Call | Block]:
        """Return all operations and blocks, in the order of the source."""
        listed: list[Call | Block] = []

        def walk(block: Block) -> None:
            for node in block.body:
                listed.append(node)
                if isinstance(node, Block):
                    walk(node)

        walk(self.root)
        return listed

    def calls(self) -> list[Call]:
        """Return all operations, in the order of the source."""
        return [node for node in self.nodes() if isinstance(node, Call)]

    def blocks(self) -> list[Block]:
        """Return all loops and conditional blocks, in the order of the source."""
        return [node for node in self.nodes() if isinstance(node, Block)]


def recording() -> bool:
    """Return whether a schedule is being recorded."""
    return bool(getattr(_active, "stack", None))


def record(node: Call | Block) -> None:
    """Add an operation to the schedule that is being recorded."""
    _active.stack[-1].body.append(node)


@contextlib.contextmanager
def _inside(block: Block) -> Iterator[Block]:
    if not recording():
        raise type_error(f"a {block.kind} block is opened outside a schedule", "decorate the function with @schedule")
    loop = block.facts.get("loop")
    if loop is not None and loop not in _active.stack:
        raise type_error(f"a {block.kind} block is opened outside its loop", "inside the `with` of the loop")
    if block.kind in ("domain", "tiles") and any(b.kind == block.kind for b in _active.stack):
        raise type_error(f"a schedule has a {block.kind} loop inside another one", "at most one of each")
    record(block)
    _active.stack.append(block)
    try:
        yield block
    finally:
        _active.stack.pop()


def schedule(fn: Callable[..., object]) -> Callable[..., Schedule]:
    """Decorate a function of resources that records a schedule: calling it returns what `Task(schedule=)` takes."""

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> Schedule:
        schedule = Schedule(fn.__name__)
        before = getattr(_active, "stack", [])
        _active.stack = [schedule.root]
        try:
            fn(*args, **kwargs)
        finally:
            _active.stack = before
        return schedule

    return call


def domain_loop(*bounds: object, unroll: int | None = 1) -> Any:
    """Open the loop over `range(start, end, step)`; a bound may be a method of the Task, called for each tile."""
    if not 1 <= len(bounds) <= 3:
        raise type_error(f"domain_loop() got {len(bounds)} bounds", "end; start, end; or start, end, step")
    start, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if isinstance(step, int) and step == 0:
        raise type_error("the step of a domain_loop() is 0", "the loop would not end")
    return _inside(Block("domain", start=start, end=end, step=step, unroll=unroll))


def work_tile_loop(wq: object, *, skip_if: object = None) -> Any:
    """Open the loop over the tiles of a work queue; the body advances the queue."""
    return _inside(Block("tiles", queue=wq, skip_if=skip_if))


def when_true(cond: Token, *, key: object = None) -> Any:
    """Open operations that run where a recorded value holds."""
    return _inside(Block("when", condition=cond, holds=True))


def when_false(cond: Token, *, key: object = None) -> Any:
    """Open operations that run where a recorded value does not hold."""
    return _inside(Block("when", condition=cond, holds=False))
