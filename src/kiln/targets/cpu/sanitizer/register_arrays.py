"""Register tensors of a kernel: their bytes, addresses in them, and whether what is loaded was stored before."""

from __future__ import annotations

import dataclasses

from ....dialects import cute
from ....dialects.definition import number
from ....mlir import ir
from ...lowering.builder import constant_values


@dataclasses.dataclass
class RegisterArray:
    """A register tensor."""

    name: str
    site: int
    size: int
    shadow: ir.Value
    written: bool = False
    """Whether all that is loaded was stored before: what is unset in it came from elsewhere."""


class RegisterPlace:
    """An address in a register tensor: the sum of some offsets."""

    def __init__(self, array: RegisterArray, terms: tuple[tuple[ir.Value, int], ...] = ()) -> None:
        self.array, self.terms = array, terms

    def moved(self, offset: ir.Value, bits: int) -> RegisterPlace:
        return RegisterPlace(self.array, (*self.terms, (offset, bits)))

    def constant(self) -> int | None:
        """Bytes from the start, if that is known."""
        total = 0
        for offset, bits in self.terms:
            known = constant_values(offset)
            if known is None:
                return None
            total += known[0] * bits // 8
        return total


def unproven_arrays(entry: ir.Block, places: dict[ir.Value, RegisterPlace]) -> set[int]:
    """Register tensors (by id) that something may load before it is written, as far as can be seen without running."""
    unproven: set[int] = set()

    def visit(block: ir.Block, written: dict[int, int]) -> None:
        for found in block.operations:
            op = found.operation
            stores = op.name == "cute.store"
            pointer = op.operands[1] if stores else op.operands[0] if op.name == "cute.load" else None
            if pointer is not None and pointer in places:
                place = places[pointer]
                start, bytes_ = _span(op, pointer, place, stores)
                array, bits = id(place.array), ((1 << bytes_) - 1) << start if start is not None else -1
                if stores and start is not None:
                    written[array] = written.get(array, 0) | bits
                elif not stores and (start is None or bits & ~written.get(array, 0)):
                    unproven.add(array)
            for used, bytes_, reads, writes in registers_of(op):
                if used in places:
                    array, start = id(places[used].array), places[used].constant()
                    bits = -1 if start is None or start < 0 else ((1 << bytes_) - 1) << start
                    if reads and bits & ~written.get(array, 0):
                        unproven.add(array)
                    if writes and bits > 0:
                        written[array] = written.get(array, 0) | bits
            for region in op.regions:
                for inner in region.blocks:
                    visit(inner, dict(written))

    visit(entry, {})
    return unproven


def registers_of(op: ir.Operation) -> list[tuple[ir.Value, int, bool, bool]]:
    """(address, bytes, whether they may be read, whether they are written) of the registers of a product of a warp group."""
    if op.name != "cute_nvgpu.wgmma":
        return []
    d, a, _, accumulate = op.operands
    bytes_ = number(op, "n") // 2 * cute.element_bits(cute.info(d.type).element) // 8
    adds = constant_values(accumulate) != [0]
    return [(d, bytes_, adds, True), *([(a, 16, True, False)] if str(a.type) != "i64" else [])]


def _span(op: ir.Operation, pointer: ir.Value, place: RegisterPlace, stores: bool) -> tuple[int | None, int]:
    """(first byte if that is known, number of bytes) of an access; no byte for parts of one."""
    bits = cute.element_bits(cute.info(pointer.type).element)
    type_ = op.operands[0].type if stores else op.results[0].type
    count = 1
    for extent in type_.shape if isinstance(type_, ir.VectorType) else ():
        count *= extent
    if count * bits % 8:
        return None, 1
    start = place.moved(op.operands[2 if stores else 1], bits).constant()
    return (start if start is not None and start >= 0 else None), count * bits // 8
