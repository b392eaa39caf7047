"""Compiling in a thread with a small stack is refused, and never ends the process."""

from __future__ import annotations

import os

import pytest

LEAST = max(64, os.sysconf("SC_THREAD_STACK_MIN") >> 10)
"""KB of the smallest stack that a thread may have: 64 on x86-64, 128 on aarch64."""

PROGRAM = """
import threading
import numpy as np
import kiln.cute as cute

@cute.kernel
def kernel(x: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    if x[t] > 0:
        x[t] = cute.math.exp(x[t]) + 1

@cute.jit
def launch(x: cute.Tensor):
    kernel(x).launch(grid=1, block=4)

def work():
    try:
        launch(x)
    except Exception as failure:
        print(failure)

x = np.zeros(4, np.float32)
threading.stack_size(SIZE << 10)
thread = threading.Thread(target=work)
thread.start()
thread.join()
launch(x)
print("done")
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [LEAST, 256, 512])
def test_a_thread_with_a_small_stack(child, size: int) -> None:
    done = child("-c", PROGRAM.replace("SIZE", str(size)), KILN_TARGET="cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
    refused = f"compiling needs a stack of 512 KB; this thread's has {size} KB" in done.stdout
    assert refused == (size < 512)
    assert ("threading.stack_size(1 << 20)" in done.stdout) == refused


MAIN = """
import resource
resource.setrlimit(resource.RLIMIT_STACK, (SIZE << 10, resource.getrlimit(resource.RLIMIT_STACK)[1]))
import threading
from kiln import cute

@cute.jit
def plus_one(x: cute.Int32):
    return x + 1

try:
    print("main", plus_one(3))
except RuntimeError as failure:
    print(failure)
threading.stack_size(1 << 20)
thread = threading.Thread(target=lambda: print("there", plus_one(3)))
thread.start()
threading.stack_size(0)  # threads that compiling starts have small stacks
thread.join()
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [256, 511, 512])
def test_a_main_thread_with_a_small_stack(child, size: int) -> None:
    done = child("-c", MAIN.replace("SIZE", str(size)), KILN_TARGET="cpu", CUTE_DSL_DISABLE_FILE_CACHING="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("there 4\n")
    refused = (
        f"compiling needs a stack of 512 KB; this thread's has {size} KB: start the program after `ulimit"
        in done.stdout
    )
    assert refused == (size < 512) == ("main 4" not in done.stdout)
