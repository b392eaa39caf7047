"""Compilation of many variants at once, in forked processes that leave their results in the disk cache."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence

from . import cache, settings
from .dsl import compile_lock
from .log import logger
from .target import get_target

_SECONDS = 120.0
"""The seconds after which a process is ended; its variant is then compiled in this process."""


def precompile(jobs: Sequence[Callable[[], object]], processes: int | None = None) -> int:
    """Run functions that compile, each in a process of its own, launch nothing, and return how many succeeded.

    Their results are then in the disk cache, where this process finds them. A function that fails there has no effect:
    it will fail here too, where that is reported. `processes` run at a time, by default one for each core. Nothing is
    done for less than two, without a disk cache, where processes cannot be forked, or for a target that has no dry run.
    """
    settings.refuse_gone("KILN_COMPILE_PROCESSES")
    workers = min(len(jobs), settings.cores() if processes is None else processes)
    if workers < 2 or not hasattr(os, "fork") or settings.get("CUTE_DSL_DISABLE_FILE_CACHING"):
        return 0
    target = get_target()
    if not target.has_dry_run or cache.directory() is None:
        return 0
    target.fingerprint()  # asks about devices, which a forked process cannot do
    running: dict[int, float] = {}
    waiting = list(reversed(jobs))
    succeeded = 0
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running[_start(waiting.pop())] = time.monotonic()
            succeeded += _reap(running)
    finally:
        for process in running:
            _end(process)
    return succeeded


def _start(job: Callable[[], object]) -> int:
    """Fork a process that runs a function and ends, and return its number."""
    with (
        warnings.catch_warnings(),
        compile_lock,
    ):  # no other thread is in the middle of a compilation, with LLVM's locks
        # Python warns of threads that may hold locks: a process that hangs for one is ended in time
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        return process
    status = 1
    try:
        # text that tracing prints is printed by the parent process, too
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        sys.stdout = sys.stderr = os.fdopen(quiet, "w")
        with get_target().dry_run():
            job()
        status = 0
    except BaseException as reason:
        with contextlib.suppress(Exception):
            logger().info("a variant was not compiled ahead: %s", reason)
    finally:
        os._exit(status)


def _reap(running: dict[int, float]) -> int:
    """Wait a little for processes to end, and return how many succeeded."""
    succeeded = 0
    for process, begun in list(running.items()):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            del running[process]
            succeeded += status == 0
        elif time.monotonic() - begun > _SECONDS:
            del running[process]
            _end(process)
    if running:
        time.sleep(0.005)
    return succeeded


def _end(process: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
