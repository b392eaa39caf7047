"""A process that is forked while other threads compile can compile."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import pytest

import kiln
from kiln._support import fork_safe

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")

START = """
import gc, os, sys, threading, time, warnings
import numpy as np
import kiln.cute as cute
from kiln._support import fork_safe
from kiln.base_dsl import trace
from kiln.interop.arguments import program as call_program
from kiln.base_dsl.typing import Int32

warnings.simplefilter("ignore")

def made(number):
    @cute.kernel
    def kernel(a: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        cute.arch.sync_threads()
        a[t] = a[t] + number

    @cute.jit
    def add(a: cute.Tensor):
        kernel(a).launch(grid=1, block=4)

    return add

def forked(number):
    process = os.fork()
    if not process:
        status = 1
        try:
            a = np.zeros(4, np.int32)
            add = made(number)
            for _ in range(6):
                add(a)
            assert a.tolist() == [6 * number] * 4
            assert gc.isenabled() and not trace.active.value and not call_program.recording.value
            status = 0
        finally:
            os._exit(status)
    for _ in range(6000):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            assert status == 0, status
            return
        time.sleep(0.01)
    os.kill(process, 9)
    os.waitpid(process, 0)
    raise AssertionError("the process hangs")
"""


def test_a_fork_while_another_thread_compiles(child):
    done = child(
        "-c",
        START
        + """
stop = threading.Event()
compiled = []

def compile_many():
    while not stop.is_set():
        made(1000 + len(compiled))(np.zeros(4, np.int32))
        compiled.append(1)

thread = threading.Thread(target=compile_many)
thread.start()
for number in range(1, 4):
    before = len(compiled)
    forked(number)
    while len(compiled) == before:  # the parent goes on
        time.sleep(0.01)
stop.set()
thread.join()
""",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("compiles", [False, True])
def test_a_fork_waits_for_imports(child, compiles: bool):
    """Those of a thread that compiles, too: the lock of a half-imported module would stay closed in the child."""
    done = child(
        "-c",
        f"compiles = {compiles}"
        + """
import contextlib, os, threading, time
from kiln._support import one_import
from kiln.base_dsl import dsl

there, imported = threading.Event(), []

def imports():
    with dsl.compile_lock if compiles else contextlib.nullcontext():
        if compiles:
            there.set()
            time.sleep(0.3)
        with one_import.at_a_time():
            there.set()
            time.sleep(0.3)
            with one_import.at_a_time():
                imported.append(1)

threading.Thread(target=imports).start()
there.wait()
process = os.fork()
if not process:
    os._exit(not imported)
assert os.waitpid(process, 0)[1] == 0
""",
    )
    assert done.returncode == 0, done.stderr


def test_a_fork_in_the_middle_of_what_waits_for_it(child):
    """What the other thread holds it will not give back before the fork: in a trace, in LLVM, in a launch."""
    done = child(
        "-c",
        START
        + """
from kiln.base_dsl import target
from kiln.targets.host import jit

fork_safe.SECONDS = 0.05
go_on, there = threading.Event(), threading.Event()

@cute.jit
def waits(n: Int32):
    there.set()
    go_on.wait()
    return n

def holds(lock):
    with lock:
        there.set()
        go_on.wait()

def inside():
    with target.target("cpu"):
        there.set()
        go_on.wait()

@cute.kernel
def endless(a: cute.Tensor):
    while cute.arch.load(a.iterator, Int32, sem="acquire") == 0:
        a[1] = 1

@cute.jit
def spin(a: cute.Tensor):
    endless(a).launch(grid=1, block=1)

cell = np.zeros(4, np.int32)

def launch():
    spin(cell)

made(1)(np.zeros(4, np.int32))
cell[0] = 1
spin(cell)
cell[0] = 0
works = [lambda: waits(1), lambda: holds(jit._lock), inside, launch]
for number, work in enumerate(works, 1):
    go_on.clear(); there.clear(); cell[:2] = 0
    thread = threading.Thread(target=work)
    thread.start()
    while not there.is_set() and not cell[1]:
        time.sleep(0.001)
    forked(number)
    go_on.set(); cell[0] = 1
    thread.join()
""",
    )
    assert done.returncode == 0, done.stderr


def test_every_lock_is_one_that_a_forked_process_finds_open():
    sources = Path(kiln.__file__ or "").parent.rglob("*.py")
    found = [path.name for path in sources if re.search(r"threading\.(R?Lock|Condition|Semaphore)\(", path.read_text())]
    assert found == ["fork_safe.py"]


def test_a_fork_waits_for_every_thread_that_shares_a_lock():
    shared, begun, left = fork_safe.wait_for(fork_safe.Shared()), threading.Barrier(3), []

    def work(seconds: float) -> None:
        with shared.held():
            begun.wait()
            time.sleep(seconds)
            left.append(seconds)

    threads = [threading.Thread(target=work, args=(seconds,)) for seconds in (0.05, 0.01)]
    for thread in threads:
        thread.start()
    begun.wait()
    process = os.fork()
    if not process:
        with shared.held():
            os._exit(0 if left == [0.01, 0.05] and len(shared._inside) == 1 else 1)
    assert os.waitpid(process, 0)[1] == 0
    for thread in threads:
        thread.join()
    with shared.held():
        assert len(shared._inside) == 1
    fork_safe._awaited.remove(shared)


def test_locks_of_this_thread_stay_held_in_the_copy():
    lock, other, count = fork_safe.rlock(), fork_safe.lock(), fork_safe.Count()
    with lock:
        count.add(2)
        other.acquire()
        process = os.fork()
        if not process:
            good = lock._is_owned() and other.acquire(blocking=False) and count.value == 2
            os._exit(0 if good else 1)
    assert os.waitpid(process, 0)[1] == 0
    count.add(-2)


def test_the_end_of_a_process_waits_for_what_daemon_threads_compile(child):
    done = child(
        "-c",
        "import atexit; atexit.register(lambda: at_the_end())\n"
        + START
        + """
from kiln.targets.host import jit

def at_the_end():  # of all handlers the last one
    print("the lock is free", inside.wait(0) and not left.empty())
    a = np.zeros(4, np.int32)
    made(3)(a)
    print(a.tolist())

import queue
inside, left = threading.Event(), queue.SimpleQueue()

def compile_long():
    with jit._lock:
        inside.set()
        fork_safe.ending.wait()
        left.put(1)

threading.Thread(target=compile_long, daemon=True).start()
inside.wait()
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the lock is free True\n[3, 3, 3, 3]\n"
