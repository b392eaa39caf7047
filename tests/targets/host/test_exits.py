"""Functions that end where they call `END`."""

from __future__ import annotations

import pytest
from ir_testing import after, check

from kiln.mlir import ir
from kiln.targets.host.exits import END, return_at_ends


def ended(result: str, value: str) -> str:
    source = f"""
    llvm.func @{END}()
    llvm.func @work()
    llvm.func @f(%failed: i1{f", %r: {result}" if result else ""}){f" -> {result}" if result else ""} {{
      llvm.cond_br %failed, ^end, ^rest
    ^end:
      llvm.call @{END}() : () -> ()
      llvm.br ^rest
    ^rest:
      llvm.call @work() : () -> ()
      llvm.return {value}
    }}"""

    def run(module: ir.Module) -> None:
        return_at_ends(
            next(op.operation for op in module.body.operations if op.operation.attributes["sym_name"].value == "f")
        )

    return after(source, run)


@pytest.mark.parametrize(
    ("result", "value", "returned"),
    [("", "", "llvm.return"), ("f32", "%r : f32", "%zero = llvm.mlir.zero : f32\nllvm.return %zero")],
)
def test_the_block_returns_instead_of_going_on(result: str, value: str, returned: str) -> None:
    text = ended(result, value)
    check(text, f"llvm.cond_br\n^bb1:\nnot: llvm.br\n{returned}\n^bb2:\nllvm.call @work\nllvm.return")
    assert f"llvm.call @{END}" not in text
