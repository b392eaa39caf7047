"""Predicted times for tests, which need no GPU: the fixture `predicted` of Kiln's pytest plugin.

def test_speed(predicted):
    found = predicted("kernel.py", {"n": 4096})
    assert found.us < 1.03 * found.baseline
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..base_dsl.target import get_target, target
from ..clock import known
from ..clock.prediction import predict
from ..clock.trace import trace_of
from ..hardware import current
from ..hardware.architectures import Arch
from ..tunings import canonical
from .core import command_line, worker_case
from .core.cases import Case
from .core.runners import Local, Runner
from .profile import clock_profile, predicting
from .profile.ncu import CannotProfile

if TYPE_CHECKING:
    from .profile.timeline import Record

FORMAT = "kiln.predicted/1"
FILE = "predicted.json"
"""The file of baselines, beside the tests."""
TIMEOUT = 300.0


class NoBaseline(Exception):
    """There is nothing that a prediction may be compared with."""


@dataclasses.dataclass(frozen=True)
class PredictedTime:
    """The predicted time of a call in microseconds at the GPU's highest clock, with its interval, and why."""

    us: float
    low: float
    high: float
    sustained_us: float
    """At the clock that the GPU holds for long."""
    limiter: str
    """The busiest unit of the longest kernel."""
    version: str
    """Of the units and the model: predictions are compared within one."""
    predictions: list[Record]
    """All that is known of each kernel, as `kiln profile --json` writes it."""
    _baseline: Callable[[float], float] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def baseline(self) -> float:
        """The microseconds that were predicted when baselines were written, by the same version."""
        if self._baseline is None:
            raise NoBaseline("a baseline belongs to a test: use the fixture `predicted`")
        return self._baseline(self.us)

    @staticmethod
    def of(answer: Record) -> PredictedTime:
        """Return the time of what a job predicted."""
        kernels = answer["predictions"]
        low, us, high = (sum(each["burst"][name] for each in kernels) for name in ("low", "us", "high"))
        longest = max(kernels, key=lambda each: each["burst"]["us"])
        sustained = sum(each["sustained"]["us"] for each in kernels)
        return PredictedTime(us, low, high, sustained, longest["limiter"], answer["version"], kernels)


class Predictor:
    """Predicts Cases in one worker, and functions in this process."""

    def __init__(self) -> None:
        self._runner: Runner | None = None

    def close(self) -> None:
        """End the worker."""
        if self._runner is not None:
            self._runner.close()

    def __call__(
        self,
        what: Case | str | Path | Callable[[], object],
        problem: Mapping[str, object] | int | None = None,
        config: Mapping[str, object] | None = None,
        arch: str | None = None,
    ) -> PredictedTime:
        """Predict a call of a Case, which may be given as its file, or of a function without arguments.

        `problem` is a number, or the fields that differ from the first; `arch` the architecture, such as "sm_90a".
        """
        if callable(what):
            return PredictedTime.of(_of_function(what, arch))
        if self._runner is None:
            self._runner = Local(jobs=1, gpus=[], timeout=TIMEOUT)
        case = what if isinstance(what, Case) else worker_case.load(str(what), self._runner, **_options())
        device = known.device_of(Arch[arch]) if arch else predicting.device_of(case)
        if device is None:
            raise CannotProfile(f"the clock does not know the units of a GPU of {arch}")
        asked = {"where": case.where, "problem": dict(case.problem(problem)), "config": config, "seed": 0}
        job = predicting.job_of(case, asked, device, TIMEOUT)
        if arch:
            job = dataclasses.replace(job, env={**job.env, "CUTE_DSL_ARCH": arch})
        (outcome,) = self._runner.run([job])
        return PredictedTime.of(predicting.answer_of(outcome))


def _options() -> Record:
    return {"needs_gpu": False, "timeout": TIMEOUT, "env": {**command_line.arch_variable(), "KILN_TARGET": "cpu"}}


def _of_function(function: Callable[[], object], arch: str | None) -> Record:
    architecture = Arch[arch] if arch else current.architecture(target=get_target("nvidia"))
    device = known.device_of(architecture)
    if device is None:
        raise CannotProfile(f"the clock does not know the units of a GPU of {architecture.name}")
    with target("cpu"):
        predictions = predict(function, device, what_if=False)
    if not predictions:
        raise CannotProfile("it launches no kernel")
    records = [clock_profile.to_json(each, trace_of(each)) for each in predictions]
    return {"version": known.version(device), "predictions": records}


# --- baselines -------------------------------------------------------------------------------------------------------


class Baselines:
    """The predicted times that tests of a folder compare with, in `predicted.json`."""

    def __init__(self, file: Path, write: bool) -> None:
        self.file = file
        self.write = write

    def of(self, name: str, version: str, us: float) -> float:
        """Return the baseline of a prediction by its name; when baselines are written, the prediction is the baseline."""
        entries = self._entries()
        if self.write:
            entries[name] = {"us": round(us, 3), "version": version}
            lines = [f"  {json.dumps(one)}: {json.dumps(entries[one])}" for one in sorted(entries)]
            text = ",\n".join(lines)
            self.file.write_text(f'{{"format": "{FORMAT}", "baselines": {{\n{text}\n}}}}\n')
            return us
        again = "write baselines where the speed is right: pytest --kiln-baselines=write"
        if name not in entries:
            raise NoBaseline(f"{self.file.name} has no baseline of {name}; {again}")
        entry = entries[name]
        if entry["version"] != version:
            by = f"the baseline of {name} was predicted by {entry['version']}, this is {version}"
            raise NoBaseline(f"{by}: only predictions of one version have the same errors; {again}")
        return entry["us"]

    def _entries(self) -> dict[str, Record]:
        if not self.file.exists():
            return {}
        try:
            record = json.loads(self.file.read_text())
            if record["format"] != FORMAT:
                raise ValueError(f"format {record['format']!r}")
            return record["baselines"]
        except (ValueError, KeyError, TypeError) as reason:
            raise NoBaseline(f"{self.file} is not of the format {FORMAT}: {reason}") from None


class TestPredictor:
    """What the fixture `predicted` is: it predicts, and finds the baselines of one test."""

    __test__ = False  # pytest looks for classes of this name

    def __init__(self, predictor: Predictor, baselines: Baselines, test: str) -> None:
        self._predictor = predictor
        self._baselines = baselines
        self._test = test
        self._calls = 0

    def __call__(
        self,
        what: Case | str | Path | Callable[[], object],
        problem: Mapping[str, object] | int | None = None,
        config: Mapping[str, object] | None = None,
        arch: str | None = None,
    ) -> PredictedTime:
        """Predict a call, as `Predictor` does; `.baseline` is that of this test's call with this problem and config."""
        answer = self._predictor(what, problem, config, arch)
        self._calls += 1
        asked = canonical([problem, config, arch]) if (problem, config, arch) != (None, None, None) else ""
        name = " ".join(filter(None, [self._test, str(self._calls) if self._calls > 1 else "", asked]))
        return dataclasses.replace(answer, _baseline=lambda us: self._baselines.of(name, answer.version, us))
