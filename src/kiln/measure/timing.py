"""Times functions by events on a stream of the GPU, with the interface of CuTe's `testing`.

On the CPU target `benchmark` runs the function, too, but its times say nothing about a GPU; it warns once.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from typing import TYPE_CHECKING, Any

from ..base_dsl import cache, packages, sanitizing
from ..base_dsl.diagnostics import DSLRuntimeError, DSLWarning, error
from ..base_dsl.target import get_target
from ..hardware import current, driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CantImplementError", "JitArguments", "benchmark", "get_workspace_count"]

_CPU_SECONDS = 0.5
"""On the CPU target, runs end after this time."""


class CantImplementError(Exception):
    """A kernel does not support a configuration: not a failure of a test."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or "the configuration is not supported")
        self.message = message


class JitArguments:
    """The arguments of one call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self.references: list[Any] = []

    def add_to_scope(self, references: Any) -> None:
        """Keep objects alive as long as the arguments, such as arrays that arguments are views of."""
        self.references += list(references)


def get_workspace_count(one_workspace_bytes: int, warmup_iterations: int, iterations: int) -> int:
    """Return how many workspaces keep every run's data out of the L2 cache: three times its size, and never more than
    runs.

    Args:
        one_workspace_bytes: the bytes that one run touches.
        warmup_iterations: runs before the measurement.
        iterations: runs that are timed.
    """
    runs = max(warmup_iterations + iterations, 1)
    if one_workspace_bytes <= 0:
        return 1
    needed = 3 * current.device().l2_cache // one_workspace_bytes + 1
    return min(needed, runs)


def benchmark(
    callable: Callable[..., object],
    *,
    warmup_iterations: int = 10,
    iterations: int = 100,
    stream: Any = None,
    kernel_arguments: JitArguments | None = None,
    workspace_generator: Callable[[], JitArguments] | None = None,
    workspace_count: int = 1,
    use_cuda_graphs: bool = False,
    use_cupti: bool = False,
    nvtx_tag: str | None = None,
) -> float:
    """Return the average microseconds of one call of a function, measured by CUDA events.

    On the CPU target it warns: those times say nothing about a GPU.

    Args:
        callable: a compiled function, or anything that launches.
        warmup_iterations: calls before the measurement.
        iterations: calls that are timed.
        stream: the stream that it launches on; by default the default stream.
        kernel_arguments: the arguments, `JitArguments(a, b)`.
        workspace_generator: a function that returns arguments, called `workspace_count` times; they are used in turn.
        workspace_count: how many sets of arguments (see `get_workspace_count`).
        use_cuda_graphs: record the calls once and time the launch of the graph; needs `stream`.
        use_cupti: accepted as in CuTe DSL, with a warning: times are of events.
        nvtx_tag: an NVTX range around the measurement.
    """
    if iterations < 1 or warmup_iterations < 0 or workspace_count < 1:
        raise error(
            DSLRuntimeError,
            f"benchmark() got iterations={iterations}, warmup_iterations={warmup_iterations}, "
            f"workspace_count={workspace_count}",
            hint="one iteration and one workspace at least, and no negative number",
        )
    if kernel_arguments is not None and workspace_generator is not None:
        raise error(
            DSLRuntimeError,
            "benchmark() got kernel_arguments and a workspace_generator",
            hint="pass kernel_arguments for one set of arguments, or a generator for several",
        )
    if use_cuda_graphs and (stream is None or not int(stream)) and not get_target().on_host:
        raise error(
            DSLRuntimeError,
            "benchmark() got use_cuda_graphs without a stream: the default stream cannot be captured",
            hint="pass stream=, and launch the kernel on it",
        )
    if workspace_generator is not None:
        workspaces = [workspace_generator() for _ in range(workspace_count)]
    else:
        workspaces = [kernel_arguments or JitArguments()]
    for workspace in workspaces:
        if not isinstance(workspace, JitArguments):
            raise error(
                DSLRuntimeError,
                f"benchmark() got arguments of type {type(workspace).__name__}",
                hint="wrap them: JitArguments(a, b, c)",
            )
    turns = itertools.cycle(workspaces)

    def run() -> None:
        workspace = next(turns)
        callable(*workspace.args, **workspace.kwargs)

    if use_cupti and not get_target().on_host:
        warnings.warn("benchmark() measures by events, not by CUPTI", DSLWarning, stacklevel=2)
    with _nvtx_range(nvtx_tag):
        if get_target().on_host:
            return _time_on_cpu(run, warmup_iterations, iterations)
        return _time_on_gpu(run, warmup_iterations, iterations, stream, use_cuda_graphs)


_said: set[str] = set()


def _time_on_cpu(run: Callable[[], None], warmup_iterations: int, iterations: int) -> float:
    if "cpu" not in _said:
        _said.add("cpu")
        warnings.warn("benchmark() runs on the CPU target: its times say nothing about a GPU", DSLWarning, stacklevel=3)
    if warmup_iterations:
        run()
    compiled = cache.compilations
    done = 0
    with sanitizing.timed():
        start = now = time.perf_counter()
        while done < iterations and (not done or now - start < _CPU_SECONDS):
            run()
            done += 1
            now = time.perf_counter()
    _warn_of(cache.compilations - compiled)
    return (now - start) / done * 1e6


def _time_on_gpu(
    run: Callable[[], None], warmup_iterations: int, iterations: int, stream: Any, use_cuda_graphs: bool
) -> float:
    driver.ensure_context()
    stream = 0 if stream is None else int(stream)

    def prepared(times: int) -> Callable[[], None]:
        """Return a function that runs it so many times, as one graph if so chosen."""

        def repeat() -> None:
            for _ in range(times):
                run()

        return driver.captured(stream, repeat) if use_cuda_graphs else repeat

    if use_cuda_graphs:
        run()  # set-up on first use must not be captured
        driver.synchronize(stream)
    start = driver.Event()
    end = driver.Event()
    if warmup_iterations:
        prepared(warmup_iterations)()
    measured = prepared(iterations)
    compiled = cache.compilations
    driver.synchronize(stream)
    start.record(stream)
    measured()
    end.record(stream)
    _warn_of(cache.compilations - compiled)
    return end.microseconds_since(start) / iterations


def _warn_of(compilations: int) -> None:
    if compilations:
        message = f"benchmark() timed {compilations} compilations: use warmup_iterations of 1 or more"
        warnings.warn(message, DSLWarning, stacklevel=4)


@contextlib.contextmanager
def _nvtx_range(tag: str | None) -> Iterator[None]:
    """While open, show a range of that name in a profile, if the package nvtx is installed."""
    if tag is None or not packages.is_here("nvtx"):
        yield
        return
    import nvtx  # pyright: ignore[reportMissingImports]

    with nvtx.annotate(tag):
        yield
