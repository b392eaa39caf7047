"""Accesses of torch to symmetric memory, for the sanitizer: a dispatch mode sees each operation of a thread."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import checked


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address of a tensor and the bytes from its first to behind its last element."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.itemsize


class HostAccesses(TorchDispatchMode):
    """Tells the sanitizer of tensors that operations read and write. Views access nothing."""

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        schema = func._schema
        if not func.is_view:
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
    if tensor.layout is not torch.strided:
        return
    try:
        address, size = _range(tensor)
    except RuntimeError:  # a tensor without memory, such as a fake one
        return
    checked.accesses(address, size, writes)
