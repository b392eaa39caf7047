"""Occupancy by the published rules, for every architecture; on sm_90 also as the driver of an H200 answered for real kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.hardware.architectures import GENERATIONS, Arch
from kiln.hardware.occupancy import occupancy


@pytest.mark.parametrize("of", GENERATIONS, ids=lambda of: f"sm_{of.number}")
def test_c13_no_resource_is_given_twice_and_one_more_block_would_not_fit(of):
    for threads in (32, 96, 128, 192, 256, 384, 512, 1024):
        for registers in (16, 32, 40, 64, 72, 96, 128, 168, 255):
            for shared in (0, 1 << 10, 20_000, 48 << 10, of.smem_optin, of.smem_per_block):
                whole = of.smem if shared <= of.smem_optin else of.oversized_smem
                got = occupancy(of, threads, registers, shared, 1)
                warps = -(-threads // 32)
                per_warp = -(-registers * 32 // 256) * 256
                used = got.blocks * warps
                assert used <= of.threads // 32 and got.blocks <= of.blocks and got.warps == used
                assert used * per_warp <= of.registers
                taken = -(-(shared + 1024) // 128) * 128
                assert got.blocks * taken <= got.carve_out <= whole
                more = got.blocks + 1
                # A warp's registers are in one of four parts.
                parts = 4 * (of.registers // 4 // per_warp)
                too_much = {
                    "registers": more * warps > parts or per_warp * (-(-warps // 4) * 4) > of.registers,
                    "shared memory": more * taken > whole,
                    "warps": more * warps > of.threads // 32,
                    "blocks": more > of.blocks,
                }
                assert got.limiter == ", ".join(name for name, full in too_much.items() if full)


def test_c13_the_driver_of_an_h200_gives_the_same_numbers():
    """`cuOccupancyMaxActiveBlocksPerMultiprocessor` for 42 kernels with 8 blocks each: threads, registers, shared memory, barriers, answer."""
    recorded = json.loads((Path(__file__).resolve().parents[1] / "helpers" / "occupancy_sm90.json").read_text())
    assert len(recorded) == 336 and len({row[1] for row in recorded}) == 26
    assert [row for row in recorded if occupancy("sm_90", *row[:4]).blocks != row[4]] == []


def test_known_answers():
    assert str(occupancy("sm_90a", 256, 32)) == "8 blocks, 64 of 64 warps, limited by registers, warps"
    assert str(occupancy(Arch.sm_80, 128, 168, 40_000)) == "3 blocks, 12 of 64 warps, limited by registers"
    assert str(occupancy("sm_100a", 128, 32, columns=128)) == "4 blocks, 16 of 64 warps, limited by tensor memory"
    assert occupancy("sm_120a", 128, 32, columns=128).blocks == 0
    assert occupancy("sm_86", 1024, 64).limits["warps"] == 1 and occupancy("sm_89", 32).blocks == 24
    # Half of the 228 KiB, less the KiB that each block's system part takes.
    assert (
        occupancy("sm_90", 128, 32, 113 << 10).blocks == 2 and occupancy("sm_90", 128, 32, (113 << 10) + 1).blocks == 1
    )
    assert (
        occupancy("sm_90", 128, 32, 0).carve_out == 16 << 10
        and occupancy("sm_90", 128, 32, 227 << 10).carve_out == 228 << 10
    )


def test_what_does_not_fit_alone_has_no_block_and_a_reason():
    assert (occupancy("sm_120", 128, 32, 100 << 10).blocks, occupancy("sm_120", 128, 32, 100 << 10).limiter) == (
        0,
        "shared memory",
    )
    assert occupancy("sm_90", 384, 255).limiter == "registers" and occupancy("sm_90", 1056, 16).limiter == "warps"
    assert (
        occupancy("sm_90", 32, 256).limiter == "registers" and occupancy("sm_90", 32, 16, 0, 17).limiter == "barriers"
    )
    for bad in ((0, 1, 1), (32, -1, 0), (32, 1, -1)):
        with pytest.raises(ValueError, match="a block of"):
            occupancy("sm_90", *bad)
    with pytest.raises(ValueError, match="not a GPU architecture"):
        occupancy("hopper", 32)
