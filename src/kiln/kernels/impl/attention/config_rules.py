"""Rules that the configs of attention share: threads that copy whole tiles, and registers."""

from __future__ import annotations

from ...dispatch.config import Rule


def copies_whole_tiles(tile_m: int, tile_n: int, threads: int, rows: int) -> Rule:
    """Return the rule that the threads of a CTA, which copy `rows` rows at once, copy whole tiles."""
    return Rule(
        tile_n % 16 == 0 and tile_n % rows == 0 and tile_m % rows == 0,
        f"tile_n must be a multiple of 16, and tile_m and tile_n of the {rows} rows that {threads} threads copy at once",
    )


def fits_registers(what: str, used: int, other: int, available: int, hint: str) -> Rule:
    """Return the rule that a thread has registers for its fragments and for the rest."""
    text = f"{what} take {used} registers of a thread, which has {available}, and needs about {other} for the rest"
    return Rule(used + other <= available, text, hint)
