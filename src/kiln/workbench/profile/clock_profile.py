"""The profile of the clock: the predicted time of each kernel and why it takes that, as text, as JSON and as a picture."""

from __future__ import annotations

import dataclasses
import linecache
import math
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..._support import notebook
from ...hardware.engines import WGMMA
from ...measure import trace_reading
from . import timeline
from .result import KernelProfile, Profile, add_row, new_table, shorter
from .timeline import Record
from .timeline_svg import svg

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...clock.prediction import Prediction, Stall
    from ...measure.trace_format import Trace

SHOWN = 6
"""The most parts of the critical path that the text has."""


class Progress:
    """A file in which a job says what it is doing, which is shown while it is open."""

    def __init__(self, progress: Callable[..., None]) -> None:
        self._progress = progress
        self._ended = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="kiln-clock-")
        self.file: Path = Path(self._folder.name) / "notes"
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> str:
        self.file.touch()
        self._thread.start()
        return str(self.file)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._folder.cleanup()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            lines = self.file.read_text().splitlines()
            self._progress(lines[-1] if lines else "", 0)


# --- as JSON ---------------------------------------------------------------------------------------------------------


def to_json(prediction: Prediction, trace: Trace) -> Record:
    """Return a prediction as JSON, with what its trace tells, and without the slices."""
    record = {
        field.name: getattr(prediction, field.name)
        for field in dataclasses.fields(prediction)
        if field.name not in ("burst", "sustained", "stalls", "slices", "what_ifs")
    }
    path = trace_reading.critical_path(trace)
    what_ifs = [
        {**dataclasses.asdict(one), "change_of_time": one.cycles / prediction.cycles - 1} for one in prediction.what_ifs
    ]
    return {
        **record,
        "burst": dataclasses.asdict(prediction.burst),
        "sustained": dataclasses.asdict(prediction.sustained),
        "stalls": [_stall(one) for one in prediction.stalls],
        "what_ifs": what_ifs,
        "critical_path": [dataclasses.asdict(one) for one in trace_reading.shares(trace, path)],
        "pipelines": [_pipeline(one) for one in trace_reading.pipelines(trace)],
        "tensor_idle": tensor_idle(trace, prediction.cycles),
    }


def tensor_idle(trace: Trace, cycles: float) -> dict[str, float]:
    """Return the part of the time that tensor cores are idle just after the waits for MMAs of each line that waits."""
    engines = {number for number, track in enumerate(trace.tracks) if track.engine == WGMMA.name}
    works = sorted((each.begin, each.end) for each in trace.events if each.track in engines and each.kind == "work")
    idle: list[tuple[float, float]] = []
    until = math.inf
    for begin, end in works:
        if begin > until:
            idle.append((until, begin))
        until = end if until == math.inf else max(until, end)
    ends = [(each.end, each.line) for each in trace.events if each.name == "wgmma_wait" and each.line]
    lost = {line: 0.0 for _, line in ends}
    for begin, end in idle:
        for line in {line for at, line in ends if begin <= at <= end}:
            lost[line] += (end - begin) / max(1.0, cycles)
    return lost


def _stall(one: Stall) -> Record:
    fields = {field.name: getattr(one, field.name) for field in dataclasses.fields(one) if field.name != "span"}
    return {"file": one.span.filename if one.span else "", "line": one.span.line if one.span else 0, **fields}


def _pipeline(one: trace_reading.Pipeline) -> Record:
    about = {"block": one.block, "lines": list(one.lines), "stages": one.stages, "fills": len(one.fills)}
    return {**about, "early": one.early, "late": one.late, "empty": one.empty}


# --- as text ---------------------------------------------------------------------------------------------------------


class ClockProfile(Profile):
    """The profile of a call as the clock predicts it."""

    @property
    def predictions(self) -> list[Record]:
        """The predictions of the kernels, in the order of their launches, as `to_json` returns them."""
        return self.extra["clock"]["predictions"]

    @property
    def us(self) -> float:
        """The microseconds of the call, at the highest clock."""
        return sum(each["burst"]["us"] for each in self.predictions)

    def traces(self) -> list[Trace]:
        """Return the predicted traces of the launches."""
        return timeline.traces_of(self)

    def tables(self, lines: int = 10, kernel: str = "") -> list[RenderableType]:
        """Return what is shown of it, for rich to print."""
        return [part for each in self.predictions if kernel in each["kernel"] for part in tables(each, self, lines)]

    def _as_html(self) -> str:
        pictures = [svg(trace) for trace in self.traces()]
        return notebook.page(notebook.source(str(self)), *pictures)


def profile_of(answer: Record, name: str) -> ClockProfile:
    """Return the answer of the clock's job as a profile."""
    predictions: Sequence[Record] = answer["predictions"]
    kernels = [KernelProfile(each["kernel"], _metrics(each)) for each in predictions]
    clock = {field: value for field, value in answer.items() if field not in ("trace", "files")}
    files = {"trace": {"own": answer["trace"]}, "files": answer["files"]} if answer["trace"] else {}
    return ClockProfile("clock", name, kernels, "cycles", extra={"clock": clock, **files})


def _metrics(record: Record) -> dict[str, float | int | str]:
    busy = {f"{unit} busy (%)": 100 * share for unit, share in record["busy"].items()}
    return {
        "Predicted (us)": record["burst"]["us"],
        "Predicted, sustained (us)": record["sustained"]["us"],
        "Cycles": record["cycles"],
        "Blocks/SM": record["ctas_per_sm"],
        "Waves": record["waves"],
        **({"Busiest unit": record["limiter"]} if record["limiter"] else {}),
        **busy,
    }


def time_text(time: Mapping[str, float]) -> str:
    """Return a predicted time with its interval: `11.5 us [9.81, 13.3]`."""
    return f"{_us(time['us'])} us [{_us(time['low'])}, {_us(time['high'])}]"


def _us(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def tables(record: Record, profile: Profile, lines: int) -> list[RenderableType]:
    """Return the text of a prediction, for rich to print."""
    asked = profile.extra["clock"].get("at")
    shown = [name for name in ("burst", "sustained") if asked not in ("burst", "sustained") or asked == name]
    times = {name: f"{time_text(record[name])} at {record[name]['mhz']:.0f} MHz" for name in shown}
    same = len(set(times.values())) < len(times)
    said = next(iter(times.values())) if same else ", ".join(f"{text} ({name})" for name, text in times.items())
    parts: list[RenderableType] = [f"{record['kernel']} on {record['device']}, predicted: {said}"]
    size = f"grid {_by(record['grid'])}, block {_by(record['block'])}"
    size += f", cluster {_by(record['cluster'])}" if math.prod(record["cluster"]) > 1 else ""
    per_sm = f"{record['ctas_per_sm']} CTA{'s' if record['ctas_per_sm'] != 1 else ''} per SM"
    parts.append(f"  {size}: {per_sm}, {record['waves']:.3g} waves, {record['cycles']:.0f} cycles")
    if record["busy"]:
        shares = ", ".join(f"{unit} {share:.0%}" for unit, share in record["busy"].items() if share >= 0.005)
        parts.append(f"  limited by {record['limiter']}; busy: {shares}")
    parts += [f"  critical path: {path}"] if (path := path_text(record["critical_path"])) else []
    for flag in record["flags"]:
        parts.append(f"  {flag}")
    parts.append("")
    if lines and record["stalls"]:
        parts.append(_stalls_table(record["stalls"][:lines], profile))
    if record["pipelines"]:
        parts.append(_pipelines_table(record["pipelines"]))
    if record["what_ifs"]:
        table = new_table("what if", "time", left=(0,))
        for one in sorted(record["what_ifs"], key=lambda one: one["cycles"]):
            add_row(table, one["change"], f"{one['change_of_time']:+.1%}")
        parts.append(table)
    return parts


def path_text(shares: Sequence[Record]) -> str:
    """Return what the time consists of, in words: the largest parts of the critical path, with their lines."""
    words: list[str] = []
    for one in shares[:SHOWN]:
        if one["share"] < 0.01:
            break
        where = f" ({one['where']})" if one["where"] != one["what"] else ""
        line = f" at {one['line']}" if one["line"] else ""
        words.append(f"{one['share']:.0%} {one['what']}{where}{line}")
    return ", ".join(words)


def _by(size: Sequence[int]) -> str:
    last = max((number for number, extent in enumerate(size) if extent > 1), default=0)
    return " x ".join(map(str, size[: last + 1]))


def _stalls_table(stalls: Sequence[Record], profile: Profile) -> RenderableType:
    slack = any(one.get("slack") is not None for one in stalls)
    head = ["waits at", "%", "warps", *(["late by"] if slack else []), "for", "ended by", "source"]
    table = new_table(*head, left=(0, 2, *range(len(head) - 3, len(head))))
    for one in stalls:
        where = f"{shorter(one['file'])}:{one['line']}" if one["file"] else "?"
        late = [] if not slack else ["" if one.get("slack") is None else f"{one['slack']:.0f}"]
        source = _source(one["file"], one["line"])[:60]
        add_row(
            table, where, f"{100 * one['share']:.0f}", _numbers(one["warps"]), *late, one["what"], one["cause"], source
        )
    return table


def _source(file: str, line: int) -> str:
    return linecache.getline(file, line).strip() if file else ""


def _numbers(numbers: Sequence[int]) -> str:
    """Return numbers with runs as ranges: `0, 4-7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _pipelines_table(pipelines: Sequence[Record]) -> RenderableType:
    table = new_table("pipeline", "stages", "fills", "data is early by", "waits for late data", "empty", left=(0,))
    seen: set[tuple[str, ...]] = set()
    for one in pipelines:
        lines = tuple(one["lines"])
        if lines in seen:  # another CTA's
            continue
        seen.add(lines)
        early = f"{one['early']:.0f} cycles" if one["early"] >= 0 else f"late by {-one['early']:.0f} cycles"
        late = f"{one['late']:.0f} cycles"
        add_row(table, ", ".join(lines), one["stages"], one["fills"], early, late, f"{one['empty']:.0%}")
    return table
