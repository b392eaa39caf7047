# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Kernels of a function that are compiled beside each other: the same code as together, and when it is not done."""

from __future__ import annotations

import gc
import re
import sys
import threading

import pytest
from nvidia_testing import compile_for, floats, needs_ptxas

import kiln
import kiln.cute as cute
from kiln import Float32
from kiln.hardware.architectures import Arch
from kiln.targets.nvidia import codegen, target
from kiln.targets.nvidia.passes import kernel_outlining

pytestmark = needs_ptxas
arch = cute.arch


@cute.kernel
def double(x: cute.Tensor):
    t, _, _ = arch.thread_idx()
    x[None, t] = x[None, t].load() * 2.0


@cute.kernel
def shared_sum(x: cute.Tensor):
    t, _, _ = arch.thread_idx()
    memory = kiln.utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(256), 16)
    memory[t] = x[0, t]
    arch.sync_threads()
    x[0, t] = memory[127 - t] + memory[t]


def compiled_three(first, second, **options):
    """A function that launches three kernels, two of which are the same."""

    @cute.jit
    def run(x: cute.Tensor):
        for kernel in (first, second, second):
            kernel(x).launch(grid=(1, 1, 1), block=(128, 1, 1))

    return compile_for(run, floats(4, 128), **options)


def kernels_of(ptx):
    """What stands between braces, and before, by kernel; labels are numbered through a module."""
    found = [re.sub(r"//.*|__BB\d+|_\d+:|wait_\d+", "", part) for part in ptx.split(".visible .entry ")[1:]]
    return {part.split("(")[0]: [line.strip() for line in part.splitlines() if line.strip()] for part in found}


@pytest.fixture
def apart(monkeypatch):
    """Kernels are compiled beside each other, however short; what returns how many threads LLVM worked in."""
    monkeypatch.setattr(kernel_outlining, "_WORTH", 0)
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    threads, original = [], codegen.optimize

    def optimize(*given, **more):
        threads.append(threading.get_ident())
        return original(*given, **more)

    monkeypatch.setattr(codegen, "optimize", optimize)
    return lambda: [threads.count(one) for one in dict.fromkeys(threads)]


@pytest.mark.parametrize("of", [0, 1])
def test_kernels_apart_have_the_same_code(monkeypatch, apart, of):
    kernels = (double, shared_sum) if of else (shared_sum, double)
    interval = sys.getswitchinterval()
    joined = compiled_three(*kernels)
    assert apart() == [1, 1]
    monkeypatch.setattr(kernel_outlining, "_WORTH", 1 << 20)
    whole = compiled_three(*kernels)
    assert apart() in ([1, 2], [2, 1])
    assert kernels_of(joined.__ptx__) == kernels_of(whole.__ptx__)
    assert len(kernels_of(whole.__ptx__)) == 3
    for words in (".version", ".target", ".extern .shared"):
        assert joined.__ptx__.count(words) == whole.__ptx__.count(words)
    assert joined.__llvm__.count("define ptx_kernel") == 3
    assert sys.getswitchinterval() == interval
    assert joined.executable.resources == whole.executable.resources
    for artifact in ("llvm_unoptimized", "mlir_lowered"):
        assert all(f"@{name}(" in joined.artifacts[artifact] for name in ("double", "shared_sum"))


def test_where_no_thread_can_be_started_one_compiles_all(monkeypatch, apart):
    expected = compiled_three(double, shared_sum).__ptx__

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert compiled_three(double, shared_sum).__ptx__ == expected
    assert apart() in ([1, 3], [3, 1])


@cute.kernel
def checked(x: cute.Tensor):
    t, _, _ = arch.thread_idx()
    assert t < 128, "threads"
    cute.printf("%d", t)
    x[0, t] = cute.math.sin(x[0, t])


@pytest.mark.parametrize("longest", [0, 1])
def test_kernels_that_share_more_than_memory_are_compiled_together(monkeypatch, apart, longest):
    """Text, records of faults and functions of the longest kernel; those of the others are theirs alone."""
    monkeypatch.setattr(kernel_outlining, "operation_names", lambda: ["cute.load"] if longest else ["cute.printf"])
    compiled = compiled_three(checked, shared_sum)
    assert apart() in ([1], [1, 1])
    assert compiled.__ptx__.count("kiln_fault;") <= 1
    assert len(kernels_of(compiled.__ptx__)) == 3


@cute.kernel
def k(x: cute.Tensor):
    t, _, _ = arch.thread_idx()
    for i in kiln.range_constexpr(4):
        x[i, t] = cute.math.pow(x[i, t].to(kiln.Float64), x[0, t].to(kiln.Float64)).to(Float32)


@cute.kernel
def power(x: cute.Tensor):
    t, _, _ = arch.thread_idx()
    x[0, t] = cute.math.pow(x[0, t].to(kiln.Float64), x[1, t].to(kiln.Float64)).to(Float32)


def test_a_kernel_does_not_own_what_begins_with_its_name(apart):
    """`k` and `kiln_f64_powf`, a function that both kernels call, where nothing is inlined."""
    compiled = compiled_three(k, power, options="--opt-level 0")
    assert len(re.findall(r"\.func .*\bkiln_f64_powf\($", compiled.__ptx__, re.MULTILINE)) == 1
    assert apart() == [1]


def test_with_lines_and_little_stack_one_thread_compiles(monkeypatch, apart):
    compiled_three(double, shared_sum, options="--generate-line-info")
    assert apart() == [1]
    monkeypatch.setattr(target.stack_guard, "is_enough_for_new_threads", lambda: False)
    compiled_three(double, shared_sum)
    assert apart() == [2]


def test_what_fails_in_the_other_thread_is_raised():
    wrong = "define void @f(i32 %a) {\n  %x = add i32 %y, 1\n  %y = add i32 %a, 1\n  ret void\n}\n"
    with codegen.Beside(wrong, Arch.sm_90a, 3) as beside, pytest.raises(RuntimeError, match="does not dominate"):
        beside.ptx()


def test_a_module_outlives_others_of_its_thread():
    """Its context is its own and ends after it, in whichever order both are collected."""
    text = "define void @f() {\n  ret void\n}\n"
    kept = codegen.optimize(text, Arch.sm_90a, 3)
    for _ in range(3):
        circle = [codegen.optimize(text, Arch.sm_90a, 3)]
        circle += [circle[0]._context, circle]
        del circle
        gc.collect()
    assert "@f" in str(kept)
