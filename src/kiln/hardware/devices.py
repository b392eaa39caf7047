"""Devices: a GPU of this machine or one that represents an architecture, and the table of known models.

The table is `devices.json`. Kernels are made for a `Device`; its `Model` has the vendor's peak numbers for rooflines.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from . import driver
from .architectures import Arch, Architecture, Generation, generation_of

if TYPE_CHECKING:
    from .features import Feature


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU; sizes in bytes."""

    name: str
    generation: Generation
    sm_count: int
    l2_cache: int
    number: int | None = None
    """The number by which the driver knows it; None for one that this machine need not have."""
    suffix: str = ""
    """The suffix of the architecture that code for it is compiled for: "a" for sm_90a, which has WGMMA, and sm_90 has
    not."""

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, (9, 0) for an H100."""
        return self.generation.major, self.generation.minor

    @property
    def smem(self) -> int:
        """Shared memory one block can have."""
        return self.generation.smem_per_block

    @property
    def cluster(self) -> int:
        """The most blocks of a cluster."""
        return self.generation.cluster

    @property
    def overlaps(self) -> bool:
        """Whether a kernel may begin while the one before it ends, as on all devices that have clusters."""
        return self.cluster > 1

    @property
    def float8(self) -> bool:
        """Whether `mma.sync` takes 8-bit floats. Elsewhere ptxas converts them, and adds up the MMAs of each."""
        return self.capability == (8, 9) or self.generation.major == 12

    @property
    def architecture(self) -> Architecture:
        """What code for it is compiled for, sm_90a for an H100; for an unknown GPU, the newest known one before it."""
        name = f"sm_{self.generation.number}{self.suffix}"
        if name in Arch.__members__:
            return Arch[name]
        return max(arch for arch in Arch if arch.capability < self.capability and not arch.suffix)

    def has(self, feature: Feature) -> bool:
        """Return whether code for it may use a feature of `hardware/features.py`."""
        return feature.on(self.architecture)

    def lacks(self, feature: Feature) -> str | None:
        """Return why code for it cannot use a feature; None if it can."""
        if self.has(feature):
            return None
        return f"{feature.what} needs {feature.needs}, and {self.name} is {self.architecture.name}"

    @property
    def model(self) -> Model | None:
        """The row of the table of models; None if there is none."""
        return model_of(self.name)

    def active_clusters(self, size: int, stream: int = 0) -> int:
        """Return how many clusters of so many blocks, each with all shared memory of an SM, run at a time.

        Measured by the driver, for not every group of SMs is whole; of a device that is not here, as if all were.
        """
        if self.number is None or size == 1 or self.cluster == 1:
            return self.sm_count // size
        return driver.active_clusters(self.number, self.smem, size, stream)


class Model(NamedTuple):
    """A row of the table of devices, with the vendor's numbers. Limits of its architecture are in `generation`."""

    name: str
    architectures: tuple[str, ...]
    """What code for it is compiled for; the first row of an architecture stands for it."""
    sm_count: int
    l2_mib: int
    clock_mhz: float | None = None
    """The clock of the SMs at which it reaches its peaks."""
    most_mhz: float | None = None
    """The highest clock that they may have, if more."""
    memory_gb: float | None = None
    bandwidth_gbs: float | None = None
    tflops: dict[str, float] = {}
    """Peaks by type of element, dense; of integers, too."""
    also: tuple[str, ...] = ()
    """Other names by which drivers know it."""
    source: str = ""
    """Where its numbers are from."""

    @property
    def generation(self) -> Generation:
        return generation_of(self.architectures[0])

    @property
    def l2_bytes(self) -> int:
        return self.l2_mib << 20

    def least_us(self, flops: float, size: float, dtype: str | None, most: bool = False) -> float | None:
        """Return the microseconds for operations and bytes at the peaks; None where these are not known.

        With `most`, a lower bound for every program: at the highest clock, without the bytes that fit the L2 cache.
        """
        peaks = [self.tflops[name] for name in _USED_FOR.get(dtype or "", (dtype,)) if name in self.tflops]
        times: list[float] = []
        if flops and peaks:
            faster = (self.most_mhz or self.clock_mhz or 1) / (self.clock_mhz or 1) if most else 1.0
            times.append(flops / ((max(peaks) if most else peaks[0]) * faster * 1e6))
        if size and self.bandwidth_gbs:
            times.append(max(0.0, size - (self.l2_bytes if most else 0)) / (self.bandwidth_gbs * 1e3))
        return max(times) if times else None


_USED_FOR = {"f32": ("f32", "tf32")}
"""Peaks that programs on a type may reach; the first is what they are compared with."""
PROJECT_TABLE = os.path.join("conf", "devices.json")
"""Rows of a project: they replace and complete those of Kiln, by name."""


class DeviceTableError(ValueError):
    """A table of devices has what no row can have."""


def _read(path: str) -> Any:
    import json  # where an architecture alone is asked for there is no need

    with open(path, encoding="utf-8") as file:
        return json.load(file)


@functools.lru_cache(maxsize=8)
def models(project: str | None = None) -> dict[str, Model]:
    """Return all known devices by name, those of a project's table (a path) among them."""
    rows = {row["name"]: row for row in _read(os.path.join(os.path.dirname(__file__), "devices.json"))}
    own: list[dict[str, Any]] = []
    if project is not None:
        try:
            own = _read(project)
            for row in own:
                rows[row["name"]] = {**rows.get(row["name"], {}), **row}
        except (ValueError, KeyError, TypeError) as reason:
            raise DeviceTableError(f"{project} is no list of objects with a name: {reason!r}") from None
    fields = list(Model._fields)
    by_name: dict[str, Model] = {}
    for row in rows.values():
        for wrong in row.keys() - set(fields):
            import difflib

            near = difflib.get_close_matches(wrong, fields, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(fields)}"
            raise DeviceTableError(f"{project}: {row['name']} has {wrong!r}; {meant}")
        try:
            lists = {name: tuple(row[name]) for name in ("architectures", "also") if name in row}
            by_name[row["name"]] = Model(**{**row, **lists})
        except TypeError as reason:
            raise DeviceTableError(f"{project}: {row['name']}: {str(reason).partition(') ')[2]}") from None
    return by_name


def table() -> dict[str, Model]:
    """Return all known devices, with those of the project in the current folder."""
    return models(os.path.realpath(PROJECT_TABLE) if os.path.isfile(PROJECT_TABLE) else None)


def model_of(name: str) -> Model | None:
    """Return the row of a device by its name, or by what its driver calls it ("NVIDIA H100 80GB HBM3")."""
    models_by_name = table()
    bare = name.removeprefix("NVIDIA ").strip()
    for row in models_by_name.values():
        if _plain(bare) in map(_plain, (row.name, *row.also)):
            return row
    # the longest name whose words are all there: "A100-SXM4-80GB", "H200 NVL", "NVIDIA B200"
    words = set(_words(bare))
    fitting = [
        row for row in models_by_name.values() if any(set(_words(one)) <= words for one in (row.name, *row.also))
    ]
    return max(fitting, key=lambda row: len(row.name), default=None)


def _plain(name: str) -> str:
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"sxm\d", "sxm", name.lower()))


def near_names(name: str) -> list[str]:
    """Names of the table that resemble one that is not there."""
    import difflib

    names = {model.lower(): model for model in table()}
    parts = [model for lower, model in names.items() if name.lower() in lower]
    return parts or [names[one] for one in difflib.get_close_matches(name.lower(), names, 3, 0.4)]


@functools.lru_cache(maxsize=64)
def device_of(architecture: str) -> Device:
    """Return the GPU that represents an architecture such as "sm_90a", else the next older one's numbers."""
    generation = generation_of(architecture)
    standing: dict[tuple[int, int], Model] = {}
    for row in models().values():
        for name in row.architectures:
            own = generation_of(name)
            standing.setdefault((own.major, own.minor), row)
    model = standing[max(which for which in standing if which <= (generation.major, generation.minor))]
    suffix = architecture[-1] if architecture[-1].isalpha() else ""
    return Device(model.name, generation, model.sm_count, model.l2_bytes, suffix=suffix)


@functools.lru_cache(maxsize=64)
def device_here(number: int) -> Device:
    """Return the GPU that the driver knows by a number."""
    if not 0 <= number < driver.device_count():
        raise ValueError(f"there is no device {number}: the driver shows {driver.device_count()}")
    major, minor = driver.capability(number)
    generation = generation_of(f"sm_{major}{minor}")
    count = driver.attribute("sm_count", number)
    cache = driver.attribute("l2_bytes", number)
    return Device(driver.device_name(number), generation, count, cache, number, generation.suffixes[:1])
