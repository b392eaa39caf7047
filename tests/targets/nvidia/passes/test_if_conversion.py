"""Branches that set an element of a thread's memory become choices; others stay."""

from __future__ import annotations

import pytest
from ir_testing import after, check

from kiln.targets.nvidia.passes.if_conversion import convert_branches


def kernel(branch: str) -> str:
    return f"""
    func.func @k(%c: i1, %v: f32, %u: vector<2xf32>, %n: i32, %g: P<f32>) {{
      %own = "cute.alloc_rmem"() {{count = 4 : i64}} : () -> R<f32>
      %two = arith.constant 2 : i32
      %four = arith.constant 4 : i32
      {branch}
      func.return
    }}"""


def store(
    value: str = "%v", type_: str = "f32", memory: str = "%own", kind: str = "R<f32>", place: str = "%two"
) -> str:
    return f'"cute.store"({value}, {memory}, {place}) : ({type_}, {kind}, i32) -> ()'


def test_an_element_that_a_branch_sets_is_chosen() -> None:
    text = after(kernel(f"scf.if %c {{ {store()} }}"), convert_branches)
    check(
        text,
        """
        func.func @k(%c: i1, %v: f32
        %own = "cute.alloc_rmem"
        %two = arith.constant 2
        not: scf.if
        %old = "cute.load"(%own, %two)
        %chosen = arith.select %c, %v, %old : f32
        "cute.store"(%chosen, %own, %two)
        return
        """,
    )


def test_each_branch_of_a_mask() -> None:
    branches = "\n".join(f"scf.if %c {{ {store()} }}" for _ in range(3))
    text = after(kernel(branches), convert_branches)
    assert text.count("arith.select") == 3
    assert "scf.if" not in text


@pytest.mark.parametrize(
    "branch",
    [
        f"scf.if %c {{ {store()} }} else {{ {store()} }}",
        f"scf.if %c {{ {store()} {store()} }}",
        f"scf.if %c {{ {store(place='%n')} }}",  # who knows where
        f"scf.if %c {{ {store(place='%four')} }}",  # past its end: only the branch keeps it from being read
        f"scf.if %c {{ {store('%u', 'vector<2xf32>')} }}",
        f"scf.if %c {{ {store(memory='%g', kind='P<f32>')} }}",  # others see it
        "%r = scf.if %c -> f32 { scf.yield %v : f32 } else { scf.yield %v : f32 }",
    ],
    ids=["else", "two stores", "unknown place", "outside", "vector", "global memory", "result"],
)
def test_branches_that_stay(branch: str) -> None:
    source = kernel(branch)
    assert after(source, convert_branches) == after(source, lambda module: None)
