"""Loads Cases from contract modules, `KernelPlan` classes and the kernel library."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .cases import Case
from .contracts import REQUIRED, ContractError, check_names, import_file, import_name
from .text import did_you_mean, no_file


def load(where: object) -> Case:
    """Return the Case of a file, `pkg.module`, either with `:Plan`, a module, or a KernelPlan class or object."""
    if isinstance(where, Case):
        return where
    if isinstance(where, ModuleType):
        return _of_module(where, where.__file__ or where.__name__, None)
    if not isinstance(where, (str, os.PathLike)):
        name = getattr(where, "__qualname__", type(where).__qualname__)
        return _of_plan(where, f"{getattr(where, '__module__', '?')}:{name}")
    text = os.fspath(where)
    name = text
    plan = None
    match = re.fullmatch(r"(.+):([A-Za-z_]\w*)", text)
    if match and not os.path.exists(text):
        name = match.group(1)
        plan = match.group(2)
    if os.path.isdir(name) and os.path.isfile(os.path.join(name, "kernel.py")):
        name = os.path.join(name, "kernel.py")
    if name.endswith(".py") or os.sep in name or os.path.isfile(name):
        path = Path(name).resolve()
        if not path.is_file():
            raise ContractError(no_file(name))
        module = import_file(path)
        return _of_module(module, f"{path}:{plan}" if plan else str(path), plan)
    if name == "kiln.kernels":
        from . import library_cases  # loads the kernel library: 250 ms

        return library_cases.case(plan)
    module = import_name(name)
    return _of_module(module, text, plan)


def _of_module(module: ModuleType, where: str, plan: str | None) -> Case:
    file = module.__file__
    names = vars(module)
    if plan is not None:
        if plan not in names:
            hint = did_you_mean(plan, [name for name in names if not name.startswith("_")])
            raise ContractError(f"there is no {plan!r} in it{f'; {hint}' if hint else ''}", file)
        return _of_plan(names[plan], where)
    plans = [each for each in names.values() if _is_plan(each) and each.__module__ == module.__name__]
    if plans and not any(name in names for name in REQUIRED):
        if len(plans) > 1:
            offered = ", ".join(f"{where}:{each.__name__}" for each in plans)
            raise ContractError(f"it has several plans; name one: {offered}", file)
        return _of_plan(plans[0], f"{where}:{plans[0].__name__}")
    check_names(names, file)
    stem = Path(file).stem if file else module.__name__
    return Case(stem if stem != "kernel" or not file else Path(file).resolve().parent.name, where, file, names)


def _is_plan(value: object) -> bool:
    methods = ("prepare_inputs", "reference_fn", "plan")
    return isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)


def _of_plan(plan: Any, where: str) -> Case:
    """Return a KernelPlan, class or object, as a Case: its fields are the problem."""
    kind = plan if isinstance(plan, type) else type(plan)
    if not _is_plan(kind) or not is_dataclass(kind):
        form = "a dataclass with prepare_inputs, reference_fn and plan"
        raise ContractError(f"{where} is neither a contract module nor a KernelPlan, {form}")
    file = inspect.getsourcefile(kind)
    problem_fields = [each for each in fields(kind) if each.init]

    def default(each: Any) -> Any:
        if not isinstance(plan, type):
            return getattr(plan, each.name)
        return each.default_factory() if each.default_factory is not MISSING else each.default

    def plan_of(problem: Mapping[str, Any]) -> Any:
        return kind(**problem)

    def kernel(*inputs: object, problem: Mapping[str, object], config: object = None) -> Any:
        kernel = plan_of(problem).plan(*inputs)
        result = kernel.run(config)
        outputs = kernel.output_tensors if result is None else result
        return outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs

    names: dict[str, Any] = {
        "fields": {each.name: default(each) for each in problem_fields},
        "plan_of": plan_of,
        "kernel_fn": kernel,
        "reference_fn": lambda *inputs, problem: plan_of(problem).reference_fn(*inputs),
        "get_inputs": lambda **problem: plan_of(problem).prepare_inputs(),
    }
    if hasattr(kind, "oracle_fn"):
        names["oracle_fn"] = lambda *inputs, problem: plan_of(problem).oracle_fn(*inputs)
    for method, name in (("_autotune_configs", "configs"), ("_algorithmic_flops_bytes", "flops_bytes")):
        if hasattr(kind, method) and _says_something(kind, method):
            names[name] = lambda method=method, **problem: getattr(plan_of(problem), method)()
    for name in ("problems", "tolerance", "baselines", "arch", "mutates", "aliases", "nondeterministic", "streams"):
        if getattr(kind, name, None) is not None:
            names[name] = getattr(kind, name)
    if not isinstance(plan, type):
        names["problems"] = [names["fields"]]
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
    return Case(snake, where, file, names, of_plan=True)


def _says_something(kind: type, method: str) -> bool:
    """Return whether a plan defines a method itself, rather than inherit KernelPlan's."""
    base = next((each for each in kind.__mro__ if each.__name__ == "KernelPlan"), None)
    return base is None or getattr(base, method, None) is not getattr(kind, method)


def names_case(where: str) -> bool:
    """Return whether a word names a Case: a module, `module:Plan`, a folder, or a file with a contract or a plan."""
    if os.path.isdir(where):
        return os.path.isfile(os.path.join(where, "kernel.py"))
    file, _, plan = where.partition(":") if not os.path.exists(where) else (where, "", "")
    if not os.path.isfile(file):
        return not file.endswith(".py") and bool(re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+(:\w+)?|\w+:\w+", where))
    if plan:
        return True
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (SyntaxError, ValueError):
        return False
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    bases = [ast.unparse(base) for node in tree.body if isinstance(node, ast.ClassDef) for base in node.bases]
    return any("KernelPlan" in base for base in bases) or {"kernel_fn", "get_inputs"} <= names
