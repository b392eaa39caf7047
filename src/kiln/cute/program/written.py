"""Which arguments of a host function its kernels write to, as far as the IR shows it.

Frameworks that count writes to their arrays are told (`interop/arguments/arrays.py`): autograd then refuses a gradient
from a saved tensor that a kernel has overwritten. Neither inline PTX nor arithmetic with addresses as integers is looked
at.
"""

from __future__ import annotations

from ...analysis import effects, pointers, values
from ...base_dsl.bindings import ir
from ...dialects.cute.grid import Launch


def written_arguments(module: ir.Module, entry: str) -> frozenset[int]:
    """Return the numbers of the arguments of the host function `entry` whose memory its kernels write to."""
    named = [op.operation for op in module.body.operations if "sym_name" in op.operation.attributes]
    functions = {op.attributes["sym_name"].value: op for op in named}
    arguments = functions[entry].regions[0].blocks[0].arguments
    return frozenset(n for n, value in enumerate(arguments) if not _is_short(value) and _is_written(value, functions))


def _is_short(value: ir.Value) -> bool:
    """Return whether a value cannot be an address: most arguments are extents of 32 bits."""
    return isinstance(value.type, ir.IntegerType) and value.type.width < 64


def _is_written(root: ir.Value, functions: dict[str, ir.Operation]) -> bool:
    """Return whether an operation writes to the memory that a pointer, or an address, leads to."""
    waiting = [root]
    seen = {root}
    while waiting:
        for use in waiting.pop().uses:
            op = use.owner.operation
            number = use.operand_number
            if effects.writes(op.name, number):
                return True
            for value in _leads_to(op, number, functions):
                if value not in seen:
                    seen.add(value)
                    waiting.append(value)
    return False


def _leads_to(op: ir.Operation, number: int, functions: dict[str, ir.Operation]) -> list[ir.Value]:
    """Return the values through which the memory of an operand can be reached, too."""
    derived = pointers.derived(op, number, pointers.ANY)
    if derived is not None:
        return [derived]
    if op.name == "builtin.unrealized_conversion_cast":  # the arguments of a launch
        launches = [Launch.of(use.owner.operation) for use in op.result.uses]
        names = [str(launch.kernel) for launch in launches if launch is not None]
        kernels = [functions[name] for name in names if name in functions]
        blocks = [kernel.regions[0].blocks[0].arguments for kernel in kernels]
        return [arguments[number] for arguments in blocks if number < len(arguments)]
    return [op.result] if op.name == "arith.select" else values.targets(op, number)
