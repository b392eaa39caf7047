"""Mistakes whose message once named a cure that cures nothing, or that passed without a word."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from said_by_programs import said_by

import kiln
from kiln import Float32, cute

HEAD = """import random
import time
from random import randint
import numpy as np
import kiln
from kiln import Float32, Int32, cute
from kiln.cute.nvgpu import cpasync

count = 0
seen = []
table = {}
numbers = np.random.default_rng(0)
weights = np.zeros(4, np.float32)


class Settings:
    calls = 0


@cute.kernel
def k(x: cute.Tensor):
    i, _, _ = cute.arch.thread_idx()
"""
LAUNCH = """

@cute.jit
def main(x: cute.Tensor):
    k(x).launch(grid=1, block=32)

"""
RUN = "main(np.ones(32, np.float32))\n"
SANITIZED = "with kiln.sanitize():\n    " + RUN


@dataclasses.dataclass(frozen=True)
class Wrong:
    kernel: str
    """Statements of the kernel."""
    says: tuple[str, ...]
    """Parts of what is said."""
    never: tuple[str, ...] = ()
    launch: str = LAUNCH
    run: str = RUN


SHARED = "s = kiln.utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(32))"
COPY = "cute.copy(cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32), cute.local_tile(x, (1,), (i,)), cute.local_tile(s, (1,), (i,)))"
ONCE = "once, while the kernel is traced"
DRAWS = "one number while the kernel is traced"
WRONG = {
    "mask": Wrong("x[i] = x[x[i] > 0]", ("indexed by a Boolean", "if x[i] > 0")),
    "python_boolean": Wrong("x[i] = x[True]", ("indexed by a bool",)),
    "mask_of_a_tile": Wrong("y = cute.make_rmem_tensor(4, Float32); x[i] = y[y.load() > 0]", ("no masks",)),
    "random": Wrong("x[i] = random.random()", ("random.random() draws", DRAWS)),
    "random_by_name": Wrong("x[i] = Float32(randint(0, 9))", ("randint() draws", DRAWS)),
    "numpy_random": Wrong("x[i] = np.random.rand()", ("np.random.rand() draws", DRAWS)),
    "generator": Wrong("x[i] = float(numbers.random())", ("numbers.random() draws", DRAWS)),
    "clock": Wrong("x[i] = time.perf_counter()", ("reads the clock", "cute.arch.clock64()")),
    "global_number": Wrong("global count; count += 1; x[i] = 1.0 * count", ("the global 'count'", ONCE, "atomic_add")),
    "global_in_a_branch": Wrong("global count\n    if x[i] > 0:\n        count = 1", ("the global 'count'",)),
    "global_list": Wrong("seen.append(i)", ("seen.append()", "the global 'seen'", ONCE)),
    "global_dict": Wrong("table['a'] = i", ("table['a']", ONCE)),
    "global_update": Wrong("table.update(a=i)", ("the global 'table'",)),
    "global_class": Wrong("Settings.calls += 1", ("Settings.calls", ONCE)),
    "global_array": Wrong("weights[0] += 1", ("weights[0]", ONCE)),
    "global_deleted": Wrong("del seen[0]", ("seen[0]", ONCE)),
    "several_add": Wrong("x[0] = x[0] + 1", ("cute.arch.atomic_add", "reduction"), ("sync_warp",), run=SANITIZED),
    "no_commit": Wrong(
        f"{SHARED}; {COPY}; cute.arch.cp_async_wait_group(0); x[i] = s[i]",
        ("call cp_async_commit_group() after the copy",),
        run=SANITIZED,
    ),
    "padding": Wrong(
        "p = kiln.utils.SmemAllocator().allocate_array(Float32, 1024)\n"
        "    s = cute.make_tensor(p, cute.make_layout((32, 32), stride=(33, 1)))\n"
        "    for j in range(32):\n        s[i, j] = x[i]",
        ("cute.cosize(layout)",),
        ("tensor's shape",),
    ),
    "comprehension": Wrong("y = [x[j] for j in range(i)]", ("a `for` statement",), ("cutlass",)),
    "name_of_ptx": Wrong("y = cute.arch.__ldg(x)", ("an ordinary load",)),
    "name_of_cuda": Wrong("cute.arch.atomicAdd(x.iterator, 1.0)", ("atomic_add",)),
    "frames": Wrong("for j in range(i):\n        if x[j] > 0:\n            x[j, 0, 0] = 1.0", ("in k",), ("__kiln",)),
    "small_smem": Wrong(
        f"{SHARED}; s[i] = x[i]",
        ("launch(smem=64) is less than the 128 bytes",),
        launch=LAUNCH.replace("block=32", "block=32, smem=64"),
    ),
    "empty_grid": Wrong(
        "x[i] = 0.0",
        ("return before the launch",),
        launch=LAUNCH.replace("grid=1", "grid=cute.size(x)"),
        run=RUN.replace("np.ones(32,", "np.ones(0,"),
    ),
    **{
        name: Wrong("x[i] = 0.0", ("block=",), ("stream",), launch=LAUNCH.replace("block", name))
        for name in ("threads", "num_warps", "threads_per_block")
    },
}


def text(wrong: Wrong) -> str:
    return f"{HEAD}    {wrong.kernel}\n{wrong.launch}{wrong.run}"


@pytest.mark.parametrize("name", WRONG)
def test_the_cure_is_named_at_the_line(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KILN_CHECKS", "first")
    monkeypatch.setenv("KILN_CPU_OPT", "0")
    wrong = WRONG[name]
    said = said_by(f"wrong_{name}", text(wrong), tmp_path)
    assert f"wrong_{name}.py:" in said or f'wrong_{name}.py", line' in said, said
    for part in wrong.says:
        assert part in said, said
    for part in wrong.never:
        assert part not in said, said


# what is meant for the trace stays possible

noted = []


def note(value):
    noted.append(value)


@cute.kernel
def draws(x: cute.Tensor, factor: cute.Constexpr):
    mine = []
    mine.append(factor)
    note(factor)
    rows = {}
    rows["a"] = random.Random(0).random()
    seeded = random.Random(1)
    i, _, _ = cute.arch.thread_idx()
    x[i] = Float32(mine[0] + seeded.random() + rows["a"])


@cute.jit
def launch_drawn(x: cute.Tensor):
    noted.append(random.random())
    draws(x, 2.0).launch(grid=1, block=4)


def test_what_is_meant_for_the_trace_goes_through():
    x = np.zeros(4, np.float32)
    launch_drawn(x)
    assert len(noted) == 2
    np.testing.assert_allclose(x, 2.0 + random.Random(0).random() + random.Random(1).random(), rtol=1e-6)


def test_a_condition_counts_as_a_number_where_it_is_converted():
    @cute.kernel
    def pick(x: cute.Tensor):
        x[2] = x[kiln.Int32(x[0] > 0)]

    @cute.jit
    def run(x: cute.Tensor):
        pick(x).launch(grid=1, block=1)

    x = np.array([1.0, 5.0, 0.0], np.float32)
    run(x)
    assert x[2] == 5.0


def test_functions_of_the_host_bind_globals():
    @cute.jit
    def run(x: cute.Tensor):
        global noted
        noted = [*noted, x.element_type]

    run(np.zeros(3, np.float32))
    assert noted[-1] is Float32
