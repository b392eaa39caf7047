"""What declarations of operations state about their results."""

from __future__ import annotations

import pytest

from kiln.dialects import cute, nvgpu
from kiln.dialects.declaration import UNSTATED, Alias, OpView
from kiln.dialects.definition import Pointer
from kiln.mlir import ir

OPERATIONS = {kind.OPERATION_NAME: kind for kind in (*cute.OPERATIONS, *nvgpu.OPERATIONS)}
every_operation = pytest.mark.parametrize("kind", OPERATIONS.values(), ids=OPERATIONS)


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
