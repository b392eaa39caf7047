"""The sanitizer across devices: `kiln run --devices N --sanitize`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

RIGHT = {
    "release and acquire",
    "fence and relaxed",
    "launches that meet",
    "a later launch",
    "the host after a barrier",
    "a flag that is reset",
    "two views, atomic",
    "packets that are read",
    "memory that a handle keeps",
}
WRONG = {
    "fence of a device": "write-read",
    "relaxed send": "write-read",
    "relaxed wait": "write-read",
    "narrow send": "device-scope",
    "narrow wait": "device-scope",
    "launches that do not": "read-write or write-read",
    "the host at once": "write-write",
    "the host reads at once": "read-write or write-read",
    "an old flag": "read-write",
    "two views, plain": "atomic",
    "packets that nobody reads": "overwritten",
    "a store to a multicast address": "multicast",
    "memory without a handle": "freed",
}


def test_rules_across_devices(child):
    program = Path(__file__).with_name("device_races.py")
    done = child("-m", "kiln", "run", "--devices", "2", "--sanitize", str(program), KILN_CPU_OPT="0")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition("found ")[2] for line in done.stdout.splitlines() if line.startswith("[0] found")]
    found = dict(map(json.loads, lines))
    assert {name: rules for name, rules in found.items() if name in RIGHT and rules} == {}
    missed = {name: found.get(name) for name, rule in WRONG.items() if not set(rule.split(" or ")) & set(found[name])}
    assert missed == {} and set(found) == RIGHT | WRONG.keys()
    assert "of an allocation of 128 bytes of device 1" in done.stderr and "on device 0" in done.stderr


def test_a_deadlock_says_who_wrote_last(child, tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import os
            import torch, torch.distributed as dist, torch.distributed._symmetric_memory as symm_mem
            import cutlass, cutlass.cute as cute

            rank = int(os.environ["RANK"])
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")

            @cute.kernel
            def waiter(own: cute.Tensor, peer: cute.Tensor):
                if cute.arch.thread_idx()[0] == 0:
                    cute.arch.atomic_add(peer.iterator, cutlass.Int32(1), sem="release", scope="sys")
                    while cute.arch.load(own.iterator, cutlass.Int32, sem="acquire", scope="sys") < 2:
                        pass

            @cute.jit
            def launch(own: cute.Tensor, peer: cute.Tensor):
                waiter(own, peer).launch(grid=[1, 1, 1], block=[32, 1, 1])

            flag = symm_mem.empty((4,), dtype=torch.int32, device="cuda")
            handle = symm_mem.rendezvous(flag, dist.group.WORLD)
            launch(flag, handle.get_buffer(1 - rank, (4,), torch.int32))
            """
        )
    )
    done = child("-m", "kiln", "run", "--devices", "2", "--sanitize", "program.py", KILN_CPU_OPT="0")
    assert done.returncode == 1 and "deadlock of several devices: rank 0 spins in kernel waiter" in done.stderr
    assert "whose 32 bits are 0x1, written last by thread 0 of block 0 of waiter on device 1, " in done.stderr
