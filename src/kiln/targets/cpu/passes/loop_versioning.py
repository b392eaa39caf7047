"""Bounds guards taken out of the loop over threads.

`if i < n: ...` around a kernel's body keeps LLVM from vectorizing over threads (most hosts have no masked stores), yet
in all blocks but the last few it holds for every thread. A kernel with such a guard gets two more functions:
`k.inside`, the kernel with the condition taken as true, and `k.guard`, which says for one thread that the condition
holds *and* that nothing on the way to it overflowed. Polynomials of thread indices, each
at most once in a term, take their extremes at the corners of the block: if `k.guard` holds there, it holds for every
thread.
"""

from __future__ import annotations

import dataclasses

from ....mlir import context, ir
from ...lowering.builder import Builder, function, int_type

_UNIFORM = frozenset(
    f"arith.{name}"
    for name in (
        "constant",
        "addi",
        "subi",
        "muli",
        "andi",
        "ori",
        "xori",
        "cmpi",
        "select",
        "extsi",
        "extui",
        "trunci",
        "shli",
        "shrui",
        "shrsi",
        "minsi",
        "minui",
        "maxsi",
        "maxui",
        "index_cast",
    )
) | {"llvm.extractvalue"}
"""Operations a guard may do on values that are the same for all threads of a block."""

_ORDERS = {2: "slt", 3: "sle", 4: "sgt", 5: "sge", 0: "eq", 6: "slt", 7: "sle", 8: "sgt", 9: "sge"}
"""Predicates of `arith.cmpi` that hold for all threads if they hold at the corners, as signed ones; from 6 on
unsigned."""

_MOST_KERNEL_OPERATIONS = 400  # a larger body is not vectorized as a whole anyway


@dataclasses.dataclass(frozen=True)
class Versions:
    """The names of `k.guard` and `k.inside`, and the dimensions of the block whose ends the guard is asked for."""

    guard: str
    inside: str
    dims: tuple[int, ...]


def guarded_versions(module: ir.Module, kernel: ir.Operation, name: str, first_index: int) -> Versions | None:
    """Make them, if the expanded kernel has a guard of that kind. `first_index` is the argument with thread index x."""
    position, branch = _find_guard(kernel.regions[0].blocks[0])
    if branch is None or _size(kernel) > _MOST_KERNEL_OPERATIONS:
        return None
    guard = _Guard(kernel, first_index)
    dims = guard.condition_dims(branch.operands[0])
    if dims is None:
        return None
    versions = Versions(f"{name}.guard", f"{name}.inside", tuple(sorted(dims)))
    guard.build(module, versions.guard, branch.operands[0])
    inside = kernel.clone(ir.InsertionPoint(module.body))
    inside.attributes["sym_name"] = ir.StringAttr.get(versions.inside, context())
    version_check = list(inside.regions[0].blocks[0].operations)[position].operation
    version_check.operands[0] = Builder(ir.InsertionPoint(version_check), version_check.location).const(int_type(1), 1)
    return versions


def _find_guard(entry: ir.Block) -> tuple[int, ir.Operation | None]:
    """Return the first `if` of the entry block, and its position, if it has no results and no `else`."""
    for position, view in enumerate(entry.operations):
        op = view.operation
        if op.name == "scf.if":
            alone = not len(op.results) and not len(op.regions[1].blocks)
            return (position, op) if alone else (0, None)
    return 0, None


def _size(kernel: ir.Operation) -> int:
    count = 0

    def visit(_: ir.Operation) -> ir.WalkResult:
        nonlocal count
        count += 1
        return ir.WalkResult.ADVANCE

    kernel.walk(visit)
    return count


class _Guard:
    """Analysis and copy of a condition."""

    def __init__(self, kernel: ir.Operation, first_index: int) -> None:
        self.kernel = kernel
        self.arguments = list(kernel.regions[0].blocks[0].arguments)
        self.indices = {self.arguments[first_index + dim]: dim for dim in range(3)}
        self._dims: dict[ir.Value, frozenset[int] | None] = {}

    def dims(self, value: ir.Value) -> frozenset[int] | None:
        """Return the thread indices that an integer depends on linearly: empty if it is uniform, None if it is
        neither."""
        if value not in self._dims:
            self._dims[value] = self._find_dims(value)
        return self._dims[value]

    def _find_dims(self, value: ir.Value) -> frozenset[int] | None:
        if value in self.indices:
            return frozenset({self.indices[value]})
        owner = value.owner
        if isinstance(owner, ir.Block):
            return frozenset() if value in self.arguments else None
        op = owner.operation
        parts = [self.dims(operand) for operand in op.operands]
        if any(part is None for part in parts) or op.name not in _UNIFORM or len(op.regions):
            return None
        dims = [part for part in parts if part is not None]
        union = frozenset[int]().union(*dims)
        if not union or op.name in ("arith.addi", "arith.subi", "arith.extsi", "arith.extui", "arith.trunci"):
            return union
        if op.name == "arith.muli" and not dims[0] & dims[1]:
            return union
        return None

    def condition_dims(self, condition: ir.Value) -> frozenset[int] | None:
        """Return the thread indices a condition depends on; None if its corners do not decide it."""
        uniform = self.dims(condition)
        if uniform is not None and not uniform:
            return uniform
        owner = condition.owner
        if isinstance(owner, ir.Block):
            return None
        op = owner.operation
        if op.name == "arith.andi":
            sides = [self.condition_dims(operand) for operand in op.operands]
        elif op.name == "arith.cmpi" and op.attributes["predicate"].value in _ORDERS:
            sides = [self.dims(operand) for operand in op.operands]
        else:
            return None
        if sides[0] is None or sides[1] is None:
            return None
        return sides[0] | sides[1]

    def build(self, module: ir.Module, name: str, condition: ir.Value) -> None:
        """Make the function: it takes the kernel's arguments."""
        guard_function = function(module, name, [a.type for a in self.arguments], [int_type(1)])
        block = guard_function.regions[0].blocks[0]
        self.b = Builder(ir.InsertionPoint(block), self.kernel.location)
        self.copies: dict[ir.Value, ir.Value] = dict(zip(self.arguments, block.arguments, strict=True))
        self.wide: dict[ir.Value, ir.Value] = {}
        self.holds = self.b.const(int_type(1), 1)
        # twice the width of the widest value: adding and multiplying what fits is exact
        self.exact = int_type(64 if self._widest(condition) <= 32 else 128)
        self._require_condition(condition)
        self.b.op("func.return", (), (self.holds,))

    def _widest(self, value: ir.Value) -> int:
        width = 64 if isinstance(value.type, ir.IndexType) else value.type.width
        if value in self.arguments or not (self.dims(value) or self.condition_dims(value)):
            return width
        return max(width, *(self._widest(operand) for operand in value.owner.operation.operands))

    def _require(self, what: ir.Value) -> None:
        self.holds = self.b.binary("andi", self.holds, what)

    def _require_condition(self, condition: ir.Value) -> None:
        if not self.dims(condition) and self.dims(condition) is not None:
            self._require(self._copy(condition))
            return
        op = condition.owner.operation
        if op.name == "arith.andi":
            for operand in op.operands:
                self._require_condition(operand)
            return
        predicate = op.attributes["predicate"].value
        a, b = (self._exact(operand) for operand in op.operands)
        if predicate >= 6:  # as signed numbers they compare alike only where neither is negative
            for side in (a, b):
                self._require(self.b.compare("sge", side, self.b.const(side.type, 0)))
        self._require(self.b.compare(_ORDERS[predicate], a, b))

    def _copy(self, value: ir.Value) -> ir.Value:
        """Return a uniform value, computed as the kernel does."""
        if value not in self.copies:
            op = value.owner.operation
            operands = [self._copy(operand) for operand in op.operands]
            copy = op.clone(self.b.point)
            for number, operand in enumerate(operands):
                copy.operands[number] = operand
            self.copies[value] = copy.results[0]
        return self.copies[value]

    def _exact(self, value: ir.Value) -> ir.Value:
        """Return a value that depends on threads, computed without overflow; that it fits its own type is required."""
        if value in self.wide:
            return self.wide[value]
        exact = self.exact
        if not self.dims(value) or value in self.indices:
            narrow = self._copy(value)
            if isinstance(narrow.type, ir.IndexType):
                narrow = self.b.value("arith.index_cast", int_type(64), (narrow,))
            exact_value = self.b.value("arith.extsi", exact, (narrow,))
        else:
            op = value.owner.operation
            operands = [self._exact(operand) for operand in op.operands]
            if op.name in ("arith.addi", "arith.subi", "arith.muli"):
                exact_value = self.b.binary(op.name.removeprefix("arith."), *operands)
            else:
                exact_value = operands[0]
                if op.name == "arith.extui":
                    self._require(self.b.compare("sge", exact_value, self.b.const(exact, 0)))
            limit = 1 << ((64 if isinstance(value.type, ir.IndexType) else value.type.width) - 1)
            self._require(self.b.compare("slt", exact_value, self.b.const(exact, limit)))
            self._require(self.b.compare("sge", exact_value, self.b.const(exact, -limit)))
        self.wide[value] = exact_value
        return exact_value
