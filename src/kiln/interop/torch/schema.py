"""Schemas of operators and extents of their outputs, for operators of this process and for exported ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

EXTENT_RULE = 'an extent is a number, an axis of a tensor that is an input ("x.0"), or an int that is one ("n")'


class Extent(NamedTuple):
    """An extent of an output: that of an input's axis, the value of an input (axis -1), or a number (input -1)."""

    input: int
    axis: int


class Input(NamedTuple):
    """An input in a schema."""

    kind: str
    """PyTorch's type: Tensor, SymInt, ..."""
    name: str
    is_written: bool = False
    default: str | None = None


def schema(inputs: Iterable[Input], outputs: int) -> str:
    """Return a schema without the operator's name: `(Tensor x, Tensor(a!) y, float by=1.0) -> Tensor`."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    parts = []
    for each in inputs:
        kind = each.kind.replace("Tensor", f"Tensor({next(letters)}!)") if each.is_written else each.kind
        parts.append(f"{kind} {each.name}" + ("" if each.default is None else f"={each.default}"))
    results = ", ".join(["Tensor"] * outputs)
    return f"({', '.join(parts)}) -> " + (results if outputs == 1 else f"({results})")


def extents(
    described: Sequence[object], kinds: Mapping[str, str], ranks: Mapping[str, int] | None = None
) -> list[Extent] | str:
    """Return the extents of an output, or a message about one that is wrong.

    `kinds` are PyTorch's types of the inputs, by name.
    """
    extents_so_far: list[Extent] = []
    names = list(kinds)
    for extent in described:
        name, _, axis = extent.partition(".") if isinstance(extent, str) else ("", "", "")
        kind = kinds.get(name)
        if isinstance(extent, int) and extent >= 0:
            extents_so_far.append(Extent(-1, extent))
        elif kind == "Tensor" and axis.isdigit() and (ranks is None or int(axis) < ranks[name]):
            extents_so_far.append(Extent(names.index(name), int(axis)))
        elif kind == "SymInt" and not axis:
            extents_so_far.append(Extent(names.index(name), -1))
        else:
            return f"is to have the extent {extent!r}"
    return extents_so_far
