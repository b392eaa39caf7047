"""Threads that import through the alias at once get the same finished modules, in any order."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln import _alias

# While a module of Kiln runs, the alias's name has nothing or that module: another thread would keep a stand-in.
NO_STAND_IN = """
import sys, cutlass
from importlib.machinery import SourceFileLoader
seen = []
run = SourceFileLoader.exec_module
def watch(self, module):
    alias = module.__name__.replace("kiln", "cutlass", 1)
    seen.append(module.__name__)
    assert sys.modules.get(alias) in (None, module), alias
    run(self, module)
    assert sys.modules.get(alias) in (None, module), alias
SourceFileLoader.exec_module = watch
import cutlass.cutlass_dsl, cutlass.cute.runtime, cutlass.base_dsl.arch, cutlass.utils.grouped_gemm_tile_scheduler
assert "kiln.cutlass_dsl" in seen and "kiln.cute.runtime" in seen
for name in ("cutlass_dsl", "cute.runtime", "hardware.architectures"):
    assert sys.modules[f"kiln.{name}"].__spec__.name == f"kiln.{name}"
"""

# Python calls finders with the lock of all imports: one that imported there would wait for threads that wait for the lock.
FINDERS_IMPORT_NOTHING = """
import sys, importlib.util, cutlass
from kiln import _alias
finder = _alias.AliasFinder()
before = set(sys.modules)
for name in ("cute.runtime", "cute.nvgpu.cpasync.copy", "base_dsl.arch", "_mlir", "_mlir.dialects.cute", "utils.gemm.sm100"):
    assert finder.find_spec(f"cutlass.{name}") is not None, name
assert finder.find_spec("cutlass.cute.nonsense") is None
assert finder.find_spec("cutlass.nonsense.runtime") is None
assert set(sys.modules) == before, set(sys.modules) - before
"""

THREADS = """
import sys, threading
if {first!r}: import cutlass
sys.setswitchinterval(1e-6)
names, wrong = {names!r}, []
barrier = threading.Barrier(len(names))
def work(name):
    top, _, last = name.rpartition(".")
    space = {{}}
    barrier.wait()
    try:
        exec(f"import {{name}} as module\\nfrom {{top}} import {{last}} as taken", space)
        if name == "cutlass.cutlass_dsl":
            exec("from cutlass.cutlass_dsl import T, Int32, dsl_user_op", space)
        assert space["module"] is space["taken"] is sys.modules[name], "two modules"
    except BaseException as error:
        wrong.append(f"{{name}}: {{error!r}}")
threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join(60)
wrong += ["waits for ever"] * any(thread.is_alive() for thread in threads)
print(*wrong, sep="\\n")
"""


def test_nothing_stands_in_for_a_module(child):
    done = child("-c", NO_STAND_IN)
    assert (done.returncode, done.stderr) == (0, "")


def test_finders_import_nothing(child):
    done = child("-c", FINDERS_IMPORT_NOTHING)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "names",
    [
        ("cutlass_dsl",) * 4,
        ("cutlass_dsl", "cute"),
        ("vector", "cute.tensor", "cute.typing", "vector", "cute.testing"),
        ("cute.testing", "cute.math", "cute.nvgpu.cpasync", "_mlir.dialects.cute_nvgpu"),
        (
            "_mlir.dialects.arith",
            "_mlir.ir",
            "base_dsl.arch",
            "base_dsl.enums",
            "pipeline",
            "utils",
            "cute.runtime",
            "cute",
        ),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("first", [True, False], ids=["cutlass first", "nothing first"])
def test_threads_import_at_once(child, names, first):
    if not first:  # they all begin with the package itself
        names = ("cutlass_dsl",) * len(names)
    done = child("-c", THREADS.format(names=tuple(f"cutlass.{name}" for name in names), first=first))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


# Another thread comes while the package's own file runs, before Kiln's finder is there.
EARLY = """
import sys, threading
from importlib.machinery import SourceFileLoader
found, begun = [], threading.Event()
run = SourceFileLoader.exec_module
def functions(frame):
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back
def watch(self, module):
    if module.__name__ == "kiln":
        begun.set()
        while not found and "create_module" not in functions(sys._current_frames().get(other.ident)):
            pass  # until the other has ended, or waits for us
    run(self, module)
SourceFileLoader.exec_module = watch
def work():
    begun.wait()
    try:
        import cutlass.cute.runtime as runtime, cutlass
        found.append((runtime.__name__, cutlass.__name__, cutlass.cute.size, cutlass.Float32, "cute" in dir(cutlass)))
    except BaseException as error:
        found.append(repr(error))
other = threading.Thread(target=work)
other.start()
import cutlass, kiln
other.join()
assert cutlass.cute is kiln.cute and "_Early" in vars(cutlass)
assert found == [("kiln.cute.runtime", "cutlass", kiln.cute.size, kiln.Float32, True)], found
"""


def test_a_thread_that_comes_before_the_finder(child):
    done = child("-c", EARLY)
    assert (done.returncode, done.stderr) == (0, "")


def test_processes_of_a_program_import_kiln_when_the_module_loads(child):
    """Their finder comes from `sitecustomize`; the module keeps the spec that others have for it."""
    startup = Path(_alias.__file__).parent / "workbench" / "startup"
    done = child(
        "-c",
        "import sys, importlib.util\n"
        "assert importlib.util.find_spec('cutlass') is not None and 'kiln' not in sys.modules\n"
        "import cutlass, kiln, cutlass.cute.runtime\n"
        "assert cutlass.cute is kiln.cute and kiln.__spec__.name == 'kiln' and kiln.__spec__.origin == kiln.__file__\n",
        path=(startup,),
        KILN_TARGET="cpu",
    )
    assert (done.returncode, done.stderr) == (0, "")
