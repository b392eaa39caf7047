"""Accesses outside memory are faults of the call; other signals take their way. All in processes of their own."""

from __future__ import annotations

import re
import signal
import textwrap

import pytest

from kiln.targets.host import signal_handler
from kiln.targets.host.lower import lower_library

START = """
import ctypes, os, signal, sys, threading, time
import numpy as np
import kiln.cute as cute
from kiln import DSLCudaRuntimeError
from kiln.base_dsl.typing import Int32, Int64
from kiln.targets.cpu.runtime import parts
from kiln.targets.host import jit, runtime

FAR = 1 << 40

def fails(function, *arguments, words="accessed memory that is not there"):
    try:
        function(*arguments)
    except DSLCudaRuntimeError as error:
        assert error.error_code == 700, error.error_code
        assert words in str(error) and "kiln run --sanitize" in str(error), error
        return error
    raise AssertionError("nothing was raised")

@cute.kernel
def store(a: cute.Tensor, n: Int64):
    x, _, _ = cute.arch.block_idx()
    t, _, _ = cute.arch.thread_idx()
    if x == 3:
        a[n + t] = 1

@cute.jit
def write(a: cute.Tensor, n: Int64):
    store(a, n).launch(grid=8, block=32)

a = np.zeros(4096, np.int32)
"""


@pytest.fixture
def program(child):
    def run(text: str, *options: str, **env: str):
        return child(*options, "-c", START + textwrap.dedent(text), **env)

    return run


@pytest.mark.isa
def test_a_kernel_that_leaves_memory_raises_and_the_process_goes_on(program):
    done = program(
        """
        error = fails(write, a, FAR)
        assert "kernel store, block (3, 0, 0)" in str(error) and error.span.line > 1
        for _ in range(8):  # native calls too
            write(a, 0)
            fails(write, a, FAR)
        compiled = cute.compile(write, a, 0)
        for _ in range(4):
            fails(compiled, a, FAR)
            compiled(a, 8)
        assert a.sum() == 40
        thread = threading.Thread(target=fails, args=(write, a, FAR))  # which has a stack for signals of its own
        thread.start(); thread.join()
        def blocking():
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            fails(write, a, FAR)
        thread = threading.Thread(target=blocking)
        thread.start(); thread.join()

        # on several OS threads
        @cute.kernel
        def long(a: cute.Tensor, n: Int64):
            x, _, _ = cute.arch.block_idx()
            for i in range(20000):
                a[x % 16] = a[x % 16] + i
            if x >= 40:
                a[n + x] = 1

        @cute.jit
        def on_threads(a: cute.Tensor, n: Int64):
            long(a, n).launch(grid=64, block=1)

        parts.set_workers(4)
        for _ in range(3):
            assert "kernel long, block (" in str(fails(on_threads, a, FAR))
            on_threads(a, 100)

        # threads that wait for each other
        @cute.kernel
        def waits(a: cute.Tensor, n: Int64):
            t, _, _ = cute.arch.thread_idx()
            cute.arch.sync_threads()
            if t == 5:
                a[n] = 1
            cute.arch.sync_threads()
            a[t] = t

        @cute.jit
        def meeting(a: cute.Tensor, n: Int64):
            waits(a, n).launch(grid=2, block=64)

        fails(meeting, a, FAR)
        meeting(a, 3000)
        assert a[:64].tolist() == list(range(64))

        # the C library copies for it
        @cute.kernel
        def clear(a: cute.Tensor, n: Int64, count: Int32):
            for i in range(count):
                a[n + i] = 0

        @cute.jit
        def clearing(a: cute.Tensor, n: Int64, count: Int32):
            clear(a, n, count).launch(grid=1, block=1)

        fails(clearing, a, FAR, 4096)
        clearing(a, 0, 4096)

        # host code
        @cute.jit
        def host(a: cute.Tensor, n: Int64):
            a[n] = 7
            return n

        assert "host code accessed" in str(fails(host, a, FAR))
        assert host(a, 5) == 5 and a[5] == 7
        print("the end")
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the end\n")


@pytest.mark.parametrize("faulthandler", [True, False])
def test_signals_of_others_take_their_way(program, faulthandler: bool):
    done = program(
        """
        fails(write, a, FAR)
        ctypes.string_at(8)
        """,
        *(["-X", "faulthandler"] if faulthandler else []),
    )
    assert done.returncode == -signal.SIGSEGV
    assert ("Fatal Python error: Segmentation fault" in done.stderr) is faulthandler
    assert "kiln:" not in done.stderr


def test_handlers_that_come_later(program):
    done = program(
        """
        import faulthandler
        write(a, 0)
        faulthandler.enable()
        cute.compile(write, a, 0)  # looks after the handler
        fails(write, a, FAR)
        sys.stdout.write("caught"); sys.stdout.flush()
        ctypes.string_at(8)
        """
    )
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == "caught"
    assert done.stderr.count("Fatal Python error: Segmentation fault") == 1


def test_a_signal_that_a_process_sends_is_no_fault(program):
    done = program(
        """
        write(a, 0)
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(20)
        """
    )
    assert done.returncode == -signal.SIGSEGV


def test_where_leaving_is_not_safe_it_says_so_and_the_signal_takes_its_way(program):
    done = program(
        """
        write(a, 0)
        unsafe = (ctypes.c_uint64 * 2).from_address(jit.part_library(runtime.SIGNALS).addresses["kiln_cpu_signal_unsafe"])
        unsafe[0], unsafe[1] = 0, (1 << 64) - 1  # as if it were all the C library's
        write(a, FAR)
        """
    )
    assert done.returncode == -signal.SIGSEGV
    assert "kiln: kernel store accessed memory that is not there" in done.stderr
    assert "kiln run --sanitize" in done.stderr


def test_a_stack_that_is_full(program):
    done = program(
        """
        @cute.kernel
        def large(a: cute.Tensor, n: Int32):
            parts = [cute.make_rmem_tensor((1 << 17,), Int32) for _ in range(8)]
            for i in range(n):
                for part in parts:
                    part[i * 32] = i
            for part in parts:
                a[0] = a[0] + part[n * 16]

        @cute.jit
        def deep(a: cute.Tensor, n: Int32):
            large(a, n).launch(grid=1, block=1)

        threading.stack_size(1 << 20)
        caught = []
        thread = threading.Thread(target=lambda: caught.append(fails(deep, a, 4000)))
        thread.start(); thread.join()
        assert caught
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.quick(0)
@pytest.mark.parametrize("target", ["cpu", "nvidia"])
@pytest.mark.parametrize(
    "loop", ["while n == 0:\n        m = m + n", "for i in range(n, 1 << 62):\n        m = m * 3 + i"]
)
def test_ctrl_c_stops_host_code(child, tmp_path, loop: str, target: str):
    (tmp_path / "program.py").write_text(f"""
import os, signal, threading
import kiln.cute as cute
from kiln.base_dsl.typing import Int64

@cute.jit
def endless(n: Int64):
    m = Int64(1)
    {loop}
    return m

@cute.jit
def ends(n: Int64):
    m = Int64(1)
    for i in range(n):
        m = m + i
    while m > 10:
        m = m - 10
    return m

signal.signal(signal.SIGINT, signal.default_int_handler)
compiled = cute.compile(endless, 0)
assert ends(100000) == 9999 * 50000 % 10 + 1
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    compiled(0)
except KeyboardInterrupt:
    assert ends(100000) == 9999 * 50000 % 10 + 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print("stopped")
""")
    done = child("program.py", KILN_TARGET=target, CUTE_DSL_ARCH="sm_90a")
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


def test_what_returns_twice_says_so():
    """Without it LLVM may keep values in registers that are others after the second return."""
    text = lower_library(signal_handler.signals.build(), "signals", signal_handler.signals.exports)
    (declared,) = re.findall(r"declare i32 @_setjmp\(ptr\) (#\d+)", text)
    assert re.search(rf"attributes {declared} = {{.*\breturns_twice\b", text)
