"""Object code of Kiln's own native libraries, kept beside its sources as Python keeps byte code there.

Making it takes longer than all else of a first compilation, and nothing of it depends on programs or users: packages
carry it (`tools/native_objects.py`), and elsewhere the process that first needs a library leaves it there, if it may
write. It is made for the processors of `COMMON`; on older ones, and where the folder cannot be written, the disk cache
is what keeps it. A file that other sources made, or that is not whole, is not used.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from typing import TYPE_CHECKING, NamedTuple

from ...base_dsl import cache, settings

if TYPE_CHECKING:
    from ...native import Library

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "__native__")

COMMON = {"x86_64": ("x86-64-v3", "avx avx2 bmi bmi2 f16c fma lzcnt movbe popcnt xsave"), "aarch64": ("generic", "lse")}
"""LLVM's name of the common processor of each architecture, and its features, which nearly all machines have."""

_CHECK = 32
_TRAILER_FORMAT = f"<Q{_CHECK}s"
"""How a file ends, after the data: the size of the data, and a hash. Tools that read object code skip it."""
_TRAILER = struct.calcsize(_TRAILER_FORMAT)
_EXPORTS = b"\nexports "
"""Before the names of what a library exports."""


class Kept(NamedTuple):
    """Stored object code of a library."""

    data: bytes
    exports: tuple[str, ...]


def kept(name: str, architecture: str) -> Kept | None:
    """Return the stored object code of a library for the common processor of an architecture, and its exports."""
    with contextlib.suppress(OSError):
        with open(_path(name, architecture), "rb") as file:
            size = file.seek(-_TRAILER, os.SEEK_END)
            length, check = struct.unpack(_TRAILER_FORMAT, file.read(_TRAILER))
            if length != size:  # a file that has grown may not fit into memory
                return None
            file.seek(0)
            body = file.read(size)
        if check == _check(name, architecture, body):
            data, _, names = body.rpartition(_EXPORTS)
            return Kept(data, tuple(names.decode().split()))
    return None


def keep(library: Library, architecture: str, data: bytes) -> None:
    """Store object code, whole or not at all; where that fails, it is made again next time."""
    if settings.get("CUTE_DSL_DISABLE_FILE_CACHING") or cache.sources_changed():
        return
    path = _path(library.name, architecture)
    body = data + _EXPORTS + " ".join(library.exports).encode()
    folder, file_name = os.path.split(path)
    temporary = os.path.join(folder, f".{file_name}.{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        try:
            with open(temporary, "wb") as file:
                file.write(body + struct.pack(_TRAILER_FORMAT, len(body), _check(library.name, architecture, body)))
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _path(name: str, architecture: str) -> str:
    return os.path.join(FOLDER, f"{name}.{architecture}.o")


def _check(name: str, architecture: str, data: bytes) -> bytes:
    """Return the hash of the sources and of the data that a file ends with."""
    facts = (name, architecture, cache.sources_hash())
    return cache.blake2b(repr(facts).encode() + data, digest_size=_CHECK).digest()
