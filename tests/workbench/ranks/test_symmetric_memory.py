"""Symmetric memory of simulated devices: torch's, NVSHMEM's, and kernels that reach peers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

TORCH = """
import os
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import _SymmetricMemory

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
assert _SymmetricMemory.has_multicast_support(DeviceType.CUDA, 0)
if rank:
    symm_mem.empty(100, device="cuda")  # addresses need not be alike
t = symm_mem.empty((4, 8), dtype=torch.float32, device="cuda")
assert t.device == torch.device("cuda", rank) and not t.any()
handle = symm_mem.rendezvous(t, dist.group.WORLD)
assert (handle.rank, handle.world_size, handle.buffer_ptrs[rank], handle.buffer_size) == (rank, size, t.data_ptr(), 128)
t.fill_(rank + 1)
handle.barrier()
for peer in range(size):
    other = handle.get_buffer(peer, (8,), torch.float32, 8)
    assert other.device == t.device and other.tolist() == [peer + 1.0] * 8
handle.barrier(channel=1)
handle.get_buffer((rank + 1) % size, (4, 8), torch.float32)[3, 7] = 50 + rank
handle.barrier()
assert t[3, 7] == 50 + (rank - 1) % size
t.fill_(rank + 1)
handle.barrier()
if rank == 0:
    handle.put_signal(1)
elif rank == 1:
    handle.wait_signal(0)
expected = sum(range(1, size + 1))
assert torch.ops.symm_mem.one_shot_all_reduce(t, "sum", dist.group.WORLD.group_name).eq(expected).all()
out = torch.empty_like(t)
torch.ops.symm_mem.multimem_one_shot_all_reduce_out(t, "sum", dist.group.WORLD.group_name, out)
assert out.eq(expected).all() and t.eq(rank + 1).all()
torch.ops.symm_mem.multimem_all_reduce_(t, "sum", dist.group.WORLD.group_name)
assert t.eq(expected).all()
for wrong, words in (
    (lambda: symm_mem.rendezvous(torch.ones(3, device="cuda")), "allocate it with symm_mem.empty"),
    (lambda: handle.get_buffer(0, (33,), torch.float32), "the allocation has 128 bytes"),
    (lambda: symm_mem.empty(3, device="cpu"), "memory of a GPU"),
):
    try:
        wrong()
    except RuntimeError as refused:
        assert words in str(refused), refused
    else:
        raise AssertionError(words)
try:
    symm_mem.rendezvous(symm_mem.empty(8 + rank, device="cuda"))
except RuntimeError as refused:
    assert "differ in size" in str(refused) and "36 bytes on rank 1" in str(refused)
else:
    raise AssertionError("sizes differ")
"""


NVSHMEM = """
from cuda.core import Device
import nvshmem.core
from cuda.pathfinder import load_nvidia_dynamic_lib

load_nvidia_dynamic_lib("nvshmem_host")
device = Device(rank)
device.set_current()
assert torch.cuda.current_device() == rank and device.create_stream().__cuda_stream__()[1]
nvshmem.core.init(device=device, uid=nvshmem.core.get_unique_id(empty=rank != 0), rank=rank, nranks=size)
assert (nvshmem.core.my_pe(), nvshmem.core.n_pes()) == (rank, size)
mine = nvshmem.core.tensor((3, 4), dtype=torch.float32)
mine.fill_(rank)
nvshmem.core.barrier()
for peer in range(size):
    assert nvshmem.core.get_peer_tensor(mine, peer).eq(peer).all()
many = nvshmem.core.get_multicast_tensor(nvshmem.core.Teams.TEAM_NODE, mine)
assert many.shape == mine.shape and many.data_ptr() != mine.data_ptr()
try:
    nvshmem.core.get_multicast_tensor(nvshmem.core.Teams.TEAM_NODE, torch.ones(2, device="cuda"))
except RuntimeError as refused:
    assert "takes a tensor of nvshmem.core.tensor()" in str(refused)
else:
    raise AssertionError
nvshmem.core.free_tensor(many)
nvshmem.core.free_tensor(mine)
nvshmem.core.finalize()
"""


def test_symmetric_memory_of_torch_and_nvshmem(ranks_program):
    ranks_program(TORCH + NVSHMEM, 3)


TWO_SHOT = """
import os
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import cutlass, cutlass.cute as cute, cutlass.torch
from cutlass import utils
from cutlass.cute.runtime import from_dlpack

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


@cute.kernel
def all_reduce(x: cute.Tensor, flag: cute.Tensor, flags: cute.Tensor, rank: cutlass.Constexpr, size: cutlass.Constexpr):
    thread = cute.arch.thread_idx()[0]
    block = cute.arch.block_idx()[0]
    place = x.iterator + 4 * (thread + 32 * (block * size + rank))
    words = utils.distributed.multimem_ld_reduce_4xf32(place)
    utils.distributed.multimem_st_4xb32(place, *words)
    cute.arch.sync_threads()
    if thread == 0:
        utils.distributed.multimem_red_add1(flags.iterator + block, order="release", scope="sys")
        utils.distributed.spin_lock_atom_cas_relaxed_wait(
            flag.iterator + block, expected_val=size, reset_val=0, scope="sys"
        )


@cute.jit
def launch(x: cute.Tensor, flag: cute.Tensor, flags: cute.Tensor, rank: cutlass.Constexpr, size: cutlass.Constexpr):
    all_reduce(x, flag, flags, rank, size).launch(grid=[4, 1, 1], block=[32, 1, 1])


def symmetric(shape, dtype):
    t = symm_mem.empty(shape, dtype=dtype, device="cuda")
    handle = symm_mem.rendezvous(t, dist.group.WORLD)
    return t, cutlass.torch.as_tensor(handle.multicast_ptr, shape, dtype)


x, multicast = symmetric((4 * size * 128,), torch.float32)
flag, flags = symmetric((4,), torch.int32)
for turn in range(3):
    torch.manual_seed(rank + turn)
    mine = torch.randn(x.shape, device="cuda")
    x.copy_(mine)
    dist.barrier()
    launch(*map(from_dlpack, (multicast, flag, flags)), rank, size)
    dist.barrier()
    dist.all_reduce(mine)
    torch.testing.assert_close(x.cpu(), mine.cpu())
    assert not flag.any()
print("good")
"""


def test_kernels_reach_peers_by_multicast(ranks_program):
    assert ranks_program(TWO_SHOT, 4).stdout.count("good") == 4


def test_a_flag_that_nobody_raises(ranks_program):
    done = ranks_program(
        """
        import os
        import torch, torch.distributed as dist, torch.distributed._symmetric_memory as symm_mem
        import cutlass, cutlass.cute as cute
        from cutlass import utils
        from cutlass.cute.runtime import from_dlpack

        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")

        @cute.kernel
        def waiter(flag: cute.Tensor):
            if cute.arch.thread_idx()[0] == 0:
                utils.distributed.spin_lock_ld_lt_relaxed_wait(flag.iterator + 2, expected_val=1, scope="sys")

        @cute.jit
        def launch(flag: cute.Tensor):
            waiter(flag).launch(grid=[2, 1, 1], block=[32, 1, 1])

        flag = symm_mem.empty((4,), dtype=torch.int32, device="cuda")
        symm_mem.rendezvous(flag, dist.group.WORLD)
        if rank == 0:
            dist.barrier()
        else:
            launch(from_dlpack(flag))
        """,
        3,
        fails=True,
    )
    said = done.stderr
    assert "deadlock of several devices: rank 0 waits in barrier(); rank 1 spins in kernel waiter on address" in said
    assert (
        "byte 8 of an allocation of 16 bytes of device 1), whose 32 bits are 0x0; rank 2 spins in kernel waiter" in said
    )
    assert "utils.distributed.spin_lock_ld_lt_relaxed_wait" in said and "[0]" not in said


def test_streams_of_a_graph_run_beside_each_other(ranks_program):
    ranks_program(
        """
        import torch
        import cutlass, cutlass.cute as cute
        import cuda.bindings.driver as cuda
        from cutlass import utils
        from cutlass.cute.runtime import from_dlpack

        @cute.kernel
        def waiter(flag: cute.Tensor, x: cute.Tensor):
            if cute.arch.thread_idx()[0] == 0:
                utils.distributed.spin_lock_ld_lt_relaxed_wait(flag.iterator, expected_val=1, scope="gpu")
                x[0] = x[0] + 1

        @cute.jit
        def launch(flag: cute.Tensor, x: cute.Tensor, stream: cuda.CUstream):
            waiter(flag, x).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

        flag, one, x = (torch.tensor([value], dtype=torch.int32, device="cuda") for value in (0, 1, 40))
        waits, copies, whole = (torch.cuda.Stream() for _ in range(3))
        compiled = cute.compile(launch, from_dlpack(flag), from_dlpack(x), cuda.CUstream(waits.cuda_stream))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=whole):
            waits.wait_stream(whole)
            copies.wait_stream(whole)
            compiled(from_dlpack(flag), from_dlpack(x), cuda.CUstream(waits.cuda_stream))  # before what it waits for
            cuda.cuMemcpyDtoDAsync(flag.data_ptr(), one.data_ptr(), 4, copies.cuda_stream)
            done = torch.cuda.Event()
            done.record(waits)
            whole.wait_event(done)
            whole.wait_stream(copies)
            x.mul_(2)
        assert (flag.item(), x.item()) == (0, 40)
        graph.replay()
        assert (flag.item(), x.item()) == (1, 82)
        """,
        1,
    )
