"""CUDA graphs: work is recorded while a graph is captured, and `replay` does it again.

As on a GPU, capturing leaves memory as it was: calls of compiled functions are only recorded; calls of torch are run,
since their results must exist, and what they changed is restored when the capture ends.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kiln._support import fork_safe
from kiln.base_dsl.compiled_function import CompiledFunction

from . import device as served
from . import ranks, streams

if TYPE_CHECKING:
    from collections.abc import Callable


class _Capturing(threading.local):
    """The graph that a thread captures."""

    graph: CUDAGraph | None = None


_here = _Capturing()
_lock = fork_safe.rlock()
_captures: list[CUDAGraph] = []
"""The graphs that threads capture."""


class CUDAGraph:
    """Recorded work."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._work: list[Callable[[], None]] = []
        self._order: streams.Recording = streams.Recording()
        self._before: dict[int, tuple[Any, Any]] = {}

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        """Record what this thread does from now on."""
        if _here.graph is not None:
            raise RuntimeError("CUDA error: a graph is being captured already")
        self._work = []
        self._order = streams.Recording()
        _here.graph = self
        streams.record(self._order)
        with _lock:
            _captures.append(self)
            if len(_captures) == 1:
                _record_compiled_calls(True)

    def capture_end(self) -> None:
        """End recording, and restore memory."""
        if _here.graph is not self:
            raise RuntimeError("capture_end() without capture_begin()")
        _here.graph = None
        streams.record(None)
        with _lock:
            _captures.remove(self)
            if not _captures:
                _record_compiled_calls(False)
        for tensor, value in self._before.values():
            tensor.copy_(value)
        self._before = {}

    def add(self, work: Callable[[], None], stream: int | None = None) -> None:
        """Record work of a stream; None: of this thread's."""
        self._order.add(streams.current_stream().cuda_stream if stream is None else stream)
        self._work.append(work)

    def replay(self) -> None:
        """Do the recorded work. Streams run beside each other: a kernel may wait for what another stream does."""
        if len(set(self._order.streams)) < 2:
            for step in self._work:
                step()
            return
        done = [threading.Event() for _ in self._work]
        points: list[object] = [None] * len(done)
        failures: list[BaseException] = []
        device = served.current_number()

        def run_stream(stream: int) -> None:
            served.set_current(device)
            for number in [n for n, of in enumerate(self._order.streams) if of == stream]:
                for before in self._order.after[number]:
                    done[before].wait()
                    ranks.after(points[before])
                try:
                    if not failures:
                        self._work[number]()
                except BaseException as failure:
                    failures.append(failure)
                finally:
                    points[number] = ranks.point()
                    done[number].set()

        threads = [threading.Thread(target=run_stream, args=(stream,)) for stream in dict.fromkeys(self._order.streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def instantiate(self) -> None:
        """Do nothing: a replay needs no preparation."""

    def reset(self) -> None:
        """Forget the recorded work."""
        self._work = []
        self._order = streams.Recording()

    def pool(self) -> tuple[int, int]:
        """Return an identifier of the graph's memory."""
        return 0, id(self)

    def _record_torch(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        import torch  # an optional package, as what `marks` needs

        from .marks import tensors_in

        for tensor in [*tensors_in(args), *tensors_in(kwargs)]:
            storage = tensor.untyped_storage()
            if storage.data_ptr() and storage.data_ptr() not in self._before:
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                self._before[storage.data_ptr()] = whole, whole.clone()
        result = func(*args, **kwargs)
        tensors = list(tensors_in(result))
        for tensor in tensors:  # every replay writes new memory: nothing to restore
            self._before.setdefault(tensor.untyped_storage().data_ptr(), (tensor.detach(), tensor.detach()))

        def again() -> None:
            with torch.no_grad():
                for old, new in zip(tensors, tensors_in(func(*args, **kwargs)), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        self.add(again)
        return result


def run(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function of torch, and record the call if a graph is being captured."""
    graph = _here.graph
    if graph is None:
        return func(*args, **kwargs)
    return graph._record_torch(func, args, kwargs)


def perform(work: Callable[..., None], *arguments: object, stream: int | None = None) -> None:
    """Do work on memory, of a stream; only record it while a graph is being captured."""
    graph = _here.graph
    if graph is None:
        work(*arguments)
    else:
        graph.add(functools.partial(work, *arguments), stream)


def _record_compiled_calls(on: bool) -> None:
    plain = _plain_run()
    if not on:
        CompiledFunction.run_leaves = plain
        _let_native_code_call()
        return
    _let_python_call()

    def record(self: CompiledFunction[Any], leaves: Sequence[Any]) -> Any:
        graph = _here.graph
        if graph is None:
            return plain(self, leaves)
        stream = None if self.stream_leaf is None else leaves[self.stream_leaf]
        graph.add(functools.partial(plain, self, list(leaves)), stream)
        _let_python_call()  # this call may have been the one from which native code learned
        return None

    CompiledFunction.run_leaves = record


_CALLABLE = (
    ("kiln.base_dsl.compiled_function", "CompiledFunction"),
    ("kiln.base_dsl.function", "JitFunction"),
    ("kiln.interop.tvm_ffi.function", "KilnFunction"),
    ("kiln.kernels.dispatch.recorder", "KernelFunction"),
)
"""The classes whose calls native code may take."""
_native: dict[type, Any] = {}


def _let_python_call() -> None:
    """Take calls that native code would take, and would carry out instead of recording them."""
    for module, name in _CALLABLE:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and vars(kind)["__call__"] is not vars(kind)["_run_in_python"]:
            _native[kind] = vars(kind)["__call__"]
            kind.__call__ = vars(kind)["_run_in_python"]
    if (loaded := _loaded_function()) is not None and "__call__" not in vars(loaded):
        type.__setattr__(loaded, "__call__", functools.partialmethod(_record_loaded, loaded.__call__))


def _let_native_code_call() -> None:
    for kind, call in _native.items():
        kind.__call__ = call
    _native.clear()
    if (loaded := _loaded_function()) is not None and "__call__" in vars(loaded):
        del loaded.__call__


def _loaded_function() -> type | None:
    """Return the class of functions of loaded modules, which run without Python; None if there are none."""
    return getattr(sys.modules.get("kiln.interop.tvm_ffi.function"), "LoadedFunction", None)


def _record_loaded(function: object, plain: Callable[..., None], *args: object) -> None:
    graph = _here.graph
    call = functools.partial(plain, function, *args)
    if graph is None:
        return call()
    graph.add(call)
    return None


@functools.lru_cache(maxsize=1)
def _plain_run() -> Any:
    return CompiledFunction.run_leaves


def is_current_stream_capturing() -> bool:
    """Return whether work of this thread is being recorded."""
    return _here.graph is not None


def graph_pool_handle() -> tuple[int, int]:
    """Return an identifier of memory for graphs."""
    return 0, streams.new_handle()


class graph:
    """`with torch.cuda.graph(g):` captures the block, on a stream of its own."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        **_: object,
    ) -> None:
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.stream: streams.StreamContext = streams.StreamContext(stream or streams.Stream())

    def __enter__(self) -> None:
        self.stream.__enter__()
        self.cuda_graph.capture_begin(self.pool)

    def __exit__(self, *details: object) -> None:
        self.cuda_graph.capture_end()
        self.stream.__exit__(*details)
