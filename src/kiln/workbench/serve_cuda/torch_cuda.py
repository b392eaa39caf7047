"""`torch.cuda` for the served device."""

from __future__ import annotations

import functools
import operator
import types
from typing import TYPE_CHECKING, Any

from kiln.base_dsl.packages import leaning_on

from . import callbacks, generators, graphs, memory, streams, tensors
from . import device as served

if TYPE_CHECKING:
    from collections.abc import Callable


def serve(torch: Any) -> None:
    """Install everything in a freshly imported torch."""
    cuda = torch.cuda
    torch.version.cuda = f"{served.CUDA_VERSION // 1000}.{served.CUDA_VERSION % 1000 // 10}"
    for name, value in _functions().items():
        setattr(cuda, name, value)
    for module, names in ((cuda.streams, ("Stream", "ExternalStream", "Event")), (cuda.graphs, _OF_GRAPHS)):
        for name in names:
            setattr(module, name, getattr(cuda, name))
    cuda.profiler.start = cuda.profiler.stop = _nothing
    _serve_profiler(torch.autograd.profiler.profile)
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


def _serve_profiler(profile: Any) -> None:
    """Have torch's profiler record the CPU where it is asked for CUDA: kernels of the served device run there."""
    init = profile.__init__

    @functools.wraps(init)
    def on_cpu(self: Any, *args: Any, **options: Any) -> None:
        if options.get("use_device") == "cuda":
            options.update(use_device=None, use_cpu=True)
        init(self, *args, **options)

    profile.__init__ = on_cpu


class _DeviceContext:
    """`with torch.cuda.device(1):` makes a device this thread's; None changes nothing."""

    def __init__(self, device: object) -> None:
        self.idx: int = _number(device)
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(served.current_number())
        served.set_current(self.idx)

    def __exit__(self, *_: object) -> None:
        served.set_current(self._before.pop())


class _DeviceOf(_DeviceContext):
    """`with torch.cuda.device_of(x):` makes the device of a tensor this thread's."""

    def __init__(self, obj: object) -> None:
        from .marks import device_number

        super().__init__(device_number(obj))


def _number(device: object = None) -> int:
    """Return the number of a device as torch's functions take it."""
    import torch

    if device is None:
        return served.current_number()
    if isinstance(device, int):
        return served.check_number(device)
    named = torch.device(device)
    if named.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return served.check_number(named.index)


def _about_device(*names: str) -> Callable[..., Any]:
    """Return a function that takes a device and returns these properties of it: one, or a tuple."""
    read = operator.attrgetter(*names)
    return lambda device=None: read(_properties(device))


def _properties(device: object = None) -> served.Device:
    _number(device)
    return served.current()


def _set_device(device: object) -> None:
    served.set_current(_number(device))


def _can_access_peer(device: object, peer_device: object) -> bool:
    return _number(device) != _number(peer_device)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: there is nothing to wait for."""


def _zero(*_: object, **__: object) -> int:
    """Return 0: nothing is counted, and nothing fails."""
    return 0


def _manual_seed(seed: int) -> None:
    generators.default_generator().manual_seed(int(seed))


def _manual_seed_all(seed: int) -> None:
    for number in range(served.count()):
        generators.default_generator(number).manual_seed(int(seed))


def _get_rng_state(device: object = "cuda") -> Any:
    return generators.default_generator(_number(device)).get_state()


def _set_rng_state(state: object, device: object = "cuda") -> None:
    generators.default_generator(_number(device)).set_state(state)


class _DefaultGenerators:
    """`torch.cuda.default_generators`: a generator for each device."""

    def __len__(self) -> int:
        return served.count()

    def __getitem__(self, number: int) -> object:
        return generators.default_generator(range(served.count())[number])


_memory_info = _about_device("free_memory", "total_memory")
_Runtime = types.SimpleNamespace(
    cudaProfilerStart=_zero,
    cudaProfilerStop=_zero,
    cudaDeviceSynchronize=_zero,
    cudaHostRegister=_zero,
    cudaHostUnregister=_zero,
    cudaMemGetInfo=_memory_info,
    cudaGetErrorString=lambda code: "no error",
)
"""The functions of the CUDA runtime that programs call through torch."""

_WITHOUT_EFFECT = (
    "init",
    "_lazy_init",
    "synchronize",
    "ipc_collect",
    "_sleep",
    "set_per_process_memory_fraction",
    "empty_cache",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
)
_ALWAYS_ZERO = ("utilization", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
_OF_STREAMS = (
    "Stream",
    "ExternalStream",
    "Event",
    "StreamContext",
    "stream",
    "current_stream",
    "default_stream",
    "set_stream",
)
_OF_GRAPHS = ("CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing")


def _functions() -> dict[str, Any]:
    """Return what `torch.cuda` has, by name."""
    arch = "sm_{0.major}{0.minor}".format
    return {
        **dict.fromkeys(_WITHOUT_EFFECT, _nothing),
        **dict.fromkeys(_ALWAYS_ZERO, _zero),
        **{name: getattr(streams, name) for name in _OF_STREAMS},
        **{name: getattr(graphs, name) for name in _OF_GRAPHS},
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": served.count,
        "current_device": served.current_number,
        "set_device": _set_device,
        "device": _DeviceContext,
        "device_of": _DeviceOf,
        "get_device_name": _about_device("name"),
        "get_device_capability": _about_device("major", "minor"),
        "get_device_properties": _properties,
        "get_arch_list": lambda: [arch(served.current())],
        "can_device_access_peer": _can_access_peer,
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda: True,
        "cudart": lambda: _Runtime,
        "caching_allocator_alloc": lambda size, device=None, stream=None: memory.allocate(size),
        "caching_allocator_delete": memory.free,
        "mem_get_info": _memory_info,
        "memory_stats": lambda device=None: {},
        "memory_summary": lambda *_, **__: "memory of the host",
        "manual_seed": _manual_seed,
        "manual_seed_all": _manual_seed_all,
        **dict.fromkeys(("seed", "seed_all"), lambda: generators.default_generator().seed()),
        "initial_seed": lambda: generators.default_generator().initial_seed(),
        "get_rng_state": _get_rng_state,
        "get_rng_state_all": lambda: [_get_rng_state(number) for number in range(served.count())],
        "set_rng_state": _set_rng_state,
        "set_rng_state_all": lambda states: [_set_rng_state(*one) for one in zip(states, range(served.count()))][:0],
        "default_generators": _DefaultGenerators(),
    }
