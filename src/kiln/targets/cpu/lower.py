"""The lowering of the CPU target: from a module with kernels to LLVM IR text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...base_dsl import sanitizing
from ...base_dsl.compiler import Compilation, report_at
from ...base_dsl.diagnostics import DSLArchitectureError
from ...dialects.cute import external
from ...dialects.declaration import DECLARED
from ...hardware.architectures import Architecture
from ...mlir import context, find, ir, terminator
from ..host import lower as host
from ..lowering.builder import Builder, int_type
from ..lowering.expansion import Handlers, begin, combined, expand_operations, find_work
from ..lowering.launch_limits import check_limits
from . import expand, spin_loops
from .expand import Expander, FunctionState
from .launch import block_function, block_name, launch
from .ops import (
    async_copy,
    cluster,
    control,
    cute,
    launch_control,
    llvm_operations,
    mbarrier,
    memory,
    mma,
    multicast,
    sync,
    tcgen05,
    tma,
    trace,
    warp,
    wgmma,
)
from .passes import lane_updates, matrix_fusion, window_addresses

if TYPE_CHECKING:
    from ..host.expand import FunctionState as HostFunction

_KERNELS = combined(
    cute.HANDLERS,
    sync.HANDLERS,
    warp.HANDLERS,
    memory.HANDLERS,
    multicast.HANDLERS,
    mbarrier.HANDLERS,
    async_copy.HANDLERS,
    cluster.HANDLERS,
    tma.HANDLERS,
    mma.HANDLERS,
    wgmma.HANDLERS,
    tcgen05.HANDLERS,
    launch_control.HANDLERS,
    control.HANDLERS,
    trace.HANDLERS,
    llvm_operations.HANDLERS,
)
HANDLERS = combined(Handlers(host.HANDLERS | cute.OVERRIDES), _KERNELS)
"""How the CPU target expands operations, besides inline PTX."""


class KernelExpansion(expand.Expansion):
    """The expansion of a module with kernels, in the order that its parts need."""

    def expand_function(self, state: HostFunction) -> list[ir.Operation]:
        """Expand a function; its matrix operations last, when it is known which of them follow each other."""
        assert isinstance(state, FunctionState)
        x = Expander(self, state)
        work = find_work(x, state.operation)
        if state.is_kernel:
            lane_updates.mark(op for op, _, _ in work.operations)
            if self.recorder is not None:
                spin_loops.mark(state.operation)
        tasks = begin(x, work)
        fuses = state.is_kernel and self.sanitizer is None and self.counter is None
        matrices = [task for task in tasks if fuses and task.name in matrix_fusion.OPERATIONS]
        expand_operations(x, [task for task in tasks if not fuses or task.name not in matrix_fusion.OPERATIONS])
        left = matrix_fusion.fuse(x, [task.op for task in matrices])
        expand_operations(x, [matrices[position] for position in left])
        if self.sanitizer is not None and state.is_kernel:
            self.sanitizer.enter(x)
        return work.casts

    def finish(self) -> None:
        """Expand launches and make the functions that run blocks, now that everything is known about the kernels."""
        kernels = [state for state in self.functions.values() if state.is_kernel]
        for state in kernels:
            if state.waits:
                _return_status(state.operation)
        for x, op in self.launches:
            launch(x, op, Builder(ir.InsertionPoint(op.operation), op.location))
            op.operation.erase()
        for state in kernels:
            self.inlined |= set() if state.waits else {state.name}
            self.outlined.add(block_name(state.name))
            block_function(self, state)
        if self.counter is not None:
            self.counter.finish()


def _return_status(func: ir.Operation) -> None:
    """Let a kernel return 0 at its end; `coroutines.make_resumable` adds what it returns while it waits."""
    signature = func.attributes["function_type"].value
    func.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(signature.inputs, [int_type(32)], context()))
    for block in func.regions[0].blocks:
        last = terminator(block)
        if last.name == "func.return":
            b = Builder(ir.InsertionPoint(last), last.location)
            b.op("func.return", (), (b.i32(0),))
            last.erase()


def _require_tcgen05(module: ir.Module, arch: Architecture) -> None:
    """Refuse tcgen05 operations where the program is compiled for an architecture that lacks them."""
    hint = "choose the architecture with --gpu-arch or CUTE_DSL_ARCH"
    for op in find(module.operation, tuple(tcgen05.HANDLERS)):
        for feature, what in DECLARED[op.name](op).needs():
            if message := feature.refusal(arch, what):
                raise report_at(op.location, DSLArchitectureError, message, hint=hint)


def lower(compilation: Compilation, arch: Architecture, kinds: Sequence[str] = ()) -> tuple[str, KernelExpansion]:
    """Return the LLVM IR text of a module, and its expansion.

    Programs are held to the limits of `arch`; `kinds` are the findings that an instrumented build looks for.
    """
    handlers = HANDLERS
    if calls := external.calls_in(compilation.module):
        from .passes import external_calls  # few programs have any

        with context():
            external_calls.serve(compilation.module, calls)
    if conversions := find(compilation.module.operation, window_addresses.CONVERSIONS):
        with context():
            window_addresses.convert(conversions)
    if find(compilation.module.operation, ("llvm.inline_asm",)):
        from . import ptx  # half of what there is to import, and few programs have any

        handlers = combined(handlers, ptx.HANDLERS)
    if compilation.options.gpu_arch:  # without one, kernels of every GPU run here
        _require_tcgen05(compilation.module, arch)
    with compilation.stage("limits"):
        needs = check_limits(compilation.module, arch, emulated=True)
    expansion = KernelExpansion(compilation.module, handlers, "the CPU target", arch=arch, needs=needs)
    if any(kind in sanitizing.COUNTS for kind in kinds):
        from .access_counter import AccessCounter  # most programs run without

        expansion.counter = AccessCounter(expansion, kinds)
    # a build that only counts keeps accesses out of bounds away from memory, as launches checked by default do
    checked = [kind for kind in kinds if kind not in sanitizing.COUNTS] or [sanitizing.BOUNDS] * bool(kinds)
    if sanitizing.EVENTS in kinds:
        from .event_recorder import EventRecorder

        expansion.recorder = EventRecorder(expansion)
        checked = []
    if checked:
        from .sanitizer.instrument import Instrumentation  # most programs run without

        expansion.sanitizer = Instrumentation(checked)
    return host.lower(compilation, expansion), expansion
