"""Reads from machine code what a kernel needs and executes; no GPU is needed.

with kiln.testing.dry_run("sm_90a") as launches:
    main(x, y)
for profile in static_profile(launches):
    print(profile.kernel, profile.occupancy, profile.mix)
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base_dsl.diagnostics import DSLBaseError
from ...hardware import sass
from ...hardware.occupancy import Occupancy, occupancy
from ..core.source_lines import read_mlir
from ..inspect import outline
from .code_patterns import Pattern, patterns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ...hardware.architectures import Generation
    from ...hardware.devices import Device, Model


class Specific(NamedTuple):
    """Instructions that some architectures have: their names in SASS, and who runs them."""

    pattern: str
    runs_on: Callable[[Generation], bool]


SPECIFIC = {
    "WGMMA": Specific(r"[HQIB]GMMA\b", lambda generation: generation.number == 90),
    "tcgen05": Specific(r"UTC|LDTM|STTM", lambda generation: generation.tmem > 0),
    "TMA": Specific(r"UTMA|UBLK", lambda generation: generation.number >= 90),
}


@dataclasses.dataclass(frozen=True)
class LineCost:
    """The instructions of a source line, by class (`sass.CLASSES`)."""

    file: str
    line: int
    mix: dict[str, int]
    local_stores: int = 0
    local_loads: int = 0

    @property
    def instructions(self) -> int:
        """The number of instructions."""
        return sum(self.mix.values())


@dataclasses.dataclass(frozen=True)
class LoopCost:
    """A loop: its line, its depth, and the instructions of one iteration, with inner loops counted once."""

    file: str
    line: int
    depth: int
    mix: dict[str, int]

    @property
    def instructions(self) -> int:
        """The number of instructions."""
        return sum(self.mix.values())

    @property
    def mmas(self) -> int:
        """The number of MMA instructions."""
        return self.mix.get("tensor", 0)

    @property
    def per_mma(self) -> float | None:
        """Instructions per MMA instruction; None without any."""
        return self.instructions / self.mmas if self.mmas else None


@dataclasses.dataclass(frozen=True)
class StaticProfile:
    """A kernel as it was compiled and would be launched; sizes in bytes."""

    kernel: str
    arch: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    """Local memory of a thread."""
    static_smem: int
    dynamic_smem: int
    barriers: int
    launches: int = 1
    """The number of launches with this grid, block and cluster."""
    mix: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    lines: tuple[LineCost, ...] = ()
    """Costs of source lines, ordered by file and line."""
    loops: tuple[LoopCost, ...] = ()
    """Loops in the order of the code, without those that only wait."""
    loaded_at_a_time: int = 0
    """Bytes of global memory that a thread has in flight at most."""
    widths: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    """Instructions that load from or store to global memory, by the bytes of a thread, widest first."""
    copies: bool = False
    """Whether asynchronous copies fill shared memory."""
    tmem_columns: int = 0
    """Columns of tensor memory that the largest allocation takes, as far as known."""
    instructions: tuple[str, ...] = ()
    """What it executes that not all architectures have: names of `SPECIFIC`."""
    patterns: tuple[Pattern, ...] = ()
    """Patterns of its machine code that may cost time."""
    accumulators: int = 0
    """Accumulators that its tensor memory has room for; 0 without tensor memory, or if it is not known."""
    messages: tuple[str, ...] = ()
    """Messages of ptxas about the kernel."""
    unread: str = ""
    """Why the code is unknown."""

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return math.prod(self.block)

    @property
    def smem(self) -> int:
        """Shared memory of a CTA."""
        return self.static_smem + self.dynamic_smem

    @property
    def occupancy(self) -> Occupancy:
        """Occupancy on the architecture it was compiled for."""
        return self.occupancy_on(self.arch)

    def occupancy_on(self, architecture: str | Generation) -> Occupancy:
        """Return the occupancy on another architecture, where ptxas may use other registers."""
        used = self.registers, self.smem, self.barriers, self.tmem_columns
        return occupancy(architecture, self.threads, *used)

    def lacks(self, generation: Generation) -> str:
        """Return why the kernel cannot run on another architecture, however it is compiled; empty if it can."""
        for name in self.instructions:
            if not SPECIFIC[name].runs_on(generation):
                return f"no {name}"
        return "no clusters" if math.prod(self.cluster or (1,)) > generation.cluster else ""

    def waves(self, device: Device | Model) -> float:
        """Return how many times the grid fills the device; infinite if no CTA fits."""
        at_a_time = self.occupancy_on(device.generation).blocks * device.sm_count
        return math.prod(self.grid) / at_a_time if at_a_time else math.inf

    @property
    def bytes_in_flight(self) -> int:
        """The most bytes that an SM can have in flight: loads to registers, and shared memory that copies fill."""
        return self.occupancy.blocks * (self.threads * self.loaded_at_a_time + (self.smem if self.copies else 0))

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON, with the values that follow from it."""
        runs = self.occupancy
        return {
            **dataclasses.asdict(self),
            "blocks_per_sm": runs.blocks,
            "occupancy": runs.fraction,
            "limited_by": runs.limiter,
            "bytes_in_flight": self.bytes_in_flight,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> StaticProfile:
        """Return the profile of `to_json`'s result."""
        own = {field.name: data[field.name] for field in dataclasses.fields(StaticProfile) if field.name in data}
        own |= {name: tuple(own.get(name, ())) for name in ("grid", "block", "cluster", "instructions", "messages")}
        own["lines"] = tuple(LineCost(**each) for each in own.get("lines", ()))
        own["loops"] = tuple(LoopCost(**each) for each in own.get("loops", ()))
        own["patterns"] = tuple(Pattern(**each) for each in own.get("patterns", ()))
        return StaticProfile(**own)


def static_profile(launches: Iterable[Any]) -> list[StaticProfile]:
    """Return the profiles of a dry run's launches, in order; equal launches of a kernel are one."""
    by_kernel: dict[tuple[Any, ...], StaticProfile] = {}
    code: dict[int, Any] = {}
    for launch in launches:
        key = (launch.kernel, launch.arch, launch.grid, launch.block, launch.cluster, launch.smem, id(launch.artifacts))
        if key in by_kernel:
            by_kernel[key] = dataclasses.replace(by_kernel[key], launches=by_kernel[key].launches + 1)
            continue
        if id(launch.artifacts) not in code:
            code[id(launch.artifacts)] = _disassembled(launch.artifacts)
        by_kernel[key] = _profile(launch, code[id(launch.artifacts)])
    return list(by_kernel.values())


def calls_of(launches: Iterable[Any]) -> list[tuple[str, int, str, int]]:
    """Return lines of functions inlined into launched kernels, each with a line that called them, in order."""
    all_launches = list(launches)
    remarks = [remark for launch in all_launches for remark in launch.remarks if remark.kind == "resources"]
    bodies = {_body(remark.file, remark.line) for remark in remarks}
    texts = {id(launch.artifacts): launch.artifacts["mlir_located"] for launch in all_launches}
    pairs = {pair for text in texts.values() for pair in read_mlir(text).calls}

    def inside(place: tuple[str, int]) -> bool:
        return any(place[0] == file and first <= place[1] <= last for file, first, last in bodies)

    # A kernel's own lines, and those of Python functions it calls, are "called" by its launch: no line of the kernel.
    launched = {caller for line, caller in pairs if inside(line) and not inside(caller)}
    return sorted((*line, *caller) for line, caller in pairs if not inside(line) and caller not in launched)


def _body(file: str, line: int) -> tuple[str, int, int]:
    """Return the lines of the function that begins at a line or has it among its decorators; else the line itself."""
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        for node in ast.walk(ast.parse(Path(file).read_bytes())):
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if first <= line <= node.body[0].lineno and node.end_lineno:
                    return file, first, node.end_lineno
    return file, line, line


def _disassembled(artifacts: Mapping[str, Any]) -> dict[str, sass.Code] | str:
    """Return the code of kernels by name, or why there is none."""
    try:
        text = artifacts.get("sass")
    except DSLBaseError as reason:
        return str(reason)
    missing = "there is no machine code: ptxas was not found (pip install nvidia-cuda-nvcc)"
    return sass.kernels(text) if text else missing


def _profile(launch: Any, read: dict[str, sass.Code] | str) -> StaticProfile:
    used = launch.resources
    code = read.get(launch.kernel) if isinstance(read, dict) else None
    fields: dict[str, Any] = {"unread": read} if isinstance(read, str) else {}
    if code is None:
        fields.setdefault("unread", "the kernel is not in the code")
    else:
        loops = [loop for loop in code.loops() if not loop.only_waits]
        fields |= {
            "mix": code.mix(),
            "lines": tuple(
                _line(*place, instructions) for place, instructions in sorted(code.by_line().items()) if place[0]
            ),
            "loops": tuple(LoopCost(*loop.place, loop.depth, sass.mix(loop.instructions)) for loop in loops),
            "loaded_at_a_time": code.bytes_loaded_at_a_time(),
            "widths": code.widths(),
            "instructions": tuple(
                name for name, one in SPECIFIC.items() if any(re.match(one.pattern, i.name) for i in code.instructions)
            ),
            "patterns": patterns(code),
            "copies": any(one.name.startswith(("LDGSTS", "UTMALDG", "UBLKCP.S.G")) for one in code.instructions),
        }
    return StaticProfile(
        launch.kernel,
        launch.arch,
        tuple(launch.grid),
        tuple(launch.block),
        tuple(launch.cluster),
        used.registers,
        used.spill_stores,
        used.spill_loads,
        used.stack,
        used.static_smem,
        launch.smem,
        used.barriers,
        messages=tuple(used.messages),
        tmem_columns=used.tmem_columns,
        accumulators=_accumulators(launch.artifacts["mlir_located"]) if used.tmem_columns else 0,
        **fields,
    )


def _accumulators(mlir: str) -> int:
    """Return how many accumulators the largest allocation of tensor memory has room for; 0 if it is not known."""
    columns, wide = outline.tensor_memory(read_mlir(mlir))
    return columns // wide if wide else 0


def _line(file: str, line: int, instructions: list[sass.Instruction]) -> LineCost:
    stores = sum(one.name.startswith("STL") for one in instructions)
    loads = sum(one.name.startswith("LDL") for one in instructions)
    return LineCost(file, line, sass.mix(instructions), stores, loads)
