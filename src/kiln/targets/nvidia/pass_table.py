"""The passes of the NVIDIA target by name, in the order of its lowering."""

from __future__ import annotations

from ...dialects import cute
from ...hardware import features
from ...hardware.architectures import Architecture
from ...mlir import find, ir
from ..lowering.builder import operations, symbol
from ..lowering.pass_table import SHARED, Pass, on_module
from ..lowering.vector_legalisation import legalise_vectors
from .codegen import newest_ptx
from .expand import Expansion, expand_module
from .lower import HANDLERS, expand_floats
from .passes import store_forwarding
from .passes.fma_contraction import allow_contraction
from .passes.if_conversion import convert_branches
from .passes.kernel_outlining import outline_kernels
from .passes.llvm_conversion import convert_to_llvm
from .passes.loop_unrolling import mark_loops
from .passes.wgmma_registers import order_registers
from .passes.wgmma_unrolling import unroll_wgmma


def _outline(module: ir.Module, _arch: Architecture) -> ir.Module:
    return outline_kernels(module)[0]


def _order_registers(module: ir.Module, _arch: Architecture) -> None:
    order_registers(module, [symbol(func) for func in operations(module) if cute.KERNEL in func.attributes])


def _forward_stores(module: ir.Module, _arch: Architecture) -> None:
    for func in operations(module):
        accesses = enumerate(find(func, store_forwarding.ACCESSES))
        store_forwarding.forward_stores({number: (op, op.name) for number, op in accesses})


def _expand(module: ir.Module, arch: Architecture) -> None:
    wide = features.WIDE_ACCESS.on(arch) and newest_ptx(arch) >= 88
    expand_module(Expansion(module, HANDLERS, arch, wide_accesses=wide))


PASSES: dict[str, Pass] = {
    "launch-limits": SHARED["launch-limits"],
    "kernel-outlining": Pass(_outline, "make a module of the kernels, and launches through the driver of the others"),
    "fma-contraction": Pass(
        on_module(allow_contraction), "let a multiplication and the one addition that uses it be one FMA"
    ),
    "narrow-floats": Pass(expand_floats, "convert floats of 8 bits and less by integer arithmetic, or as PTX can"),
    "wgmma-unrolling": Pass(on_module(unroll_wgmma), "unroll loops of WGMMAs that the program wants unrolled"),
    "wgmma-registers": Pass(_order_registers, "hold registers around fences and waits of WGMMA, and mark runs of them"),
    "vector-legalisation": Pass(on_module(legalise_vectors), "cut long vectors into short ones"),
    "if-conversion": Pass(on_module(convert_branches), "make selects of branches that set one element"),
    "store-forwarding": Pass(_forward_stores, "hand on as values what a thread writes to its memory and reads again"),
    "expansion": Pass(_expand, "replace operations and types of `cute` and `cute_nvgpu` by those of `llvm` and `nvvm`"),
    "smem-allocation": Pass(_expand, "the same: static shared memory is placed when all is expanded"),
    "loop-unrolling": Pass(on_module(mark_loops), "annotate loops with how LLVM is to unroll them"),
    "llvm-conversion": Pass(on_module(convert_to_llvm), "convert `arith`, `scf`, `vector` and the others to `llvm`"),
    "loop-annotations": SHARED["loop-annotations"],
}
