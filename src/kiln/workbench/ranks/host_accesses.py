"""Accesses of torch to symmetric memory, for the sanitizer: a dispatch mode sees each operation of a thread."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import checked


def _rows(tensor: torch.Tensor) -> tuple[int, list[int]]:
    """Return how many bytes of a tensor follow each other, and the offsets from its first byte where such begin."""
    size = tensor.itemsize
    offsets = [0]
    for step, count in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if step == 0 or count == 1:
            continue
        step *= tensor.itemsize
        if step == size and len(offsets) == 1:
            size *= count
        else:
            offsets = [offset + i * step for i in range(count) for offset in offsets]
    return size, offsets


def _accesses_nothing(func: torch._ops.OpOverload) -> bool:
    """Return whether an operation reads no element of its arguments: a view, or a new tensor like another one."""
    name = func._schema.name.partition("::")[2]
    return func.is_view or name.endswith("_like") or name.startswith("new_")


class HostAccesses(TorchDispatchMode):
    """Tells the sanitizer of tensors that operations read and write."""

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        schema = func._schema
        if not _accesses_nothing(func):
            named = list(zip(schema.arguments, args, strict=False))
            named += [(each, kwargs[each.name]) for each in schema.arguments if each.name in kwargs]
            for argument, value in named:
                writes = argument.alias_info is not None and argument.alias_info.is_write
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, torch.Tensor):
                        _tell(tensor, writes)
        return func(*args, **kwargs)


def watch() -> None:
    """Watch the operations of this thread."""
    HostAccesses().__enter__()


def _tell(tensor: torch.Tensor, writes: bool) -> None:
    if tensor.layout is not torch.strided or not tensor.numel():
        return
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a tensor without memory, such as a fake one
        return
    if checked.watches(address):
        size, offsets = _rows(tensor)
        checked.accesses(address, size, writes, offsets)
