"""Traced code may wait for threads that compile and call functions; a trace's values stay with its own thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kiln.cute as cute
from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.base_dsl.typing import Int32


@pytest.fixture
def pool():
    with ThreadPoolExecutor(3) as made:
        yield made


def made(number: int):
    @cute.jit
    def add(n: Int32):
        return n + number

    return add


def test_a_thread_that_traced_code_waits_for_compiles():
    add = made(1)

    @cute.jit
    def outer(n: Int32):
        got: list[int] = []
        thread = threading.Thread(target=lambda: got.append(add(5)), daemon=True)
        thread.start()
        thread.join(60)
        return n + got[0]

    assert outer(3) == 9


def test_a_pool_that_was_there_before(pool):
    one, two = made(10), made(20)

    @cute.jit
    def outer(n: Int32):
        return n + pool.submit(one, 1).result(60) + sum(pool.map(two, [1, 2], timeout=60))

    @cute.jit
    def nested(n: Int32):
        return n + pool.submit(outer, 1).result(60)

    assert nested(1000) == 1000 + 1 + 11 + 21 + 22


def test_compiled_ahead_and_launched_by_a_thread_of_a_trace(pool):
    @cute.kernel
    def kernel(a: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        a[t] = a[t] + t

    @cute.jit
    def fill(a: cute.Tensor):
        kernel(a).launch(grid=1, block=4)

    def work() -> int:
        a = np.full(4, 7, np.int32)
        cute.compile(fill, a)(a)
        return int(a.sum())

    @cute.jit
    def outer(n: Int32):
        return n + pool.submit(work).result(60)

    assert outer(1) == 35


def test_a_kernel_that_waits_for_a_thread_while_it_is_traced(pool):
    add = made(3)

    @cute.kernel
    def kernel(a: cute.Tensor):
        a[1] = a[0] + pool.submit(add, 4).result(60)

    @cute.jit
    def outer(a: cute.Tensor):
        kernel(a).launch(grid=1, block=1)

    a = np.array([1, 0], np.int32)
    outer(a)
    assert a.tolist() == [1, 8]


def test_two_traces_that_wait_for_each_other():
    """Each thread waits in its trace until the other one is in its own, too."""
    both = threading.Barrier(2, timeout=60)
    got: dict[int, int] = {}

    def run(number: int) -> None:
        @cute.jit
        def meets(n: Int32):
            both.wait()
            total = n
            for i in range(n):
                total += i * number
            both.wait()
            return total

        got[number] = meets(4)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {1: 10, 2: 16}


def test_values_of_a_trace_are_refused_in_other_threads(pool):
    add = made(1)

    def refused(use):
        @cute.jit
        def outer(n: Int32, a: cute.Tensor):
            pool.submit(use, n, a).result(60)

        with pytest.raises(DSLRuntimeError, match="this thread traces nothing") as caught:
            outer(3, np.zeros(4, np.int32))
        assert "threads that traced code starts can compile and call functions of their own" in str(caught.value)

    refused(lambda n, a: n + 1)
    refused(lambda n, a: n + n)
    refused(lambda n, a: n > 1)
    refused(lambda n, a: a[0])
    refused(lambda n, a: add(n))


def test_an_error_in_one_thread_leaves_the_traces_of_others_alone(pool):
    @cute.jit
    def wrong(n: Int32):
        return n.nothing

    @cute.jit
    def outer(n: Int32):
        try:
            more = pool.submit(wrong, 3).result(60)
        except AttributeError:
            more = 10
        total = n
        for i in range(n):
            total += i
        return total + more

    assert outer(4) == 20


def test_threads_that_begin_to_compile_at_once(child):
    """Also the first use of the bindings, with switches between threads as often as there can be."""
    done = child(
        "-c",
        """
import sys, threading
sys.setswitchinterval(1e-6)
import numpy as np
import kiln.cute as cute
from kiln.base_dsl.typing import Float32, Int32

def program(number):
    @cute.kernel
    def kernel(a: cute.Tensor, n: Int32):
        t, _, _ = cute.arch.thread_idx()
        tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 32, 16), cute.make_layout((4, 8)))
        tile[t] = a[t]
        cute.arch.sync_threads()
        total = Float32(0)
        for i in range(n):
            if i % 2 == 0:
                total += tile[(t + i) % 32] * number
            else:
                total -= tile[(t + i) % 32]
        cute.arch.sync_threads()
        a[t] = total

    @cute.jit
    def run(a: cute.Tensor, n: Int32):
        kernel(a, n).launch(grid=1, block=32)

    return run

def expected(number, n):
    a = np.arange(32, dtype=np.float32)
    return sum(np.roll(a, -i) * (number if i % 2 == 0 else -1) for i in range(n))

start = threading.Barrier(6)
wrong = []

def work(number):
    start.wait()
    try:
        for k in range(2):
            a = np.arange(32, dtype=np.float32)
            program(number + 10 * k)(a, 5)
            if not np.array_equal(a, expected(number + 10 * k, 5)):
                wrong.append((number, a))
    except BaseException as reason:
        wrong.append(reason)

threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong
""",
        KILN_TARGET="cpu",
    )
    assert done.returncode == 0, done.stderr
