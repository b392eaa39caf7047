"""The folder of the disk cache: one that nobody but this user (and root) can write to.

Code read from it runs in this process. So a folder is used only if it is this user's and nobody else can change it or
anything on the path to it, links included. It is created if it is missing, and its permissions are never changed: a
folder that others can write to is not used. Where there is no usable folder (no home, a read-only disk), one is
created for the life of the process; where that fails, compiled code stays in memory.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import stat

from .._support import fork_safe
from . import settings
from .diagnostics import DSLRuntimeError
from .log import logger

_MOST_LINKS = 40
_lock = fork_safe.lock()
_said: set[str] = set()
_private: str | None = None


def directory() -> str | None:
    """Return the cache's folder, created if it is missing; None if no folder is writable by this user alone."""
    name = settings.get("CUTE_DSL_CACHE_DIR")
    why = unusable(name)
    if why is None:
        return name
    private = _for_this_process()
    kept = f"in {private} until this process ends" if private else "in memory"
    say_once(
        f"the cache directory {name or '~/.cache/kiln'} is not used: {why}. Compiled code is kept {kept}; "
        "CUTE_DSL_CACHE_DIR names a directory that you alone can write to"
    )
    return private


def lasting_directory() -> str:
    """Return a folder for files that outlive the process: the cache's, else the user's own among temporary files."""
    name = settings.get("CUTE_DSL_CACHE_DIR")
    why = unusable(name)
    if why is None:
        return name
    reasons = [f"{name or '~/.cache/kiln'}: {why}"]
    for base in reversed(_temporary_folders()):
        folder = os.path.join(base, f"kiln-{os.geteuid()}")
        why = unusable(folder) or (None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written to")
        if why is None:
            say_once(f"the cache directory is not used ({reasons[0]}): files that last are in {folder}")
            return folder
        reasons.append(f"{folder}: {why}")
    raise DSLRuntimeError(
        "there is no folder for files that last and that this user alone can write to\n  " + "\n  ".join(reasons),
        hint="set CUTE_DSL_CACHE_DIR to a directory that you alone can write to",
    )


def say_once(message: str) -> None:
    """Log a warning, the first time only."""
    if message not in _said:
        _said.add(message)
        logger().warning("%s", message)


def is_ours(status: os.stat_result) -> bool:
    """Return whether a file or folder belongs to this user and nobody else may write to it."""
    return status.st_uid == os.geteuid() and not _others_may_write(status)


def unusable(name: str) -> str | None:
    """Create a folder unless it exists; return why it cannot be the cache's, or None."""
    if not name:
        return "this user has no home directory"
    try:
        end, why = _walk(name)
        if why is not None:
            return why
        status = os.lstat(end)
    except (OSError, ValueError) as reason:
        return str(reason)
    if status.st_uid != os.geteuid():
        return f"{end} belongs to user {status.st_uid}, and this is user {os.geteuid()}"
    return f"others can write to {end} ({stat.filemode(status.st_mode)})" if _others_may_write(status) else None


def _walk(name: str) -> tuple[str, str | None]:
    """Walk to a folder and create what is missing; return its path, and why somebody else could redirect it, if so."""
    at = "/"
    rest = _parts(name if os.path.isabs(name) else os.path.join(os.getcwd(), name))
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":  # links are followed as they come, so this is the folder above
            at = os.path.dirname(at)
            continue
        parent = at
        at = "/" if part.startswith("/") else os.path.join(at, part)
        try:
            status = os.lstat(at)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another process created it in the same moment
                os.mkdir(at, 0o700)
            status = os.lstat(at)
        if status.st_uid not in _trusted_owners(os.geteuid()):
            return at, f"{at} belongs to user {status.st_uid}, and this is user {os.geteuid()}"
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), at)
            rest.extend(_parts(os.readlink(at)))
            at = parent
        elif not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), at)
        elif rest and _others_may_write(status) and not status.st_mode & stat.S_ISVTX:
            # in a directory with the sticky bit, such as /tmp, nobody can rename what is another's
            mode = stat.filemode(status.st_mode)
            return at, f"others can write to {at} ({mode}), and could put another directory in its place"
    return at, None


def _parts(path: str) -> list[str]:
    """Return the components of a path, the last one first; those of an absolute path end with "/"."""
    names = [name for name in reversed(path.split("/")) if name not in ("", ".")]
    return [*names, "/"] if path.startswith("/") else names


def _others_may_write(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid, os.geteuid())


@functools.lru_cache(maxsize=16)
def _is_private_group(group: int, user: int) -> bool:
    """Return whether a group has one user only. Many systems give each user such a group, and a umask of 002."""
    if group == 0:  # containers put arbitrary users into it
        return False
    try:
        import grp
        import pwd

        entry = grp.getgrgid(group)
        owner = pwd.getpwuid(user)
    except (KeyError, ImportError):
        return False
    return entry.gr_name == owner.pw_name and owner.pw_gid == group and set(entry.gr_mem) <= {owner.pw_name}


@functools.lru_cache(maxsize=4)
def _trusted_owners(user: int) -> frozenset[int]:
    """Return who may own the folders on the path: this user and root, who may be unmapped in a user namespace."""
    owners = {0, user}
    try:
        if _read("/proc/self/uid_map").split() != [b"0", b"0", b"4294967295"]:
            owners.add(int(_read("/proc/sys/kernel/overflowuid")))
    except (OSError, ValueError):
        pass
    return frozenset(owners)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _for_this_process() -> str | None:
    """Return a folder with an unpredictable name, removed when the process that created it ends."""
    global _private
    import tempfile

    with _lock:
        if _private is not None and os.path.isdir(_private) and unusable(_private) is None:
            return _private
        _private = None
        for base in _temporary_folders():
            with contextlib.suppress(OSError):
                folder = tempfile.mkdtemp(prefix="kiln-cache-", dir=base)  # mode 0700
                atexit.register(_remove, folder, os.getpid())
                if unusable(folder) is None:
                    _private = folder
                    break
        return _private


def _temporary_folders() -> list[str]:
    import tempfile

    folders = [os.environ.get("XDG_RUNTIME_DIR", "")]
    with contextlib.suppress(OSError):  # no folder for temporary files
        folders.append(tempfile.gettempdir())
    return [folder for folder in folders if os.path.isabs(folder)]


def _remove(folder: str, process: int) -> None:
    import shutil

    if os.getpid() == process:  # not a process forked since
        shutil.rmtree(folder, ignore_errors=True)
