"""The mark that makes a CPU tensor one "on cuda"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

MARK = "_kiln_on_cuda"


def is_marked(x: object) -> bool:
    """Return whether a tensor counts as one on the GPU. Its storage is marked as well, since torch may wrap it anew."""
    mark_ = getattr(x, MARK, None)
    if mark_ is None and isinstance(x, torch.Tensor):
        storage = _storage(x)
        mark_ = storage is not None and hasattr(storage, MARK)
    return bool(mark_)


def _storage(x: torch.Tensor) -> Any:
    """Return the storage of a tensor; None for sparse, fake and other tensors without one."""
    if x.layout is not torch.strided or hasattr(x, "fake_device"):
        return None
    try:
        return torch.Tensor.untyped_storage(x)
    except (NotImplementedError, RuntimeError):
        return None


def mark(x: torch.Tensor, on_cuda: bool) -> None:
    """Mark a tensor as one on the GPU, or as one on the CPU."""
    if on_cuda != is_marked(x):
        setattr(x, MARK, on_cuda)
        storage = _storage(x)
        if storage is not None and on_cuda:
            setattr(storage, MARK, True)
        if hasattr(x, "fake_device"):  # a FakeTensor has no storage, and stores its device
            x.fake_device = torch.device("cuda", 0) if on_cuda else torch.device("cpu")


def tensors_in(x: object) -> Iterable[torch.Tensor]:
    """Yield the tensors in arguments or results."""
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, (tuple, list)):
        for element in x:
            yield from tensors_in(element)
    elif isinstance(x, dict):
        for element in x.values():
            yield from tensors_in(element)
