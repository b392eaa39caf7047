"""Large functions in parts: the same results, of functions that are small."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack
from kiln.mlir import context, dialect_module, ir, passmanager
from kiln.targets.host import jit, lower, splitting
from kiln.targets.lowering.builder import operations, symbol

_PASSES = "builtin.module(convert-scf-to-cf,convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"

CHAIN = "\n".join(
    f"%v{i} = arith.muli %v{i - 1}, %seven : i32\n %w{i} = arith.xori %v{i}, %n : i32\n %u{i} = arith.addi %w{i}, %u{i - 1} : i32"
    for i in range(1, 40)
)
BODIES = {
    "straight": (f"%v0 = arith.addi %n, %one : i32\n %u0 = arith.addi %n, %seven : i32\n {CHAIN}", "%u39"),
    "loop in parts": (
        f"""%r = scf.for %i = %zero to %n step %one iter_args(%c = %seven) -> (i32) : i32 {{
          %v0 = arith.addi %c, %i : i32
          %u0 = arith.muli %c, %n : i32
          {CHAIN}
          scf.yield %u39 : i32
        }}""",
        "%r",
    ),
    "branches": (
        "%v0 = arith.addi %n, %seven : i32\n"
        + "\n".join(
            f"""%c{i} = arith.cmpi slt, %v{i - 1}, %n : i32
            %v{i} = scf.if %c{i} -> (i32) {{
              %a{i} = arith.addi %v{i - 1}, %seven : i32
              llvm.store %a{i}, %own : i32, !llvm.ptr
              scf.yield %a{i} : i32
            }} else {{
              %b{i} = llvm.load %own : !llvm.ptr -> i32
              %d{i} = arith.subi %b{i}, %one : i32
              scf.yield %d{i} : i32
            }}"""
            for i in range(1, 30)
        ),
        "%v29",
    ),
    "a loop between": (
        f"""%v0 = arith.addi %n, %one : i32
        %u0 = arith.addi %n, %seven : i32
        {CHAIN}
        %top = arith.constant 54321 : i32
        %step = arith.constant 12345 : i32
        %w = scf.while (%k = %u39) : (i32) -> i32 {{
          %small = arith.cmpi slt, %k, %top : i32
          scf.condition(%small) %k : i32
        }} do {{
        ^bb0(%k: i32):
          %next = arith.addi %k, %step : i32
          scf.yield %next : i32
        }}
        {CHAIN.replace("%v", "%x").replace("%w", "%y").replace("%u", "%z").replace("%x0", "%w").replace("%z0", "%w")}""",
        "%z39",
    ),
    "nested loops": (
        """%r = scf.for %i = %zero to %n step %one iter_args(%c = %seven) -> (i32) : i32 {
          %inner = scf.for %j = %zero to %i step %one iter_args(%d = %c) -> (i32) : i32 {
            %x = arith.muli %d, %seven : i32
            %y = arith.addi %x, %j : i32
            scf.yield %y : i32
          }
          %z = arith.xori %inner, %c : i32
          %w = scf.while (%k = %z) : (i32) -> i32 {
            %big = arith.cmpi sgt, %k, %n : i32
            scf.condition(%big) %k : i32
          } do {
          ^bb0(%k: i32):
            %half = arith.shrsi %k, %one : i32
            scf.yield %half : i32
          }
          scf.yield %w : i32
        }""",
        "%r",
    ),
}


def lowered(kind: str, most: int | None) -> tuple[ir.Module, int]:
    """A function as LLVM's dialect has it, in parts of so many operations; and how many they are."""
    body, result = BODIES[kind]
    source = f"""
    func.func @k(%n: i32) -> i32 {{
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %seven = arith.constant 7 : i32
      %own = llvm.alloca %one x i32 : (i32) -> !llvm.ptr
      llvm.store %seven, %own : i32, !llvm.ptr
      {body}
      func.return {result} : i32
    }}"""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(source)
        passmanager.PassManager.parse(_PASSES).run(module.operation)
        (func,) = operations(module)
        parts = 1 if most is None else splitting.split(func, most)
        module.operation.verify()
    return module, parts


def results(module: ir.Module) -> list[int]:
    with context():
        text = dialect_module("llvm").translate_module_to_llvmir(module.operation)
    library = jit.Library(jit.emit_object(jit.optimize(text, 2), 2), ("k",))
    native = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(library.addresses["k"])
    return [native(n) for n in (0, 1, 2, 5, 9)]


@pytest.mark.quick(4)
@pytest.mark.parametrize("most", [2, 3, 8, 20])
@pytest.mark.parametrize("kind", BODIES)
def test_parts_compute_what_the_whole_does(kind: str, most: int) -> None:
    module, parts = lowered(kind, most)
    assert parts > 1
    assert results(module) == results(lowered(kind, None)[0])


@pytest.mark.parametrize("kind", ["straight", "branches"])
def test_functions_are_of_the_size_asked_for(kind: str) -> None:
    before, _ = lowered(kind, None)
    whole = splitting.size_of(operations(before)[0])
    module, parts = lowered(kind, 40)
    sizes = {symbol(func): splitting.size_of(func) for func in operations(module)}
    assert whole > 100
    assert parts == len(sizes) - 1 <= whole // 10 + 1
    assert max(sizes.values()) <= 80  # with what passes values on


def test_small_functions_stay_as_they_are() -> None:
    module, parts = lowered("straight", 1000)
    assert parts == 1
    assert len(operations(module)) == 1


@pytest.mark.quick(0)
def test_a_loop_that_fits_into_a_part_is_in_one() -> None:
    for most in range(20, 80):  # one of them ends in the loop
        module, parts = lowered("a loop between", most)
        assert parts > 2
        held = [str(func) for func in operations(module)]
        (whole,) = [text for text in held if "12345" in text or "54321" in text]
        assert "12345" in whole and "54321" in whole, most


def test_memory_of_a_size_that_is_not_known_keeps_a_function_whole() -> None:
    source = """
    llvm.func @k(%n: i32) -> i32 {
      %own = llvm.alloca %n x i32 : (i32) -> !llvm.ptr
      llvm.store %n, %own : i32, !llvm.ptr
      llvm.return %n : i32
    }"""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(source)
        assert splitting.split(operations(module)[0], 1) == 1


# --- kernels ---------------------------------------------------------------------------------------------------------

THREADS = 32


@cute.kernel
def straight(x: cute.Tensor, y: cute.Tensor, steps: kiln.Constexpr[int]):
    i, _, _ = cute.arch.thread_idx()
    v, w = x[i], y[i]
    for _ in kiln.range_constexpr(steps):
        v = (v * 0.75 + w) * 0.5 - w * 0.25
        w = w + v
    y[i] = v + w


@cute.kernel
def branches(x: cute.Tensor, y: cute.Tensor, steps: kiln.Constexpr[int]):
    i, _, _ = cute.arch.thread_idx()
    v = x[i]
    for step in kiln.range_constexpr(steps):
        if v < step % 7 * 0.25:
            v = v * 0.5 + 1.0
        else:
            v = v - 0.75
    y[i] = v


@cute.kernel
def barriers(x: cute.Tensor, y: cute.Tensor, steps: kiln.Constexpr[int]):
    i, _, _ = cute.arch.thread_idx()
    shared = cute.make_tensor(cute.arch.alloc_smem(kiln.Float32, THREADS), cute.make_layout(THREADS))
    v = x[i]
    for step in kiln.range_constexpr(steps):
        shared[i] = v
        cute.arch.barrier()
        v = v * 0.5 + shared[(i + step) % THREADS]
        cute.arch.barrier()
    y[i] = v


def expected(name: str, x: np.ndarray, steps: int) -> np.ndarray:
    f, v, w = np.float32, x, np.ones_like(x)
    for step in range(steps):
        if name == "straight":
            v = (v * f(0.75) + w) * f(0.5) - w * f(0.25)
            w = w + v
        elif name == "branches":
            v = np.where(v < f(step % 7 * 0.25), v * f(0.5) + f(1), v - f(0.75))
        else:
            v = v * f(0.5) + np.roll(v, -(step % THREADS))
    return v + w if name == "straight" else v


def compiled_with(kernel, steps: int):
    """A function that launches a kernel, whose results are right."""

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y, steps).launch(grid=1, block=THREADS)

    x, y = np.linspace(-1, 1, THREADS, dtype=np.float32), np.ones(THREADS, np.float32)
    with kiln.target("cpu"):
        compiled = cute.compile(launch, from_dlpack(x), from_dlpack(y))
        compiled(from_dlpack(x), from_dlpack(y))
    assert np.array_equal(y, expected(kernel.__name__, x, steps))
    return compiled


def lines_of_functions(compiled) -> dict[str, int]:
    """How long the functions are that LLVM got."""
    text = compiled.executable.artifacts["llvm_unoptimized"]
    found = re.findall(r"^define [^@]*@([\w.]+)\((.*?)^}", text, re.M | re.S)
    assert len({name for name, _ in found}) == len(found)
    return {name: body.count("\n") for name, body in found}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("kernel", "steps"), [(straight, 60), (branches, 80), (barriers, 20)])
def test_large_kernels_are_functions_of_a_bounded_size(monkeypatch, kernel, steps: int) -> None:
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    monkeypatch.setattr(splitting, "LARGE", 200)
    monkeypatch.setattr(splitting, "_MOST_STRUCTURED", 8)
    once, twice = (lines_of_functions(compiled_with(kernel, count)) for count in (steps, 2 * steps))
    parts = [[name for name in found if ".part" in name] for found in (once, twice)]
    assert 2 <= len(parts[0]) < len(parts[1]) <= 3 * len(parts[0])
    assert max(twice.values()) <= 700


def test_a_kernel_of_many_operations_is_not_part_of_the_loop_over_threads(monkeypatch) -> None:
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    monkeypatch.setattr(lower, "_MOST_INLINED", 100)
    attributes = []
    for steps in (10, 40):
        text = compiled_with(straight, steps).executable.artifacts["llvm_unoptimized"]
        attributes += re.findall(r"@straight\([^\n]*(#\d+) {.*^attributes \1 = { (\w+)", text, re.M | re.S)
    assert [words for _, words in attributes] == ["alwaysinline", "noinline"]


def test_many_branches_of_a_block_are_grouped() -> None:
    count = 2 * splitting._MOST_STRUCTURED + 5
    steps = "\n".join(
        f"%c{i} = arith.cmpi slt, %v{i - 1}, %n : i32\n"
        f"%v{i} = scf.if %c{i} -> (i32) {{ scf.yield %n : i32 }} else {{ scf.yield %v{i - 1} : i32 }}"
        for i in range(1, count + 1)
    )
    source = f"func.func @k(%n: i32, %v0: i32) -> i32 {{\n{steps}\n func.return %v{count} : i32\n}}"
    with context(), ir.Location.unknown():
        module = ir.Module.parse(source)
        splitting.group_structured(module)
        module.operation.verify()
        (func,) = operations(module)
    names = [op.operation.name for op in func.regions[0].blocks[0].operations]
    assert names.count("scf.execute_region") == 2
    assert names.count("scf.if") == 5
