"""Which products may be one instruction with a sum."""

from __future__ import annotations

import re

import pytest
from ir_testing import after
from nvidia_testing import compile_for, floats, needs_ptxas

from kiln import cute
from kiln.targets.nvidia.passes.fma_contraction import allow_contraction

REST = "%u = arith.addf %p, %z : f32"
"""A sum that takes the product."""
STORE = '"cute.store"(%p, %m, %i) : (f32, R<f32>, i32) -> ()'


def marked(body: str, product: str = "%p = arith.mulf %x, %y : f32") -> list[str]:
    """The flags of the products of a function, in order."""
    source = f"""
    func.func @f(%x: f32, %y: f32, %z: f32, %v: vector<2xf32>, %c: i1, %m: R<f32>, %i: i32) {{
      {product}
      {body}
      func.return
    }}"""
    lines = [line for line in after(source, allow_contraction).splitlines() if "arith.mulf" in line]
    return [re.findall(r"fastmath<(\w+)>", line)[0] if "fastmath" in line else "" for line in lines]


@pytest.mark.parametrize(
    "body",
    [
        REST,
        "%u = arith.subf %z, %p : f32",
        "%u = arith.addf %p, %z fastmath<nnan> : f32",
        "%n = arith.negf %p : f32\n %u = arith.addf %n, %z : f32",
    ],
)
def test_a_product_in_one_sum_may_be_one_instruction_with_it(body: str) -> None:
    assert marked(body) == ["contract"]


@pytest.mark.parametrize(
    "body",
    [
        f"{REST}\n %w = arith.subf %p, %y : f32",
        f"{REST}\n %w = math.fma %x, %y, %p : f32",
        f"{REST}\n %n = arith.negf %p : f32",
        "%u = arith.addf %p, %p : f32",
        f"{STORE}\n {REST}",
        STORE,
        "%u = arith.divf %p, %z : f32",
        f"scf.if %c {{ {REST} }}",  # LLVM may repeat a region
    ],
)
def test_a_product_with_other_uses_is_rounded_for_all_of_them(body: str) -> None:
    assert marked(body) == [""]


def test_equal_products_are_one() -> None:
    other = "%q = arith.mulf %y, %x : f32\n %w = arith.subf %q, %y : f32"
    assert marked(f"{REST}\n {other}") == ["", ""]


ELEMENTS = "%p = arith.mulf %v, %v : vector<2xf32>"


def element(name: str, number: int) -> str:
    return f"%{name} = vector.extract %p[{number}] : f32 from vector<2xf32>\n %s{name} = arith.addf %{name}, %z : f32\n"


def test_each_element_of_a_vector_counts() -> None:
    assert marked(element("a", 0) + element("b", 1), ELEMENTS) == ["contract"]
    assert marked(element("a", 0) + element("b", 0), ELEMENTS) == [""]
    assert marked(element("a", 0) + "%w = math.absf %p : vector<2xf32>", ELEMENTS) == [""]


def test_flags_that_a_program_gave_stay() -> None:
    assert marked(REST, "%p = arith.mulf %x, %y fastmath<nnan> : f32") == ["nnan"]


@needs_ptxas
@pytest.mark.parametrize(("options", "fused"), [("", 1), ("--ptxas-options --fmad=false", 0)])
def test_a_product_and_its_rounding_error_agree_on_gpus(options: str, fused: int) -> None:
    """Turns of an angle beyond 24 bits: the whole ones are taken off the rounded product, and its error is added."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        i, _, _ = cute.arch.thread_idx()
        turns = x[i, 0] * x[i, 1]
        error = cute.math.fma(x[i, 0], x[i, 1], -turns)
        whole = cute.math.fma(turns, 1.0, 12582912.0) - 12582912.0
        x[i, 2] = (turns - whole) + error
        x[i, 3] = x[i, 0] * x[i, 2] + x[i, 1]

    @cute.jit
    def run(x: cute.Tensor):
        kernel(x).launch(grid=1, block=32)

    ptx = compile_for(run, floats(32, 4), options=options).__ptx__
    assert len(re.findall(r"\bfma\.rn\.f32\b", ptx)) == 1 + fused  # not in `turns - whole`
    assert len(re.findall(r"\bmul\.rn\.f32\b", ptx)) == 2 - fused
    assert not re.search(r"\bmul\.f32\b", ptx)  # ptxas may take part in a sum
