"""`os.environ` by rank: each sees the variables that torchrun would set for it."""

# pyright: reportArgumentType=false

from __future__ import annotations

import os
from collections.abc import Iterator

from ..serve_cuda import ranks

_overlays: list[dict[str, str]] = []
"""The variables of each rank, by name, as `os.environ` encodes names."""


def _variables(rank: int, size: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "kiln",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


class _ByRank(type(os.environ)):  # pyright: ignore[reportUntypedBaseClass, reportGeneralTypeIssues]
    """The environment, in which threads of a rank find the variables of their rank. What they set of those stays theirs."""

    def _own(self) -> dict[str, str]:
        rank = ranks.current()
        return {} if rank is None else _overlays[rank]

    def __getitem__(self, key: str) -> str:
        own = self._own()
        name = self.encodekey(key)
        return self.decodevalue(own[name]) if name in own else super().__getitem__(key)

    def __setitem__(self, key: str, value: str) -> None:
        own = self._own()
        name = self.encodekey(key)
        if name in own:
            own[name] = self.encodevalue(value)
        else:
            super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        own = self._own()
        name = self.encodekey(key)
        if name in own:
            del own[name]
        else:
            super().__delitem__(key)

    def __iter__(self) -> Iterator[str]:
        own = self._own()
        yield from map(self.decodekey, own)
        yield from (key for key in super().__iter__() if self.encodekey(key) not in own)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def serve(size: int) -> None:
    """Let threads of ranks see the variables of their rank, whatever the process has of these names."""
    encode = os.environ.encodekey
    value = os.environ.encodevalue
    _overlays[:] = [
        {encode(name): value(text) for name, text in _variables(rank, size).items()} for rank in range(size)
    ]
    os.environ.__class__ = _ByRank
