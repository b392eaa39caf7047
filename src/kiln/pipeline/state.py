"""Where a side of a pipeline is in its ring of buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import DSLUserCodeTypeError, error
from ..base_dsl.numeric.operators import select
from ..base_dsl.typing import Int32
from .groups import PipelineUserType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..mlir import ir


class PipelineState:
    """A buffer of a ring of `stages`: `index`, the parity `phase` of the rounds so far, and the `count` of steps."""

    def __init__(self, stages: int, count: Any, index: Any, phase: Any) -> None:
        self._stages = stages
        self._count = Int32(count)
        self._index = Int32(index)
        self._phase = Int32(phase)

    @property
    def stages(self) -> int:
        """The number of buffers."""
        return self._stages

    @property
    def count(self) -> Int32:
        """Steps since the beginning."""
        return self._count

    @property
    def index(self) -> Int32:
        """The buffer."""
        return self._index

    @property
    def phase(self) -> Int32:
        """The parity of the phase to wait for."""
        return self._phase

    def clone(self, *, loc: Any = None, ip: Any = None) -> PipelineState:
        """A state of its own, at the same buffer."""
        return PipelineState(self._stages, self._count, self._index, self._phase)

    def reset_count(self, *, loc: Any = None, ip: Any = None) -> None:
        """Count from 0 again."""
        self._count = Int32(0)

    def advance(self, count: Any = 1, *, loc: Any = None, ip: Any = None) -> None:
        """Go `count` buffers on."""
        self._count = self._count + count
        if isinstance(count, int) and count == 1:
            following = self._index + 1
            last = following == self._stages
            self._index = _number(select(last, Int32(0), following))
            self._phase = _number(select(last, self._phase ^ 1, self._phase))
            return
        reached = self._index + count
        self._index = _number(reached % self._stages)
        self._phase = _number(self._phase ^ ((reached // self._stages) & 1))

    def reverse(self, *, loc: Any = None, ip: Any = None) -> None:
        """Go one buffer back."""
        first = self._index == 0
        self._index = _number(select(first, Int32(self._stages - 1), self._index - 1))
        self._phase = _number(select(first, self._phase ^ 1, self._phase))
        self._count = self._count - 1

    def __repr__(self) -> str:
        return f"PipelineState(stages={self._stages}, index={self._index}, phase={self._phase})"

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [x.ir_value() for x in (self._count, self._index, self._phase)]

    def __new_from_mlir_values__(self, values: Sequence[Any]) -> PipelineState:
        return PipelineState(self._stages, *values)

    def __kiln_static_key__(self) -> Any:
        return self._stages

    def __kiln_join__(self, other: PipelineState) -> Any:
        return (self, other) if self._stages == other._stages else None

    def __kiln_coerce__(self, like: PipelineState) -> Any:
        return self if self._stages == like._stages else None


def _number(x: Any) -> Int32:
    return x if isinstance(x, Int32) else Int32(x)


def require_stages(stages: Any, least: int = 1) -> None:
    """Refuse a number of buffers that no pipeline has."""
    if isinstance(stages, bool) or not isinstance(stages, int) or stages < least:
        hint = f"at least {least}, known when compiling"
        raise error(DSLUserCodeTypeError, f"a pipeline of {stages!r} stages", hint=hint, depth=2)


def make_pipeline_state(type: PipelineUserType, stages: int, *, loc: Any = None, ip: Any = None) -> PipelineState:
    """Where a producer (all buffers are free) or a consumer (none is full) begins."""
    require_stages(stages)
    if type is PipelineUserType.Producer:
        return PipelineState(stages, 0, 0, 1)
    if type is PipelineUserType.Consumer:
        return PipelineState(stages, 0, 0, 0)
    raise error(DSLUserCodeTypeError, f"a state for {type!r}", hint="PipelineUserType.Producer or Consumer")
