"""Rewritten functions in the disk cache: another process gets the same, whatever happened to the file or the entry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.base_dsl import cache

PROGRAM = """\
import json

from kiln import DSLBaseError, cute
from kiln.base_dsl.frontend import rewriter

rewritten = []
rewrite = rewriter._rewrite_code


def noted(function, typed):
    if function.__module__ == "__main__":
        rewritten.append(function.__name__)
    return rewrite(function, typed)


rewriter._rewrite_code = noted


class Owner:
    __factor = 3

    @cute.jit
    def method(self, a: cute.Int32):
        total = a
        for i in range(a):
            if i == 4:
                break
            total += self.__factor * i
        else:
            total = -1
        return total


@cute.jit
def inner(a: cute.Int32, given: cute.Constexpr):
    # two values of a variable
    if a > 2:
        x = a
    else:
        x = given
    return x


def outer(step):
    @cute.jit
    def captured(a: cute.Int32):
        return a + step if a > 2 and a < 9 else a

    return captured(5)


def failure(call):
    try:
        return call()
    except DSLBaseError as reason:
        return str(reason)


results = [Owner().method(7), Owner().method(2), inner(5, 1), failure(lambda: inner(5, "text")), outer(2), outer(3)]
print(json.dumps([rewritten, results]))
"""


LINE = 1 + PROGRAM[: PROGRAM.index("    if a > 2:")].count("\n")


@pytest.fixture
def run(child, tmp_path):
    """Run the program in a new process: the functions that were rewritten, and what it computed."""

    def start(text: str, **env: str):
        path = tmp_path / "program.py"
        path.write_text(text)
        env = {"CUTE_DSL_CACHE_DIR": str(tmp_path / "cache"), "CUTE_DSL_DISABLE_FILE_CACHING": "0", **env}
        done = child(path, **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return start


def test_another_process_rewrites_nothing(run):
    names, results = run(PROGRAM)
    assert sorted(names) == ["captured", "inner", "method"]
    assert results[:3] == [7 + 3 * 6, -1, 5]
    assert f"program.py:{LINE}: error" in results[3]
    assert results[4:] == [7, 8]
    assert run(PROGRAM) == [[], results]


@pytest.mark.quick(0)
def test_a_file_that_changed_is_rewritten(run):
    before = run(PROGRAM)[1]
    assert run(PROGRAM.replace("i == 4", "i == 3")) == [["method", "inner", "captured"], [7 + 3 * 3, *before[1:]]]
    moved, results = run("\n\n" + PROGRAM)
    assert len(moved) == 3
    assert f"program.py:{LINE + 2}: error" in results[3]
    assert f"at line {LINE + 2}" in results[3]
    assert run(PROGRAM) == [[], before]


@pytest.mark.quick(0)
def test_damaged_entries_are_made_anew(run, tmp_path):
    names, results = run(PROGRAM)
    for path in Path(tmp_path / "cache").glob("*/*.kiln"):
        entry = cache._decode(path.stem, path.read_bytes())
        assert entry is not None
        path.write_bytes(cache._encode(path.stem, cache.Entry(entry.facts, dict.fromkeys(entry.data, b"?"))))
    assert run(PROGRAM) == [names, results]
    assert run(PROGRAM) == [[], results]


@pytest.mark.quick(0)
def test_without_the_disk_cache_nothing_is_kept(run, tmp_path):
    names, results = run(PROGRAM, CUTE_DSL_DISABLE_FILE_CACHING="1")
    assert len(names) == 3
    assert run(PROGRAM, CUTE_DSL_DISABLE_FILE_CACHING="1") == [names, results]
    assert not list(Path(tmp_path).glob("cache/*/*.kiln"))


def test_cells_of_notebooks_are_not_kept(child, tmp_path):
    """Their files are named after a process, and are nowhere."""
    program = tmp_path / "program.py"
    program.write_text(
        "import linecache\n"
        "from kiln import cute\n"
        "text = '@cute.jit\\ndef f(a: cute.Int32):\\n    return a + 1 if a > 2 else a\\n'\n"
        "name = '/tmp/ipykernel_4321/12345.py'\n"
        "linecache.cache[name] = (len(text), None, text.splitlines(True), name)\n"
        "space = {'cute': cute, '__name__': 'cell'}\n"
        "exec(compile(text, name, 'exec'), space)\n"
        "from kiln.base_dsl import cache\n"
        "kept, keeping = [], cache.keeping\n"
        "cache.keeping = lambda *given: (kept.append(given[:2]), keeping(*given))[1]\n"
        "print(space['f'](5), any(what == 'rewritten function' and name in of for what, of in kept))\n"
    )
    env = {"CUTE_DSL_CACHE_DIR": str(tmp_path / "cache"), "CUTE_DSL_DISABLE_FILE_CACHING": "0"}
    assert child(program, **env).stdout.split() == ["6", "False"]
