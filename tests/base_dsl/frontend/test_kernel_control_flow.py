"""Control flow in kernels, launches under conditions and in loops; results are seen through `printf`."""

from __future__ import annotations

import pytest

from kiln import Constexpr, cute, range_constexpr


def lines(capfd) -> list[str]:
    return capfd.readouterr().out.split("\n")[:-1]


@cute.kernel
def only_some_threads(limit):
    tid, _, _ = cute.arch.thread_idx()
    if tid >= limit:
        return
    cute.printf("{}", tid)


def test_early_return_of_a_thread(capfd):
    @cute.jit
    def main(limit):
        only_some_threads(limit).launch(grid=1, block=8)

    main(3)
    assert sorted(lines(capfd)) == ["0", "1", "2"]


def test_control_flow_of_each_thread_is_its_own(capfd):
    def steps(n):
        count = 0
        while True:
            if n <= 1:
                break
            if n % 2:
                n = 3 * n + 1
            else:
                n //= 2
            count += 1
        return count

    steps_in_kernel = cute.jit(steps)

    @cute.kernel
    def collatz():
        tid, _, _ = cute.arch.thread_idx()
        cute.printf("%d %d", tid, steps_in_kernel(tid))

    @cute.jit
    def main():
        collatz().launch(grid=1, block=16)

    main()
    got = {int(k): int(v) for k, v in (line.split() for line in lines(capfd))}
    assert got == {i: steps(i) for i in range(16)}


def test_search_with_break_and_else(capfd):
    def first_multiple(start, of):
        found = 0
        for i in range(start, start + 5):
            if i % of == 0:
                found = i
                break
        else:
            found = -1
        return found

    first = cute.jit(first_multiple)

    @cute.kernel
    def kernel(of):
        tid, _, _ = cute.arch.thread_idx()
        bid, _, _ = cute.arch.block_idx()
        start = bid * 4 + tid
        cute.printf("{} {}", start, first(start, of))

    @cute.jit
    def main(of):
        kernel(of).launch(grid=3, block=4)

    main(7)
    got = {int(k): int(v) for k, v in (line.split() for line in lines(capfd))}
    assert got == {i: first_multiple(i, 7) for i in range(12)}


def test_launches_under_conditions_and_in_loops(capfd):
    @cute.kernel
    def say(n, tag: Constexpr):
        cute.printf("{}{}", tag, n)

    @cute.jit
    def main(n):
        if n > 2:
            say(n, "big").launch(grid=1, block=1)
        else:
            say(n, "small").launch(grid=1, block=1)
        for i in range(n):
            if i == 3:
                break
            say(i, "loop").launch(grid=1, block=1)
        for i in range_constexpr(2):
            say(n, f"static{i}-").launch(grid=1, block=1)

    main(1)
    assert lines(capfd) == ["small1", "loop0", "static0-1", "static1-1"]
    main(5)
    assert lines(capfd) == ["big5", "loop0", "loop1", "loop2", "static0-5", "static1-5"]


def test_early_return_of_a_host_function_skips_a_launch(capfd):
    @cute.kernel
    def say(n):
        cute.printf("{}", n)

    @cute.jit
    def main(n):
        say(0).launch(grid=1, block=1)
        if n == 0:
            return
        say(n).launch(grid=1, block=1)

    main(0)
    main(4)
    assert lines(capfd) == ["0", "0", "4"]


def test_grid_and_block_known_at_run_time(capfd):
    @cute.kernel
    def count():
        bid, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        last = cute.arch.grid_dim()[0] - 1
        if bid == last and tid == 0:
            cute.printf("{} blocks of {}", last + 1, cute.arch.block_dim()[0])

    @cute.jit
    def main(n, width):
        count().launch(grid=(n + width - 1) // width, block=width)

    main(10, 4)
    assert lines(capfd) == ["3 blocks of 4"]


class Epilogue:
    def apply(self, x):
        return x


class Relu(Epilogue):
    @cute.jit
    def apply(self, x):
        if x < 0:
            x = 0
        return x


@pytest.mark.parametrize(("epilogue", "want"), [(Epilogue(), ["-2", "-1", "0", "1"]), (Relu(), ["0", "0", "0", "1"])])
def test_polymorphic_object_in_a_kernel(capfd, epilogue, want):
    @cute.kernel
    def kernel(op: Constexpr):
        tid, _, _ = cute.arch.thread_idx()
        cute.printf("{}", op.apply(tid - 2))

    @cute.jit
    def main(op: Constexpr):
        kernel(op).launch(grid=1, block=4)

    main(epilogue)
    assert lines(capfd) == want


def test_object_state_across_regions_in_a_kernel(capfd):
    class PipelineState:
        def __init__(self, stages):
            self.stages = stages
            self.index = 0
            self.phase = 0

        @cute.jit
        def advance(self):
            self.index += 1
            if self.index == self.stages:
                self.index = 0
                self.phase ^= 1

    def reference(n):
        index = phase = 0
        for _ in range(n):
            index += 1
            if index == 3:
                index, phase = 0, phase ^ 1
        return f"{index} {phase}"

    @cute.kernel
    def kernel(n):
        state = PipelineState(3)
        for _ in range(n):
            state.advance()
        cute.printf("{} {}", state.index, state.phase)

    @cute.jit
    def main(n):
        kernel(n).launch(grid=1, block=1)

    for n in range(8):
        main(n)
    assert lines(capfd) == [reference(n) for n in range(8)]


def test_method_kernels_and_their_self(capfd):
    class Program:
        def __init__(self, scale):
            self.scale = scale

        @cute.kernel
        def body(self, n):
            tid, _, _ = cute.arch.thread_idx()
            if tid == n:
                cute.printf("{}", tid * self.scale)

        @cute.jit
        def __call__(self, n):
            self.body(n).launch(grid=1, block=8)

    Program(10)(3)
    Program(100)(5)
    assert lines(capfd) == ["30", "500"]
