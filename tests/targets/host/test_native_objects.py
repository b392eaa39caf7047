"""Object code of native libraries that lies beside Kiln's sources."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path

import pytest

import kiln.interop.arguments
import kiln.targets
from kiln.base_dsl import cache
from kiln.native import Library, i32
from kiln.targets.host import jit, native_objects

ROOT = Path(__file__).parents[3]
sums = Library("sums", prefix="test_")


@sums.export
def plus_three(x: i32) -> i32:
    return x + 3


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty one, and an empty disk cache, for a process whose sources are what they were."""
    monkeypatch.setattr(cache, "_loaded", float("inf"))
    monkeypatch.setattr(native_objects, "FOLDER", tmp_path / "objects")
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTE_DSL_DISABLE_FILE_CACHING", raising=False)
    return tmp_path / "objects"


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """The libraries that are made, and that this machine has what the common processor has."""
    names: list[str] = []
    make = jit.native_object
    monkeypatch.setattr(
        jit, "native_object", lambda library, given: (names.append(library.name), make(library, given))[1]
    )
    monkeypatch.setattr(jit, "common", lambda: ("any", jit.host()))
    return names


def result(library: jit.Library) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(library.addresses["test_plus_three"])(4)


def test_what_a_process_made_the_next_one_finds(folder, made):
    assert result(jit.loading(sums)()) == 7
    assert [path.name for path in folder.iterdir()] == ["sums.any.o"]
    cache.clear(folder.parent / "cache")
    assert result(jit.loading(sums)()) == 7
    assert made == ["sums"]


def test_a_folder_that_cannot_be_written_leaves_it_to_the_disk_cache(folder, made):
    folder.write_text("a file")
    for _ in range(2):
        assert result(jit.loading(sums)()) == 7
    assert made == ["sums"]
    assert folder.read_text() == "a file"


def test_no_files_where_none_are_wanted(folder, made, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    assert result(jit.loading(sums)()) == 7
    assert not folder.exists()


def test_a_process_whose_sources_changed_leaves_nothing(folder, made, monkeypatch):
    """It runs what it has loaded, and the hash is that of the new ones."""
    assert not cache.sources_changed()  # however late they were written
    monkeypatch.setattr(cache, "_loaded", 0.0)
    assert cache.sources_changed()
    for _ in range(2):
        assert result(jit.loading(sums)()) == 7
    assert made == ["sums", "sums"]
    assert not folder.exists()


def test_a_processor_without_the_common_features_has_code_of_its_own(folder, monkeypatch):
    monkeypatch.setattr(jit.llvm, "get_host_cpu_features", lambda: type(FEATURES)(dict.fromkeys(FEATURES, False)))
    jit.common.cache_clear()
    try:
        assert jit.common() == ("", jit.host())
        assert result(jit.loading(sums)()) == 7
    finally:
        jit.common.cache_clear()
    assert not folder.exists()


FEATURES = jit.llvm.get_host_cpu_features()


def test_damaged_and_foreign_files_are_not_used(folder, monkeypatch):
    native_objects.keep(sums, "any", b"the code")
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    assert whole.startswith(b"the code")
    assert native_objects.kept("sums", "any") == (b"the code", ("test_plus_three",))
    assert native_objects.kept("sums", "other") is None
    for wrong in (b"", whole[:-1], whole[1:], b"tho" + whole[3:], whole + b" "):
        path.write_bytes(wrong)
        assert native_objects.kept("sums", "any") is None
    os.truncate(path, 1 << 40)  # more than a machine has memory: reading it would be MemoryError
    assert native_objects.kept("sums", "any") is None
    path.write_bytes(whole)
    for name in ("sums.other.o", "products.any.o"):
        path.with_name(name).write_bytes(whole)
    assert native_objects.kept("sums", "other") is native_objects.kept("products", "any") is None
    monkeypatch.setattr(cache, "sources_hash", lambda: "other sources")
    assert native_objects.kept("sums", "any") is None
    native_objects.keep(sums, "any", b"newer code")
    assert native_objects.kept("sums", "any").data == b"newer code"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_every_library_has_a_name_of_its_own():
    rooms = (kiln.interop.arguments, kiln.targets)
    names = [found.name for room in rooms for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    found = {id(value): value.name for value in values if isinstance(value, Library)}
    assert {"calls", "programs", "launch", "waiting", "sanitizer"} <= set(found.values())
    assert len(set(found.values())) == len(found)


def test_code_for_another_architecture_can_be_made_here(child):
    """Nothing of this machine is in what is traced: the handler of signals needs most of it."""
    done = child(
        "-c",
        """if True:
            import platform, sys
            platform.machine = lambda: sys.argv[1]
            from kiln.targets.host import lower, signal_handler
            library = signal_handler.signals
            print(lower.lower_library(library.build(), library.name, library.exports))""",
        "aarch64",
    )
    assert done.returncode == 0, done.stderr
    from kiln.targets.host import lower, signal_handler

    library = signal_handler.signals
    assert done.stdout.strip() == lower.lower_library(library.build(), library.name, library.exports).strip()


def test_objects_of_libraries_that_are_gone_are_removed(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("native_objects_tool", ROOT / "tools" / "native_objects.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(tool)
    monkeypatch.setattr(native_objects, "FOLDER", str(tmp_path))
    for name in ("launch.x86_64.o", "gone.x86_64.o", "gone.aarch64.o"):
        (tmp_path / name).touch()
    tool.remove_others({"launch"})
    assert [file.name for file in tmp_path.iterdir()] == ["launch.x86_64.o"]
