"""The static library that loads exported code in C programs, and where build systems find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import exporting
import pytest
from exporting import build, compiled_scale, needs_compiler

import kiln
from kiln.cute.export import aot_config
from kiln.interop.aot import runtime_files
from kiln.targets.host import elf

HERE = Path(__file__).parent
long = pytest.mark.skipif(os.environ.get("KILN_LONG_TESTS", "") in ("", "0"), reason="long: KILN_LONG_TESTS=1")


@needs_compiler
def test_programs_load_objects_and_libraries_while_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTE_DSL_DISABLE_FILE_CACHING", raising=False)
    with kiln.target("cpu"):
        compiled_scale().export_to_c(tmp_path, "scale")
    include, libraries = runtime_files.include_folder(), runtime_files.library_folder()
    build(tmp_path, "-shared", "-o", "libscale.so", "scale.o")
    build(
        tmp_path, "-std=c99", f"-I{include}", "-o", "program", str(HERE / "use_runtime.c"), f"-L{libraries}",
        "-lcute_dsl_runtime", "-lcuda_dialect_runtime_static", "-ldl", "-Wl,-z,defs",
    )  # fmt: skip
    files = [str(tmp_path / name) for name in ("scale.o", "libscale.so", "scale.h")]
    done = subprocess.run([tmp_path / "program", *files], env={}, capture_output=True, text=True, timeout=60)
    works = "there is no exported function of this name, 0 0 21, CuteDSLRT_Error_Call_Failed -2, 0"
    assert done.stdout.splitlines() == [
        f"bytes: {works}", f"object: {works}", f"library: {works}", f"libraries: {works}",
        "nothing: CuteDSLRT_Error_Invalid_Argument", "no file: CuteDSLRT_Error_Cannot_Read",
        "text: CuteDSLRT_Error_Not_An_Object", "machine: CuteDSLRT_Error_Other_Machine",
    ]  # fmt: skip
    assert done.returncode == 0


def test_what_build_systems_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTE_DSL_DISABLE_FILE_CACHING", raising=False)
    flags = ["--libdir", "--ldflags", "--libs", "--includedir", "--cmakedir"]
    assert aot_config.main([*flags, "--target", "x86_64-unknown-linux-gnu"]) == 0
    libdir, ldflags, libs, include, cmake = capsys.readouterr().out.splitlines()
    assert (ldflags, libs) == (f"-L{libdir}", "-lcute_dsl_runtime -ldl")
    assert (Path(libdir) / "libcuda_dialect_runtime_static.a").exists()
    assert (Path(include) / "CuteDSLRuntime.h").exists() and (Path(cmake) / "KilnConfig.cmake").exists()
    assert aot_config.main(["--libdir", "--target", "riscv64-unknown-linux-gnu"]) == 1
    told = capsys.readouterr()
    assert not told.out and "riscv64-unknown-linux-gnu" in told.err


def test_archives_have_an_index() -> None:
    data = runtime_files.archive({"a.o": b"odd", "b.o": b"even"}, {"a.o": ["f"], "b.o": ["g", "h"]})
    assert data.startswith(b"!<arch>\n/ ")
    places = [int.from_bytes(data[72 + 4 * n : 76 + 4 * n], "big") for n in range(3)]
    assert [data[at : at + 4] for at in places] == [b"a.o/", b"b.o/", b"b.o/"]


@long
def test_the_library_is_the_other_machine_s() -> None:
    data = runtime_files.runtime_archive("linux-aarch64")
    made = elf.read(data[data.index(b"\x7fELF") :])
    assert made.machine == elf.MACHINES["aarch64"]
    needed = {symbol.name for symbol in made.symbols if not symbol.is_defined}
    assert not any(name.startswith("kiln") for name in needed)


@long
@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
@needs_compiler
def test_cmake_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTE_DSL_DISABLE_FILE_CACHING", raising=False)
    helpers = Path(exporting.__file__).parent
    (tmp_path / "export.py").write_text(
        f"import sys\nsys.path.insert(0, {str(helpers)!r})\nimport kiln\nfrom exporting import compiled_scale\n"
        "kiln.target('cpu')\ncompiled_scale().export_to_c(sys.argv[1], 'scale')\n"
    )
    (tmp_path / "main.c").write_text(
        '#include "scale.h"\n#include "CuteDSLRuntime.h"\n'
        "int main(void) { return scale_Kernel_Module_Load(NULL) || CuteDSLRT_Module_Destroy(NULL) != 1; }\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(example C)\nfind_package(Kiln REQUIRED)\n"
        "kiln_add_kernel(scale SCRIPT export.py)\nadd_executable(program main.c)\n"
        "target_link_libraries(program scale Kiln::runtime)\n"
    )
    found = f"-DKiln_DIR={runtime_files.cmake_folder()}"
    for words in (["cmake", "-S", ".", "-B", "build", found], ["cmake", "--build", "build"], ["build/program"]):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder cannot be made; temporary files go to another one, which is returned."""
    (tmp_path / "file").write_text("")
    temporary = tmp_path / "temporary"
    temporary.mkdir(mode=0o700)
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return temporary


def test_folders_are_there_after_the_command_where_the_cache_cannot_be(child: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    temporary = tmp_path / "temporary"
    temporary.mkdir(mode=0o700)
    environment = {
        "CUTE_DSL_CACHE_DIR": str(tmp_path / "file" / "cache"),
        "TMPDIR": str(temporary),
        "XDG_RUNTIME_DIR": "",
    }
    done = child("-m", "kiln.cute.export.aot_config", "--libdir", "--includedir", "--cmakedir", **environment)
    assert done.returncode == 0, done.stderr
    assert "files that last are in" in done.stderr
    library, include, cmake = map(Path, done.stdout.splitlines())
    assert (library / "libcute_dsl_runtime.a").is_file() and (include / "CuteDSLRuntime.h").is_file()
    assert (cmake / "KilnConfig.cmake").is_file()
    own = temporary / f"kiln-{os.geteuid()}"
    assert include.is_relative_to(own) and own.stat().st_mode & 0o777 == 0o700 and own.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file", "of another user"])
def test_a_folder_of_temporary_files_that_is_not_the_user_s_alone_is_refused(
    kind: str, no_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    own = no_cache / f"kiln-{os.geteuid()}"
    elsewhere = no_cache.parent / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    if kind == "open to others":
        own.mkdir()
        own.chmod(0o777)
    elif kind == "a link":
        own.symlink_to(elsewhere)
    elif kind == "a file":
        own.write_text("")
    assert aot_config.main(["--includedir"]) == 1
    told = capsys.readouterr()
    assert not told.out and str(own) in told.err and "CUTE_DSL_CACHE_DIR" in told.err
    assert not list(elsewhere.iterdir())
    assert aot_config.main(["--libs"]) == 0  # needs no folder
    assert capsys.readouterr().out == "-lcute_dsl_runtime -ldl\n"


def test_paths_are_texts_in_what_cmake_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / 'a"b$c@PYTHON@'
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(folder))
    monkeypatch.setattr(sys, "executable", "/usr/bin/py\\thon")
    text = (Path(runtime_files.cmake_folder()) / "KilnConfig.cmake").read_text()
    assert f'IMPORTED_LOCATION "{tmp_path}/a\\"b\\$c@PYTHON@/' in text and '"/usr/bin/py\\\\thon" CACHE' in text
