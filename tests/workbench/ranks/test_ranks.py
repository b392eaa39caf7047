"""`kiln run --devices N`: programs of torchrun, a rank for each simulated device."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kiln.workbench import run
from kiln.workbench.ranks import world as worlds
from kiln.workbench.serve_cuda import ranks

torch = pytest.importorskip("torch")


def test_a_rank_is_a_program_with_devices(ranks_program):
    said = ranks_program(
        """
        import os, pickle, sys, threading
        import numpy as np

        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        assert os.environ["LOCAL_RANK"] == os.getenv("RANK") and "MASTER_ADDR" in os.environ and size == 2
        assert dict(os.environ)["RANK"] == str(rank) and list(os.environ).count("RANK") == 1
        os.environ["MASTER_PORT"] = str(rank)
        os.environ["SHARED"] = "yes"

        class Own:
            number = rank

        assert sys.modules["__main__"].Own is Own and pickle.loads(pickle.dumps(Own)) is Own
        seen = []
        thread = threading.Thread(target=lambda: seen.append((os.environ["RANK"], os.environ["MASTER_PORT"])))
        thread.start()
        thread.join()
        assert seen == [(str(rank), str(rank))], seen
        print("part", end=" ")
        print(f"of {rank}", sys.argv[1:], __name__)

        import torch

        assert torch.cuda.device_count() == 2 and torch.cuda.current_device() == 0
        torch.cuda.set_device(rank)
        here, there = torch.device("cuda", rank), torch.device("cuda", 1 - rank)
        x = torch.ones(3, device="cuda")
        assert x.device == here and x.get_device() == rank and (x + 1).device == here and f"cuda:{rank}" in repr(x)
        y = x.to(there)
        assert y.device == there and y.data_ptr() != x.data_ptr() and y.to(here).device == here
        y.copy_(x * 2)
        assert y.tolist() == [2.0, 2.0, 2.0]
        try:
            x + y
        except RuntimeError as refused:
            assert f"cuda:{rank} and cuda:{1 - rank}" in str(refused)
        else:
            raise AssertionError("devices were mixed")
        with torch.cuda.device(there):
            assert torch.zeros(1, device="cuda").device == there
        assert torch.cuda.current_device() == rank and torch.cuda.can_device_access_peer(0, 1)
        for bad in (2, 7):
            try:
                torch.cuda.set_device(bad)
            except RuntimeError as refused:
                assert "there are 2 devices" in str(refused)
            else:
                raise AssertionError("a device that is none")
        torch.manual_seed(5)
        same = torch.rand(2), torch.rand(2, device="cuda")
        torch.manual_seed(5)
        assert torch.equal(torch.rand(2), same[0]) and torch.equal(torch.rand(2, device="cuda"), same[1])
        """
    ).stdout
    assert sorted(said.splitlines()) == ["[0] part of 0 [] __main__", "[1] part of 1 [] __main__"]


COLLECTIVES = """
import os
import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", rank))
assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, size, "nccl")
for device in ("cuda", "cpu"):
    mine = torch.arange(4.0, device=device) + 10 * rank
    every = [torch.arange(4.0) + 10 * r for r in range(size)]

    total = mine.clone()
    dist.all_reduce(total)
    assert torch.equal(total.cpu(), sum(every)) and total.device.type == device
    most = mine.half()
    dist.all_reduce(most, op=dist.ReduceOp.MAX, async_op=True).wait()
    assert torch.equal(most.float().cpu(), every[-1])
    only = mine.clone()
    dist.reduce(only, 1)
    assert torch.equal(only.cpu(), sum(every) if rank == 1 else every[rank])
    got = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(got, mine)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, every))
    whole = torch.empty(4 * size, device=device)
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole.cpu(), torch.cat(every))
    part = torch.empty(4, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(4.0 * size, device=device) * (rank + 1))
    assert torch.equal(part.cpu(), (torch.arange(4.0) + 4 * rank) * sum(range(1, size + 1)))
    dist.reduce_scatter(part, [mine + r for r in range(size)], op=dist.ReduceOp.SUM)
    assert torch.equal(part.cpu(), sum(every) + size * rank)
    swapped = torch.empty(size, device=device)
    dist.all_to_all_single(swapped, torch.arange(float(size), device=device) + 10 * rank)
    assert swapped.tolist() == [10.0 * r + rank for r in range(size)]
    uneven = torch.empty(size * (rank + 1), device=device)
    dist.all_to_all_single(
        uneven,
        torch.cat([torch.full((r + 1,), float(rank), device=device) for r in range(size)]),
        [rank + 1] * size,
        [r + 1 for r in range(size)],
    )
    assert uneven.tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]
    told = torch.full((2,), float(rank), device=device)
    dist.broadcast(told, src=size - 1)
    assert told.tolist() == [size - 1.0] * 2
    spread = torch.empty(1, device=device)
    dist.scatter(spread, [torch.full((1,), 5.0 + r, device=device) for r in range(size)] if rank == 0 else None, src=0)
    assert spread.item() == 5.0 + rank
    pile = [torch.empty(4, device=device) for _ in range(size)] if rank == 0 else None
    dist.gather(mine, pile, dst=0)
    assert rank or torch.equal(torch.stack(pile).cpu(), torch.stack(every))
    right, left = (rank + 1) % size, (rank - 1) % size
    fromleft = torch.empty(4, device=device)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, fromleft, left)]):
        work.wait()
    assert torch.equal(fromleft.cpu(), every[left])
    if rank == 0:
        dist.send(mine, 1, tag=3)
    elif rank == 1:
        dist.recv(fromleft, 0, tag=3)
        assert torch.equal(fromleft.cpu(), every[0])
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": r} for r in range(size)]
told = [f"from {rank}"]
dist.broadcast_object_list(told, src=0)
assert told == ["from 0"]
pair = dist.new_group([0, 1])
if rank < 2:
    x = torch.ones(1) * (rank + 1)
    dist.all_reduce(x, group=pair)
    assert x.item() == 3.0 and dist.get_world_size(pair) == 2
dist.barrier(device_ids=[rank])
dist.destroy_process_group()
assert not dist.is_initialized()
print("good")
"""


def test_collectives(ranks_program):
    assert sorted(ranks_program(COLLECTIVES, 3).stdout.split("\n"))[1:] == [f"[{r}] good" for r in range(3)]


def test_the_first_failure_ends_the_ranks(ranks_program):
    done = ranks_program(
        """
        import os, sys
        import torch.distributed as dist

        dist.init_process_group("nccl")
        if os.environ["RANK"] == "1":
            raise ValueError("of rank 1")
        dist.barrier()
        print("never")
        """,
        fails=True,
    )
    assert done.returncode == 1 and "never" not in done.stdout
    assert "[1] ValueError: of rank 1" in done.stderr and "[0]" not in done.stderr
    assert "run.py" not in done.stderr and "running.py" not in done.stderr


def in_ranks(size: int, act: Callable[[worlds.World, int], object]) -> list[object]:
    """Runs a function in a thread for each rank of a world; what it returns or raises there."""
    world = worlds.World(size)
    results: list[object] = [None] * size

    def run_rank(number: int) -> None:
        ranks.become(number)
        try:
            results[number] = act(world, number)
        except BaseException as failure:
            results[number] = failure
        world.end(number, "has ended", failed=False)

    threads = [threading.Thread(target=run_rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_that_disagree():
    everyone = range(3)
    total = lambda world, rank: world.meet("group", everyone, "add()", rank, lambda data: sum(data.values()))
    assert in_ranks(3, lambda world, rank: [total(world, rank) for _ in range(20)]) == [[3] * 20] * 3
    calls = ["all_reduce()", "barrier()", "barrier()"]
    said = in_ranks(3, lambda world, rank: world.meet("group", everyone, calls[rank], None, len))
    assert all("rank 0 is in all_reduce() and rank 1 is in barrier()" in str(each) for each in said)
    said = in_ranks(3, lambda world, rank: rank and world.meet("group", everyone, "barrier()", None, len))
    assert said[0] == 0 and all("barrier() waits for rank 0, which has ended" in str(each) for each in said[1:])
    said = in_ranks(2, lambda world, rank: world.meet("group", range(2), "divide()", rank, lambda data: 1 // data[0]))
    assert all(isinstance(each, ZeroDivisionError) for each in said)


def test_wrong_numbers_of_devices(capsys):
    for words, why in (
        (["--devices", "0", "x.py"], "1 to 16 devices"),
        (["--devices", "17", "x.py"], "1 to 16 devices"),
        (["--devices", "2", "--target", "nvidia", "x.py"], "works on the CPU target"),
    ):
        with pytest.raises(SystemExit):
            run.main(words)
        assert why in capsys.readouterr().err


def test_a_thread_of_no_rank():
    assert ranks.current() is None
    with pytest.raises(AssertionError, match="a thread of no rank"):
        worlds.World(2).here()
