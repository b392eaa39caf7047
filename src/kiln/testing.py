"""Timing of functions, and what test programs share.

Times are measured by events on a stream of the GPU. On the CPU target `benchmark` runs the function, too, but its
times say nothing about a GPU; it says so once.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import time
import warnings
from typing import TYPE_CHECKING, Any

from .base_dsl.diagnostics import DSLRuntimeError, DSLWarning, error
from .base_dsl.target import target, target_name
from .utils._driver import check, driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CantImplementError",
    "JitArguments",
    "add_tensor_init_args",
    "assert_no_local_memory",
    "assert_no_spills",
    "benchmark",
    "dry_run",
    "get_workspace_count",
    "validate_tensor_init_args",
]

_CPU_SECONDS = 0.5
"""On the CPU target, runs end after this time even if more were asked for."""


class CantImplementError(Exception):
    """A kernel cannot serve a configuration: not a failure of a test."""

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
        """Keep objects alive as long as the arguments: arrays that arguments are views of."""
        self.references += list(references)


def get_workspace_count(one_workspace_bytes: int, warmup_iterations: int, iterations: int) -> int:
    """How many workspaces it takes for every run to find its data outside the L2 cache.

    Together they are three times as large as the cache; there are never more than runs.
    """
    from .utils import HardwareInfo

    runs = max(warmup_iterations + iterations, 1)
    if one_workspace_bytes <= 0:
        return 1
    needed = 3 * HardwareInfo().get_l2_cache_size_in_bytes() // one_workspace_bytes + 1
    return min(needed, runs)


def benchmark(
    callable: Callable[..., Any],
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
    """Microseconds of one call of a function, on average.

    Its arguments are `kernel_arguments`, or come from `workspace_count` calls of `workspace_generator` and are used
    in turn (see `get_workspace_count`). `stream` is the stream the function launches its work on, by default the
    default stream. With `use_cuda_graphs` the calls are recorded once, and what is timed is the launch of the graph.
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
    if use_cuda_graphs and (stream is None or not int(stream)) and target_name() != "cpu":
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

    with _nvtx_range(nvtx_tag):
        if target_name() == "cpu":
            return _time_on_cpu(run, warmup_iterations, iterations)
        if use_cupti:
            warnings.warn("benchmark() measures by events, not by CUPTI", DSLWarning, stacklevel=2)
        return _time_on_gpu(run, warmup_iterations, iterations, stream, use_cuda_graphs)


_said: set[str] = set()


def _time_on_cpu(run: Callable[[], None], warmup_iterations: int, iterations: int) -> float:
    if "cpu" not in _said:
        _said.add("cpu")
        warnings.warn("benchmark() runs on the CPU target: its times say nothing about a GPU", DSLWarning, stacklevel=3)
    if warmup_iterations:
        run()
    start = now = time.perf_counter()
    done = 0
    while done < iterations and (not done or now - start < _CPU_SECONDS):
        run()
        done += 1
        now = time.perf_counter()
    return (now - start) / done * 1e6


def _time_on_gpu(
    run: Callable[[], None], warmup_iterations: int, iterations: int, stream: Any, use_cuda_graphs: bool
) -> float:
    cuda = driver()
    if not int(check(cuda.cuCtxGetCurrent())):
        from .cuda import initialize_cuda_context

        initialize_cuda_context()
    stream = cuda.CUstream(0 if stream is None else int(stream))

    def repeat(times: int) -> None:
        for _ in range(times):
            run()

    def prepared(times: int) -> Callable[[], None]:
        """A function that runs it so many times, if asked for as one graph."""
        if not use_cuda_graphs:
            return lambda: repeat(times)
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(cuda.cuStreamBeginCapture(stream, mode))
        try:
            repeat(times)
        finally:
            graph = check(cuda.cuStreamEndCapture(stream))
        executable = check(cuda.cuGraphInstantiate(graph, 0))
        return lambda: check(cuda.cuGraphLaunch(executable, stream))

    if use_cuda_graphs:
        run()  # what is loaded or set up on first use must not be captured
        check(cuda.cuStreamSynchronize(stream))
    start, end = check(cuda.cuEventCreate(0)), check(cuda.cuEventCreate(0))
    try:
        if warmup_iterations:
            prepared(warmup_iterations)()
        measured = prepared(iterations)
        check(cuda.cuStreamSynchronize(stream))
        check(cuda.cuEventRecord(start, stream))
        measured()
        check(cuda.cuEventRecord(end, stream))
        check(cuda.cuEventSynchronize(end))
        return check(cuda.cuEventElapsedTime(start, end)) / iterations * 1e3
    finally:
        check(cuda.cuEventDestroy(start))
        check(cuda.cuEventDestroy(end))


@contextlib.contextmanager
def _nvtx_range(tag: str | None) -> Iterator[None]:
    """A range of that name in a profile, where the package nvtx is there."""
    if tag is None:
        yield
        return
    try:
        import nvtx  # pyright: ignore[reportMissingImports]
    except ImportError:
        yield
        return
    with nvtx.annotate(tag):
        yield


# --- what kernels take -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def dry_run(arch: str | None = None) -> Iterator[list[Any]]:
    """While open, calls compile for an NVIDIA GPU of an architecture as they would on one, and launch nothing.

    The architecture is by default that of `CUTE_DSL_ARCH`, or sm_90a.
    Gives a list that every launch is noted in: `kernel`, `grid`, `block`, `cluster`, `smem`, `resources`, `remarks`.
    Needs no GPU; arrays may lie in host memory. Functions that were called before keep what was compiled for them, so
    a process does this for one architecture. Code has line information, so remarks name lines of the program.
    """
    wanted = {"CUTE_DSL_ARCH": arch or os.environ.get("CUTE_DSL_ARCH") or "sm_90a", "CUTE_DSL_LINEINFO": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        with target("nvidia") as chosen, chosen.dry_run() as launches:
            yield launches
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def assert_no_spills(*made: Any) -> None:
    """Raise an AssertionError if a kernel of compiled functions, or of launches of `dry_run`, ran out of registers."""
    _assert_fits(made, lambda used: used.spill_stores or used.spill_loads)


def assert_no_local_memory(*made: Any) -> None:
    """Like `assert_no_spills`, and no kernel has memory of its threads' own: everything is in registers."""
    _assert_fits(made, lambda used: used.spill_stores or used.spill_loads or used.stack)


def _assert_fits(made: tuple[Any, ...], bad: Callable[[Any], Any]) -> None:
    found: list[str] = []
    for one in made:
        kernel = getattr(one, "kernel", None)
        known = {kernel: one.resources} if kernel is not None else one.resources
        if not known:
            raise AssertionError(f"nothing is known of the kernels of {one!r}: was it compiled for a GPU, with ptxas?")
        remarks = one.remarks if kernel is not None else one.executable.remarks
        for name, used in known.items():
            if used is None or not used.registers:
                raise AssertionError(f"ptxas said nothing of the kernel {name}")
            if bad(used):
                found += [str(remark) for remark in remarks if remark.kernel == name and remark.kind != "resources"]
    if found:
        raise AssertionError("\n".join(["kernels use local memory:", *dict.fromkeys(found)]))


def add_tensor_init_args(parser: argparse.ArgumentParser, supports_int_dtypes: bool = True) -> None:
    """Options of a test program that say how its tensors are filled."""
    note = "; tensors of integers stay random" if supports_int_dtypes else ""
    parser.add_argument("--init_normal", action="store_true", help=f"fill tensors from a normal distribution{note}")
    parser.add_argument("--normal_mean", type=float, default=0.0, help="its mean")
    parser.add_argument("--normal_std", type=float, default=1.0, help="its standard deviation")


def validate_tensor_init_args(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End the program with a message if what was given for `add_tensor_init_args` makes no sense."""
    if args.normal_std <= 0:
        parser.error(f"--normal_std must be positive, not {args.normal_std}")
    if not args.init_normal and (args.normal_mean != 0.0 or args.normal_std != 1.0):
        parser.error("--normal_mean and --normal_std need --init_normal")
