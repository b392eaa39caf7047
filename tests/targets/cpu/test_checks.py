"""Checks by default: which launches run the checked build, what they find, and how they are switched off."""

from __future__ import annotations

import re
import traceback
import warnings

import numpy as np
import pytest

import kiln
from kiln import Float32, Int32, cute
from kiln.base_dsl.diagnostics import DSLWarning
from kiln.base_dsl.sanitizing import OFF, SanitizerError
from kiln.targets.cpu import checks


@pytest.fixture(autouse=True)
def on(monkeypatch):
    monkeypatch.setenv("KILN_CHECKS", "first")
    monkeypatch.setenv("KILN_CPU_OPT", "0")
    with kiln.target("cpu"):
        yield


@pytest.fixture
def runs(monkeypatch):
    """Counts the runs of checked builds."""
    seen: list[int] = []
    built = checks._built

    def counting(build, plain):
        call = built(build, plain)

        def run(address):
            seen.append(address)
            call(address)

        return run

    monkeypatch.setattr(checks, "_built", counting)
    return seen


def filling():
    """A function that writes 32 elements whatever the array has."""

    @cute.kernel
    def fill(x: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        x[thread] = 1.0

    @cute.jit
    def main(x: cute.Tensor):
        fill(x).launch(grid=1, block=32)

    return main


def test_each_set_of_extents_is_checked_once(runs, taker):
    main = filling()
    for extent in (32, 40, 32, 40, 40, 32):
        main(np.zeros(extent, np.float32))
    assert len(runs) == 2
    with pytest.warns(DSLWarning, match=r"writes x\[30\]") as said:
        main(np.zeros(30, np.float32))
    assert len(runs) == 3
    assert OFF in str(said[0].message)
    assert said[0].filename == __file__
    main(np.zeros(32, np.float32))


@pytest.mark.parametrize("shape", [0, (0, 4), (4, 0)])
def test_an_array_without_elements(shape):
    @cute.kernel
    def first(x: cute.Tensor):
        x[0] = 1.0

    @cute.jit
    def main(x: cute.Tensor):
        first(x).launch(grid=1, block=1)

    with pytest.warns(DSLWarning, match=r"whose memory has 0 of f32"):
        main(np.zeros(shape, np.float32))


def test_an_index_below_zero():
    @cute.kernel
    def last(x: cute.Tensor):
        x[-1] = 1.0

    @cute.jit
    def main(x: cute.Tensor):
        last(x).launch(grid=1, block=1)

    with pytest.warns(DSLWarning, match=r"element -1 of x(.|\n)*do not count from the end"):
        main(np.zeros(32, np.float32))


def test_what_is_a_warning_in_programs_is_an_error_in_tests(runs, monkeypatch):
    wide = np.zeros(32, np.float32)
    with pytest.warns(DSLWarning, match=r"writes x\[30\]"):
        filling()(wide[:30])
    assert wide.tolist() == [1] * 30 + [0, 0]  # such writes are left out
    main = filling()
    for _ in range(2):  # and checks go on
        with pytest.warns(DSLWarning, match=r"writes x\[30\]"):
            main(wide[:30])
    assert wide.tolist() == [1] * 30 + [0, 0]
    monkeypatch.delenv("KILN_CHECKS")  # pytest runs this
    with pytest.raises(SanitizerError, match=r"writes x\[30\]") as failure:
        filling()(wide[:30])
    assert failure.value.span is not None
    assert failure.value.span.filename == __file__
    assert str(failure.value).startswith(f"{__file__}:")  # the line that a summary of tests shows
    assert OFF in failure.value.__notes__


def test_a_warning_that_is_an_error_shows_the_users_frames_and_names_the_line():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DSLWarning, match=r"writes x\[31\]") as failure:
            filling()(np.zeros(31, np.float32))
    assert {frame.filename for frame in traceback.extract_tb(failure.tb)} == {__file__}
    assert re.match(rf"{re.escape(__file__)}:\d+: warned here\n    x\[thread\] = 1.0\n", failure.value.__notes__[0])


def test_reads_out_of_bounds_give_zeros(runs):
    @cute.kernel
    def shift(x: cute.Tensor, y: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        y[thread] = x[thread + 1]

    @cute.jit
    def main(x: cute.Tensor, y: cute.Tensor):
        shift(x, y).launch(grid=1, block=32)

    memory, y = np.full(33, 7, np.float32), np.zeros(32, np.float32)
    with pytest.warns(DSLWarning, match=r"reads x\[32\](.|\n)*kb show zeros-by-predicate"):
        main(memory[:32], y)
    assert (y[:31] == 7).all()
    assert y[31] == 0
    with kiln.sanitize(), pytest.raises(SanitizerError, match=r"reads x\[32\]"):
        main(memory[:32], y)
    assert len(runs) == 1


def test_a_product_that_does_not_fit_in_32_bits_is_no_index(runs):
    @cute.kernel
    def fill(x: cute.Tensor, m: Int32, n: Int32):
        thread, _, _ = cute.arch.thread_idx()
        x[m * n + thread] = 1.0

    @cute.jit
    def main(x: cute.Tensor, m: Int32, n: Int32):
        fill(x, m, n).launch(grid=1, block=8)

    main(np.zeros(32, np.float32), 3, 8)
    with pytest.warns(DSLWarning, match=r"computes 4294967296 \+ 0 for an address, .* 32 bits(.|\n)*Int64"):
        main(np.zeros(40, np.float32), 65536, 65536)
    assert len(runs) == 2


def test_large_calls_and_timed_ones_are_not_checked(runs, monkeypatch):
    from kiln.cute.runtime import from_dlpack

    monkeypatch.setattr(checks, "MOST_ELEMENTS", 64)
    dynamic, static = filling(), filling()
    for array in (np.zeros(64, np.float32), np.zeros(65, np.float32), np.zeros(66, np.float64)[::2]):
        dynamic(array.astype(np.float32))
    static(from_dlpack(np.zeros((8, 9), np.float32)))
    assert len(runs) == 2  # 64 and 33
    monkeypatch.setenv("KILN_CHECKS", "always")
    compiled = cute.compile(filling(), x := np.zeros(32, np.float32))
    cute.testing.benchmark(compiled, kernel_arguments=cute.testing.JitArguments(x), warmup_iterations=1, iterations=3)
    assert len(runs) == 3


def test_compiled_functions_are_checked(runs):
    compiled = cute.compile(filling(), np.zeros(32, np.float32))
    assert not runs
    compiled(np.zeros(32, np.float32))
    compiled(np.zeros(32, np.float32))
    assert len(runs) == 1
    with pytest.warns(DSLWarning, match=r"writes x\[31\]"):
        compiled(np.zeros(31, np.float32))


def test_ways_to_switch_them_off(runs, monkeypatch):
    wide = np.zeros(32, np.float32)
    cute.compile(filling(), wide, options="--checks never")(wide[:30])
    monkeypatch.setenv("KILN_CHECKS", "never")
    filling()(wide[:30])
    assert not runs
    assert (wide == 1).all()
    with pytest.raises(SanitizerError):
        cute.compile(filling(), wide, options="--checks always")(wide[:30])


def test_without_warnings_memory_is_safe_all_the_same(runs, monkeypatch):
    """Without checks a kernel without a guard would write to memory of the process that is not its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide = np.zeros(32, np.float32)
        cute.compile(filling(), wide, options="--checks off")(wide[:30])
        monkeypatch.setenv("KILN_CHECKS", "0")
        main = filling()
        for _ in range(3):  # once outside, always checked
            main(wide[:30])
    assert wide.tolist() == [1] * 30 + [0, 0]
    assert len(runs) == 4


def test_always(runs, monkeypatch):
    monkeypatch.delenv("KILN_CHECKS")  # pytest runs this
    main, x = filling(), np.zeros(32, np.float32)
    for _ in range(3):
        main(x)
    assert len(runs) == 3
    assert (x == 1).all()


def test_shared_memory(runs):
    @cute.kernel
    def turn(x: cute.Tensor, first: kiln.Constexpr, shows: kiln.Constexpr):
        thread, _, _ = cute.arch.thread_idx()
        tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 32), cute.make_layout(32))
        if kiln.const_expr(shows):
            cute.printf("{}", tile[thread])
        if thread >= first:
            tile[thread] = x[thread]
        cute.arch.sync_threads()
        x[thread] = tile[31 - thread]

    @cute.jit
    def main(x: cute.Tensor, first: kiln.Constexpr, shows: kiln.Constexpr):
        turn(x, first, shows).launch(grid=1, block=32)

    x = np.arange(32, dtype=np.float32)
    main(x, 0, True)  # what is only printed may be unset
    assert (x == np.arange(31, -1, -1)).all()
    with pytest.warns(DSLWarning, match=r"which nobody has written(.|\n)*kb show missing-barrier"):
        main(x, 1, False)
    assert len(runs) == 2


def test_barriers_that_threads_miss(runs):
    @cute.kernel
    def leave(x: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        if thread < 32:
            cute.arch.sync_threads()
        x[thread] = 1.0

    @cute.jit
    def main(x: cute.Tensor):
        leave(x).launch(grid=1, block=64)

    with pytest.warns(DSLWarning, match="waits at barrier 0 .* and thread 32 ended"):
        main(np.zeros(64, np.float32))
    assert len(runs) == 1


def test_nothing_orders_threads(runs, monkeypatch):
    """A checked build calls no function of the detector that keeps clocks: these took most of the time of a launch."""
    from kiln.targets.cpu.sanitizer import instrument

    called: set[str] = set()
    call = instrument.call_operation
    monkeypatch.setattr(
        instrument, "call_operation", lambda x, b, name, *more: called.add(name) or call(x, b, name, *more)
    )

    @cute.kernel
    def meet(x: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        full = cute.arch.alloc_smem(kiln.Int64, 1)
        if thread == 0:
            cute.arch.mbarrier_init(full, 32)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        cute.arch.mbarrier_arrive(full)
        cute.arch.mbarrier_wait(full, 0)
        cute.arch.fence_acq_rel_gpu()
        cute.arch.sync_warp()
        x[thread] = 1.0

    @cute.jit
    def main(x: cute.Tensor):
        meet(x).launch(grid=1, block=32)

    main(np.zeros(32, np.float32))
    assert {"check_access_by_default", "barrier_by_default", "group", "switch"} <= called
    assert not called & {"check_access", "barrier"}  # those of the other detector
    assert not [name for name in called if name.startswith(("mbarrier", "meet", "passed", "fence", "view", "atomic"))]
    assert len(runs) == 1


def test_the_kernel_library_and_the_sanitizer_are_left_alone(runs):
    a = np.ones((16, 16), np.float16)
    kiln.kernels.gemm(a, a)
    with kiln.sanitize():
        filling()(np.zeros(32, np.float32))
    assert not runs


def test_a_build_that_fails_is_no_reason_to_fail(monkeypatch, caplog):
    from kiln.targets.cpu.sanitizer import instrument

    def broken(self, kinds):
        raise RuntimeError("no instrumentation")

    monkeypatch.setattr(instrument.Instrumentation, "__init__", broken)
    x = np.zeros(32, np.float32)
    filling()(x)
    assert (x == 1).all()


def test_the_checked_build_is_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTE_DSL_DISABLE_FILE_CACHING", raising=False)
    (tmp_path / "cache").mkdir(mode=0o700)
    said: list[str] = []
    for _ in range(2):

        @cute.kernel
        def turn(x: cute.Tensor):
            thread, _, _ = cute.arch.thread_idx()
            tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 32), cute.make_layout(32))
            if thread > 0:
                tile[thread] = x[thread]
            cute.arch.sync_threads()
            x[thread + 1] = tile[thread]

        @cute.jit
        def main(x: cute.Tensor):
            turn(x).launch(grid=1, block=32)

        with pytest.warns(DSLWarning, match="reads tile, element 0 .*nobody has written") as warned:
            main(np.zeros(32, np.float32))
        assert len(warned) == 2
        said += [f"{warning.filename}:{warning.lineno}: {warning.message}" for warning in warned]
        monkeypatch.setattr("kiln.targets.cpu.lower.lower", None)  # the second time nothing is compiled
    assert said[:2] == said[2:]
    assert said[0].startswith(f"{__file__}:")


def test_bad_values(monkeypatch):
    with pytest.raises(kiln.DSLRuntimeError, match="off, first, always"):
        cute.compile(filling(), np.zeros(32, np.float32), options="--checks sometimes")
    monkeypatch.setenv("KILN_CHECKS", "sometimes")
    with pytest.raises(kiln.DSLRuntimeError, match="KILN_CHECKS"):
        filling()(np.zeros(32, np.float32))
