"""`PipelineClcFetchAsync`: the answers of cluster launch control, which one CTA requests for its cluster."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import type_error
from ..cute.tensor.pointer import Pointer
from .arrivals import ClcArrival, ThreadArrival
from .asynchronous import PipelineAsync
from .groups import CooperativeGroup
from .multicast import cluster_size

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PipelineClcFetchAsync"]

ANSWER_BYTES = 16


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineClcFetchAsync(PipelineAsync):
    """A pipeline whose stages are answers of cluster launch control, written to every CTA of the cluster.

    One warp of CTA 0 of the cluster is the producer: `producer_acquire` announces the answer's 16 bytes in every CTA,
    and the request (`cute.arch.issue_clc_query`, `advance_to_next_work`) gets the stage's mbarrier. Each thread of the
    cluster that reads an answer waits for it in its own CTA and releases it in CTA 0.
    """

    is_signaling_thread: Any

    @classmethod
    def create(  # type: ignore[override]
        cls,
        *,
        num_stages: int,
        producer_group: CooperativeGroup,
        consumer_group: CooperativeGroup,
        tx_count: int = ANSWER_BYTES,
        barrier_storage: Pointer | None = None,
        producer_mask: object = None,
        consumer_mask: object = None,
        cta_layout_vmnk: object = None,
        defer_sync: bool = False,
        name: str = "",
        loc: object = None,
        ip: object = None,
    ) -> Self:
        """Create a pipeline as `PipelineAsync.create` does. The consumers' group counts the threads of all CTAs.

        `consumer_mask` is the rank of the CTA whose warp requests, by default 0. `producer_mask` has no effect: answers
        go to every CTA.
        """
        if tx_count != ANSWER_BYTES:
            raise type_error(
                f"tx_count of PipelineClcFetchAsync is {tx_count!r}", f"an answer has {ANSWER_BYTES} bytes"
            )
        ctas = cluster_size(cta_layout_vmnk)
        sides = (ClcArrival(tx_count, ctas), producer_group), (ThreadArrival(publishes=False), consumer_group)
        full, empty = cls._barriers(num_stages, *sides, barrier_storage, defer_sync, cta_layout_vmnk)
        requester = (0 if consumer_mask is None else consumer_mask) if ctas > 1 else None
        return cls(full, empty, num_stages, None, requester, True)
