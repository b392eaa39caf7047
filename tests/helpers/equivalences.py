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
_FENCED_BY_CREATE = "create executes the same fence after it has made the mbarriers"
_ONLY_THE_INDEX = "a release says which buffer it is, by the index; the phase is not used"
_ONE_TILE = "each block has one tile: nothing is released after it"
_NOTHING_BEFORE = "no kernel of this program that runs before it writes what it reads"
_ONE_AFTER_ANOTHER = "kernels run one after another on the CPU target: the one before, which lays rows, has ended (test_gemm_mixed_input looks at the order in PTX)"
_IN_PTX = "kernels run one after another on the CPU target: those before have ended (test_grouped_gemm_sm100 looks at the order in PTX)"
_SEVERAL_STAGES = "other kernels have one stage, and run it"
_IN_A_LOOP = "tiles of groups are stored in a loop, and released behind it"
_WARNED = "stores are complete when the kernel is, and the block's memory is not used again; where nobody has waited a warning says so"
_OTHERS_HAVE_NONE = "the other lanes have given nothing: their groups are empty"
_ALL_GIVE_THE_TURN = "the turn takes all threads of the group, also the one that has waited for the store"
_ONE_AT_A_TIME = "by the turns only one group is at the barriers at a time"
_SAME_BYTES = "all lanes write the same bytes, and the warp's barrier follows"
_SAME_LANE = "the lane that is elected is always the same one: what it did before comes before its edit"
_PUBLISHED_BY_ALL = "the lane that edits the map takes part in publishing it, which is done by the whole warp"
_NEXT_BARRIER = "the barrier of the next round: the warp that waited for both copies comes to it after that"
_UPDATE_WAITS = (
    "update_tensormap commits what the warp has stored and waits for it; after the last round nothing follows"
)
_WRITTEN_AGAIN = "what follows writes the shared memory again; in the kernel nobody reads what was stored"
_OF_REGISTERS = "what it changes places with is a product of registers, which accesses no memory"
_NEXT_ROUND = "the barrier before it: only thread 0 reads after that, and what it writes next it writes itself"
_TIMES_ZERO = "where A keeps what the step before left B is zero, and rows that no step loads are not stored"
_USED_BEFORE = (
    "every lane uses what it loaded before it comes to the barrier that follows, and so waits for it; a warning says so"
)
_USED_BY_P = "the MMA warp has waited for P, which the softmax warps compute of what they loaded of S"
_IN_ORDER = "a commit arrives after those before it of the same thread: the epilogue, which waits for the last one, ends after all"
_FREED_TOGETHER = (
    "the CTA frees its columns after the other one of the pair has loaded its accumulators and released them"
)
_FIRST_TILE = "the accumulator is free at the start, and each CTA has one tile"
_STORED_BY_ALL = "the barriers of the last epilogue tile come after the last loads of all warps"
_NEXT_ANSWER = (
    "the tile after the next is known when the epilogue has released the answer before, after it stored its tile"
)
_READ_IS_OVER = "a read is over when the thread arrives, also for the async proxy, which writes the next answer; PTX asks for the fence"
_COMMIT_OF_S = "the commit of S covers the MMA before it, which read the P that is overwritten"

EQUIVALENCES: dict[str, dict[tuple[str, str], str]] = {
    "blackwell_attention": {
        ("load_row: fence_view_async_tmem_load()", "deleted"): _USED_BY_P,
        ("attention_kernel: k_producer.tail()", "deleted"): _IN_ORDER,
        ("attention_kernel: v_producer.tail()", "deleted"): _IN_ORDER,
        ("attention_kernel: full.release()", "one statement earlier"): _USED_BY_P,
        ("attention_kernel: free = p_producer.acquire_and_advance()", "without waiting"): _COMMIT_OF_S,
    },
    "blackwell_overlap": {("fence_view_async_tmem_load() (2)", "deleted"): _USED_BEFORE},
    "blackwell_step_1": {("store_rows: fence_view_async_tmem_load()", "deleted"): _USED_BEFORE},
    "blackwell_step_2": {
        ("gemm_kernel: acc_full.release()", "deleted"): _ONE_TILE,
        ("gemm_kernel: done = acc_producer.acquire_and_advance()", "without waiting"): _FIRST_TILE,
    },
    "blackwell_step_3": {
        ("store_acc: fence_view_async_tmem_load()", "deleted"): _USED_BEFORE,
        ("gemm_kernel: producer.tail()", "deleted"): _IN_ORDER,
        ("gemm_kernel: done = acc_producer.acquire_and_advance()", "without waiting"): _FIRST_TILE,
        ("gemm_kernel: acc_producer.tail()", "deleted"): _ALL_READ,
        ("gemm_kernel: writers.arrive_and_wait()", "deleted"): _STORED_BY_ALL,
        ("gemm_kernel: writers.arrive_and_wait()", "arrives without waiting"): _STORED_BY_ALL,
        ("gemm_kernel: stores.producer_tail()", "deleted"): _WARNED,
    },
    "blackwell_step_4": {
        ("gemm_kernel: producer.tail()", "deleted"): _IN_ORDER,
        ("gemm_kernel: acc_producer.tail()", "deleted"): _ALL_READ,
        ("gemm_kernel: writers.arrive_and_wait()", "deleted"): _STORED_BY_ALL,
        ("gemm_kernel: writers.arrive_and_wait()", "arrives without waiting"): _STORED_BY_ALL,
        ("gemm_kernel: stores.producer_tail()", "deleted"): _WARNED,
    },
    "blackwell_step_5": {
        ("gemm_kernel: acc_producer.tail()", "deleted"): _FREED_TOGETHER,
        ("gemm_kernel: writers.arrive_and_wait()", "deleted"): _STORED_BY_ALL,
        ("gemm_kernel: writers.arrive_and_wait()", "arrives without waiting"): _STORED_BY_ALL,
        ("gemm_kernel: stores.producer_tail()", "deleted"): _WARNED,
    },
    "blackwell_step_6": {
        ("gemm_kernel: acc_producer.tail()", "deleted"): _FREED_TOGETHER,
        ("gemm_kernel: free = acc_producer.acquire_and_advance()", "without waiting"): _NEXT_ANSWER,
        ("gemm_kernel: writers.arrive_and_wait()", "deleted"): _STORED_BY_ALL,
        ("gemm_kernel: writers.arrive_and_wait()", "arrives without waiting"): _STORED_BY_ALL,
        ("gemm_kernel: stores.producer_tail()", "deleted"): _WARNED,
    },
    "blackwell_step_7": {
        ("gemm_kernel: producer.tail()", "deleted"): _IN_ORDER,
        ("gemm_kernel: done = acc_producer.acquire_and_advance()", "without waiting"): _FIRST_TILE,
        ("gemm_kernel: acc_producer.tail()", "deleted"): _ALL_READ,
    },
    "blackwell_transform": {
        ("mbarrier_init_fence()", "deleted"): _ONE_BLOCK,
        ("fence_view_async_tmem_load()", "deleted"): _USED_BEFORE,
    },
    "block_reduction": {
        ("sync_threads() (3)", "deleted"): _LAST_WARP,
        ("sync_threads() (3)", "only the warp"): _LAST_WARP,
        ("sync_threads() (4)", "deleted"): _NEXT_ROUND,
        ("sync_threads() (4)", "only the warp"): _NEXT_ROUND,
    },
    "bulk_store": {("cp_async_bulk_wait_group(0)", "only until all is read"): _WRITTEN_AGAIN},
    "copy_ring": {
        ("mbarrier_init_fence()", "deleted"): _ONE_BLOCK,
        ("cp_async_commit_group()", "deleted"): _NEVER_READ,
        ("cp_async_wait_group(0)", "deleted"): _NEVER_READ,
        ("cp_async_wait_group(0)", "leaves one more group"): _NEVER_READ,
    },
    "cluster_ring": {("cluster_arrive()", "relaxed"): _FENCED, ("mbarrier_init_fence()", "deleted"): _ARRIVAL},
    "hopper_attention": {("producer_k.tail()", "deleted"): _ALL_READ, ("producer_v.tail()", "deleted"): _ALL_READ},
    "hopper_cooperative": {("producer.tail()", "deleted"): _ALL_READ, ("storing.producer_tail()", "deleted"): _WARNED},
    "hopper_copies": {("with elect_one(): cute.arch.cp_async_bulk_commit_group()", "by all lanes"): _OTHERS_HAVE_NONE},
    "hopper_groups": {
        ("with elect_one(): cpasync.copy_tensormap(load_a, edited)", "by all lanes"): _SAME_BYTES,
        ("with elect_one(): cpasync.copy_tensormap(store_c, edited + 16)", "by all lanes"): _SAME_BYTES,
        ("with elect_one(): cute.arch.cp_async_bulk_wait_group(0, read=True)", "by all lanes"): _OTHERS_HAVE_NONE,
        ("with elect_one(): cute.arch.cp_async_bulk_commit_group()", "by all lanes"): _OTHERS_HAVE_NONE,
        ("with elect_one(): cute.arch.cp_async_bulk_wait_group(0)", "by all lanes"): _OTHERS_HAVE_NONE,
        ("sync_warp()", "deleted"): _SAME_LANE,
        ("sync_warp() (2)", "deleted"): _PUBLISHED_BY_ALL,
        ("sync_warp() (3)", "deleted"): _SAME_LANE,
        ("sync_warp() (4)", "deleted"): _SAME_LANE,
        ("sync_warp() (4)", "one statement later"): _SAME_LANE,
        ("sync_warp() (5)", "deleted"): _PUBLISHED_BY_ALL,
        ("cp_async_bulk_wait_group(0)", "deleted"): _WARNED,
        ("cp_async_bulk_wait_group(0)", "leaves one more group"): _WARNED,
        ("cp_async_bulk_wait_group(0)", "only until all is read"): _WARNED,
    },
    "hopper_groups_gmem": {
        ("manager.fence_tensormap_initialization()", "deleted"): _SAME_LANE,
        ("with elect_one(): cute.arch.cp_async_bulk_commit_group()", "by all lanes"): _OTHERS_HAVE_NONE,
        ("cp_async_bulk_commit_group()", "deleted"): _UPDATE_WAITS,
        ("cp_async_bulk_wait_group(0, read=True)", "deleted"): _UPDATE_WAITS,
        ("cp_async_bulk_wait_group(0, read=True)", "leaves one more group"): _UPDATE_WAITS,
        ("sync_threads() (2)", "deleted"): _NEXT_BARRIER,
        ("sync_threads() (2)", "only the warp"): _NEXT_BARRIER,
    },
    "hopper_multicast": {
        ("pipe.producer_commit(fill)", "deleted"): _BYTES_SAY,
        ("pipe.producer_commit(fill)", "one statement earlier"): _BYTES_SAY,
    },
    "hopper_pingpong": {
        ("pipe.producer_commit(fill)", "deleted"): _BYTES_SAY,
        ("pipe.producer_commit(fill)", "one statement earlier"): _BYTES_SAY,
        ("pipe.producer_tail(fill)", "deleted"): _ALL_READ,
        ("with elect_one(): cute.arch.cp_async_bulk_commit_group()", "by all lanes"): _OTHERS_HAVE_NONE,
        ("written = NamedBarrier(barrier_id=2 + group, num_threads=GROUP)", "the same for all"): _ONE_AT_A_TIME,
        ("written.arrive_and_wait() (2)", "arrives without waiting"): _ALL_GIVE_THE_TURN,
        ("written.arrive_and_wait() (2)", "deleted"): _ALL_GIVE_THE_TURN,
    },
    "hopper_reduction": {
        ("cluster_arrive()", "relaxed"): _FENCED,
        ("with elect_one(): cute.arch.cp_async_bulk_commit_group()", "by all lanes"): _OTHERS_HAVE_NONE,
    },
    "hopper_roles": {
        ("pipeline_init_arrive()", "deleted"): _FENCED_BY_CREATE,
        ("producer.tail()", "deleted"): _ALL_READ,
        ("stage.commit()", "deleted"): _BYTES_SAY,
        ("stage.commit()", "one statement earlier"): _BYTES_SAY,
        (
            "before = make_pipeline_state(PipelineUserType.Consumer, STAGES)",
            "starts in the other phase",
        ): _ONLY_THE_INDEX,
    },
    "library_gemm": {("impl.gemm.sm80_mainloop.kernel: griddepcontrol_wait()", "deleted"): _NOTHING_BEFORE},
    "library_sgemm": {("impl.gemm.sm80_mainloop.kernel: griddepcontrol_wait()", "deleted"): _NOTHING_BEFORE},
    "library_hopper_gemm": {
        ("impl.gemm.sm90.kernel: griddepcontrol_wait() (2)", "deleted"): _NOTHING_BEFORE,
        ("impl.gemm.sm90.produce: griddepcontrol_wait()", "deleted"): _NOTHING_BEFORE,
        ("impl.gemm.sm90.produce_scales: griddepcontrol_wait()", "deleted"): _NOTHING_BEFORE,
        ("impl.gemm.sm90_mixed_input.produce: griddepcontrol_wait()", "deleted"): _ONE_AFTER_ANOTHER,
        ("impl.gemm.sm90_mixed_input.consume: releasing.advance()", "twice"): _ONE_TILE,
        ("impl.gemm.sm90_mixed_input.consume: releasing.advance()", "deleted"): _ONE_TILE,
        ("impl.gemm.sm90.kernel: griddepcontrol_wait()", "deleted"): _NOTHING_BEFORE,
        ("impl.gemm.sm90_epilogue.finish: cp_async_bulk_wait_group(0, read=True)", "deleted"): _WARNED,
        ("parts.tma_store_epilogue.store: cp_async_bulk_commit_group()", "deleted"): _SEVERAL_STAGES,
        ("parts.tma_store_epilogue.store: cp_async_bulk_wait_group(0, read=True)", "deleted"): _SEVERAL_STAGES,
        (
            "parts.tma_store_epilogue.store: cp_async_bulk_wait_group(0, read=True)",
            "leaves one more group",
        ): _SEVERAL_STAGES,
        ("impl.gemm.sm90_epilogue.finish: cp_async_bulk_wait_group(0, read=True)", "leaves one more group"): _WARNED,
    },
    "library_blackwell_gemm": {
        ("impl.gemm.sm100.kernel: griddepcontrol_wait()", "deleted"): _IN_PTX,
        ("impl.gemm.sm100.kernel: griddepcontrol_wait() (2)", "deleted"): _IN_PTX,
        ("impl.gemm.sm100.load: griddepcontrol_wait()", "deleted"): _IN_PTX,
        ("impl.gemm.sm100.multiply: producer.tail()", "deleted"): _FREED_TOGETHER,
        ("impl.gemm.sm100_epilogue.finish: cp_async_bulk_wait_group(0, read=True)", "deleted"): _WARNED,
        ("impl.gemm.sm100_epilogue.finish: cp_async_bulk_wait_group(0, read=True)", "leaves one more group"): _WARNED,
        ("parts.clc_tiles.advance: fence_view_async_shared()", "deleted"): _READ_IS_OVER,
        ("parts.tma_store_epilogue.store: cp_async_bulk_commit_group()", "deleted"): _SEVERAL_STAGES,
        ("parts.tma_store_epilogue.store: cp_async_bulk_wait_group(0, read=True)", "deleted"): _SEVERAL_STAGES,
        (
            "parts.tma_store_epilogue.store: cp_async_bulk_wait_group(0, read=True)",
            "leaves one more group",
        ): _SEVERAL_STAGES,
    },
    "library_blackwell_groups": {
        ("impl.gemm.sm100_epilogue.finish: cp_async_bulk_wait_group(0, read=True)", "deleted"): _WARNED,
        ("impl.gemm.sm100_epilogue.finish: cp_async_bulk_wait_group(0, read=True)", "leaves one more group"): _WARNED,
        ("parts.tma_store_epilogue.write: acc.release()", "deleted"): _IN_A_LOOP,
        ("parts.tma_store_epilogue.store: cp_async_bulk_commit_group()", "deleted"): _SEVERAL_STAGES,
        ("parts.tma_store_epilogue.store: cp_async_bulk_wait_group(0, read=True)", "deleted"): _SEVERAL_STAGES,
        (
            "parts.tma_store_epilogue.store: cp_async_bulk_wait_group(0, read=True)",
            "leaves one more group",
        ): _SEVERAL_STAGES,
    },
    "library_rows": {
        (
            "impl.rowwise.row_kernel.compute_double_buffered: cp_async_wait_group(1)",
            "one statement later",
        ): _NOTHING_MOVED
    },  # fmt: skip
    "masked_product": {
        ("held_a.fill(0.0)", "deleted"): _TIMES_ZERO,
        ("sync_warp() (2)", "one statement later"): _OF_REGISTERS,
    },
    "mbarrier_ring": {("mbarrier_init_fence()", "deleted"): _ONE_BLOCK},
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
    "pipeline_participants": {("producer.tail()", "deleted"): _ALL_READ},
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
