"""Kernel outlining: kernels become a module of device code, launches become `cute_nvgpu.driver_launch`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ....base_dsl.compiler import report_at, source_span
from ....base_dsl.diagnostics import CompilerDiagnosticError, Span
from ....dialects import cute
from ....dialects.definition import operation_names
from ....dialects.nvgpu.launch import driver_launch
from ....dialects.nvgpu.tcgen05 import Tcgen05Alloc
from ....mlir import context, find, ir
from ...lowering.builder import constant_value
from ...lowering.launch_limits import most_columns


@dataclasses.dataclass
class LaunchFacts:
    """Facts about a kernel that its launches imply when compiling."""

    name: str
    block: tuple[int, ...] | None = None
    """Threads of a block, if every launch has the same known number."""
    cluster: tuple[int, ...] | None = None
    max_threads: int = 0
    min_blocks: int = 0
    merge_smem: bool = False
    """Whether branches that exclude each other may share memory."""
    asks_smem: bool = False
    """Whether a launch asks for shared memory, or may do so."""
    smem: int = 0
    """The most bytes that a launch is known to ask for."""
    tmem_columns: int = 0
    """Columns of tensor memory that its largest allocation takes."""
    launched: bool = False
    span: Span | None = None
    """Where the kernel is defined."""
    unheeded: list[tuple[Span | None, str]] = dataclasses.field(default_factory=list)
    """Loops with a hint that has no effect."""


def _functions(module: ir.Module) -> dict[str, ir.Operation]:
    return {
        op.operation.attributes["sym_name"].value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def outline_kernels(module: ir.Module) -> tuple[ir.Module, list[LaunchFacts]]:
    """Move the kernels out of a module, and return the module of device code and its kernels by number."""
    functions = _functions(module)
    kernels = [name for name, func in functions.items() if cute.KERNEL in func.attributes]
    facts = {name: LaunchFacts(name, span=source_span(functions[name].location)[0]) for name in kernels}
    for name in kernels:
        facts[name].tmem_columns = most_columns(Tcgen05Alloc.all_in(functions[name]))
    device = _device(module, functions, kernels)
    for op in cute.Launch.all_in(module.operation):
        _replace_launch(op, functions, facts, kernels)
    return device, list(facts.values())


def _device(module: ir.Module, functions: dict[str, ir.Operation], kernels: list[str]) -> ir.Module:
    """Return a module of the kernels, and of copies of what they need."""
    needed = _reachable(functions, kernels)
    others = {func for name, func in functions.items() if name not in needed}
    moved = {functions[name] for name in kernels}
    with context(), ir.Location.unknown():
        device = ir.Module.create()
        for op in [op.operation for op in module.body.operations]:
            if op not in others:
                device.body.append(op if op in moved else op.clone())
    return device


_WORTH = 32
"""Operations that are worth another LLVM thread: they become 16 KB of LLVM IR, which takes 10 ms."""


_MOST = 0.6
"""The share of operations for the other LLVM thread: it then ends at the same time as this one, which lowers all
kernels and compiles the rest."""


def apart(device: ir.Module, facts: list[LaunchFacts]) -> list[tuple[ir.Module, list[LaunchFacts]]]:
    """Split a module of device code in two for parallel compilation, with the facts of their kernels.

    The first has the longest kernel, with short ones up to `_MOST`. The module stays whole if a part would be short, or
    kernels share functions.
    """
    functions = _functions(device)
    if len(functions) < 2 or len(functions) != len(facts) or any(_calls(func) for func in functions.values()):
        return [(device, facts)]
    names = operation_names()
    lengths = {name: len(find(func, names)) for name, func in functions.items()}
    shortest_first = sorted(lengths, key=lengths.__getitem__)
    taken = [shortest_first.pop()]
    size = lengths[taken[0]]
    whole = sum(lengths.values())
    for name in shortest_first:
        if size + lengths[name] <= _MOST * whole:
            taken.append(name)
            size += lengths[name]
    if whole - size < _WORTH:
        return [(device, facts)]
    with context(), ir.Location.unknown():
        first = ir.Module.create()
    for name in functions:
        if name in taken:
            first.body.append(functions[name])
    return [
        (module, [fact for fact in facts if (fact.name in taken) == is_first])
        for module, is_first in ((first, True), (device, False))
    ]


def _calls(func: ir.Operation) -> set[str]:
    return {op.attributes["callee"].value for op in find(func, ("func.call",))}


def _reachable(functions: dict[str, ir.Operation], roots: Sequence[str]) -> set[str]:
    seen = set(roots)
    todo = list(roots)
    while todo:
        for callee in _calls(functions[todo.pop()]) - seen:
            seen.add(callee)
            if callee in functions:
                todo.append(callee)
    return seen


def _replace_launch(
    op: cute.Launch, functions: dict[str, ir.Operation], facts: dict[str, LaunchFacts], kernels: list[str]
) -> None:
    name = op.kernel
    if name not in facts:
        raise report_at(op.location, CompilerDiagnosticError, f"launch of {name}, which is not a kernel of this module")
    want = list(functions[name].attributes["function_type"].value.inputs)
    got = [v.type for v in op.kernel_arguments()[0]]
    if want != got:
        raise report_at(
            op.location,
            CompilerDiagnosticError,
            f"kernel {name} takes ({', '.join(map(str, want))}) but is launched with ({', '.join(map(str, got))})",
        )
    _note(op, facts[name])
    driver_launch(op.operation, kernels.index(name), name)


def _note(op: cute.Launch, facts: LaunchFacts) -> None:
    """Add the facts of one launch to those of its kernel."""

    def static_extents(extents: tuple[ir.Value, ...]) -> tuple[int, ...] | None:
        values = tuple(constant_value(extent) for extent in extents)
        return None if None in values else values

    def merge(old: object, new: object) -> Any:
        return new if not facts.launched or old == new else None

    facts.block = merge(facts.block, static_extents(op.block))
    # where the driver may choose between two sizes, the kernel must not promise one
    facts.cluster = merge(facts.cluster, None if op.preferred_cluster else static_extents(op.cluster))
    facts.merge_smem = op.merge_smem and (facts.merge_smem or not facts.launched)
    facts.max_threads = max(facts.max_threads, op.max_threads or 0)
    facts.min_blocks = max(facts.min_blocks, op.min_blocks or 0)
    smem = constant_value(op.smem)
    facts.asks_smem |= smem != 0
    facts.smem = max(facts.smem, smem or 0)
    facts.launched = True
