"""From a module with kernels to LLVM IR text: the pipeline of the CPU target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mlir import find
from ..host import lower as host
from ..lowering.expansion import Handlers, combined
from ..lowering.launch_limits import check_limits
from .expand import Expansion
from .ops import async_copy, cluster, control, cute, llvm_operations, mbarrier, memory, mma, sync, tma, warp, wgmma

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...base_dsl.compiler import Compilation
    from ...hardware.architectures import Architecture

_KERNELS = combined(
    cute.HANDLERS, sync.HANDLERS, warp.HANDLERS, memory.HANDLERS, mbarrier.HANDLERS, async_copy.HANDLERS, cluster.HANDLERS,
    tma.HANDLERS, mma.HANDLERS, wgmma.HANDLERS, control.HANDLERS, llvm_operations.HANDLERS,
)  # fmt: skip
HANDLERS = combined(Handlers(host.HANDLERS | cute.OVERRIDES), _KERNELS)
"""How the CPU target expands operations, besides inline PTX."""


def lower(compilation: Compilation, arch: Architecture, kinds: Sequence[str] = ()) -> tuple[str, Expansion]:
    """LLVM IR text of a module, and what its expansion found out; `arch` is the one whose limits programs keep, and `kinds` are what
    an instrumented build is to look for."""
    handlers = HANDLERS
    if find(compilation.module.operation, ("llvm.inline_asm",)):
        from . import ptx  # half of what there is to import, and few programs have any

        handlers = combined(handlers, ptx.HANDLERS)
    with compilation.stage("limits"):
        needs = check_limits(compilation.module, arch)
    expansion = Expansion(compilation.module, handlers, "the CPU target", arch=arch, needs=needs)
    if "banks" in kinds:
        from .bank_counter import BankCounter

        expansion.banks = BankCounter(expansion)
    checked = [kind for kind in kinds if kind != "banks"]
    if checked:
        from .sanitizer.instrument import Instrumentation

        expansion.sanitizer = Instrumentation(checked)
    return host.lower(compilation, expansion), expansion
