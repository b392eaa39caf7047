# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
"""Swizzles: permutations of offsets that spread the rows of a tile over the banks of shared memory."""

from __future__ import annotations

from typing import Any

from .leaf import LayoutError, get_divisibility

__all__ = ["Swizzle", "make_swizzle"]


class Swizzle:
    """``S<b,m,s>``: bits ``[m, m+b)`` of an offset become their xor with the ``b`` bits that lie ``s`` above.

    The lowest ``m`` bits stay in place. A negative ``s`` takes the bits from below instead. It is its own
    inverse. Applies to Python ints and to dynamic offsets. Immutable.
    """

    __kiln_immutable__ = True
    __slots__ = ("_source_mask", "_target_mask", "num_base", "num_bits", "num_shift")

    num_bits: int
    num_base: int
    num_shift: int
    _source_mask: int
    _target_mask: int

    def __init__(self, bbits: int, mbase: int, sshift: int) -> None:
        if bbits < 0 or mbase < 0:
            raise LayoutError(f"S<b,m,s> needs b >= 0 and m >= 0, but got S<{bbits},{mbase},{sshift}>")
        if abs(sshift) < bbits:
            raise LayoutError(
                f"S<b,m,s> needs |s| >= b so that the two groups of bits do not overlap, but got "
                f"S<{bbits},{mbase},{sshift}>",
                hint=f"the shift is at least {bbits} here; rows of 128 bytes take S<3,4,3> on bytes, S<3,3,3> on f16",
            )
        bits = (1 << bbits) - 1
        put = object.__setattr__
        put(self, "num_bits", bbits)
        put(self, "num_base", mbase)
        put(self, "num_shift", sshift)
        put(self, "_source_mask", bits << (mbase + max(0, sshift)))
        put(self, "_target_mask", bits << (mbase + max(0, -sshift)))

    @classmethod
    def from_name(cls, name: str) -> Swizzle:
        """Return the swizzle of byte addresses that TMA has under a name: `none`, `s32b`, `s64b` or `s128b`."""
        bits = {"none": 0, "s32b": 1, "s64b": 2, "s128b": 3}
        if name not in bits:
            raise LayoutError(f"a swizzle is named {name!r}: {', '.join(bits)}")
        return cls(bits[name], 4, 3)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Swizzle cannot be changed")

    def __call__(self, offset: Any) -> Any:
        """Return the swizzled offset. Nothing is emitted where divisibility proves that no source bit is set."""
        if isinstance(offset, int):
            return self._apply(offset)
        # A multiple of a power of two above the source bits keeps them all zero.
        div = get_divisibility(offset)
        lowest_bit = div & -div
        if lowest_bit > self._source_mask or self.num_bits == 0:
            return offset
        swizzled = self._apply(offset)
        assume = getattr(swizzled, "_assume", None)
        if assume is None:
            return swizzled
        # The bits below the targets stay as they are, and so does the sign.
        return assume(nonneg=offset.nonneg, divisibility=min(lowest_bit, self._target_mask & -self._target_mask))

    def _apply(self, offset: Any) -> Any:
        source = offset & self._source_mask
        return offset ^ (source >> self.num_shift if self.num_shift >= 0 else source << -self.num_shift)

    @property
    def source_mask(self) -> int:
        """The bits that are read: the ones xored into the target."""
        return self._source_mask

    @property
    def target_mask(self) -> int:
        """The bits that change."""
        return self._target_mask

    @property
    def type(self) -> str:
        """The type as it is printed in the intermediate representation."""
        return f'!cute.swizzle<"{self}">'

    @property
    def period(self) -> int:
        """Offsets that differ by a multiple of it are swizzled alike: ``S(x + period) == S(x) + period``."""
        return 1 << (self.num_bits + self.num_base + abs(self.num_shift))

    def is_static(self) -> bool:
        """Return True: a swizzle has no dynamic part."""
        return True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Swizzle):
            return NotImplemented
        return (self.num_bits, self.num_base, self.num_shift) == (other.num_bits, other.num_base, other.num_shift)

    def __hash__(self) -> int:
        return hash((Swizzle, self.num_bits, self.num_base, self.num_shift))

    def __repr__(self) -> str:
        return f"S<{self.num_bits},{self.num_base},{self.num_shift}>"


def make_swizzle(b: int, m: int, s: int, *, loc: object = None, ip: object = None) -> Swizzle:
    """Return the swizzle ``S<b,m,s>``, which XORs bits of an offset so that rows of a tile fall into different banks.

    Args:
        b: how many bits change.
        m: how many low bits stay: ``2**m`` elements remain contiguous.
        s: how far above the changed bits those lie that they are XORed with; negative for below.
    """
    return Swizzle(b, m, s)


def swizzle_from_masks(source: int, target: int) -> Swizzle:
    """Return the swizzle that xors the bits of ``source`` into those of ``target``.

    Raises LayoutError unless both are runs of equally many adjacent bits.
    """
    if source == 0 and target == 0:
        return Swizzle(0, 0, 0)
    low_source = source & -source
    low_target = target & -target
    if source <= 0 or target <= 0 or source // low_source != target // low_target:
        raise LayoutError(f"no swizzle moves the bits {source:#b} onto the bits {target:#b}: the two runs differ")
    run = source // low_source
    if run & (run + 1):
        raise LayoutError(f"no swizzle moves the bits {source:#b}: they are not adjacent")
    from_bit = low_source.bit_length() - 1
    to_bit = low_target.bit_length() - 1
    return Swizzle(run.bit_length(), min(from_bit, to_bit), from_bit - to_bit)


def upcast_swizzle(swizzle: Swizzle, factor: int) -> Swizzle:
    """Return the swizzle on offsets counted in elements ``factor`` (a power of two) times as wide."""
    shift = _log2(factor)
    base = swizzle.num_base - shift
    if base >= 0:
        return Swizzle(swizzle.num_bits, base, swizzle.num_shift)
    return Swizzle(max(swizzle.num_bits + base, 0), 0, swizzle.num_shift)


def downcast_swizzle(swizzle: Swizzle, factor: int) -> Swizzle:
    """Return the swizzle on offsets counted in elements ``factor`` (a power of two) times as narrow."""
    return Swizzle(swizzle.num_bits, swizzle.num_base + _log2(factor), swizzle.num_shift)


def _log2(factor: int) -> int:
    if factor <= 0 or factor & (factor - 1):
        raise LayoutError(f"a swizzle can be recast by powers of two only, but the element width changes by {factor}")
    return factor.bit_length() - 1
