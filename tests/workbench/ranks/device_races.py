"""Right and wrong programs for the sanitizer across devices, run by `kiln run --devices 2`: prints what it finds in each."""

import gc
import json
import os
import sys
import threading

import cutlass.cute as cute
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from cutlass.cute.runtime import make_ptr
from cutlass.utils.distributed import multimem_red_add1

import cutlass
import kiln
from kiln.targets.cpu.sanitizer import several, state

N = 32
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
HAS_READ = vars(sys).setdefault("rank 1 has read", threading.Event())
HAS_WRITTEN = vars(sys).setdefault("rank 0 has written", threading.Event())
"""Orders of the ranks that the sanitizer does not know."""


@cute.kernel
def send(data: cute.Tensor, flag: cute.Tensor, how: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    data[thread] = cutlass.Float32(thread)
    cute.arch.sync_threads()
    if thread == 0:
        if cutlass.const_expr(how == "fence sys"):
            cute.arch.fence_acq_rel_sys()
            cute.arch.atomic_add(flag.iterator, cutlass.Int32(1), sem="relaxed", scope="sys")
        elif cutlass.const_expr(how == "fence gpu"):
            cute.arch.fence_acq_rel_gpu()
            cute.arch.atomic_add(flag.iterator, cutlass.Int32(1), sem="relaxed", scope="sys")
        elif cutlass.const_expr(how != "nothing"):
            sem, scope = how.split()
            cute.arch.atomic_add(flag.iterator, cutlass.Int32(1), sem=sem, scope=scope)


@cute.kernel
def receive(data: cute.Tensor, flag: cute.Tensor, out: cute.Tensor, how: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    if cutlass.const_expr(how == "plain"):
        out[thread] = cutlass.Float32(flag[0])
    else:
        if cutlass.const_expr(how != "nothing"):
            sem, scope = how.split()
            if thread == 0:
                seen = cutlass.Int32(0)
                while seen == 0:
                    seen = cute.arch.load(flag.iterator, cutlass.Int32, sem=sem, scope=scope)
            cute.arch.sync_threads()
        out[thread] = data[thread]


@cute.kernel
def packet(flag: cute.Tensor):
    if cute.arch.thread_idx()[0] == 0:
        cute.arch.store(flag.iterator, cutlass.Int32(1), sem="relaxed", scope="sys")


@cute.jit
def call_packet(flag: cute.Tensor):
    packet(flag).launch(grid=[1, 1, 1], block=[N, 1, 1])


@cute.kernel
def raise_all(flag: cute.Pointer):
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        multimem_red_add1(flag, order="relaxed", scope="sys")


@cute.jit
def call_send(data: cute.Tensor, flag: cute.Tensor, how: cutlass.Constexpr):
    send(data, flag, how).launch(grid=[1, 1, 1], block=[N, 1, 1])


@cute.jit
def call_receive(data: cute.Tensor, flag: cute.Tensor, out: cute.Tensor, how: cutlass.Constexpr):
    receive(data, flag, out, how).launch(grid=[1, 1, 1], block=[N, 1, 1])


@cute.jit
def call_raise_all(flag: cute.Pointer):
    raise_all(flag).launch(grid=[1, 1, 1], block=[N, 1, 1])


out = torch.zeros(N, device="cuda")


class Memory:
    """Data and a flag of rank 1, which both ranks reach."""

    def __init__(self):
        self.own = [symm_mem.empty(N, dtype=dtype, device="cuda") for dtype in (torch.float32, torch.int32)]
        handles = [symm_mem.rendezvous(tensor, dist.group.WORLD) for tensor in self.own]
        self.data = handles[0].get_buffer(1, (N,), torch.float32)
        self.flag = handles[1].get_buffer(1, (N,), torch.int32)
        self.multicast = handles[1].multicast_ptr

    def multicast_flag(self):
        return make_ptr(cutlass.Int32, self.multicast, cute.AddressSpace.gmem, assumed_align=4)


def flag(sent, received):
    """Rank 0 writes data and raises a flag; rank 1 waits for it and reads."""
    memory = Memory()
    if rank == 0:
        call_send(memory.data, memory.flag, sent)
    else:
        call_receive(memory.data, memory.flag, out, received)
    dist.barrier()


def host(meets, reads=False):
    """Rank 0 writes data; then rank 1 writes, or reads, all of it with torch."""
    memory = Memory()
    if rank == 0:
        call_send(memory.data, memory.flag, "nothing")
    if meets:
        dist.barrier()
    if rank == 1:
        memory.own[0].sum().item() if reads else memory.own[0].fill_(1.0)
    dist.barrier()


def launches(meets):
    """Rank 0 writes data in a launch, rank 1 reads it in another one."""
    memory = Memory()
    if rank == 0:
        call_send(memory.data, memory.flag, "nothing")
    if meets:
        dist.barrier()
    if rank == 1:
        call_receive(memory.data, memory.flag, out, "nothing")
    dist.barrier()


def beside(how):
    """Rank 0 writes data while rank 1 uses its shape, the columns beside it, or one of them."""
    memory = Memory()
    wide = symm_mem.empty(N, 2, device="cuda")
    column = symm_mem.rendezvous(wide, dist.group.WORLD).get_buffer(1, (N, 2), torch.float32)[:, 0]
    if rank == 0:
        call_send(column, memory.flag, "nothing")
    elif how == "shape":
        torch.zeros_like(wide), torch.empty_like(wide), wide.new_empty(2)
    else:
        wide[:, ["column", "other"].index(how)].fill_(1.0)
    dist.barrier()


def message(comes_first):
    """Rank 0 writes data and sends a message, before or after; rank 1 has it when both are done, and reads the data."""
    memory = Memory()
    number = torch.zeros(1)
    if rank == 0:
        if comes_first:
            dist.send(number, 1)
        call_send(memory.data, memory.flag, "nothing")
        if comes_first:
            HAS_WRITTEN.set()
        else:
            dist.send(number, 1)
    else:
        if comes_first:
            HAS_WRITTEN.wait()
        dist.recv(number, 0)
        call_receive(memory.data, memory.flag, out, "nothing")
    dist.barrier()


def later_launch():
    """Rank 1 waits for the flag in one launch, and reads the data in the next one."""
    memory = Memory()
    if rank == 0:
        call_send(memory.data, memory.flag, "release sys")
    else:
        call_receive(out, memory.flag, torch.zeros(N, device="cuda"), "acquire sys")
        call_receive(memory.data, memory.flag, out, "nothing")
    dist.barrier()


def old_flag(resets):
    """Two rounds with one flag: without a reset, rank 1 does not wait in the second, and may read before rank 0 writes."""
    memory = Memory()
    for number in range(2):
        if rank == 0:
            if number and not resets:
                HAS_READ.wait()
            call_send(memory.data, memory.flag, "release sys")
        else:
            call_receive(memory.data, memory.flag, out, "acquire sys")
            if number and not resets:
                HAS_READ.set()
        dist.barrier() if not number else None
        if rank == 1 and resets:
            memory.own[1].zero_()
        dist.barrier() if not number else None
    dist.barrier()


def views(atomically):
    """Rank 0 raises a flag of all devices by its multicast address; rank 1 reads its own by the plain one."""
    memory = Memory()
    if rank == 0:
        call_raise_all(memory.multicast_flag())
    else:
        call_receive(memory.data, memory.flag, out, "relaxed sys" if atomically else "plain")
    dist.barrier()


def packets(reads):
    """Rank 0 stores a value that is its own flag, twice; rank 1 reads both, or none."""
    memory = Memory()
    for _ in range(2):
        if rank == 0:
            call_packet(memory.flag)
        elif reads:
            call_receive(memory.data, memory.flag, out, "relaxed sys")
        dist.barrier()


def multicast():
    """Rank 0 writes plainly to a multicast address."""
    memory = Memory()
    if rank == 0:
        pointer = make_ptr(cutlass.Float32, memory.multicast, cute.AddressSpace.gmem, assumed_align=4)
        call_fill(pointer)
    dist.barrier()


@cute.kernel
def fill(data: cute.Pointer):
    thread, _, _ = cute.arch.thread_idx()
    cute.make_tensor(data, N)[thread] = cutlass.Float32(0)


@cute.jit
def call_fill(data: cute.Pointer):
    fill(data).launch(grid=[1, 1, 1], block=[N, 1, 1])


def frees(keeps):
    """Rank 0 writes memory of rank 1 by its address, when no rank has a handle of it, or one has."""
    memory = Memory()
    pointer = make_ptr(cutlass.Float32, memory.data.data_ptr(), cute.AddressSpace.gmem, assumed_align=4)
    memory = memory if keeps else None
    gc.collect()
    dist.barrier()
    if rank == 0:
        call_fill(pointer)
    dist.barrier()


CASES = {
    "release and acquire": lambda: flag("release sys", "acquire sys"),
    "fence and relaxed": lambda: flag("fence sys", "acquire sys"),
    "fence of a device": lambda: flag("fence gpu", "acquire sys"),
    "relaxed send": lambda: flag("relaxed sys", "acquire sys"),
    "relaxed wait": lambda: flag("release sys", "relaxed sys"),
    "narrow send": lambda: flag("release gpu", "acquire sys"),
    "narrow wait": lambda: flag("release sys", "acquire gpu"),
    "launches that meet": lambda: launches(True),
    "launches that do not": lambda: launches(False),
    "a message afterwards": lambda: message(False),
    "a message before": lambda: message(True),
    "a later launch": later_launch,
    "the host after a barrier": lambda: host(True),
    "the host at once": lambda: host(False),
    "the host reads at once": lambda: host(False, reads=True),
    "the host uses a shape": lambda: beside("shape"),
    "the host in another column": lambda: beside("other"),
    "the host in a column": lambda: beside("column"),
    "a flag that is reset": lambda: old_flag(True),
    "an old flag": lambda: old_flag(False),
    "two views, atomic": lambda: views(True),
    "two views, plain": lambda: views(False),
    "packets that are read": lambda: packets(True),
    "packets that nobody reads": lambda: packets(False),
    "a store to a multicast address": multicast,
    "memory that a handle keeps": lambda: frees(True),
    "memory without a handle": lambda: frees(False),
}
for name, case in CASES.items():
    dist.barrier()
    with kiln.sanitize(raises=False) as found:
        case()
    rules = sorted({each.rule for each in [*found.findings, *found.warnings]})
    every = [None, None]
    dist.all_gather_object(every, rules)
    if rank == 0:
        print("found", json.dumps([name, sorted({rule for rules in every for rule in rules})]))
dist.barrier()
if rank == 0:  # as if there had been so many
    several._world().launches = state.MOST_LAUNCHES - 2
dist.barrier()
launches(True)
