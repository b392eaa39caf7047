"""Checks that the configs of attention share: tile extents, registers and shared memory."""

from __future__ import annotations

from typing import Any

from ...dispatch.arrays import require


def check_rows(config: Any, *names: str, unit: int = 16, most: int = 256) -> None:
    """Raise unless fields of a config are multiples of an MMA's rows or columns."""
    for name in names:
        rows = getattr(config, name)
        require(
            rows % unit == 0 and unit <= rows <= most, f"{config}: {name} must be a multiple of {unit}, up to {most}"
        )


def check_copies(config: Any, rows: int) -> None:
    """Raise unless the threads of a CTA, which copy `rows` rows at once, copy whole tiles."""
    require(
        config.tile_n % 16 == 0 and config.tile_n % rows == 0 and config.tile_m % rows == 0,
        f"{config}: tile_n must be a multiple of 16, and tile_m and tile_n of the {rows} rows that {config.threads} "
        "threads copy at once",
    )


def check_registers(config: Any, what: str, used: int, other: int, available: int, hint: str) -> None:
    """Raise unless a thread has registers for its fragments and for the rest."""
    require(
        used + other <= available,
        f"{config}: {what} take {used} registers of a thread, which has {available}, and needs about {other} for the "
        "rest",
        hint=hint,
    )


def check_smem(config: Any, smem: int, head_dim: Any, capacity: int, hint: str) -> None:
    """Raise unless a CTA's tiles fit into shared memory."""
    require(
        smem <= capacity,
        f"{config} takes {smem} bytes of smem for head_dim {head_dim}; a CTA has {capacity}",
        hint=hint,
    )
