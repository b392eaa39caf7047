"""`cute.experimental` step by step: TMA copies of slices, states of pipelines, and the errors for wrong uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from slice_kernels import COLUMNS, ROWS, compiled_with_workspace, double, number

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute import arch
from kiln.cute import experimental as ext
from kiln.cute.experimental import iket
from kiln.cute.nvgpu import tcgen05
from kiln.cute.runtime import from_dlpack
from kiln.utils import blackwell_helpers as sm100

Kind = ext.OperationTypeEnum
F16, F32 = kiln.Float16, kiln.Float32
SMEM, TMEM, RMEM = cute.AddressSpace.smem, cute.AddressSpace.tmem, cute.AddressSpace.rmem


def aligned(shape: tuple[int, int]) -> np.ndarray:
    memory = np.zeros(shape[0] * shape[1] + 64, np.float16)
    start = -memory.ctypes.data % 128 // 2
    return memory[start : start + shape[0] * shape[1]].reshape(shape)


@pytest.mark.parametrize("announced", [False, True])
def test_copies_of_slices(announced):
    """Of tiles that reach over the end zeros arrive, and nothing is stored there."""
    x, out = aligned((24, 40)), aligned((24, 40))
    x[:] = np.arange(x.size).reshape(x.shape) % 1000
    with kiln.target("cpu"):
        double(*(from_dlpack(t, assumed_align=16).mark_layout_dynamic(leading_dim=1) for t in (x, out)), announced)
    np.testing.assert_array_equal(out, 2 * x)


def test_stores_by_maps_that_the_kernel_writes():
    """The map of a store is written again once TMA has read it; the function has an argument that is compiled in."""
    shape, count = (24, 40), 4
    out = [aligned(shape) for _ in range(count)]
    addresses = from_dlpack(np.array([x.ctypes.data for x in out], np.int64), assumed_align=8)
    with kiln.target("cpu"), kiln.sanitize():
        compiled, size = compiled_with_workspace(number, addresses, constants=(shape,))
        assert size == 4 * 128 + 127  # a map for each of 2 x 2 CTAs
        compiled(addresses, from_dlpack(np.empty(size, np.uint8)))
    for i, x in enumerate(out):
        np.testing.assert_array_equal(x, np.full(shape, i, np.float16))


def test_states_of_pipelines():
    seen: dict[str, Any] = {}

    @ext.kernel
    def kernel(out: cute.Tensor):
        kind = Kind.SM100_MMA_1SM_SS
        full = ext.TMAToUMMAPipeline.create(num_stages=3, mma_operation_type=kind)
        done = ext.UMMAtoAsyncPipeline.create_with_mask(
            num_stages=1, consumer_type=Kind.SM100_COPY_T2R, consumer_arv_count=32, mma_operation_type=kind,
            cluster_layout_vmnk=None,
        )  # fmt: skip
        seen["pipelines"] = (full.num_stages, full.is_2sm, done.num_stages)
        out[0] = kiln.Int32(full.producer_try_acquire())
        out[1] = full.producer_acquire_and_get_phase(token=full.producer_try_acquire())
        full.producer_commit(elect_leader_cta=True).producer_state.advance()
        out[2], out[3] = full.get_producer_stage(), full.get_producer_phase()
        out[4] = full.consumer_wait_and_get_phase(token=full.consumer_try_wait(token=kiln.Boolean(False)))
        full.consumer_release(elect_one_sync=True, elect_leader_cta=True).consumer_state.advance()
        out[5], out[6] = full.get_consumer_stage(), full.get_consumer_phase()
        after = full.increment_state(full.create_state_at(2, 0))
        out[7], out[8] = after.index, after.phase
        assert full.consumer_tail() is full
        full.producer_acquire().producer_commit().producer_state.advance()
        full.consumer_wait(full.consumer_state).consumer_release().producer_tail()
        done.producer_acquire().producer_commit_and_advance()
        done.consumer_wait().consumer_release_and_advance()
        done.producer_tail()
        iket.range_push("a")
        token = iket.range_start("b", kiln.Int32(3))
        iket.mark("c", 1.0)
        iket.range_end(token, kiln.Int32(3))
        iket.range_pop()
        ahead = iket.sentinel_token("d")
        for i in kiln.range(out[0] + 3):
            iket.range_end(ahead, i)
            if i > 1:
                ahead = iket.range_start("d", kiln.Int64(1 << 40))
            else:
                ahead = iket.range_start("e", kiln.Float64(1.0))
        iket.range_end(ahead)

    @ext.jit
    def main(out: cute.Tensor):
        kernel(out).launch(grid=1, block=32)

    out = np.full(9, -1, np.int32)
    with kiln.target("cpu"):
        main(from_dlpack(out))
    assert out.tolist() == [1, 1, 1, 1, 0, 1, 0, 0, 1]
    assert seen["pipelines"] == (3, False, 1)


# --- wrong uses --------------------------------------------------------------------------------------------------------


def refused(body: Any, match: str, kernel: Any = ext.kernel) -> None:
    """Trace a kernel that must be refused. Its arguments are a matrix and a tile in shared memory."""

    @kernel
    def wrong(x: cute.Tensor):
        layout = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
        body(x, cute.make_tensor(arch.alloc_smem(F16, ROWS * COLUMNS, 128), layout))

    @ext.jit
    def main(x: cute.Tensor):
        wrong(x).launch(grid=1, block=128)

    with kiln.target("cpu"), pytest.raises(DSLBaseError, match=match):
        cute.compile(main, from_dlpack(aligned((64, 64)), assumed_align=16))


def mma(group: Any = tcgen05.CtaGroup.ONE) -> Any:
    K = tcgen05.OperandMajorMode.K
    return sm100.make_trivial_tiled_mma(F16, K, K, F32, group, (128 * group.value, 32))


def part(x: Any) -> Any:
    return cute.zipped_divide(x, (ROWS, COLUMNS))[(None, None), (0, 0)]


def barrier() -> Any:
    return arch.alloc_smem(kiln.Int64, 1, 8)


@cute.jit
def in_branch(x: Any, _: Any) -> None:
    if arch.thread_idx()[0] == 0:
        ext.allocate(F32, TMEM, ext.make_tmem_layout_acc(mma(), (128, 32, 16), 1))


def one_and_two(x: Any, _: Any) -> None:
    ext.allocate(F32, TMEM, ext.make_tmem_layout_acc(mma(), (128, 32, 16), 1))
    ext.allocate(F32, TMEM, ext.make_tmem_layout_acc(mma(), (128, 32, 16), 1), is2cta=True)


@cute.jit
def carried(x: Any, tile: Any) -> None:
    tiles = part(x)
    for i in kiln.range(2):
        ext.tma_load(tiles, tile, barrier())
        tiles = cute.zipped_divide(x, (ROWS, COLUMNS))[(None, None), (i, 0)]


def loaded(x: Any, *, extent: bool) -> Any:
    words = cute.recast_tensor(x, kiln.Int64)
    rows = kiln.Int32(words[1]) if extent else ROWS
    pointer = cute.make_ptr(F16, words[0], mem_space=cute.AddressSpace.gmem, assumed_align=16)
    return part(cute.make_tensor(pointer, cute.make_layout((rows, COLUMNS), stride=(COLUMNS, 1))))


def atom_of(tiled: Any) -> Any:
    return cute.make_mma_atom(tiled.op)


def pipe(**changes: Any) -> Any:
    return ext.TMAToUMMAPipeline.create(**{"num_stages": 2, "mma_operation_type": Kind.SM100_MMA_1SM_SS, **changes})


def accumulators(**changes: Any) -> Any:
    known = {"num_stages": 1, "consumer": Kind.SM100_COPY_T2R, "consumer_arv_count": 128}
    return ext.UMMAtoAsyncPipeline.create(**{**known, "mma_operation_type": Kind.SM100_MMA_1SM_SS, **changes})


registers = lambda: cute.make_rmem_tensor(4, F16)
copied = lambda: cute.make_tiled_copy_tv(
    cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), F16), cute.make_layout(32), cute.make_layout(4)
)
WRONG = [
    (lambda x, t: ext.allocate(F16, cute.AddressSpace.gmem, 4), "address_space of allocate"),
    (in_branch, "tensor memory in a branch or a loop"),
    (one_and_two, r"is2cta=True\) after allocate\(is2cta=False"),
    (lambda x, t: ext.copy(3, t), "between tensors"),
    (lambda x, t: ext.partition_and_copy(copied(), x, registers()), "a thread's slice"),
    (lambda x, t: ext.partition_and_copy(copied().get_slice(0), x, t), "one of them is in registers"),
    (lambda x, t: ext.get_cta_v_map_ab(x, (128, 32, 16), mma(), "C"), "input_operand of get_cta_v_map_ab is 'C'"),
    (lambda x, t: ext.get_cta_v_map_ab(x, (128, 32, 16), 3, "A"), "takes a tiled MMA"),
    (lambda x, t: ext.get_cta_v_map_ab(t, (128, 32, 16), mma(), "A"), "tensor in global memory"),
    (lambda x, t: ext.get_cta_v_map_ab(x, (256, 32, 16), mma(tcgen05.CtaGroup.TWO), "SFB"), "of SFB for an MMA of two"),
    (lambda x, t: ext.get_cta_v_map_c(t, (ROWS, COLUMNS)), "tensor in global memory"),
    (lambda x, t: ext.tma_load(part(x), t, barrier(), tma_operation_type=Kind.SM80_MMA), "is SM80_MMA"),
    (lambda x, t: ext.tma_load(part(x), t, barrier(), multicast_mode=1), "both with a multicast operation"),
    (lambda x, t: ext.tma_load(x, t, barrier()), "the same number of elements"),
    (lambda x, t: ext.tma_load(part(x), t, 3), "takes a pointer"),
    (lambda x, t: ext.tma_load(t, t, barrier()), "tensor in global memory"),
    (lambda x, t: ext.tma_load(part(x), part(x), barrier()), "the tile of tma_load"),
    (carried, "the tensor that it was cut from is not known"),
    (lambda x, t: ext.tma_load(loaded(x, extent=True), t, barrier()), "extents or strides only the kernel knows"),
    (lambda x, t: ext.tma_load(loaded(x, extent=False), t, barrier()), "without a TMAToUMMAPipeline"),
    (lambda x, t: ext.tma_load(part(x), t, barrier(), cta_v_map=4), "cta_v_map of tma_load is 4"),
    (lambda x, t: ext.tma_store(part(x), part(x)), "the tile of tma_store"),
    (
        lambda x, t: ext.tma_load_multicast(
            part(x), t, barrier(), vmnk_layout=None, tma_operation_type=Kind.SM90_TMA_LOAD, multicast_mode=1
        ),
        "both with a multicast operation",
    ),
    (lambda x, t: ext.get_mbarrier(3), "token of a stage to fill, got int"),
    (lambda x, t: ext.pipeline_advance_iterator(None, 3), "takes a state, got int"),
    (lambda x, t: pipe(mma_operation_type=Kind.LD_GLOBAL), "mma_operation_type of TMAToUMMAPipeline"),
    (lambda x, t: pipe(mma_operation_type=Kind.SM100_MMA_2SM_SS), "SM100_MMA_2SM_SS of TMAToUMMAPipeline in a cluster"),
    (lambda x, t: pipe(tma_operation_type=Kind.SM100_TMA_LOAD_2SM), "with tma_operation_type SM100_TMA_LOAD_2SM"),
    (lambda x, t: pipe(num_stages=0), "stages"),
    (
        lambda x, t: ext.TMAToUMMAPipeline.create_with_mask(
            num_stages=2, mma_operation_type=Kind.SM100_MMA_1SM_SS, tma_operation_type=Kind.SM90_TMA_LOAD,
            cluster_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
        ),
        "SM90_TMA_LOAD_MULTICAST",
    ),
    (lambda x, t: accumulators(consumer=Kind.SM90_TMA_LOAD), "consumer of UMMAtoAsyncPipeline is SM90_TMA_LOAD"),
    (lambda x, t: accumulators(mma_operation_type=3), "mma_operation_type of UMMAtoAsyncPipeline is 3"),
    (lambda x, t: ext.TMAStorePipeline(2, 128, 99, 0), "barrier_id is 99"),
    (lambda x, t: ext.TMAStorePipeline(0, 128, 1, 0), "stages"),
    (lambda x, t: ext.dot(3, t, t, t), "dot takes an MMA atom of tcgen05"),
    (lambda x, t: ext.dot(atom_of(mma()), x, t, t), "operand A of tcgen05.mma"),
    (lambda x, t: ext.dot_block_scaled(atom_of(mma()), t, t, t, t, t), "an MMA without scale factors"),
    (
        lambda x, t: ext.epilogue_tma_store((128, 32, 16), False, t, x, (0, 0), None, 0, None, amax_out=t),
        "epilogue_tma_store with amax_out",
    ),
    (lambda x, t: iket.mark(3), "event_name of mark is 3"),
    (lambda x, t: iket.range_push("a", "b"), "payload of range_push"),
    (lambda x, t: iket.range_start("a", (1, 2)), "payload of range_start"),
    (lambda x, t: iket.range_end(3), "range_end takes a token"),
    (lambda x, t: iket.sentinel_token(None), "event_name of sentinel_token"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "match"), WRONG, ids=[match[:40] for _, match in WRONG])
def test_wrong_uses_are_refused(body, match):
    refused(body, match)


def test_other_kernels_have_no_tensor_maps_to_add():
    load = lambda x, t: ext.tma_load(part(x), t, barrier())
    refused(load, "tma_load outside a kernel of cute.experimental", cute.kernel)
    refused(lambda x, t: pipe(), "outside a kernel of cute.experimental", cute.kernel)
