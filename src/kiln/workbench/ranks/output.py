"""Output of ranks: whole lines, with the rank before each."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from ..._support import fork_safe
from ..serve_cuda import ranks


class ByRank(io.TextIOBase):
    """A stream of text that writes lines of ranks with `[rank]` before them, each as a whole."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = fork_safe.lock()
        self._begun: dict[int, str] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str, /) -> int:
        rank = ranks.current()
        with self._lock:
            if rank is None:
                self._stream.write(text)
                return len(text)
            *whole, rest = (self._begun.pop(rank, "") + text).split("\n")
            self._stream.write("".join(f"[{rank}] {line}\n" for line in whole))
            if rest:
                self._begun[rank] = rest
        return len(text)

    def flush(self) -> None:
        with self._lock:
            self._stream.flush()

    def finish(self) -> None:
        """Write lines that were begun."""
        with self._lock:
            for rank, text in sorted(self._begun.items()):
                self._stream.write(f"[{rank}] {text}\n")
            self._begun.clear()
            self._stream.flush()


def serve() -> list[ByRank]:
    """Let standard output and errors of ranks be lines with their rank; return the streams."""
    sys.stdout = out = ByRank(sys.stdout)
    sys.stderr = errors = ByRank(sys.stderr)
    return [out, errors]
