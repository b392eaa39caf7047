"""What a process is at, so that others that work on the same Case leave it alone."""

from __future__ import annotations

import contextlib
import fcntl
import os

from ..core.records import Journal


class Claims:
    """A byte of a file for each key, locked as long as the job is under way, whatever ends the process. Of use to one thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._descriptor: int | None = None

    def take(self, key: str) -> bool:
        """Whether nobody else is at it."""
        if self._descriptor is None:
            self._journal.make_folder()
            self._descriptor = os.open(self._journal.folder / "claims", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place_of(key))
        except OSError:
            return False
        return True

    def free(self, key: str) -> None:
        """Let others have it."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, place_of(key))


def place_of(key: str) -> int:
    """Of a key's byte."""
    return int(key[:15], 16)
