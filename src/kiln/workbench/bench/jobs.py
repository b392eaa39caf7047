"""Jobs of `kiln bench`: workers hold candidates between turns, so that those of several processes can take turns."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...base_dsl import packages
from ...measure import measurement, timers
from ..core.cases import Case
from ..core.contracts import ContractError, is_array
from ..core.opened_case import opened

KERNEL = "kernel"
PEERS = ("reference", "torch.compile")
"""Peers that every Case can be compared with, besides its `baselines`."""

_candidates: dict[str, _Candidate] = {}


class _Candidate:
    """A candidate between turns: its batches, and the results of its calls."""

    def __init__(
        self, case: Case, function: Callable[..., object], inputs: Sequence[object], options: Mapping[str, Any]
    ) -> None:
        self.last: Any = None
        # Outputs of timed calls have to equal that of a call that is not timed.
        self.expected = None if case.mutates or case.nondeterministic else fingerprint(function(*inputs))
        effort = measurement.QUICK if options["quick"] else measurement.NORMAL

        def call(*arrays: object) -> Any:
            self.last = function(*arrays)
            return self.last

        timer = timers.timer()
        self.series = measurement.Series(call, tuple(inputs), options["l2"], options["steady"], effort, timer)
        self.series.watch.own = options["workers"]

    def complaint(self) -> str | None:
        """Return what is wrong with the output of the last timed call, or None."""
        if self.expected is None or self.last is None or fingerprint(self.last) == self.expected:
            return None
        return "outputs of timed calls are not those of a call that is not timed"


def prepare(
    name: str,
    where: str,
    what: str,
    problem: Mapping[str, object],
    config: Mapping[str, object] | None,
    seed: int,
    **options: object,
) -> dict[str, Any]:
    """Prepare a candidate: `what` is the kernel, the reference, the reference under torch.compile, or a baseline."""
    case, _ = opened(where)
    inputs = _inputs(case, problem, seed)
    _candidates[name] = _Candidate(case, candidate(case, what, problem, config), inputs, options)
    return {"dtype": dtype_of(inputs), "protocol": _candidates[name].series.batch.protocol}


class WorkerEnded(Exception):
    """The worker that held a candidate has ended."""


def _prepared(name: str) -> _Candidate:
    try:
        return _candidates[name]
    except KeyError:
        raise WorkerEnded(f"the worker that held {name} ended") from None


def warm_up(name: str) -> None:
    """Run until times are steady."""
    _prepared(name).series.warm_up()


def turn(name: str) -> list[float]:
    """Time one batch; return the microseconds of each call."""
    return _prepared(name).series.run()


def result(name: str, at_least_us: float) -> dict[str, Any]:
    """Return the measurement of all turns, and what is `wrong` with outputs."""
    prepared = _prepared(name)
    return {"measurement": prepared.series.result(at_least_us).to_json(), "wrong": prepared.complaint()}


_last_inputs: dict[str, list[Any]] = {}


def _inputs(case: Case, problem: Mapping[str, object], seed: int) -> list[Any]:
    """Return the inputs of a problem; all candidates share the arrays, unless the kernel changes them."""
    if case.mutates:
        return case.inputs(problem, seed)
    key = json.dumps((case.where, problem, seed), sort_keys=True)
    if key not in _last_inputs:
        _last_inputs.clear()
        _last_inputs[key] = case.inputs(problem, seed)
    return _last_inputs[key]


def candidate(case: Case, what: str, problem: Mapping[str, object], config: object) -> Callable[..., Any]:
    """Return a candidate as a function of the inputs."""
    if what == KERNEL:
        return case.bound(config, problem)
    if what == "reference":
        return functools.partial(case.reference, problem=problem)
    if what == "torch.compile":
        try:
            torch = packages.load("torch")
        except ImportError:
            raise ContractError("torch.compile needs PyTorch: pip install torch") from None
        return torch.compile(functools.partial(case.reference, problem=problem))
    return case.baselines[what]


def fingerprint(output: object) -> str:
    """Return a hash of all arrays in an output, bit by bit."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays_of(output):
        digest.update(repr((tuple(array.shape), str(array.dtype))).encode())
        if hasattr(array, "detach"):  # PyTorch's, as bytes: numpy lacks some of its types
            torch = packages.load("torch")
            array = array.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
        digest.update(array.tobytes() if hasattr(array, "tobytes") else bytes(memoryview(array)))
    return digest.hexdigest()


def arrays_of(output: object) -> list[Any]:
    """Return the arrays of a tensor, a tuple, a list or a dict of them, in order."""
    if is_array(output):
        return [output]
    if isinstance(output, Mapping):
        output = [output[name] for name in sorted(output)]
    return [array for one in output for array in arrays_of(one)] if isinstance(output, (list, tuple)) else []


_TYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "uint8": "i8"}


def dtype_of(inputs: Sequence[object]) -> str | None:
    """Return the type whose peak a problem is judged by: that of the largest input."""
    arrays = [array for one in inputs for array in arrays_of(one)]
    if not arrays:
        return None
    largest = max(arrays, key=lambda array: getattr(array, "nbytes", 0))
    name = str(largest.dtype).removeprefix("torch.")
    return "f8" if name.startswith("float8") else "f4" if name.startswith("float4") else _TYPES.get(name)
