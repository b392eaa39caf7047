"""The mark that makes a CPU tensor one "on cuda": the number of its device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

MARK = "_kiln_on_cuda"


def device_number(x: object) -> int | None:
    """Return the number of the GPU that a tensor counts as being on; None for one on the CPU.

    Its storage is marked as well, since torch may wrap it anew.
    """
    mark_ = getattr(x, MARK, None)
    if mark_ is None and isinstance(x, torch.Tensor):
        mark_ = getattr(_storage(x), MARK, None)
    return None if mark_ is None or mark_ is False else int(mark_)


def is_marked(x: object) -> bool:
    """Return whether a tensor counts as one on a GPU."""
    return device_number(x) is not None


def _storage(x: torch.Tensor) -> Any:
    """Return the storage of a tensor; None for sparse, fake and other tensors without one."""
    if x.layout is not torch.strided or hasattr(x, "fake_device"):
        return None
    try:
        return torch.Tensor.untyped_storage(x)
    except (NotImplementedError, RuntimeError):
        return None


def mark(x: torch.Tensor, number: int | None) -> None:
    """Mark a tensor as one on a GPU, or as one on the CPU."""
    if number != device_number(x):
        setattr(x, MARK, False if number is None else number)
        storage = _storage(x)
        if storage is not None and number is not None:
            setattr(storage, MARK, number)
        if hasattr(x, "fake_device"):  # a FakeTensor has no storage, and stores its device
            x.fake_device = torch.device("cpu") if number is None else torch.device("cuda", number)


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


def number_among(tensors: Iterable[torch.Tensor]) -> int | None:
    """Return the GPU of the first tensor that is on one; None if all are on the CPU."""
    return next((number for x in tensors if (number := device_number(x)) is not None), None)
