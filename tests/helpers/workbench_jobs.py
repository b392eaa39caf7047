"""Jobs for workers, most of which do not end well."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

done = 0


def add(a, b):
    return a + b


def count():
    """How many jobs of this worker counted."""
    global done
    done += 1
    return [done, os.getpid()]


def fail(how):
    print("about to", how, flush=True)
    print("on the way out", file=sys.stderr, flush=True)
    if how == "raise":
        raise ValueError("no")
    if how == "abort":
        os.abort()
    if how == "exit":
        os._exit(0)
    if how == "leave":
        sys.exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "hang":
        subprocess.Popen(["sleep", f"1000.{os.getppid()}"])
        time.sleep(1000)
    if how == "eat":
        kept = []
        while True:
            kept.append(b"x" * (16 << 20))
            time.sleep(0.001)
    if how == "memory error":
        raise MemoryError("all of it")
    if how == "no json":
        return {1, 2}
    if how == "write to the pipes":
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b"rubbish\n")
            except OSError:
                pass
        os._exit(1)
    return None


def fail_after_others(how):
    """Fails only where other jobs ran before, as after what they left behind."""
    if count()[0] > 1:
        fail(how)
    return "good"


def wait_for(file):
    with open(file, "w") as out:
        out.write(str(os.getpid()))
    time.sleep(1000)
