"""Calls of instrumented executables on several devices: they take turns, and their findings name devices.

The room that runs the ranks says which device a thread launches on, and where symmetric memory is (`begin`).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....base_dsl import sanitizing
from ....base_dsl.diagnostics import Span, warn_at
from ..runtime import launch_settings
from ..runtime.parts import seed_variable
from . import finding
from . import state as native
from .device_messages import Sides
from .devices import PREFIX
from .library import library, lock, state
from .program_memory import KernelInfo, SanitizedSite
from .report_facts import ReportFacts


class Place(NamedTuple):
    """Where a thread of the host launches."""

    device: int
    lane: int


class _Calls:
    """The calls of this process."""

    def __init__(self) -> None:
        self.tell: Callable[[], None] = lambda: None
        """Tells the detector, once it is loaded, of the devices."""
        self.place: Callable[[], Place] = lambda: Place(0, 0)
        self.place_of: Callable[[int], str] = lambda address: ""
        self.facts: dict[int, tuple[ReportFacts, int]] = {}
        """The build and the device of each call that the detector may name, by its number."""
        self.idle: dict[tuple[int, int], list[int]] = {}
        """Numbers of calls that have ended, by the identity of the build and the device: the next one takes them."""
        self.running: set[int] = set()
        self.next = 0
        self.forgotten = 0
        """How often the detector had forgotten all calls when this was cleared."""
        self.hosts: dict[tuple[str, Span | None, tuple[str, ...]], ReportFacts] = {}
        """What stands for accesses of the host, by what they do, where, and what is looked for."""
        self.said: set[str] = set()
        """Why something was not checked, as far as that was said."""
        self.freed = (native.Freed * native.MOST_FREED)()  # pyright: ignore[reportOperatorIssue]


_calls = _Calls()


def _world() -> native.World:
    return native.World.from_address(library().addresses[native.world.symbol])


def _function(name: str, *kinds: type) -> Callable[..., None]:
    """Return a function of the detector, which runs without Python's lock."""
    return ctypes.CFUNCTYPE(None, *kinds)(library().addresses[f"kiln_cpu_san_{name}"])


def begin(
    memory: Sequence[tuple[int, int]],
    multicast: tuple[int, int],
    place: Callable[[], Place],
    place_of: Callable[[int], str],
) -> None:
    """Tell of devices with symmetric memory from one address up to another, and of multicast addresses."""

    @functools.cache
    def tell() -> None:
        world = _world()
        world.devices = len(memory)
        world.low[: len(memory)] = [low for low, _ in memory]
        world.high[: len(memory)] = [high for _, high in memory]
        world.multicast_low, world.multicast_high = multicast
        for lane in range(len(memory)):
            world.lanes[lane].in_use = 1
        world.freed = ctypes.addressof(_calls.freed)

    _calls.tell = tell
    _calls.place = place
    _calls.place_of = place_of


def load() -> None:
    """Load the detector, and tell it of the devices."""
    _calls.tell()


class Turn:
    """The turn of a call, in which the detector's state is its own."""

    def __init__(self, facts: ReportFacts, place: Place | None = None) -> None:
        self.place = place or _calls.place()
        self._facts = facts
        self._memory = ctypes.create_string_buffer(PREFIX)
        with lock:
            _calls.tell()
            self._number = _begin_call(facts, self.place.device)
        self.records: list[native.Finding] = []
        self.findings: list[finding.Finding] = []

    def __enter__(self) -> Turn:
        enter = _function("enter", ctypes.c_uint64, *[ctypes.c_uint32] * 3)
        enter(ctypes.addressof(self._memory), self._number, self.place.device, self.place.lane)
        state().seed = ctypes.addressof(seed_variable())
        _drop_forgotten()
        return self

    def __exit__(self, *_: object) -> None:
        detector = state()
        detector.active = 0
        every = [detector.findings[i] for i in range(detector.findings_count)]
        self.records = [type(each).from_buffer_copy(each) for each in every if each.call == self._number]
        kept = [type(each).from_buffer_copy(each) for each in every if each.call != self._number]
        for number, each in enumerate(kept):
            detector.findings[number] = each
        detector.findings_count = len(kept)
        others = [_calls.facts[record.other_call] for record in self.records]  # another call may drop them
        left_out = _world().left_out
        _function("leave")()
        with lock:
            _calls.running.discard(self._number)
            _calls.idle.setdefault((id(self._facts), self.place.device), []).append(self._number)
        self.findings = [
            finding.in_words(record, self._facts, Sides(self.place.device, other, device, _calls.place_of))
            for record, (other, device) in zip(self.records, others, strict=True)
        ]
        for bit, why in enumerate(native.LEFT_OUT):
            if left_out >> bit & 1:
                say_left_out(why)


def _begin_call(facts: ReportFacts, device: int) -> int:
    """Return a number for a call: that of one with the same build that has ended, if there is any."""
    idle = _calls.idle.get((id(facts), device))
    if idle:
        number = idle.pop()
    else:
        number = _calls.next
        _calls.next += 1
        _calls.facts[number] = facts, device
    _calls.running.add(number)
    return number


def _drop_forgotten() -> None:
    """Drop calls that the detector has forgotten. To be called in a turn."""
    forgotten = _world().forgotten
    if forgotten != _calls.forgotten:
        with lock:
            _calls.forgotten = forgotten
            _calls.facts = {number: each for number, each in _calls.facts.items() if number in _calls.running}
            _calls.idle.clear()
            _calls.hosts.clear()


def say_left_out(why: str) -> None:
    """Warn, once, that something is not checked."""
    if why not in _calls.said:
        _calls.said.add(why)
        warn_at(None, f"the sanitizer does not check all that follows: {why}")


def watch(
    call: Callable[[int], None], address: int, facts: ReportFacts
) -> tuple[Exception | None, list[finding.Finding]]:
    """Make a call; return how it failed, and what was found in it."""
    launch_settings.follow()
    failure: Exception | None = None
    with Turn(facts) as turn:
        try:
            call(address)
        except Exception as caught:
            failure = caught
    sanitizing.tried(1, facts.once)
    return failure, finding.once_each(turn.findings, turn.records)


def last_write(address: int) -> str:
    """Return who wrote an address last, as far as the sanitizer has seen; empty if it is off, or nobody has."""
    if not _calls.facts:
        return ""
    out = native.LastWrite()
    _function("last_write", *[ctypes.c_uint64] * 2)(address, ctypes.addressof(out))
    if not out.is_there or out.call not in _calls.facts:
        return ""
    facts = _calls.facts[out.call][0]
    return finding.writer(facts, out)


# --- the host --------------------------------------------------------------------------------------------------------


def _of_host(what: str, span: Span | None) -> ReportFacts:
    key = what, span, sanitizing.kinds()
    facts = _calls.hosts.get(key)
    if facts is None:
        facts = ReportFacts(sanitizing.kinds())
        facts.sites = [SanitizedSite(what, span, (), "")]
        facts.kernels = [KernelInfo("", [])]
        _calls.hosts[key] = facts
    return facts


def _rules(facts: ReportFacts) -> int:
    return sum(1 << native.RULE[rule] for rule, kind in native.KIND_OF_RULE.items() if kind in facts.kinds)


def host_access(addresses: Sequence[int], size: int, write: bool, span: Span | None = None) -> None:
    """Check an access of this thread of the host to some bytes at each of some addresses of symmetric memory."""
    facts = _of_host("write" if write else "read", span)
    with Turn(facts) as turn:
        places = (ctypes.c_uint64 * len(addresses))(*addresses)
        access = _function("host_access", *[ctypes.c_uint64] * 4, ctypes.c_uint32)
        access(_rules(facts), ctypes.addressof(places), len(places), size, int(write))
    finding.say(None, turn.findings, facts)


def host_frees(low: int, high: int, ends: bool, place: Place) -> None:
    """Memory is given back, by a thread of the host that may end. What is found is shown and counted, but raises nothing."""
    facts = _of_host("free", None)
    with Turn(facts, place) as turn:
        _function("host_frees", *[ctypes.c_uint64] * 3, ctypes.c_uint32)(_rules(facts), low, high, int(ends))
    for each in turn.findings:
        each.warn()
    sanitizing.collected.extend(turn.findings)
    request = sanitizing.request()
    (sanitizing.unasked.errors if request is None else request.findings).extend(turn.findings)


def host_takes(low: int, high: int, place: Place) -> None:
    """Memory that was given back is used again."""
    facts = _of_host("write", None)
    with Turn(facts, place) as turn:
        _function("host_takes", *[ctypes.c_uint64] * 3)(_rules(facts), low, high)
    finding.say(None, turn.findings, facts)


def host_meet(lanes: Sequence[int]) -> None:
    """Threads of the host have waited for each other: each knows what all knew."""
    if len(lanes) > 1:
        numbers = (ctypes.c_uint32 * len(lanes))(*lanes)
        _function("host_meet", ctypes.c_uint64, ctypes.c_uint32)(ctypes.addressof(numbers), len(lanes))


def host_point(lane: int) -> native.Point:
    """Return what a thread of the host knows now."""
    point = native.Point()
    _function("host_point", ctypes.c_uint32, ctypes.c_uint64)(lane, ctypes.addressof(point))
    return point


def host_follow(lane: int, point: native.Point) -> None:
    """A thread of the host has waited for a point of another one."""
    _function("host_follow", ctypes.c_uint32, ctypes.c_uint64)(lane, ctypes.addressof(point))


def host_retire(lane: int) -> None:
    """A thread of the host has ended."""
    _function("host_retire", ctypes.c_uint32)(lane)
