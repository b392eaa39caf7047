# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
"""What native calls need is there when compiling ends: no later call waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest
from native_calls_testing import python_calls

import kiln.cute as cute
from kiln import Float32, Int32
from kiln.base_dsl import target
from kiln.interop.arguments import engine, loading
from kiln.targets.host import jit

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython" or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="calls are made by Python here",
)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(target, "_process_choice", "cpu")


@cute.jit
def scale(x: cute.Tensor, n: Int32, factor: Float32):
    for i in range(n):
        x[i] = x[i] * factor


def test_native_code_takes_the_first_call_of_a_compiled_function():
    x = np.ones(4, np.float32)
    compiled = cute.compile(scale, x, 4, 1.0)
    assert python_calls(lambda: compiled(x, 4, 2.0)) == 0
    assert python_calls(lambda: compiled(n=4, factor=2.0, x=x)) == 0
    assert x.tolist() == [4.0] * 4


def test_native_code_takes_the_second_call_of_a_jit_function():
    @cute.jit
    def double(x: cute.Tensor):
        x[0] = x[0] * 2

    x = np.ones(4, np.float32)
    assert python_calls(lambda: double(x)) == 1
    assert python_calls(lambda: double(x)) == 0
    assert x[0] == 4.0


def test_types_that_compiling_did_not_see_are_learned_in_the_call_that_brings_them():
    torch = pytest.importorskip("torch")
    compiled = cute.compile(scale, np.ones(4, np.float32), 4, 1.0)
    first, second = torch.ones(4), torch.ones(4)
    compiled(first, 4, 2.0)
    if "__dlpack_c_exchange_api__" in dir(torch.Tensor):
        assert python_calls(lambda: compiled(second, 4, 2.0)) == 0


def test_a_call_that_finds_no_native_code_does_not_wait_for_it(monkeypatch):
    x = np.ones(4, np.float32)
    monkeypatch.setattr(loading, "_engine", None)  # as while another thread is loading it
    monkeypatch.setattr(loading, "engine", lambda: None)
    compiled = cute.compile(scale, x, 4, 1.0)
    monkeypatch.setattr(loading, "engine", lambda: pytest.fail("a call loads native code"))
    for _ in range(12):
        assert python_calls(lambda: compiled(x, 4, 2.0)) == 1
    assert x[0] == 2.0**12


_FIRST_CALLS = """
import numpy as np

import kiln.cute as cute
from kiln import kernels
from kiln.base_dsl import cache
from kiln.targets.host import jit


@cute.kernel
def kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = x[thread] + 1


@cute.jit
def launch(x: cute.Tensor):
    kernel(x).launch(grid=(1, 1, 1), block=(4, 1, 1))


x, y = np.zeros(4, np.float32), np.ones((2, 4), np.float32)
compiled = cute.compile(launch, x)
launch(x)
kernels.softmax(y)


def refuse(*given, **named):
    raise AssertionError("a call prepares something")


for owner, name in (
    (cache, "load"), (cache, "keeping"), (cache, "compile_module"), (jit, "optimize"), (jit, "emit_object"),
    (jit.Library, "__init__"),
):
    setattr(owner, name, refuse)
for _ in range(20):
    compiled(x)
    launch(x)
    assert np.allclose(kernels.softmax(y), 0.25)
assert x.tolist() == [41.0] * 4
print("ready")
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("cached", [False, True])
def test_no_call_prepares_anything(cached, tmp_path, monkeypatch):
    """In a process of its own, with an empty cache and with a full one."""
    monkeypatch.setenv("KILN_TARGET", "cpu")
    if not cached:
        monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "cache"))
    program = tmp_path / "program.py"
    program.write_text(_FIRST_CALLS)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.stdout == "ready\n", done.stderr


# --- what is made beside compiling -----------------------------------------------------------------------------------


def test_object_code_is_made_by_another_thread():
    makers = []

    def make():
        makers.append(threading.current_thread())
        return b"code"

    wait = jit.beside(make)
    assert wait() == b"code" == wait()
    assert len(makers) == 1
    assert makers[0] is not threading.current_thread()
    assert not makers[0].is_alive()


def test_without_another_thread_whoever_waits_makes_it(monkeypatch):
    def no_more(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert jit.beside(lambda: b"code")() == b"code"


def test_what_fails_beside_fails_for_whoever_waits():
    def make():
        raise RuntimeError("no module")

    wait = jit.beside(make)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no module"):
            wait()


_FORKED = """
import os
import threading

from kiln.targets.host import jit

begun, end, makers = threading.Event(), threading.Event(), []


def make():
    makers.append(threading.current_thread())
    begun.set()
    if makers[0] is threading.current_thread():
        end.wait()
    return b"code"


wait = jit.beside(make)
begun.wait()
child = os.fork()
if child == 0:  # the thread is not here
    os._exit(0 if wait() == b"code" and len(makers) == 2 else 1)
assert os.waitpid(child, 0)[1] == 0
end.set()
assert wait() == b"code"
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_meanwhile(child, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_FORKED)
    done = child(program)
    assert done.stdout == "done\n", done.stderr


def test_loading_begins_once_and_is_waited_for(monkeypatch):
    events, made = [], object()

    class Loader:
        def __init__(self, load):
            events.append(load)

        def begin_programs(self):
            events.append("programs")

        def finish(self):
            events.append("ended")
            return made

    monkeypatch.setattr(loading, "_engine", None)
    monkeypatch.setattr(loading, "_loader", None)
    monkeypatch.setattr(loading, "_provider", lambda: "begun")
    monkeypatch.setattr(engine, "begin_loading", Loader)
    loading.prepare()
    loading.prepare()
    assert events == ["begun"]
    assert loading.loaded() is None
    assert loading.engine() is made
    assert loading.engine() is loading.loaded() is made
    loading.prepare()
    assert events == ["begun", "ended"]
    loading.prepare(programs=True)
    assert events == ["begun", "ended", "programs"]


@pytest.mark.parametrize("setting", ["0", "1"])
def test_a_setting_leaves_all_calls_to_python(setting, child):
    done = child(
        "-c",
        """if True:
            from kiln.interop.arguments import loading
            print(loading.engine() is None)""",
        KILN_NATIVE_CALLS=setting,
    )
    assert (done.stdout, done.stderr) == (f"{setting == '0'}\n", "")
