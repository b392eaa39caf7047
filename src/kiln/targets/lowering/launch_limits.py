"""Launches that no GPU of an architecture takes: sizes, shared memory, registers, as far as they are known when compiling.

All targets ask here, before they lower a module, so that a program is refused by one rule with the same words everywhere.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from ...base_dsl.compiler import report_at, source_span
from ...base_dsl.diagnostics import DSLOptimizationWarning, DSLRuntimeError
from ...dialects import cute
from ...hardware import features, limits
from ...hardware.limits import Needs, Sizes
from ...mlir import find, ir
from .builder import constant_value, operations, symbol
from .shared_memory import place_allocations

if TYPE_CHECKING:
    from ...hardware.architectures import Architecture, Generation


def check_limits(module: ir.Module, arch: Architecture) -> dict[str, Needs]:
    """Refuse launches that no GPU of an architecture takes, as far as sizes are known when compiling; what each kernel needs.

    The module is as the front end made it; allocations of shared memory are given their `OFFSET`.
    """
    launches: dict[str, list[ir.Operation]] = {}
    inside: dict[str, list[ir.Operation]] = {}
    for op in find(module.operation, ("cute.launch", *_OF_KERNELS)):
        attributes: Any = op.attributes
        if op.name == "cute.launch":
            launches.setdefault(attributes["kernel"].value, []).append(op)
        else:
            inside.setdefault(symbol(_function_of(op)), []).append(op)
    found: dict[str, Needs] = {}
    for func in operations(module):
        if func.name == "func.func" and cute.KERNEL in func.attributes:
            name = symbol(func)
            found[name] = _needs(func, inside.get(name, []), launches.get(name, []))
    for name, ops in launches.items():
        needs = found.get(name, Needs())
        for op in ops:
            _check_launch(op, name, needs, arch)
            _warn_of_blocks(op, name, arch.generation)
        _check_registers(inside.get(name, []), ops, needs)
    return found


_OF_KERNELS = ("cute.alloc_smem", "cute.dynamic_smem", "cute_nvgpu.set_max_register")


def _function_of(op: ir.Operation) -> ir.Operation:
    while op.name != "func.func":
        parent = op.parent
        assert parent is not None
        op = parent.operation
    return op


def _needs(func: ir.Operation, inside: list[ir.Operation], launches: list[ir.Operation]) -> Needs:
    allocations = [op for op in inside if op.name == "cute.alloc_smem"]
    merged = bool(launches) and all("cute.merge_smem" in op.attributes for op in launches)
    end = place_allocations(func, allocations, merged)
    listed: dict[tuple[str, int], int] = {}
    for op in allocations:
        key = (_line(op), _number(op, "bytes"))
        listed[key] = listed.get(key, 0) + 1
    most = max((_number(op, "cute.max_threads") for op in launches if "cute.max_threads" in op.attributes), default=0)
    dynamic = any(op.name == "cute.dynamic_smem" for op in inside)
    return Needs(end, dynamic, most, tuple((*key, count) for key, count in listed.items()))


def _check_registers(inside: list[ir.Operation], launches: list[ir.Operation], needs: Needs) -> None:
    """Refuse requests for registers that nothing in the block can fulfil: their threads would wait for ever."""
    changes = [op for op in inside if op.name == "cute_nvgpu.set_max_register"]
    blocks = max((_number(op, "cute.min_blocks") for op in launches if "cute.min_blocks" in op.attributes), default=0)
    if not changes or blocks < 1:
        return
    actions: Any = [(op, op.attributes["action"], _number(op, "count")) for op in changes]
    given = [count for _, action, count in actions if action.value == "dec"]
    for launch in launches:
        threads = needs.max_threads or _threads(launch)
        for op, action, count in actions if threads else ():
            if action.value == "inc":
                broken = limits.broken_register_rule(threads, blocks, count, min(given, default=None))
                if broken is not None:
                    raise report_at(op.location, DSLRuntimeError, broken[0], hint=broken[1])


def _threads(launch: ir.Operation) -> int:
    """Threads of a launch's blocks; 0 if they are not known."""
    found = 1
    for value in list(launch.operands)[3:6]:
        found *= constant_value(value, 0)
    return found


def _warn_of_blocks(launch: ir.Operation, kernel: str, of: Generation) -> None:
    """Warn of more blocks than a multiprocessor has: the kernel runs, with fewer of them."""
    blocks = _number(launch, "cute.min_blocks") if "cute.min_blocks" in launch.attributes else 0
    threads = _threads(launch)
    if blocks <= of.blocks and blocks * threads <= of.threads:
        return
    span, _ = source_span(launch.location)
    text = f"kernel {kernel}: min_blocks_per_mp={blocks} blocks of {threads or 'some'} threads, and a multiprocessor of sm_{of.number} has "
    text += f"at most {of.blocks} blocks and {of.threads} threads: there will be fewer"
    warnings.warn_explicit(text, DSLOptimizationWarning, *((span.filename, span.line) if span else ("<unknown>", 0)))


def _number(op: ir.Operation, name: str) -> int:
    attribute: Any = op.attributes[name]
    return attribute.value


def _line(op: ir.Operation) -> str:
    span, _ = source_span(op.location)
    return f"{os.path.basename(span.filename)}:{span.line}" if span is not None else "an unknown line"


def _check_launch(op: ir.Operation, kernel: str, needs: Needs, arch: Architecture) -> None:
    known = [constant_value(value) for value in list(op.operands)[:10]]
    sizes = Sizes(known[:3], known[3:6], known[6:9], known[9])
    broken = limits.broken_rule(arch.generation, sizes, needs, empty=True)
    if broken is None and "cute.preferred_cluster" in op.attributes and features.PREFERRED_CLUSTER.on(arch):
        preferred: Any = op.attributes["cute.preferred_cluster"]
        sizes = sizes._replace(cluster=tuple(preferred))
        broken = limits.broken_rule(arch.generation, sizes._replace(grid=(None,) * 3), needs)
    if broken is not None:
        raise report_at(op.location, DSLRuntimeError, limits.refusal(kernel, sizes, broken[0]), hint=broken[1])
