"""Checks of launches against the limits of an architecture: sizes, shared memory and registers known when compiling.

All targets check here before they lower a module, so that one rule with one message refuses a program everywhere.
"""

from __future__ import annotations

import math
import os
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from ...base_dsl.compiler import report_at, source_span
from ...base_dsl.diagnostics import DSLArchitectureError, DSLOptimizationWarning, DSLRuntimeError, warn_at
from ...dialects import cute
from ...dialects.nvgpu.control import SetMaxRegister
from ...dialects.nvgpu.tcgen05 import Tcgen05Alloc
from ...hardware import features, limits
from ...hardware.architectures import Architecture, Generation
from ...hardware.limits import Needs, Sizes
from ...mlir import find, ir
from .builder import constant_value, operations, symbol
from .shared_memory import place_allocations

if TYPE_CHECKING:
    from ...dialects.declaration import OpView

    _View = TypeVar("_View", bound=OpView)


def check_limits(module: ir.Module, arch: Architecture, emulated: bool = False) -> dict[str, Needs]:
    """Refuse launches that no GPU of an architecture takes, and return the needs of each kernel.

    The module is as the front end made it; allocations of shared memory get their `OFFSET`. Where the kernel is
    `emulated`, instructions that the architecture lacks run.
    """
    launches: dict[str, list[cute.Launch]] = {}
    inside: dict[str, list[ir.Operation]] = {}
    for op in find(module.operation, (cute.Launch.OPERATION_NAME, *_OF_KERNELS)):
        if launch := cute.Launch.of(op):
            launches.setdefault(launch.kernel, []).append(launch)
        else:
            inside.setdefault(symbol(_function_of(op)), []).append(op)
    needs_by_kernel: dict[str, Needs] = {}
    for func in operations(module):
        if func.name == "func.func" and cute.KERNEL in func.attributes:
            name = symbol(func)
            needs_by_kernel[name] = _needs(func, inside.get(name, []), launches.get(name, []))
    for name, ops in launches.items():
        needs = needs_by_kernel.get(name, Needs())
        for op in ops:
            _check_launch(op, name, needs, arch, [] if emulated else inside.get(name, []))
            _warn_of_smem(op, name, needs)
            _warn_of_blocks(op, name, arch.generation)
            _warn_of_columns(op, name, _those(inside.get(name, []), Tcgen05Alloc))
        _check_registers(inside.get(name, []), ops, needs)
    return needs_by_kernel


_OF_KERNELS = tuple(kind.OPERATION_NAME for kind in (cute.AllocSmem, cute.DynamicSmem, SetMaxRegister, Tcgen05Alloc))


def _function_of(op: ir.Operation) -> ir.Operation:
    while op.name != "func.func":
        parent = op.parent
        assert parent is not None
        op = parent.operation
    return op


def _needs(func: ir.Operation, inside: list[ir.Operation], launches: list[cute.Launch]) -> Needs:
    allocations = _those(inside, cute.AllocSmem)
    merged = bool(launches) and all(op.merge_smem for op in launches)
    end = place_allocations(func, allocations, merged)
    listed: dict[tuple[str, int], int] = {}
    for op in allocations:
        key = (_line(op), op.bytes)
        listed[key] = listed.get(key, 0) + 1
    most = max((op.max_threads or 0 for op in launches), default=0)
    dynamic = bool(_those(inside, cute.DynamicSmem))
    pairs = any(op.cta_group == 2 for op in _those(inside, Tcgen05Alloc))
    clusters = any(op.preferred_cluster or any(constant_value(size) != 1 for size in op.cluster) for op in launches)
    return Needs(end, dynamic, most, tuple((*key, count) for key, count in listed.items()), pairs, clusters)


def _those(operations: list[ir.Operation], kind: type[_View]) -> list[_View]:
    return [view for op in operations if (view := kind.of(op))]


def _check_registers(inside: list[ir.Operation], launches: list[cute.Launch], needs: Needs) -> None:
    """Refuse requests for registers that nothing in the CTA can fulfil: their threads would wait for ever."""
    changes = _those(inside, SetMaxRegister)
    blocks = max((op.min_blocks or 0 for op in launches), default=0)
    if not changes or blocks < 1:
        return
    released = [op.count for op in changes if op.action == "dec"]
    for launch in launches:
        threads = needs.max_threads or _threads(launch)
        for op in changes if threads else ():
            if op.action == "inc":
                broken = limits.broken_register_rule(threads, blocks, op.count, min(released, default=None))
                if broken is not None:
                    raise report_at(op.location, DSLRuntimeError, broken[0], hint=broken[1])


def _threads(launch: cute.Launch) -> int:
    """Return the threads of a launch's CTAs; 0 if they are not known."""
    return math.prod(constant_value(extent, 0) for extent in launch.block)


def _warn_of_smem(launch: cute.Launch, kernel: str, needs: Needs) -> None:
    """Warn of a launch that asks for less shared memory than its kernel allocates: the CTAs get what they need."""
    asked = constant_value(launch.smem, 0)
    allocated = min(needs.smem, sum(size * count for _, size, count in needs.pieces))
    if 0 < asked < allocated and not needs.dynamic:
        text = f"kernel {kernel}: launch(smem={asked}) is less than the {allocated} bytes that it allocates, which are used"
        warn_at(source_span(launch.location)[0], f"{text}{needs.listing(None)}", _warned)


_warned: dict[Any, int] = {}
"""Warnings that were shown: a module may be lowered more than once, for checks by default."""


def _warn_of_blocks(launch: cute.Launch, kernel: str, of: Generation) -> None:
    """Warn of more CTAs than an SM can hold: the kernel runs, with fewer of them."""
    blocks = launch.min_blocks or 0
    threads = _threads(launch)
    if blocks <= of.blocks and blocks * threads <= of.threads:
        return
    text = f"kernel {kernel}: min_blocks_per_mp={blocks} blocks of {threads or 'some'} threads, and an SM of sm_{of.number} has "
    _warn(launch, text + f"at most {of.blocks} blocks and {of.threads} threads: there will be fewer")


def most_columns(allocations: list[Tcgen05Alloc]) -> int:
    """Return the columns of the largest allocation of tensor memory; 0 if none is known."""
    return max((constant_value(op.columns, 0) for op in allocations), default=0)


def _warn_of_columns(launch: cute.Launch, kernel: str, allocations: list[Tcgen05Alloc]) -> None:
    """Warn of CTAs that are to share an SM, and whose columns of tensor memory it has not: they wait for each other."""
    blocks = launch.min_blocks or 0
    most = limits.TMEM_ALLOCATION[1]
    columns = most_columns(allocations)
    if blocks * columns > most:
        text = f"kernel {kernel}: min_blocks_per_mp={blocks} blocks, each of which allocates {columns} columns of tensor memory, "
        _warn(launch, text + f"and an SM has {most}: blocks wait in tcgen05.alloc until others have freed theirs")


def _warn(launch: cute.Launch, text: str) -> None:
    span, _ = source_span(launch.location)
    warnings.warn_explicit(text, DSLOptimizationWarning, *((span.filename, span.line) if span else ("<unknown>", 0)))


def _line(op: cute.AllocSmem) -> str:
    span, _ = source_span(op.location)
    return f"{os.path.basename(span.filename)}:{span.line}" if span is not None else "an unknown line"


def _check_launch(op: cute.Launch, kernel: str, needs: Needs, arch: Architecture, inside: list[ir.Operation]) -> None:
    grid, block, cluster = ([constant_value(extent) for extent in group] for group in (op.grid, op.block, op.cluster))
    sizes = Sizes(grid, block, cluster, constant_value(op.smem))
    broken = limits.broken_rule(arch.generation, sizes, needs, empty=True)
    if broken is None and op.preferred_cluster and features.PREFERRED_CLUSTER.on(arch):
        sizes = sizes._replace(cluster=op.preferred_cluster)
        broken = limits.broken_rule(arch.generation, sizes._replace(grid=(None,) * 3), needs)
    if broken is not None:
        for alloc in _those(inside, Tcgen05Alloc) if (why := features.TCGEN05.refusal(arch)) else ():
            # a kernel for B200 on a GPU with less shared memory: a smaller tile would not help
            hint = "choose the architecture with --gpu-arch or CUTE_DSL_ARCH"
            raise report_at(alloc.location, DSLArchitectureError, why, hint=hint)
        raise report_at(op.location, DSLRuntimeError, limits.refusal(kernel, sizes, broken[0]), hint=broken[1])
