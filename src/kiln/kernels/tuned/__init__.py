"""Figures of cost models: those measured on an H200 (`h200.json`), and what they are expected to be on other GPUs.

The end of a figure's name is its unit, by which it is scaled to a GPU that was not measured:

| figure | scaled by |
|---|---|
| `dram_tbps` | memory bandwidth; of one SM (`sm_dram_tbps`) divided by their number |
| `tflops` | the peak of an SM for the type and the instruction |
| other `tbps`, `per_us` | the clock |
| `us` | the clock, but not launches and latencies of memory |
| `gpu_...` | the number of SMs besides |
| others: cycles, shares, tile shapes | not at all |
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from ...hardware import features
from ...hardware.devices import model_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...hardware.devices import Device

MEASURED_ON = "H200"
"""The GPU that was measured."""
_MMA_SYNC_RATE = 0.63
"""Share of the peak of WGMMA that `mma.sync` reaches on Hopper (Luo et al., Benchmarking and Dissecting the NVIDIA
Hopper GPU Architecture, 2024)."""
_KINDS = {"simt": "f32", "tf32": "tf32", "i8": "i8"}
"""Tables of GEMM and their peaks. All others have f16 MMAs: other elements are converted."""


class Scale(NamedTuple):
    """How many times as much a GPU has as the one that was measured."""

    bandwidth: float
    clock: float
    sms: float
    peaks: dict[str, float]
    """The peak of an SM by type of element, of WGMMA and of arithmetic."""
    mma_sync: dict[str, float]
    """The same for `mma.sync`."""

    def of(self, path: tuple[str, ...]) -> float:
        """Return the ratio for a figure, given the names of its table, of tables in it, and its own."""
        name = path[-1]
        ratio = 1.0
        if name.endswith("dram_tbps"):
            ratio = self.bandwidth / (self.sms if name.startswith("sm_") else 1.0)
        elif name.endswith("tflops"):
            kind = next((_KINDS[x] for x in path if x in _KINDS), "f16")
            rates = self.mma_sync if path[0].endswith("_sm80") and kind != "f32" else self.peaks
            ratio = rates.get(kind, self.clock)
        elif name.endswith(("tbps", "per_us")):
            ratio = self.clock
        elif name.endswith("_us") and not ("launch" in name or "latency" in name):
            ratio = 1 / self.clock
        return ratio * self.sms if name.startswith("gpu_") else ratio

    def __str__(self) -> str:
        return f"memory bandwidth x {self.bandwidth:.2f}, clock x {self.clock:.2f}, SMs x {self.sms:.2f}"


@functools.lru_cache(maxsize=64)
def scale_to(device: Device) -> Scale | None:
    """Return how the figures are scaled to a GPU; None for the one that was measured and those with unknown peaks."""
    model = device.model
    measured = model_of(MEASURED_ON)
    assert measured is not None
    if model is None or model.name == measured.name:
        return None
    sms = model.sm_count / measured.sm_count
    peaks = {kind: peak / measured.tflops[kind] / sms for kind, peak in model.tflops.items() if kind in measured.tflops}
    rate = 1.0 if device.has(features.WARPGROUP_MMA) else _MMA_SYNC_RATE
    return Scale(
        model.bandwidth_gbs / (measured.bandwidth_gbs or 1.0) if model.bandwidth_gbs else 1.0,
        model.clock_mhz / (measured.clock_mhz or 1.0) if model.clock_mhz else 1.0,
        device.sm_count / measured.sm_count,
        peaks,
        # stated peaks of GPUs with tensor memory are those of tcgen05
        {} if device.generation.tmem else {kind: peak / rate for kind, peak in peaks.items()},
    )


@dataclasses.dataclass(frozen=True)
class Coefficients:
    """The base of the figures of a model: a subclass names its table, and the class of the rows of `configs`."""

    table: ClassVar[str]
    row: ClassVar[Callable[..., object] | None] = None

    @classmethod
    def on(cls: type[C], device: Device) -> C:
        """Return the figures on a GPU: as they were measured, or scaled."""
        return cast("C", _instance(cls, device))


C = TypeVar("C", bound=Coefficients)


@functools.lru_cache(maxsize=256)
def _instance(kind: type[Coefficients], device: Device) -> Coefficients:
    table = coefficients(kind.table, device)
    values = {field.name: table[field.name] for field in dataclasses.fields(kind)}
    if kind.row:
        values["configs"] = tuple(kind.row(**row) for row in table["configs"])
    return kind(**values)


@functools.lru_cache(maxsize=256)
def coefficients(table: str, device: Device) -> dict[str, Any]:
    """Return the figures of a table on a GPU, by name."""
    scale = scale_to(device)
    own = _tables()[table]
    return own if scale is None else {name: _scaled(x, (table, name), scale) for name, x in own.items()}


def _scaled(value: object, path: tuple[str, ...], scale: Scale) -> object:
    if isinstance(value, dict):
        return {name: _scaled(x, (*path, name), scale) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_scaled(x, path, scale) for x in value)
    ratio = scale.of(path)
    return value * ratio if ratio != 1.0 and isinstance(value, (int, float)) else value


@functools.cache
def _tables() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("h200.json").read_text(), object_hook=_with_tuples)


def _with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table with extents as tuples, as configs have them."""
    return {name: tuple(x) if isinstance(x, list) and isinstance(x[0], (int, float)) else x for name, x in row.items()}


@functools.cache
def predicted(table: str) -> dict[str, float]:
    """Return the figures of a model that nobody has measured: published ones of a B200, and assumptions.

    `b200.json` says where each is from. They are cycles, shares, and microseconds that do not scale.
    """
    return json.loads(Path(__file__).with_name("b200.json").read_text())[table]
