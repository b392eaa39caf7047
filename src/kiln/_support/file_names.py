"""Names of files whose bytes are no UTF-8, as MLIR and LLVM can keep them.

Python decodes such bytes to surrogates, which UTF-8 does not have. They become characters of private use and back.
"""

from __future__ import annotations

_SURROGATES = 0xD800
_STAND_INS = 0x10F000
_COUNT = 0x800


def to_utf8(name: str) -> str:
    """Return a text without surrogates that stands for a name."""
    return _shifted(name, _SURROGATES, _STAND_INS)


def from_utf8(text: str) -> str:
    """Return the name that a text of `to_utf8` stands for."""
    return _shifted(text, _STAND_INS, _SURROGATES)


def _shifted(text: str, old: int, new: int) -> str:
    if text.isascii():
        return text
    return "".join(chr(ord(c) - old + new) if old <= ord(c) < old + _COUNT else c for c in text)
