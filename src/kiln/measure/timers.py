"""Timers: a GPU's, by events in a graph or on a stream, and this machine's clock for the CPU target.

A timer prepares a *batch* of calls. Running the batch gives the microseconds of each call by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any, Protocol

from .. import hardware
from ..base_dsl import cache, packages
from ..base_dsl.diagnostics import DSLRuntimeError, error
from ..base_dsl.target import get_target
from ..hardware import current, driver
from .clocks import Watch, reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], Any]

L2_STATES = ("cold", "warm", "rotate")
"""The L2 cache before each call: flushed; as the previous call left it; the same with other arguments each time."""
_LONGEST_HOLD = 0.05
"""Seconds that a stream is held back at most."""


_QUICK_WAIT = 3e-5
"""Seconds that synchronising an idle device takes at most."""


def _nothing() -> None:
    pass


class Batch(Protocol):
    """Calls that are timed together."""

    protocol: str
    flags: set[str]

    def run(self, look: Call = ...) -> list[float]:
        """Return the microseconds of each call. `look` is called while the device works."""
        ...


class Timer(Protocol):
    """The interface of timers; tests replace one to run without a GPU."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def prepare(self, call: Call, calls: int, l2: str) -> Batch: ...
    def watch(self) -> Watch: ...
    def compilations(self) -> int: ...
    def floor(self, l2: str) -> float:
        """Return the microseconds of an empty call."""
        ...

    def flags(self, l2: str) -> list[str]:
        """Return the flags of the timer itself."""
        ...


def timer() -> Timer:
    """Return the timer of the current target."""
    return CpuTimer() if get_target().on_host or not driver.available() else GpuTimer.of_current_device()


class _Host:
    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def compilations(self) -> int:
        return cache.compilations


# --- the CPU target --------------------------------------------------------------------------------------------------


class CpuTimer(_Host):
    """Wall-clock time: it says nothing about a GPU."""

    class _Calls:
        protocol = "cpu-wall"

        def __init__(self, call: Call, calls: int) -> None:
            self._call = call
            self._calls = calls
            self.flags = set[str]()

        def run(self, look: Call = _nothing) -> list[float]:
            times = [time.perf_counter()]
            for _ in range(self._calls):
                self._call()
                times.append(time.perf_counter())
            return [(end - start) * 1e6 for start, end in itertools.pairwise(times)]

    def prepare(self, call: Call, calls: int, l2: str) -> Batch:
        return self._Calls(call, calls)

    def watch(self) -> Watch:
        return Watch(None)

    def floor(self, l2: str) -> float:
        return 0.0

    def flags(self, l2: str) -> list[str]:
        return []


# --- a GPU -----------------------------------------------------------------------------------------------------------


class NotCaptured(Exception):
    """Calls leave nothing in a graph."""


class GpuTimer(_Host):
    """Times by events on the current GPU.

    The driver's functions are bound when it is made, so that a program that replaces them changes nothing.
    """

    _by_device: dict[int, GpuTimer] = {}

    @classmethod
    def of_current_device(cls) -> GpuTimer:
        driver.ensure_context()
        number = driver.current_device()
        if number not in cls._by_device:
            cls._by_device[number] = cls(number)
        return cls._by_device[number]

    def __init__(self, number: int) -> None:
        self.number = number
        self.kernels: Any = hardware.measuring_kernels()
        block = self.kernels.BLOCK_BYTES
        self.flush_bytes: Any = -(-2 * current.device(number).l2_cache // block) * block
        self._zeros: driver.Memory | None = None
        self._floors: dict[str, float] = {}
        self._flushes: bool | None = None
        self._own_stream: driver.Stream | None = None
        self._torch_stream: Any = None

    # -- streams

    @contextlib.contextmanager
    def side_stream(self) -> Iterator[int]:
        """While open, make a stream that can be captured the current one, also PyTorch's; provide its handle."""
        torch = _torch()
        if torch is None:
            self._own_stream = self._own_stream or driver.Stream()
            yield int(self._own_stream)
            return
        self._torch_stream = self._torch_stream or torch.cuda.Stream()
        with torch.cuda.stream(self._torch_stream):
            yield self._torch_stream.cuda_stream

    def stream(self) -> int:
        """Return the handle of the current stream: PyTorch's, or the default one."""
        torch = _torch()
        return 0 if torch is None else torch.cuda.current_stream().cuda_stream

    # -- the L2 cache

    def flush(self, stream: int) -> None:
        """Read twice the size of the L2 cache; writing would leave lines for the next kernel to write back."""
        if self._zeros is None:
            self._zeros = driver.Memory(self.flush_bytes)
        self.kernels.flush(self._zeros.address, self.flush_bytes, stream)

    def probe(self, l2: str, calls: int = 8) -> float:
        """Return the median microseconds of a chain of dependent loads."""
        memory = driver.Memory(self.kernels.LINES * self.kernels.LINE_BYTES)
        batch = self.prepare(lambda stream: self.kernels.probe(memory.address, stream), calls, l2, takes_stream=True)
        batch.run()
        return sorted(batch.run())[calls // 2]

    def flags(self, l2: str) -> list[str]:
        """Return `flush-failed` unless loads are slow after a flush; checked once."""
        if l2 != "cold":
            return []
        if self._flushes is None:
            self._flushes = self.probe("cold") > 1.4 * self.probe("warm")
        return [] if self._flushes else ["flush-failed"]

    def floor(self, l2: str) -> float:
        if l2 not in self._floors:
            batch = self.prepare(self.kernels.empty, 32, l2, takes_stream=True)
            batch.run()
            self._floors[l2] = sorted(batch.run() + batch.run())[32]
        return self._floors[l2]

    # -- batches

    def prepare(self, call: object, calls: int, l2: str, takes_stream: bool = False) -> Batch:
        """Return a graph of calls; calls on the current stream, held back while enqueued, if capturing fails."""
        flush = self.flush if l2 == "cold" else None
        try:
            return _GraphBatch(self, call, calls, flush, l2, takes_stream)
        except Exception as reason:  # any error of a library while it is captured
            driver.synchronize_device()  # reports a kernel that failed
            batch = _StreamBatch(self, call, calls, flush, l2, takes_stream)
            batch.why = reason.with_traceback(None)  # the traceback would keep the capture alive
            return batch

    def watch(self) -> Watch:
        return Watch(reader(self.number))


def _torch() -> Any:
    """Return PyTorch if the program uses it and it has this GPU."""
    torch = packages.loaded("torch")
    return torch if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_available() else None


def _protocol(way: str, l2: str) -> str:
    return f"{way}-{'flush' if l2 == 'cold' else l2}/1"


class _GraphBatch:
    """Flush, event, call, event, repeated, as one graph."""

    def __init__(self, timer: GpuTimer, call: Any, calls: int, flush: Any, l2: str, takes_stream: bool) -> None:
        self.protocol = _protocol("graph", l2)
        self.flags = set[str]()
        self._timer = timer
        self._events = [(driver.Event(), driver.Event()) for _ in range(calls)]
        driver.synchronize_device()  # the side stream waits for no other
        with timer.side_stream() as stream:
            make = (lambda: call(stream)) if takes_stream else call
            if flush is not None:
                flush(stream)  # allocates and loads
            make()  # the call's set-up for this stream is not captured
            if not takes_stream and _works_elsewhere(call, stream):
                raise NotCaptured("calls work on other streams than the current one")

            def one(start: driver.Event, end: driver.Event) -> None:
                if flush is not None:
                    flush(stream)
                start.record_in_graph(stream)
                nodes = driver.captured_nodes(stream)
                launches = driver.launches()
                make()
                captured = driver.captured_nodes(stream) - nodes
                launched = driver.launches() - launches
                if not captured or captured < launched:
                    raise NotCaptured(f"calls put {captured} of {launched or 'their'} launches on the current stream")
                end.record_in_graph(stream)

            def all_calls() -> None:
                for start, end in self._events:
                    one(start, end)

            # First by the driver: after a failed capture of PyTorch's, it cannot draw random numbers any more.
            driver.captured(stream, lambda: one(*self._events[0]))
            self._launch = _captured(stream, all_calls)

    def run(self, look: Call = _nothing) -> list[float]:
        with self._timer.side_stream() as stream:
            self._launch()
            look()
            driver.synchronize(stream)
        return [end.microseconds_since(start) for start, end in self._events]


def _works_elsewhere(call: Call, stream: int) -> bool:
    """Return whether the device works on after the stream has ended: events on the stream then miss some work."""
    driver.synchronize_device()
    for _ in range(3):
        call()
        driver.synchronize(stream)
        ended = time.perf_counter()
        driver.synchronize_device()
        if time.perf_counter() - ended < _QUICK_WAIT:
            return False
    return True


def _captured(stream: int, work: Callable[[], None]) -> Call:
    """Return a graph of what a function enqueues; PyTorch's if it is in use, so that arrays get the graph's memory."""
    torch = _torch()
    if torch is None:
        return driver.captured(stream, work)
    graph = torch.cuda.CUDAGraph()
    driver.synchronize_device()
    # `torch.cuda.graph` would also collect garbage and free memory.
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
    return graph.replay


class _StreamBatch:
    """The same on a stream that a spinning kernel holds back until all is enqueued: the GPU waits for no host."""

    why: Exception | None = None
    """Why it is no graph."""

    def __init__(self, timer: GpuTimer, call: Any, calls: int, flush: Any, l2: str, takes_stream: bool) -> None:
        self.protocol = _protocol("stream", l2)
        self.flags = set[str]()
        self._timer = timer
        self._flush = flush
        self._takes_stream = takes_stream
        self._call = call
        self._events = [(driver.Event(), driver.Event()) for _ in range(min(calls, 64))]
        self._hold = 0.0
        self._late = False
        stream = timer.stream()
        self._enqueue(stream)
        if not takes_stream and _works_elsewhere(call, stream):
            self.flags.add("other-streams")

    def _enqueue(self, stream: int) -> None:
        """Enqueue the batch; the time this takes is how long the stream is held back the next time."""
        if self._hold:
            self._timer.kernels.spin(self._hold * 1e6, stream)
        begun = time.perf_counter()
        for start, end in self._events:
            if self._flush is not None:
                self._flush(stream)
            start.record(stream)
            self._call(stream) if self._takes_stream else self._call()
            end.record(stream)
        spent = time.perf_counter() - begun
        self._late = spent > self._hold
        if self._late:
            self._hold = min(_LONGEST_HOLD, 1.5 * spent + 1e-4)
            # Calls that wait, or more launches than the driver queues.
            if spent > _LONGEST_HOLD and len(self._events) > 1:
                self._events = self._events[: len(self._events) // 2]

    def run(self, look: Call = _nothing) -> list[float]:
        self._enqueue(self._timer.stream())
        late = self._late
        asked = list(self._events)
        look()
        driver.synchronize(self._timer.stream())
        if late:
            self.flags.add("host-bound")
        else:
            self.flags.discard("host-bound")  # the stream is now held back long enough
        return [end.microseconds_since(start) for start, end in asked]


def rotated(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Call:
    """Return calls with copies of a function's arrays in turn, together three times as large as the L2 cache."""
    arrays = [one for one in arguments if hasattr(one, "nbytes") and (hasattr(one, "clone") or hasattr(one, "copy"))]
    if not arrays:
        raise error(
            DSLRuntimeError,
            'l2="rotate" needs the arrays as arguments, to use copies of them in turn',
            hint="write measure(function, a, b), not measure(lambda: function(a, b))",
        )

    def copy(one: Any) -> Any:
        if not any(one is array for array in arrays):
            return one
        return one.clone() if hasattr(one, "clone") else one.copy()

    size = sum(array.nbytes for array in arrays)
    count = min(64, 3 * current.device().l2_cache // max(1, size) + 1)
    turns = itertools.cycle([arguments, *(tuple(map(copy, arguments)) for _ in range(count))])
    return lambda: function(*next(turns))
