"""Measures claims of the knowledge base: what a case's kernel is, does and takes under a config.

Most metrics need no GPU: they are read from compiled code (a dry run), counted on the CPU target, or found by the
sanitizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kiln

from ...hardware import sass, toolchain
from ...hardware.occupancy import occupancy
from ...testing import dry_run
from ..core.environment import environment
from ..core.loading import load
from ..core.runners import Job
from . import pages as kb_pages
from .pages import Claim, Page

METRICS = {
    "registers": "of a thread (the most of all kernels)",
    "spills": "bytes that registers ran out for",
    "local": "bytes of a thread's own memory",
    "shared": "bytes of shared memory of a block",
    "blocks": "that an SM runs at a time",
    "warps": "that an SM runs at a time",
    "messages": "that ptxas has against the kernel: WGMMAs that it serialises, requests for registers it ignores",
    "message": "the text of the first of them",
    "instructions": "in all, as they stand in the program",
    "sass:REGEX": "instructions whose name begins so",
    "mix:CLASS": "instructions of a class of `sass.CLASSES`",
    "loop:REGEX": "the same in the innermost loops with MMAs",
    "per_mma": "instructions per MMA in these loops",
    "operations": "of the traced program",
    "bank_conflicts": "wavefronts of shared memory that are lost to conflicts",
    "findings": "of the sanitizer",
    "finding": "the text of the first of them",
    "error": "largest error against fp64, relative to the larger of the value and the root mean square",
    "refused": "what the error says that the call raises",
    "number:NAME": "a number that the case's `numbers(config, problem)` counts",
    "ratio": "time before over time after the change; on a GPU",
}
"""The metrics that pages can make claims about."""

_DRY = (
    "registers",
    "spills",
    "local",
    "shared",
    "blocks",
    "warps",
    "messages",
    "message",
    "instructions",
    "per_mma",
    "operations",
    "sass",
    "mix",
    "loop",
)
_MODES = dict.fromkeys(_DRY, "dry") | {
    "bank_conflicts": "banks",
    "findings": "sanitize",
    "finding": "sanitize",
    "error": "run",
    "refused": "refused",
    "number": "number",
    "ratio": "time",
}


def mode_of(metric: str) -> str | None:
    """Return how a metric is measured; None for an unknown one."""
    name, _, rest = metric.partition(":")
    return _MODES.get(name) if bool(rest) == (f"{name}:" in " ".join(METRICS)) else None


@dataclasses.dataclass
class Result:
    """The result of a claim. `value` is None if it could not be measured, and `why` says why not."""

    claim: Claim
    value: Any = None
    before: Any = None
    why: str = ""
    skipped: bool = False
    failed: bool = False
    """Whether measuring it ended with an error."""

    @property
    def measured(self) -> bool:
        """Whether there is an answer, good or bad."""
        compared = self.claim.before is None or self.before is not None or self.claim.metric == "ratio"
        return self.value is not None and compared and not self.failed

    @property
    def holds(self) -> bool:
        return self.measured and self.claim.expect.holds(self.value, self.before)

    def row(self) -> list[str]:
        """Return the result as a row of the page's table."""
        verdict = "holds" if self.holds else "does not hold"
        return kb_pages.row_of(self.claim, _short(self.before), _short(self.value), verdict + self.note)

    @property
    def note(self) -> str:
        return f" ({self.why})" if self.why else ""


def _short(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    text = " ".join(str(value).split())
    return text if len(text) <= 90 else text[:87] + "..."


# --- one measurement, in a process of its own ------------------------------------------------------------------------


def measure(
    case: str,
    problem: Any,
    config: Any,
    mode: str,
    metrics: list[str],
    arch: str = "sm_90a",
    baseline: str | None = None,
    before: Any = None,
) -> dict[str, Any]:
    """Return the metrics of a case under a config, by name, as JSON."""
    # A case is loaded for one mode only: kernels compiled for a GPU are not those of the CPU target.
    opened = load(case)
    chosen = opened.problem(problem)
    choices = opened.configs(chosen)
    config = ({**choices[0].config, **(config or {})}) if choices else config
    if mode == "number":
        numbers = opened._names.get("numbers")
        numbers_ = numbers(config, chosen) if numbers else {}
        missing = [name for name in (metric.partition(":")[2] for metric in metrics) if name not in numbers_]
        if missing:
            counted = ", ".join(numbers_) or "nothing"
            raise ValueError(f"the case counts no number {missing[0]!r}: its numbers() gives {counted}")
        return {metric: numbers_[metric.partition(":")[2]] for metric in metrics}
    if mode == "time":
        first = {**choices[0].config, **(before or {})} if choices else before
        return _ratio(opened, chosen, first, config, baseline)
    inputs = opened.inputs(chosen)
    if mode == "dry":
        return _static(opened, chosen, inputs, config, metrics, arch)
    with kiln.target("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if mode == "banks":
            with kiln.bank_conflicts() as report:
                opened.kernel(*inputs, config=config, problem=chosen)
            return {"bank_conflicts": report.conflicts}
        if mode == "sanitize":
            with kiln.sanitize(raises=False) as report, contextlib.suppress(Exception):
                opened.kernel(*inputs, config=config, problem=chosen)  # also one that raises has findings
            first = str(report.findings[0]).splitlines()[0] if report.findings else ""
            return {"findings": len(report), "finding": first.partition(": ")[2]}
        if mode == "refused":
            try:
                opened.kernel(*inputs, config=config, problem=chosen)
            except Exception as reason:
                where = os.path.dirname(os.path.abspath(opened.file or case)) + os.sep  # results do not depend on it
                return {"refused": f"{type(reason).__name__}: {reason}".replace(where, "")}
            return {"refused": ""}
        return {"error": _error(opened, chosen, inputs, config)}


def _error(case: Any, problem: Any, inputs: list[Any], config: Any) -> float:
    import numpy as np  # 200 ms that the other actions of `kiln kb` do not need

    def exact(x: Any) -> Any:
        wide = np.asarray(x.cpu() if hasattr(x, "cpu") else x)
        return wide.astype(np.float64) if wide.dtype.kind not in "iub" else wide

    expected = exact(case.oracle(*map(exact, inputs), problem=problem))
    result = exact(case.kernel(*inputs, config=config, problem=problem))
    scale = np.maximum(np.abs(expected), np.sqrt((expected**2).mean()))
    return float((np.abs(result - expected) / scale).max())


_OPERATION = re.compile(r"^\s+(?:%|\"|[a-z]\w*\.)", re.MULTILINE)
"""The beginning of an operation in a module's text."""


def _static(case: Any, problem: Any, inputs: list[Any], config: Any, metrics: list[str], arch: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with dry_run(arch) as launches:
            case.kernel(*inputs, config=config, problem=problem)
    if not launches:
        raise ValueError("the kernel launched nothing")
    used = [launch.resources for launch in launches]
    messages = [text for each in used for text in each.messages]
    shared = [each.static_smem + launch.smem for each, launch in zip(used, launches)]
    threads = [math.prod(launch.block) for launch in launches]
    runs = [
        occupancy(arch, n, each.registers, smem, each.barriers, each.tmem_columns)
        for n, each, smem in zip(threads, used, shared)
    ]
    values: dict[str, Any] = {
        "registers": max(each.registers for each in used),
        "spills": sum(each.spill_stores + each.spill_loads for each in used),
        "local": max(each.stack for each in used),
        "shared": max(shared),
        "blocks": min(each.blocks for each in runs),
        "warps": min(each.warps for each in runs),
        "messages": len(messages),
        "message": messages[0] if messages else "",
    }
    if "operations" in metrics:
        texts = {id(launch.artifacts): launch.artifacts["mlir"] for launch in launches}
        values["operations"] = sum(len(_OPERATION.findall(text)) for text in texts.values())
    read = [name for name in metrics if name not in values]
    if read:
        values |= _instructions({id(each.artifacts): each.artifacts["sass"] for each in launches}.values(), read)
    return {name: values[name] for name in metrics}


def _instructions(texts: Iterable[str], metrics: list[str]) -> dict[str, Any]:
    names: list[str] = []
    looped: list[str] = []
    for text in texts:
        for code in sass.kernels(text).values():
            names += [one.name for one in code.instructions]
            working = [loop for loop in code.loops() if loop.mmas]
            for loop in working:
                own = {one.address for one in loop.instructions}
                if not any({one.address for one in other.instructions} < own for other in working):
                    looped += [one.name for one in loop.instructions]
    values: dict[str, Any] = {}
    for metric in metrics:
        kind, _, pattern = metric.partition(":")
        if kind == "instructions":
            values[metric] = len(names)
        elif kind == "mix":
            values[metric] = sum(sass.class_of(name) == pattern for name in names)
        elif kind == "per_mma":
            mmas = sum(sass.class_of(name) == "tensor" for name in looped)
            if not mmas:
                raise ValueError("no loop of the kernel has MMAs")
            values[metric] = len(looped) / mmas
        else:
            values[metric] = sum(bool(re.match(pattern, name)) for name in (looped if kind == "loop" else names))
    return values


def _ratio(case: Any, problem: Any, before: Any, after: Any, baseline: str | None) -> dict[str, Any]:
    """Return the time before over the time after, with its interval, both times and their flags."""
    from ...measure.comparison import compare  # loads numpy

    inputs = case.inputs(problem)
    if baseline is not None and baseline not in case.baselines:
        raise ValueError(f"no baseline {baseline!r}; the case has: {', '.join(case.baselines) or 'none'}")

    def run_before() -> Any:
        return case.baselines[baseline](*inputs) if baseline else case.kernel(*inputs, config=before, problem=problem)

    def run_after() -> Any:
        return case.kernel(*inputs, config=after, problem=problem)

    compared_ = compare({"after": run_after, "before": run_before})
    times = compared_.measurements
    us = [times[name].us for name in ("before", "after")]
    flags = {*times["before"].flags, *times["after"].flags}
    return {"ratio": compared_.ratio, "interval": [compared_.low, compared_.high], "us": us, "flags": sorted(flags)}


# --- all claims of pages ---------------------------------------------------------------------------------------------


def device() -> str | None:
    """Return the GPU on which claims can be measured, or None."""
    return environment()["gpu"]


def _tools(metric: str) -> tuple[str, ...]:
    """Return the tools that a metric of compiled code needs."""
    of_ptxas = ("registers", "spills", "local", "shared", "blocks", "warps", "messages", "message", "operations")
    return ("ptxas",) if metric in of_ptxas else ("ptxas", "nvdisasm")


class ClaimCheck:
    """The claims of pages with their results so far. Several claims about one config of a case are one job."""

    def __init__(self, pages: Iterable[Page], folder: Path, metrics: Sequence[str] = ()) -> None:
        self.folder = folder
        every = [(page, claim) for page in pages for claim in page.claims]
        claims = [each for each in every if not metrics or each[1].metric.partition(":")[0] in metrics]
        self.results: list[tuple[Page, Result]] = [(page, Result(claim)) for page, claim in claims]
        self._jobs: dict[str, dict[str, Any]] = {}
        self._users: dict[str, list[tuple[Result, str]]] = {}
        here = device()
        for _, result in self.results:
            self._schedule(result, here)

    def _schedule(self, result: Result, here: str | None) -> None:
        claim = result.claim
        mode = mode_of(claim.metric)
        if mode is None:
            result.why = f"there is no metric {claim.metric!r}; there are: {', '.join(METRICS)}"
            return
        on_gpu = claim.on is not None or mode == "time"
        if on_gpu and (here is None or (claim.on or "").lower() not in here.lower()):
            result.skipped = True
            result.why = f"needs {claim.on or 'a GPU'}, and here is {here or 'no GPU'}"
            return
        missing = [tool for tool in _tools(claim.metric) if not toolchain.find(tool)] if mode == "dry" else []
        if missing:
            result.skipped = True
            result.why = f"needs {missing[0]}: pip install 'kiln-dsl[cuda]'"
            return
        file = str(kb_pages.case_file(self.folder, claim.case))
        shared = {"case": file, "problem": claim.problem, "mode": mode, "arch": claim.arch}
        if mode == "time":
            shared |= {"before": claim.before, "baseline": claim.baseline}
        self._want(result, "value", {**shared, "config": claim.after})
        if claim.before is not None and mode != "time":
            self._want(result, "before", {**shared, "config": claim.before})

    def _want(self, result: Result, side: str, arguments: Mapping[str, object]) -> None:
        key = json.dumps(arguments, sort_keys=True)
        metrics = self._jobs.setdefault(key, {**arguments, "metrics": []})["metrics"]
        if result.claim.metric not in metrics:
            metrics.append(result.claim.metric)
        self._users.setdefault(key, []).append((result, side))

    def __len__(self) -> int:
        return len(self._jobs)

    def run(self, runner: Any, tell: Callable[..., None] = lambda *_: None) -> None:
        """Measure all claims, case by case."""
        ordered = sorted(self._jobs.items(), key=lambda item: (item[1]["case"], item[0]))
        job = functools.partial(Job, "kiln.workbench.kb.claims:measure", timeout=300)
        jobs = [job(each, needs_gpu=each["mode"] == "time", tag=key) for key, each in ordered]
        for outcome in runner.run(jobs):
            for result, side in self._users[outcome.job.tag]:
                _take(result, side, outcome)
            tell()


def _take(result: Result, side: str, outcome: Any) -> None:
    if outcome.status != "ok":
        error = outcome.error or {}
        last = " ".join(outcome.stderr.strip().splitlines()[-2:])
        said = f"; it printed: {last}" if last and outcome.status != "error" else ""
        result.failed = True
        result.why = f"{outcome.status}: {error.get('type')}: {error.get('message')}{said}"
        return
    setattr(result, side, outcome.result[result.claim.metric])
    if "interval" in outcome.result:
        low, high = outcome.result["interval"]
        flags = "".join(f", {flag}" for flag in outcome.result["flags"])
        times = " and ".join(f"{us:.4g}" for us in outcome.result["us"])
        result.why = f"{low:.3g} to {high:.3g}; {times} us{flags}"
