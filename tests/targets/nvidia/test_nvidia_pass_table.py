"""Every pass of the NVIDIA target by its name: IR in, IR out."""

from __future__ import annotations

import pytest
from opt_testing import check_words, opt

from kiln.base_dsl.target import get_target

_WGMMA = """"cute_nvgpu.wgmma"(%d, %w, %w, %true) {n = 8 : i32, k = 16 : i32, a_type = "f16", b_type = "f16", a_major = "k",
  b_major = "k"} : (R<f32>, i64, i64, i1) -> ()"""
_SMEM = '!cute.ptr<i8, "smem", 16 : i64>'
CASES = {
    "launch-limits": (
        f'func.func @k() attributes {{cute.kernel}} {{ %a = "cute.alloc_smem"() {{bytes = 8 : i64, alignment = 16 : i64}} : () -> {_SMEM} return }}',
        "cute.alloc_smem kiln.offset = 0",
    ),
    "kernel-outlining": (
        """
        func.func @k() attributes {cute.kernel} { return }
        func.func @f() {
          %one = arith.constant 1 : i64
          %none = builtin.unrealized_conversion_cast to tuple<>
          "cuda.launch_ex"(%one, %one, %one, %one, %one, %one, %one, %one, %one, %one, %one, %none) {kernel = @k}
            : (i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, tuple<>) -> ()
          return
        }""",
        'module\nnot: func.func @k\ncute_nvgpu.driver_launch name = "k"\nmodule\nfunc.func @k() attributes {cute.kernel}',
    ),
    "fma-contraction": (
        "func.func @f(%a: f32, %b: f32) -> f32 { %p = arith.mulf %a, %b : f32 %s = arith.addf %p, %a : f32 return %s : f32 }",
        "%p = arith.mulf fastmath<contract>\n%s = arith.addf %p, fastmath<contract>\nreturn %s",
    ),
    "narrow-floats": (
        "func.func @f(%a: f32) -> f8E4M3FN { %p = arith.truncf %a : f32 to f8E4M3FN return %p : f8E4M3FN }",
        "llvm.inline_asm cvt.rn.satfinite.e4m3x2.f32\nnot: arith.truncf\nreturn",
    ),
    "wgmma-unrolling": (
        """
        func.func @f(%w: i64) {
          %true = arith.constant true
          %zero = arith.constant 0 : i32
          %one = arith.constant 1 : i32
          %two = arith.constant 2 : i32
          %d = "cute.alloc_rmem"() {count = 4 : i64} : () -> R<f32>
          scf.for %i = %zero to %two step %one : i32 {
            WGMMA
          } {cute.unroll_full}
          return
        }""".replace("WGMMA", _WGMMA),
        "not: scf.for\ncute_nvgpu.wgmma\nnot: scf.for\ncute_nvgpu.wgmma\nnot: cute_nvgpu.wgmma\nreturn",
    ),
    "wgmma-registers": (
        """
        func.func @f(%w: i64) {
          %true = arith.constant true
          %d = "cute.alloc_rmem"() {count = 4 : i64} : () -> R<f32>
          "cute_nvgpu.wgmma_fence"() : () -> ()
          WGMMA
          WGMMA
          "cute_nvgpu.wgmma_commit"() : () -> ()
          "cute_nvgpu.wgmma_wait"() {count = 0 : i32} : () -> ()
          return
        }""".replace("WGMMA", _WGMMA),
        '%d = cute.alloc_rmem\nwgmma"(%d, with_next\nwgmma"(%d,\ncute_nvgpu.wgmma_wait\nhold_registers"(%d)',
    ),
    "vector-legalisation": (
        "func.func @f(%a: vector<32xf32>) -> vector<32xf32> { %s = arith.addf %a, %a : vector<32xf32> return %s : vector<32xf32> }",
        "%x = vector.extract_strided_slice\n%s = arith.addf %y, %y : vector<4xf32>\nnot: : vector<32xf32> {\nreturn",
    ),
    "if-conversion": (
        """
        func.func @f(%c: i1, %x: f32) {
          %i = arith.constant 2 : i32
          %m = "cute.alloc_rmem"() {count = 4 : i64} : () -> R<f32>
          scf.if %c { "cute.store"(%x, %m, %i) : (f32, R<f32>, i32) -> () }
          return
        }""",
        '%old = cute.load\n%new = arith.select %c, %x, %old\ncute.store"(%new,\nnot: scf.if\nreturn',
    ),
    "store-forwarding": (
        """
        func.func @f(%x: f32) -> f32 {
          %i = arith.constant 2 : i32
          %m = "cute.alloc_rmem"() {count = 4 : i64} : () -> R<f32>
          "cute.store"(%x, %m, %i) : (f32, R<f32>, i32) -> ()
          %y = "cute.load"(%m, %i) : (R<f32>, i32) -> f32
          return %y : f32
        }""",
        "func.func @f(%x:\nnot: cute.store\nreturn %x",
    ),
    "expansion": (
        'func.func @k(%p: P<f32>) attributes {cute.kernel} { %i = "cute.thread_idx"() {dim = 0 : i32} : () -> i32\n'
        '%v = "cute.load"(%p, %i) : (P<f32>, i32) -> f32 return }',
        "func.func @k(%p: !llvm.ptr<1>)\n%i = nvvm.read.ptx.sreg.tid.x\n%q = llvm.getelementptr %p[%i]\n%v = llvm.load %q",
    ),
    "smem-allocation": (
        f'func.func @k() attributes {{cute.kernel}} {{ %a = "cute.alloc_smem"() {{bytes = 8 : i64, alignment = 16 : i64}} : () -> {_SMEM}\n'
        f'%i = "cute.ptr_to_int"(%a) : ({_SMEM}) -> i64 return }}',
        "llvm.mlir.global internal @k_smem_0() addr_space = 3 : i32, alignment = 16\nllvm.mlir.addressof @k_smem_0",
    ),
    "loop-unrolling": (
        "func.func @f(%n: index) { %z = arith.constant 0 : index %o = arith.constant 1 : index scf.for %i = %z to %n step %o { } return }",
        "unroll = <disable = true>",
    ),
    "llvm-conversion": (
        "func.func @f(%a: i32) -> i32 { %s = arith.addi %a, %a : i32 return %s : i32 }",
        "llvm.func @f(%a: i32)\n%s = llvm.add %a, %a\nllvm.return %s",
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
    check_words(opt(source, name), expected)


def test_every_pass_has_a_case():
    assert set(CASES) == set(get_target("nvidia").passes())
