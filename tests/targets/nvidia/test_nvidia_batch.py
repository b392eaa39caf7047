# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Compiling many variants in processes of their own."""

from __future__ import annotations

import os
import sys

import pytest
from nvidia_testing import floats, needs_ptxas

import kiln
import kiln.cute as cute
from kiln.base_dsl import batch
from kiln.base_dsl.target import get_target
from kiln.testing import dry_run

pytestmark = [needs_ptxas, pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked")]


@cute.kernel
def scaled(x: cute.Tensor, factor: kiln.Constexpr):
    t, _, _ = cute.arch.thread_idx()
    x[t] = x[t] * factor


@cute.jit
def launch(x: cute.Tensor, factor: kiln.Constexpr):
    print("tracing", factor)
    if kiln.const_expr(factor == 4.0):
        raise ValueError("no such variant")
    scaled(x, factor).launch(grid=1, block=32)


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The factors that this process compiles for."""
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "0")
    target, found = get_target("nvidia"), []
    compile_ = target.compile
    monkeypatch.setattr(target, "compile", lambda *args, **kwargs: (found.append(1), compile_(*args, **kwargs))[1])
    return found


def test_what_processes_compiled_is_found_here(compiled, capfd):
    x = floats(64)
    with dry_run("sm_90a") as launches:
        jobs = [lambda factor=factor: launch(x, factor) for factor in (2.0, 3.0, 4.0, 5.0)]
        assert batch.precompile(jobs, 2) == 3
        assert not launches  # they launched, so to say, elsewhere
        assert "tracing" not in capfd.readouterr().out
        for job in (jobs[0], jobs[1], jobs[3]):
            job()
        assert not compiled
        assert len(launches) == 3
        with pytest.raises(ValueError, match="no such variant"):
            jobs[2]()
    assert [line for line in capfd.readouterr().out.splitlines()] == [f"tracing {n}" for n in (2.0, 3.0, 5.0, 4.0)]


@pytest.mark.parametrize("how", ["one process", "no cache", "one job", "cpu"])
def test_where_it_makes_no_sense(compiled, monkeypatch, how):
    jobs = [lambda: sys.exit("not called")] * (1 if how == "one job" else 2)
    if how == "no cache":
        monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    with kiln.target("cpu" if how == "cpu" else "nvidia"):
        assert batch.precompile(jobs, 1 if how == "one process" else 2) == 0


def test_a_process_that_hangs_is_ended(compiled, monkeypatch):
    import time

    monkeypatch.setattr(batch, "_SECONDS", 0.2)
    with dry_run("sm_90a"):
        assert batch.precompile([lambda: time.sleep(60), lambda: time.sleep(60)], 2) == 0
