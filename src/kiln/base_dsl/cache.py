"""The disk cache of compiled code, by content: a new process pays for tracing only.

An entry is named by a hash of all that its code depends on: the traced module with its source lines, the target's
fingerprint, the options, the versions of the tools and Kiln's own sources. An entry is written to a temporary file and
renamed, so readers see all of it or nothing; its checksum, which its name is part of, is verified, and what fails the
check is compiled again. So is an entry that this user does not own or that somebody else could have written;
`cache_folder` checks the folder in the same way. Entries hold object code, byte code of rewritten functions and JSON;
reading one executes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import os
import stat
import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .bindings import context, ir

try:
    from _blake2 import blake2b  # what `hashlib` has, without OpenSSL (4 ms)
except ImportError:
    from hashlib import blake2b

from . import kernel_trace, settings
from .cache_folder import directory, is_ours, say_once
from .compiler import watchers
from .diagnostics import Span
from .log import logger
from .options import CompileOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .target import Executable, Target

Loaded = TypeVar("Loaded")

LIMIT = 2 << 30
"""The bytes the directory may hold; past it, the least recently used entries are removed."""
_MAGIC = b"KILN cache 4\n"
_HEAD = len(_MAGIC) + 8 + 32
"""The bytes before the body of an entry: the magic, the body's size, and a checksum."""
_SUFFIX = ".kiln"
_TEMPORARY = ".kiln-"
"""The prefix of entries that are being written."""
_WRITING = 3600
"""The seconds after which a temporary file counts as left behind."""
_TRIM_EVERY = 64
_stores = 0


class Entry(NamedTuple):
    """The stored form of an executable: facts that JSON can hold, and pieces of binary data."""

    facts: dict[str, Any]
    data: dict[str, bytes]


compilations: int = 0
"""The number of modules this process has compiled or loaded: timed code must not add to it."""


def compile_module(target: Target, module: ir.Module, entry: str, options: CompileOptions | None) -> Executable:
    """Return the executable of a module, compiled by the target or by an earlier process. The module is changed."""
    global compilations
    compilations += 1
    # files and printed modules are effects of compiling, so whoever asks for them gets a compilation
    if watchers:
        executable = target.compile(module, entry, options)
        for watcher in watchers:
            watcher.finished(entry, executable)
        return executable
    keeps_files = settings.kept() or (options and options.kept()) or settings.get("CUTE_DSL_PRINT_IR")
    if keeps_files or kernel_trace.request() is not None:
        return target.compile(module, entry, options)
    return load_or_build(
        lambda: key(target, module, entry, options),
        lambda cached: target.deserialize(cached, module, entry, options),
        lambda: target.compile(module, entry, options),
        target.serialize,
    )


def load_or_build(
    name: Callable[[], str],
    use: Callable[[Entry], Loaded],
    make: Callable[[], Loaded],
    entry_of: Callable[[Loaded], Entry | None],
) -> Loaded:
    """Return `use(entry)` of the entry with a name; where there is none, `make()`, which is stored as `entry_of` says."""
    folder = None if settings.get("CUTE_DSL_DISABLE_FILE_CACHING") else directory()
    if folder is None:
        return make()
    named = name()
    entry_read = load(named, folder)
    if entry_read is not None:
        try:
            return use(entry_read)
        except Exception as reason:  # an entry is never a reason to fail
            logger().warning("cache entry %s cannot be used: %s", named, reason)
    result = make()
    entry = entry_of(result)
    if entry is not None:
        store(named, entry, folder)
    return result


def keeping(
    what: str,
    fingerprint: str,
    begin: Callable[[], Callable[[], bytes]],
    use: Callable[[bytes], Loaded],
    changed: Callable[[], bool] | None = None,
) -> Callable[[], Loaded]:
    """Return a function that gives `use(code)`, for code that depends on Kiln's sources and a fingerprint only.

    The code comes from the cache; else `begin()` starts making it, and the function that `begin` returns finishes it
    and gives the bytes to store. `changed()` tells whether the sources that make it were changed since they were
    loaded, by default whether any source was.
    """
    folder = None if settings.get("CUTE_DSL_DISABLE_FILE_CACHING") else directory()
    if folder is None:
        making = begin()
        return lambda: use(making())
    facts = (what, fingerprint, sources_hash(), _versions())
    name = blake2b(_MAGIC + repr(facts).encode(), digest_size=32).hexdigest()
    entry = load(name, folder)
    making = begin() if entry is None else None

    def finish() -> Loaded:
        if entry is not None:
            try:
                return use(entry.data["object"])
            except Exception as reason:  # an entry is never a reason to fail
                logger().warning("cache entry %s cannot be used: %s", name, reason)
        data = (making or begin())()
        used = use(data)  # first: what cannot be used is not kept
        if not (changed or sources_changed)():
            store(name, Entry({}, {"object": data}), folder)
        return used

    return finish


def key(target: Target, module: ir.Module, entry: str, options: CompileOptions | None, build: str = "") -> str:
    """Return the name of the entry for a module; `build` names one of several builds of it."""
    digest = blake2b(_MAGIC, digest_size=32)
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)  # a twentieth of the time of printing it
    facts = (
        target.fingerprint(options),
        (options or CompileOptions()).key(),
        entry,
        build,
        sources_hash(),
        _versions(),
    )
    for part in (repr(facts).encode(), bytecode.getvalue()):
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return digest.hexdigest()


_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_loaded = time.time()


ROOMS = ("analysis", "base_dsl", "dialects", "hardware", "interop", "native", "ptx", "targets")
"""The packages whose sources turn a module into code. Those that write the module do not matter: its text is hashed."""


def _sources() -> Iterator[str]:
    """Yield the paths of the sources that turn a module into code, in order."""
    for room in ROOMS:
        for folder, folders, names in os.walk(os.path.join(_ROOT, room)):
            folders.sort()
            yield from (f"{folder}{os.sep}{name}" for name in sorted(names) if name.endswith(".py"))


@functools.lru_cache(maxsize=1)
def sources_hash() -> str:
    """Return a hash of the sources that turn a module into code.

    Reading them all would take much of the time of a load from the cache. So the hash itself is cached, by the inode,
    size and change time of each file.
    """
    folder = None if settings.get("CUTE_DSL_DISABLE_FILE_CACHING") else directory()
    if folder is None:
        return _read_sources()
    seen = ((path, os.stat(path)) for path in _sources())
    facts = [(path, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns) for path, status in seen]
    name = blake2b(_MAGIC + repr(facts).encode(), digest_size=32).hexdigest()
    kept = load(name, folder)
    if kept is not None and "sources" in kept.data:
        return kept.data["sources"].hex()
    read = _read_sources()
    store(name, Entry({}, {"sources": bytes.fromhex(read)}), folder)
    return read


def _read_sources() -> str:
    digest = blake2b()
    for path in _sources():
        digest.update(f"{path[len(_ROOT) :]}\0".encode())
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while data := os.read(file, 1 << 20):
                digest.update(data)
        finally:
            os.close(file)
    return digest.hexdigest()


def sources_changed() -> bool:
    """Return whether sources were written since this process loaded them, so that their hash does not fit its code."""
    return any(os.stat(path).st_mtime > _loaded for path in _sources())


@functools.lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    return tuple(map(_version, ("torch-mlir", "llvmlite")))


def _version(project: str) -> str:
    """Return the version of an installed project, if possible from the name of its `.dist-info` folder.

    `importlib.metadata` imports the whole of `email` (20 ms).
    """
    name = project.replace("-", "_")
    spec = importlib.util.find_spec(name)
    with contextlib.suppress(OSError):
        beside = [os.path.dirname(path) for path in (spec and spec.submodule_search_locations) or ()]
        versions = [
            x for folder in beside for x in os.listdir(folder) if x.startswith(f"{name}-") and x.endswith(".dist-info")
        ]
        if len(versions) == 1:
            return versions[0].removeprefix(f"{name}-").removesuffix(".dist-info")
    from importlib import metadata

    try:
        return metadata.version(project)
    except metadata.PackageNotFoundError:
        return "unknown"


def lazy_artifacts(
    target: Target, module: ir.Module, entry: str, options: CompileOptions | None
) -> Callable[[str], Any]:
    """Return a function that makes the artefacts of a cached module, by compiling it when one is used."""

    @functools.lru_cache(maxsize=1)
    def compiled() -> Mapping[str, Any]:
        return target.compile(clone_module(module), entry, options).artifacts

    return lambda name: compiled()[name]


def clone_module(module: ir.Module) -> ir.Module:
    """Return a copy of a module."""
    with context(), ir.Location.unknown():
        copy = ir.Module.create()
        for op in module.body.operations:
            copy.body.append(op.operation.clone())
    return copy


def encode_site(site: Any) -> dict[str, Any]:
    """Return a named tuple with source spans (`span`, `calls`) as JSON can hold it."""
    span = None if site.span is None else dataclasses.asdict(site.span)
    return {**site._asdict(), "span": span, "calls": [dataclasses.asdict(call) for call in site.calls]}


def decode_site(kind: type, facts: dict[str, Any]) -> Any:
    """Return the inverse of `encode_site` for a class."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    values["span"] = Span(**facts["span"]) if facts["span"] else None
    values["calls"] = tuple(Span(**call) for call in facts["calls"])
    return kind(**values)


# Paths are texts here and in `cache_folder`: importing `pathlib` and `tempfile` would be a good part of loading from the cache.


def _path(name: str, folder: str) -> str:
    return os.path.join(folder, name[:2], name + _SUFFIX)


def load(name: str, folder: str) -> Entry | None:
    """Return the entry of a name, or None; one that is damaged or not this user's is removed."""
    path = _path(name, folder)
    try:
        if not is_ours(os.lstat(os.path.dirname(path))):
            return None
        # a pipe must not keep this waiting
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if ours := stat.S_ISREG(status.st_mode) and is_ours(status):
                head = file.read(_HEAD)
                entry = _decode(name, head + file.read()) if _tells_size(head, status.st_size) else None
                if entry is not None:
                    with contextlib.suppress(OSError):
                        os.utime(file.fileno())  # used now
                    return entry
    except FileNotFoundError:
        return None
    except OSError as reason:
        say_once(f"cache entry {path} cannot be read: {reason}")
        return None
    logger().warning("cache entry %s %s: it is removed", path, "is damaged" if ours else "may be another user's")
    with contextlib.suppress(OSError):
        os.unlink(path)
    return None


def store(name: str, entry: Entry, folder: str) -> None:
    """Write an entry; a disk that is full or read-only is no error."""
    global _stores
    path = _path(name, folder)
    parent = os.path.dirname(path)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(parent, 0o700)
        if not is_ours(os.lstat(parent)):
            say_once(f"nothing is cached in {parent}: others can write there")
            return
        temporary = os.path.join(parent, f"{_TEMPORARY}{os.urandom(8).hex()}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_encode(name, entry))
            os.replace(temporary, path)
        except BaseException:  # an interrupt too
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as reason:
        say_once(f"nothing is cached in {folder}: {reason.strerror or reason}")
        return
    if _stores % _TRIM_EVERY == 0:
        trim(folder)
    _stores += 1


def _encode(name: str, entry: Entry) -> bytes:
    sizes = [(piece, len(data)) for piece, data in entry.data.items()]
    head = json.dumps({"facts": entry.facts, "data": sizes}).encode()
    body = struct.pack("<Q", len(head)) + head + b"".join(entry.data.values())
    return _sealed(name, body)


def _sealed(name: str, body: bytes) -> bytes:
    """Return the contents of a file with a body."""
    return _MAGIC + struct.pack("<Q", len(body)) + _checksum(name, body) + body


def _checksum(name: str, body: bytes) -> bytes:
    digest = blake2b(name.encode() + b"\0", digest_size=32)
    digest.update(body)
    return digest.digest()


def _tells_size(head: bytes, size: int) -> bool:
    """Return whether a file begins as an entry of its size does; one that has grown may not fit into memory."""
    return head[: len(_MAGIC) + 8] == _MAGIC + struct.pack("<Q", max(size - _HEAD, 0))


def _decode(name: str, data: bytes) -> Entry | None:
    """Return the entry of a name in the contents of its file; None for anything else."""
    body = data[_HEAD:]
    if not _tells_size(data[:_HEAD], len(data)) or _checksum(name, body) != data[_HEAD - 32 : _HEAD]:
        return None
    try:
        (size,) = struct.unpack_from("<Q", body)
        head = json.loads(body[8 : 8 + size])
        facts = dict(head["facts"])
        sizes = [(str(piece), int(length)) for piece, length in head["data"]]
    except (struct.error, ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
        return None
    pieces: dict[str, bytes] = {}
    at = 8 + size
    for piece, length in sizes:
        pieces[piece] = body[at : at + length]
        at += length
    return Entry(facts, pieces) if at == len(body) and all(length >= 0 for _, length in sizes) else None


def entries(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of the cache, left-over temporary ones included. Other files in the folder are not Kiln's."""
    for sub in _items(folder):
        if len(sub.name) == 2 and set(sub.name) <= set("0123456789abcdef") and sub.is_dir(follow_symlinks=False):
            for item in _items(sub.path):
                if item.name.endswith(_SUFFIX) or item.name.startswith(_TEMPORARY):
                    with contextlib.suppress(OSError):
                        yield item.path, item.stat(follow_symlinks=False)


def _items(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            return list(listing)
    except OSError:
        return []


def trim(folder: str, limit: int = LIMIT) -> int:
    """Remove stale temporary files, and the least recently used entries until the rest fits into nine tenths of the
    limit.

    Returns how many files were removed.
    """
    by_age = sorted(entries(folder), key=lambda item: item[1].st_mtime)
    total = sum(status.st_size for _, status in by_age)
    allowed = limit if total <= limit else limit * 0.9
    left_behind = time.time() - _WRITING
    removed = 0
    for path, status in by_age:
        abandoned = os.path.basename(path).startswith(_TEMPORARY) and status.st_mtime < left_behind
        if total <= allowed and not abandoned:
            continue
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= status.st_size
            removed += 1
    return removed


def clear(folder: str) -> int:
    """Remove every entry, and return how many there were."""
    count = 0
    for path, _ in list(entries(folder)):
        with contextlib.suppress(OSError):
            os.unlink(path)
            count += path.endswith(_SUFFIX)
    return count
