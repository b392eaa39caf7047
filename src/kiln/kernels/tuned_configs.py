"""Plans as configs of JSON, and those that `kiln tune kiln.kernels:gemm` found, for `plan=` of a call."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kiln


def tuned_plan(function: str, file: str | os.PathLike[str], **problem: Any) -> Any:
    """The plan that tuning found for a function's problem on the GPU in force, from `tuned.json` beside `file`; None if there is none.

    `kernels.gemm(a, b, plan=kernels.tuned_plan("gemm", __file__, m=4096, n=4096, k=4096, dtype="float16"))`. The problem is what was tuned, by
    the fields of `kiln tune kiln.kernels:gemm`: near ones do not count. None is the library's own choice.
    """
    beside = Path(file).with_name("kiln.kernels")  # what tuning notes in place of a file
    config = kiln.tuned(beside, lambda *_: False, case=function).get(problem)
    return plan_of(config)


def config_of(plan: Any) -> dict[str, Any]:
    """A plan as a config: the name of its type, and its fields."""
    return {"plan": type(plan).__name__, **dataclasses.asdict(plan)}


def plan_of(config: Mapping[str, Any] | None) -> Any:
    """A config as a plan; None for the one that the library chooses."""
    from .impl import attention, gemm, reduction, rowwise

    if config is None:
        return None
    fields = {
        name: tuple(value) if isinstance(value, list) else value for name, value in config.items() if name != "plan"
    }
    table = [one for room in (attention, gemm, reduction, rowwise) for one in room.FAMILY.table]
    found = next((one.plan for one in table if one.plan.__name__ == config.get("plan")), None)
    if found is None:
        raise ValueError(f"no implementation has plans of the type {config.get('plan')!r}")
    return found(**fields)
