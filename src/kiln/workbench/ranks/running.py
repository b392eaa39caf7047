"""Starts the ranks of a program as threads, and joins their exit statuses."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType

from ..serve_cuda import device as served
from ..serve_cuda import ranks
from . import checked, environment, heap, output, packages, watch
from . import world as worlds

_GRACE = 5.0
"""Seconds that ranks have to end after one has failed."""


class _MainOfRank(ModuleType):
    """`sys.modules["__main__"]` where each rank has its own: what it has is that of the thread's rank."""

    def __init__(self, mains: list[ModuleType]) -> None:
        super().__init__("__main__")
        object.__setattr__(self, "_mains", mains)

    def __getattribute__(self, name: str) -> object:
        mains: list[ModuleType] = object.__getattribute__(self, "_mains")
        return getattr(mains[ranks.current() or 0], name)

    def __setattr__(self, name: str, value: object) -> None:
        mains: list[ModuleType] = object.__getattribute__(self, "_mains")
        setattr(mains[ranks.current() or 0], name, value)


def run_ranks(size: int, run: Callable[[ModuleType], None], new_main: Callable[[], ModuleType]) -> int:
    """Run a program in a thread for each rank, and return its exit status: that of the first rank that failed."""
    served.set_count(size)
    environment.serve(size)
    ranks.let_threads_inherit()
    world = worlds.start(size)
    ranks.at_start.append(world.join)
    if importlib.util.find_spec("torch") is not None:
        __import__("torch")  # by one thread, before several import it
    checked.begin(heap.heap(), heap.describe)
    packages.serve()
    mains = [new_main() for _ in range(size)]
    sys.modules["__main__"] = _MainOfRank(mains)
    streams = output.serve()
    statuses: dict[int, int] = {}

    def run_rank(number: int) -> None:
        ranks.become(number)
        checked.lead(number)
        statuses[number] = status = _status_of(lambda: run(mains[number]))
        if not status:
            checked.ends(number)
        world.end(number, f"ended with status {status}" if status else "has ended", failed=status != 0)

    threads = [threading.Thread(target=run_rank, args=(n,), name=f"rank {n}", daemon=True) for n in range(size)]
    for thread in threads:
        thread.start()
    deadlocks = watch.Watch(world)
    end = None
    while any(thread.is_alive() for thread in threads):
        next((thread for thread in threads if thread.is_alive()), threads[0]).join(0.1)
        deadlocks.look()
        if end is None and any(statuses.values()):
            end = time.monotonic() + _GRACE
        if end is not None and time.monotonic() > end:
            break
    for stream in streams:
        stream.finish()
    status = next((statuses[number] for number in statuses if statuses[number]), 0)
    if any(thread.is_alive() for thread in threads):  # nothing ends them but the end of the process
        os._exit(status)
    return status


def _status_of(run: Callable[[], None]) -> int:
    """Run a rank, show the exception that ends it, and return its exit status as Python would."""
    try:
        run()
    except worlds.Stopped:
        return 1
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as failure:
        traceback = failure.__traceback__
        ours = (__file__, sys.modules["kiln.workbench.run"].__file__)
        while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
            traceback = traceback.tb_next
        sys.excepthook(type(failure), failure.with_traceback(traceback), traceback)
        return 1
    return 0
