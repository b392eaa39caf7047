"""Native code lives as long as it is needed, and no longer."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from cpu_testing import Compiled

from kiln.targets.cpu.runtime.parts import LAUNCH, PARTS
from kiln.targets.host import jit
from kiln.targets.host.object_code import undefined_symbols
from kiln.targets.host.runtime import REPORTS

pytestmark = pytest.mark.isa

ADD = "func.func @f(%a: i64, %b: i64) -> i64 { %c = arith.addi %a, %b : i64\n func.return %c : i64 }"


def test_code_is_freed_with_its_executable() -> None:
    compiled = Compiled(ADD)
    call = compiled.executable.call
    library = weakref.ref(call.__dict__["library"])
    del compiled
    gc.collect()
    slots = np.array([2, 3, 0])
    call(slots.ctypes.data)
    assert slots[2] == 5
    del call
    gc.collect()
    assert library() is None


def test_code_that_runs_no_kernel_needs_reports_only() -> None:
    needed = undefined_symbols(Compiled(ADD).executable.artifacts["object"])
    assert needed == {"kiln_cpu_finish"}
    assert jit.needed_parts(PARTS, needed) == ([REPORTS], set())
    assert jit.needed_parts(PARTS, {"kiln_cpu_launch", "kiln_cpu_fault", "sinf"}) == ([REPORTS, LAUNCH], {"sinf"})


def test_a_symbol_that_is_nowhere_is_an_error_that_names_it() -> None:
    text = "declare void @no_such_function()\ndefine void @f() {\n call void @no_such_function()\n ret void\n}"
    data = jit.emit_object(jit.optimize(text, 2), 2)
    with pytest.raises(RuntimeError, match="the code needs no_such_function, which neither"):
        jit.Library(data, ("f",))
    jit.Library(data, ("f",), imports={"no_such_function": 1})


def test_threads_compile_side_by_side() -> None:
    text = Compiled(ADD).executable.artifacts["llvm_unoptimized"]
    expected, made = jit.emit_object(jit.optimize(text, 2), 2), []
    begun = threading.Barrier(8)

    def work() -> None:
        begun.wait()
        made.extend(jit.emit_object(jit.optimize(text, 2), 2) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [expected] * 80


def test_compiling_does_not_leak() -> None:
    def resident_kb() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4

    text = Compiled(ADD).executable.artifacts["llvm_unoptimized"]
    for _ in range(50):
        jit.optimize(text, 2)
    before = resident_kb()
    for _ in range(200):
        jit.optimize(text, 2)
    assert resident_kb() - before < 4000  # llvmlite alone would leak 11,000


def test_calls_from_several_threads() -> None:
    source = """
    func.func @f(%a: i32, %b: i32) -> i32 { %c = arith.divsi %a, %b : i32\n func.return %c : i32 }"""
    compiled = Compiled(source)
    failures: list[str] = []

    def work(seed: int) -> None:
        for k in range(300):
            try:
                got = compiled(seed * 1000 + k, k % 7)
                if k % 7 == 0 or got != (seed * 1000 + k) // (k % 7):
                    failures.append(f"{seed} {k}: {got}")
            except ZeroDivisionError:
                if k % 7:
                    failures.append(f"{seed} {k} raised")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


CROWDED = """
import ctypes, sys
from kiln.targets.host import jit

data = jit.emit_object(jit.optimize('''
@many = internal global [8388608 x i64] zeroinitializer
define i64 @f(i64 %i) {
  %p = getelementptr [8388608 x i64], ptr @many, i64 0, i64 %i
  %v = load i64, ptr %p
  %w = add i64 %v, 22
  store i64 %w, ptr %p
  ret i64 %w
}
''', 0), 0)
jit._engines.engine()
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
reserve = lambda size: libc.mmap(None, size, 0, 0x4022, -1, 0)
holes = [reserve(64 << 10) for _ in range(64)]
reserve(64 << 30)
for hole in holes[::2]:
    libc.munmap(hole, 64 << 10)
library = jit.Library(data, ("f",))
print(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.addresses["f"])(3))
"""


def test_code_is_linked_where_large_parts_of_memory_are_taken(child) -> None:
    """With holes that code fits into, and its data does not, above 64 GiB that are reserved: as in a process with CUDA."""
    done = child("-c", CROWDED)
    assert (done.stdout, done.returncode) == ("22\n", 0), done.stderr


@pytest.mark.quick(0)
def test_engines_end_with_the_last_of_their_libraries(monkeypatch) -> None:
    """What LLVM knows about a library goes with its engine; one that is left keeps its own, and finds what others export."""
    data = jit.emit_object(jit.optimize("define i64 @kept(i64 %i) { %j = add i64 %i, 1 ret i64 %j }", 0), 0)
    user = (
        "declare i64 @kept(i64) define i64 @uses(i64 %i) { %j = call i64 @kept(i64 %i) %k = mul i64 %j, 3 ret i64 %k }"
    )
    calls = jit.emit_object(jit.optimize(user, 0), 0)
    made: list[weakref.ref[Any]] = []
    new_engine = jit._new_engine

    def counted() -> Any:
        engine = new_engine()
        made.append(weakref.ref(engine))
        return engine

    monkeypatch.setattr(jit, "_new_engine", counted)
    monkeypatch.setattr(jit, "_engines", jit._Engines())
    kept = jit.Library(data, ("kept",))
    for _ in range(4 * jit._Engines.MOST):
        jit.Library(data, ("kept",))
    last = jit.Library(calls, ("uses",), (kept,))
    gc.collect()
    assert [engine() is not None for engine in made] == [True, False, False, False, True]
    del kept
    gc.collect()
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(last.addresses["uses"])(4) == 15
