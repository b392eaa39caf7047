"""Locks that keep several tuners of one Case from measuring the same config."""

from __future__ import annotations

import contextlib
import fcntl
import os

from ..core.records import Journal


class ConfigLocks:
    """Locks one byte of a file per key; the lock ends with the process, however that ends. For one thread only."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._descriptor: int | None = None

    def take(self, key: str) -> bool:
        """Lock a key; return False if another process holds it."""
        if self._descriptor is None:
            self._journal.make_folder()
            self._descriptor = os.open(self._journal.folder / "claims", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset_of(key))
        except OSError:
            return False
        return True

    def free(self, key: str) -> None:
        """Unlock a key."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, offset_of(key))


def offset_of(key: str) -> int:
    """Return the offset of a key's byte in the lock file."""
    return int(key[:15], 16)
