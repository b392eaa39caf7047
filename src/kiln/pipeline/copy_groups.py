"""Pipelines without mbarriers: a thread waits for groups of its own copies, which complete in commit order.

| pipeline                | a buffer is full when                    | and empty when                        |
|-------------------------|------------------------------------------|---------------------------------------|
| `PipelineCpAsyncGroups` | the block has waited for all its groups  | the block has waited for the next one |
| `PipelineTmaStore`      | the threads that fill it say so to each other | TMA has read it                       |
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import type_error
from ..cute import arch
from .asynchronous import PipelineAsync
from .barriers import SyncObject
from .state import require_stages

if TYPE_CHECKING:
    from typing_extensions import Self

    from .groups import CooperativeGroup
    from .state import PipelineState


class _CopyGroups(SyncObject):
    """The `cp.async` groups of all threads of the CTA; `pending` of them may still be in flight after a wait."""

    def __init__(self, pending: int) -> None:
        self.pending = pending

    def arrive(self, index: object, dst: object = None) -> None:  # type: ignore[override]
        arch.cp_async_commit_group()

    def wait(self, index: object, phase: object) -> None:  # type: ignore[override]
        arch.cp_async_wait_group(self.pending)
        arch.sync_threads()


class _Implied(SyncObject):
    """A side that the other side's wait implies: nobody arrives, nobody waits."""

    def arrive(self, index: Any, dst: Any = None) -> None:  # type: ignore[override]
        pass

    def wait(self, index: Any, phase: Any) -> None:  # type: ignore[override]
        pass


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineCpAsyncGroups(PipelineAsync):
    """A pipeline in which all threads of a CTA fill every stage together with `cp.async`, and use it together.

    They fill `num_stages - 1` stages ahead; then each step waits for a stage, fills the one used a step before, and
    uses the one it waited for. A wait ends with a barrier of the CTA, so that no stage needs a release. A step commits
    even if nothing is left to fill: groups are counted.
    """

    @classmethod
    def create(cls, *, num_stages: int, loc: object = None, ip: object = None) -> Self:  # type: ignore[override]
        """Create a pipeline of at least two stages."""
        require_stages(num_stages, least=2)
        return cls(_CopyGroups(num_stages - 2), _Implied(), num_stages, None, None)

    def producer_tail(self, state: PipelineState, *, loc: object = None, ip: object = None) -> None:
        """Wait until no copy of this thread is in flight; after a barrier the memory can be used for something else."""
        arch.cp_async_wait_group(0)


class TmaStoreFence(SyncObject):
    """The TMA stores of this thread, of `num_stages` stages: after a wait TMA may still read all stages but one."""

    __kiln_immutable__ = True

    def __init__(self, num_stages: int = 0) -> None:
        require_stages(num_stages, least=0)
        self.num_stages = num_stages

    def arrive(self, *, loc: object = None, ip: object = None) -> None:  # type: ignore[override]
        """Commit the stores since the last commit as one stage."""
        arch.cp_async_bulk_commit_group()

    def wait(self, *, loc: object = None, ip: object = None) -> None:  # type: ignore[override]
        """Wait until TMA has read the oldest stage."""
        arch.cp_async_bulk_wait_group(max(self.num_stages - 1, 0), read=True)

    def arrive_and_wait(self, *, loc: object = None, ip: object = None) -> None:
        """Commit a stage, and wait for the oldest one."""
        self.arrive()
        self.wait()

    def arrive_and_drop(self, *, loc: object = None, ip: object = None) -> None:
        """Raise an error: a thread cannot leave its own stores."""
        raise type_error("arrive_and_drop: a thread cannot leave its own TMA stores")

    def get_barrier(self, *, loc: object = None, ip: object = None) -> None:
        """Return None: there is no barrier."""

    def max(self) -> None:
        """Return None: there are no barriers."""

    def tail(self, *, loc: object = None, ip: object = None) -> None:
        """Wait until TMA has read all stages."""
        arch.cp_async_bulk_wait_group(0, read=True)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineTmaStore(PipelineAsync):
    """A pipeline of stages that one warp stores with TMA. The thread that issues a store commits and waits for it; in
    other threads these methods do nothing.

    Call `producer_commit` after the stores of a stage, then `producer_acquire`: the next stage can be written again,
    once the warp has synchronised with the threads that write it.
    """

    @classmethod
    def create(  # type: ignore[override]
        cls, *, num_stages: int, producer_group: CooperativeGroup | None = None, loc: object = None, ip: object = None
    ) -> Self:
        """Create a pipeline of `num_stages` stages."""
        require_stages(num_stages)
        return cls(TmaStoreFence(num_stages), _Implied(), num_stages, None, None)

    def producer_acquire(self, *, loc: object = None, ip: object = None) -> None:  # type: ignore[override]
        """Wait until TMA has read the oldest stage."""
        self.sync_object_full.wait()

    def producer_commit(self, *, loc: object = None, ip: object = None) -> None:  # type: ignore[override]
        """Commit the stores since the last commit as one stage."""
        self.sync_object_full.arrive()

    def producer_tail(self, *, loc: object = None, ip: object = None) -> None:  # type: ignore[override]
        """Wait until TMA has read all stages."""
        TmaStoreFence().tail()
