"""A check and its result, as the verb and its workers share them. Both travel as JSON, and users see the result's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..core.text import fields_text, printed

KINDS = {
    "normal": "data as get_inputs draws it",
    "integers": "small integers: results must be equal, bit for bit",
    "wide": "magnitudes from 2^-8 to 2^8",
    "special": "NaN, infinities, -0 and subnormal numbers among the data",
    "odd": "each extent one more, one less, and 1",
    "strided": "inputs transposed in memory, and every second row of a larger array",
    "shifted": "inputs that begin one element after an aligned address",
    "repeated": "new contents behind the same pointers, of a seed not seen before",
    "streams": "on a GPU: what the stream has to do comes first",
    "deterministic": "three runs give the same bits; on the CPU target under three schedules",
    "sanitizer": "on the CPU target, also with each extent one more: races, bounds, uninitialized memory, barriers",
}
"""The kinds of checks, in order."""

LAYOUTS: dict[str, tuple[str, ...]] = {"strided": ("transposed", "rows apart"), "shifted": ("shifted",)}
"""The kinds that lay inputs out in other ways, with these ways."""

FATAL = ("crash", "timeout", "oom", "device_error")
"""Statuses of checks that ended their worker."""


@dataclass(frozen=True)
class Check:
    """One check of a Case: what a worker is asked to do."""

    where: str
    """The contract, as `loading.load` takes it."""
    kind: str
    problem: dict[str, Any]
    base: dict[str, Any]
    """The problem that this one is a variant of, or the problem itself."""
    seed: int = 0
    variant: str = ""
    """The difference from the base, or from the layout of its inputs: "m+1", "transposed"."""
    config: dict[str, Any] | None = None
    tolerance: dict[str, float] | None = None

    @property
    def layout(self) -> str:
        """How the inputs lie in memory; empty for as `get_inputs` gives them."""
        return self.variant or self.kind if self.kind in LAYOUTS else ""

    @property
    def data(self) -> str:
        """The kind of data in the inputs."""
        return self.kind if self.kind in ("integers", "wide", "special") else "normal"

    @property
    def may_be_refused(self) -> bool:
        """Whether a kernel that supports the base may say that it does not support this."""
        return self.kind in LAYOUTS or self.problem != self.base

    def result(self, status: str, message: str = "", **measured: Any) -> Result:
        """Return a result of this check; `measured` are other fields of it."""
        return Result(self.kind, self.problem, self.seed, self.variant, status, message, base=self.base, **measured)

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON."""
        return asdict(self)


@dataclass
class Result:
    """The result of one check: one problem, kind of data, seed and layout."""

    kind: str
    problem: dict[str, Any]
    seed: int
    variant: str
    """The difference from the base: "m+1", "transposed"."""
    status: str
    """A status of records, or `refused`: the kernel said that it does not support this."""
    message: str = ""
    error: float = 0.0
    bound: float = 0.0
    how: str = ""
    notes: list[str] = field(default_factory=list)
    output: dict[str, Any] | None = None
    """A description of wrong results: number, first, worst, where they lie, what they look like."""
    raised: dict[str, Any] | None = None
    findings: list[Mapping[str, object]] = field(default_factory=list)
    """What the sanitizer found, as it writes findings."""
    stderr: str = ""
    seconds: float = 0.0
    again: str = ""
    base: dict[str, Any] = field(default_factory=dict)
    """The problem that this one is a variant of, or the problem itself."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: it passed, was refused or was not possible."""
        return self.status in ("ok", "refused", "skipped")

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return asdict(self)

    def report(self) -> str:
        """Return a failure in full: what, where, what it looks like, and the command that repeats it."""
        of = f" {self.variant}" if self.variant else ""
        fields = fields_text(self.problem)
        lines = [f"{self.kind}{of}, seed {self.seed}{': ' + fields if fields else ''}", *self.message.splitlines()]
        if self.output is not None:
            lines += self._wrong_elements(self.output)
        if self.raised is not None and self.raised.get("traceback"):
            lines += self.raised["traceback"].rstrip().splitlines()[-12:]
        tail = printed(self.stderr, 16) if self.status in FATAL else []
        lines += ["it printed:", *(f"  {line}" for line in tail)] if tail else []
        lines += [f"note: {note}" for note in self.notes]
        return "\n  ".join([*lines, f"again: {self.again}"])

    def _wrong_elements(self, output: Mapping[str, Any]) -> list[str]:
        lines = [f"first at {_element(output['first'])}"]
        lines += [f"where: {text}" for text in output["where"]]
        lines += [f"look: {text}" for text in output["look"]]
        worst = [_element(each) for each in output["worst"] if each != output["first"]][:3]
        lines += [f"worst at {text}" for text in worst]
        if self.bound and self.error > self.bound:
            lines.append(f"error {self.error:.3g}, allowed {self.bound:.3g}: {self.how}")
        elif self.how and not self.bound:
            lines.append(f"allowed: {self.how}")
        return lines


def _element(each: Mapping[str, Any]) -> str:
    index = ", ".join(map(str, each["index"]))
    return f"[{index}]: got {_short(each['got'])}, expected {_short(each['expected'])}"


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class CheckedProblem:
    """A problem as it is checked: made smaller until its inputs are no larger than a limit."""

    problem: dict[str, Any]
    extents: list[str]
    """The fields that shapes of inputs depend on."""
    elements: int
    """The number of elements of all inputs."""
    asked_elements: int
    """This number before the problem was made smaller."""
    inputs: list[str]
    """Type and shape of each input."""
