"""The classic programs, run as a user runs them."""

from __future__ import annotations

import numpy as np
from example_running import EXAMPLES, load

import kiln
import kiln.cute as cute
from kiln.cute.runtime import from_dlpack


def run(child, name: str) -> str:
    done = child("-m", "kiln", "run", "--target", "cpu", EXAMPLES / name)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hello_world_from_one_thread_of_32(child):
    assert run(child, "hello_world.py").splitlines() == [
        "tracing, compiling, running:",
        "Hello from the host",
        "Hello from thread 0 of the kernel",
    ]


def test_stages(child):
    assert run(child, "stages.py").splitlines() == [
        "tracing add_dynamic: ?",
        "running add_dynamic: 7.000000",
        "tracing add_static: 7.0",
        "running add_static: 7.000000",
        "tracing add_mixed: ?",
        "running add_mixed: 7.000000",
        "again:",
        "running add_dynamic: 7.000000",
        "tracing add_static: 7.0",
        "running add_static: 7.000000",
        "running add_mixed: 6.000000",
    ]


def test_epilogue(child):
    assert run(child, "epilogue.py").splitlines() == [
        "Epilogue: [3.0, -2.5, 4.0]",
        "ReluEpilogue: [3.0, 0.0, 4.0]",
        "row 0 adds up to 6.000000",
        "row 1 adds up to -5.000000",
        "row 2 adds up to 8.000000",
        "a loop:      1 loops, 0 printfs, 0 calls",
        "unrolled:    0 loops, 0 printfs, 0 calls",
        "with debug:  1 loops, 1 printfs, 0 calls",
    ]


def test_epilogues_against_numpy():
    example = load("epilogue.py")
    rows = np.random.default_rng(0).standard_normal((32, 9), np.float32)
    sums = np.zeros(32, np.float32)
    want = rows.sum(axis=1, dtype=np.float64) * 0.25
    with kiln.target("cpu"):
        for unroll in (False, True):
            example.row_sums(from_dlpack(rows), from_dlpack(sums), example.Epilogue(0.25), unroll)
            np.testing.assert_allclose(sums, want, atol=1e-5)
            example.row_sums(from_dlpack(rows), from_dlpack(sums), example.ReluEpilogue(0.25), unroll)
            np.testing.assert_allclose(sums, np.maximum(want, 0), atol=1e-5)


def test_an_epilogue_is_part_of_the_specialization():
    example = load("epilogue.py")
    tensors = [from_dlpack(np.zeros((2, 2), np.float32)), from_dlpack(np.zeros(2, np.float32))]
    with kiln.target("cpu"):
        for _ in range(2):  # equal objects share one
            for epilogue in (example.Epilogue(1.0), example.ReluEpilogue(1.0)):
                example.row_sums(*tensors, epilogue)
        assert len(example.row_sums._specializations.codes()) == 2
        plain = cute.compile(example.row_sums, *tensors, example.Epilogue(1.0)).artifacts["mlir"]
        relu = cute.compile(example.row_sums, *tensors, example.ReluEpilogue(1.0)).artifacts["mlir"]
    assert "cmpf" in relu and "cmpf" not in plain
