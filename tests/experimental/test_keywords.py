"""The names of operands, which programs give by keyword."""

from __future__ import annotations

import inspect

import pytest

from kiln.experimental import primitives as prims

CALLS = """
bar_warp_sync mask
elect_sync * membermask
redux_sync val kind mask_and_clamp * abs nan
shfl_sync thread_mask val offset mask_and_clamp kind * return_value_and_is_valid
vote_sync mask pred kind
barrier * barrier_id number_of_threads
barrier_cluster_arrive
barrier_cluster_arrive_relaxed
barrier_cluster_wait
barrier_cta_arrive barrier_id thread_count
barrier_cta_red pred barrier_id kind * thread_count
barrier_cta_sync barrier_id * thread_count
barrier_cta_sync_aligned barrier_id * thread_count
cluster_ctarank
mapa addr cta_rank * addrspace
cp_async_mbarrier_arrive addr * noinc
mbarrier_arrive addr * count scope relaxed
mbarrier_arrive_expect_tx addr txcount * scope relaxed
mbarrier_expect_tx addr txcount * scope
mbarrier_init addr count
mbarrier_inval addr
mbarrier_try_wait_parity addr phase * time_limit scope order
mbarrier_try_wait_timelimit addr state time_limit * scope order
mbarrier_wait_parity addr phase kind * scope order
exit
fence_mbarrier_init
fence_proxy kind * space
fence_proxy_acquire scope addr size * from_proxy to_proxy
fence_proxy_release scope * from_proxy to_proxy
fence_sync_restrict order
griddepcontrol kind
setmaxregister reg_count action
cp_async_bulk_commit_group
cp_async_bulk_global_shared_cta dst_mem src_mem size * l2_cache_hint byte_mask
cp_async_bulk_prefetch src_mem size * l2_cache_hint
cp_async_bulk_shared_cluster_global dst_mem src_mem mbar size * multicast_mask l2_cache_hint
cp_async_bulk_shared_cluster_shared_cta dst_mem src_mem mbar size
cp_async_bulk_tensor_global_shared_cta tma_descriptor src_mem coordinates * l2_cache_hint mode
cp_async_bulk_tensor_shared_cluster_global dst_mem tma_descriptor coordinates mbar im2col_offsets * multicast_mask l2_cache_hint mode group
cp_async_bulk_tensor_shared_cta_global dst_mem tma_descriptor coordinates mbar im2col_offsets * l2_cache_hint mode
cp_async_bulk_wait_group group * read
cp_async_commit_group
cp_async_shared_global dst src size modifier * cp_size
cp_async_wait_group n
cp_reduce_async_bulk_global_shared_cta dst src size * op type noftz l2_cache_hint
prefetch_tensormap addr * space
tensormap_replace field addr * new_value ord new_value_attr keep_oob_fetch_window
ldmatrix ptr num layout * shape src_format
mma_sp_sync a b c metadata selector
load_ext addr * dtype count order scope cache_modifier evict l2_cache_hint
store_ext val addr * order scope cache_modifier evict l2_cache_hint
cvt_packfloat src src_c from_kind to_kind * rnd sat relu extract_hi
cvt_packfloat_f32 src_a src_b src_c kind * rnd sat relu extract_hi
match_sync thread_mask val kind
barrier_cluster_arrive_aligned
barrier_cluster_arrive_relaxed_aligned
barrier_cluster_wait_aligned
barrier_cta_arrive_aligned barrier_id thread_count
clusterlaunchcontrol_query_cancel query_type try_cancel_response
clusterlaunchcontrol_try_cancel addr mbar * multicast
cvta_to addr space
fabs a * ftz
fmax a b * abs nan ftz
fmin a b * abs nan ftz
fence_acq_rel scope
fence_proxy_async_acquire_sync_restrict
fence_proxy_async_release_sync_restrict
fence_sc_cluster
mbarrier_arrive_nocomplete addr count
mbarrier_complete_tx addr txcount * scope
mbarrier_test_wait addr state * scope order
mbarrier_try_wait addr state * scope order
mbarrier_wait addr phase
memory_barrier scope
mma_sync res * shape layout_a layout_b operand_a operand_b operand_c multiplicand_a_ptx_type multiplicand_b_ptx_type
nanosleep duration
tcgen05_ld_red shape tmem_addr op * num offset abs nan
tcgen05_mma_ws mma_kind d a b idesc enable_input_d * collector_b_buffer collector_op col_b_zero_mask
tcgen05_shift taddr * group
wgmma_commit_group_sync_aligned
wgmma_fence_aligned
wgmma_wait_group_sync_aligned group
prefetch_l1 addr
prefetch_l2 addr
prefetchu addr
ptx_add_comment comment
inline_ptx ptx_code * write_only_types read_only_args read_write_args predicate
inline_ptx_hl ptx_code * write_only_types read_only_args read_write_args pred
add_packed_f32x2 src_a src_b * rnd ftz _
sub_packed_f32x2 src_a src_b * rnd ftz _
mul_packed_f32x2 src_a src_b * rnd ftz _
fma_packed_f32x2 src_a src_b src_c * rnd ftz _
mul_bf16x2 a b
cp_async_bulk_tensor_prefetch tma_descriptor coordinates im2col_offsets * l2_cache_hint mode
cp_async_bulk_tensor_reduce tma_descriptor src_mem red_kind coordinates * l2_cache_hint mode
stmatrix ptr sources layout * shape
Tcgen05InstrDesc.build sparse_id2 sparse_flag saturate sparse_format c_dtype a_dtype b_dtype a_negate b_negate a_major b_major n_dim m_dim k_dim max_shift
Tcgen05MxInstrDesc.build sparse_flag b_sf_id a_sf_id a_dtype b_dtype scale_format a_negate b_negate a_major b_major n_dim m_dim k_dim a_sf_layout
Tcgen05MxInstrDesc.set_sf_ids a_sf_id b_sf_id
Tcgen05MxOmmaInstrDesc.build sparse_flag a_sf_id a_sf_layout b_sf_id a_dtype b_dtype scale_format a_negate b_negate a_major b_major n_dim m_dim k_dim sparsity_version
Tcgen05MxOmmaInstrDesc.set_sf_ids a_sf_id b_sf_id
Tcgen05SmemDesc.build start_address leading_byte_offset stride_byte_offset version base_offset layout leading_dim_mode k_segment_offset
Tcgen05SmemDesc.advance_start_address byte_increment
TmemAddr.from_row_col row col
make_tmem_ptr tmem_addr dtype
make_tmem_ptr_from_warp_row_col tmem_base warp base_col dtype
tcgen05_alloc addr n_cols * is_exclusive group
tcgen05_commit addr * multicast_mask smem_a_read group
tcgen05_cp shape taddr smem_desc * group multicast src_format
tcgen05_dealloc taddr n_cols * is_exclusive group
tcgen05_fence kind
tcgen05_ld shape tmem_addr * num pack offset
tcgen05_mma mma_kind cta_group d a b idesc enable_input_d * collector_op b_collector_op a_shift scale_input_d write_disable_mask
tcgen05_mma_sp mma_kind cta_group d a b metadata idesc enable_input_d * collector_op b_collector_op a_shift scale_input_d write_disable_mask
tcgen05_mma_block_scale mma_kind cta_group d a b idesc enable_input_d scale_a scale_b * scale_vec_size collector_op b_collector_op a_shift
tcgen05_relinquish_alloc_permit * group
tcgen05_st shape tmem_addr val * unpack offset
tcgen05_wait kind
atomicrmw op ptr a * b mem_order syncscope space results
st_bulk addr size * init_val
convert_and_pack_integer src_a src_b convert_type * src_c is_signed
mov_b32 a * target_type
print_runtime fmt *args
prmt lo selector mode * hi
red op type_ a b * mem_order mem_scope shared_space cache_hint
"""


@pytest.mark.parametrize("call", [line.split() for line in CALLS.strip().splitlines()], ids=lambda call: call[0])
def test_operands(call):
    name, *wanted = call
    function = prims
    for part in name.split("."):
        function = getattr(function, part)
    found: list[str] = []
    for operand in inspect.signature(function).parameters.values():  # pyright: ignore[reportArgumentType]
        if operand.name in ("loc", "ip", "self"):
            continue
        if operand.kind is operand.KEYWORD_ONLY and not any(x.startswith("*") for x in found):
            found.append("*")
        found.append(("*" if operand.kind is operand.VAR_POSITIONAL else "") + operand.name)
    assert found == wanted


def test_all_primitives_are_listed():
    functions = {name for name in dir(prims) if name[0] != "_" and inspect.isfunction(getattr(prims, name))}
    assert functions <= {line.split()[0] for line in CALLS.strip().splitlines()}
