"""Where programs come from: files, -c, standard input, notebooks, the REPL."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import os
import py_compile
import sys
import textwrap
import zipfile
from typing import Any

import pytest

from kiln import DSLRuntimeError, cute
from kiln.base_dsl.frontend import source

PROGRAM = """\
from kiln import cute

@cute.jit
def f(a):
    s = 0
    for i in range(a):
        if i == 3:
            break
        s += i
    return s

print("result", f(7))
"""


def test_exec_of_a_string_is_refused():
    space: dict[str, Any] = {"cute": cute}
    exec("@cute.jit\ndef f(a):\n    if a > 2:\n        a = 10\n    return a\n", space)
    with pytest.raises(DSLRuntimeError, match="source of 'f' cannot be had") as caught:
        space["f"](5)
    assert "linecache.cache" in caught.value.hint


def test_two_texts_under_one_name():
    results = []
    for factor in (2, 3):
        text = f"@cute.jit\ndef f(a):\n    if a > 2:\n        a = a * {factor}\n    return a\n"
        linecache.cache["<step>"] = (len(text), None, text.splitlines(keepends=True), "<step>")
        space: dict[str, Any] = {"cute": cute}
        exec(compile(text, "<step>", "exec"), space)
        results.append(space["f"](5))
    assert results == [10, 15]


MODULE = """\
from kiln import cute
import math

@cute.jit
def f(a):
    x = math.sqrt({0}) if a > 2 else {1}
    return a + int(x)

class C:
    \"\"\"Methods too.\"\"\"
    other = 1

    @cute.jit
    def method(self, a):
        return a * {1} if a > 2 else a
"""


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write(path, text, time=1_000_000_000):
    path.write_text(text)
    os.utime(path, (time, time))


@pytest.mark.parametrize("time", [1_000_000_000, 4_000_000_000])
def test_a_file_that_changed_after_it_was_imported_is_not_taken_for_the_code(tmp_path, time):
    path = tmp_path / "changing.py"
    text = f"# {time}\n" + "\n" * (time // 1_000_000_000) + MODULE  # functions with the same code are one
    _write(path, text.format(16, 3))
    module = _load(path)
    _write(path, text.format(25, 5), time)  # an old time, as rsync and image layers have it
    with pytest.raises(DSLRuntimeError, match="source of 'f' cannot be had") as caught:
        module.f(5)
    assert "import it again" in caught.value.hint
    with pytest.raises(DSLRuntimeError, match="source of 'method' cannot be had"):
        module.C().method(5)
    _write(path, text.format(16, 3) + "# more\n", time)
    assert [module.f(5), module.f(1), module.C().method(5)] == [9, 4, 15]


def test_a_compiled_file_of_another_text_with_the_same_time_and_size(tmp_path):
    path = tmp_path / "frozen_time.py"
    _write(path, MODULE.format(36, 6))
    py_compile.compile(str(path))
    _write(path, MODULE.format(25, 5))
    with pytest.raises(DSLRuntimeError, match="source of 'f' cannot be had"):
        _load(path).f(5)


def test_notebook_cells():
    # A notebook registers each cell with linecache under a name of its own.
    space: dict[str, Any] = {"cute": cute}
    for number, text in enumerate(
        ["@cute.jit\ndef g(a):\n    return 1 if a > 2 else 0\n", "@cute.jit\ndef h(a):\n    return g(a) + 1\n"]
    ):
        name = f"<ipython-input-{number}-0123456789ab>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), space)
    assert [space["h"](1), space["h"](5)] == [1, 2]


def test_a_function_made_without_source_is_refused():
    space: dict = {}
    exec(compile("def f(a):\n    return a\n", "<without source>", "exec"), space)
    with pytest.raises(DSLRuntimeError, match="source of 'f' cannot be had") as caught:
        cute.jit(space["f"])(1)
    assert "file or a notebook" in caught.value.hint


def test_nothing_watches_the_process(child):
    """An audit hook would make `id` and others slower for all of the program."""
    program = """
import sys

added = []
sys.addaudithook = added.append
import kiln
from kiln import cute, kernels
@cute.jit
def f(a):
    return 1 if a > 2 else 0

print(f(5), added)
"""
    done = child("-c", program, KILN_TARGET="cpu")
    assert done.stdout == "1 []\n", done.stderr


def test_dash_c(child):
    done = child("-c", PROGRAM, KILN_TARGET="cpu")
    assert done.stdout == "result 3\n", done.stderr


def test_a_file(child, tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    done = child("prog.py", KILN_TARGET="cpu")
    assert done.stdout == "result 3\n", done.stderr


def test_a_zip_file(child, tmp_path):
    wrong = "\n@cute.jit\ndef g(a: cute.Int32):\n    assert a < 3, 'too large'\n    return a\n\ng(4)\n"
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as file:
        file.writestr("__main__.py", PROGRAM.replace("cute\n", "cute\nimport inside\n", 1) + wrong)
        file.writestr("inside.py", PROGRAM.replace("f(7)", "f(3)"))
    done = child("app.pyz", KILN_TARGET="cpu")
    assert done.stdout == "result 3\nresult 3\n", done.stderr
    assert "app.pyz/__main__.py:17: error: assertion failed: too large" in done.stderr
    assert "    assert a < 3" in done.stderr


def test_a_file_whose_name_is_not_utf8(child, tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(folder)
    with open(folder + b"/prog.py", "w") as file:
        file.write(PROGRAM + OF_KERNEL)
    name = os.fsdecode(folder + b"/prog.py")
    done = child(name, KILN_TARGET="cpu")
    assert done.stdout == "result 3\nfile %FF%FE/prog.py\n", done.stderr
    shown = name.encode("ascii", "backslashreplace").decode()
    assert f"{shown}:23: error: assertion failed: too many" in done.stderr
    assert '    assert t < 10, "too many"' in done.stderr


OF_KERNEL = """
import re

@cute.jit
def main(x: cute.Tensor):
    k(x).launch(grid=1, block=32)

@cute.kernel
def k(x: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    assert t < 10, "too many"
    x[t] = 1.0

import numpy as np
x = np.zeros(32, np.float32)
made = cute.compile(main, x, target="nvidia", options="--gpu-arch sm_90a --generate-line-info")
print("file", re.search(r'\\.file.*?/([^/]*/prog.py)"', made.__ptx__)[1])
main(x)
"""


def test_redirected_standard_input(child, tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    runner = "import subprocess, sys; sys.exit(subprocess.run([sys.executable], stdin=open('prog.py')).returncode)"
    done = child("-c", runner, KILN_TARGET="cpu")
    assert done.stdout == "result 3\n", done.stderr


def test_a_text_under_the_name_of_the_command_line(child):
    """It has a function of the same name, with the same parameters, on the same line."""
    program = (
        PROGRAM.replace("f(7)", "f(5)") + 'exec("\\n\\n@cute.jit\\ndef f(a):\\n    return 1 if a > 2 else 0")\nf(5)\n'
    )
    done = child("-c", program, KILN_TARGET="cpu")
    assert done.stdout == "result 3\n"
    assert "the source of 'f' cannot be had" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo terminal")
def test_the_interactive_interpreter(child, tmp_path):
    typed = textwrap.dedent(
        """
        from kiln import cute
        @cute.jit
        def f(a):
            if a > 2:
                return 10
            return a

        print("result", f(1), f(5))
        exit()
        """
    ).lstrip()
    (tmp_path / "typed.txt").write_text(typed)
    (tmp_path / "drive.py").write_text(
        textwrap.dedent(
            """
            import os, pty, sys, time

            pid, terminal = pty.fork()
            if pid == 0:
                os.environ["TERM"] = "dumb"
                os.environ["PYTHON_BASIC_REPL"] = "1"
                os.execv(sys.executable, [sys.executable, "-q"])
            output = b""

            def read_until_prompt():
                global output
                start = len(output)
                while not output[start:].rstrip().endswith((b">>>", b"...")):
                    try:
                        data = os.read(terminal, 4096)
                    except OSError:
                        return False
                    if not data:
                        return False
                    output += data
                return True

            alive = read_until_prompt()
            for line in open("typed.txt"):
                os.write(terminal, line.encode())
                if not read_until_prompt():
                    break
            os.waitpid(pid, 0)
            sys.stdout.write(output.decode(errors="replace"))
            """
        )
    )
    done = child("drive.py", KILN_TARGET="cpu", TERM="dumb")
    result = "result 1 10" if sys.version_info >= (3, 13) else "the source of 'f' cannot be had"
    assert result in done.stdout, done.stdout + done.stderr


SHAPES = '''\
import functools
import math


def kept(*_):
    return lambda function: function


def one_line(a): return a + 1


@kept(
    1,
)
def long_signature(
    a,
    b=2,
):
    """Texts
at the margin."""
    if a:
# a comment at the margin
        b = math.sqrt(
    a)

    # a comment that ends it
    return b


def with_dead_code(a):
    return a
    x: int = 3
    """
a text that nobody reads"""


class Outer:
    @kept()
    @kept(2)
    def method(self, a):
        return self.__private + a

    class Inner:
        def deeper(self):
            return [x for x in range(3)]

    async def waits(self): pass


def around():
    def inside():
        return around
    return inside, lambda: 1


if math:
    def conditional():
        return functools.reduce
'''


def test_a_function_parsed_alone_is_the_one_of_the_whole_file(tmp_path):
    path = tmp_path / "shapes.py"
    path.write_text(SHAPES)
    module = _load(path)
    inside, unnamed = module.around()
    functions = [
        module.kept, module.one_line, module.long_signature, module.with_dead_code, module.Outer.method, module.Outer.Inner.deeper,
        module.Outer.waits, module.around, inside, unnamed, module.conditional,
    ]  # fmt: skip
    alone = [source._find_alone(function.__code__) for function in functions]
    for function, found in zip(functions, alone, strict=True):
        whole = source._find_in_whole(function.__code__, vars(module))
        assert ast.dump(source.find(function.__code__, vars(module)), include_attributes=True) == ast.dump(
            whole, include_attributes=True
        )
        assert found is None or ast.dump(found) == ast.dump(whole)
    if sys.version_info >= (3, 11):
        missing = {function.__name__ for function, found in zip(functions, alone, strict=True) if found is None}
        assert missing == {"with_dead_code", "inside", "<lambda>", "conditional"}


def test_of_a_file_that_changed_nothing_is_parsed_alone(tmp_path):
    path = tmp_path / "shapes.py"
    path.write_text(SHAPES)
    module = _load(path)
    path.write_text(SHAPES.replace("return a + 1", "return a + 2"))
    linecache.checkcache(str(path))
    assert source._find_alone(module.one_line.__code__) is None
    assert source._find_alone(module.around.__code__) is not None or sys.version_info < (3, 11)
