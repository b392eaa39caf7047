"""The times and rates of a GPU's units, and the files that hold them.

`hardware/units/h200.json` has a row for each quantity: its value, the interval that it lies in, its unit, and its source. A file that
`kiln devices calibrate` wrote replaces the one of the package.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

from ..base_dsl.diagnostics import DSLRuntimeError, error

FOLDER = Path(__file__).parents[1] / "hardware" / "units"
FORMAT = "kiln.units/1"
RATES = ("bytes/ns", "bytes/cycle", "MHz")
"""Units of which more is faster; of all others less is."""
MEASURED = "measured"
"""The source of a quantity that was measured by `kiln.clock.calibration`."""


def at(mhz: float) -> str:
    """Return the suffix of quantities that were measured at another clock than the others."""
    return f" at {mhz:.0f} MHz"


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A time or rate: its value, and the least and most that it may be."""

    value: float
    low: float
    high: float
    unit: str
    source: str = MEASURED

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high or not math.isfinite(self.high - self.low):
            raise error(DSLRuntimeError, f"{self.value} {self.unit} does not lie in [{self.low}, {self.high}]")


@dataclasses.dataclass(frozen=True)
class Units:
    """The quantities of a GPU by name, such as "wgmma f16 smem n256", at a clock."""

    device: str
    sm_mhz: float
    """The clock of the SMs while cycles were counted."""
    date: str
    quantities: dict[str, Quantity]

    def __getitem__(self, name: str) -> Quantity:
        if name not in self.quantities:
            raise error(
                DSLRuntimeError,
                f"the units of {self.device} have no {name!r}",
                hint="kiln devices calibrate measures them on this machine's GPU",
            )
        return self.quantities[name]

    @property
    def is_measured(self) -> bool:
        """Whether most quantities were measured, so that the interval of predictions is that of the model."""
        return 2 * sum(one.source == MEASURED for one in self.quantities.values()) > len(self.quantities)

    def at_best(self) -> Units:
        """Return the quantities as fast as they may be."""
        return self._bound(lambda one: one.high if one.unit in RATES else one.low)

    def at_worst(self) -> Units:
        """Return the quantities as slow as they may be."""
        return self._bound(lambda one: one.low if one.unit in RATES else one.high)

    def _bound(self, value: Callable[[Quantity], float]) -> Units:
        bounds = {name: dataclasses.replace(one, value=value(one)) for name, one in self.quantities.items()}
        return dataclasses.replace(self, quantities=bounds)

    def __contains__(self, name: str) -> bool:
        return name in self.quantities

    def matching(self, pattern: str) -> dict[tuple[str, ...], Quantity]:
        """Return the quantities whose whole names match a regular expression, by the expression's groups."""
        matches = {name: re.fullmatch(pattern, name) for name in self.quantities}
        return {match.groups(): self.quantities[name] for name, match in matches.items() if match}

    def dumps(self) -> str:
        """Return the text of a file, a line for each quantity."""
        rows = {
            name: [_rounded(each.value), _rounded(each.low), _rounded(each.high), each.unit, each.source]
            for name, each in self.quantities.items()
        }
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        head = {"format": FORMAT, "device": self.device, "sm_mhz": self.sm_mhz, "date": self.date}
        return json.dumps(head)[:-1] + ', "quantities": {\n' + lines + "\n}}\n"


def loads(text: str, place: str = "a file of units") -> Units:
    """Read the text of a file."""
    try:
        record = json.loads(text)
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r}")
        quantities = {name: Quantity(*row) for name, row in record["quantities"].items()}
        return Units(record["device"], record["sm_mhz"], record["date"], quantities)
    except (ValueError, KeyError, TypeError) as wrong:
        raise error(DSLRuntimeError, f"{place} is not of the format {FORMAT}: {wrong}") from wrong


def of(device: str) -> Units:
    """Return the units of a GPU that the package has, by its name in the table of devices, such as "H200"."""
    file = FOLDER / f"{device.lower().replace(' ', '_')}.json"
    if not file.exists():
        names = ", ".join(sorted(each.stem for each in FOLDER.glob("*.json")))
        raise error(DSLRuntimeError, f"there are no units of {device}", hint=f"there are those of {names}")
    return loads(file.read_text(), str(file))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
