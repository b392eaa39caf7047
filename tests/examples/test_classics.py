"""The classic programs, run as a user runs them."""

from __future__ import annotations

from example_running import EXAMPLES


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
