"""Searches spaces too large to measure whole with Optuna's TPE, in batches.

Its state is not stored: a batch is a function of the seed, its number and the results so far, in order of trial, so
that a resumed run proposes what an uninterrupted one would have.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...base_dsl import packages
from ...tunings import canonical
from ..core.command_line import NotHere

BATCH = 8
_TRIES = 10
"""Proposals per wanted config before repetitions are given up on: TPE repeats itself."""


class Search:
    """Proposes configs of a list, by their indices."""

    def __init__(self, configs: Sequence[Mapping[str, Any]], seed: int = 0) -> None:
        try:
            optuna = packages.load("optuna")
        except ImportError:
            raise NotHere("--search tpe needs Optuna: pip install 'kiln-dsl[tune]'") from None
        self._optuna = optuna
        optuna.logging.set_verbosity(logging.WARNING)
        self.seed = seed
        self.configs = configs
        self._fields = {
            name: sorted({canonical(config.get(name)) for config in configs}, key=_by_size)
            for name in sorted({name for config in configs for name in config})
        }
        self._places = {self._point(config): place for place, config in enumerate(configs)}

    def propose(self, batch: int, measured: Sequence[tuple[int, float | None]], size: int = BATCH) -> list[int]:
        """Return the indices of the next configs to measure, none of them measured before.

        `measured` are indices and microseconds in the order they were proposed; None for a config that failed. Fewer
        than `size` are returned at the end of the list.
        """
        optuna = self._optuna
        seed = int.from_bytes(hashlib.sha256(f"{self.seed}/{batch}".encode()).digest()[:4], "big")
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=2 * BATCH, multivariate=True, constant_liar=True
        )
        study = optuna.create_study(sampler=sampler)
        spaces = {name: self._distribution(values) for name, values in self._fields.items()}
        worst = math.log(2 * max((us for _, us in measured if us is not None), default=1.0))
        for place, us in measured:
            point = dict(zip(self._fields, self._point(self.configs[place]), strict=True))
            value = worst if us is None else math.log(us)
            study.add_trial(optuna.trial.create_trial(params=point, distributions=spaces, value=value))
        seen = {place for place, _ in measured}
        chosen: list[int] = []
        for _ in range(_TRIES * size):
            if len(chosen) == size or len(seen) == len(self.configs):
                break
            trial = study.ask(spaces)
            place = self._places.get(tuple(trial.params[name] for name in self._fields))
            if place is None:  # a combination that is not in the list
                study.tell(trial, worst)
            elif place not in seen:
                seen.add(place)
                chosen.append(place)
        # Fill up in order what TPE no longer proposes.
        rest = (place for place in range(len(self.configs)) if place not in seen)
        return [*chosen, *(place for place, _ in zip(rest, range(size - len(chosen)), strict=False))]

    def _point(self, config: Mapping[str, object]) -> tuple[int, ...]:
        return tuple(values.index(canonical(config.get(name))) for name, values in self._fields.items())

    def _distribution(self, values: Sequence[str]) -> Any:
        if all(_by_size(value)[0] == 0 for value in values):  # numbers are ordered
            return self._optuna.distributions.IntDistribution(0, len(values) - 1)
        return self._optuna.distributions.CategoricalDistribution(tuple(range(len(values))))


def _by_size(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value), value)
    except ValueError:
        return (1, 0.0, value)
