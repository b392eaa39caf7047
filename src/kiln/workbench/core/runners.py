"""Runners take jobs and yield outcomes, in any order. Nothing a job does reaches the process that submitted it.

with Local(jobs=2) as runner:
    for outcome in runner.run(Job("package.module:function", {"n": 3}) for ...):
        ...
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln.hardware import driver

from . import worker

STDERR = 64 << 10
"""Bytes that are kept of a worker's last output."""
START_TIMEOUT = 120.0
_POLL = 0.05


@dataclass(frozen=True)
class Job:
    """A function to call in a worker: `do` is "package.module:function", arguments and result are JSON."""

    do: str
    arguments: dict[str, Any] = field(default_factory=dict)
    needs_gpu: bool = False
    timeout: float | None = None
    """Seconds; None means the runner's."""
    memory: int | None = None
    """Bytes that the worker may have resident; None means the runner's."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the worker."""
    tag: Any = None
    """A value of the caller, to identify the outcome."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job: ok, error (the function raised), crash, timeout, oom, device_error, skipped or lost."""

    job: Job
    status: str
    result: Any = None
    error: dict[str, Any] | None = None
    """`type`, `message`, `file`, `line` and `traceback`."""
    stderr: str = ""
    """The worker's last output."""
    seconds: float = 0.0
    node: str = ""
    gpu: str | None = None


class InfrastructureLost(Exception):
    """Workers cannot be started: verbs end with exit status 4, and the journal has what was done."""


class Runner:
    """The interface of runners."""

    timers = 1
    """The number of GPUs that time at once."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield outcomes as they come. Jobs are taken from the iterable when a worker is free."""
        raise NotImplementedError

    def close(self) -> None:
        """End all workers."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Inline(Runner):
    """Runs jobs in this process: for tests, and for programs that trust their kernels."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield outcomes in order."""
        for job in jobs:
            answer = worker.perform({"do": job.do, "arguments": job.arguments})
            yield Outcome(job, answer["status"], answer.get("result"), answer.get("error"), seconds=answer["seconds"])


class Local(Runner):
    """Workers on this machine: `jobs` of them without a GPU, and one per GPU.

    `gpus` are numbers or UUIDs; None means the first, if any. `timeout` (seconds) and `memory` (bytes; None: nine
    tenths of what is free) hold for jobs without their own.
    """

    def __init__(
        self, jobs: int = 1, gpus: Sequence[int | str] | None = None, timeout: float = 60.0, memory: int | None = None
    ) -> None:
        if jobs < 1:
            raise ValueError(f"jobs={jobs}: at least one is needed")
        if gpus is None:
            gpus = [0] if driver.available() else []
        self.timeout = timeout
        self.memory = memory
        self._slots = [_Slot(None) for _ in range(jobs)] + [_Slot(str(gpu)) for gpu in gpus]
        self.timers: int = max(1, len(gpus))
        self._failed_starts = 0

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield outcomes as they come; closing the iterator ends running jobs."""
        coming = iter(jobs)
        waiting: deque[_Attempt] = deque()
        more = True
        try:
            while True:
                idle = [slot for slot in self._slots if slot.attempt is None]
                for slot in idle:
                    attempt = _for(slot, waiting)
                    while attempt is None and more:
                        job = next(coming, None)
                        if job is None:
                            more = False
                        elif job.needs_gpu and not any(each.gpu for each in self._slots):
                            error = {"type": "NoGpu", "message": "the job needs a GPU, and there is none"}
                            yield Outcome(job, "skipped", error=error, node=platform.node())
                        else:
                            waiting.append(_Attempt(job))
                            attempt = _for(slot, waiting)
                            if attempt is None and len(waiting) > 4 * len(self._slots):
                                break
                    if attempt is not None:
                        self._begin(slot, attempt)
                busy = [slot for slot in self._slots if slot.attempt is not None]
                if not busy:
                    if not more and not waiting:
                        return
                    continue
                for slot in self._ready(busy):
                    outcome = self._step(slot, waiting)
                    if outcome is not None:
                        yield outcome
        finally:
            for slot in self._slots:
                if slot.attempt is not None:
                    slot.end()

    def close(self) -> None:
        """Kill all workers."""
        for slot in self._slots:
            slot.end()

    def _begin(self, slot: _Slot, attempt: _Attempt) -> None:
        if slot.process is not None and (slot.env != attempt.job.env or slot.process.poll() is not None):
            slot.end()
        slot.attempt = attempt
        slot.memory = attempt.job.memory or self.memory or int(0.9 * _free_memory() / len(self._slots))
        if slot.process is None:
            slot.start(attempt.job.env, attempt.job.do)
            slot.deadline = time.monotonic() + START_TIMEOUT
        else:
            self._send(slot)

    def _send(self, slot: _Slot) -> None:
        attempt = slot.attempt
        assert attempt is not None
        slot.sent = True
        slot.log.clear()
        slot.started = time.monotonic()
        timeout = attempt.job.timeout or self.timeout
        slot.deadline = slot.started + timeout
        words = {"do": attempt.job.do, "arguments": attempt.job.arguments, "timeout": timeout}
        line = json.dumps(words).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # the other pipe shows its end
            slot.write(line)

    def _ready(self, busy: list[_Slot]) -> list[_Slot]:
        """Wait a moment for output of busy workers; return all of them, since deadlines pass as well."""
        with selectors.DefaultSelector() as waiting:
            for slot in busy:
                waiting.register(slot.results, selectors.EVENT_READ, slot)
                if not slot.log_closed:
                    waiting.register(slot.printed, selectors.EVENT_READ, slot)
            for key, _ in waiting.select(_POLL):
                if key.fd == key.data.printed:
                    key.data.read_log()
                else:
                    key.data.read_results()
        return busy

    def _step(self, slot: _Slot, waiting: deque[_Attempt]) -> Outcome | None:
        """Look at a busy worker; return the outcome if its job has ended."""
        attempt = slot.attempt
        assert attempt is not None
        now = time.monotonic()
        if not slot.sent:
            return self._step_of_start(slot, now)
        answer = slot.next_answer()
        if answer is not None:
            slot.attempt = None
            slot.done = slot.done + 1
            slot.read_log()
            if answer.pop("last"):
                slot.end()
            return self._outcome(slot, attempt.job, **answer)
        if slot.ended:
            return self._lost(slot, waiting, "crash", _how_it_ended(slot.wait()))
        if now > slot.deadline:
            seconds = slot.deadline - slot.started
            return self._lost(slot, waiting, "timeout", f"it did not end within {seconds:g} s, and was killed")
        used = _resident(slot.pid)
        if used > slot.memory:
            limit = f"{used >> 20} MiB resident, and {slot.memory >> 20} MiB are allowed"
            return self._lost(slot, waiting, "oom", f"it had {limit}; it was killed")
        return None

    def _step_of_start(self, slot: _Slot, now: float) -> Outcome | None:
        answer = slot.next_answer()
        if answer is not None and answer["ready"]:
            self._failed_starts = 0
            slot.gpu_name = answer.get("gpu")
            self._send(slot)
        elif answer is not None or slot.ended or now > slot.deadline:
            self._failed_starts += 1
            attempt = slot.attempt
            slot.end()
            if self._failed_starts >= 3:
                said = answer["error"] if answer else slot.text() or "it said nothing"
                raise InfrastructureLost(f"three workers in a row could not start; the last one: {said}")
            slot.attempt = attempt
            slot.start(slot.env, attempt.job.do if attempt else "")
            slot.deadline = now + START_TIMEOUT
        return None

    def _lost(self, slot: _Slot, waiting: deque[_Attempt], status: str, message: str) -> Outcome | None:
        """Handle a worker that died or was killed; retry once if earlier jobs in it may be at fault."""
        attempt = slot.attempt
        assert attempt is not None
        seconds = time.monotonic() - slot.started
        fresh = slot.done == 0
        slot.end()
        if not fresh and not attempt.again:
            waiting.appendleft(_Attempt(attempt.job, again=True))
            return None
        return self._outcome(slot, attempt.job, status, error={"type": status, "message": message}, seconds=seconds)

    def _outcome(self, slot: _Slot, job: Job, status: str, **fields: Any) -> Outcome:
        return Outcome(job, status, stderr=slot.text(), node=platform.node(), gpu=slot.gpu_name, **fields)


@dataclass
class _Attempt:
    job: Job
    again: bool = False


def _for(slot: _Slot, waiting: deque[_Attempt]) -> _Attempt | None:
    for attempt in waiting:
        if attempt.job.needs_gpu == (slot.gpu is not None):
            waiting.remove(attempt)
            return attempt
    return None


class _Slot:
    """A place for one worker, with the worker that is in it."""

    def __init__(self, gpu: str | None) -> None:
        self.gpu = gpu
        self.gpu_name = None
        self.attempt: _Attempt | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.env: dict[str, str] = {}
        self.log = bytearray()
        self.deadline = self.started = 0.0
        self.memory = 0
        self._reset()

    def _reset(self) -> None:
        self.sent = self.ended = False
        self.log_closed = False
        self.done = 0
        self.jobs = self.results = self.printed = -1
        self._unread = bytearray()

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def start(self, env: dict[str, str], first: str) -> None:
        """Start a worker, which loads the module of its first job before it reports ready."""
        self._reset()
        self.log.clear()
        self.env = dict(env)
        jobs_end, self.jobs = os.pipe()
        self.results, results_end = os.pipe()
        self.printed, printed_end = os.pipe()
        whole = child_environment(CUDA_VISIBLE_DEVICES=self._visible()) | env
        command = [sys.executable, "-m", "kiln.workbench.core.worker", *map(str, (jobs_end, results_end, os.getpid()))]
        try:
            self.process = subprocess.Popen(
                command,
                env=whole,
                stdin=subprocess.DEVNULL,
                stdout=printed_end,
                stderr=printed_end,
                pass_fds=(jobs_end, results_end),
                start_new_session=True,
            )
        finally:
            for descriptor in (jobs_end, results_end, printed_end):
                os.close(descriptor)
        os.set_blocking(self.results, False)
        os.set_blocking(self.printed, False)
        with contextlib.suppress(BrokenPipeError):
            self.write(json.dumps({"path": sys.path, "gpu": self.gpu, "first": first}).encode() + b"\n")

    def _visible(self) -> str:
        """Return CUDA_VISIBLE_DEVICES of the worker; our numbers count the GPUs that this process sees."""
        if self.gpu is None:
            return ""
        seen = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
        return seen[int(self.gpu)] if seen and self.gpu.isdigit() else self.gpu

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.jobs, view) :]

    def read_results(self) -> None:
        try:
            data = os.read(self.results, 1 << 20)
        except BlockingIOError:
            return
        self._unread += data
        self.ended = not data

    def read_log(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self.printed, 1 << 16):
                self.log = (self.log + data)[-STDERR:]
            self.log_closed = True

    def next_answer(self) -> dict[str, Any] | None:
        line, end, rest = self._unread.partition(b"\n")
        if not end:
            return None
        self._unread = rest
        try:
            return json.loads(line)
        except ValueError:  # the job wrote to our pipe
            return None

    def wait(self) -> int:
        """Return the exit status; kill a process that closed its pipe but runs on."""
        assert self.process is not None
        try:
            return self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def text(self) -> str:
        return self.log.decode(errors="replace")

    def end(self) -> None:
        """Kill the worker with all it started. Its output stays until the next one starts."""
        self.attempt = None
        if self.process is None:
            return
        self.kill()
        self.process.wait()
        self.read_log()
        for descriptor in (self.jobs, self.results, self.printed):
            os.close(descriptor)
        self.process = None
        self.sent = False


def child_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a Python process that imports this Kiln, with some variables set."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **variables}


def _how_it_ended(status: int) -> str:
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        guess = ", which nothing here sent: the kernel kills so when memory runs out" if name == "SIGKILL" else ""
        return f"it ended its process by {name}{guess}"
    return f"it ended its process with exit status {status}"


def _resident(pid: int) -> int:
    """Return the resident bytes of a process and its children, without file-backed pages."""
    total = 0
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        try:
            status = Path(f"/proc/{each}/status").read_text()
            children = Path(f"/proc/{each}/task/{each}/children")
            waiting += map(int, children.read_text().split()) if children.exists() else ()
        except (OSError, ValueError):
            continue
        total += sum(int(size) << 10 for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE))
    return total


def _free_memory() -> int:
    match = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    return int(match.group(1)) << 10 if match else 1 << 40
