"""The ranks of a program: which wait for what, which have ended, and how they meet."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

from ..._support import fork_safe
from ..serve_cuda import ranks
from . import checked

S = TypeVar("S")
T = TypeVar("T")


class Stopped(SystemExit):
    """Ends a rank because another has failed. Nothing is shown: the other rank's error says why."""


@dataclasses.dataclass
class Rank:
    """What is known of a rank."""

    number: int
    waits_in: str = ""
    """The call in which it waits for others; empty: it runs."""
    ended: str = ""
    """How it ended; empty: it has not."""


@dataclasses.dataclass
class _Meeting:
    """Ranks that call the same function together."""

    members: tuple[int, ...]
    calls: dict[int, str] = dataclasses.field(default_factory=dict)
    data: dict[int, object] = dataclasses.field(default_factory=dict)
    result: object = None
    failure: BaseException | None = None
    is_over: bool = False
    lanes: list[int | None] = dataclasses.field(default_factory=list)


class World:
    """The ranks of a program."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranks: list[Rank] = [Rank(number) for number in range(size)]
        self.changed = fork_safe.condition()
        self.threads: dict[int, int] = {}
        """The ranks of threads that launch kernels."""
        self._counts: dict[tuple[Hashable, int], int] = {}
        self._meetings: dict[tuple[Hashable, int], _Meeting] = {}
        self._failed = False

    def here(self) -> Rank:
        """Return the rank of this thread."""
        number = ranks.current()
        assert number is not None, "a thread of no rank"
        return self.ranks[number]

    def join(self) -> None:
        """Make this thread known as one of its rank that may launch kernels."""
        self.threads[threading.get_ident()] = self.here().number

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """While open, this thread's rank waits for others."""
        rank = self.here()
        before, rank.waits_in = rank.waits_in, what
        try:
            yield
        finally:
            rank.waits_in = before

    def wait_until(self, what: str, holds: Callable[[], bool], needs: Callable[[], Sequence[int]]) -> None:
        """Wait until a condition holds, which `changed` guards; RuntimeError if a rank that it needs has ended."""
        with self.waiting(what), self.changed:
            while not holds():
                self.check()
                gone = [number for number in needs() if self.ranks[number].ended]
                if gone:
                    raise RuntimeError(f"{what} waits for {_named(gone)}, which {self.ranks[gone[0]].ended}")
                self.changed.wait()

    def check(self) -> None:
        """End this thread's rank if another has failed."""
        if self._failed:
            raise Stopped(1)

    def meet(
        self, key: Hashable, members: Sequence[int], what: str, data: S, work: Callable[[Mapping[int, S]], T]
    ) -> T:
        """Wait until all members have called this with the same key, equally often; return what `work` makes of all data.

        One of them does the work. RuntimeError if they call different functions, or if one of them has ended.
        """
        here = self.here().number
        checked.tell_pending()  # of this rank, before it knows what the others have done
        with self.changed:
            self.check()
            turn = self._counts.get((key, here), 0)
            self._counts[key, here] = turn + 1
            meeting = self._meetings.setdefault((key, turn), _Meeting(tuple(members)))
            meeting.data[here] = data
            meeting.calls[here] = what
            meeting.lanes.append(checked.lane())
            is_last = len(meeting.data) == len(meeting.members)
            if is_last:
                del self._meetings[key, turn]
        if is_last:
            self._work(meeting, work)
        else:
            missing = lambda: [number for number in meeting.members if number not in meeting.data]
            self.wait_until(what, lambda: meeting.is_over, missing)
        if meeting.failure is not None:
            raise meeting.failure
        return cast("T", meeting.result)

    def _work(self, meeting: _Meeting, work: Callable[[Mapping[int, S]], object]) -> None:
        try:
            calls = {call: number for number, call in reversed(meeting.calls.items())}
            if len(calls) > 1:
                said = " and ".join(f"rank {number} is in {call}" for call, number in sorted(calls.items()))
                raise RuntimeError(f"ranks call different functions at the same place: {said}")
            checked.meet(meeting.lanes)
            meeting.result = work({number: cast("S", meeting.data[number]) for number in meeting.members})
            checked.meet(meeting.lanes)
        except BaseException as failure:
            meeting.failure = failure
        with self.changed:
            meeting.is_over = True
            self.changed.notify_all()

    def end(self, number: int, how: str, failed: bool) -> None:
        """Note that a rank has ended. If it failed, the others end where they wait next."""
        with self.changed:
            self.ranks[number].ended = how
            self._failed |= failed
            self.changed.notify_all()


def _named(numbers: Sequence[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


class _Current:
    world: World | None = None


_current = _Current()


def start(size: int) -> World:
    """Make the world of this process."""
    _current.world = World(size)
    return _current.world


def world() -> World:
    """Return the world of this process."""
    assert _current.world is not None, "no ranks were started"
    return _current.world
