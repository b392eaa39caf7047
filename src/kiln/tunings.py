"""`kiln.tuned(__file__)`: the configs that `kiln tune` found, read from `tuned.json` beside a program.

Nothing is measured here, and a miss is no error: the caller gives a default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ._support import lazy

__dir__ = lazy.listing(__name__)
__all__ = ["FILE", "Tuned", "canonical", "distance", "nearest", "tuned"]

FILE = "tuned.json"
VERSION = 1


def canonical(value: object) -> str:
    """Return JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def tuned(file: str | os.PathLike[str], validate: object = None, case: str | None = None) -> Tuned:
    """Return the tuned configs of the program in `file`: write `kiln.tuned(__file__)`.

    `validate(config, problem, device)` refuses configs of other problems; the default is the program's own, if it has
    one. `case` is one of several in a file.
    """
    return Tuned(file, validate, case)


class Tuned:
    """The entries of `tuned.json` for one program, read once, when first needed."""

    def __init__(self, file: str | os.PathLike[str], validate: Any = None, case: str | None = None) -> None:
        self.program: Path = Path(file)
        self.case = case
        self._validate = validate
        self._entries: list[dict[str, Any]] | None = None
        self._answers: dict[str, Any] = {}

    @property
    def file(self) -> Path:
        """`tuned.json` beside the program."""
        return self.program.with_name(FILE)

    def entries(self) -> list[dict[str, Any]]:
        """Return the program's entries: `gpu`, `problem`, `config`, `us`, `env`, `source`, `key`."""
        if self._entries is None:
            self._entries = [
                e for e in read(self.file) if e["file"] == self.program.name and self.case in (None, e["case"])
            ]
        return self._entries

    def get(self, problem: Mapping[str, object] | None = None, default: object = None, gpu: str | None = None) -> Any:
        """Return the config for a problem on a GPU model (by default the current one), or `default`.

        It is that of the problem itself, else of the nearest problem, by the logarithms of its sizes, whose config is
        valid for this one. If `default` is a dataclass, the config is one of its type. Never raises for a missing
        config.
        """
        asked = canonical([problem or {}, gpu or _model()])
        if asked not in self._answers:
            self._answers[asked] = self._find(dict(problem or {}), gpu or _model())
        answer = self._answers[asked]
        return default if answer is None else _like(default, answer)

    def _find(self, problem: Mapping[str, object], gpu: str) -> dict[str, Any] | None:
        recorded = [(e["problem"], e["config"]) for e in self.entries() if e["gpu"] == gpu]
        for other, config in recorded:
            if other == problem:
                return config
        return nearest(problem, recorded, lambda config: self._is_valid(config, problem))

    def _is_valid(self, config: Mapping[str, object], problem: Mapping[str, object]) -> bool:
        validate = self._validate or _validate_of(self.program)
        if validate is None:
            return True
        try:
            from .hardware import current

            answer = validate(config, problem, current.device())
        except Exception:  # the program's `validate` raised: the config does not count
            return False
        return not answer if isinstance(answer, (str, list, tuple)) else answer is None or bool(answer)


def _like(default: object, config: Mapping[str, object]) -> Any:
    """Return a config as the type of the default."""
    if not dataclasses.is_dataclass(default) or isinstance(default, type):
        return dict(config)
    fields = {field.name: getattr(default, field.name) for field in dataclasses.fields(default) if field.init}
    if not set(config) <= set(fields):
        return default
    fields_of_config = {
        name: tuple(v) if isinstance(v, list) and isinstance(fields[name], tuple) else v for name, v in config.items()
    }
    try:
        return dataclasses.replace(default, **fields_of_config)
    except Exception:  # a config that the type refuses does not count
        return default


def _model() -> str:
    """Return the current GPU model; "cpu" on the CPU target."""
    from .base_dsl.target import get_target
    from .hardware import driver

    if get_target().on_host or not driver.available():
        return "cpu"
    return driver.device_name(driver.current_device())


def _validate_of(file: Path) -> Any:
    """Return `validate` of the module that was loaded from a file."""
    path = os.path.abspath(file)
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == path:
            return getattr(module, "validate", None)
    return None


# --- near problems ---------------------------------------------------------------------------------------------------


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Return the distance of two problems: the sum of |log(ratio)| over their sizes.

    None if they do not have the same fields, or differ in a field that is no size: a type, a flag, a name.
    """
    if one.keys() != other.keys():
        return None
    total = 0.0
    for name, value in one.items():
        another = other[name]
        if value == another and type(value) is type(another):
            continue
        if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0 for v in (value, another)):
            return None
        total += abs(math.log(value / another))
    return total


def nearest(problem: Mapping[str, object], recorded: Iterable[tuple[Mapping[str, Any], Any]], valid: Any) -> Any:
    """Return the config of the nearest problem that is valid for this one, or None."""
    near = [(distance(problem, other), canonical(other), config) for other, config in recorded]
    for _, _, config in sorted((n for n in near if n[0] is not None), key=lambda n: n[:2]):
        if valid(config):
            return config
    return None


# --- the file --------------------------------------------------------------------------------------------------------

_NEEDED = {"case": str, "file": str, "gpu": str, "problem": dict, "config": dict}


def read(file: Path) -> list[dict[str, Any]]:
    """Return the entries of a file; none if it is missing or broken."""
    try:
        entries = json.loads(file.read_text())["entries"]
        return [e for e in entries if all(isinstance(e[name], kind) for name, kind in _NEEDED.items())]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def write(file: Path, entries: Iterable[Mapping[str, object]]) -> None:
    """Write entries to a file, replacing those of the same program, GPU model and problem, all at once."""
    with _locked(file):
        kept = {_place(entry): dict(entry) for entry in [*read(file), *entries]}
        text = json.dumps({"v": VERSION, "entries": [kept[place] for place in sorted(kept)]}, indent=1, sort_keys=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
        try:
            with os.fdopen(handle, "w") as out:
                out.write(text + "\n")
                out.flush()
                os.fsync(out.fileno())
            os.chmod(name, 0o644)
            os.replace(name, file)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise


def _place(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return entry["file"], entry["case"], entry["gpu"], canonical(entry["problem"])


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock the folder, so that two tuners of one folder lose nothing of each other's."""
    import fcntl

    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
