"""What the machine code of kernels with products of warpgroups looks like: products, their sums, waits. It is read by `kiln.hardware.sass`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from kiln.hardware.sass import Instruction, kernels, registers
from kiln.targets.nvidia.remarks import FENCE_ADDED

_PRODUCT = re.compile(r"^[HQI]GMMA(?:\.SP)?\.(\d+)x(\d+)x(\d+)")
_MOVE = re.compile(r"^(?:MOV(?:\.\w+)* R\d+, R\d+|IMAD\.MOV\S* R\d+, RZ, RZ, R\d+)(?:\.reuse)?$")


def is_product(one: Instruction) -> bool:
    """Not one of nothing, which ends a group of products."""
    return bool(_PRODUCT.match(one.name)) and not one.operands.startswith("RZ,")


def sums(product: Instruction) -> range:
    """The registers of a product's sums."""
    found = _PRODUCT.match(product.name)
    assert found is not None
    columns, first = int(found.group(2)), next(registers(product.operands))
    halves = ".F16" in product.name and ".F32" not in product.name
    return range(first, first + columns // (4 if halves else 2))


@dataclasses.dataclass(frozen=True)
class Loop:
    """The instructions of an innermost loop with products."""

    instructions: tuple[Instruction, ...]

    @property
    def products(self) -> list[Instruction]:
        return [one for one in self.instructions if is_product(one)]

    @property
    def waits(self) -> int:
        """Waits for groups of products."""
        return sum(one.name.startswith("WARPGROUP.DEPBAR") for one in self.instructions)

    @property
    def moves_of_sums(self) -> list[Instruction]:
        """Instructions that only move registers in which products have sums to others, or others to them."""
        of_sums = {register for product in self.products for register in sums(product)}
        moves = [one for one in self.instructions if _MOVE.match(f"{one.name} {one.operands}")]
        return [one for one in moves if of_sums.intersection(registers(one.operands))]


def loops(sass: str) -> list[Loop]:
    """The innermost loops with products."""
    found: list[Loop] = []
    for code in kernels(sass).values():
        seen: set[int] = set()
        inner: list[Loop] = []
        for loop in sorted(code.loops(), key=lambda loop: len(loop.instructions)):
            products = {one.address for one in loop.instructions if is_product(one)}
            if products and not products & seen:
                seen |= products
                inner.append(Loop(loop.instructions))
        found += sorted(inner, key=lambda loop: loop.instructions[0].address)
    return found


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
        assert sum(is_product(one) for code in kernels(sass).values() for one in code.instructions) == products
    made = loops(sass)
    for loop in made:
        assert len(loop.moves_of_sums) <= moves, loop.moves_of_sums
        assert loop.waits < len(loop.products) or len(loop.products) == 1
    return made
