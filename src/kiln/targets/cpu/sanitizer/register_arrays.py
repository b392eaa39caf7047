"""Register tensors of a kernel: addresses in them, and whether loads follow stores of the same bytes."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from ....dialects import cute
from ....dialects.nvgpu.wgmma import Wgmma
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
    """Whether every load follows a store: an unset value in it was copied from elsewhere."""


class RegisterPlace:
    """An address in a register tensor: the sum of some offsets."""

    def __init__(self, array: RegisterArray, terms: tuple[tuple[ir.Value, int], ...] = ()) -> None:
        self.array = array
        self.terms = terms

    def moved(self, offset: ir.Value, bits: int) -> RegisterPlace:
        return RegisterPlace(self.array, (*self.terms, (offset, bits)))

    def constant(self) -> int | None:
        """Return the offset in bytes, if it is constant."""
        total = 0
        for offset, bits in self.terms:
            constants = constant_values(offset)
            if constants is None:
                return None
            total += constants[0] * bits // 8
        return total


def unproven_arrays(entry: ir.Block, places: dict[ir.Value, RegisterPlace]) -> set[int]:
    """Return the register tensors (by id) that may be loaded before they are written."""
    unproven: set[int] = set()

    def visit(block: ir.Block, written: dict[int, int]) -> None:
        for nested in block.operations:
            op = nested.operation
            store = cute.Store.of(op)
            access = store or cute.Load.of(op)
            if access and access.memory in places:
                place = places[access.memory]
                start, bytes_ = _span(access, place)
                array = id(place.array)
                bits = ((1 << bytes_) - 1) << start if start is not None else -1
                if store and start is not None:
                    written[array] = written.get(array, 0) | bits
                elif not store and (start is None or bits & ~written.get(array, 0)):
                    unproven.add(array)
            for use in registers_of(op):
                if use.pointer in places:
                    array = id(places[use.pointer].array)
                    start = places[use.pointer].constant()
                    bits = -1 if start is None or start < 0 else ((1 << use.bytes) - 1) << start
                    if use.may_be_read and bits & ~written.get(array, 0):
                        unproven.add(array)
                    if use.is_written and bits > 0:
                        written[array] = written.get(array, 0) | bits
            for region in op.regions:
                for inner in region.blocks:
                    visit(inner, dict(written))

    visit(entry, {})
    return unproven


class RegisterUse(NamedTuple):
    """Registers that a WGMMA uses."""

    pointer: ir.Value
    bytes: int
    may_be_read: bool
    is_written: bool


def registers_of(op: ir.Operation) -> list[RegisterUse]:
    """Return the registers that an operation uses if it is a WGMMA: its accumulator, and A unless that lies in smem."""
    wgmma = Wgmma.of(op)
    if wgmma is None:
        return []
    bytes_ = wgmma.n // 2 * cute.element_bits(cute.info(wgmma.d.type).element) // 8
    accumulates = constant_values(wgmma.accumulate) != [0]
    a = [RegisterUse(wgmma.a, 16, True, False)] if str(wgmma.a.type) != "i64" else []
    return [RegisterUse(wgmma.d, bytes_, accumulates, True), *a]


def _span(access: cute.Load | cute.Store, place: RegisterPlace) -> tuple[int | None, int]:
    """Return the first byte of an access, if that is known, and the number of bytes; no byte for parts of one."""
    bits = cute.element_bits(cute.info(access.memory.type).element)
    type_ = access.value.type
    count = math.prod(type_.shape) if isinstance(type_, ir.VectorType) else 1
    if count * bits % 8:
        return None, 1
    start = place.moved(access.offset, bits).constant()
    return (start if start is not None and start >= 0 else None), count * bits // 8
