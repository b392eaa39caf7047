"""Cases: kernels with everything that is needed to check, time and tune them.

A Case is a contract module (contracts.py) or a `KernelPlan`. A Problem is a dict of JSON values; a Config is one too,
or a dataclass that becomes one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from ...base_dsl import cache, packages
from ...hardware import current
from ...hardware.architectures import generation_of, refusal
from . import source_closure
from .contracts import NAMES, ContractError, contract_error, is_array, line_of, short
from .text import did_you_mean


class Problem(dict[str, Any]):
    """The fields of a problem, as items and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the problem has no field {name!r}; it has: {', '.join(self) or 'none'}") from None


@dataclass(frozen=True)
class Choice:
    """A config with the reasons against it; `value` is what the contract gave, a dict or a Tiling."""

    config: dict[str, Any]
    reasons: tuple[str, ...] = ()
    value: Any = field(default=None, compare=False)

    @property
    def valid(self) -> bool:
        """Whether there is no reason against the config."""
        return not self.reasons


class Case:
    """A kernel with its inputs, reference and configs. `where` loads it again, also in another process."""

    def __init__(
        self, name: str, where: str, file: str | None, names: Mapping[str, Any], of_plan: bool = False
    ) -> None:
        self.name = name
        self.where = where
        self.file = file
        self._listings: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        self._names = names
        self._of_plan = of_plan
        self.sources: dict[Path, bytes] = source_closure.source_files(Path(file)) if file else {}
        self.arch: str | None = names.get("arch")
        self.tolerance: Any = names.get("tolerance")
        self.baselines: dict[str, Callable[..., Any]] = dict(names.get("baselines") or {})
        self.mutates: Any = names.get("mutates", ())
        self.aliases: bool = bool(names.get("aliases"))
        self.nondeterministic: bool = bool(names.get("nondeterministic"))
        self.streams: bool = bool(names.get("streams"))
        self._check_declarations()
        self.problems: list[Problem] = self._all_problems()

    def __repr__(self) -> str:
        return f"<Case {self.name}: {self.where}>"

    # Problems

    def problem(self, which: int | Mapping[str, object] | None = None) -> Problem:
        """Return a problem by its number, or the first one with some fields changed."""
        if which is None or isinstance(which, int):
            number = which or 0
            if not -len(self.problems) <= number < len(self.problems):
                raise ContractError(f"there is no problem {number}: {self.name} has {len(self.problems)}", self.file)
            return Problem(self.problems[number])
        return self.changed(self.problems[0], which)

    def changed(self, problem: Mapping[str, object], fields: Mapping[str, object]) -> Problem:
        """Return a problem with some fields changed; the new values must have the types of the old ones."""
        problem_ = Problem(problem)
        for name, value in fields.items():
            if name not in problem_:
                hint = did_you_mean(name, problem_) or f"there are: {', '.join(problem_) or 'none'}"
                raise ContractError(f"the problems of {self.name} have no field {name!r}; {hint}")
            problem_[name] = _like(problem_[name], value, name)
        return problem_

    def _all_problems(self) -> list[Problem]:
        defaults = self._defaults()
        listed = self._names.get("problems")
        if callable(listed):
            listed = self._called("problems", listed)
        if listed is None:
            missing = [name for name, value in defaults.items() if value is MISSING]
            if missing:
                lacks = f"get_inputs has parameters without a default, and there is no `problems`: {', '.join(missing)}"
                hint = f"problems = [{{{', '.join(f'{name!r}: ...' for name in missing)}}}]"
                raise self._bad(f"{lacks}; write {hint}", "get_inputs")
            return [Problem(defaults)]
        if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(each, Mapping) for each in listed):
            raise self._bad(f"`problems` is a list of dicts with at least one, not {short(listed)}", "problems")
        problems: list[Problem] = []
        for number, each in enumerate(listed):
            problem = Problem({name: value for name, value in defaults.items() if value is not MISSING} | dict(each))
            unknown = [] if defaults.get("**") else [name for name in problem if name not in defaults]
            missing = [name for name in defaults if name not in problem and name != "**"]
            problem.pop("**", None)
            if unknown or missing:
                what = f"has {unknown[0]!r}, which get_inputs does not take" if unknown else f"lacks {missing[0]!r}"
                takes = ", ".join(defaults) or "nothing"
                raise self._bad(f"problem {number} {what}; get_inputs takes: {takes}", "problems")
            try:
                json.dumps(problem)
            except TypeError as reason:
                raise self._bad(f"problem {number} is not JSON ({reason}): name types by text", "problems") from None
            problems.append(problem)
        return problems

    def _defaults(self) -> dict[str, Any]:
        """Return the fields of problems: parameters of get_inputs with their defaults; `**` if it takes any keyword."""
        if "fields" in self._names:
            return dict(self._names["fields"])
        defaults: dict[str, Any] = {}
        for name, parameter in inspect.signature(self._names["get_inputs"]).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                defaults["**"] = True
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                defaults[name] = MISSING if parameter.default is parameter.empty else parameter.default
        return defaults

    # Calls of the user's functions

    def inputs(self, problem: Mapping[str, object], seed: int = 0) -> list[Any]:
        """Return the inputs of a problem; they depend on the seed only."""
        seed_everything(seed)
        arrays = self._called("get_inputs", self._names["get_inputs"], **problem)
        if not isinstance(arrays, (list, tuple)):
            raise self._bad(f"get_inputs returns a list of arrays, not {short(arrays)}", "get_inputs")
        if not any(map(is_array, arrays)):
            raise self._bad(f"get_inputs returns arrays (torch, numpy), not {short(list(arrays))}", "get_inputs")
        return list(arrays)

    def kernel(self, *inputs: object, config: object = None, problem: Mapping[str, object] | None = None) -> Any:
        """Run the kernel, with a config if there is one; exceptions of the kernel pass through."""
        return self.bound(config, problem)(*inputs)

    def bound(self, config: object = None, problem: Mapping[str, object] | None = None) -> Callable[..., Any]:
        """Return the kernel as a function of the inputs, with its config looked up once, for timing."""
        more = self._with_problem(problem)
        if config is not None or self._needs_config:
            more["config"] = self._config_value(config, problem)
        return functools.partial(self._names["kernel_fn"], **more)

    def reference(self, *inputs: object, problem: Mapping[str, object] | None = None) -> Any:
        """Return what the kernel should compute; a failure is an error of the contract."""
        return self._called("reference_fn", self._names["reference_fn"], *inputs, **self._with_problem(problem))

    def oracle(self, *inputs: object, problem: Mapping[str, object] | None = None) -> Any:
        """Return `oracle_fn`, or else `reference_fn`, of inputs that should be in fp64."""
        name = "oracle_fn" if self._names.get("oracle_fn") else "reference_fn"
        return self._called(name, self._names[name], *inputs, **self._with_problem(problem))

    def flops_bytes(self, problem: Mapping[str, object]) -> tuple[float, float] | None:
        """Return the FLOPs and bytes of the algorithm; None if the contract does not say."""
        function = self._names.get("flops_bytes")
        if function is None:
            return None
        work = self._called("flops_bytes", function, **problem)
        if isinstance(work, Mapping) and {"flops", "bytes"} <= work.keys():
            work = work["flops"], work["bytes"]
        if not isinstance(work, (tuple, list)) or len(work) != 2:
            raise self._bad(f"flops_bytes returns (flops, bytes), not {short(work)}", "flops_bytes")
        return float(work[0]), float(work[1])

    # Configs

    def configs(self, problem: Mapping[str, object]) -> list[Choice]:
        """Return all configs in canonical order, each once, with the reasons against it."""
        return [Choice(config, tuple(self._reasons(value, problem)), value) for config, value in self._listed(problem)]

    def _listed(self, problem: Mapping[str, object]) -> list[tuple[dict[str, Any], Any]]:
        """Return the configs of a problem with the contract's own objects; the contract lists them once per problem."""
        name = json.dumps(problem, sort_keys=True)
        if name not in self._listings:
            self._listings[name] = self._list(problem)
        return self._listings[name]

    def _list(self, problem: Mapping[str, object]) -> list[tuple[dict[str, Any], Any]]:
        listed = self._names.get("configs")
        if callable(listed):
            listed = self._called("configs", listed, **problem)
        if isinstance(listed, Mapping):
            if not all(isinstance(values, (list, tuple)) for values in listed.values()):
                form = "`configs` as a dict has a list for each name, of which all combinations are tried"
                raise self._bad(form, "configs")
            listed = [dict(zip(listed, values)) for values in itertools.product(*listed.values())]
        if listed is not None and not isinstance(listed, (list, tuple)):
            form = "`configs` is a list of dicts or Tilings, or a dict of lists"
            raise self._bad(f"{form}, not {short(listed)}", "configs")
        configs: dict[str, tuple[dict[str, Any], Any]] = {}
        for value in listed or ():
            config = self._as_dict(value)
            configs.setdefault(json.dumps(config, sort_keys=True), (config, value))
        return list(configs.values())

    def reasons(self, config: Mapping[str, object], problem: Mapping[str, object]) -> list[str]:
        """Return why a config is refused for a problem; nothing if it is not."""
        return self._reasons(self._config_value(config, problem), problem)

    @property
    def has_configs(self) -> bool:
        """Whether the contract has configs to choose from."""
        return self._names.get("configs") is not None

    def perf_model(self, config: Mapping[str, object], problem: Mapping[str, object], device: object) -> float | None:
        """Return the predicted microseconds; None if the contract has no `perf_model`."""
        function = self._names.get("perf_model")
        if function is None:
            return None
        value = self._config_value(config, problem)
        return float(self._called("perf_model", function, value, Problem(problem), device))

    @property
    def _needs_config(self) -> bool:
        if not self.has_configs or self._of_plan:
            return False
        parameter = inspect.signature(self._names["kernel_fn"]).parameters.get("config")
        return parameter is not None and parameter.default is parameter.empty

    def _config_value(self, config: object, problem: Mapping[str, object] | None) -> Any:
        """Return the contract's own object for a config."""
        problem = problem if problem is not None else self.problems[0]
        choices = self._listed(problem) if self.has_configs else []
        if config is None:
            return next((value for _, value in choices if not self._reasons(value, problem)), None)
        if not isinstance(config, Mapping):
            return config
        for listed, value in choices:
            if listed == config:
                return value
        kind = type(choices[0][1]) if choices else dict
        return kind(**config) if is_dataclass(kind) else dict(config)

    def _as_dict(self, value: object) -> dict[str, Any]:
        mapping = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        try:
            if not isinstance(mapping, Mapping):
                raise TypeError(f"{short(value)} is neither a dict nor a dataclass")
            return json.loads(json.dumps(dict(mapping)))
        except TypeError as reason:
            raise self._bad(f"a config is not JSON: {reason}", "configs") from None

    def _reasons(self, value: Any, problem: Mapping[str, object]) -> list[str]:
        """Return why a config is refused."""
        reasons: list[str] = []
        whole = self._names["plan_of"](problem) if self._of_plan else Problem(problem)
        if hasattr(value, "validate"):
            reasons += _said(value.validate, whole)
        if self._names.get("validate") is not None:
            reasons += _said(self._names["validate"], value, whole, current.device())
        return reasons

    # The verbs

    def verify(self, problems: object = "all", **options: object) -> Any:
        """Check the kernel (`kiln.workbench.verify.verify`)."""
        return _verb("verify").verify(self, problems=problems, **options)

    def checks(self, **options: object) -> Any:
        """Return what `verify` checks, one by one, for `pytest.mark.parametrize`."""
        return _verb("verify").checks(self, **options)

    def bench(self, problem: object = None, **options: object) -> Any:
        """Time the kernel (`kiln.workbench.bench.bench`)."""
        return _verb("bench").bench(self, problem, **options)

    def tune(self, problem: object = None, **options: object) -> Any:
        """Choose a config (`kiln.workbench.tune.tune`)."""
        return _verb("tune").tune(self, problem, **options)

    def profile(self, problem: object = None, **options: object) -> Any:
        """Show where the time goes (`kiln.workbench.profile.profile`)."""
        return _verb("profile").profile(self, problem, **options)

    def digest(self) -> str:
        """Return a hash of the contract's file and the project files it imports, as they were when loaded."""
        if not any(map(source_closure.is_project, self.sources)):  # a kernel of Kiln itself
            return cache.sources_hash()
        return source_closure.digest(self.sources)

    # Helpers

    def _with_problem(self, problem: Mapping[str, object] | None) -> dict[str, Any]:
        return {"problem": problem if problem is not None else self.problems[0]} if self._of_plan else {}

    def _called(self, name: str, function: Callable[..., object], *arguments: object, **options: object) -> Any:
        """Call a function of the contract; report what it raises at the user's line."""
        try:
            return function(*arguments, **options)
        except ContractError:
            raise
        except Exception as error:
            raise contract_error(f"{name} raised", error, self.sources, self.file) from error

    def _bad(self, message: str, name: str) -> ContractError:
        value = self._names.get(name)
        code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
        line = code.co_firstlineno if code is not None else line_of(self.file, name)
        return ContractError(message, self.file, line)

    def _check_declarations(self) -> None:
        if not callable(self._names.get("kernel_fn")):
            raise self._bad(f"kernel_fn is a function, not {short(self._names.get('kernel_fn'))}", "kernel_fn")
        for name in ("reference_fn", "get_inputs", "oracle_fn", "flops_bytes", "validate", "perf_model"):
            value = self._names.get(name)
            if value is not None and not callable(value):
                raise self._bad(f"{name} is a function, not {short(value)}", name)
        if self.arch is not None:
            try:
                arch_fits(self.arch, None)
            except ValueError as reason:
                raise self._bad(f"arch = {self.arch!r}: {reason}", "arch") from None
        if not all(map(callable, self.baselines.values())):
            raise self._bad("`baselines` is a dict of names and functions", "baselines")
        if self.has_configs and not self._of_plan:
            parameters = inspect.signature(self._names["kernel_fn"]).parameters.values()
            if not any(each.name == "config" or each.kind is each.VAR_KEYWORD for each in parameters):
                hint = "write kernel_fn(..., config=None)"
                raise self._bad(f"there are `configs`, so kernel_fn takes config=: {hint}", "kernel_fn")
        if isinstance(self.tolerance, str) and self.tolerance != "exact":
            raise self._bad(f"tolerance is {NAMES['tolerance']}, not {self.tolerance!r}", "tolerance")
        if isinstance(self.tolerance, Mapping):
            unknown = self.tolerance.keys() - {"rtol", "atol", "factor"}
            if unknown:
                raise self._bad(f"tolerance has rtol and atol, or factor, not {sorted(unknown)[0]!r}", "tolerance")


def _verb(name: str) -> Any:
    """Return the package of a verb, loaded by name when a method of Case needs it: verbs stand on Cases."""
    return importlib.import_module(f"kiln.workbench.{name}")


# Values


def seed_everything(seed: int) -> None:
    """Seed the generators that contracts draw from: Python's, numpy's and torch's."""
    import numpy  # 200 ms that verbs without inputs do not need

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch = packages.loaded("torch")
    if torch is not None:
        torch.manual_seed(seed)


def _like(old: Any, value: Any, name: str) -> Any:
    """Convert a value to the type of the field's old value; text is read as JSON."""
    if isinstance(value, str) and not isinstance(old, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = {"True": True, "False": False, "None": None}.get(value, value)
    good = old is None or type(value) is type(old) or (isinstance(old, float) and isinstance(value, int))
    if not good:
        raise ContractError(f"{name}={value!r}: the field {name!r} takes {type(old).__name__}, as in {name}={old!r}")
    return float(value) if isinstance(old, float) else value


def _said(function: Callable[..., object], *arguments: object) -> list[str]:
    """Return the reasons that a `validate` gives, by its result or by raising."""
    try:
        answer = function(*arguments)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    if isinstance(answer, str):
        return [answer]
    if isinstance(answer, (list, tuple)):
        return [str(each) for each in answer]
    if answer is None or bool(answer):
        return []
    return [str(each) for each in getattr(answer, "reasons", None) or ["refused by validate, without a reason"]]


# Architectures, keys


def arch_fits(arch: str, name: str | None) -> bool:
    """Return whether an architecture (`sm_90a`; `sm_90` for a device's capability) is among those of a contract.

    `sm_80+` means that one and all later ones, `sm_90a` code for 9.0 alone; commas separate names.
    """
    here = generation_of(name or "sm_80")
    return not refusal(arch, (here.major, here.minor))


def key_of(
    kind: str,
    case: Case,
    problem: Mapping[str, object],
    config: Mapping[str, object] | None,
    env: Mapping[str, object],
    protocol: str = "",
) -> str:
    """Return a hash of all that a result depends on: sources, versions, GPU, driver, problem, config, protocol."""
    versions = {name: env.get(name) for name in ("kiln", "ptxas", "gpu", "driver")}
    whole: Sequence[Any] = (kind, protocol, case.name, case.digest(), versions, dict(problem), config)
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:32]
