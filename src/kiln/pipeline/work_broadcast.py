"""Work broadcast: one warp finds its CTA's next tile and hands it to the other warps through shared memory."""

from __future__ import annotations

from typing import Any

from ..base_dsl.ranges import range_constexpr
from ..base_dsl.typing import Int32
from ..cute import arch, jit, make_layout
from .asynchronous import PipelineAsync
from .groups import Agent, CooperativeGroup

__all__ = ["WorkBroadcast"]

_WARP = 32


class WorkBroadcast:
    """A pipeline of work tiles, each of `memory`'s (field, stage) Int32 fields.

    The producer is one whole warp. Each consumer warp waits for a stage, reads its fields and releases it:

        sender, receiver = broadcast.pipe.make_participants()
        broadcast.send(sender, fields)                              # the producer warp
        stage = receiver.wait_and_advance()                         # a consumer warp
        tile, head, batch = broadcast.read(stage.index)
        stage.release()
    """

    __kiln_immutable__ = True

    def __init__(self, memory: Any, pipe: PipelineAsync) -> None:
        self.memory = memory
        self.pipe = pipe

    @classmethod
    def create(cls, smem: Any, num_fields: int, consumer_warps: int, num_stages: int = 2) -> WorkBroadcast:
        """Allocate shared memory and mbarriers; `pipeline_init_arrive` and `pipeline_init_wait` have to follow."""
        memory = smem.allocate_tensor(Int32, make_layout((num_fields, num_stages)), 16)
        pipe = PipelineAsync.create(
            num_stages=num_stages,
            producer_group=CooperativeGroup(Agent.Thread, _WARP),
            consumer_group=CooperativeGroup(Agent.Thread, _WARP * consumer_warps),
            defer_sync=True,
        )
        return cls(memory, pipe)

    @jit
    def send(self, producer: Any, fields: Any):
        """Write the given fields, the first of the next stage, and commit it. `producer` is a `PipelineProducer`."""
        stage = producer.acquire_and_advance()
        self._write(stage.index, fields)
        stage.commit()

    @jit
    def send_at(self, state: Any, fields: Any):
        """Do the same for the stage of a `PipelineState`, which the caller advances."""
        self.pipe.producer_acquire(state)
        self._write(state.index, fields)
        self.pipe.producer_commit(state)

    @jit
    def _write(self, index: Any, fields: Any):
        if arch.lane_idx() == 0:
            for field in range_constexpr(len(fields)):
                self.memory[field, index] = fields[field]

    def read(self, index: Any = 0, fields: Any = None) -> list[Any]:
        """Return the fields of a stage that is full, or those with the numbers `fields`, as warp-uniform values.

        A consumer may read them again wherever it needs them, until it releases the stage, and so keep fewer registers.
        """
        numbers = range(self.memory.shape[0]) if fields is None else fields
        return [arch.make_warp_uniform(self.memory[field, index]) for field in numbers]
