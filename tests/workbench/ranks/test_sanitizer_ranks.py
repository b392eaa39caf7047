"""The sanitizer across devices: `kiln run --devices N --sanitize`."""

from __future__ import annotations

import argparse
import ctypes
import json
import textwrap
import threading
from pathlib import Path

import pytest

import kiln
from kiln.base_dsl.diagnostics import DSLWarning
from kiln.targets.cpu.sanitizer import several, state
from kiln.workbench.ranks import checked, heap
from kiln.workbench.serve_cuda import memory, ranks

pytest.importorskip("torch")

RIGHT = {
    "release and acquire",
    "fence and relaxed",
    "launches that meet",
    "a message afterwards",
    "a later launch",
    "the host after a barrier",
    "the host uses a shape",
    "the host in another column",
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
    "the host in a column": "write-write",
    "the host reads at once": "read-write or write-read",
    "a message before": "write-read",
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
    assert done.stderr.count("does not check all that follows: more than 32766 launches") == 1
    assert "of an allocation of 128 bytes of device 1" in done.stderr and "on device 0" in done.stderr


def test_nothing_is_locked_while_the_sanitizer_is_told(monkeypatch):
    """Another thread may have the detector's turn, and its garbage collector free memory."""
    own = heap.Heap(1)
    blocks = [own.allocate(0, 64) for _ in range(2)]
    own.free(blocks[0])
    ended = []

    def told(*_):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(5)
        ended.append(not thread.is_alive())

    work = lambda: own.free(blocks[1])
    monkeypatch.setattr(checked, "takes", told)
    assert own.allocate(0, 64).address == blocks[0].address
    monkeypatch.setattr(ranks, "accesses", told)
    monkeypatch.setattr(ranks._current, "number", 0)
    source, target = (ctypes.create_string_buffer(8) for _ in range(2))
    work = lambda: memory.fill(ctypes.addressof(source), 1, 1, 0)
    memory.copy(ctypes.addressof(target), ctypes.addressof(source), 8)
    assert ended and all(ended)


def test_lanes_of_threads_that_have_ended(monkeypatch):
    """A thread gets the lane of one whose end it knows, else a new one."""

    def point(forgotten=0, **ended):
        it = state.Point()
        it.forgotten = forgotten
        for lane, time in ended.items():
            it.ended[int(lane[1:])] = time
        return it

    own = checked._Checked()
    monkeypatch.setattr(checked, "_checked", own)
    own.free = [5]
    own.retired = {3: point(_3=2), 4: point(_4=7)}
    assert checked._new_lane(point(_3=1, _4=7)) == 4
    assert checked._new_lane(point(_3=1)) == 5
    own.free = [6]
    assert checked._new_lane(point(forgotten=1)) == 3
    assert checked._new_lane(None) == 6 and not own.retired


def test_calls_of_a_build_share_their_facts(monkeypatch):
    calls = several._Calls()
    monkeypatch.setattr(several, "_calls", calls)
    facts = several._of_host("read", None)
    assert several._of_host("read", None) is facts
    first, second = (several._begin_call(facts, 0) for _ in range(2))
    assert first != second
    calls.running.discard(first)
    calls.idle[id(facts), 0] = [first]
    assert several._begin_call(facts, 0) == first
    assert several._begin_call(facts, 1) not in (first, second)
    calls.running = {second}
    monkeypatch.setattr(several, "_world", lambda: argparse.Namespace(forgotten=1))
    several._drop_forgotten()
    assert set(calls.facts) == {second} and not calls.hosts


def test_what_is_not_checked_is_said_once(monkeypatch):
    monkeypatch.setattr(several, "_calls", several._Calls())
    monkeypatch.setattr(checked, "_checked", checked._Checked())
    with pytest.warns(DSLWarning, match="more than 64 threads at once") as said:
        checked._new_lane(None), checked._new_lane(None)
    assert len(said) == 1


def test_the_host_is_checked_where_the_sanitizer_is_on(monkeypatch):
    seen = []
    own = checked._Checked()
    own.heap = heap.Heap(1)
    address = own.heap.allocate(0, 64).address
    monkeypatch.setattr(checked, "_checked", own)
    monkeypatch.setattr(checked.several, "host_access", lambda *what: seen.append(what))
    monkeypatch.delenv("KILN_SANITIZE", raising=False)
    checked.accesses(address, 4, True)
    assert not seen
    with kiln.sanitize():
        checked.accesses(address, 4, True)
    assert len(seen) == 1


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
