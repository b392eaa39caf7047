"""What tests of several parts share."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kiln
from kiln.hardware import current

# pytest makes longer code of the assertions of a package that has a plugin, here of all Kiln's modules, and takes seconds for that.
for _finder in sys.meta_path:
    getattr(_finder, "_must_rewrite", set[str]()).discard("kiln")

# Tests of the compiler compile, and leave nothing in the user's cache; those of the cache switch it on.
os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")

# Programs of the tests are checked where a test asks for it: each first launch would compile a second build.
os.environ.setdefault("KILN_CHECKS", "never")

# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start with them: some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Folders and files whose tests say what programs mean, not how quick they are: LLVM would take most of their time. Those of the
# CPU target, of arithmetic, of vectors and of some kernels optimize, as users' programs do; `KILN_CPU_OPT=2 make test`, and the long
# stage, let all of them.
UNOPTIMIZED = (
    "base_dsl/frontend/",
    "interop/arguments/",
    "interop/jax/",
    "interop/test_",
    "interop/torch/",
    "interop/tvm_ffi/",
    "targets/cpu/sanitizer/",
    "cute/atoms/",
    "cute/host/",
    "cute/nvgpu/",
    "cute/program/",
    "examples/",
    "kernels/",
    "pipeline/",
    "test_nn.py",
    "utils/",
)
OPTIMIZED = ("kernels/impl/elementwise/", "kernels/impl/reduction/")
"""Of these, folders whose kernels take little time to compile."""


GPU = Path(__file__).parent / "gpu"


def pytest_configure(config: pytest.Config) -> None:
    """Tests mean a machine without a GPU: where there is one, it is hidden, unless those of `tests/gpu` are asked for by name."""
    asked = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    if os.path.exists("/dev/nvidiactl") and not any(path.is_relative_to(GPU) for path in asked):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a function marked `quick(n)` only n cases run, evenly spaced, unless KILN_LONG_TESTS=1: CI has 20 minutes."""
    if os.environ.get("KILN_LONG_TESTS", "") not in ("", "0") or any("::" in argument for argument in config.args):
        return
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[pytest.Item] = set()
    for cases in functions.values():
        marker = cases[0].get_closest_marker("quick")
        assert marker is not None
        count = marker.args[0]
        kept = {index * len(cases) // count for index in range(count)} if count < len(cases) else set(range(len(cases)))
        left.update(case for index, case in enumerate(cases) if index not in kept)
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    """Searches for garbage leave aside what tests are made of: half a million objects, 0.4 s each time one asks for all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _unoptimized(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    where = request.path.relative_to(Path(__file__).parent).as_posix()
    if where.startswith(UNOPTIMIZED) and not where.startswith(OPTIMIZED) and "KILN_CPU_OPT" not in os.environ:
        monkeypatch.setenv("KILN_CPU_OPT", "0")


Child = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def child(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Child:
    """Runs `python ARGS...` in `tmp_path`, with this Kiln importable, and returns the completed process.

    `path` lists entries to put before Kiln on the module search path; other keywords become environment variables. Programs
    share a disk cache of this run of the tests, so that each need not make the runtime anew (0.5 s; the sanitizer's, 2 s).
    """
    root = str(Path(kiln.__file__ or "").parent.parent)
    packages = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    run_folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run_folder = run_folder.parent
    cache = {"CUTE_DSL_DISABLE_FILE_CACHING": "0", "CUTE_DSL_CACHE_DIR": str(run_folder / "kiln-cache")}

    def run(*args: str | os.PathLike[str], stdin: str = "", path: tuple[str | Path, ...] = (), **env: str):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "PYTHON"))}
        clean |= {
            "KILN_CHECKS": "never",
            "PYTHONPATH": os.pathsep.join(map(str, [*path, root, *packages])),
            **cache,
            **env,
        }
        command = [sys.executable, *map(str, args)]
        return subprocess.run(
            command, cwd=tmp_path, env=clean, input=stdin, capture_output=True, text=True, timeout=600, check=False
        )

    return run


@pytest.fixture(params=["native", "python"])
def taker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who takes calls from Python. Tests of calls run both ways: results and errors are the same."""
    from kiln.base_dsl.compiled_function import CompiledFunction
    from kiln.base_dsl.function import JitFunction
    from kiln.interop.arguments import loading
    from kiln.kernels.dispatch.recorder import KernelFunction

    if request.param == "python":  # as with KILN_NATIVE_CALLS=0, also for functions that were called before
        monkeypatch.setattr(loading, "engine", lambda: None)
        monkeypatch.setattr(loading, "loaded", lambda: None)
        for kind in (CompiledFunction, JitFunction, KernelFunction):
            monkeypatch.setattr(kind, "__call__", kind._run_in_python)
    elif loading.engine() is None:
        pytest.skip("calls are made by Python here")
    return request.param


@pytest.fixture
def in_order() -> Iterator[None]:
    """On the CPU target, threads and blocks run in order whatever schedule the tests run under: for tests that say what
    happens first."""
    from kiln.targets.cpu.runtime import parts

    parts.set_seed(0)
    yield
    parts.set_seed()


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Opening a contract chooses target, architecture and path for its process: the next test has what this one had."""
    before = {name: os.environ.get(name) for name in ("CUTE_DSL_ARCH", "KILN_TARGET")}
    path, served = [*sys.path], current.cuda_is_host_memory
    yield
    sys.path[:] = path
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    assert current.cuda_is_host_memory == served, "CUDA is served to all tests from now on: do this in a `child`"
