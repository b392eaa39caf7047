"""Remarks on kernels: registers, spills, local memory, each at a line of the program.

Asked for with `cute.compile[cute.RemarkFilter("spill|local")](f, ...)`: the filter is a regular expression that is
searched for in a remark's text. `RemarkOutput(path)` appends them to a file; else they go to standard error.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import DSLOptimizationWarning, DSLRuntimeError
from ...base_dsl.options import CompileOptions
from ...hardware import source_paths, toolchain
from . import codegen

if TYPE_CHECKING:
    from .codegen import Resources
    from .runtime import KernelInfo


@dataclasses.dataclass(frozen=True)
class Remark:
    """One remark. `kind` is "resources", "spill", "local-memory", "loop" or "wgmma"."""

    kind: str
    kernel: str
    message: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file else ""
        return f"{place}remark: {self.kind}: kernel {self.kernel}: {self.message}"


class About:
    """What is known of the kernels of an executable."""

    def __init__(
        self,
        kernels: Sequence[KernelInfo],
        resources: Mapping[str, Resources],
        cubin: bytes,
        artifacts: Mapping[str, Any],
    ) -> None:
        self.resources = resources
        self.artifacts = artifacts
        self._make = functools.lru_cache(maxsize=1)(functools.partial(collect, kernels, resources, cubin))

    @property
    def remarks(self) -> list[Remark]:
        """All remarks; made when first asked for."""
        return self._make()


_FUNCTION = re.compile(r"^\.text\.(\S+):")
_LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)( inlined at "([^"]*)", line (\d+))?')
_ACCESS = re.compile(r"\b(STL|LDL)\b[.\w]*")


def local_accesses(sass: str) -> dict[str, dict[tuple[str, int], list[int]]]:
    """Return for each kernel and source line how many instructions store to and load from local memory."""
    accesses: dict[str, dict[tuple[str, int], list[int]]] = collections.defaultdict(dict)
    kernel = ""
    place = ("", 0)
    for text in sass.splitlines():
        if start := _FUNCTION.match(text):
            kernel = start.group(1)
            place = ("", 0)
        elif at := _LINE.match(text):
            place = (source_paths.decoded(at.group(1)), int(at.group(2)))
        elif access := _ACCESS.search(text):
            counts = accesses[kernel].setdefault(place, [0, 0])
            counts[access.group(1) == "LDL"] += 1
    return accesses


def collect(kernels: Sequence[KernelInfo], resources: Mapping[str, Resources], cubin: bytes) -> list[Remark]:
    """Return all remarks on compiled kernels. Lines come from the code's line information."""
    remarks = [_summary(info, resources[info.name]) for info in kernels if info.name in resources]
    remarks += about_wgmma(kernels, resources)
    for info in kernels:
        for file, line, hint in info.unheeded:
            text = f"{hint} changes nothing: the loop runs as it is written"
            remarks.append(Remark("loop", info.name, text, file, line))
    uses = {name: each for name, each in resources.items() if each.stack or each.spill_stores or each.spill_loads}
    if not uses:
        return remarks
    accesses = local_accesses(codegen.disassemble(cubin)) if cubin and toolchain.find("nvdisasm") else {}
    for info in kernels:
        if info.name not in uses:
            continue
        kind, total = _total(uses[info.name])
        lines = accesses.get(info.name) or {("", 0): [0, 0]}
        for (file, line), (stores, loads) in sorted(lines.items()):
            here = f"{stores} store and {loads} load instructions here, of " if stores or loads else ""
            place = (file, line) if file else (info.file, info.line)
            remarks.append(Remark(kind, info.name, f"{here}{total}", *place))
    return remarks


FENCE_ADDED = "C7519"
"""The message of ptxas about a fence that it adds in a WGMMA loop, where the language accepts one before the loop."""
_ADVICE = {
    "C7505": "compile without debug information",
    "C7507": "setmaxregister_decrease to more registers",
    "C7508": "launch it with min_blocks_per_mp=1",
    "C7509": "printf, asserts and other calls may not be in a kernel with WGMMAs",
    "C7506": "printf, asserts and other calls may not be in a kernel that asks for registers",
    "C7510": "issue WGMMAs and wait for them in one function",
    "C7511": "make tiles smaller, share them among more warpgroups, or launch with min_blocks_per_mp=1",
    "C7512": "make tiles smaller, share them among more warpgroups, or launch with min_blocks_per_mp=1",
    "C7513": "write registers of A before warpgroup.fence() or after the warpgroup.wait_group() of the WGMMA that reads them",
    "C7514": "read accumulators after the warpgroup.wait_group() that completes their WGMMA",
    "C7515": "write accumulators before warpgroup.fence() or after the warpgroup.wait_group() that completes their WGMMA",
    "C7516": "call warpgroup.fence() before the first WGMMA and warpgroup.commit_group() after the last",
    "C7517": "call warpgroup.wait_group() before accumulators are used",
    "C7518": "call warpgroup.wait_group() where all threads of the warpgroup come by",
    FENCE_ADDED: "it costs nothing; warpgroup.fence() in the loop of the WGMMAs would do the same",
}
"""Advice for messages of ptxas."""


def about_wgmma(kernels: Sequence[KernelInfo], resources: Mapping[str, Resources]) -> list[Remark]:
    """Return remarks on messages of ptxas: serialized WGMMAs, added fences, ignored `setmaxnreg`."""
    return [
        Remark("wgmma", info.name, f"{text} (ptxas); {_ADVICE.get(text[:5], '')}".rstrip("; "), info.file, info.line)
        for info in kernels
        for text in (resources[info.name].messages if info.name in resources else ())
    ]


def warn_of_slow_wgmma(kernels: Sequence[KernelInfo], resources: Mapping[str, Resources]) -> None:
    """Warn about what makes WGMMA slower, at the kernels' lines."""
    for remark in about_wgmma(kernels, resources):
        if remark.message.startswith(FENCE_ADDED):
            continue
        place = (remark.file or "<unknown>", remark.line)
        warnings.warn_explicit(f"kernel {remark.kernel}: {remark.message}", DSLOptimizationWarning, *place)


def _summary(info: KernelInfo, used: Resources) -> Remark:
    dynamic = f" and {used.dynamic_smem} bytes that are dynamic" if used.dynamic_smem else ""
    text = f"{used.registers} registers, {used.static_smem} bytes of static shared memory{dynamic}, {used.barriers} barriers"
    return Remark("resources", info.name, text, info.file, info.line)


def _total(used: Resources) -> tuple[str, str]:
    if used.spill_stores or used.spill_loads:
        text = f"{used.spill_stores} bytes of spill stores and {used.spill_loads} bytes of spill loads: {used.registers} registers were not enough"
        return "spill", text
    return "local-memory", f"{used.stack} bytes of local memory in each thread"


def report(remarks: Iterable[Remark], options: CompileOptions) -> None:
    """Write the remarks that the options ask for."""
    try:
        pattern = re.compile(options.remark_filter)
    except re.error as reason:
        raise DSLRuntimeError(f"RemarkFilter({options.remark_filter!r}) is no regular expression: {reason}") from None
    text = "".join(f"{line}\n" for remark in remarks if pattern.search(line := str(remark)))
    if not text:
        return
    if not options.remark_output:
        sys.stderr.write(text)
        return
    try:
        with open(options.remark_output, "a") as file:
            file.write(text)
    except OSError as reason:
        raise DSLRuntimeError(f"RemarkOutput({options.remark_output!r}): {reason}") from None
