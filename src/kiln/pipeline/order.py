"""`PipelineOrder`: groups of threads that take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..cute import arch
from .arrivals import ThreadArrival
from .barriers import MbarrierArray, agent_sync, alloc_reserved_mbarrier
from .groups import Agent, CooperativeGroup
from .state import PipelineState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..cute.tensor.pointer import Pointer


class PipelineOrder:
    """`length` groups take turns, in the order of their `group_id`, at each of `depth` stages.

    `wait` waits for the turn of this group, `arrive` gives the turn to the next group and goes to the next stage.
    """

    def __init__(
        self, sync_object_full: MbarrierArray, depth: int, length: int, group_id: Any, state: PipelineState
    ) -> None:
        self.sync_object_full = sync_object_full
        self.depth = depth
        self.length = length
        self.group_id = group_id
        self.state = state

    @staticmethod
    def create(
        *,
        depth: int,
        length: int,
        group_id: object,
        producer_group: CooperativeGroup,
        barrier_storage: Pointer | None = None,
        defer_sync: bool = False,
        name: str = "",
    ) -> PipelineOrder:
        """Create the order and initialise its `depth * length` mbarriers; group 0 has the first turn."""
        if barrier_storage is None:
            barrier_storage = alloc_reserved_mbarrier(depth * length, multiplier=1)
        barriers = MbarrierArray.without_init(barrier_storage, depth * length, ThreadArrival(), producer_group)
        barriers.init()
        arch.mbarrier_init_fence()
        if not defer_sync:
            agent_sync(Agent.ThreadBlock)
        phase = int(group_id == 0) if isinstance(group_id, int) else group_id == 0
        return PipelineOrder(barriers, depth, length, group_id, PipelineState(depth, 0, 0, phase))

    def get_barrier_for_current_stage_idx(self, group_id: Any, state: PipelineState | None = None) -> Any:
        """Return the number of the mbarrier of a group at a stage."""
        return (self.state if state is None else state).index * self.length + group_id

    def arrive(self, state: PipelineState | None = None, loc: object = None, ip: object = None) -> PipelineState | None:
        """Give the turn to the next group; return the advanced state if one was passed."""
        at = self.state if state is None else state
        following = (self.group_id + 1) % self.length
        self.sync_object_full.arrive(self.get_barrier_for_current_stage_idx(following, at))
        at.advance()
        return state

    def wait(self, state: PipelineState | None = None, loc: object = None, ip: object = None) -> None:
        """Wait for the turn of this group."""
        at = self.state if state is None else state
        self.sync_object_full.wait(self.get_barrier_for_current_stage_idx(self.group_id, at), at.phase)

    def __extract_mlir_values__(self) -> list[Any]:
        return self.state.__extract_mlir_values__()

    def __new_from_mlir_values__(self, values: Sequence[object]) -> PipelineOrder:
        state = self.state.__new_from_mlir_values__(values)
        return PipelineOrder(self.sync_object_full, self.depth, self.length, self.group_id, state)
