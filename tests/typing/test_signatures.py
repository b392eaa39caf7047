"""The functions that kernels call most say which types they take: no `Any` in their signatures."""

from __future__ import annotations

import inspect

import pytest

from kiln import cute, utils
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync

MBARRIERS = [getattr(arch, name) for name in dir(arch) if name.startswith("mbarrier_")]
ALLOCATORS = [
    function
    for allocator in (utils.SmemAllocator, utils.TmemAllocator, utils.TmemBufferPool)
    for name, function in inspect.getmembers(allocator, inspect.isfunction)
    if not name.startswith("_") or name == "__init__"
]


@pytest.mark.parametrize(
    "function", [cute.copy, cute.gemm, cpasync.tma_partition, *MBARRIERS, *ALLOCATORS], ids=lambda f: f.__qualname__
)
def test_no_any_in_a_signature(function):
    annotations = inspect.get_annotations(inspect.unwrap(function))
    assert {name: each for name, each in annotations.items() if "Any" in str(each)} == {}
