"""The passes of the CPU target by name, in the order of its lowering."""

from __future__ import annotations

from ...dialects import cute
from ...dialects.cute import external
from ...hardware.architectures import Architecture
from ...mlir import find, ir, passmanager
from ..host import splitting
from ..host.expand import expand_module
from ..host.lower import TO_LLVM
from ..lowering.builder import operations, symbol
from ..lowering.pass_table import SHARED, Pass, on_module
from ..lowering.vector_legalisation import LONGEST_ON_HOST, legalise_vectors
from .expand import HIDDEN
from .lower import HANDLERS, KernelExpansion
from .passes import coroutines, external_calls, window_addresses
from .passes.loop_versioning import guarded_versions
from .runtime.records import HEADER

_THREAD_INDEX = 3
"""The hidden argument of a kernel that is thread index x."""


def _serve_external_calls(module: ir.Module) -> None:
    external_calls.serve(module, external.calls_in(module))


def _convert_window_addresses(module: ir.Module) -> None:
    window_addresses.convert(find(module.operation, window_addresses.CONVERSIONS))


def _expand(module: ir.Module, arch: Architecture) -> None:
    expand_module(KernelExpansion(module, HANDLERS, "the CPU target", arch=arch))


def _cut_vectors(module: ir.Module) -> None:
    legalise_vectors(module, LONGEST_ON_HOST)


def _version_loops(module: ir.Module, _arch: Architecture) -> None:
    for func in operations(module):
        if cute.KERNEL in func.attributes:
            first_index = len(func.regions[0].blocks[0].arguments) - HIDDEN + _THREAD_INDEX
            guarded_versions(module, func, symbol(func), first_index)


def _convert(module: ir.Module) -> None:
    passmanager.PassManager.parse(f"builtin.module({TO_LLVM})").run(module.operation)


def _make_resumable(module: ir.Module, _arch: Architecture) -> None:
    for func in operations(module):
        if func.name == "llvm.func" and len(func.regions[0].blocks) and coroutines.has_suspends(func):
            coroutines.make_resumable(func, len(func.regions[0].blocks[0].arguments) - 1, HEADER)


PASSES: dict[str, Pass] = {
    "external-calls": Pass(on_module(_serve_external_calls), "replace calls of functions of libdevice by operations"),
    "window-addresses": Pass(
        on_module(_convert_window_addresses),
        "give integers made of LLVM pointers to shared memory their addresses in its window",
    ),
    "launch-limits": SHARED["launch-limits"],
    "narrow-floats": SHARED["narrow-floats"],
    "vector-legalisation": Pass(on_module(_cut_vectors), "cut vectors of hundreds of elements into short ones"),
    "expansion": Pass(_expand, "replace operations and types of `cute` and `cute_nvgpu` by code of the host"),
    "matrix-fusion": Pass(_expand, "the same: matrix operations in a row are fused when all else is expanded"),
    "loop-versioning": Pass(_version_loops, "make a version of expanded kernels without the guard of their bounds"),
    "splitting": Pass(on_module(splitting.group_structured), "cut long functions into parts"),
    "llvm-conversion": Pass(on_module(_convert), "convert `arith`, `scf`, `vector` and the others to `llvm`"),
    "coroutines": Pass(
        _make_resumable, "make state machines of functions that suspend; the last argument is the frame"
    ),
    "loop-annotations": SHARED["loop-annotations"],
}
