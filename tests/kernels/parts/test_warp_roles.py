"""Warp roles are refused where a kernel with them would wait forever, and tell warps, registers and barriers."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Int32, cute
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute import arch
from kiln.hardware import limits
from kiln.kernels.impl.attention.bwd.sm90 import Sm90BackwardKernel
from kiln.kernels.impl.attention.bwd.sm90_hd256_dkv import Sm90Hd256DkDvKernel
from kiln.kernels.impl.attention.bwd.sm90_hd256_dq import Sm90Hd256DqKernel
from kiln.kernels.impl.gemm.sm90_config import Sm90GemmConfig
from kiln.kernels.impl.gemm.sm90_roles import gemm_roles
from kiln.kernels.impl.mla.sm90 import Sm90MlaKernel
from kiln.kernels.parts.warp_roles import RoleBarrier, WarpgroupRole, WarpRoles

PRODUCER = WarpgroupRole("producer", 40, warps=("load", "add", "add"))
CONSUMER = WarpgroupRole("consumer", 232, 2)


def roles(*barriers: RoleBarrier) -> WarpRoles:
    return WarpRoles(PRODUCER, CONSUMER, barriers=barriers)


def test_warps_follow_in_the_order_of_roles():
    own = roles()
    assert own.threads == 384
    assert own.registers_at_start == 168
    assert {name: own.warps(name) for name in ("producer", "load", "add", "consumer")} == {
        "producer": 4,
        "load": 1,
        "add": 2,
        "consumer": 8,
    }
    assert [own.first(name) for name in ("producer", "load", "add", "consumer")] == [0, 0, 1, 4]
    assert [warp for warp in range(12) if own.has(warp, "add")] == [1, 2]
    assert [warp for warp in range(12) if own.has(warp, "load")] == [0]
    assert [warp for warp in range(12) if own.is_up_to(warp, "producer")] == [0, 1, 2, 3]
    assert [own.index(warp, "consumer") for warp in range(4, 12)] == [0] * 4 + [1] * 4
    assert own.registers("consumer") == 232


def test_barriers_have_numbers_and_threads_of_their_own():
    own = roles(RoleBarrier("full", {"consumer": 8, "add": 1}, 2), RoleBarrier("own", {"consumer": 4}, 2))
    barriers = [own.barrier("full", 0), own.barrier("full", 1), own.barrier("own", 0), own.barrier("own", 1)]
    assert [barrier.barrier_id for barrier in barriers] == [1, 2, 3, 4]
    assert [barrier.num_threads for barrier in barriers] == [288, 288, 128, 128]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WarpRoles(PRODUCER, CONSUMER._replace(registers=240)), r"ask for 520 .*at most 504 together"),
        (lambda: WarpRoles(PRODUCER, CONSUMER._replace(registers=230)), r"'consumer' has 230 .*multiple of 8 from 24"),
        (lambda: WarpRoles(PRODUCER._replace(registers=16), CONSUMER), r"'producer' has 16 registers"),
        (lambda: WarpRoles(CONSUMER._replace(registers=264)), r"'consumer' has 264 registers"),
        (lambda: WarpRoles(PRODUCER._replace(warps=tuple("abcde")), CONSUMER), r"names 5 warps, and has 4"),
        (lambda: WarpRoles(PRODUCER._replace(warps=("a", "b", "a")), CONSUMER), r"two roles are called 'a'"),
        (lambda: WarpRoles(PRODUCER, CONSUMER, PRODUCER), r"two roles are called 'producer'"),
        (lambda: WarpRoles(PRODUCER, CONSUMER._replace(warpgroups=0)), r"has 0 warpgroups"),
        (lambda: WarpRoles(PRODUCER, CONSUMER._replace(warpgroups=8)), r"9 warpgroups.*at most 1024 threads"),
        (lambda: WarpRoles(), r"0 warpgroups"),
        (lambda: roles(RoleBarrier("a", {"add": 3})), r"'a' counts 3 warps of 'add', which has 2"),
        (lambda: roles(RoleBarrier("a", {"consumer": 0})), r"'a' counts 0 warps of 'consumer'"),
        (lambda: roles(RoleBarrier("a", {"mma": 4})), r"no warp has the role 'mma'.*'producer', 'load', 'add'"),
        (lambda: roles(RoleBarrier("a", {"add": 1}), RoleBarrier("a", {"add": 2})), r"two barriers are called 'a'"),
        (lambda: roles(RoleBarrier("a", {"add": 1}, 16)), r"16 named barriers.*at most 15"),
        (lambda: roles().barrier("a"), r"no barrier 'a'"),
        (lambda: roles(RoleBarrier("a", {"add": 1}, 2)).barrier("a", 2), r"barrier 2 of 2 for 'a'.*0 to 1"),
        (lambda: roles().registers("load"), r"'load' is one warp of the warpgroup 'producer'.*whole warpgroups"),
        (lambda: roles().index(0, "epilogue"), r"no warpgroup has the role 'epilogue'"),
    ],
)
def test_wrong_roles_are_refused(make, message):
    with pytest.raises(DSLUserCodeTypeError, match=f"(?s){message}"):
        make()


@pytest.mark.parametrize("warpgroups", [1, 2, 4])
def test_registers_that_are_not_all_there_are_refused(warpgroups):
    """The most that roles may ask for is what a CTA starts with, by the hardware's own count."""
    consumer = WarpgroupRole("consumer", 24, warpgroups)
    start = limits.registers_at_start(limits.WARPGROUP * (warpgroups + 1), 1)
    most = min((start * (warpgroups + 1) - 24 * warpgroups) // 8 * 8, 256)
    assert WarpRoles(PRODUCER._replace(registers=most), consumer).registers("producer") == most
    if most < 256:
        with pytest.raises(DSLUserCodeTypeError, match=f"ask for {most + 8 + 24 * warpgroups} registers"):
            WarpRoles(PRODUCER._replace(registers=most + 8), consumer)


_META = WarpRoles(
    WarpgroupRole("producer", 40, warps=("load", "count", "count")),
    WarpgroupRole("consumer", 232, 2),
    barriers=(RoleBarrier("all", {"consumer": 8, "count": 2}), RoleBarrier("each", {"consumer": 4}, 2)),
)


@cute.kernel
def _role_numbers(out: cute.Tensor):
    thread = arch.thread_idx()[0]
    warp = arch.make_warp_uniform(arch.warp_idx())
    if _META.is_up_to(warp, "producer"):
        _META.set_registers("producer")
        out[thread] = Int32(1)
        if _META.has(warp, "count"):
            out[thread] = Int32(2)
            _META.barrier("all").arrive_and_wait()
    else:
        _META.set_registers("consumer")
        group = _META.index(warp, "consumer")
        _META.barrier("each", group).arrive_and_wait()
        _META.barrier("all").arrive_and_wait()
        out[thread] = 3 + group


@cute.jit
def _launch(out: cute.Tensor):
    _role_numbers(out).launch(grid=(1, 1, 1), block=(_META.threads, 1, 1), min_blocks_per_mp=1)


def test_a_kernel_runs_in_its_roles():
    out = np.zeros(_META.threads, np.int32)
    _launch(out)
    assert out.tolist() == [1] * 32 + [2] * 64 + [1] * 32 + [3] * 128 + [4] * 128


def test_kernels_of_the_library_have_roles_that_fit():
    """What a launch asks for is what CTAs have: all roles take all registers but those that no thread can use."""
    own = [
        gemm_roles(Sm90GemmConfig(tile_shape_mnk=(128, 128, 64))),
        Sm90BackwardKernel.roles,
        Sm90Hd256DkDvKernel.roles,
        Sm90Hd256DqKernel.roles,
        Sm90MlaKernel(kiln.Float16, 512).roles,
    ]
    for one in own:
        asked = sum(role.warpgroups * role.registers for role in one.roles)
        assert asked == one.registers_at_start * one.warpgroups
    converting = Sm90MlaKernel(kiln.Float16, 512, kiln.Float8E4M3FN).roles
    assert converting.warps("converter") == 4
    assert converting.threads == 512
