"""Going on with random problems for as long as one is told."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def search(attempt: Callable[[str, int], None], kinds: Iterable[str]) -> None:
    """What the command line asks for: `seconds [kind ...]`. Problems that fail are told by their seeds, and make the program fail."""
    seconds, wanted = float(sys.argv[1]), sys.argv[2:] or list(kinds)
    end, seed, failed = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        for kind in wanted:
            try:
                attempt(kind, seed)
            except Exception as failure:
                failed += 1
                print(f"{kind} {seed}: {type(failure).__name__}: {failure}", flush=True)
        seed += 1
    print(f"{seed} problems of each kind, {failed} failed")
    sys.exit(failed > 0)
