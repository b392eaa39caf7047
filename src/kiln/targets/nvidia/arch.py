"""GPU architectures: which one to compile for, and the PTX version that suits it."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...base_dsl.options import CompileOptions

DEFAULT = "sm_100a"
"""Compiled for where there is no GPU and nothing was chosen, as users of CuTe know it."""


@dataclasses.dataclass(frozen=True)
class Arch:
    """An architecture by its name, for example `sm_90a`."""

    name: str

    @functools.cached_property
    def number(self) -> int:
        """90 for `sm_90a`."""
        return int(re.sub(r"\D", "", self.name))

    @property
    def specific(self) -> bool:
        """Whether instructions of this architecture alone (or its family alone) may be used."""
        return self.name[-1] in "af"

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, (9, 0) for `sm_90a`."""
        return divmod(self.number, 10)

    @property
    def smem_per_multiprocessor(self) -> int:
        """Bytes of shared memory a multiprocessor has at most."""
        return {80: 164, 87: 164, 86: 100, 89: 100, 120: 100, 121: 100}.get(self.number, 228) << 10

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a device of this compute capability runs code made for the architecture."""
        major, minor = self.capability
        if self.name.endswith("a"):
            return capability == (major, minor)
        return capability[0] == major and capability[1] >= minor


# CUDA release -> newest PTX version its ptxas takes
_PTX_OF_CUDA = {
    (12, 0): 80, (12, 1): 81, (12, 2): 82, (12, 3): 83, (12, 4): 84, (12, 5): 85, (12, 6): 85, (12, 7): 86,
    (12, 8): 87, (12, 9): 88, (13, 0): 90,
}  # fmt: skip
_NEWEST_PTX = 88
"""Nothing Kiln emits needs more, except what `_NEEDS` says."""
_NEEDS = {101: 86, 103: 88, 110: 90, 120: 87, 121: 88}


def ptx_version(arch: Arch, cuda: str | None) -> int:
    """The PTX version to write, 88 for 8.8: what the tool of a CUDA release takes, as far as Kiln has use for it."""
    supported = _NEWEST_PTX
    if cuda:
        release = tuple(int(part) for part in cuda.split(".")[:2])
        supported = max((v for r, v in _PTX_OF_CUDA.items() if r <= release), default=80)
    return max(min(_NEWEST_PTX, supported), _NEEDS.get(arch.number, 80))


def of_capability(major: int, minor: int) -> Arch:
    """The architecture to compile for to use all of a device."""
    number = 10 * major + minor
    return Arch(f"sm_{number}a" if number >= 90 else f"sm_{number}")


def chosen(options: CompileOptions) -> Arch:
    """The architecture of a compilation: `--gpu-arch`, `CUTE_DSL_ARCH`, the current GPU's, or `DEFAULT`."""
    if options.gpu_arch:
        return Arch(options.gpu_arch)
    from ...hardware import driver

    return of_capability(*driver.capability()) if driver.available() else Arch(DEFAULT)
