"""Compiled code on disk, by content: a new process pays for tracing and no more.

An entry is named by a hash of all that its code depends on: the traced module with its source lines, the target's
fingerprint, the options, the versions of the tools and Kiln's own sources. An entry is written to a temporary file and
renamed, so readers see all of it or nothing; its checksum is verified, and what fails the check is compiled again.
Entries hold object code and JSON, nothing that is executed when read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import stat
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import settings
from .diagnostics import Span
from .log import logger
from .options import CompileOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..mlir import ir
    from .target import Executable, Target

LIMIT = 2 << 30
"""Bytes the directory may hold; past it, the entries used longest ago go."""
_MAGIC = b"KILN cache 1\n"
_SUFFIX = ".kiln"
_TRIM_EVERY = 64
_stores = 0


@dataclasses.dataclass
class Entry:
    """What is stored of an executable: facts that JSON can hold, and pieces of binary data."""

    facts: dict[str, Any]
    data: dict[str, bytes]


# --- compiling through the cache -------------------------------------------------------------------------------------


def compile_module(target: Target, module: ir.Module, entry: str, options: CompileOptions | None) -> Executable:
    """`target.compile`, or what an earlier process made of the same module. The module is changed."""
    # files and printed modules are effects of compiling, so whoever asks for them gets a compilation
    wanted = settings.dumped() or (options and options.kept()) or settings.get("CUTE_DSL_PRINT_IR")
    if settings.get("CUTE_DSL_DISABLE_FILE_CACHING") or wanted:
        return target.compile(module, entry, options)
    folder = directory()
    if folder is None:
        return target.compile(module, entry, options)
    name = key(target, module, entry, options)
    found = load(name, folder)
    if found is not None:
        try:
            return target.deserialize(found, module, entry, options)
        except Exception as reason:  # an entry is never a reason to fail
            logger().warning("cache entry %s cannot be used: %s", name, reason)
    executable = target.compile(module, entry, options)
    made = target.serialize(executable)
    if made is not None:
        store(name, made, folder)
    return executable


def keep(what: str, fingerprint: str, make: Callable[[], bytes]) -> bytes:
    """Object code that depends on Kiln's own sources and a fingerprint only: from the cache, or made and stored."""
    folder = None if settings.get("CUTE_DSL_DISABLE_FILE_CACHING") else directory()
    if folder is None:
        return make()
    facts = (what, fingerprint, sources_hash(), _versions())
    name = hashlib.sha256(_MAGIC + repr(facts).encode()).hexdigest()
    found = load(name, folder)
    if found is None:
        found = Entry({}, {"object": make()})
        store(name, found, folder)
    return found.data["object"]


def key(target: Target, module: ir.Module, entry: str, options: CompileOptions | None) -> str:
    """The name of the entry for a module."""
    digest = hashlib.sha256(_MAGIC)
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)  # a twentieth of the time of printing it
    facts = (target.fingerprint(options), (options or CompileOptions()).key(), entry, sources_hash(), _versions())
    for part in (repr(facts).encode(), bytecode.getvalue()):
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def sources_hash() -> str:
    """A hash of the sources that turn a module into code."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for room in ("base_dsl", "dialects", "targets"):
        for path in sorted((root / room).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    from importlib import metadata

    found: list[str] = []
    for name in ("torch-mlir", "llvmlite"):
        try:
            found.append(metadata.version(name))
        except metadata.PackageNotFoundError:
            found.append("unknown")
    return tuple(found)


def lazy_artifacts(
    target: Target, module: ir.Module, entry: str, options: CompileOptions | None
) -> Callable[[str], Any]:
    """A way to the artefacts of a module that came from the cache: they are made by compiling it when one is asked for."""
    kept = clone_module(module)

    @functools.lru_cache(maxsize=1)
    def compiled() -> Mapping[str, Any]:
        return target.compile(clone_module(kept), entry, options).artifacts

    return lambda name: compiled()[name]


def clone_module(module: ir.Module) -> ir.Module:
    """A copy of a module."""
    from ..mlir import context, ir

    with context(), ir.Location.unknown():
        copy = ir.Module.create()
        for op in module.body.operations:
            copy.body.append(op.operation.clone())
    return copy


# --- facts -----------------------------------------------------------------------------------------------------------


def encode_site(site: Any) -> dict[str, Any]:
    """A dataclass with source spans (`span`, `calls`) as JSON can hold it."""
    return dataclasses.asdict(site)


def decode_site(kind: type, facts: dict[str, Any]) -> Any:
    """The inverse of `encode_site` for a class."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    values["span"] = Span(**facts["span"]) if facts["span"] else None
    values["calls"] = tuple(Span(**call) for call in facts["calls"])
    return kind(**values)


# --- the directory ---------------------------------------------------------------------------------------------------


def directory() -> Path | None:
    """The cache's directory, made if need be; None where there can be none that is this user's alone."""
    path = Path(settings.get("CUTE_DSL_CACHE_DIR"))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        if found.st_uid != os.getuid():
            logger().warning("the cache directory %s belongs to another user: nothing is cached", path)
            return None
        if stat.S_IMODE(found.st_mode) & 0o022:  # whoever can write there could have this process run their code
            path.chmod(0o700)
    except OSError as reason:
        logger().warning("there is no cache directory: %s", reason)
        return None
    return path


def _path(name: str, folder: Path) -> Path:
    return folder / name[:2] / (name + _SUFFIX)


def load(name: str, folder: Path) -> Entry | None:
    """The entry of a name, or None; one that is damaged is removed."""
    path = _path(name, folder)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    entry = _decode(data)
    if entry is None:
        logger().warning("cache entry %s is damaged: it is removed", path)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return entry


def store(name: str, entry: Entry, folder: Path) -> None:
    """Write an entry; a disk that is full or read-only is no error."""
    global _stores
    path = _path(name, folder)
    temporary = ""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)  # mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(_encode(entry))
        os.replace(temporary, path)
    except OSError as reason:
        logger().warning("cache entry %s was not written: %s", path, reason)
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return
    if _stores % _TRIM_EVERY == 0:
        trim(folder)
    _stores += 1


def _encode(entry: Entry) -> bytes:
    sizes = [(name, len(data)) for name, data in entry.data.items()]
    head = json.dumps({"facts": entry.facts, "data": sizes}).encode()
    body = struct.pack("<Q", len(head)) + head + b"".join(entry.data.values())
    return _MAGIC + hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> Entry | None:
    start = len(_MAGIC) + 32
    body = data[start:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        return None
    (size,) = struct.unpack_from("<Q", body)
    head = json.loads(body[8 : 8 + size])
    pieces: dict[str, bytes] = {}
    at = 8 + size
    for name, length in head["data"]:
        pieces[name] = body[at : at + length]
        at += length
    return Entry(head["facts"], pieces)


def entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of the cache, left-over temporary ones too."""
    for sub in folder.glob("[0-9a-f][0-9a-f]"):
        with contextlib.suppress(OSError):
            for item in os.scandir(sub):
                with contextlib.suppress(OSError):
                    yield Path(item.path), item.stat()


def trim(folder: Path, limit: int = LIMIT) -> int:
    """Remove the entries used longest ago until the rest is within nine tenths of the limit; how many went."""
    found = sorted(entries(folder), key=lambda item: item[1].st_mtime)
    total = sum(status.st_size for _, status in found)
    removed = 0
    if total <= limit:
        return 0
    for path, status in found:
        if total <= limit * 0.9:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= status.st_size
            removed += 1
    return removed


def clear(folder: Path) -> int:
    """Remove every entry; how many there were."""
    count = 0
    for path, _ in list(entries(folder)):
        with contextlib.suppress(OSError):
            path.unlink()
            count += path.suffix == _SUFFIX
    return count
