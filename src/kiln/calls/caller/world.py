"""What native code knows of this process: types, offsets and functions, in a table of words that Python fills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mlir import ir
from ...targets.lowering.builder import Builder

if TYPE_CHECKING:
    from .body import Body

WORLD = "kiln_python_world"
"""The symbol of the table."""

_SINGLE = (
    "int", "bool", "float", "str", "list", "tuple", "bytes", "type", "function", "none", "ndarray",
    "compiled slot", "compiled python", "jit slot", "jit python", "recorded slot", "recorded python",
    "number slot", "program slot",
)  # fmt: skip
PREPARED, ARRAYS, STREAMS, CONSTANTS = 3, 6, 8, 24
"""How many types of each kind there is room for."""
FIELDS = {
    "prepared": ("type", "slot"), "array": ("type", "read", "stream"), "stream": ("type", "attribute"), "constant": ("type",),
}  # fmt: skip
ROOM = {"prepared": PREPARED, "array": ARRAYS, "stream": STREAMS, "constant": CONSTANTS}


def _places() -> dict[str, int]:
    names = list(_SINGLE)
    for kind, room in ROOM.items():
        names += [f"{kind} {field} {number}" for number in range(room) for field in FIELDS[kind]]
    return {name: place for place, name in enumerate(names)}


PLACES = _places()
"""The place of each word, by name."""
WORLD_WORDS = len(PLACES)


class World:
    """Access to the table in generated code."""

    def __init__(self, c: Body) -> None:
        self._c: Builder = c

    def word(self, name: str) -> ir.Value:
        """An offset."""
        from ...targets.lowering.builder import int_type

        return self._c.load(int_type(64), self._at(name))

    def pointer(self, name: str) -> ir.Value:
        """The address of a type, an object or a function."""
        from ...targets.lowering.builder import ptr_type

        return self._c.load(ptr_type(), self._at(name))

    def _at(self, name: str) -> ir.Value:
        return self._c.byte_gep(self._c.address_of(WORLD), 8 * PLACES[name])
