"""Finds where the running PyTorch keeps what native code reads of a tensor, and proves it before it is used.

PyTorch promises none of it. A proof reads tensors with known properties through the offsets and compares what it finds
with what PyTorch says about them. Where a proof fails, Python reads the tensors, and calls of operators go through the
dispatcher.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, NamedTuple

from ...base_dsl import packages


class TensorLayout(NamedTuple):
    """Offsets in bytes, and dispatch keys as PyTorch packs them in a word."""

    implementation: int
    """In a Python tensor: the pointer to its TensorImpl."""
    keys: int
    """In a TensorImpl: its dispatch keys."""
    refused: int
    """The keys of tensors that are not the numbers in their memory: lazy negatives (`x.conj().imag`), zeros without
    memory."""


class ProbeError(Exception):
    """PyTorch's internals are not as native code assumes; says how."""


_IMPLEMENTATION_WORDS = 3
_KEYS_WORDS = 32
"""The numbers of words of a Python tensor, and of a TensorImpl, that are searched."""


@functools.lru_cache(maxsize=1)
def tensor_layout() -> TensorLayout | None:
    """Return the layout of tensors in this process, or None, with a line in the log, if it could not be proved."""
    try:
        tensors = examples()
        layout = find_layout(tensors)
        prove_layout(layout, tensors)
    except (AttributeError, ProbeError, RuntimeError, TypeError) as reason:
        packages.without("torch records", reason)
        return None
    return layout


BUMP_VERSION = "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE"
"""Raises the version of a tensor, by which autograd finds that a saved tensor was changed."""


@functools.lru_cache(maxsize=1)
def write_counter() -> tuple[int, int]:
    """Return the dispatch key of tensors with a version, and the address of the C++ function that raises it.

    Both are 0, with a line in the log, where that could not be proved.
    """
    import torch

    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
        bump = getattr(library, BUMP_VERSION)
        tensor = torch.zeros(1)
        handle = ctypes.c_uint64(tensor._cdata)
        before = tensor._version
        bump.restype = None
        bump.argtypes = [ctypes.c_void_p]
        bump(ctypes.addressof(handle))
        if tensor._version != before + 1:
            raise ProbeError(f"bump_version makes version {tensor._version} of {before}")
        counted = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView).raw_repr()
    except (AttributeError, OSError, ProbeError, RuntimeError) as reason:
        packages.without("torch versions", reason)
        return 0, 0
    return counted, ctypes.cast(bump, ctypes.c_void_p).value or 0


def examples() -> list[Any]:
    """Return tensors that differ in what their dispatch keys say."""
    import torch

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, x: torch.Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError

    plain = torch.zeros(2)
    numbers = torch.zeros(2, dtype=torch.complex64)
    with torch.inference_mode():
        inference = torch.zeros(2)
    return [
        plain,
        torch.zeros(2, 3).T,
        torch.ones(3, dtype=torch.int64),
        torch.zeros(2, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2)),
        numbers,
        numbers.conj(),
        numbers.conj().imag,
        torch._efficientzerotensor(2),
        plain.to_sparse(),
        torch.zeros(2, device="meta"),
        Wrapper(plain),
        inference,
    ]


def find_layout(tensors: list[Any]) -> TensorLayout:
    """Search for the offsets at which all tensors hold their implementation and its dispatch keys."""
    import torch

    refused = [getattr(torch._C.DispatchKey, name) for name in ("Negative", "ZeroTensor")]
    implementations = [x._cdata for x in tensors]
    keys = [torch._C._dispatch_keys(x).raw_repr() for x in tensors]
    return TensorLayout(
        _offset_of(implementations, [id(x) for x in tensors], _IMPLEMENTATION_WORDS, "implementation"),
        _offset_of(keys, implementations, _KEYS_WORDS, "dispatch keys"),
        sum(torch._C.DispatchKeySet(key).raw_repr() for key in refused),
    )


def _offset_of(words: list[int], addresses: list[int], count: int, what: str) -> int:
    held = [(ctypes.c_uint64 * count).from_address(address) for address in addresses]
    offsets = [8 * n for n in range(count) if all(row[n] == word for row, word in zip(held, words, strict=True))]
    if len(offsets) != 1:
        raise ProbeError(f"the {what} of tensors are at {len(offsets)} of the offsets searched, not at one")
    return offsets[0]


def keys_of(layout: TensorLayout, tensor: Any) -> int:
    """Return the dispatch keys of a tensor as native code reads them."""
    implementation = ctypes.c_uint64.from_address(id(tensor) + layout.implementation).value
    if implementation != tensor._cdata:
        raise ProbeError(f"a tensor does not point to its implementation at offset {layout.implementation}")
    return ctypes.c_uint64.from_address(implementation + layout.keys).value


def prove_layout(layout: TensorLayout, tensors: list[Any]) -> None:
    """Compare the dispatch keys read by a layout with what PyTorch says of each tensor. Raises `ProbeError`."""
    import torch

    def has(keys: int, name: str) -> bool:
        return keys & torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr() != 0

    plain = (torch.Tensor, torch.nn.Parameter)
    for tensor in tensors:
        keys = keys_of(layout, tensor)
        says = {
            "conjugate": (has(keys, "Conjugate"), tensor.is_conj()),
            "negative": (has(keys, "Negative"), tensor.is_neg()),
            "zero": (has(keys, "ZeroTensor"), tensor._is_zerotensor()),
            "a subclass with its own dispatch": (has(keys, "Python"), type(tensor) not in plain),
            "an inference tensor": (not has(keys, "ADInplaceOrView"), tensor.is_inference()),
            "not what lies in its memory": (keys & layout.refused != 0, tensor.is_neg() or tensor._is_zerotensor()),
            "sparse": (_is_sparse(keys), tensor.is_sparse),
        }
        for what, (read, expected) in says.items():
            if read != expected:
                raise ProbeError(f"offset {layout.keys} says that a tensor is {'' if read else 'not '}{what}, wrongly")


def _is_sparse(keys: int) -> bool:
    import torch

    dense, sparse = (torch._C._dispatch_keys(x).raw_repr() for x in (torch.zeros(1), torch.zeros(1).to_sparse()))
    return keys & sparse & ~dense != 0
