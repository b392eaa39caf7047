"""Passes that all targets have, by name: IR in, IR out."""

from __future__ import annotations

import pytest
from opt_testing import check_words, opt

from kiln.targets.lowering.pass_table import SHARED

ANNOTATED = """
llvm.func @f() {
  llvm.br ^bb1
^bb1:
  llvm.br ^bb1 {llvm.loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}
}"""


@pytest.mark.parametrize("target", ["nvidia", "cpu"])
def test_hints_of_loops_become_those_of_branches(target):
    text = opt(ANNOTATED, "loop-annotations", "--target", target)
    check_words(text, "llvm.br ^bb1\nllvm.br ^bb1 {loop_annotation =")


@pytest.mark.parametrize("target", ["nvidia", "cpu"])
def test_shared_memory_is_placed_with_the_check_of_limits(target):
    pieces = [
        f'%{name} = "cute.alloc_smem"() {{bytes = {size} : i64, alignment = 16 : i64}} : () -> !cute.ptr<i8, "smem", 16 : i64>'
        for name, size in (("a", 24), ("b", 8))
    ]
    text = opt(
        f"func.func @k() attributes {{cute.kernel}} {{ {' '.join(pieces)} return }}",
        "launch-limits",
        "--target",
        target,
    )
    check_words(text, "cute.alloc_smem kiln.offset = 0\ncute.alloc_smem kiln.offset = 32")


def test_both_targets_have_them():
    from kiln.base_dsl.target import get_target

    assert all(set(SHARED) <= set(get_target(target).passes()) for target in ("nvidia", "cpu"))
