"""Text for people that several verbs print: paths, fields of problems, suggestions, tables."""

from __future__ import annotations

import difflib
import os
import sysconfig
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path


def near_path(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the current directory, if it is below it."""
    near = os.path.relpath(path)
    return os.fspath(path) if near.startswith("..") else near


def fields_text(fields: Mapping[str, object], separator: str = " ") -> str:
    """Return the fields of a problem: `m=128 n=64`."""
    return separator.join(f"{name}={value}" for name, value in fields.items())


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "did you mean X?" for the known name that is most like a wrong one; "" if none is."""
    near = difflib.get_close_matches(name, list(names), 1)
    return f"did you mean {near[0]!r}?" if near else ""


def printed(text: str, most: int) -> list[str]:
    """Return the last lines that a worker printed, with only the user's frames of tracebacks."""
    others = (str(Path(__file__).parents[2]), sysconfig.get_paths()["stdlib"], "<frozen")
    lines = [line for line in text.strip().splitlines() if not any(f'File "{each}' in line for each in others)]
    return lines[-most:]


def no_file(path: str | os.PathLike[str]) -> str:
    """Return that a file is missing, and what it may be called."""
    hint = did_you_mean_file(path)
    return f"there is no file {os.fspath(path)}{f'; {hint}' if hint else ''}"


def did_you_mean_file(path: str | os.PathLike[str]) -> str:
    """Return "did you mean X?" for the Python program in a missing file's folder whose name is most like its name."""
    folder, name = os.path.split(os.path.abspath(path))
    return (
        did_you_mean(name, [each for each in os.listdir(folder) if each.endswith(".py")])
        if os.path.isdir(folder)
        else ""
    )


def table(rows: Sequence[Sequence[str]], left: Container[int]) -> list[str]:
    """Return rows as lines with aligned columns, those in `left` to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_aligned(row, widths, left)).rstrip() for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int], left: Container[int]) -> list[str]:
    cells = enumerate(zip(row, widths))
    return [cell.ljust(width) if at in left else cell.rjust(width) for at, (cell, width) in cells]
