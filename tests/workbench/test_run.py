"""`kiln run` against `python` itself: the same program, the same output, the same end."""

from __future__ import annotations

import re
import signal
import zipfile
from pathlib import Path

import pytest

from kiln.workbench import run

# Prints everything about its own surroundings that a program may rely on.
SELF_PORTRAIT = '''
"""Its docstring."""
import json, sys, __main__
number: int = 3
attributes = {k: repr(v) for k, v in sorted(vars(__main__).items()) if k.startswith("__")}
print(json.dumps([sys.argv, sys.path, attributes, globals() is vars(__main__), sys._getframe().f_code.co_filename]))
'''

FAILURE = """
def deep():
    try:
        {}["key"]
    except KeyError as error:
        raise ValueError("boom") from error
if __name__ == "__main__":
    deep()
"""


def same(child, *program: str, stdin: str = "", **env: str):
    """Run it with `python` and with `kiln run`; both must end alike. Returns the run under Kiln."""
    plain, kiln = child(*program, stdin=stdin, **env), child("-m", "kiln", "run", *program, stdin=stdin, **env)
    addresses = re.compile(r"0x[0-9a-f]+")
    for stream in ("stdout", "stderr"):
        assert addresses.sub("", getattr(kiln, stream)) == addresses.sub("", getattr(plain, stream))
    assert kiln.returncode == plain.returncode
    return kiln


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return name

    return write


def test_a_file(child, write):
    done = same(child, write("sub/prog.py", SELF_PORTRAIT), "--target", "-m", "--", "-h", "")
    assert '["sub/prog.py", "--target", "-m", "--", "-h", ""]' in done.stdout


def test_a_file_behind_a_link(child, write, tmp_path):
    write("real/prog.py", SELF_PORTRAIT)
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "prog.py")
    same(child, "link.py")


def test_a_module(child, write):
    write("pack/__init__.py", "")
    write("pack/prog.py", SELF_PORTRAIT)
    same(child, "-m", "pack.prog", "-x", "--target", "cpu")


def test_a_module_glued_to_its_option(child, write):
    write("prog.py", SELF_PORTRAIT)
    same(child, "-mprog", "x")


def test_standard_input(child):
    same(child, "-", "a", "--b", stdin=SELF_PORTRAIT)


def test_code_on_the_command_line(child):
    done = same(child, "-c", SELF_PORTRAIT, "a", "-m", "--target", "-c")
    assert '["-c", "a", "-m", "--target", "-c"]' in done.stdout
    same(child, f"-c{SELF_PORTRAIT}", "x")
    same(child, "-c", "import sys\nsys.exit(3)")
    same(child, "-c", "1 +")
    done = same(child, "-c", "def f():\n    return 1 / 0\nf()")
    assert "run.py" not in done.stderr


@pytest.mark.parametrize("glued", [False, True])
def test_functions_of_the_language_on_the_command_line(child, glued):
    text = """
import cutlass, cutlass.cute as cute
@cute.jit
def double_if_large(x: cutlass.Int32):
    if x > 2:
        x = x * 2
    return x
print(double_if_large(1), double_if_large(5))
"""
    words = ["-c" + text] if glued else ["-c", text]
    done = child("-m", "kiln", "run", "--target", "cpu", *words)
    assert done.stdout == "1 10\n", done.stderr


def test_a_folder_and_a_zip_file(child, write, tmp_path):
    write("folder/__main__.py", SELF_PORTRAIT)
    same(child, "folder", "x")
    with zipfile.ZipFile(tmp_path / "packed.pyz", "w") as packed:
        packed.writestr("__main__.py", SELF_PORTRAIT)
    same(child, "packed.pyz", "x")


def test_tracebacks_show_no_frame_of_the_runner(child, write):
    done = same(child, write("prog.py", FAILURE))
    assert done.returncode == 1
    assert "ValueError: boom" in done.stderr
    assert "workbench" not in done.stderr
    write("pack/__main__.py", FAILURE)
    same(child, "-m", "pack")


@pytest.mark.quick(2)
@pytest.mark.parametrize("text", ["def f(:\n", "x = '\n", "\tif", "return 1\n"])
def test_syntax_errors(child, write, text):
    done = same(child, write("prog.py", text))
    assert done.returncode == 1


def test_the_declared_encoding_counts(child, tmp_path):
    (tmp_path / "prog.py").write_bytes("# -*- coding: latin-1 -*-\nprint(ascii('é'))\n".encode("latin-1"))
    assert same(child, "prog.py").stdout == "'\\xe9'\n"


def test_features_of_the_runner_are_not_inherited(child, write):
    # The runner itself has `from __future__ import annotations`.
    assert same(child, write("prog.py", "x: 1 + 1\nprint(__annotations__)\n")).stdout == "{'x': 2}\n"


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "end", ["sys.exit()", "sys.exit(7)", "sys.exit('sorry')", "raise SystemExit(3)", "os._exit(9)"]
)
def test_exit_status(child, write, end):
    same(child, write("prog.py", f"import os, sys\n{end}\n"))


def test_the_end_of_a_process(child, write):
    """Exit handlers and threads that outlive the program's last line still see its globals."""
    program = """
import atexit, threading, time
word = "still here"
atexit.register(lambda: print("atexit", word))
def late():
    time.sleep(0.2)
    import __main__
    print("thread", __main__.word)
threading.Thread(target=late).start()
"""
    assert same(child, write("prog.py", program)).stdout == "thread still here\natexit still here\n"


def test_the_programs_own_excepthook(child, write):
    program = """
import sys, traceback
def hook(kind, value, tb):
    print("hook", kind.__name__, value, [f.name for f in traceback.extract_tb(tb)], value.__traceback__ is tb)
sys.excepthook = hook
def f(): raise ValueError(1)
f()
"""
    done = same(child, write("prog.py", program))
    assert done.stdout == "hook ValueError 1 ['<module>', 'f'] True\n"


def test_interrupted_by_the_keyboard(child, write):
    # a process started in the background may have been told to ignore Ctrl-C
    heed = "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    done = same(child, write("prog.py", heed + "os.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(9)\n"))
    assert done.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in done.stderr


def test_source_from_standard_input_can_be_inspected(child):
    program = "import inspect\ndef f(x):\n    return x + 1  # a remark\nprint(inspect.getsource(f))\n"
    done = child("-m", "kiln", "run", "-", stdin=program)
    assert done.stdout == "def f(x):\n    return x + 1  # a remark\n\n", done.stderr


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(child, write, method):
    program = f"""
import multiprocessing, sys
def work(x):
    import cutlass
    return cutlass.Float32.__module__.partition(".")[0], x * x
if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(1) as pool:
        print(pool.map(work, [3]))
"""
    # Nothing else in the way of the children but a `cutlass` of another maker.
    write("cutlass.py", "raise SystemExit('the wrong cutlass')")
    done = child("-W", "ignore", "-m", "kiln", "run", write("prog.py", program))
    assert done.stdout == "[('kiln', 9)]\n", done.stderr


RIVAL = "__version__ = 'the rival'\n"
WHO = "import sys, cutlass, kiln\nprint(cutlass.Float32 is kiln.Float32, [p for p in sys.path if 'startup' in p])\n"


def test_kiln_serves_cutlass_whatever_else_is_there(child, write, tmp_path):
    write("cutlass/__init__.py", RIVAL)  # beside the program, so first on its search path
    assert "rival" in child("-c", "import cutlass; print(cutlass.__version__)").stdout
    assert child("-m", "kiln", "run", write("prog.py", WHO)).stdout == "True []\n"
    assert child("-m", "kiln", "run", "-", stdin=WHO).stdout == "True []\n"
    assert child("-m", "kiln", "run", "-m", "prog").stdout == "True []\n"


def test_and_in_the_processes_a_program_starts(child, write):
    write("cutlass/__init__.py", RIVAL)
    write("who.py", WHO)
    program = """
import subprocess, sys
for command in (["who.py"], ["-m", "who"], ["-c", open("who.py").read()], ["-m", "kiln", "run", "who.py"]):
    subprocess.run([sys.executable, *command], check=True)
# and theirs
subprocess.run([sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, 'who.py'], check=True)"], check=True)
"""
    done = child("-m", "kiln", "run", write("prog.py", program))
    assert done.stdout == "True []\n" * 5, done.stderr


def test_a_cutlass_imported_too_early_is_replaced(child, write, tmp_path):
    write("site/sitecustomize.py", "import cutlass")
    write("site/cutlass.py", RIVAL)
    done = child("-m", "kiln", "run", write("prog.py", WHO), path=(tmp_path / "site",))
    assert done.stdout == "True []\n", done.stderr


def test_processes_that_do_not_use_cutlass_load_nothing_of_kiln(child, write):
    program = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import sys; print([m for m in sys.modules if m.startswith('kiln')])"], check=True)
"""
    assert child("-m", "kiln", "run", write("prog.py", program)).stdout == "[]\n"


def test_the_environments_own_sitecustomize_still_runs(child, write, tmp_path):
    write("site/sitecustomize.py", "import sys; sys.mark = 'marked'")
    program = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import sys, cutlass, sitecustomize; print(sys.mark, cutlass.Float32.__module__.partition('.')[0], sitecustomize.__file__)"])
"""
    done = child("-m", "kiln", "run", write("prog.py", program), path=(tmp_path / "site",))
    assert done.stdout == f"marked kiln {tmp_path / 'site' / 'sitecustomize.py'}\n", done.stderr


def test_a_child_that_cannot_find_kiln_by_itself(child, write):
    program = """
import os, subprocess, sys
env = dict(os.environ, PYTHONPATH=os.environ["PYTHONPATH"].split(os.pathsep)[0])
subprocess.run([sys.executable, "-c", "import cutlass; print(cutlass.Float32.__module__.partition('.')[0])"], env=env, check=True)
"""
    done = child("-m", "kiln", "run", write("prog.py", program))
    assert done.stdout == "kiln\n", done.stderr


def test_the_search_path_of_children_is_not_changed(child, write):
    program = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import os, sys; print([p for p in sys.path if os.path.basename(p) != 'src'])"], check=True)
"""
    same(child, write("prog.py", program), PYTHONPATH=":/somewhere:" + str(Path(run.__file__).parents[2]))


def test_the_target_is_chosen_for_the_program_and_its_children(child, write):
    program = """
import os, subprocess, sys
print(os.environ.get("KILN_TARGET"), flush=True)
subprocess.run([sys.executable, "-c", "import os; print(os.environ.get('KILN_TARGET'))"])
"""
    write("prog.py", program)
    assert child("-m", "kiln", "run", "--target", "cpu", "prog.py").stdout == "cpu\ncpu\n"
    assert child("-m", "kiln", "run", "--target=nvidia", "prog.py").stdout == "nvidia\nnvidia\n"
    assert child("-m", "kiln", "run", "--target", "cuda", "prog.py").stdout == "nvidia\nnvidia\n"
    assert child("-m", "kiln", "run", "prog.py").stdout == "None\nNone\n"
    assert child("-m", "kiln", "run", "prog.py", KILN_TARGET="cpu").stdout == "cpu\ncpu\n"


def test_the_program_sees_the_architecture_that_is_chosen(child, write):
    write("prog.py", "from kiln.hardware import current\nprint(current.device().capability, current.architecture())\n")
    assert (
        child("-m", "kiln", "run", "--target", "cpu", "--arch", "sm_100a", "prog.py").stdout == "(10, 0) Arch.sm_100a\n"
    )
    assert child("-m", "kiln", "run", "--target", "cpu", "prog.py").stdout == "(9, 0) Arch.sm_90a\n"


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "name a program"),
        (["--arch", "sm_99", "prog.py"], 2, "--arch sm_99: there are sm_80, "),
        (["--target", "cpu"], 2, "name a program"),
        (["-m"], 2, "argument expected for the -m option"),
        (["--target", "cpu", "-c"], 2, "argument expected for the -c option"),
        (["--target", "tpu", "prog.py"], 2, "invalid choice: 'tpu'"),
        (["--target"], 2, "expected one argument"),
        (["--bake", "prog.py"], 2, "unrecognized arguments: --bake"),
        (["missing.py"], 2, "No such file or directory; did you mean 'mission.py'?"),
        (["-m", "no.such.module"], 1, "no.such"),
        (["."], 1, "can't find '__main__' module"),
    ],
)
def test_bad_command_lines(child, tmp_path, words, status, said):
    (tmp_path / "mission.py").touch()
    done = child("-m", "kiln", "run", *words)
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "split"),
    [
        (["p.py", "--target", "x"], ([], ["p.py", "--target", "x"])),
        (["--target", "cpu", "p.py"], (["--target", "cpu"], ["p.py"])),
        (["--target=cpu", "-", "-"], (["--target=cpu"], ["-", "-"])),
        (["--arch", "sm_80", "p.py"], (["--arch", "sm_80"], ["p.py"])),
        (["--", "-odd.py", "x"], ([], ["-odd.py", "x"])),
        (["-m", "mod", "-m"], ([], ["-m", "mod", "-m"])),
        (["-mmod"], ([], ["-m", "mod"])),
        (["--target", "cpu", "-c", "x", "-m"], (["--target", "cpu"], ["-c", "x", "-m"])),
        (["-cx", "y"], ([], ["-c", "x", "y"])),
        ([], ([], [])),
    ],
)
def test_where_the_program_starts(words, split):
    assert run.split(words) == split


def test_the_installed_command_runs_programs_too(child, write, tmp_path):
    """The console script's own folder must not stay on the search path."""
    write("bin/kiln", "import sys\nfrom kiln.workbench.main import main\nsys.exit(main())\n")
    write("prog.py", SELF_PORTRAIT)
    plain, kiln = child("prog.py"), child("bin/kiln", "run", "prog.py")
    addresses = re.compile(r"0x[0-9a-f]+")
    assert addresses.sub("", kiln.stdout) == addresses.sub("", plain.stdout)
