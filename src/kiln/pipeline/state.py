"""`PipelineState`: the stage at which a producer or consumer is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base_dsl.bindings import ir
from ..base_dsl.diagnostics import type_error
from ..base_dsl.numeric.operators import select
from ..base_dsl.typing import Int32
from .groups import PipelineUserType


class PipelineState:
    """A stage of a pipeline: its `index`, the parity `phase` of the rounds so far, and the `count` of steps.

    With 2, 4, 8, ... stages one number changes, of which index and phase are bits: the compiler knows it for the loop's
    counter. Otherwise both are kept, and compared with the number of stages in each step. Derived classes have the three
    numbers `_count`, `_index` and `_phase`, in this order among their values.
    """

    def __init__(self, stages: int, count: object, index: object, phase: object) -> None:
        self._stages = stages
        self._count = Int32(count)
        if type(self) is PipelineState and _is_power(stages):
            self._place: tuple[Int32, ...] = (Int32(index) + Int32(phase) * stages,)
        else:
            self._place = (Int32(index), Int32(phase))

    def _at(self, count: Int32, place: tuple[Int32, ...]) -> Any:
        advanced = object.__new__(type(self))
        advanced.__dict__.update(self.__dict__, _count=count, _place=place)
        return advanced

    @property
    def _index(self) -> Int32:
        return self.index

    @_index.setter
    def _index(self, index: object) -> None:
        self._place = self._placed(index, self.phase)

    @property
    def _phase(self) -> Int32:
        return self.phase

    @_phase.setter
    def _phase(self, phase: object) -> None:
        self._place = self._placed(self.index, phase)

    def _placed(self, index: Any, phase: Any) -> tuple[Int32, ...]:
        if len(self._place) == 2:
            return _number(index), _number(phase)
        return (_number(index + phase * self._stages),)

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self._stages

    @property
    def count(self) -> Int32:
        """The steps since the beginning."""
        return self._count

    @property
    def index(self) -> Int32:
        """The index of the stage."""
        if len(self._place) == 2:
            return self._place[0]
        if self._stages == 1:
            return Int32(0)
        return _number(self._place[0] & (self._stages - 1))

    @property
    def phase(self) -> Int32:
        """The parity of the phase to wait for."""
        if len(self._place) == 2:
            return self._place[1]
        return _number((self._place[0] >> (self._stages.bit_length() - 1)) & 1)

    def clone(self, *, loc: object = None, ip: object = None) -> PipelineState:
        """Return a state of its own, at the same stage."""
        return self._at(self._count, self._place)

    def reset_count(self, *, loc: object = None, ip: object = None) -> None:
        """Count from 0 again."""
        self._count = Int32(0)

    def advance(self, count: Any = 1, *, loc: object = None, ip: object = None) -> None:
        """Advance by `count` stages."""
        self._count = self._count + count
        if len(self._place) == 1:
            self._place = (self._place[0] + count,)
            return
        index, phase = self._place
        if isinstance(count, int) and count == 1:
            following = index + 1
            last = following == self._stages
            self._place = (_number(select(last, Int32(0), following)), _number(select(last, phase ^ 1, phase)))
            return
        reached = index + count
        self._place = (_number(reached % self._stages), _number(phase ^ ((reached // self._stages) & 1)))

    def reverse(self, *, loc: object = None, ip: object = None) -> None:
        """Go back by one stage."""
        self._count = self._count - 1
        if len(self._place) == 1:
            self._place = (self._place[0] - 1,)
            return
        index, phase = self._place
        first = index == 0
        before = _number(select(first, Int32(self._stages - 1), index - 1))
        self._place = (before, _number(select(first, phase ^ 1, phase)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(stages={self._stages}, index={self.index}, phase={self.phase})"

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [x.ir_value() for x in (self._count, *self._place)]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Any:
        count, *place = map(Int32, values)
        return self._at(count, tuple(place))

    def __kiln_static_key__(self) -> Any:
        return self._stages


def _is_power(stages: int) -> bool:
    return stages > 0 and stages & (stages - 1) == 0


def _number(x: object) -> Int32:
    return x if isinstance(x, Int32) else Int32(x)


def require_stages(stages: object, least: int = 1) -> None:
    """Raise an error for a number of stages that no pipeline has."""
    if isinstance(stages, bool) or not isinstance(stages, int) or stages < least:
        hint = f"at least {least}, known when compiling"
        raise type_error(f"num_stages of a pipeline is {stages!r}", hint)


def make_pipeline_state(type: PipelineUserType, stages: int, *, loc: object = None, ip: object = None) -> PipelineState:
    """Return the initial state of a producer (all stages are empty) or of a consumer (none is full).

    Args:
        type: `PipelineUserType.Producer`, `Consumer`, or `ProducerConsumer`, a warp that reads what it has requested
            and starts as a producer.
        stages: the stages of the pipeline; 0 where a kernel does without it, and uses the state nowhere.
    """
    require_stages(stages, least=0)
    if type in (PipelineUserType.Producer, PipelineUserType.ProducerConsumer):
        return PipelineState(stages, 0, 0, 1)
    if type is PipelineUserType.Consumer:
        return PipelineState(stages, 0, 0, 0)
    raise type_error(f"type of a pipeline state is {type!r}", "PipelineUserType.Producer or Consumer")
