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
from .. import units
from ..units import Quantity, Units

if TYPE_CHECKING:
    from types import ModuleType

MODULES = ("instructions", "barriers", "wgmma", "contention", "tma", "memory", "clocks", "launches")
"""What is measured, in this order."""
AT_TWO_CLOCKS = ("tma", "memory", "clocks")
"""What has a clock of its own besides that of the SMs: it is measured at the highest clock, too."""
ONLY_FOR = {"wgmma": 9, "contention": 9, "clocks": 9}
"""The generation that a module is for."""


def modules(generation: int, names: Sequence[str] = MODULES) -> Iterator[tuple[str, ModuleType]]:
    """Yield those of some modules that a generation of GPUs can run."""
    for name in names:
        if ONLY_FOR.get(name, generation) == generation:
            yield name, importlib.import_module(f"{__package__}.{name}")


def calibrate(mhz: int | None = None, only: Sequence[str] = (), say: Callable[[str], object] = print) -> Units:
    """Measure the units of the current GPU, with its clock held at some MHz or free; `only` some modules of `MODULES`.

    If the clock is held, what depends on other clocks, too, is measured again at the highest one.
    """
    from .board import Board  # the language, which takes long to load

    gpu = nvml.Gpu(driver.uuid(driver.current_device()))
    quantities: dict[str, Quantity] = {}
    readings: list[float] = []

    def measure(board: Board, names: Sequence[str], suffix: str = "") -> None:
        for name, module in modules(board.device.generation.major, names):
            if only and name not in only:
                continue
            begun = time.perf_counter()
            before = len(quantities)
            for row in module.measure(board):
                quantities[row.name + suffix] = Quantity(row.value, row.low, row.high, row.unit)
                if not suffix and (reading := gpu.reading().sm_mhz) is not None:
                    readings.append(reading)
            say(f"{name}{suffix}: {len(quantities) - before} quantities in {time.perf_counter() - begun:.1f} s")

    with contextlib.closing(Board()) as board:
        with clocks.locked(gpu, mhz) if mhz is not None else contextlib.nullcontext():
            measure(board, MODULES)
        if mhz is not None:
            most = gpu.highest_clock() or mhz
            with clocks.locked(gpu, most):
                measure(board, AT_TWO_CLOCKS, units.at(most))
        day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        return Units(board.device.name, statistics.median(readings) if readings else 0.0, day, quantities)
