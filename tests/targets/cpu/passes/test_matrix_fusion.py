"""Lanes meet once for matrix operations with nothing between them but arithmetic."""

from __future__ import annotations

import pytest
from ir_testing import after, check

from kiln.mlir import ir
from kiln.targets.cpu.lower import HANDLERS, KernelExpansion
from kiln.targets.host.expand import expand_module

MMA = (
    '%{0} = "cute_nvgpu.mma_sync"(%a, %b, %{1}) {{m = 16 : i32, n = 8 : i32, k = 16 : i32, a_type = "f16", b_type = "f16"}} '
    ": (vector<4xi32>, vector<2xi32>, vector<4xf32>) -> vector<4xf32>\n"
)
BARRIER = '"cute_nvgpu.barrier"(%zero, %zero) : (i32, i32) -> ()\n'
ARITHMETIC = "%h = arith.addf %d, %d : vector<4xf32>\n"


def expanded(body: str) -> str:
    source = f"""
    func.func @k(%a: vector<4xi32>, %b: vector<2xi32>, %c: vector<4xf32>, %t: i1, %out: P<f32>) attributes {{cute.kernel}} {{
      %zero = arith.constant 0 : i32
      {body}
      "cute.store"(%e, %out, %zero) : (vector<4xf32>, P<f32>, i32) -> ()
      func.return
    }}"""

    def expand(module: ir.Module) -> None:
        expand_module(KernelExpansion(module, HANDLERS, "the CPU target"))

    return after(source, expand)


def meetings(text: str) -> int:
    return text.count("call @kiln_cpu_meet(")


@pytest.mark.parametrize(
    "body",
    [MMA.format("d", "c") + MMA.format("e", "d"), MMA.format("d", "c") + ARITHMETIC + MMA.format("e", "h")],
    ids=["in a row", "arithmetic between"],
)
def test_one_meeting_for_two_operations(body: str) -> None:
    text = expanded(body)
    assert meetings(text) == 1
    check(
        text,
        """
        func.func @k(
        %area = llvm.alloca %one x !llvm.array<
        call @kiln_cpu_join
        llvm.store %area,
        call @kiln_cpu_meet(
        call @kiln_suspend
        not: kiln_cpu_join
        call @k.run.0(
        return
        func.func private @k.run.0(
        call @kiln.mma.m16n8k16.f16.f16.f32
        call @kiln.mma.m16n8k16.f16.f16.f32
        return
        """,
    )


@pytest.mark.parametrize(
    "body",
    [
        MMA.format("d", "c") + BARRIER + MMA.format("e", "d"),
        MMA.format("d", "c")
        + '"cute.store"(%d, %out, %zero) : (vector<4xf32>, P<f32>, i32) -> ()\n'
        + MMA.format("e", "d"),
        MMA.format("d", "c")
        + f"%e = scf.if %t -> vector<4xf32> {{ {MMA.format('f', 'd')} scf.yield %f : vector<4xf32> }}"
        + " else { scf.yield %d : vector<4xf32> }",
    ],
    ids=["barrier between", "memory that others see", "in a branch"],
)
def test_a_meeting_for_each_where_others_may_run_between(body: str) -> None:
    text = expanded(body)
    assert meetings(text) == 2
    assert "k.run" not in text
