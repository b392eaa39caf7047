"""Modules are converted to the dialect of LLVM at once where that will do: the same numbers (on the CPU target)."""

from __future__ import annotations

import numpy as np
import pytest
from ir_testing import after, check

import kiln
from kiln import cute
from kiln.base_dsl.typing import Float32
from kiln.cute.runtime import from_dlpack
from kiln.mlir import context, ir
from kiln.targets.host import lower as cpu_lower
from kiln.targets.nvidia.passes.llvm_conversion import AT_ONCE, ONE_BY_ONE, conversion

SIZE = 16


def test_parts_of_vectors_are_shuffles():
    source = """
    func.func @f(%row: vector<8xf16>, %part: vector<4xf16>) -> (vector<2xf16>, vector<8xf16>, vector<8xf16>) {
      %a = vector.extract_strided_slice %row {offsets = [3], sizes = [2], strides = [1]} : vector<8xf16> to vector<2xf16>
      %b = vector.insert_strided_slice %part, %row {offsets = [2], strides = [1]} : vector<4xf16> into vector<8xf16>
      %c = vector.extract_strided_slice %b {offsets = [0], sizes = [8], strides = [1]} : vector<8xf16> to vector<8xf16>
      return %a, %b, %c : vector<2xf16>, vector<8xf16>, vector<8xf16>
    }
    """
    expected = """
      %a = vector.shuffle %row, %row [3, 4] : vector<8xf16>, vector<8xf16>
      %long = vector.shuffle %part, %part [0, 1, 2, 3, 0, 0, 0, 0] : vector<4xf16>, vector<4xf16>
      %b = vector.shuffle %row, %long [0, 1, 8, 9, 10, 11, 6, 7] : vector<8xf16>, vector<8xf16>
      return %a, %b, %b
    """
    check(after(source, conversion), expected)


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        ("%b = vector.bitcast %a : vector<8xf32> to vector<16xf16>", AT_ONCE),
        ("%b = vector.extract %a[3] : f32 from vector<8xf32>", AT_ONCE),
        ("%b = math.fma %a, %a, %a : vector<8xf32>", AT_ONCE),
        ("%b = vector.reduction <add>, %a : vector<8xf32> into f32", ONE_BY_ONE),
        ("%b = vector.shape_cast %a : vector<8xf32> to vector<2x4xf32>", ONE_BY_ONE),
        ("%b = vector.bitcast %m : vector<2x4xf32> to vector<2x8xf16>", ONE_BY_ONE),
        ("%b = vector.extract_strided_slice %m {offsets = [1], sizes = [1], strides = [1]} : vector<2x4xf32> to vector<1x4xf32>", ONE_BY_ONE),
    ],
)  # fmt: skip
def test_what_is_converted_at_once(body, passes):
    source = f"func.func @f(%a: vector<8xf32>, %m: vector<2x4xf32>) {{ {body} return }}"
    with context(), ir.Location.unknown():
        assert conversion(ir.Module.parse(source)) == passes


def test_the_same_numbers(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    original, chosen = cpu_lower.expand_narrow_floats, []

    def expand(module):
        original(module)
        chosen.append(conversion(module))
        module.operation.verify()

    monkeypatch.setattr(cpu_lower, "expand_narrow_floats", expand)

    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor):
        kept = cute.make_rmem_tensor((2, SIZE // 2), Float32)
        kept.store(a.load().reshape((2, SIZE // 2)))
        kept[1, None].store(kept[0, None].load() * 2.0 + kept[1, None].load())
        b.store(kept.load().reshape(SIZE))

    a, b = np.arange(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
    arguments = [from_dlpack(x) for x in (a, b)]
    with kiln.target("cpu"):
        cute.compile(program, *arguments)(*arguments)
    wanted = a.reshape(SIZE // 2, 2).copy()
    wanted[:, 1] += 2 * wanted[:, 0]
    np.testing.assert_array_equal(b, wanted.reshape(SIZE))
    assert chosen
