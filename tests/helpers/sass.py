"""What the machine code of kernels with products of warp groups looks like: loops, products, registers, waits."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from kiln.targets.nvidia.remarks import FENCE_ADDED

_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_REGISTER = re.compile(r"\bR(\d+)(\.64)?\b")
_PRODUCT = re.compile(r"^[HQI]GMMA(?:\.SP)?\.(\d+)x(\d+)x(\d+)")
_MOVE = re.compile(r"^(?:MOV(?:\.\w+)* R\d+, R\d+|IMAD\.MOV\S* R\d+, RZ, RZ, R\d+)(?:\.reuse)?$")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction, without its predicate."""

    name: str
    operands: str

    @property
    def is_product(self) -> bool:
        return bool(_PRODUCT.match(self.name))

    @property
    def registers(self) -> set[int]:
        """The numbers of the registers that are named."""
        return {int(number) for number, _ in _REGISTER.findall(self.operands)}

    @property
    def sums(self) -> range:
        """The registers of a product's sums."""
        found = _PRODUCT.match(self.name)
        assert found is not None
        columns = int(found.group(2))
        first = int(_REGISTER.findall(self.operands)[0][0])
        return range(first, first + (columns // 4 if ".F16" in self.name and ".F32" not in self.name else columns // 2))


@dataclasses.dataclass(frozen=True)
class Loop:
    """The instructions from the target of a branch back to the branch."""

    instructions: tuple[Instruction, ...]

    @property
    def products(self) -> list[Instruction]:
        return [i for i in self.instructions if i.is_product]

    @property
    def waits(self) -> int:
        """Waits for groups of products."""
        return sum(i.name.startswith("WARPGROUP.DEPBAR") for i in self.instructions)

    @property
    def moves_of_sums(self) -> list[Instruction]:
        """Instructions that only move registers in which products have sums to others, or others to them."""
        sums = {register for product in self.products for register in product.sums}
        moves = [i for i in self.instructions if _MOVE.match(f"{i.name} {i.operands}")]
        return [i for i in moves if i.registers & sums]


def instructions(sass: str) -> list[Instruction]:
    """All instructions."""
    return [Instruction(*found.groups()) for line in sass.splitlines() if (found := _INSTRUCTION.match(line))]


def loops(sass: str) -> list[Loop]:
    """The innermost loops with products."""
    places: dict[str, int] = {}
    found: list[Instruction] = []
    spans: list[tuple[int, int]] = []
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            places[label.group(1)] = len(found)
        elif instruction := _INSTRUCTION.match(line):
            found.append(Instruction(*instruction.groups()))
            target = _TARGET.search(instruction.group(2))
            if found[-1].name.startswith("BRA") and target and (start := places.get(target.group(1))) is not None:
                spans.append((start, len(found)))
    inner: list[tuple[int, int]] = []
    seen: set[int] = set()
    for span in sorted(spans, key=lambda span: span[1] - span[0]):
        products = {place for place in range(*span) if found[place].is_product}
        if products and not products & seen:
            seen |= products
            inner.append(span)
    return [Loop(tuple(found[slice(*span)])) for span in sorted(inner)]


def check_products(compiled: Any, products: int | None = None, moves: int = 0) -> list[Loop]:
    """Products of a compiled function run asynchronously: nothing spilled, no sums moved in loops, no wait after each product.

    `products` is how many instructions there are in all, `moves` how many moves a loop may have. Returns the innermost loops with products.
    """
    for found in compiled.executable.resources.values():
        slow = [text for text in found.messages if not text.startswith(FENCE_ADDED)]
        assert not slow, slow  # of ptxas: that products wait for each other
        assert (found.stack, found.spill_stores, found.spill_loads) == (0, 0, 0), found
    sass = compiled.executable.artifacts["sass"]
    if products is not None:
        assert sum(i.is_product for i in instructions(sass)) == products
    made = loops(sass)
    for loop in made:
        assert len(loop.moves_of_sums) <= moves, loop.moves_of_sums
        assert loop.waits < len(loop.products) or len(loop.products) == 1
    return made
