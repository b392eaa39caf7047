"""GPU architectures as programs compare them: `Arch.sm_90a`, in the order of the hardware."""

from __future__ import annotations

import contextlib
import enum
import re
import threading
from typing import TYPE_CHECKING, Any

from .settings import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Arch"]


def _order(name: str) -> tuple[int, int, str]:
    number, suffix = re.fullmatch(r"sm_(\d+)([af]?)", name).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return (*divmod(int(number), 10), suffix)


class _Ordered(enum.Enum):
    """Architectures compare by capability, then by suffix: sm_100 < sm_100a < sm_100f < sm_103."""

    def __lt__(self, other: Any) -> bool:
        return self.value < other.value if isinstance(other, type(self)) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return self.value <= other.value if isinstance(other, type(self)) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return self.value > other.value if isinstance(other, type(self)) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return self.value >= other.value if isinstance(other, type(self)) else NotImplemented

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
        """What follows the number: "a" (this architecture alone), "f" (its family), or nothing."""
        return self.value[2]

    def to_string(self) -> str:
        """Its name."""
        return self.name

    def is_family_of(self, arch: Any) -> bool:
        """Whether code for this architecture's features also knows those of the family of `arch`."""
        return self.major == arch.major and self.minor >= arch.minor

    def can_run_binary_built_for(self, target: Any) -> bool:
        """Whether a GPU of this architecture runs code built for `target`."""
        if target.suffix == "a":
            return self.value[:2] == target.value[:2]
        return self.is_family_of(target)

    @classmethod
    def from_string(cls, arch_str: str) -> Any:
        """The architecture of a name."""
        try:
            return cls[arch_str.strip().lower()]
        except KeyError:
            known = ", ".join(cls.__members__)
            raise ValueError(f"{arch_str!r} is not an architecture Kiln knows; there are: {known}") from None

    @classmethod
    def filter(cls, criterion: Callable[[Any], bool]) -> list[Any]:
        """The architectures for which a function is true."""
        return [arch for arch in cls if criterion(arch)]

    @classmethod
    def AmpereArchs(cls) -> tuple[Any, ...]:
        """Compute capability 8.0 to 8.7."""
        return tuple(arch for arch in cls if arch.major == 8 and arch.minor < 9)

    @classmethod
    def AdaArchs(cls) -> tuple[Any, ...]:
        """Compute capability 8.9."""
        return tuple(arch for arch in cls if (arch.major, arch.minor) == (8, 9))

    @classmethod
    def HopperArchs(cls) -> tuple[Any, ...]:
        """Compute capability 9."""
        return tuple(arch for arch in cls if arch.major == 9)

    @classmethod
    def BlackwellArchs(cls) -> tuple[Any, ...]:
        """Compute capability 10 to 12, but 10.7."""
        return tuple(arch for arch in cls if 10 <= arch.major <= 12 and (arch.major, arch.minor) != (10, 7))

    @classmethod
    def RubinArchs(cls) -> tuple[Any, ...]:
        """Compute capability 10.7."""
        return tuple(arch for arch in cls if (arch.major, arch.minor) == (10, 7))


Arch: Any = _Ordered("Arch", {name: _order(name) for name in ARCHITECTURES}, module=__name__)  # pyright: ignore[reportCallIssue]
"""The architectures Kiln compiles for."""


# --- the one in force ------------------------------------------------------------------------------------------------


class _Chosen(threading.local):
    name: str = ""


_chosen = _Chosen()


@contextlib.contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """While open, this thread compiles for an architecture; empty for no choice."""
    before, _chosen.name = _chosen.name, name or _chosen.name
    try:
        yield
    finally:
        _chosen.name = before


def current() -> Any:
    """What is compiled for: the option's architecture, `CUTE_DSL_ARCH`'s, or that of the target in force."""
    from . import settings
    from .target import get_target

    return Arch[_chosen.name or settings.get("CUTE_DSL_ARCH") or get_target().architecture()]
