"""Runs all measurements of a GPU."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...hardware import driver, nvml
from ...measure import clocks
from ..units import Quantity, Units

if TYPE_CHECKING:
    from types import ModuleType

MODULES = ("instructions", "barriers", "wgmma", "contention", "launches")
"""What is measured, in this order."""
ONLY_FOR = {"wgmma": 9, "contention": 9}
"""The generation that a module is for."""


def modules(generation: int) -> Iterator[tuple[str, ModuleType]]:
    """Yield the modules that a generation of GPUs can run."""
    for name in MODULES:
        if ONLY_FOR.get(name, generation) == generation:
            yield name, importlib.import_module(f"{__package__}.{name}")


def calibrate(mhz: int | None = None, only: Sequence[str] = (), say: Callable[[str], object] = print) -> Units:
    """Measure the units of the current GPU, with its clock held at some MHz or free; `only` some modules of `MODULES`."""
    from .board import Board  # the language, which takes long to load

    gpu = nvml.Gpu(driver.uuid(driver.current_device()))
    with contextlib.ExitStack() as stack:
        if mhz is not None:
            stack.enter_context(clocks.locked(gpu, mhz))
        board = stack.enter_context(contextlib.closing(Board()))
        quantities: dict[str, Quantity] = {}
        readings: list[float] = []
        for name, module in modules(board.device.generation.major):
            if only and name not in only:
                continue
            begun = time.perf_counter()
            before = len(quantities)
            for row in module.measure(board):
                quantities[row.name] = Quantity(row.value, row.low, row.high, row.unit)
                readings += [reading] if (reading := gpu.reading().sm_mhz) is not None else []
            say(f"{name}: {len(quantities) - before} quantities in {time.perf_counter() - begun:.1f} s")
        day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        return Units(board.device.name, statistics.median(readings) if readings else 0.0, day, quantities)
