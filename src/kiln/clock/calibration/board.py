"""Memory of a GPU for kernels that measure, and what they wrote there."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ... import cute
from ...base_dsl.typing import Int64
from ...hardware import current, driver

if TYPE_CHECKING:
    from ...hardware.devices import Device

REPEATS = 5
"""The launches of which the median counts."""
RESULTS = 1 << 16
"""The number of words that a kernel may write."""


class Row(NamedTuple):
    """A measured quantity: the median of some launches, the least and the most."""

    name: str
    value: float
    low: float
    high: float
    unit: str


def row(name: str, values: Sequence[float], unit: str) -> Row:
    """Return the row of some measurements of one quantity."""
    return Row(name, statistics.median(values), min(values), max(values), unit)


class Board:
    """A GPU, with memory for results and for what kernels read."""

    def __init__(self, data_bytes: int = 1 << 30) -> None:
        driver.ensure_context()
        self.device: Device = current.device()
        self.data_bytes = data_bytes
        self._results = _allocated(8 * RESULTS)
        self._data = _allocated(data_bytes)

    @property
    def results(self) -> cute.Pointer:
        """The pointer to the words that kernels write."""
        return pointer(self._results)

    @property
    def data(self) -> cute.Pointer:
        """The pointer to the words that kernels read; zeros at first."""
        return pointer(self._data)

    def words(self, launch: Callable[[], object], count: int) -> list[int]:
        """Launch kernels, and return the words that they wrote."""
        driver.clear_memory(self._results, 8 * RESULTS)
        launch()
        driver.call("cuCtxSynchronize")
        data = driver.read_memory(self._results, 8 * count)
        return list(memoryview(data).cast("q"))

    def differences(
        self, kernel: Callable[..., object], arguments: Sequence[object], count: int, loops: tuple[int, int]
    ) -> list[list[float]]:
        """Launch a kernel with few and with many loops, several times; return what one more loop costs, by word.

        It is called with the results, the arguments, the loops and the stream.
        """
        few, many = loops
        launches: list[list[float]] = []

        def launched(loops: int) -> list[int]:
            return self.words(lambda: kernel(self.results, *arguments, loops, 0), count)

        launched(few)  # loads the code
        for _ in range(REPEATS):
            first = launched(few)
            second = launched(many)
            launches.append([(b - a) / (many - few) for a, b in zip(first, second, strict=True)])
        return [list(values) for values in zip(*launches, strict=True)]

    def close(self) -> None:
        """Free the memory."""
        for address in (self._results, self._data):
            driver.call("cuMemFree_v2", ctypes.c_uint64(address))


def pointer(address: int) -> cute.Pointer:
    """Return a pointer to words of global memory."""
    return cute.make_ptr(Int64, address, cute.AddressSpace.gmem, assumed_align=16)


def _allocated(size: int) -> int:
    address = ctypes.c_uint64()
    driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    driver.clear_memory(address.value, size)
    return address.value
