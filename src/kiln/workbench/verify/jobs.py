"""Jobs of `kiln verify`: one check each. They make inputs and run the kernel, then the reference and the oracle.

Nothing here prints or writes records; the results are JSON (see `check.Result`).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

import kiln
from kiln import DSLBaseError, DSLCudaRuntimeError
from kiln.base_dsl import packages
from kiln.base_dsl.diagnostics import CompilerDiagnosticError, DSLUserCodeRuntimeError
from kiln.base_dsl.target import get_target
from kiln.testing import CantImplementError

from ..core import cases, contracts
from ..core.cases import Case
from ..core.contracts import ContractError
from ..core.opened_case import opened
from ..core.worker import described, status_of
from . import cheating, input_arrays, judge, lost_inputs
from .check import Check, CheckedProblem, Result

REFUSALS = (CantImplementError, DSLBaseError, ValueError, NotImplementedError, AssertionError)
FAULTS = (DSLUserCodeRuntimeError, DSLCudaRuntimeError, CompilerDiagnosticError)
"""Errors of Kiln that are no refusal: the kernel ran, or should have compiled."""

_probed: set[str] = set()

# Problems


def describe(where: str, problem: Mapping[str, object], max_elements: int | None = None) -> dict[str, Any]:
    """Return, as a job, a problem as it is checked, as JSON."""
    return asdict(shrunk(where, problem, max_elements))


def shrunk(where: str, problem: Mapping[str, object], max_elements: int | None = None) -> CheckedProblem:
    """Return a problem with at most `max_elements` elements of input, if there is a smaller one of its kind."""
    case, _ = opened(where)
    smaller_problem = cases.Problem(problem)
    arrays = _arrays(case, smaller_problem)
    asked = _elements(arrays)
    fixed: set[str] = set()
    while max_elements and _elements(arrays) > max_elements:
        sizes = {
            name: value
            for name, value in smaller_problem.items()
            if _is_size(value) and value > 1 and name not in fixed
        }
        if not sizes:
            break
        name = max(sizes, key=lambda each: sizes[each])
        tried = cases.Problem(smaller_problem | {name: _halved(sizes[name])})
        smaller = _possible(case, tried)
        if smaller is None or _elements(smaller) >= _elements(arrays):
            fixed.add(name)
        else:
            smaller_problem = tried
            arrays = smaller
    shapes = [x.shape for x in arrays]
    extents = []
    for name, value in smaller_problem.items():
        other = _possible(case, cases.Problem(smaller_problem | {name: value + 1})) if _is_size(value) else None
        if other is not None and [x.shape for x in other] != shapes:
            extents.append(name)
    text = [f"{input_arrays.dtype_name(x)} {'x'.join(map(str, x.shape)) or 'scalar'}" for x in arrays]
    return CheckedProblem(dict(smaller_problem), extents, _elements(arrays), asked, text)


def _halved(size: int) -> int:
    """Return about half an extent with the same remainder modulo 64: what a tile leaves over is what is checked.

    Extents below 128 keep the remainder of a smaller power of two.
    """
    unit = min(64, 1 << max(0, size.bit_length() - 2))
    rest = size % unit
    return (size - rest) // 2 // unit * unit + rest


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _arrays(case: Case, problem: Mapping[str, object]) -> list[Any]:
    return [x for x in case.inputs(problem) if contracts.is_array(x)]


def _possible(case: Case, problem: Mapping[str, object]) -> list[Any] | None:
    with contextlib.suppress(ContractError):
        return _arrays(case, problem)
    return None


def _elements(arrays: Sequence[Any]) -> int:
    return sum(math.prod(map(int, x.shape)) for x in arrays)


# Checks


def run(**check: Any) -> dict[str, Any]:
    """Do, as a job, one check that is given by its fields; return its result as JSON."""
    return result_of(Check(**check)).to_json()


def result_of(check: Check) -> Result:
    """Do one check."""
    case, tools = opened(check.where)
    trial = _Trial(case, check)
    kinds = {
        "deterministic": trial.deterministic,
        "sanitizer": trial.sanitizer,
        "repeated": trial.repeated,
        "streams": trial.streams,
    }
    with contextlib.ExitStack() as stack:
        stack.callback(_forget)
        try:
            result = kinds.get(check.kind, trial.values)()
        except ContractError:
            raise
        except Exception as error:
            if not trial.running:
                raise
            result = _raised(error, check)
    changed = tools.changed()
    if changed and result.status in ("ok", "refused"):
        return _cheat(check, "honest-tools", changed[0])
    return result


def _forget() -> None:
    """Free what a check allocated, since the next one may need it."""
    torch = packages.loaded("torch")
    if torch is not None and torch.cuda.is_available() and hasattr(torch.cuda, "empty_cache"):
        torch.cuda.empty_cache()


def _raised(error: Exception, check: Check) -> Result:
    if status_of(error) in ("oom", "device_error"):
        raise error  # the worker then ends
    name = type(error).__name__
    text = str(error) if isinstance(error, DSLBaseError) else f"{name}: {error}".rstrip(": ")
    if check.may_be_refused and isinstance(error, REFUSALS) and not isinstance(error, FAULTS):
        return check.result("refused", text)
    status = "timeout" if isinstance(error, TimeoutError) else "error"
    return check.result(status, f"kernel_fn raised {text}", raised=described(error))


def _cheat(check: Check, name: str, seen: str) -> Result:
    return check.result("cheat", f"{name}: {seen}\n{cheating.CHECKS[name]}")


class _Trial:
    """One problem and seed; `running` is whether the kernel's own code runs."""

    def __init__(self, case: Case, check: Check) -> None:
        self.case = case
        self.check = check
        self.problem = cases.Problem(check.problem)
        self.running = False
        self.misfits = False

    # Steps

    def prepare(self) -> None:
        """Make `inputs` for the kernel, `copies` for the reference, and `zones` of inputs that could be laid out."""
        layout = self.check.layout
        kind = self.check.data
        arrays = self.case.inputs(self.problem, self.check.seed)
        self.zones = [input_arrays.placed(x, layout) if contracts.is_array(x) else None for x in arrays]
        if layout and not any(self.zones):
            raise _NotTried("no input that is a torch or numpy array has enough modes")
        if layout:  # arrays with too few modes keep their layout
            self.zones = [zone or input_arrays.placed(x) for zone, x in zip(self.zones, arrays)]
        self.inputs = [x if zone is None else zone.array for zone, x in zip(self.zones, arrays)]
        if kind != "normal" and not any(map(input_arrays.is_floating, self.inputs)):
            raise _NotTried("no input is a torch or numpy array of floats")
        for number, (zone, x) in enumerate(zip(self.zones, self.inputs)):
            input_arrays.fill(x, kind, self.check.seed, number)
            if zone is not None:
                zone.remember()
        self.copies = [input_arrays.clone(x) if contracts.is_array(x) else x for x in self.inputs]

    def call(self) -> list[Any]:
        """Run the kernel and return its outputs."""
        self.running = True
        with cheating.Watch() as self.watch, input_arrays.poisoned_memory() as self.poisoned:
            result = self.case.kernel(*self.inputs, config=self.check.config, problem=self.problem)
        self._synchronize()
        self.running = False
        self.misfits = False
        return self._outputs(result, self.inputs, "kernel_fn")

    def _synchronize(self) -> None:
        torch = packages.loaded("torch")
        if torch is not None and any(input_arrays.is_torch(x) and x.is_cuda for x in self.inputs):
            torch.cuda.synchronize()

    def _outputs(self, result: object, inputs: Sequence[object], name: str) -> list[Any]:
        if result is None and self.case.mutates:
            changed = [x for number, x in enumerate(inputs) if cheating.mutated(self.case, number)]
            return [x for x in changed if contracts.is_array(x)]
        outputs = list(result.values()) if isinstance(result, Mapping) else result
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        if not outputs or not all(map(contracts.is_array, outputs)):
            nothing = "None (return the output, or declare what it `mutates`)"
            what = nothing if result is None else contracts.short(result)
            message = f"{name} returns an array, or a tuple or dict of them, not {what}"
            raise ContractError(message, self.case.file, contracts.line_of(self.case.file, name))
        return outputs

    def _run_kernel(self, *inputs: object) -> list[Any]:
        return self._outputs(
            self.case.kernel(*inputs, config=self.check.config, problem=self.problem), inputs, "kernel_fn"
        )

    def _run_reference(self, *inputs: object) -> list[Any]:
        return self._outputs(self.case.reference(*inputs, problem=self.problem), inputs, "reference_fn")

    def complaints(self, outputs: Sequence[object]) -> Result | None:
        """Return the first check against self-deception that a call failed."""
        by_rule = self.watch.complaints(self.case) | cheating.of_outputs(self.case, self.inputs, outputs)
        for number, zone in enumerate(self.zones):
            if zone is None:
                continue
            if not cheating.mutated(self.case, number) and not zone.unchanged():
                where = "bytes around it" if zone.spilled() else "its contents"
                by_rule.setdefault("inputs-unchanged", f"the kernel changed input {number}: {where}")
            elif zone.spilled():
                return self.wrong(f"the kernel wrote outside input {number}, which it may change")
        if any(zone.spilled() for zone in self.poisoned):
            where = "bytes before, after or between the elements of an output"
            return self.wrong(f"the kernel wrote outside memory it was given: {where}")
        return next((self.cheat(name, seen) for name, seen in by_rule.items()), None)

    def wrong(self, message: str) -> Result:
        """Return that results are wrong, and how."""
        return self.check.result("wrong", message)

    def cheat(self, name: str, seen: str) -> Result:
        """Return that a check against self-deception failed, and what was seen."""
        return _cheat(self.check, name, seen)

    def compare(self, outputs: Sequence[object]) -> Result:
        """Judge outputs by the reference and the oracle, which run now."""
        wide = [input_arrays.in_fp64(x) if contracts.is_array(x) else x for x in self.copies]
        references = self._run_reference(*self.copies)
        with input_arrays.computing_in_fp64():
            oracle = self._outputs(self.case.oracle(*wide, problem=self.problem), wide, "reference_fn")
        self.misfits = False
        if len(outputs) != len(references):
            self.misfits = True
            return self.wrong(f"the kernel returns {len(outputs)} outputs, the reference {len(references)}")
        result = self.check.result("ok")
        tolerance = self.case.tolerance if self.check.tolerance is None else self.check.tolerance
        for number, each in enumerate(zip(outputs, references, oracle)):
            mine, theirs, truth = map(input_arrays.plain, each)
            for what, of in (("shape", lambda x: tuple(x.shape)), ("type", input_arrays.dtype_name)):
                if of(mine) != of(theirs):
                    self.misfits = True
                    return self.wrong(f"output {number} has {what} {of(mine)}, the reference's {of(theirs)}")
            judged = judge.judge(mine, theirs, truth, tolerance, exact=self.check.data == "integers")
            worse = judged.error / (judged.bound or 1) >= result.error / (result.bound or 1)
            if not judged.ok or worse or not result.how:
                result.error = judged.error
                result.bound = judged.bound
                result.how = judged.how
            result.notes = sorted({*result.notes, *judged.notes})
            if not judged.ok:
                return self._wrong_output(result, number, mine, theirs, judged)
        return result

    def _wrong_output(self, result: Result, number: int, mine: Any, theirs: object, judged: judge.Judgement) -> Result:
        """Describe an output of which some elements are wrong."""
        seen = judge.findings(mine, theirs, judged, _tile(self.check.config))
        shape = "x".join(map(str, mine.shape)) or "scalar"
        name = f"output {number} ({input_arrays.dtype_name(mine)} {shape})"
        if not _written(mine, theirs):
            unwritten = f"no element of {name} was written: did the kernel write to a copy (`reshape`, `contiguous`)?"
            return self.wrong(f"poisoned-memory: {unwritten}\n{cheating.CHECKS['poisoned-memory']}")
        result.status = "wrong"
        result.message = f"{seen['wrong']} of {seen['elements']} elements of {name} are wrong"
        result.output = seen
        return result

    # Kinds of checks

    def values(self) -> Result:
        """Check results on data of a kind, in the layout."""
        try:
            self.prepare()
        except _NotTried as reason:
            return self.check.result("skipped", str(reason))
        outputs = self.call()
        complaint = self.complaints(outputs)
        if complaint is not None and complaint.status == "cheat":
            return complaint
        result = self.compare(outputs)
        if result.status == "wrong" and result.output is not None:
            result.output["look"] += self._lost(result.output["where"])
        # Wrong values say more than a changed guard byte.
        return complaint or result if result.status == "ok" else result

    def _lost(self, where: Sequence[str]) -> list[str]:
        """Return which inputs a kernel that is wrong everywhere loses; tried once per process."""
        spread = any(text.startswith(("all elements", "scattered")) for text in where)
        if not spread or self.case.mutates or self.case.where in _probed:
            return []
        _probed.add(self.case.where)
        try:
            return lost_inputs.lost(self.copies, self._run_kernel, self._run_reference)
        except Exception:  # only a hint
            return []

    def repeated(self) -> Result:
        """Check new contents behind the same pointers, three times, the last with a seed that nobody can know."""
        self.prepare()
        first = [input_arrays.bits(x) for x in self.call()]
        before = self._contents()
        for seed in (self.check.seed + 1, int.from_bytes(os.urandom(4), "little")):
            fresh = self.case.inputs(self.problem, seed)
            for zone, x, new in zip(self.zones, self.inputs, fresh):
                if contracts.is_array(x):
                    input_arrays.assign(x, input_arrays.numbers(new))
                if zone is not None:
                    zone.remember()
            self.copies = [input_arrays.clone(x) if contracts.is_array(x) else x for x in self.inputs]
            outputs = self.call()
            now = [input_arrays.bits(x) for x in outputs]
            result = self.compare(outputs)
            if result.status != "ok":
                if self.misfits:  # it says nothing about contents
                    return result
                if now == first and self._contents() != before:
                    return self.cheat("same-pointers", "the inputs changed in place, and the result did not")
                if seed != self.check.seed + 1:
                    return self.cheat("unseen-seed", f"right before, wrong with seed {seed}: {result.message}")
                return result
        return result

    def _contents(self) -> list[bytes]:
        """Return the bits of the inputs, as they were before the last call."""
        return [input_arrays.bits(x) for x in self.copies if contracts.is_array(x)]

    def deterministic(self) -> Result:
        """Check that three runs give the same bits, on the CPU target under different schedules."""
        self.prepare()
        seen: list[list[bytes]] = []
        for schedule in ("0", "1", "2"):
            for x, copy in zip(self.inputs, self.copies):
                if contracts.is_array(x):
                    input_arrays.assign(x, input_arrays.numbers(copy))
            with _schedule(schedule):
                seen.append([input_arrays.bits(x) for x in self.call()])
            if seen[-1] != seen[0]:
                where = f"run {len(seen)}" + (f" (schedule KILN_CPU_SEED={schedule})" if _on_host() else "")
                text = f"{where} gave other bits than the first, for the same inputs (or nondeterministic = True)"
                return self.check.result("nondeterministic", text)
        return self.check.result("ok", how="three runs" + (" under three schedules" if _on_host() else ""))

    def sanitizer(self) -> Result:
        """Run once on the CPU target under the sanitizer."""
        self.prepare()
        with kiln.sanitize(raises=False) as report:
            self.call()
        if not report.findings:
            return self.check.result("ok", how="no races, nothing out of bounds, no misused barriers")
        first = report.findings[0]
        more = len(report.findings) - 1
        result = self.wrong(f"{first.kind}: {first}" + (f"\nand {more} more" if more else ""))
        result.findings = [each.to_dict() for each in report.findings]
        return result

    def streams(self) -> Result:
        """Check on a GPU that the kernel waits for earlier work of its stream."""
        torch = packages.loaded("torch")
        self.prepare()
        arrays = [x for x in self.inputs if contracts.is_array(x)]
        if torch is None or not all(input_arrays.is_torch(x) and x.is_cuda for x in arrays):
            return self.check.result("skipped", "the inputs are not torch tensors on a GPU")
        self.call()  # compiles
        others = self.case.inputs(self.problem, self.check.seed + 1)
        fresh = [input_arrays.clone(x) if contracts.is_array(x) else x for x in others]
        torch.cuda.synchronize()
        torch.cuda._sleep(40_000_000)  # cycles in which the stream is busy and the host goes on
        for x, new in zip(self.inputs, fresh):
            if contracts.is_array(x):
                x.copy_(new)
        self.running = True
        outputs = [x.clone() for x in self._run_kernel(*self.inputs)]
        torch.cuda.synchronize()
        self.running = False
        self.misfits = False
        self.copies = fresh
        result = self.compare(outputs)
        if result.status != "ok":
            return self.cheat("stream-order", f"it did not wait for what the stream had to do before: {result.message}")
        return result


class _NotTried(Exception):
    pass


def _written(mine: object, theirs: object) -> bool:
    """Return whether an output has anything but the NaN that was in memory before."""
    got = input_arrays.numbers(mine)
    is_poison = input_arrays.is_floating(mine) and got.size > 0 and bool(np.isnan(got).all())
    return not is_poison or bool(np.isnan(input_arrays.numbers(theirs)).all())


def _tile(config: Mapping[str, Any] | None) -> tuple[int, ...] | None:
    """Return the output tile of a config, by the usual names."""
    if not config:
        return None
    for names in (("tile_m", "tile_n"), ("block_m", "block_n"), ("bm", "bn")):
        if all(isinstance(config.get(name), int) for name in names):
            return tuple(config[name] for name in names)
    tile = config.get("tile")
    if isinstance(tile, (list, tuple)) and len(tile) >= 2 and all(isinstance(each, int) for each in tile):
        return tuple(tile[:2])
    return None


def _on_host() -> bool:
    return get_target().on_host


@contextlib.contextmanager
def _schedule(seed: str) -> Iterator[None]:
    """While open, fix the order of threads and blocks on the CPU target."""
    before = os.environ.get("KILN_CPU_SEED")
    os.environ["KILN_CPU_SEED"] = seed
    try:
        yield
    finally:
        if before is None:
            del os.environ["KILN_CPU_SEED"]
        else:
            os.environ["KILN_CPU_SEED"] = before
