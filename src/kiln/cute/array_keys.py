"""Keys of arrays, for programs that work out once what to do with arrays of a kind: `plan = plans.get(array_key(x, y))`.

Native code reads the arrays where it knows their types (numpy's, PyTorch's with DLPack's C functions), in a third of the time
that Python takes to ask for the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base_dsl import call_plan
from .arguments import introduce
from .arrays import is_torch_tensor, read_array

if TYPE_CHECKING:
    from collections.abc import Hashable

ALIGNMENT = 128
"""A key tells an address modulo so many bytes."""


def array_key(*arrays: Any) -> Hashable:
    """Equal for arrays (or None) of the same types, devices, extents, strides, writability and alignment, in order.

    The key of one kind of arrays is always made in the same way within a process, but keys of different processes say
    nothing about each other.
    """
    native = call_plan.native()
    if native is not None:
        found = native.describe(*arrays)
        if found is None and sum(introduce(native, x) for x in arrays):
            found = native.describe(*arrays)
        if found is not None:
            return found
    return tuple(None if x is None else _key(x) for x in arrays)


def _key(x: Any) -> Hashable:
    if is_torch_tensor(type(x)):
        return x.dtype, x.shape, x.stride(), x.device, x.data_ptr() % ALIGNMENT
    array = read_array(x)
    return (
        array.dtype,
        tuple(array.shape),
        tuple(array.strides),
        array.device,
        array.readonly,
        array.address % ALIGNMENT,
    )


def stream_of(array: Any) -> int:
    """The handle of the stream on which the framework of an array is working; 0 for arrays of the host."""
    native = call_plan.native()
    if native is not None:
        found = native.stream(array)
        if found is None and introduce(native, array):
            found = native.stream(array)
        if found is not None:
            return found
    if is_torch_tensor(type(array)) and array.is_cuda:
        import torch

        return torch.cuda.current_stream(array.device).cuda_stream
    return 0
