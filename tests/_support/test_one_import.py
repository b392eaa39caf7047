"""One thread at a time imports modules of Kiln."""

from __future__ import annotations

import threading

from kiln._support import one_import


def test_a_thread_may_enter_again() -> None:
    with one_import.at_a_time(), one_import.at_a_time():
        pass


def test_others_wait() -> None:
    inside: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with one_import.at_a_time():
            entered.set()
            leave.wait()
            inside.append("first")

    def second() -> None:
        with one_import.at_a_time():
            inside.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    entered.wait()
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join()
    assert inside == ["first", "second"]


# A module of Kiln that compiles when it is imported waits for a thread whose first import of another one needs the lock.
BESIDE = """
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
from kiln._support import one_import
from kiln.targets.host import jit
def make():
    with one_import.at_a_time():
        return b"made"
with one_import.at_a_time():
    print(jit.beside(make)())
"""


def test_a_thread_that_is_waited_for_goes_without(child) -> None:
    done = child("-c", BESIDE)
    assert done.stdout == "b'made'\n", done.stderr


# The main thread imports `slow`, in which it wants the lock; the other has the lock, and wants `slow`.
DEADLOCK = """
import sys, threading
sys.path.insert(0, {folder!r})
from kiln._support import one_import
has, goes_on = threading.Event(), []
def other():
    with one_import.at_a_time():
        has.set()
        try:
            import slow
        except RuntimeError as error:  # Python's own answer, if this thread is the second to wait
            assert "deadlock" in str(error)
thread = threading.Thread(target=other)
sys.other, sys.has, sys.one_import = thread, has, one_import
import slow
thread.join()
"""


def test_a_deadlock_is_seen(child, tmp_path) -> None:
    (tmp_path / "slow.py").write_text(
        "import sys\nsys.other.start()\nsys.has.wait()\nwith sys.one_import.at_a_time(): pass\n"
    )
    done = child("-c", DEADLOCK.format(folder=str(tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_process_has_its_own(child) -> None:
    done = child(
        "-c",
        "import os, threading\n"
        "from kiln._support import one_import\n"
        "entered, leave = threading.Event(), threading.Event()\n"
        "def work():\n"
        "    with one_import.at_a_time():\n"
        "        entered.set(); leave.wait()\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start(); entered.wait()\n"
        "if (forked := os.fork()) == 0:\n"
        "    with one_import.at_a_time():\n"
        "        os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7\n"
        "leave.set(); thread.join()\n",
    )
    assert done.returncode == 0, done.stderr
