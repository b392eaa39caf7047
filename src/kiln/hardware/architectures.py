"""GPU architectures: the generations of GPUs with their limits, and the names code is compiled for.

A new architecture is one row of `GENERATIONS`. Limits that all architectures share are in `limits.py`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..base_dsl.diagnostics import DSLRuntimeError
from . import limits

__all__ = ["DEFAULT", "GENERATIONS", "Arch", "Architecture", "Generation", "generation_of", "of_capability", "refusal"]


class Generation(NamedTuple):
    """GPUs of one compute capability; sizes in bytes."""

    major: int
    minor: int
    suffixes: str
    """What its names may end in: "a" (code for it alone), "f" (code for its family)."""
    ptx: int
    """The first version of PTX that knows it, 88 for 8.8."""
    smem: int
    """Shared memory of an SM."""
    threads: int = 2048
    """Threads of an SM."""
    blocks: int = 32
    """CTAs of an SM."""
    cluster: int = 1
    """The most blocks of a cluster; more than `limits.PORTABLE_CLUSTER` needs a non-portable launch."""
    tmem_columns: int = 0
    """Columns of tensor memory of an SM, each `limits.TMEM_LANES` words of 32 bits; 0 if it has none."""
    oversized_smem: int = 0
    """Shared memory of an SM for launches that allow it to take most of the L1 cache; 0 where none can."""

    kept_smem = limits.KEPT_SMEM
    """Shared memory of each block that the hardware keeps for itself."""
    threads_per_block = limits.THREADS_PER_BLOCK
    registers = limits.REGISTERS
    """Registers of 32 bits of an SM, and of a CTA."""
    warp = limits.WARP

    @property
    def number(self) -> int:
        """90 for compute capability 9.0."""
        return 10 * self.major + self.minor

    @property
    def smem_per_block(self) -> int:
        """Shared memory one block can have."""
        return max(self.smem, self.oversized_smem) - self.kept_smem

    @property
    def smem_optin(self) -> int:
        """Shared memory one block can have without oversized shared memory."""
        return self.smem - self.kept_smem

    @property
    def tmem(self) -> int:
        """Tensor memory of an SM."""
        return 4 * limits.TMEM_LANES * self.tmem_columns


_KIB = 1 << 10

DEFAULT = "sm_90a"
"""The default architecture without a GPU: the newest whose instructions every target has."""

GENERATIONS = (
    Generation(8, 0, "", 70, 164 * _KIB),
    Generation(8, 6, "", 71, 100 * _KIB, 1536, 16),
    Generation(8, 7, "", 74, 164 * _KIB, 1536, 16),
    Generation(8, 9, "", 78, 100 * _KIB, 1536, 24),
    Generation(9, 0, "a", 80, 228 * _KIB, cluster=16),
    Generation(10, 0, "af", 86, 228 * _KIB, cluster=16, tmem_columns=512),
    Generation(10, 3, "af", 88, 228 * _KIB, cluster=16, tmem_columns=512),
    Generation(10, 7, "af", 94, 228 * _KIB, cluster=16, tmem_columns=512, oversized_smem=328 * _KIB),
    Generation(11, 0, "af", 90, 228 * _KIB, 1536, 24, cluster=8, tmem_columns=512),
    Generation(12, 0, "af", 87, 100 * _KIB, 1536, 24, cluster=8),
    Generation(12, 1, "af", 88, 100 * _KIB, 1536, 24, cluster=8),
)
"""All that Kiln compiles for, oldest first."""

RENAMED = {(10, 1): (11, 0)}
"""Compute capabilities with two numbers: Jetson Thor was sm_101 before CUDA 13, whose ptxas knows it as sm_110 only."""

_BY_CAPABILITY = {(row.major, row.minor): row for row in GENERATIONS}


class Architecture(enum.Enum):
    """What code is compiled for, by its name; `Arch` has the members. The value is compute capability and suffix.

    They compare by capability, then by suffix: sm_100 < sm_100a < sm_100f < sm_103.
    """

    def __lt__(self, other: object) -> bool:
        return self.value < other.value if isinstance(other, Architecture) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.value <= other.value if isinstance(other, Architecture) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.value > other.value if isinstance(other, Architecture) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.value >= other.value if isinstance(other, Architecture) else NotImplemented

    @property
    def major(self) -> int:
        """9 for `sm_90a`."""
        return self.value[0]

    @property
    def minor(self) -> int:
        """0 for `sm_90a`."""
        return self.value[1]

    @property
    def suffix(self) -> str:
        """The suffix of its number: "a" (this architecture alone), "f" (its family), or nothing."""
        return self.value[2]

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, (9, 0) for `sm_90a`."""
        return self.value[:2]

    @property
    def number(self) -> int:
        """90 for `sm_90a`."""
        return 10 * self.value[0] + self.value[1]

    @property
    def generation(self) -> Generation:
        """The GPUs it names, with their limits."""
        return _BY_CAPABILITY[self.value[:2]]

    def to_string(self) -> str:
        """Return the name of the architecture."""
        return self.name

    def is_family_of(self, arch: Any) -> bool:
        """Return whether code for this architecture's features also knows those of the family of `arch`."""
        return self.major == arch.major and self.minor >= arch.minor

    def can_run_binary_built_for(self, target: Any) -> bool:
        """Return whether a GPU of this architecture runs code built for `target`."""
        return target.runs_on(self.capability)

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Return whether a GPU of this compute capability runs code built for the architecture."""
        if self.suffix == "a":
            return capability == self.capability
        return capability[0] == self.major and capability[1] >= self.minor

    @classmethod
    def from_string(cls, arch_str: str) -> Any:
        """Return the architecture of a name."""
        try:
            return cls[arch_str.strip().lower()]
        except KeyError:
            names = ", ".join(cls.__members__)
            raise ValueError(f"{arch_str!r} is not an architecture Kiln knows; there are: {names}") from None

    @classmethod
    def filter(cls, criterion: Callable[[Any], bool]) -> list[Any]:
        """Return the architectures for which a function is true."""
        return [arch for arch in cls if criterion(arch)]

    @classmethod
    def AmpereArchs(cls) -> tuple[Any, ...]:
        """Compute capability 8.0 to 8.7."""
        return tuple(arch for arch in cls if arch.major == 8 and arch.minor < 9)

    @classmethod
    def AdaArchs(cls) -> tuple[Any, ...]:
        """Compute capability 8.9."""
        return tuple(arch for arch in cls if arch.capability == (8, 9))

    @classmethod
    def HopperArchs(cls) -> tuple[Any, ...]:
        """Compute capability 9."""
        return tuple(arch for arch in cls if arch.major == 9)

    @classmethod
    def BlackwellArchs(cls) -> tuple[Any, ...]:
        """Compute capability 10 to 12, but 10.7."""
        return tuple(arch for arch in cls if 10 <= arch.major <= 12 and arch.capability != (10, 7))

    @classmethod
    def RubinArchs(cls) -> tuple[Any, ...]:
        """Compute capability 10.7."""
        return tuple(arch for arch in cls if arch.capability == (10, 7))


Arch: Any = Architecture(
    "Arch",  # pyright: ignore[reportCallIssue]
    {
        f"sm_{row.number}{suffix}": (row.major, row.minor, suffix)
        for row in GENERATIONS
        for suffix in ("", *row.suffixes)
    }
    | {
        f"sm_{major}{minor}{suffix}": (*new, suffix)
        for (major, minor), new in RENAMED.items()
        for suffix in ("", *_BY_CAPABILITY[new].suffixes)
    },
    module=__name__,
)
Arch.__doc__ = "An architecture to compile for: `Arch.sm_90a`, `Arch['sm_90a']`. `Arch.sm_101a` is `Arch.sm_110a`."


def generation_of(name: str) -> Generation:
    """Return the generation of a name such as "sm_90" or "compute_90a".

    An unknown one gets the limits of the next older generation.
    """
    named = re.fullmatch(r"(?:sm_?|compute_)?(\d+)(\d)[af]?", name.strip().lower())
    if named is None:
        raise ValueError(f"{name!r} is not a GPU architecture: expected a name such as 'sm_90'")
    asked = int(named[1]), int(named[2])
    asked = RENAMED.get(asked, asked)
    older = [row for row in GENERATIONS if (row.major, row.minor) <= asked]
    if not older:
        first = GENERATIONS[0].number
        raise ValueError(f"{name} is older than sm_{first}, the first architecture Kiln knows")
    return older[-1]._replace(major=asked[0], minor=asked[1])


def decoded_needs(text: str) -> tuple[Generation, limits.Needs]:
    """Return the architecture and the needs of a kernel that `Needs.encoded` wrote."""
    import json

    (major, minor), *fields = json.loads(text)
    needs = limits.Needs(*fields)
    return generation_of(f"sm_{major}{minor}"), needs._replace(pieces=tuple(map(tuple, needs.pieces)))


def meant(name: str) -> str:
    """Return a hint for a name that is no architecture: the newest known one that is not newer."""
    names = f"there are {', '.join(Arch.__members__)}"
    named = re.fullmatch(r"(?:sm|compute)?_?(\d+)([a-z]?)", name.strip().lower())
    if named is None:
        return names
    number = int(named[1])
    older = [arch for arch in Arch if arch.number <= number]
    if not older:
        return f"the oldest is {next(iter(Arch)).name}; {names}"
    like = [arch for arch in older if arch.number == older[-1].number]
    plain, *specific = like
    nearest = next((arch for arch in specific if named[2]), plain)
    if plain.number == number:
        return f"did you mean {nearest.name}?"
    return f"the nearest before it is {nearest.name}; {names}"


def of_capability(major: int, minor: int) -> Architecture:
    """Return the architecture that uses all features of a GPU; for an unknown newer GPU, the best that it can run."""
    compatible = [arch for arch in Arch if arch.suffix != "f" and arch.runs_on((major, minor))]
    if not compatible:
        raise DSLRuntimeError(
            f"Kiln knows no architecture whose code runs on a GPU of compute capability {major}.{minor}; there are: "
            + ", ".join(Arch.__members__),
            hint='run on the CPU: kiln.target("cpu") or KILN_TARGET=cpu; to compile only, name one with --gpu-arch',
        )
    return compatible[-1]


def refusal(requirement: str, capability: tuple[int, int]) -> str:
    """Return why a GPU does not meet a requirement such as "sm_80+", "sm_90a" or "sm_100a, sm_103a"; "" if it does.

    A name means the GPUs that run code built for it, and `+` all newer ones, too: sm_100a is not sm_120a, though both
    are Blackwell.
    """
    names = [name for name in re.split(r"[,\s]+", requirement.strip().lower()) if name]
    if not names:
        return ""
    for name in names:
        least = Arch.__members__.get(name.removesuffix("+"))
        if least is None:
            raise ValueError(f'{name!r} is no architecture; write "sm_80+", "sm_90a" or "sm_100a, sm_103a"')
        if (capability >= least.capability) if name.endswith("+") else least.runs_on(capability):
            return ""
    here = f"sm_{capability[0]}{capability[1]}"
    return f"needs {' or '.join(names)}, and this GPU is {here}"
