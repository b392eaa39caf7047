"""Every pass of the CPU target by its name: IR in, IR out."""

from __future__ import annotations

import pytest
from opt_testing import check_words, opt

from kiln.base_dsl.target import get_target

_SMEM = '!cute.ptr<i8, "smem", 16 : i64>'
_MMA = """"cute_nvgpu.mma_sync"(%a, %b, %c) {m = 16 : i32, n = 8 : i32, k = 16 : i32, a_type = "f16", b_type = "f16"}
  : (vector<4xi32>, vector<2xi32>, vector<4xf32>) -> vector<4xf32>"""
_HIDDEN = ", ".join(
    ["%ctx: !llvm.ptr, %smem: !llvm.ptr, %dynamic: !llvm.ptr", *(f"%i{n}: i32" for n in range(12)), "%frame: !llvm.ptr"]
)
CASES = {
    "launch-limits": (
        f'func.func @k() attributes {{cute.kernel}} {{ %a = "cute.alloc_smem"() {{bytes = 8 : i64, alignment = 16 : i64}} : () -> {_SMEM} return }}',
        "cute.alloc_smem kiln.offset = 0",
    ),
    "external-calls": (
        """
        llvm.func @sine(f32) -> f32 attributes {cute.symbol = "__nv_sinf", cute.library = "libdevice", cute.digest = ""}
        llvm.func @f(%a: f32) -> f32 { %s = llvm.call @sine(%a) : (f32) -> f32 llvm.return %s : f32 }""",
        "not: llvm.func @sine\nllvm.func @f(%a:\n%s = math.sin %a\nnot: llvm.call\nllvm.return %s",
    ),
    "window-addresses": (
        "func.func @f(%p: !llvm.ptr<3>) -> i32 { %a = llvm.ptrtoint %p : !llvm.ptr<3> to i32 return %a : i32 }",
        "unrealized_conversion_cast %p\n%a = cute.ptr_to_int\narith.trunci %a : i64 to i32\nnot: llvm.ptrtoint\nreturn",
    ),
    "narrow-floats": (
        "func.func @f(%a: f32) -> f8E4M3FN { %p = arith.truncf %a : f32 to f8E4M3FN return %p : f8E4M3FN }",
        "arith.bitcast i32\nnot: arith.truncf\nreturn",
    ),
    "vector-legalisation": (
        "func.func @f(%a: vector<320xf32>) -> vector<320xf32> { %s = arith.addf %a, %a : vector<320xf32> return %s : vector<320xf32> }",
        "%x = vector.extract_strided_slice\n%s = arith.addf %y, %y : vector<4xf32>\nnot: : vector<320xf32> {\nreturn",
    ),
    "expansion": (
        'func.func @f(%p: P<f32>, %i: i32) -> f32 { %v = "cute.load"(%p, %i) : (P<f32>, i32) -> f32 return %v : f32 }',
        "func.func @f(%p: !llvm.ptr, %i: i32, %context: !llvm.ptr)\n%q = llvm.getelementptr %p[%i]\n%v = llvm.load %q\nreturn %v",
    ),
    "matrix-fusion": (
        f"""
        func.func @k(%a: vector<4xi32>, %b: vector<2xi32>, %c: vector<4xf32>, %out: P<f32>) attributes {{cute.kernel}} {{
          %zero = arith.constant 0 : i32
          %d = {_MMA}
          %e = {_MMA.replace("%c", "%d")}
          "cute.store"(%e, %out, %zero) : (vector<4xf32>, P<f32>, i32) -> ()
          return
        }}""",
        "func.func @k(\ncall @kiln_cpu_meet(\nnot: call @kiln_cpu_meet(\ncall @k.run.0(\nnot: call @kiln_cpu_meet(\nreturn",
    ),
    "loop-versioning": (
        f"""
        func.func @k(%n: i32, {_HIDDEN}) attributes {{cute.kernel}} {{
          %c = arith.cmpi slt, %i0, %n : i32
          scf.if %c {{ llvm.store %n, %smem : i32, !llvm.ptr }}
          return
        }}""",
        "func.func @k(\nscf.if\nfunc.func private @k.guard(\nfunc.func @k.inside(\n%t = arith.constant true\nscf.if %t",
    ),
    "splitting": (
        "func.func @f(%a: i32) -> i32 { %s = arith.addi %a, %a : i32 return %s : i32 }",
        "func.func @f(%a:\n%s = arith.addi %a, %a\nreturn %s",
    ),
    "llvm-conversion": (
        "func.func @f(%a: i32) -> i32 { %s = arith.addi %a, %a : i32 return %s : i32 }",
        "llvm.func @f(%a: i32)\n%s = llvm.add %a, %a\nllvm.return %s",
    ),
    "coroutines": (
        """
        llvm.func @kiln_suspend()
        llvm.func @k(%n: i32, %out: !llvm.ptr, %frame: !llvm.ptr) -> i32 {
          llvm.call @kiln_suspend() : () -> ()
          llvm.store %n, %out : i32, !llvm.ptr
          %done = llvm.mlir.constant(0 : i32) : i32
          llvm.return %done : i32
        }""",
        "llvm.func @k(%n:\nllvm.switch\nnot: llvm.call\nllvm.return",
    ),
    "loop-annotations": (
        """
        llvm.func @f() {
          llvm.br ^bb1
        ^bb1:
          llvm.br ^bb1 {llvm.loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}
        }""",
        "llvm.br loop_annotation = #",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_pass_by_its_name(name):
    source, expected = CASES[name]
    check_words(opt(source, name, "--target", "cpu"), expected)


def test_every_pass_has_a_case():
    assert set(CASES) == set(get_target("cpu").passes())
