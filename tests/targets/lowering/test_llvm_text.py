"""The text that crosses from one LLVM to the other keeps its numbers, bit for bit."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest

from kiln.mlir import context, dialect_module, ir
from kiln.targets.host import jit
from kiln.targets.lowering.llvm_text import bf16_as_integers, fix_float_literals, literal_bits, mark_asm_convergent

TYPES = {"f16": ("half", 16, 10), "bf16": ("bfloat", 16, 7), "f32": ("float", 32, 23), "f64": ("double", 64, 52)}


def patterns(width: int, fraction: int) -> list[int]:
    random = np.random.default_rng(width + fraction)
    found = [
        int(x) for x in random.integers(0, 1 << 32, 500, dtype=np.uint64) * (1 << (width - 32) if width > 32 else 1)
    ]
    found = [(x + int(y)) % (1 << width) for x, y in zip(found, random.integers(0, 1 << min(width, 62), 500))]
    infinity = ((1 << (width - 1 - fraction)) - 1) << fraction
    sign, quiet = 1 << (width - 1), 1 << (fraction - 1)
    edges = [0, 1, (1 << fraction) - 1, 1 << fraction, infinity - 1, infinity, infinity + 1, infinity | quiet,
             infinity | quiet | 1, infinity | (quiet - 1), infinity | (2 * quiet - 1)]  # fmt: skip
    short = {16: np.float16, 32: np.float32, 64: np.float64}[width]
    if fraction != 7:
        unsigned = f"u{width // 8}"
        edges += [int(np.array(v, short).view(unsigned)) for v in (0.1, 0.2, 1 / 3, 1.0, 1.5, 1e-5, 6e4, 3.14159, 1e-7)]
    return [*found, *edges, *(e | sign for e in edges)]


@pytest.mark.parametrize("type_", TYPES)
def test_every_bit_pattern_survives(type_: str) -> None:
    kind, width, fraction = TYPES[type_]
    wanted = patterns(width, fraction)
    elements = ", ".join(f"0x{x:0{width // 4}X}" for x in wanted)
    source = f"llvm.mlir.global constant @numbers(dense<[{elements}]> : tensor<{len(wanted)}x{type_}>) : !llvm.array<{len(wanted)} x {type_}>"
    singles = "".join(
        f"llvm.func @f{n}() -> {type_} {{ %c = llvm.mlir.constant(0x{x:0{width // 4}X} : {type_}) : {type_}\n llvm.return %c : {type_} }}\n"
        for n, x in enumerate(wanted)
    )
    with context(), ir.Location.unknown():
        module = ir.Module.parse(source + "\n" + singles)
        text = dialect_module("llvm").translate_module_to_llvmir(module.operation)
    fixed = fix_float_literals(text)
    # what the functions return, as constants: so that memory shows the bits, not a register that may quiet a NaN
    returned = [line.split()[-1] for line in fixed.splitlines() if line.strip().startswith(f"ret {kind}")]
    assert len(returned) == len(wanted)
    cells = "\n".join(f"@single{n} = constant {kind} {literal}" for n, literal in enumerate(returned))
    numbers = next(line for line in fixed.splitlines() if line.startswith("@numbers"))
    jit.host()
    builder = llvm.JITLibraryBuilder().add_ir(numbers + "\n" + cells).add_current_process().export_symbol("numbers")
    for n in range(len(wanted)):
        builder.export_symbol(f"single{n}")
    engine = jit._engines.engine()
    tracker = builder.link(engine, f"literals_{type_}")
    size = width // 8
    data = ctypes.string_at(tracker["numbers"], size * len(wanted))
    assert [int.from_bytes(data[size * n : size * (n + 1)], "little") for n in range(len(wanted))] == wanted
    for n, want in enumerate(wanted):
        assert int.from_bytes(ctypes.string_at(tracker[f"single{n}"], size), "little") == want


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("  %3 = fadd float %1, 1.000000e-01", "  %3 = fadd float %1, 0x3FB99999A0000000"),
        ("  %3 = fmul <2 x double> %1, <double 1.000000e-01, double +inf>", "  %3 = fmul <2 x double> %1, <double 0x3FB999999999999A, double 0x7FF0000000000000>"),
        ("  %3 = fmul <2 x half> %1, splat (half 1.000000e+00)", "  %3 = fmul <2 x half> %1, splat (half 0xH3C00)"),
        ("  %p = phi bfloat [ -qnan, %a ], [ 1.000000e+00, %b ]", "  %p = phi bfloat [ 0xRFFC0, %a ], [ 0xR3F80, %b ]"),
        ("  %s = select i1 %c, float f0x45EE6D24, float %x", "  %s = select i1 %c, float 0x40BDCDA480000000, float %x"),
        ("  store float -0.000000e+00, ptr %p, align 4", "  store float 0x8000000000000000, ptr %p, align 4"),
        ('@s = constant [9 x i8] c"float 1.5"', '@s = constant [9 x i8] c"float 1.5"'),
        ("  %float.1 = add i32 %x, 1 ; float 1.000000e-01", "  %float.1 = add i32 %x, 1 ; float 1.000000e-01"),
        ("  %t = fptrunc double 1.000000e-01 to float", "  %t = fptrunc double 0x3FB999999999999A to float"),
        ("  call void @f(float %x, double +nan(0x1)), !dbg !4", "  call void @f(float %x, double 0x7FF8000000000001), !dbg !4"),
        ("  %n = call nnan ninf float @llvm.sqrt.f32(float +snan(0x1))", "  %n = call nnan ninf float @llvm.sqrt.f32(float 0x7FF0000020000000)"),
    ],
)  # fmt: skip
def test_literals_take_the_type_before_them(line: str, want: str) -> None:
    assert fix_float_literals(line) == want


def test_decimals_are_rounded_once() -> None:
    # just above the middle of 1 and the next float: through a double it would round down
    assert literal_bits("float", "1.000000059604644775390625000001") == 0x3F800001
    assert literal_bits("float", "1.000000059604644775390625") == 0x3F800000
    assert literal_bits("half", "6.5520e+04") == 0x7C00
    assert literal_bits("half", "2.98e-08") == 0x0000
    assert literal_bits("half", "2.99e-08") == 0x0001


def test_inline_assembly_becomes_convergent() -> None:
    text = '\n'.join([
        'define void @f() {',
        '  call void asm sideeffect "bar.sync 0;", ""()',
        '  %1 = call i32 asm "mov $0, $1;", "=r,r"(i32 7), !dbg !7',
        '  call void @asm(i32 1)',
        '}',
    ])  # fmt: skip
    lines = mark_asm_convergent(text).splitlines()
    assert lines[1] == '  call void asm sideeffect "bar.sync 0;", ""() #900'
    assert lines[2] == '  %1 = call i32 asm "mov $0, $1;", "=r,r"(i32 7) #900, !dbg !7'
    assert lines[3] == "  call void @asm(i32 1)"
    assert lines[-1] == "attributes #900 = { convergent nounwind }"
    assert mark_asm_convergent("define void @f() {\n}") == "define void @f() {\n}"


def test_bf16_values_become_integers() -> None:
    text = """@bfloat = constant [2 x bfloat] [bfloat 0xR3F80, bfloat 0xRFF80]
@name = constant [8 x i8] c"bfloat\\00\\00"
declare <2 x bfloat> @llvm.masked.load.v2bf16.p0(ptr, <2 x i1>, <2 x bfloat>)
define bfloat @f(bfloat %bfloat, <2 x bfloat> %b) {
  %c = select i1 true, bfloat %bfloat, bfloat 0xR8000
  %d = bitcast bfloat %c to i16
  ret bfloat %c
}
"""
    changed = bf16_as_integers(text)
    assert "[2 x i16] [i16 16256, i16 65408]" in changed
    assert 'c"bfloat\\00\\00"' in changed
    assert "<2 x i16> @llvm.masked.load.v2i16.p0" in changed
    assert "select i1 true, i16 %bfloat, i16 32768" in changed
    jit.optimize(changed, 1)
    assert bf16_as_integers("define float @f()") == "define float @f()"
