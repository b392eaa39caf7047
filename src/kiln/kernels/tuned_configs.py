"""Configs as JSON objects, and the ones that `kiln tune kiln.kernels:gemm` stored, for `config=` of a call."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kiln


def tuned_config(function: str, file: str | os.PathLike[str], **problem: Any) -> Any:
    """Return the tuned config of a problem on the current GPU from `tuned.json` beside a file, or None.

    `kernels.gemm(a, b, config=kernels.tuned_config("gemm", __file__, m=4096, n=4096, k=4096, dtype="float16"))`. With
    None the library chooses the config.

    Args:
        function: the name of the library's function, such as "gemm".
        file: the program, beside which `tuned.json` lies.
        problem: the fields of `kiln tune kiln.kernels:gemm`, which must match exactly.
    """
    beside = Path(file).with_name("kiln.kernels")  # tuning stores this in place of a file name
    return config_from_dict(kiln.tuned(beside, lambda *_: False, case=function).get(problem))


def config_to_dict(config: Any) -> dict[str, Any]:
    """Return the name of a config's class, as "config", and its fields."""
    return {"config": type(config).__name__, **dataclasses.asdict(config)}


def config_from_dict(fields: Mapping[str, Any] | None) -> Any:
    """Return the config that `config_to_dict` described; None for None, the library's choice."""
    from .impl import attention, gemm, reduction, rowwise

    if fields is None:
        return None
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items() if name != "config"
    }
    implementations = [x for family in (attention, gemm, reduction, rowwise) for x in family.REGISTRY.implementations]
    kind = next((x.config for x in implementations if x.config.__name__ == fields.get("config")), None)
    if kind is None:
        raise ValueError(f"no implementation has a config class {fields.get('config')!r}")
    return kind(**values)
