"""Object code of Kiln's own native libraries, kept beside its sources as Python keeps byte code there.

Making it takes longer than all else of a first compilation, and nothing of it depends on programs or users: packages carry it
(`tools/native_objects.py`), and elsewhere the process that first needs a library leaves it there, if it may write. It is made for
the processors of `COMMON`; on older ones, and where the folder cannot be written, the disk cache is what keeps it. A file that
other sources made, or that is not whole, is not used.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ...base_dsl import cache, settings

if TYPE_CHECKING:
    from ...native import Library

FOLDER = Path(__file__).parents[2] / "__native__"

COMMON = {
    "x86_64": ("x86-64-v3", "avx avx2 bmi bmi2 f16c fma lzcnt movbe popcnt xsave"),
    "aarch64": ("generic", "lse"),
}
"""By architecture, LLVM's name of a processor, and the features that tell its likes: nearly all machines have them."""

_CHECK = 32


def kept(library: Library, architecture: str) -> bytes | None:
    """The object code of a library for the common processor of an architecture, if it is there."""
    with contextlib.suppress(OSError):
        data = _path(library, architecture).read_bytes()
        if data[-_CHECK:] == _check(library, architecture, data[:-_CHECK]):
            return data[:-_CHECK]
    return None


def keep(library: Library, architecture: str, data: bytes) -> None:
    """Leave it there, whole or not at all; where that cannot be, it is made anew next time."""
    if settings.get("CUTE_DSL_DISABLE_FILE_CACHING") or cache.sources_changed():
        return
    path = _path(library, architecture)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        try:
            temporary.write_bytes(data + _check(library, architecture, data))
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _path(library: Library, architecture: str) -> Path:
    return FOLDER / f"{library.name}.{architecture}.o"


def _check(library: Library, architecture: str, data: bytes) -> bytes:
    """The end of a file, which tools that read object code pass over: of what the rest was made, and that it is whole."""
    facts = (library.name, architecture, cache.sources_hash())
    return cache.blake2b(repr(facts).encode() + data, digest_size=_CHECK).digest()
