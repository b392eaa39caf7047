"""How loops are to be unrolled, as IR."""

from __future__ import annotations

import re

import pytest
from ir_testing import after

from kiln.targets.nvidia.passes.kernel_outlining import LaunchFacts
from kiln.targets.nvidia.passes.loop_unrolling import mark_loops

FULL, NEVER = "<disable = false, full = true>", "<disable = true>"


def marked(loop: str, facts: LaunchFacts | None = None) -> str:
    """What a loop's mark is."""
    text = annotated(loop, facts)
    found = re.search(r"#llvm\.loop_unroll(<[^>]*>)", text)
    return found.group(1) if found else ""


def annotated(loop: str, facts: LaunchFacts | None = None) -> str:
    """The marked module."""
    source = f"""
    func.func @k(%n: i32, %c: i1, %p: !llvm.ptr) {{
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %eight = arith.constant 8 : i32
      %own = llvm.alloca %eight x f32 : (i32) -> !llvm.ptr
      {loop}
      func.return
    }}"""
    return after(source, lambda module: mark_loops(module, [facts] if facts else []))


def counted(bound: str, body: str = "", hints: str = "") -> str:
    return f"scf.for %i = %zero to {bound} step %one : i32 {{ {body} }} {{{hints}}}"


def indexing(memory: str) -> str:
    return f"%q = llvm.getelementptr {memory}[%i] : (!llvm.ptr, i32) -> !llvm.ptr, f32"


@pytest.mark.parametrize(
    ("loop", "mark"),
    [
        (counted("%n"), NEVER),
        (counted("%eight"), ""),  # as LLVM sees fit
        (counted("%eight", indexing("%own")), FULL),  # or its memory could not be registers
        (counted("%eight", indexing("%p")), ""),
        (counted("%n", hints="cute.unroll_full"), FULL),
        (counted("%n", hints="cute.unroll = 4 : i32"), "<disable = false, count = 4 : i32>"),
        (counted("%eight", hints="cute.unroll = 1 : i32"), NEVER),
        ("scf.while : () -> () { scf.condition(%c) } do { scf.yield }", NEVER),
    ],
    ids=["unknown length", "known", "own memory", "others' memory", "full", "four", "one", "while"],
)
def test_marks(loop: str, mark: str) -> None:
    assert marked(loop) == mark


@pytest.mark.parametrize(
    ("hints", "noted"),
    [("cute.prefetch_stages = 3 : i32", ["prefetch_stages=3"]), ("cute.vectorize", ["vectorize=True"]), ("", [])],
)
def test_hints_that_change_nothing_are_noted(hints: str, noted: list[str]) -> None:
    facts = LaunchFacts("k")
    marked(counted("%n", hints=hints), facts)
    assert [hint for _, hint in facts.unheeded] == noted
