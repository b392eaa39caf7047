"""`kiln cache info|clear`: shows what the cache of compiled code holds, or empties it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from kiln.base_dsl import cache, cache_folder, settings

from .core.options import Parser


def main(argv: Sequence[str]) -> int:
    action = make_parser().parse_args(argv).action
    name = settings.get("CUTE_DSL_CACHE_DIR")
    why = cache_folder.unusable(name)
    if why is not None:
        print(f"there is no cache directory: {why}; CUTE_DSL_CACHE_DIR names one that you alone can write to")
        return 1
    if action == "clear":
        print(f"removed {cache.clear(name)} entries from {name}")
        return 0
    entries = list(cache.entries(name))
    size = sum(status.st_size for _, status in entries)
    print(f"{name}: {len(entries)} entries, {size / 2**20:.1f} MiB of at most {cache.LIMIT / 2**20:.0f} MiB")
    if entries:
        times = [status.st_mtime for _, status in entries]
        print(f"used between {_date(min(times))} and {_date(max(times))}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="kiln cache", description=__doc__)
    actions = "info: print where the cache is and what it holds; clear: empty it"
    parser.add_argument("action", choices=["info", "clear"], help=actions)
    return parser


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
