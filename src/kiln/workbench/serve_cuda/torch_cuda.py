"""`torch.cuda` for the served device."""

from __future__ import annotations

import contextlib
from typing import Any

from kiln.base_dsl.packages import leaning_on

from . import callbacks, generators, graphs, memory, streams, tensors
from . import device as served


def serve(torch: Any) -> None:
    """Install everything in a freshly imported torch."""
    cuda = torch.cuda
    for name, value in _functions(torch).items():
        setattr(cuda, name, value)
    for module, names in (
        (cuda.streams, ("Stream", "ExternalStream", "Event")),
        (cuda.graphs, ("CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing")),
    ):
        for name in names:
            setattr(module, name, getattr(cuda, name))
    cuda.profiler.start = cuda.profiler.stop = _nothing
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, lambda *_, **__: 0)
    with leaning_on("torch generators"):
        generators.serve(torch)
    tensors.serve_default_device()
    with leaning_on("torch parameters"):
        tensors.serve_parameters()
    with leaning_on("torch old types"):
        tensors.serve_other_ways()
    callbacks.serve()
    tensors.install()


class _DeviceContext:
    """`with torch.cuda.device(0):`; there is one device, so nothing changes."""

    def __init__(self, device: Any) -> None:
        _number(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _number(device: Any = None) -> int:
    """Return the number of a device as torch's functions take it."""
    import torch

    if device is None:
        return 0
    if isinstance(device, int):
        return served.check_number(device)
    named = torch.device(device)
    if named.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return served.check_number(named.index or 0)


def _capability(device: Any = None) -> tuple[int, int]:
    _number(device)
    found = served.current()
    return found.major, found.minor


def _properties(device: Any = None) -> served.Device:
    _number(device)
    return served.current()


def _name(device: Any = None) -> str:
    return _properties(device).name


def _memory_info(device: Any = None) -> tuple[int, int]:
    found = _properties(device)
    return found.free_memory, found.total_memory


def _set_device(device: Any) -> None:
    _number(device)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: there is nothing to wait for."""


def _zero(*_: Any, **__: Any) -> int:
    """Return 0: only host memory is in use."""
    return 0


def _manual_seed(seed: int) -> None:
    generators.default_generator().manual_seed(int(seed))


def _get_rng_state(device: Any = "cuda") -> Any:
    return generators.default_generator().get_state()


def _set_rng_state(state: Any, device: Any = "cuda") -> None:
    generators.default_generator().set_state(state)


class _Runtime:
    """The functions of the CUDA runtime that programs call through torch."""

    @staticmethod
    def cudaProfilerStart() -> int:
        return 0

    cudaProfilerStop = cudaDeviceSynchronize = cudaProfilerStart

    @staticmethod
    def cudaMemGetInfo(device: Any = None) -> tuple[int, int]:
        return _memory_info(device)

    @staticmethod
    def cudaGetErrorString(code: Any) -> str:
        return "no error"

    @staticmethod
    def cudaHostRegister(*_: Any) -> int:
        return 0

    cudaHostUnregister = cudaHostRegister


def _functions(torch: Any) -> dict[str, Any]:
    arch = "sm_{0.major}{0.minor}".format
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _nothing,
        "_lazy_init": _nothing,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _set_device,
        "device": _DeviceContext,
        "device_of": lambda _: contextlib.nullcontext(),
        "get_device_name": _name,
        "get_device_capability": _capability,
        "get_device_properties": _properties,
        "get_arch_list": lambda: [arch(served.current())],
        "can_device_access_peer": lambda device, peer_device: False,
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda: True,
        "synchronize": _nothing,
        "ipc_collect": _nothing,
        "cudart": lambda: _Runtime,
        "_sleep": _nothing,
        "caching_allocator_alloc": lambda size, device=None, stream=None: memory.allocate(size),
        "caching_allocator_delete": memory.free,
        "set_per_process_memory_fraction": _nothing,
        "utilization": _zero,
        # memory
        "empty_cache": _nothing,
        "mem_get_info": _memory_info,
        "memory_allocated": _zero,
        "max_memory_allocated": _zero,
        "memory_reserved": _zero,
        "max_memory_reserved": _zero,
        "reset_peak_memory_stats": _nothing,
        "reset_max_memory_allocated": _nothing,
        "memory_stats": lambda device=None: {},
        "memory_summary": lambda *_, **__: "memory of the host",
        # random numbers
        "manual_seed": _manual_seed,
        "manual_seed_all": _manual_seed,
        "seed": lambda: generators.default_generator().seed(),
        "seed_all": lambda: generators.default_generator().seed(),
        "initial_seed": lambda: generators.default_generator().initial_seed(),
        "get_rng_state": _get_rng_state,
        "get_rng_state_all": lambda: [_get_rng_state()],
        "set_rng_state": _set_rng_state,
        "set_rng_state_all": lambda states: _set_rng_state(next(iter(states))),
        "default_generators": (generators.default_generator(),),
        # streams, events, graphs
        "Stream": streams.Stream,
        "ExternalStream": streams.ExternalStream,
        "Event": streams.Event,
        "StreamContext": streams.StreamContext,
        "stream": streams.stream,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "CUDAGraph": graphs.CUDAGraph,
        "graph": graphs.graph,
        "graph_pool_handle": graphs.graph_pool_handle,
        "is_current_stream_capturing": graphs.is_current_stream_capturing,
    }
