"""A thread's part of a row: the vectors that a row function sees, wherever a kernel keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Boolean, Float32, cute, select_
from ....cute import arch
from ...parts.vectors import as_f32, either

if TYPE_CHECKING:
    from collections.abc import Callable

    from .... import Int32
    from .row_kernel import Position, RowKernel
    from .vector_access import VectorAccess

SM_REGISTERS = 65536
RESERVED_REGISTERS = 32
"""Registers of an SM, and those of a thread that are not available for saved values."""
MAX_SAVED_ELEMENTS = 64
"""Most elements of which a thread saves what it has computed."""
_COLUMN_PREFETCH = 4
"""Vectors of columns that are read before their use, all columns together; half as many where a thread holds many."""


class RowPart:
    """The interface of a thread's vectors of the sources, in f32, and of the columns; a kernel has its own subclass."""

    __kiln_static__ = True
    edge: Any = None
    """A thread's element at the edges of an unaligned row, as a part."""
    in_registers = False
    """Whether values can be saved until they are written."""
    count: int
    """Vectors of the part."""
    width: int
    """Elements of a vector."""

    def values(self, v: int) -> list[cute.TensorSSA]:
        """Return vector `v` of each source; zeros behind the end of the row."""
        raise NotImplementedError

    def in_row(self, v: int) -> Boolean | None:
        """Return whether the row has vector `v`; None if it has for all threads."""
        raise NotImplementedError

    def first(self) -> list[cute.TensorSSA]:
        """Return a vector of each source with elements of the row, if there are any."""
        return self.values(0)

    def masked(self, v: int, value: cute.TensorSSA, instead: float) -> cute.TensorSSA:
        """Return a value of vector `v` where the row has it, else a number."""
        pred = self.in_row(v)
        if pred is None:
            return value
        return cute.where(cute.full_like(value, pred, Boolean), value, cute.full_like(value, instead))

    def elements(self) -> Float32 | float:
        """Return how many elements there are: a Python float where that is static."""
        predicates = [self.in_row(v) for v in range(self.count)]
        elements: Any = float(self.width) * predicates.count(None)
        for pred in predicates:
            if pred is not None:
                elements = elements + select_(pred, Float32(float(self.width)), Float32(0.0))
        return elements

    def reread(self) -> None:
        """Tell that values will be read another time, and need not stay in registers until then."""


class PrefetchedColumns:
    """A thread's elements of column vectors, read some vectors `ahead`: a load behind a store would wait until its
    value is needed.

    `read` begins to read those of a column at vector `v`, and `value` returns what was read. `many`: they are dropped
    and read again where registers are needed.
    """

    __kiln_static__ = True

    def __init__(self, columns: list[cute.Tensor], count: int, ahead: int, many: bool, read: Any, value: Any) -> None:
        self._columns = columns
        self._count = count
        self._ahead = ahead
        self._many = many
        self._read = read
        self._value = value
        self._vectors: dict[int, list[Any]] = {}

    def prefetch(self, v: int = 0) -> None:
        """Begin to read those of vector `v` and of some behind it."""
        for u in range(v, min(self._count, v + self._ahead)):
            if u not in self._vectors:
                self._vectors[u] = [self._read(column, u) for column in self._columns]

    def values(self, v: int) -> list[cute.TensorSSA]:
        """Return the elements of each column vector that stand at vector `v`."""
        self.prefetch(v)
        return [self._value(vector) for vector in self._vectors[v]]

    def release(self) -> None:
        """Drop what was read, if it is much."""
        if self._many:
            self._vectors.clear()


NO_COLUMNS = PrefetchedColumns([], 0, 0, False, None, None)


def resident_columns(kernel: RowKernel, columns: list[cute.Tensor], at: Position) -> PrefetchedColumns:
    """Return the columns at a thread's vectors of an aligned row."""
    ahead = (_COLUMN_PREFETCH if kernel.vectors <= 4 else _COLUMN_PREFETCH // 2) // max(1, len(columns))
    return PrefetchedColumns(
        columns,
        kernel.vectors,
        max(1, ahead),
        kernel.vectors * len(columns) > _COLUMN_PREFETCH,
        lambda x, v: kernel.read_vector(x, at.unit, at.units, v),
        lambda x: as_f32(x.load()),
    )


class AccessedPart(RowPart):
    """A thread's vectors of a row by a `VectorAccess`."""

    def __init__(self, access: VectorAccess, unit: Int32, units: Int32) -> None:
        self._access = access
        self._unit = unit
        self._units = units
        self.count: int = access.vectors
        self.width: int = access.problem.width

    def in_row(self, v: int) -> Boolean | None:
        return self._access.in_row(self._unit, self._units, v)

    def first(self) -> list[cute.TensorSSA]:
        pred = self._access.starts_in_row(self._unit) if self.count > 1 else None
        return self.values(0) if pred is None else either(pred, self.values(0), self.values(1))


class ResidentPart(AccessedPart):
    """The vectors of a row in registers (element, vector), followed by those in shared memory."""

    def __init__(
        self,
        kernel: RowKernel,
        at: Position,
        registers: list[Any],
        smem: list[cute.Tensor],
        columns: PrefetchedColumns = NO_COLUMNS,
        edge: EdgePart | None = None,
    ) -> None:
        super().__init__(kernel, at.unit, at.units)
        self.at = at
        self.edge = edge
        self._kernel = kernel
        self._registers = registers
        self._smem = smem
        self.columns: Callable[[int], list[Any]] = columns.values
        self.prefetch: Callable[..., None] = columns.prefetch
        self.release: Callable[[], None] = columns.release

    @property
    def in_registers(self) -> bool:  # type: ignore[override]
        return self._kernel.smem_vectors == 0 and self._kernel.resident

    @property
    def saves(self) -> bool:
        """Whether there are so few elements that a value of each can stay in registers, wherever the elements are."""
        config = self._kernel.config
        free = SM_REGISTERS // (config.threads * config.ctas_per_sm) - RESERVED_REGISTERS
        # CTAs that share a row need registers for that, too
        most = MAX_SAVED_ELEMENTS if config.cluster == 1 else MAX_SAVED_ELEMENTS // 2
        return self._kernel.resident and self.count * self.width <= min(most, free)

    def values(self, v: int) -> list[cute.TensorSSA]:
        return [as_f32(x) for x in self.raw(v)]

    def raw(self, v: int) -> list[cute.TensorSSA]:
        """Return vector `v` of each source in its own type."""
        return [x.load() for x in self._tensors(v)]

    def _tensors(self, v: int) -> list[cute.Tensor]:
        before = self.count - self._kernel.smem_vectors
        return [x[None, v] for x in self._registers] if v < before else [x[None, v - before] for x in self._smem]

    def replace(self, v: int, source: int, value: cute.TensorSSA) -> None:
        """Store another vector, of the same type, in place of vector `v` of a source."""
        self._tensors(v)[source].store(value)

    def reread(self) -> None:
        self.release()
        if self._kernel.smem_vectors > 0:
            arch.cp_async_wait_group(0)


class EdgePart(RowPart):
    """A thread's element at the edges of an unaligned row, as a part of one vector of one element."""

    count = width = 1

    def __init__(self, elements: list[Any], pred: Boolean, columns: list[cute.TensorSSA] | None = None) -> None:
        self._elements = elements
        self._pred = pred
        self._columns = columns or []

    def values(self, v: int) -> list[cute.TensorSSA]:
        return [cute.TensorSSA.from_elements([value], Float32) for value in self._elements]

    def columns(self, v: int) -> list[cute.TensorSSA]:
        """Return the element of each column vector."""
        return self._columns

    def in_row(self, v: int) -> Boolean | None:
        return self._pred

    def masked(self, v: int, value: cute.TensorSSA, instead: float) -> cute.TensorSSA:
        return cute.TensorSSA.from_elements([select_(self._pred, value[0], Float32(instead))], Float32)

    def elements(self) -> Float32:
        return select_(self._pred, Float32(1.0), Float32(0.0))
