"""The order configs are measured in."""

from __future__ import annotations

from kiln.hardware.devices import device_of
from kiln.workbench.tune import estimates

H100 = device_of("sm_90a")


def launch(blocks: int, threads: int = 128, registers: int = 64, smem: int = 0, spills: int = 0) -> dict:
    return {
        "kernel": "k", "grid": [blocks, 1, 1], "block": [threads, 1, 1], "cluster": [1, 1, 1],
        "smem": smem, "registers": registers, "spills": spills, "local": 0, "barriers": 1,
    }  # fmt: skip


def us(*launches: dict) -> float:
    return estimates.estimate(launches, H100).us


def test_a_few_blocks_more_than_sms_take_twice_as_long() -> None:
    many = H100.sm_count
    assert us(launch(many, 512)) < us(launch(many + 1, 512))
    assert us(launch(many // 2, 512)) > us(launch(many, 512))
    assert us(launch(100 * many, 512)) < 1.02 * us(launch(100 * many + 1, 512))


def test_too_few_warps_are_slower_and_more_than_enough_are_not_faster() -> None:
    blocks = 100 * H100.sm_count
    assert us(launch(blocks, 128, smem=200_000)) > us(launch(blocks, 128))
    assert us(launch(blocks, 1024, 32)) == us(launch(blocks, 256, 32))


def test_what_cannot_be_resident_is_told_why() -> None:
    found = estimates.estimate([launch(1, 1024, 255)], H100)
    assert "1024 threads, 255 registers" in found.no_fit
    assert "registers" in found.no_fit.rpartition(": ")[2]
    assert "shared memory" in estimates.estimate([launch(1, smem=300_000)], H100).no_fit
    assert not estimates.estimate([launch(1)], H100).no_fit


def test_order_is_by_time_spilling_ones_later_unknown_ones_last_then_canonical() -> None:
    fast, spills, slow = (estimates.Estimate(1.0), estimates.Estimate(0.5, 8), estimates.Estimate(9.0))
    assert estimates.order([(0, None), (1, spills), (2, slow), (3, fast), (4, fast)]) == [3, 4, 2, 1, 0]
