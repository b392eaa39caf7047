"""Errors as terminals, pytest and IPython show them: the user's frames alone, colours, pages of the knowledge base."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kiln.bank_conflicts import Report, SharedAccess
from kiln.base_dsl import diagnostics, uncaught
from kiln.base_dsl.diagnostics import DSLRuntimeError, Span, coloured, in_colour

ROOT = Path(__file__).parents[2]
PROGRAM = """
import kiln
from kiln import cute


@cute.jit
def main(n: kiln.Constexpr):
    cute.make_layout(4, stride=(1, 2))


def call():
    if MODE == "layout":
        cute.make_swizzle(3, 3, 1)
    if MODE == "name":
        cute.no_such_name
    main(4)
"""


def write(tmp_path: Path, mode: str) -> Path:
    path = tmp_path / "prog.py"
    path.write_text(f"MODE = {mode!r}\n{PROGRAM}\n\nif __name__ == '__main__':\n    call()\n")
    return path


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["trace", "layout", "name"])
def test_terminal(mode, child, tmp_path):
    program = write(tmp_path, mode)
    said = child(program, KILN_TARGET="cpu").stderr
    assert said.count("src/kiln") == 0, said
    assert f'File "{program}"' in said
    whole = child("-X", "dev", program, KILN_TARGET="cpu").stderr
    assert "src/kiln" in whole, whole


def test_threads(child, tmp_path):
    program = write(tmp_path, "layout")
    text = program.read_text().replace(
        "    call()\n", "    import threading\n    threading.Thread(target=call).start()\n"
    )
    program.write_text(text)
    said = child(program, FORCE_COLOR="1").stderr
    assert "src/kiln" not in said
    assert "cute.make_swizzle(3, 3, 1)" in said
    assert "src/kiln" in child("-X", "dev", program).stderr


def test_the_kernel_library_and_what_it_calls(child, tmp_path):
    program = tmp_path / "prog.py"
    program.write_text(
        "import numpy as np\nfrom kiln import kernels\nx = np.zeros((3, 4), np.float32)\nkernels.gemm(x, x)\n"
    )
    said = child(program, KILN_TARGET="cpu").stderr
    assert said.count('File "') == 1, said
    assert "do not go together" in said


def test_colours_are_for_terminals(child, tmp_path):
    program = write(tmp_path, "trace")
    assert "\x1b[" not in child(program, KILN_TARGET="cpu").stderr
    said = child(program, KILN_TARGET="cpu", FORCE_COLOR="1").stderr
    assert "\x1b[1;31m error:\x1b[0m" in said
    assert "\x1b[1;31m error" not in child(program, KILN_TARGET="cpu", FORCE_COLOR="1", NO_COLOR="1").stderr


def test_what_is_coloured():
    failure = DSLRuntimeError("wrong", hint="do it right", span=Span(__file__, 1))
    with coloured():
        text = str(failure)
    assert text == in_colour(str(failure))
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == str(failure)
    assert "\x1b[1;32mhelp:\x1b[0m do it right" in text


def test_pytest_shows_the_users_frames(child, tmp_path):
    write(tmp_path, "layout")
    (tmp_path / "test_prog.py").write_text("import prog\n\n\ndef test_it():\n    prog.call()\n")
    command = ("-m", "pytest", "-q", "-p", "kiln.pytest_plugin", "-p", "no:cacheprovider", "test_prog.py")
    said = child(*command, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1").stdout
    assert "prog.py:14: LayoutError" in said, said
    assert "swizzle.py" not in said


def test_ipython_shows_the_users_frames(child, tmp_path):
    pytest.importorskip("IPython")
    write(tmp_path, "layout")
    said = child("-m", "IPython", "--colors=nocolor", "-c", "import prog; prog.call()", KILN_TARGET="cpu")
    assert "S<3,3,1>" in said.stdout + said.stderr
    assert "swizzle.py" not in said.stdout + said.stderr


@pytest.mark.parametrize("shows", [False, True])
def test_notes_are_shown_by_every_ipython(shows, monkeypatch):
    failure = DSLRuntimeError("wrong", page="missing-barrier")
    whole = ["Traceback", "wrong", *(failure.__notes__ if shows else [])]
    formatter = SimpleNamespace(structured_traceback=lambda kind, value, tb: whole)
    shell = SimpleNamespace(InteractiveTB=formatter, colors="nocolor")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert failure._render_traceback_() == ["Traceback", "wrong", "more: kiln kb show missing-barrier"]


def test_cells_of_notebooks_are_called_as_ipython_calls_them(monkeypatch):
    cells = {"/tmp/ipykernel_1/23.py": ("Cell", "In[3]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    module = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert str(DSLRuntimeError("wrong", span=Span("/tmp/ipykernel_1/23.py", 4))) == "Cell In[3]:4: error: wrong"
    access = SharedAccess("turn", "ld", 4, Span("/tmp/ipykernel_1/23.py", 4), (), 1, 32, 1, 32, 32)
    assert "ld 4 B     Cell In[3]:4 (turn)" in str(Report([access]))
    assert str(Span("prog.py", 4)) == "prog.py:4"
    shell.compile = None  # an older IPython
    assert str(Span("prog.py", 4)) == "prog.py:4"


def test_pages_that_errors_name_are_there():
    pages = {path.stem for path in (ROOT / "docs" / "knowledge").rglob("*.md")}
    from kiln.targets.cpu.sanitizer.finding import _PAGES
    from kiln.targets.cpu.sanitizer.state import RULES

    named = set(_PAGES.values()) | {"zeros-by-predicate", "registers-past-their-end"}
    for path in (ROOT / "src" / "kiln").rglob("*.py"):
        named |= set(re.findall(r'\bpage="([\w-]+)"', path.read_text()))
    assert named <= pages
    assert set(_PAGES) <= set(RULES)


def test_an_error_names_its_page():
    failure = diagnostics.type_error("wrong", page="missing-barrier")
    assert failure.__notes__ == ["more: kiln kb show missing-barrier"]


@pytest.mark.parametrize("text", ["Torch not compiled with CUDA enabled", "Found no NVIDIA driver on your system."])
def test_torch_without_a_gpu(text):
    failure = RuntimeError(text)
    uncaught.clean(failure)
    uncaught.clean(failure)
    assert len(failure.__notes__) == 1
    assert "kiln run --target cpu" in failure.__notes__[0]


def test_the_hook_is_installed_once():
    before = sys.excepthook
    try:
        uncaught.install()
        assert sys.excepthook is before or sys.excepthook.__module__ == uncaught.__name__
        uncaught.install()
        assert sys.excepthook.__module__ == uncaught.__name__
    finally:
        sys.excepthook = before
