"""Configs check themselves: whatever their fields are, they work or are refused with the field or the rule."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from family_calls import CALLS, problem_of

import kiln
from kiln import kernels
from kiln.kernels.dispatch.config import Config, Rule
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.registry import Implementation, Registry

DEVICES = [device_of(arch) for arch in ("sm_80", "sm_90a", "sm_100a")]
EXTENTS = (1, 2, 3, 5, 7, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512, 1024, 4096, 1 << 20, (1 << 31) - 1)
USELESS: tuple[Any, ...] = (None, "8", -1, 2.0, 8.5, float("nan"), np.int64(8), [8], (8,), (8, 8, 8, 8), 1 << 31, b"")
NAMES = [name for name, value in vars(kernels).get("_PLACES", {}).items() if name.endswith("Config")]


@pytest.fixture(autouse=True)
def _hopper(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")


def other_fields(config: Config, pick: random.Random) -> dict[str, Any]:
    """Return the fields of a config, some of them with other values of their type."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name in pick.sample(list(fields), min(len(fields), pick.choice((1, 1, 2, 3, 9)))):
        value = fields[name]
        if isinstance(value, tuple):
            fields[name] = tuple(pick.choice(EXTENTS) if pick.random() < 0.5 else extent for extent in value)
        else:
            fields[name] = pick.random() < 0.5 if isinstance(value, bool) else pick.choice((0, *EXTENTS))
    return fields


def validate_variants(family: Registry, problem: Any, device: Any, pick: random.Random) -> int:
    """Validate and explain configs with other fields; return how many work."""
    working = 0
    for implementation in family.implementations:
        if implementation.supports(problem, device) is not None or not dataclasses.fields(implementation.config):
            continue
        found = [implementation.config(), *list(implementation.configs(problem, device))[:8]]
        for _ in range(25):
            try:
                config = implementation.config(**other_fields(pick.choice(found), pick))
            except kiln.DSLUserCodeTypeError as refused:
                assert " is 0; it must be a positive integer" in refused.message
                continue
            reasons = implementation.validate(problem, config, device)
            assert all(reasons), config
            if not reasons:
                assert str(family.explain(problem, device, config))
                working += 1
    return working


@pytest.mark.parametrize("name", CALLS)
def test_configs_with_any_fields_work_or_are_refused(name):
    """No other error leaves a check, and costs are known of what passes it."""
    family, problem = problem_of(name)
    assert sum(validate_variants(family, problem, device, random.Random(name)) for device in DEVICES) > 0


@pytest.mark.parametrize("name", NAMES)
def test_fields_of_other_types_are_refused_by_name(name):
    kind = getattr(kernels, name)
    assert issubclass(kind, Config)
    for field in dataclasses.fields(kind):
        for value in USELESS:
            with pytest.raises(kiln.DSLUserCodeTypeError) as refused:
                kind(**{field.name: value})
            assert refused.value.message.startswith(f"{name}: {field.name} is {value!r}; it must be ")


def test_a_tile_that_no_epilogue_divides():
    a, b = np.ones((27, 80), ml_dtypes.bfloat16), np.ones((80, 20), ml_dtypes.bfloat16)
    config = kernels.Sm90GemmConfig((64, 2, 64), (1, 1), 4, 32, True, swap_ab=True, transpose_out=True)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="N of a tile must be a multiple of 8, and at most 256"):
        kernels.gemm(a, b, config=config)


@pytest.mark.parametrize("name", CALLS)
def test_all_that_is_refused_is_a_rule(name):
    """No implementation or config has checks beside its rules; the first rule that is broken is told."""
    family, _ = problem_of(name)
    for implementation in family.implementations:
        assert type(implementation).check is Implementation.check
        assert not issubclass(implementation.config, Config) or implementation.config.check is Config.check


def test_the_first_broken_rule_is_told():
    class Broken(Config):
        def rules(self):
            yield Rule(True, "holds")
            yield Rule(False, "is broken", "another value")
            raise AssertionError("rules behind a broken one rely on it")

    with pytest.raises(kiln.DSLUserCodeTypeError) as refused:
        Broken().check()
    assert refused.value.message.endswith(": is broken")
    assert "another value" in str(refused.value)
