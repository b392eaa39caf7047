"""Code for processors that this machine need not be: what it refers to is in the runtime, or in any C library."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from cpu_testing import parse
from kernel_testing import asm, run

import kiln
from kiln import cute, kernels
from kiln.base_dsl.compiler import Compilation
from kiln.cute import arch
from kiln.hardware.architectures import DEFAULT, Arch
from kiln.interop.arguments.cpython import API
from kiln.interop.arguments.planned_calls import calls
from kiln.interop.arguments.recorded_calls import programs
from kiln.targets.cpu import access_counts
from kiln.targets.cpu.lower import lower
from kiln.targets.cpu.runtime.parts import PARTS
from kiln.targets.cpu.sanitizer.detector import detector
from kiln.targets.host import jit
from kiln.targets.host.lower import lower_library
from kiln.targets.host.object_code import undefined_symbols
from kiln.targets.host.runtime import SOFT_FLOAT

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
PROCESSORS = [
    (X86, "x86-64", ""),
    (X86, "x86-64-v3", ""),
    (X86, "x86-64-v4", "+avx512bf16"),
    (ARM, "generic", ""),
    (ARM, "neoverse-v1", ""),  # f16, bf16, SVE
]
if os.environ.get("KILN_LONG_TESTS"):  # between those above, and of both ends of what LLVM knows
    PROCESSORS += [
        (X86, "x86-64-v2", ""),
        (X86, "x86-64-v3", "-f16c"),
        (X86, "x86-64-v4", ""),
        (X86, "sapphirerapids", ""),  # AVX512-FP16
        (X86, "diamondrapids", ""),  # AVX10.2
        (ARM, "neoverse-n1", ""),  # f16, no bf16
        (ARM, "generic", "+bf16"),  # bf16, no f16
    ]

MATH = ("fabs ceil cos cosh exp exp2 floor log log10 log2 rint round roundeven sin sinh sqrt tan tanh trunc acos asin atan "
        "acosh asinh atanh cbrt erf erfc expm1 log1p fma fmin fmax pow atan2 fmod copysign exp10 nearbyint").split()  # fmt: skip
LIBC = {
    *MATH, *(f"{name}f" for name in MATH), "malloc", "calloc", "realloc", "aligned_alloc", "free", "memcpy", "memmove", "memset",
    "open_memstream", "fclose", "fprintf", "fwrite", "fputc", "clock_gettime", "pthread_create", "pthread_join", "sem_init",
    "sem_post", "sem_timedwait", "signal", "qsort", "bcmp", "memcmp", "_setjmp", "longjmp", "pthread_getspecific",
    "pthread_setspecific", "pthread_self", "pthread_sigmask", "sigaltstack", "raise", "write", "strlen",
}  # fmt: skip
"""What any glibc has."""
LIBGCC = {
    "__udivti3", "__umodti3", "__divti3", "__modti3",
    *(f"__fix{sign}{kind}ti" for sign in ("", "uns") for kind in ("sf", "df")),
    *(f"__float{sign}ti{kind}" for sign in ("", "un") for kind in ("sf", "df")),
}  # fmt: skip
"""What any libgcc has: 128-bit integers."""

FLOATS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
INTEGERS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128}
UNARY = ("absf", "ceil", "erf", "exp", "roundeven", "sqrt", "tanh")


def _arithmetic(shape: str) -> str:
    """A module with conversions between all types, arithmetic, functions and moves, on values of a shape."""
    functions: list[str] = []

    def add(inputs: list[str], result: str, *lines: str) -> None:
        arguments = ", ".join(f"%{name}: {_shaped(type_)}" for name, type_ in zip("abc", inputs))
        body = "\n".join(lines)
        functions.append(
            f"func.func @f{len(functions)}({arguments}) -> {_shaped(result)} {{ {body}\n func.return %r : {_shaped(result)} }}"
        )

    def _shaped(type_: str) -> str:
        return f"vector<{shape}x{type_}>" if shape else type_

    for a, b in itertools.permutations(FLOATS, 2):
        if FLOATS[a] != FLOATS[b]:
            op = "truncf" if FLOATS[a] > FLOATS[b] else "extf"
            add([a], b, f"%r = arith.{op} %a : {_shaped(a)} to {_shaped(b)}")
    for a, b in itertools.product(FLOATS, INTEGERS):
        for sign in "us":
            add([a], b, f"%r = arith.fpto{sign}i %a : {_shaped(a)} to {_shaped(b)}")
            add([b], a, f"%r = arith.{sign}itofp %a : {_shaped(b)} to {_shaped(a)}")
    for a in FLOATS:
        for op in ("addf", "subf", "mulf", "divf", "remf", "maxnumf", "minimumf"):
            add([a, a], a, f"%r = arith.{op} %a, %b : {_shaped(a)}")
        for op in UNARY:
            add([a], a, f"%r = math.{op} %a : {_shaped(a)}")
        add([a, a, a], a, f"%r = math.fma %a, %b, %c : {_shaped(a)}")
        add([a, a], a, f"%r = math.powf %a, %b : {_shaped(a)}")
        add([a, a], "i1", f"%r = arith.cmpf olt, %a, %b : {_shaped(a)}")
        add(["i1", a, a], a, f"%r = arith.select %a, %b, %c : {_shaped('i1')}, {_shaped(a)}")
        if shape:
            order = ", ".join(str(k * 7 % (2 * int(shape))) for k in range(int(shape)))
            add([a, a], a, f"%r = vector.shuffle %a, %b [{order}] : {_shaped(a)}, {_shaped(a)}")
            add(
                [a, a],
                a,
                f"%x = vector.extract %a[1] : {a} from {_shaped(a)}",
                f"%r = vector.insert %x, %b [0] : {a} into {_shaped(a)}",
            )
    for a in INTEGERS:
        for op in ("addi", "muli", "divui", "remui", "shli", "shrsi", "minsi", "divsi", "remsi"):
            add([a, a], a, f"%r = arith.{op} %a, %b : {_shaped(a)}")
    functions.append("func.func @f() { func.return }")
    # visible, or LLVM would drop what nothing calls
    return lower(Compilation(parse("\n".join(functions)), "f"), Arch[DEFAULT])[0].replace("define internal", "define")


@cute.kernel
def _moves(x: cute.Tensor, y: cute.Tensor, n: cute.Int32):
    """Values of 16 bits: copied, reduced after waiting, rounded, stored in vectors."""
    t, _, _ = arch.thread_idx()
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), x.element_type, num_bits_per_copy=128)
    threads, values = cute.make_layout((1, 32), stride=(32, 1)), cute.make_layout((1, 8), stride=(8, 1))
    mine = cute.make_tiled_copy_tv(atom, threads, values).get_slice(t)
    source, target = mine.partition_S(x), mine.partition_D(y)
    held, out = cute.make_rmem_tensor_like(source), cute.make_rmem_tensor_like(target)
    cute.copy(atom, source, held)
    wide = held.load().to(cute.Float32)
    total = arch.warp_reduction_sum(wide.reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0))
    out.store((wide * total).to(x.element_type))
    if t < n:
        cute.copy(atom, out, target)


@cute.jit
def _run_moves(x: cute.Tensor, y: cute.Tensor, n: cute.Int32):
    rows = [cute.make_tensor(tensor.iterator.align(16), cute.make_layout((1, 2048))) for tensor in (x, y)]
    _moves(*rows, n).launch(grid=(1, 1, 1), block=(32, 1, 1))


def _recorded(function: Callable[[], None]) -> list[str]:
    """The LLVM IR of what is compiled in a call."""
    texts: list[str] = []
    optimize = jit.optimize
    for part in PARTS:
        jit.part_library(part)

    def record(text: str, opt: int, *processor: jit.Processor) -> llvm.ModuleRef:
        if not processor:  # else it is Kiln's own, compiled because this is the first program to need it
            texts.append(text)
        return optimize(text, opt, *processor)

    with pytest.MonkeyPatch.context() as patch, kiln.target("cpu"):
        patch.setattr(jit, "optimize", record)
        patch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
        function()
    return texts


def _of_part(part: jit.Part) -> str:
    code = getattr(part.code, "library", part.code)  # of code that is known by name
    return lower_library(code.build(), part.name, part.exports)


@functools.lru_cache(maxsize=1)
def computing() -> dict[str, str]:
    """LLVM IR of modules that compute, by name."""
    texts = {f"arithmetic {shape}": _arithmetic(shape) for shape in ("", "8")}
    texts["soft_float"] = _of_part(SOFT_FLOAT)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.ones((1, 2048), dtype)
        recorded = _recorded(lambda x=x: cute.compile(_run_moves, x, x.copy(), 32))
        recorded += _recorded(lambda x=x: kernels.rms_norm(x, x[0].copy()))
        texts.update({f"{x.dtype} {number}": text for number, text in enumerate(recorded)})
    x = np.ones((16, 64), np.float16)
    texts.update({f"gemm {number}": text for number, text in enumerate(_recorded(lambda: kernels.gemm(x, x.T.copy())))})
    return texts


@functools.lru_cache(maxsize=1)
def managing() -> dict[str, str]:
    """LLVM IR of the parts of Kiln that are native code."""
    return {
        **{part.name: _of_part(part) for part in PARTS},
        "sanitizer": lower_library(detector.build(), "sanitizer", detector.exports),
        "accesses": lower_library(access_counts.counter.build(), "accesses", access_counts.counter.exports),
        **{part.name: lower_library(part.build(), part.name, part.exports) for part in (calls, programs)},
    }


def _check(texts: dict[str, str], processor: tuple[str, str, str]) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    known = {*LIBC, *LIBGCC, *API, *calls.exports}
    used = jit.supported(*processor)
    for name, text in texts.items():
        needed = undefined_symbols(jit.emit_object(jit.optimize(text, 1, used), 1, used))
        assert jit.needed_parts(PARTS, needed)[1] - known == set(), name
        # bf16 is moved as bits and computed in f32: a call for each element would be slow and change some NaNs
        assert not any("bf" in symbol for symbol in needed), name


@pytest.mark.quick(1)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda p: f"{p[0].partition('-')[0]} {p[1]}{p[2]}")
def test_code_that_computes_needs_no_symbol_that_is_nowhere(processor: tuple[str, str, str]) -> None:
    _check(computing(), processor)


@pytest.mark.quick(0)
@pytest.mark.parametrize("processor", [(X86, "x86-64", ""), (ARM, "generic", "")], ids=lambda p: p[0].partition("-")[0])
def test_code_of_the_runtime_needs_no_symbol_that_is_nowhere(processor: tuple[str, str, str]) -> None:
    _check(managing(), processor)


def test_this_machine_has_what_any_machine_has() -> None:
    assert [name for name in sorted(LIBC | LIBGCC) if not jit.has_symbol(name)] == []


ROUNDED = {
    "add.rp.f32 $0, 0f3F800000, 0f00800000;": r"addss|fadd",
    "sub.rm.f32 $0, 0f3F800000, 0f00800000;": r"subss|fsub",
    "mul.rz.f32 $0, 0f3F800001, 0f3F800001;": r"mulss|fmul",
    "div.rp.f32 $0, 0f3F800000, 0f40400000;": r"divss|fdiv",
    "fma.rm.f32 $0, 0f3F800001, 0f3F800001, 0f00800000;": r"call\S*\s+fmaf\b|vfmadd\w+|fmadd",
    "sqrt.rp.f32 $0, 0f40000000;": r"sqrtss|fsqrt",
    "{ .reg .f64 d; mov.f64 d, 0d3FF0000000000001; cvt.rp.f32.f64 $0, d; }": r"cvtsd2ss|fcvt",
    "{ .reg .s32 i; mov.s32 i, 0x7FFFFFFF; cvt.rz.f32.s32 $0, i; }": r"cvtsi2ss|scvtf",
    "{ .reg .u64 i; mov.u64 i, 0xFFFFFFFFFFFFFFFF; cvt.rz.f32.u64 $0, i; }": r"cvtu?si2ss|ucvtf",
}
"""Operations on constants, and the instructions that do them."""


@functools.lru_cache(maxsize=1)
def _rounded() -> str:
    """LLVM IR with all of `ROUNDED`."""

    @cute.kernel
    def kernel(y: cute.Tensor):
        for n, text in enumerate(ROUNDED):
            y[n] = cute.Float32._make(asm(cute.Float32.mlir_type, [y[n]], text, "=f,f"))

    y = np.zeros(len(ROUNDED), np.float32)
    (text,) = (text for text in _recorded(lambda: run(kernel, y, block=1)) if "llvm.set.rounding" in text)
    return text


@pytest.mark.parametrize("opt", [0, 3])
@pytest.mark.parametrize(
    "processor", [(X86, "x86-64", ""), (X86, "x86-64-v4", ""), (ARM, "generic", "")], ids=lambda p: p[1]
)
def test_operations_stay_where_the_rounding_mode_is_set(processor: tuple[str, str, str], opt: int) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    assembly = jit.target_machine(opt, processor).emit_assembly(jit.optimize(_rounded(), opt, processor))
    functions = re.findall(r"^kiln_cpu_rounded_\w+:$(.*?)^\.Lfunc_end", assembly, re.DOTALL | re.MULTILINE)
    assert len(functions) == len(ROUNDED)
    for body, instruction in zip(functions, ROUNDED.values(), strict=True):
        _before, *inside, _after = re.split(r"\bv?ldmxcsr\b|\bmsr\s+FPCR\b", body)
        (within,) = inside  # the mode is set twice: as it is to be, and as it was
        assert re.search(rf"\b(?:v?(?:{instruction}))\b", within), body


@functools.lru_cache(maxsize=1)
def _fast_math() -> str:
    """A module with what becomes a reciprocal or a square root, under all flags of fast math."""
    functions: list[str] = ["func.func @f() { func.return }"]
    for type_, one in (("f32", "1.0"), ("vector<8xf32>", "dense<1.0>")):
        for op in (f"arith.divf %one, %a fastmath<fast> : {type_}", f"arith.divf %a, %b fastmath<fast> : {type_}",
                   f"math.sqrt %a fastmath<fast> : {type_}", f"math.rsqrt %a fastmath<nnan,ninf,nsz,arcp,afn> : {type_}"):  # fmt: skip
            functions.append(
                f"func.func @f{len(functions)}(%a: {type_}, %b: {type_}) -> {type_} {{ %one = arith.constant {one} : {type_}\n"
                f"%r = {op}\n func.return %r : {type_} }}"
            )
    return lower(Compilation(parse("\n".join(functions)), "f"), Arch[DEFAULT])[0].replace("define internal", "define")


@pytest.mark.quick(2)
@pytest.mark.parametrize("processor", [*PROCESSORS, (ARM, "exynos-m3", "")], ids=lambda p: f"{p[0][:5]} {p[1]}{p[2]}")
def test_fast_math_uses_no_estimate_of_the_processor(processor: tuple[str, str, str]) -> None:
    """The step that corrects one makes NaN of infinity."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    used = jit.supported(*processor)
    text = jit.target_machine(2, used).emit_assembly(jit.optimize(_fast_math(), 2, used))
    assert re.search(r"\bv?f?div", text)
    assert not re.findall(r"\bv?(?:rcp|rsqrt|frecp|frsqrt|urecp)\w*", text)
