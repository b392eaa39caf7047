"""What declarations of operations state, and that nothing outside `dialects/` keeps lists of operations by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kiln.dialects import cute, nvgpu
from kiln.dialects.declaration import UNSTATED, Alias, OpView
from kiln.dialects.definition import Pointer
from kiln.mlir import ir

SOURCE = Path(__file__).parents[2] / "src" / "kiln"
OPERATIONS = {kind.OPERATION_NAME: kind for kind in (*cute.OPERATIONS, *nvgpu.OPERATIONS)}
every_operation = pytest.mark.parametrize("kind", OPERATIONS.values(), ids=OPERATIONS)

NAMES = {
    "cute/experimental/program.py": 1,
    "cute/layout/leaf.py": 1,
    "cute/nvgpu/tcgen05/descriptors.py": 1,
    "cute/nvgpu/tensor_map_updates.py": 2,
    "cute/program/dsl.py": 3,
    "cute/tensor/tensor.py": 1,
    "targets/cpu/checks.py": 2,
    "targets/cpu/expand.py": 2,
    "targets/host/lower.py": 2,
    "targets/lowering/expansion.py": 2,
    "targets/lowering/vector_legalisation.py": 1,
    "targets/nvidia/lower.py": 4,
    "targets/nvidia/passes/loop_unrolling.py": 7,
    "targets/nvidia/passes/wgmma_unrolling.py": 1,
    "targets/nvidia/target.py": 1,
    "workbench/inspect/outline.py": 8,
}
"""Files that still name operations, types or attributes of the dialects by text, and how often. It only shrinks."""


def names_in(text: str) -> int:
    """How often the constants of a module name something of the dialects."""
    constants = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    return sum(
        isinstance(value, str) and bool(re.fullmatch(r"!?cute(_nvgpu)?\.[a-z0-9_]*", value)) for value in constants
    )


def test_operations_are_named_in_the_dialects_alone() -> None:
    files = {file.relative_to(SOURCE): file for file in sorted(SOURCE.rglob("*.py"))}
    counts = {str(path): names_in(file.read_text()) for path, file in files.items() if path.parts[0] != "dialects"}
    assert {path: count for path, count in counts.items() if count} == NAMES


def test_a_name_is_seen() -> None:
    assert names_in('x = op.name == "cute.load" or op.name.startswith(f"cute_nvgpu.{unit}")') == 2
    assert names_in('hint = "cute.copy(atom, source, target)"') == 0


def _may_be_pointer(constraint: object) -> bool:
    parts = getattr(constraint, "__args__", (constraint,))
    return any(part in (cute.Ptr, cute.Memref, Pointer, nvgpu.tma.TensorMap) for part in parts)


@every_operation
def test_an_operation_states_where_its_result_points(kind: type[OpView]) -> None:
    if kind.ALIAS is None:
        return
    if isinstance(kind.ALIAS, Alias):
        assert kind.ALIAS.operand in kind.OPERANDS
        assert kind.ALIAS.how in ("same", "offset", "integer", "peer", "descriptor")
        assert kind.ALIAS.how != "offset" or "offset" in kind.OPERANDS
        return
    assert kind.ALIAS is UNSTATED
    makes_one = any(map(_may_be_pointer, kind.RESULTS.values()))
    takes_one = any(map(_may_be_pointer, kind.OPERANDS.values()))
    assert not makes_one and not (takes_one and kind.RESULTS), f"{kind.__name__} states no alias (None: there is none)"


def test_a_new_operation_without_an_alias_is_told() -> None:
    class Unsaid(OpView):
        OPERATION_NAME = "test.unsaid"
        OPERANDS = {"pointer": Pointer}  # noqa: RUF012
        RESULTS = {"result": ir.IntegerType}  # noqa: RUF012
        ALIAS = UNSTATED

    with pytest.raises(AssertionError, match="states no alias"):
        test_an_operation_states_where_its_result_points(Unsaid)
