"""What ptxas makes of PTX: registers, spills and instructions of a module."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from corpus import opcodes

STAND_IN = """#!/bin/sh
# A ptxas that assembles nothing: an ELF header without sections, so that compilations end with the PTX.
case "$1" in --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0;; esac
while [ $# -gt 1 ]; do [ "$1" = -o ] && head -c 64 /dev/zero > "$2"; shift; done
"""


def tool(name: str) -> str:
    """Return the path of a CUDA tool: of the wheel in this environment, or on `PATH`."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec else None) or ()
    found = [str(path) for folder in folders for path in sorted(Path(folder).glob(f"cu*/bin/{name}"))]
    path = found[-1] if found else shutil.which(name)
    if path is None:
        raise SystemExit(f"replay: {name} was not found: pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm")
    return path


@dataclasses.dataclass(frozen=True)
class MachineCode:
    """Statistics of a module's machine code: registers of each kernel, bytes of spills and stack, opcodes."""

    registers: tuple[int, ...]
    spills: int
    stack: int
    opcodes: dict[str, int]
    digest: str

    @property
    def instructions(self) -> int:
        return sum(self.opcodes.values())


def assemble(ptx: str, cache: Path) -> MachineCode | str:
    """Return the statistics of PTX, kept in a folder by its contents; or what ptxas says against it."""
    kept = cache / "sass" / f"{hashlib.sha256(ptx.encode()).hexdigest()[:24]}.json"
    if not kept.exists():
        made = _assemble(ptx)
        if isinstance(made, str):
            return made
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkstemp(dir=kept.parent)[1])
        part.write_text(json.dumps(dataclasses.asdict(made)))
        part.rename(kept)
    values = json.loads(kept.read_text())
    return MachineCode(**{**values, "registers": tuple(values["registers"])})


def _assemble(ptx: str) -> MachineCode | str:
    arch = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert arch is not None
    with tempfile.TemporaryDirectory() as place:
        source, cubin = Path(place, "m.ptx"), Path(place, "m.cubin")
        source.write_text(ptx)
        words = [tool("ptxas"), "-v", f"--gpu-name={arch[1]}", str(source), "-o", str(cubin)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode:
            return f"ptxas: {said.strip().splitlines()[0]}"
        words = [tool("nvdisasm"), "-c", str(cubin)]
        sass = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    memory = [tuple(map(int, found)) for found in _MEMORY.findall(said)]
    return MachineCode(
        tuple(map(int, re.findall(r"Used (\d+) registers", said))),
        sum(stores + loads for _, stores, loads in memory),
        sum(stack for stack, _, _ in memory),
        opcodes(sass),
        hashlib.sha256(sass.encode()).hexdigest()[:16],
    )


_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
