"""Whom the disk cache trusts: owners, modes, links, and machines without a home or a place to write."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest

from kiln.base_dsl import cache, cache_folder
from kiln.base_dsl.settings import SETTINGS, DSLRuntimeError

NAME = "ab" + "0" * 62
ENTRY = cache.Entry({"a": 1}, {"object": b"code"})
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(autouse=True)
def _new_process(monkeypatch):
    """What is remembered for the life of a process is forgotten."""
    monkeypatch.setattr(cache_folder, "_said", set())
    monkeypatch.setattr(cache_folder, "_private", None)
    cache_folder._is_private_group.cache_clear()
    cache_folder._trusted_owners.cache_clear()
    yield
    if cache_folder._private:
        shutil.rmtree(cache_folder._private, ignore_errors=True)


@pytest.fixture
def chosen(monkeypatch):
    """`directory()` for a folder."""

    def choose(path: Path | str) -> Path | None:
        monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(path))
        found = cache.directory()
        return None if found is None else Path(found)

    return choose


def folder(path: Path, mode: int = 0o700) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- which folders are used ------------------------------------------------------------------------------------------


def test_what_is_missing_is_made_for_this_user_alone(chosen, tmp_path):
    before = os.umask(0)
    try:
        assert chosen(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o700)


@pytest.mark.parametrize("allowed", [0o700, 0o755, 0o711])
def test_a_folder_only_its_owner_can_write_to_is_used_as_it_is(chosen, tmp_path, allowed):
    path = folder(tmp_path / "project", allowed)
    assert chosen(path) == path
    assert mode(path) == allowed


@pytest.mark.parametrize("open_to", [0o777, 0o1777, 0o702, 0o770])
def test_a_folder_others_can_write_to_is_not_used_and_not_changed(chosen, tmp_path, open_to, caplog):
    path = folder(tmp_path / "shared", open_to)
    for _ in range(3):
        found = chosen(path)
    assert found not in (None, path)
    assert mode(found) == 0o700
    assert found.stat().st_uid == os.geteuid()
    assert mode(path) == open_to
    assert len(caplog.records) == 1  # said once
    said = caplog.records[0].getMessage()
    assert f"others can write to {path}" in said
    assert f"kept in {found} until this process ends" in said


def test_folders_on_the_way_count(chosen, tmp_path):
    inner = folder(tmp_path / "open" / "inner")
    inner.parent.chmod(0o777)
    assert chosen(inner) != inner
    inner.parent.chmod(0o1777)  # nobody can rename what is another's
    assert chosen(inner) == inner


def test_links_are_followed_and_their_ends_checked(chosen, tmp_path):
    project, link = folder(tmp_path / "project", 0o777), tmp_path / "link"
    link.symlink_to("project")
    assert chosen(link) != link
    assert mode(project) == 0o777
    project.chmod(0o755)
    assert chosen(link) == link
    assert mode(project) == 0o755
    assert chosen(tmp_path / "link" / ".." / "project" / "sub").is_dir()
    (tmp_path / "round").symlink_to("round")
    assert chosen(tmp_path / "round") != tmp_path / "round"


def test_a_link_that_lies_where_others_can_write(chosen, tmp_path):
    target, shared = folder(tmp_path / "target"), folder(tmp_path / "shared", 0o777)
    (shared / "link").symlink_to(target)
    assert chosen(shared / "link") not in (shared / "link", target)


def test_what_belongs_to_another_is_not_used(chosen, tmp_path, monkeypatch):
    path = folder(tmp_path / "cache")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1000)
    why = cache_folder.unusable(str(path))
    assert why is not None
    assert "belongs to user" in why


def test_a_group_of_the_users_own_may_write(chosen, tmp_path, monkeypatch):
    import grp
    import pwd

    path = folder(tmp_path / "cache", 0o770)
    gid, members = 4242, []
    real = os.lstat

    def lstat(at: Any, **options: Any) -> os.stat_result:
        found = real(at, **options)
        return os.stat_result([*found[:5], gid, *found[6:10]]) if at == str(path) else found

    monkeypatch.setattr(os, "lstat", lstat)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: types.SimpleNamespace(pw_name="ann", pw_gid=gid))
    names = {gid: "ann"}
    monkeypatch.setattr(grp, "getgrgid", lambda one: types.SimpleNamespace(gr_name=names[one], gr_mem=members))
    assert chosen(path) == path
    for change in (lambda: members.append("bob"), lambda: (members.clear(), names.update({gid: "users"})), names.clear):
        change()
        cache_folder._is_private_group.cache_clear()
        assert chosen(path) != path


def test_owners_without_a_number_in_a_user_namespace(monkeypatch):
    files = {"/proc/self/uid_map": b"0 0 4294967295\n", "/proc/sys/kernel/overflowuid": b"65534\n"}
    monkeypatch.setattr(cache_folder, "_read", files.__getitem__)
    assert cache_folder._trusted_owners(7) == {0, 7}
    files["/proc/self/uid_map"] = b"7 7 1\n"
    cache_folder._trusted_owners.cache_clear()
    assert cache_folder._trusted_owners(7) == {0, 7, 65534}


# --- which entries are used ------------------------------------------------------------------------------------------


def plant(tmp_path: Path) -> Path:
    cache.store(NAME, ENTRY, tmp_path)
    assert cache.load(NAME, tmp_path) == ENTRY
    return Path(cache._path(NAME, str(tmp_path)))


@pytest.mark.parametrize("open_to", [0o602, 0o620])
def test_an_entry_others_can_write_to_is_removed(tmp_path, open_to):
    path = plant(tmp_path)
    path.chmod(open_to)
    assert cache.load(NAME, tmp_path) is None
    assert not path.exists()


def test_an_entry_that_is_no_file(tmp_path):
    path = plant(tmp_path)
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    assert cache.load(NAME, tmp_path) is None
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert cache.load(NAME, tmp_path) is None  # at once
    path.unlink(missing_ok=True)
    path.mkdir()
    assert cache.load(NAME, tmp_path) is None
    cache.store(NAME, ENTRY, tmp_path)  # no error


def test_a_folder_of_entries_others_can_write_to(tmp_path):
    path = plant(tmp_path)
    path.parent.chmod(0o777)
    assert cache.load(NAME, tmp_path) is None
    cache.store("ab" + "1" * 62, ENTRY, tmp_path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    moved = path.parent.rename(tmp_path / "moved")
    moved.chmod(0o700)
    path.parent.symlink_to(moved)
    assert cache.load(NAME, tmp_path) is None


@as_root
def test_an_entry_of_another_user_is_not_loaded(tmp_path):
    path = plant(tmp_path)
    os.chown(path, 12345, 12345)
    assert cache.load(NAME, tmp_path) is None
    assert not path.exists()
    path = plant(tmp_path)
    os.chown(path.parent, 12345, 12345)
    assert cache.load(NAME, tmp_path) is None


# --- machines without a home, or without a place to write ------------------------------------------------------------


def default(monkeypatch, **env: str) -> str:
    for name in ("CUTE_DSL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return SETTINGS["CUTE_DSL_CACHE_DIR"].read()


def no_passwd(monkeypatch):
    import pwd

    def unknown(_):
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_the_default_folder(monkeypatch):
    assert default(monkeypatch, XDG_CACHE_HOME="/x", HOME="/h") == "/x/kiln"
    assert default(monkeypatch, XDG_CACHE_HOME="relative", HOME="/h") == "/h/.cache/kiln"
    assert default(monkeypatch).endswith("/.cache/kiln")
    no_passwd(monkeypatch)
    assert default(monkeypatch) == default(monkeypatch, HOME="") == default(monkeypatch, HOME="nowhere") == ""
    monkeypatch.delenv("HOME")
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", "~/cache")
    with pytest.raises(DSLRuntimeError, match="CUTE_DSL_CACHE_DIR=.*no home directory of this user"):
        SETTINGS["CUTE_DSL_CACHE_DIR"].read()


def test_a_user_without_a_home(monkeypatch, tmp_path, caplog):
    no_passwd(monkeypatch)
    default(monkeypatch, XDG_RUNTIME_DIR=str(tmp_path))
    found = cache.directory()
    assert found is not None
    assert os.path.dirname(found) == str(tmp_path)
    assert "no home directory" in caplog.text
    assert cache.directory() == found
    cache.store(NAME, ENTRY, found)
    assert cache.load(NAME, found) == ENTRY
    cache_folder._remove(found, os.getpid() + 1)
    assert os.path.exists(found)  # a forked process does not remove it
    cache_folder._remove(found, os.getpid())
    assert not os.path.exists(found)
    assert cache.directory() not in (None, found)  # the process that made it has ended


def test_no_place_at_all_is_memory(monkeypatch, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")

    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    default(monkeypatch, HOME=str(blocked), XDG_RUNTIME_DIR="")
    assert cache.directory() is None
    assert "kept in memory" in caplog.text


def test_a_full_disk_is_no_error(monkeypatch, tmp_path, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    for _ in range(2):
        cache.store(NAME, ENTRY, tmp_path)
    assert caplog.text.count("No space left on device") == 1
    assert not list(tmp_path.glob("*/*"))


OTHER_USER = """
import os
import kiln.cute as cute
from kiln import Int32
from kiln.base_dsl import cache

@cute.jit
def f(x: Int32):
    return x * 3

import shutil, tempfile  # what else there is to import is read by root
f(1)
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
del os.environ["CUTE_DSL_CACHE_DIR"]
print(cute.compile(f, 5)(5), cache.directory(), len(list(cache.entries(cache.directory()))))
"""


@as_root
@pytest.mark.parametrize("home", [None, "/root"])
def test_a_user_by_number_only(child, tmp_path, monkeypatch, home):
    for name in ("HOME", "CUTE_DSL_CACHE_DIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    program = tmp_path / "program.py"
    program.write_text(OTHER_USER)
    env = {"CUTE_DSL_CACHE_DIR": "roots", "CUTE_DSL_DISABLE_FILE_CACHING": "0", "KILN_TARGET": "cpu"}
    if home:
        env["HOME"] = home
    done = child(program, **env)
    assert done.returncode == 0, done.stderr
    answer, where, entries = done.stdout.split()
    assert (answer, entries) == ("15", "1")
    assert done.stderr.count("is not used") == 1, done.stderr
    assert not Path(where).exists()  # it went with the process
