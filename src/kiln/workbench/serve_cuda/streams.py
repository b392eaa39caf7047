"""Streams and events. Work is done when the call that starts it returns, so waiting is never needed."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from typing import Any

_handles = itertools.count(0x1000, 0x10)


class Stream:
    """A stream; `cuda_stream` is its handle, 0 for the default stream."""

    priority = 0

    def __init__(self, device: object = None, priority: int = 0, *, stream_ptr: int | None = None, **_: object) -> None:
        self.cuda_stream: int = next(_handles) if stream_ptr is None else stream_ptr
        self.priority: int = priority

    @property
    def device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    device_index = 0
    device_type = 1

    @property
    def stream_id(self) -> int:
        return self.cuda_stream

    @property
    def native_handle(self) -> int:
        return self.cuda_stream

    @property
    def _as_parameter_(self) -> Any:
        return ctypes.c_void_p(self.cuda_stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return version and handle, the protocol of cuda.core."""
        return 0, self.cuda_stream

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        if _current.recording is not None:
            _current.recording.follow(self.cuda_stream, event.after)

    def wait_stream(self, stream: Stream) -> None:
        if _current.recording is not None:
            _current.recording.follow(self.cuda_stream, _current.recording.last(stream.cuda_stream))

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        _current.stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.stack.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream of which only the handle is known."""

    def __init__(self, stream_ptr: int, device: object = None, **_: object) -> None:
        super().__init__(stream_ptr=stream_ptr)


DEFAULT = Stream(stream_ptr=0)


class Recording:
    """The order of work on streams while a graph is captured: each work is a number, and follows others."""

    def __init__(self) -> None:
        self.after: list[frozenset[int]] = []
        """The work that each one follows."""
        self.streams: list[int] = []
        """The stream of each work."""
        self._last: dict[int, frozenset[int]] = {}

    def add(self, stream: int) -> None:
        """Add work to a stream."""
        self.after.append(self.last(stream))
        self.streams.append(stream)
        self._last[stream] = frozenset((len(self.after) - 1,))

    def last(self, stream: int) -> frozenset[int]:
        """Return what the next work of a stream follows."""
        return self._last.get(stream, frozenset())

    def follow(self, stream: int, work: frozenset[int]) -> None:
        """Let what comes next on a stream follow other work, too."""
        self._last[stream] = self.last(stream) | work


class _Current(threading.local):
    def __init__(self) -> None:
        self.stack = [DEFAULT]
        self.recording: Recording | None = None


_current = _Current()


def record(recording: Recording | None) -> None:
    """Let streams of this thread tell a recording their order; None: no longer."""
    _current.recording = recording


def current_stream(device: object = None) -> Stream:
    """Return the stream of this thread."""
    return _current.stack[-1]


def default_stream(device: object = None) -> Stream:
    """Return the stream with handle 0."""
    return DEFAULT


def set_stream(stream: Stream | None) -> None:
    """Make a stream this thread's until another is set."""
    if stream is not None:
        _current.stack[-1] = stream


class StreamContext:
    """`with torch.cuda.stream(s):`; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


def stream(stream: Stream | None) -> StreamContext:
    """Return a context in which work goes to a stream."""
    return StreamContext(stream)


class Event:
    """A point in time of this process."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: object
    ) -> None:
        self.enable_timing = enable_timing
        self.cuda_event: int = next(_handles)
        self._seconds: float | None = None
        self.after: frozenset[int] = frozenset()
        """The work of a graph that it stands for."""

    @property
    def device(self) -> Any:
        return DEFAULT.device

    @property
    def event_id(self) -> int:
        return self.cuda_event

    def record(self, stream: Stream | None = None) -> None:
        self._seconds = time.perf_counter()
        if _current.recording is not None:
            self.after = _current.recording.last((stream or current_stream()).cuda_stream)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to another."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1e3

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.cuda_event:#x}>"


def new_handle() -> int:
    """Return a number that no other stream or event of this process has."""
    return next(_handles)


def seconds() -> float:
    """Return the time for events."""
    return time.perf_counter()


def finish_current() -> None:
    """Wait for the work of this thread's stream."""


def synchronize_device(number: int) -> None:
    """Wait for the work of a device."""
