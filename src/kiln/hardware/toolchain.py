"""Finds ptxas and nvdisasm.

`KILN_PTXAS` and `KILN_NVDISASM` come first, then the wheels of this environment, then `CUDA_HOME`, then `PATH`.

Wheels come first since they are what the project pins and tests with, and what a user can change without being root.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..base_dsl import settings
from ..base_dsl.diagnostics import DSLRuntimeError

TOOLS = {"ptxas": ("bin/ptxas", "nvidia-cuda-nvcc"), "nvdisasm": ("bin/nvdisasm", "nvidia-cuda-nvdisasm")}
"""Each tool's place below a CUDA root, and the distribution whose wheel holds it."""


PTX_OF_CUDA = {
    (12, 0): 80,
    (12, 1): 81,
    (12, 2): 82,
    (12, 3): 83,
    (12, 4): 84,
    (12, 5): 85,
    (12, 6): 85,
    (12, 7): 86,
    (12, 8): 87,
    (12, 9): 88,
    (13, 0): 90,
    (13, 1): 91,
    (13, 2): 92,
    (13, 3): 93,
    (13, 4): 94,
}
"""The newest PTX version that ptxas of a CUDA release takes, 88 for 8.8."""


def newest_ptx_of(cuda: str) -> int:
    """Return the newest PTX version that ptxas of a CUDA release such as "13.0.88" takes."""
    release = tuple(int(part) for part in cuda.split(".")[:2])
    return max((version for cuda_release, version in PTX_OF_CUDA.items() if cuda_release <= release), default=80)


@dataclass(frozen=True)
class Tool:
    """A tool that was found. `origin` says where: "wheel", the environment variable, or "PATH"."""

    name: str
    path: Path
    origin: str

    def version(self) -> str | None:
        """Return what the tool says of itself, as in "13.0.88"; None if unknown."""
        try:
            done = subprocess.run([self.path, "--version"], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r"V(\d+(?:\.\d+)+)", done.stdout)
        return match.group(1) if match else None


def find(name: str) -> Tool | None:
    """Return the first usable copy of a tool of `TOOLS`, or None."""
    place, _ = TOOLS[name]
    variable = f"KILN_{name.upper()}"
    if chosen := settings.get(variable):
        if os.access(chosen, os.X_OK) and os.path.isfile(chosen):
            return Tool(name, Path(chosen), variable)
        raise DSLRuntimeError(f"{variable} is {chosen!r}, which is no program that can be run")
    for root, origin in _roots():
        path = root / place
        if path.is_file() and os.access(path, os.X_OK):
            return Tool(name, path, origin)
    if on_path := shutil.which(name):
        return Tool(name, Path(on_path), "PATH")
    return None


def _roots() -> Iterator[tuple[Path, str]]:
    """CUDA roots in order of preference, each with the name of its origin."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        # nvidia/cu13, from CUDA 13 on. Numeric order: cu9 comes after cu13.
        roots = [root for root in Path(folder).glob("cu*") if root.name[2:].isdigit()]
        for root in sorted(roots, key=lambda root: int(root.name[2:]), reverse=True):
            yield root, "wheel"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            yield Path(value), variable
    # A toolkit one of whose programs is on PATH holds the others too.
    for program in ("ptxas", "nvcc"):
        if on_path := shutil.which(program):
            yield Path(on_path).resolve().parent.parent, "PATH"


def libdevice() -> Path | None:
    """Return the path of libdevice, CUDA's mathematical functions as LLVM bitcode; None if there is none."""
    places = (root / "nvvm/libdevice/libdevice.10.bc" for root, _ in _roots())
    return next((path for path in places if path.is_file()), None)
