"""Helpers for test programs: assertions and ranges in kernels, conversion of tensors, timing and tuning."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .._support import lazy
from ..base_dsl import settings
from ..base_dsl import trace as tracing
from ..base_dsl.batch import precompile
from ..base_dsl.diagnostics import runtime_error, type_error
from ..base_dsl.function import JitFunction
from ..base_dsl.target import target_key
from ..base_dsl.typing import Boolean, Constexpr, Int32
from ..measure.timing import CantImplementError, JitArguments, benchmark, get_workspace_count
from . import arch
from .kernel_ranges import kernel_range
from .layout.layout import size
from .layout.tiling import zipped_divide
from .program.dsl import DSL
from .tensor.tensor import Tensor

__dir__ = lazy.listing(__name__)
__all__ = [
    "CantImplementError",
    "JitArguments",
    "assert_",
    "autotune_jit",
    "benchmark",
    "convert",
    "get_workspace_count",
    "range",
    "tune",
]


def assert_(cond: object, msg: str | None = None) -> None:
    """Stop the program with the message `msg` if `cond` does not hold, also where it is known while tracing."""
    if tracing.current() is None or isinstance(cond, bool):
        if not cond:
            raise AssertionError(msg or "assertion failed")
        return
    DSL.make_assert(Boolean(cond).ir_value(), msg or "assertion failed")


def range(name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context manager for kernels: a range called `name` in a trace (`kiln profile --prof-type trace`)."""
    return kernel_range(name)


_THREADS = 128


@DSL.kernel
def _convert_kernel(source: Any, target: Any, count: Int32) -> None:
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    piece = block * _THREADS + thread
    if piece < count:
        target[(None, piece)].store(source[(None, piece)].load().to(target.element_type))


@DSL.jit
def _convert(source: Tensor, target: Tensor, tiler: Constexpr) -> None:
    pieces = zipped_divide(source, tiler)
    into = zipped_divide(target, tiler)
    count = size(into, mode=[1])
    _convert_kernel(pieces, into, count).launch(grid=(count + _THREADS - 1) // _THREADS, block=_THREADS)


def convert(src: Tensor, dst: Tensor) -> None:
    """Convert the elements of `src` into those of `dst`, two tensors of the same shape, rounding to nearest even.

    Packed elements are written by the byte, so along the leading mode of the tensor that has them the extent must be
    whole bytes.
    """
    if tuple(src.shape) != tuple(dst.shape):
        raise type_error(f"convert() got tensors of the shapes {src.shape} and {dst.shape}")
    leading = dst.leading_dim
    if leading is None or isinstance(leading, tuple):
        raise type_error(f"convert() needs adjacent elements in {dst.layout}: no mode has stride 1")
    narrowest = min(src.element_type.width, dst.element_type.width)
    together = 1 if narrowest >= 8 else 8
    while together > 1 and dst.shape[leading] % together:
        together //= 2
    if together * narrowest % 8 and narrowest < 8:
        raise type_error(
            f"convert() cannot write half a byte: mode {leading} of {dst.layout} has {dst.shape[leading]} elements of {narrowest} bits"
        )
    _convert(src, dst, tuple(together if mode == leading else 1 for mode, _ in enumerate(dst.shape)))


def _configurations(params_dict: Mapping[str, Sequence[object]] | None) -> Iterator[dict[str, Any]]:
    """Return every combination of the parameters' values."""
    names = list(params_dict or {})
    for values in itertools.product(*(params_dict or {}).values()):
        yield dict(zip(names, values, strict=True))


def _fastest(
    what: str, params_dict: Mapping[str, Sequence[object]] | None, measure: Callable[[dict[str, Any]], float]
) -> dict[str, Any]:
    """Return the configuration that takes the least time; those that raise an error are left out."""
    best: dict[str, Any] | None = None
    best_time = float("inf")
    failure: Exception | None = None
    for configuration in _configurations(params_dict):
        try:
            microseconds = measure(configuration)
        except Exception as reason:  # programs raise errors of any type for configurations they do not support
            autotune_jit.log().info("%s: %s does not work: %s", what, configuration, reason)
            failure = reason
            continue
        autotune_jit.log().info("%s: %s takes %.3f us", what, configuration, microseconds)
        if microseconds < best_time:
            best = configuration
            best_time = microseconds
    if best is None:
        raise runtime_error(f"no configuration of {what} works: {failure or 'there is none'}") from failure
    autotune_jit.log().info("%s: chosen: %s", what, best)
    return best


class AutotunedFunction(JitFunction[..., Any]):
    """A host function that chooses its parameters by trying them. In a trace and for `compile`, the function itself."""

    def __init__(self, function: JitFunction[..., Any], tuning: autotune_jit) -> None:
        super().__init__(function.dsl, function.function, function.preprocess)
        self._tuning = tuning
        self._chosen: dict[Any, dict[str, Any]] = {}
        self._own |= {"_tuning", "_chosen"}

    def __call__(self, *args: object, **kwargs: object) -> Any:
        tuning = self._tuning
        if tracing.current() is not None or not tuning.params_dict:
            return super().__call__(*args, **kwargs)
        arguments = self.parameters.bind(args, kwargs)
        key = (target_key(), *(repr(arguments.get(name)) for name in tuning.update_on_change))
        run = super().__call__
        if key not in self._chosen:

            def measure(configuration: Mapping[str, object]) -> float:
                call = {**arguments, **configuration}
                run(**call)  # compiles
                return benchmark(
                    run,
                    kernel_arguments=JitArguments(**call),
                    warmup_iterations=tuning.warmup_iterations,
                    iterations=tuning.iterations,
                )

            configurations = list(_configurations(tuning.params_dict))
            jobs = [functools.partial(run, **{**arguments, **chosen}) for chosen in configurations]
            precompile(jobs, tuning.compile_processes)
            self._chosen[key] = _fastest(self.name, tuning.params_dict, measure)
        return run(**{**arguments, **self._chosen[key]})


class autotune_jit:
    """Decorate a `@jit` function: at a call, every combination of `params_dict` is tried, and the fastest used.

    For a GPU they are compiled in parallel, in `compile_processes` processes; None means one for each core that this
    process may use, 1 that this process compiles all. That is done once for all calls whose arguments named in
    `update_on_change` are the same. Trials are logged (`CUTE_DSL_LOG_TO_CONSOLE`).
    """

    def __init__(
        self,
        params_dict: dict[str, list[Any]] | None = None,
        update_on_change: list[str] | None = None,
        warmup_iterations: int = 10,
        iterations: int = 100,
        compile_processes: int | None = None,
    ) -> None:
        self.params_dict: dict[str, list[Any]] = params_dict or {}
        self.update_on_change: list[str] = update_on_change or []
        self.warmup_iterations = warmup_iterations
        self.iterations = iterations
        self.compile_processes = compile_processes

    def __call__(self, func: object) -> AutotunedFunction:
        if not isinstance(func, JitFunction):
            raise type_error(
                f"@autotune_jit stands on {type(func).__name__}", "write it above @cute.jit, on a function"
            )
        unknown = [n for n in (*self.params_dict, *self.update_on_change) if n not in func.parameters.names]
        if unknown:
            raise type_error(
                f"@autotune_jit names {unknown[0]!r}, and {func.name} has no such parameter",
                f"its parameters are {', '.join(func.parameters.names)}",
            )
        return AutotunedFunction(func, self)

    @classmethod
    def log(cls) -> logging.Logger:
        """Return the logger of tuning."""
        logger = logging.getLogger("kiln.autotune")
        if settings.is_on("CUTE_DSL_LOG_AUTOTUNE") and not logger.handlers:
            logger.addHandler(logging.StreamHandler())
            logger.setLevel(logging.INFO)
        return logger


def tune(
    func: Callable[..., Callable[[], object]],
    params_dict: Mapping[str, Sequence[object]] | None = None,
    kernel_arguments: JitArguments | None = None,
    warmup_iterations: int = 10,
    iterations: int = 100,
    stream: object = None,
    compile_processes: int | None = None,
) -> dict[str, Any]:
    """Return the parameters with which a function runs fastest, of all combinations.

    Args:
        func: takes the arguments and the parameters, compiles, and returns a function without arguments to be timed.
        params_dict: the values to try for each parameter, `{"tile": [64, 128]}`.
        kernel_arguments: the arguments of `func`.
        warmup_iterations: calls before the measurement.
        iterations: calls that are timed.
        stream: the stream that the function launches on; by default the default stream.
        compile_processes: how many processes compile at a time; by default one for each core, 1 for this process alone.
    """
    arguments = kernel_arguments or JitArguments()

    def measure(configuration: Mapping[str, object]) -> float:
        run = func(*arguments.args, **{**arguments.kwargs, **configuration})
        run()
        return benchmark(run, warmup_iterations=warmup_iterations, iterations=iterations, stream=stream)

    def make(configuration: Mapping[str, object]) -> None:
        func(*arguments.args, **{**arguments.kwargs, **configuration})()

    jobs = [functools.partial(make, configuration) for configuration in _configurations(params_dict)]
    precompile(jobs, compile_processes)
    return _fastest(getattr(func, "__name__", "the function"), params_dict, measure)
