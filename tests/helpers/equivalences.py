"""Mutants that change nothing: for each, the other synchronization that implies what was taken away."""

from __future__ import annotations

_ONE_BLOCK = "sync_threads, which follows, shows the initialization to the block, and nobody else uses the mbarriers"
_NEVER_READ = "the consumer's wait for the mbarrier implies that the copies are complete, and nothing follows"
_LAST_WARP = (
    "thread 0 and all who wrote before are of one warp, ordered by its sync_warp; the next barrier protects the memory"
)
_ALL_READ = (
    "the consumers wait for every buffer; shared memory lives as long as they do, and the producers do nothing more"
)
_BYTES_SAY = "the bytes say that a buffer is full; a commit does nothing"
_ALL_WAITED = "each step has waited for the copies of its buffer; the groups that are left are empty"
_NOT_USED_YET = "nobody has used the first buffers, and later ones the consumer's wait gives back"
_NOTHING_MOVED = "what it changes places with computes addresses and accesses no memory"
_FENCED = "mbarrier_init_fence releases what the arrival does not"
_ARRIVAL = "cluster_arrive, which follows, releases the initialization"
_TURN = "sync_warp puts lane 0's writes before every arrival, and without one of this round no phase is complete"
_OWN_ARRIVAL = "lane 0 arrives itself after its writes, and a phase has the arrivals of all lanes"
_WAITED_BEFORE = "the wait at the start of the row; this one only lets the compiler read the values again"
_NEXT_ROUND = "the barrier before it: only thread 0 reads after that, and what it writes next it writes itself"
_TIMES_ZERO = "where A keeps what the step before left B is zero, and rows that no step loads are not stored"

EQUIVALENCES: dict[str, dict[tuple[str, str], str]] = {
    "block_reduction": {
        ("sync_threads() (3)", "deleted"): _LAST_WARP,
        ("sync_threads() (3)", "only the warp"): _LAST_WARP,
        ("sync_threads() (4)", "deleted"): _NEXT_ROUND,
        ("sync_threads() (4)", "only the warp"): _NEXT_ROUND,
    },
    "copy_ring": {
        ("mbarrier_init_fence()", "deleted"): _ONE_BLOCK,
        ("cp_async_commit_group()", "deleted"): _NEVER_READ,
        ("cp_async_wait_group(0)", "deleted"): _NEVER_READ,
        ("cp_async_wait_group(0)", "leaves one more group"): _NEVER_READ,
    },
    "cluster_ring": {
        ("cluster_arrive()", "relaxed"): _FENCED,
        ("mbarrier_init_fence()", "deleted"): _ARRIVAL,
    },
    "library_rows": {
        ("rows.kernel.again: cp_async_wait_group(0)", "deleted"): _WAITED_BEFORE,
        (
            "rows.kernel.again: cp_async_wait_group(0)",
            "leaves one more group",
        ): _WAITED_BEFORE,
    },
    "masked_product": {
        ("held_a.fill(0.0)", "deleted"): _TIMES_ZERO,
    },
    "mbarrier_ring": {
        ("mbarrier_init_fence()", "deleted"): _ONE_BLOCK,
    },
    "pipeline_bytes": {
        ("pipe.producer_tail(state)", "deleted"): _ALL_READ,
        ("pipe.producer_commit(state)", "deleted"): _BYTES_SAY,
    },
    "pipeline_groups": {
        ("buffer = producer.acquire_and_advance()", "without waiting"): _NOT_USED_YET,
        ("producer.tail()", "deleted"): _ALL_WAITED,
    },
    "pipeline_copies": {
        ("pipe.producer_tail(state)", "deleted"): _ALL_READ,
        ("pipe.producer_acquire(state)", "one statement later"): _NOTHING_MOVED,
    },
    "pipeline_participants": {
        ("producer.tail()", "deleted"): _ALL_READ,
    },
    "pipeline_states": {
        ("pipeline_init_arrive()", "deleted"): _ONE_BLOCK,
        ("pipe.producer_tail(state)", "deleted"): _ALL_READ,
    },
    "pipeline_turns": {
        ("group = CooperativeGroup(Agent.Thread, WARP)", "one arrival fewer"): _TURN,
        ("sync_warp()", "deleted"): _OWN_ARRIVAL,
    },
}
"""Program -> (statement, change) -> why."""
