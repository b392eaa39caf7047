"""Where pieces of shared memory lie."""

from __future__ import annotations

from ir_testing import after, check

from kiln.hardware.architectures import Arch
from kiln.mlir import ir
from kiln.targets.nvidia.expand import Expansion, expand_module
from kiln.targets.nvidia.lower import HANDLERS


def piece(name: str, bytes_: int, alignment: int = 16) -> str:
    pointer = f'!cute.ptr<i8, "smem", {alignment} : i64>'
    return f"""
    {name} = "cute.alloc_smem"() {{bytes = {bytes_} : i64, alignment = {alignment} : i64}} : () -> {pointer}
    "cute.store"(%v, {name}, %zero) : (i8, {pointer}, i32) -> ()
    """


def placed(body: str, merged: bool = False) -> tuple[str, int]:
    """The expanded kernel, and its bytes of shared memory."""
    source = f"func.func @k(%c: i1, %v: i8) attributes {{cute.kernel}} {{ %zero = arith.constant 0 : i32 {body} func.return }}"
    made: list[Expansion] = []

    def expand(module: ir.Module) -> None:
        made.append(Expansion(module, HANDLERS, Arch["sm_80"], merged=frozenset({"k"}) if merged else frozenset()))
        expand_module(made[0])

    return after(source, expand), made[0].kernels["k"].smem_bytes


def test_each_piece_is_a_variable() -> None:
    text, size = placed(piece("%a", 100) + piece("%b", 40, 64))
    check(
        text,
        """
        llvm.mlir.global internal @k_smem_1() {addr_space = 3 : i32, alignment = 64 : i64} : !llvm.array<40 x i8>
        llvm.mlir.global internal @k_smem_0() {addr_space = 3 : i32, alignment = 16 : i64} : !llvm.array<100 x i8>
        %a = llvm.mlir.addressof @k_smem_0
        %b = llvm.mlir.addressof @k_smem_1
        """,
    )
    assert size == 168  # with 28 bytes between them, if they lay side by side


def test_branches_that_exclude_each_other_share_memory_if_that_is_asked_for() -> None:
    branches = f"scf.if %c {{ {piece('%a', 4096)} }} else {{ {piece('%b', 1024)} }} {piece('%d', 16)}"
    text, size = placed(branches, merged=True)
    assert size == 4096 + 16
    check(
        text,
        """
        @k_smem() {addr_space = 3 : i32, alignment = 16 : i64} : !llvm.array<4112 x i8>
        scf.if
        llvm.mlir.addressof @k_smem
        else
        llvm.mlir.addressof @k_smem
        %all = llvm.mlir.addressof @k_smem
        llvm.getelementptr %all[4096]
        """,
    )
    assert placed(branches)[1] == 4096 + 1024 + 16


def test_past_the_limit_of_variables_all_of_it_is_dynamic() -> None:
    dynamic = '%d = "cute.dynamic_smem"() : () -> !cute.ptr<i8, "smem", 16 : i64>'
    text, size = placed(piece("%a", 40 << 10) + piece("%b", 9 << 10) + dynamic)
    assert size == 49 << 10
    check(
        text,
        """
        llvm.mlir.global external @kiln_dynamic_smem() {addr_space = 3 : i32, alignment = 1024 : i64} : !llvm.array<0 x i8>
        not: k_smem
        %a = llvm.mlir.addressof @kiln_dynamic_smem
        llvm.getelementptr %a[0]
        %b = llvm.mlir.addressof @kiln_dynamic_smem
        llvm.getelementptr %b[40960]
        %d = llvm.mlir.addressof @kiln_dynamic_smem
        llvm.getelementptr %d[50176]
        """,
    )
