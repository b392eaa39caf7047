"""Reads `tuned.json` beside a Case: the tuned config of a problem, and whether an entry is stale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import tunings
from . import source_closure
from .environment import environment
from .records import journal_of

if TYPE_CHECKING:
    from .cases import Case


def path_of(case: Case) -> Path:
    """Return the path of `tuned.json`, which lies beside the Case's file, as its journal does."""
    return journal_of(case).folder.parent / tunings.FILE


def file_name_of(case: Case) -> str:
    """Return the name under which entries of `tuned.json` refer to a Case's file."""
    return Path(case.file).name if case.file else case.where.partition(":")[0]


def entry_of(case: Case, gpu: str, problem: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the entry of `tuned.json` for exactly this problem, or None."""
    key = case.name, file_name_of(case), gpu, problem
    for entry in tunings.read(path_of(case)):
        if (entry["case"], entry["file"], entry["gpu"], entry["problem"]) == key:
            return entry
    return None


def tuned_config(case: Case, problem: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the tuned config of a problem, or of the nearest tuned one; None without any."""
    file = path_of(case).with_name(file_name_of(case))
    return tunings.tuned(file, lambda config, problem, _: case.reasons(config, problem)).get(problem)


def stale(entry: Mapping[str, Any], folder: Path) -> list[str]:
    """Return what changed since an entry of a folder's `tuned.json` was measured. Runs nothing of the program."""
    now = environment()
    then = entry.get("env") or {}
    here = now["gpu"] == entry["gpu"]
    if here and entry.get("predicted"):
        return ["it was predicted, and this GPU can measure it"]
    names = ["kiln", "ptxas", *(["driver"] if here else [])]
    changes = [f"{name} was {then.get(name)}, now {now[name]}" for name in names if then.get(name) != now[name]]
    file = folder / entry["file"]
    if file.is_file() and entry.get("source"):
        if source_closure.digest(source_closure.source_files(file)) != entry["source"]:
            changes.append("its source has changed")
    return changes
