"""The disk cache: hits, misses, damage, many processes, privacy, size."""

from __future__ import annotations

import ast
import os
import stat
import struct
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

from kiln.base_dsl import cache
from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.base_dsl.options import CompileOptions
from kiln.base_dsl.target import get_target
from kiln.hardware.options import LinkLibraries
from kiln.targets.nvidia import codegen

PROGRAM = """
import os, sys, json
import cutlass.cute as cute
from cutlass import Int32
from kiln.base_dsl import target as targets

compiled = []
real = targets.get_target("{target}")
compile_ = real.compile
real.compile = lambda *a, **k: (compiled.append(1), compile_(*a, **k))[1]

@cute.jit
def f(x: Int32):
    assert x > -100, "too small"
    return x * {factor} + 1

made = cute.compile(f, 5, target="{target}", options={options!r})
result = made(5) if "{target}" == "cpu" else None
failed = ""
if "{target}" == "cpu":
    try:
        made(-200)
    except AssertionError as failure:
        failed = str(failure)
print(json.dumps([len(compiled), result, failed, "arith.muli" in made.__mlir__]))
"""


def program(tmp_path: Path, target: str = "cpu", factor: int = 3, options: str = "") -> Path:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM.format(target=target, factor=factor, options=options)))
    return path


def program_without_native_objects(tmp_path: Path) -> Path:
    """One for which native code does not come with Kiln, so that the cache keeps it."""
    path = program(tmp_path)
    lines = "import pathlib\nfrom kiln.targets.host import native_objects\nnative_objects.FOLDER = pathlib.Path('no/where')\n"
    path.write_text(lines + path.read_text())
    return path


@pytest.fixture
def run(child, tmp_path):
    """Run the program in a new process with a cache in `tmp_path`; what it printed, as Python."""
    import json

    def start(path: Path, **env: str):
        env = {"CUTE_DSL_CACHE_DIR": str(tmp_path / "cache"), "CUTE_DSL_DISABLE_FILE_CACHING": "0", **env}
        done = child(path, **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return start


def files(tmp_path: Path) -> list[Path]:
    """The entries of programs: those of the target's own runtime hold no facts."""
    found = sorted((tmp_path / "cache").glob("*/*.kiln"))
    return [path for path in found if (entry := decode(path)) is None or entry.facts]


def decode(path: Path) -> cache.Entry | None:
    return cache._decode(path.stem, path.read_bytes())


def test_a_second_process_does_not_compile(run, tmp_path):
    path = program(tmp_path)
    compiled, result, failed, has_mlir = run(path)
    assert (compiled, result, has_mlir) == (1, 16, True)
    assert "too small" in failed
    assert len(files(tmp_path)) == 1
    again = run(path)
    assert again[1:3] == [result, failed]  # the source line of the failure too
    assert again[0] <= 1  # only `__mlir__` compiled
    assert again[3]


def test_artefacts_come_from_a_compilation_when_asked_for(run, tmp_path):
    path = program(tmp_path)
    run(path)
    path.write_text(path.read_text().replace('"arith.muli" in made.__mlir__', "True"))
    assert run(path)[0] == 0
    assert run(path)[0] == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("change", ["factor", "options", "line"])
def test_other_code_is_another_entry(run, tmp_path, change):
    run(program(tmp_path))
    path = program(
        tmp_path, factor=4 if change == "factor" else 3, options="--opt-level 1" if change == "options" else ""
    )
    if change == "line":
        path.write_text("\n\n" + path.read_text())
    assert run(path)[0] >= 1
    assert len(files(tmp_path)) == 2


@pytest.mark.quick(0)
def test_damage_is_found_and_compiled_again(run, tmp_path):
    path = program(tmp_path)
    first = run(path)
    (entry,) = files(tmp_path)
    data = entry.read_bytes()
    half = len(data) // 2
    flipped = data[:half] + bytes([data[half] ^ 0x40]) + data[half + 1 :]
    for damaged in (b"", data[:half], flipped, b"not a cache entry", data[:-1] + bytes([data[-1] ^ 1])):
        entry.write_bytes(damaged)
        again = run(path)
        assert again[0] >= 1
        assert again[1:3] == first[1:3]
        assert decode(entry) is not None


@pytest.mark.quick(0)
def test_malformed_entries_with_a_correct_checksum_are_compiled_again(run, tmp_path):
    path = program_without_native_objects(tmp_path)
    first = run(path)
    bodies = sorted((tmp_path / "cache").glob("*/*.kiln"))
    assert len(bodies) >= 2  # the program's, and the runtime's
    for entry in bodies:
        kept = decode(entry)
        assert kept is not None
        entry.write_bytes(cache._encode(entry.stem, cache.Entry(kept.facts, dict.fromkeys(kept.data, b"\x7fELF?"))))
    again = run(path)
    assert again[0] >= 1
    assert again[1:3] == first[1:3]
    for entry in bodies:
        entry.write_bytes(cache._encode(entry.stem, cache.Entry({"artifacts": 3}, {})))
    assert run(path)[1:3] == first[1:3]


def test_an_entry_that_has_grown_is_not_read_whole(tmp_path):
    name = "ab" + "0" * 62
    entry = cache.Entry({}, {"object": b"code"})
    cache.store(name, entry, str(tmp_path))
    (path,) = tmp_path.glob("*/*.kiln")
    assert cache.load(name, str(tmp_path)) == entry
    whole = path.read_bytes()
    os.truncate(path, 1 << 40)  # more than a machine has memory: it would be MemoryError
    assert cache.load(name, str(tmp_path)) is None and not path.exists()
    for damaged in (whole[: cache._HEAD - 1], whole[: cache._HEAD], whole[:-1], whole + b" "):
        path.write_bytes(damaged)
        assert cache.load(name, str(tmp_path)) is None and not path.exists()


BODIES = [
    b"",
    b"\0" * 8,
    struct.pack("<Q", 2**63),
    struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 2) + b"{}",
    struct.pack("<Q", 2) + b"\xff\xff",
    *(
        struct.pack("<Q", len(head)) + head + b"1234"
        for head in (
            b"3",
            b'{"facts": 3, "data": []}',
            b'{"facts": {}, "data": 3}',
            b'{"facts": {}, "data": [["a"]]}',
            b'{"facts": {}, "data": [["a", "x"]]}',
            b'{"facts": {}, "data": [["a", 5]]}',
            b'{"facts": {}, "data": [["a", 3]]}',
            b'{"facts": {}, "data": [["a", -1], ["b", 5]]}',
            b'{"facts": {}, "data": [["a", 1e999]]}',
            b"[" * 100_000,
        )
    ),
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_malformed_body_is_no_entry(body):
    name = "ab" + "0" * 62
    assert cache._decode(name, cache._sealed(name, body)) is None


def test_an_entry_under_another_name_is_none():
    entry = cache.Entry({}, {"object": b"code"})
    data = cache._encode("ab" + "0" * 62, entry)
    assert cache._decode("ab" + "0" * 62, data) == entry
    assert cache._decode("ab" + "1" * 62, data) is None


def test_switched_off(run, tmp_path):
    path = program(tmp_path)
    for _ in range(2):
        assert run(path, CUTE_DSL_DISABLE_FILE_CACHING="1")[0] >= 1
    assert not files(tmp_path)


def test_a_request_for_files_is_a_compilation(run, tmp_path):
    path = program(tmp_path)
    run(path)
    assert run(path, CUTE_DSL_KEEP="ir", CUTE_DSL_DUMP_DIR=str(tmp_path))[0] >= 1
    assert list(tmp_path.glob("*.mlir"))


def test_the_directory_is_private(run, tmp_path):
    run(program(tmp_path))
    folder = tmp_path / "cache"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (entry,) = files(tmp_path)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_no_directory_is_no_error(run, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run(program(tmp_path), CUTE_DSL_CACHE_DIR=str(blocked / "below"))[1] == 16


@pytest.mark.quick(0)
def test_many_processes_at_once(tmp_path):
    path = program(tmp_path)
    env = {
        **os.environ,
        "CUTE_DSL_CACHE_DIR": str(tmp_path / "cache"),
        "CUTE_DSL_DISABLE_FILE_CACHING": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    running = [
        subprocess.Popen(
            [sys.executable, str(path)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "16" in out
    assert len(files(tmp_path)) == 1
    assert not [p for p in (tmp_path / "cache").glob("*/*") if p.suffix != ".kiln"]  # nothing left over


def test_trimming_removes_what_was_used_longest_ago(tmp_path):
    names = [f"{n:02x}" + "0" * 62 for n in range(10)]
    for number, name in enumerate(names):
        cache.store(name, cache.Entry({}, {"object": b"x" * 1000}), tmp_path)
        os.utime(cache._path(name, tmp_path), (number, number))
    size = os.path.getsize(cache._path(names[0], tmp_path))
    assert cache.trim(tmp_path, 20 * size) == 0
    assert cache.load(names[0], tmp_path) is not None  # used now
    assert cache.trim(tmp_path, 5 * size) >= 5
    left = [name for name in names if os.path.exists(cache._path(name, tmp_path))]
    assert names[0] in left
    assert names[1] not in left


def test_what_was_left_behind_goes_and_what_is_not_the_caches_stays(tmp_path):
    name = "ab" + "0" * 62
    cache.store(name, cache.Entry({}, {}), tmp_path)
    sub = tmp_path / "ab"
    old, new, other, linked = sub / ".kiln-old", sub / ".kiln-new", sub / "000.jpg", tmp_path / "00"
    for path in (old, new, other):
        path.write_bytes(b"")
        os.utime(path, (1, 1))
    os.utime(new)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.kiln").write_bytes(b"")
    linked.symlink_to(elsewhere)
    assert cache.trim(tmp_path) == 1
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)
    assert cache.clear(tmp_path) == 1
    assert not new.exists()
    assert other.exists()
    assert (elsewhere / "x.kiln").exists()


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.store("ab" + "0" * 62, cache.Entry({}, {}), tmp_path)
    assert not list(tmp_path.glob("*/*"))


def test_the_hash_is_of_all_packages_that_targets_import():
    """What is not hashed must not turn modules into code: the bindings, what writes modules, and small helpers."""
    package, imported = Path(cache.__file__).parents[1], set()
    for file in (package / "targets").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == len(file.relative_to(package).parts):
                imported |= {node.module.split(".")[0]} if node.module else {name.name for name in node.names}
    assert {"analysis", "ptx", "hardware"} <= imported
    assert imported - set(cache.ROOMS) <= {"_support", "llvm", "mlir"}


def test_the_hash_of_sources_is_kept_until_one_is_written(tmp_path, monkeypatch):
    source = tmp_path / "kiln" / "targets" / "one.py"
    source.parent.mkdir(parents=True)
    source.write_text("x = 1\n")
    monkeypatch.setattr(cache, "_ROOT", str(tmp_path / "kiln"))
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "0")
    made, read = [], cache._read_sources
    monkeypatch.setattr(cache, "_read_sources", lambda: made.append(read()) or made[-1])
    assert cache.sources_hash.__wrapped__() == cache.sources_hash.__wrapped__() == made[0]
    before = source.stat()
    source.write_text("x = 2\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # of the same size and time
    assert cache.sources_hash.__wrapped__() == made[1] != made[0]
    assert len(made) == 2


def test_entries_keep_their_contents(tmp_path):
    entry = cache.Entry({"a": [1, "x"], "b": None}, {"one": b"", "two": bytes(range(256))})
    cache.store("ab" + "0" * 62, entry, tmp_path)
    assert cache.load("ab" + "0" * 62, tmp_path) == entry
    assert cache.load("ac" + "0" * 62, tmp_path) is None


def test_versions_are_those_that_are_installed():
    for project in ("torch-mlir", "llvmlite"):
        assert cache._version(project) == metadata.version(project)
    assert cache._version("numpy") == metadata.version("numpy")
    assert cache._version("no-such-project") == "unknown"


def test_code_from_the_cache_loads_nothing_that_compiles(run, tmp_path):
    """Importing it would be a good part of the time."""
    path = program(tmp_path)
    run(path)
    text = path.read_text()
    names = '[name for name in sys.modules if name.startswith(("kiln.", "importlib.metadata"))]'
    path.write_text(f"{text[: text.rindex('print(')]}print(json.dumps({names}))")
    loaded = run(path)
    assert "kiln.targets.host.jit" in loaded
    assert not {f"kiln.targets.{name}" for name in ("host.lower", "host.expand", "cpu.sanitizer.instrument")} & set(
        loaded
    )
    assert "kiln.native.emit" not in loaded  # nor was the runtime traced
    assert "kiln.dialects.nvgpu" not in loaded  # it uses none of it
    assert "importlib.metadata" not in loaded


def test_the_verb(child, tmp_path):
    env = {"CUTE_DSL_CACHE_DIR": str(tmp_path / "cache"), "CUTE_DSL_DISABLE_FILE_CACHING": "0"}
    child(program_without_native_objects(tmp_path), **env)
    done = child("-m", "kiln", "cache", "info", **env)
    count = len(list((tmp_path / "cache").glob("*/*.kiln")))
    assert count >= 5  # the program's, its function, the runtime's, that of native calls, and the hash of the sources
    assert f"{count} entries" in done.stdout
    assert str(tmp_path / "cache") in done.stdout
    assert f"removed {count} entries" in child("-m", "kiln", "cache", "clear", **env).stdout
    assert "0 entries" in child("-m", "kiln", "cache", "info", **env).stdout
    assert child("-m", "kiln", "cache", "burn", **env).returncode == 2
    (tmp_path / "cache").chmod(0o777)
    refused = child("-m", "kiln", "cache", "clear", **env)
    assert refused.returncode == 1
    assert "others can write" in refused.stdout


# --- code for GPUs ---------------------------------------------------------------------------------------------------

GPU_PROGRAM = """
import json
import numpy as np
import cutlass.cute as cute
from kiln.base_dsl import target as targets

compiled = []
real = targets.get_target("nvidia")
compile_ = real.compile
real.compile = lambda *a, **k: (compiled.append(1), compile_(*a, **k))[1]

@cute.kernel
def double(x: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    x[t] = x[t] * 2

@cute.jit
def launch(x: cute.Tensor):
    double(x).launch(grid=1, block=32)

x = cute.runtime.from_dlpack(np.zeros(32, np.float32))
facts = []
for options in ("--gpu-arch sm_90a", "--gpu-arch sm_80", "--gpu-arch sm_90a --ptxas-options -O1", "--gpu-arch sm_90a"):
    made = cute.compile(launch, x, target="nvidia", options=options)
    facts.append([str(made.resources["double"]), len(made.__cubin__), ".entry double" in made.__ptx__])
print(json.dumps([len(compiled), facts]))
"""


@pytest.mark.skipif(codegen.ptxas_version() is None, reason="there is no ptxas")
def test_code_for_gpus(run, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(GPU_PROGRAM)
    compiled, facts = run(path)
    assert compiled == 3  # the fourth is the first
    assert facts[0] == facts[3] != facts[1]
    assert all("registers=0" not in resources and size and named for resources, size, named in facts)
    assert run(path) == [0, facts]
    assert len(files(tmp_path)) == 3


def test_the_contents_of_linked_libraries_count(tmp_path):
    library = tmp_path / "functions.bc"
    options = CompileOptions("--gpu-arch sm_90a", LinkLibraries(str(library)))
    fingerprints = []
    for contents in (b"one", b"two"):
        library.write_bytes(contents)
        fingerprints.append(get_target("nvidia").fingerprint(options))
    assert fingerprints[0] != fingerprints[1]
    library.unlink()
    with pytest.raises(DSLRuntimeError, match="LinkLibraries: .*functions.bc"):
        get_target("nvidia").fingerprint(options)
