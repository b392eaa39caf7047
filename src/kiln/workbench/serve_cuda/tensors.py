"""Torch tensors "on cuda": CPU tensors with a mark.

A torch function mode sees every call of torch. It makes tensors for the `cuda` device on the CPU and marks them, and
marks the results of calls that take marked tensors. A marked tensor reports `cuda:0`; moving between the devices
copies, as with a GPU. Calls on unmarked tensors are passed on unchanged.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from kiln.base_dsl.packages import leaning_on

from . import device as served
from . import factories, generators, graphs, half_matmul, ranks, scaled_mm
from .marks import device_number, is_marked, mark, number_among, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CPU = torch.device("cpu")


def _most_common() -> Any:
    """Return functions that make tensors on the default device."""
    names = "empty zeros ones full rand randn randint randperm arange linspace eye tensor"
    return {getattr(torch, name) for name in names.split()}


_device_constructors: Callable[[], Any] = _most_common
with leaning_on("torch constructors"):
    from torch.utils import _device

    _device_constructors = _device._device_constructors


def _named_device(x: object) -> torch.device | None:
    """Return the device that an argument names, or None."""
    if isinstance(x, torch.device):
        return x
    if type(x) is int:
        return torch.device("cuda", x)
    if isinstance(x, str):
        return torch.device(x)
    return None


class HostCuda(TorchFunctionMode):
    """The torch function mode. One serves all threads."""

    def __torch_function__(self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = _SPECIAL.get(func)
        if special is not None:
            return special(*args, **kwargs)
        if _default.on_cuda and kwargs.get("device") is None and func in _device_constructors():
            kwargs = {**kwargs, "device": _cuda_device()}
        kwargs, asked = _on_host(kwargs)
        inputs = list(tensors_in(args)) + list(tensors_in(kwargs))
        number = number_among(inputs) if asked is None else _number(asked)
        on_cuda = number is not None
        name = getattr(func, "__name__", "")
        if not on_cuda and asked is None and (ranks.current() is None or name not in generators.RANDOM):
            return func(*args, **kwargs)
        if served.count() > 1 and asked is None and name not in _ACROSS_DEVICES:
            _refuse_several_devices(inputs)
        random = name in generators.RANDOM and kwargs.get("generator") is None
        with generators.drawing(number) if random else contextlib.nullcontext():
            result = None
            if on_cuda and name in factories.NAMES and not graphs.is_current_stream_capturing():
                result = factories.large(func, args, kwargs)
            elif on_cuda and (name in half_matmul.NAMES or name in (scaled_mm.NAME, scaled_mm.GROUPED)):
                result = graphs.run(_matmul, (func, args, kwargs), {})
            if result is None:
                result = graphs.run(func, args, kwargs)
        allocates = on_cuda and (asked is not None or name in _ALLOCATING)
        for tensor in tensors_in(result):
            if not any(tensor is one for one in inputs):
                mark(tensor, number)
                if allocates:
                    _settle(tensor, inputs)
        return result


_ACROSS_DEVICES = frozenset({"copy_", "set_", "__set__", "assert_close", "equal"})
"""Torch functions that take tensors of several devices."""


def _refuse_several_devices(inputs: Iterable[torch.Tensor]) -> None:
    numbers = list(dict.fromkeys(number for x in inputs if (number := device_number(x)) is not None))
    if len(numbers) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"cuda:{numbers[0]} and cuda:{numbers[1]}!"
        )


def _cuda_device(number: int | None = None) -> torch.device:
    """Return a GPU by its number; None: the one of this thread."""
    return torch.device("cuda", served.current_number() if number is None else number)


def _number(device: torch.device) -> int | None:
    """Return the number of a device if it is a GPU, else None."""
    return served.check_number(device.index) if device.type == "cuda" else None


def _matmul(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if func.__name__ == scaled_mm.NAME:
        result = scaled_mm.block_scaled(*args, **kwargs)
    elif func.__name__ == scaled_mm.GROUPED:
        result = scaled_mm.grouped(*args, **kwargs)
    else:
        result = half_matmul.of_halves(func, args, kwargs)
    return func(*args, **kwargs) if result is None else result


def _on_host(kwargs: dict[str, Any]) -> tuple[dict[str, Any], torch.device | None]:
    """Return the keywords of a call with the host in place of a GPU, and the device they named."""
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    asked = _named_device(kwargs.get("device"))
    if asked is not None and asked.type == "cuda":
        served.check_number(asked.index)
        kwargs = {**kwargs, "device": _CPU}
    return kwargs, asked


_ALLOCATING = frozenset(
    {
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "clone",
        "contiguous",
        "new_empty",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_tensor",
        "new_empty_strided",
    }
)
"""Torch functions whose results programs pass to kernels, besides those with a device argument."""


_SMALL = 64 << 20
_KEPT_BYTES = 256 << 20
_kept: collections.deque[tuple[Any, int]] = collections.deque()
_kept_bytes = 0


def _settle(tensor: torch.Tensor, inputs: Iterable[torch.Tensor]) -> None:
    """Place a new tensor in memory as on a GPU, where torch hands out pieces of large blocks that it keeps.

    Memory extends behind it, starts at an aligned address if it is small, and stays for a while after the tensor:
    programs that go a little past the end of their tensors, or keep only an address, work on a GPU; here they would
    destroy the heap. The sanitizer finds the former.
    """
    if hasattr(tensor, "fake_device") or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return
    storage = tensor.untyped_storage()
    if storage.nbytes() - tensor.nbytes >= factories.SLACK:
        return  # has room behind it, or is part of something larger
    if storage.resizable() and storage.data_ptr() not in [x.untyped_storage().data_ptr() for x in inputs]:
        bytes_ = storage.nbytes()
        storage.resize_(bytes_ + factories.SLACK)
        if bytes_ < _SMALL and not graphs.is_current_stream_capturing():
            _align(tensor, storage, bytes_)
        _keep(storage)


def _align(tensor: torch.Tensor, storage: Any, bytes_: int) -> None:
    """Move a tensor to an aligned address of its memory, which has room behind it."""
    start = storage.data_ptr()
    distance = -start % factories.ALIGNMENT
    if distance and not distance % tensor.itemsize and not tensor.storage_offset() and not tensor.requires_grad:
        ctypes.memmove(start + distance, start, bytes_)
        tensor.set_(storage, distance // tensor.itemsize, tensor.shape, tensor.stride())


def _keep(storage: Any) -> None:
    """Keep memory until enough newer memory is kept."""
    global _kept_bytes
    bytes_ = storage.nbytes()
    if bytes_ > _KEPT_BYTES // 8:
        return
    _kept.append((storage, bytes_))
    _kept_bytes += bytes_
    while _kept_bytes > _KEPT_BYTES:
        _kept_bytes -= _kept.popleft()[1]


# --- moving between the devices --------------------------------------------------------------------------------------


def _move(tensor: torch.Tensor, target: torch.device, *args: object, **kwargs: object) -> torch.Tensor:
    """Implement `tensor.to(target, *args, **kwargs)`: a copy if the tensor is elsewhere, itself if nothing changes."""
    if target.type not in ("cuda", "cpu"):
        return tensor.to(target, *args, **kwargs)
    number = _number(target)
    moved = graphs.run(torch.Tensor.to, (tensor, _CPU, *args), kwargs)
    if moved is tensor and number != device_number(tensor):
        moved = graphs.run(torch.Tensor.clone, (tensor,), {})
    if moved is not tensor:
        mark(moved, number)
        if number is not None:
            _settle(moved, [tensor])
    return moved


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if "other" in kwargs or (args and isinstance(args[0], torch.Tensor)):
        other = kwargs.pop("other") if "other" in kwargs else args[0]
        rest = args[1:] if args else ()
        return _move(tensor, _device_of(other), other.dtype, *rest, **kwargs)
    named, rest = (kwargs.pop("device"), args) if "device" in kwargs else (args[0] if args else None, args[1:])
    target = _named_device(named)
    if target is None:
        if named is not None:
            rest = (named, *rest)
        target = _device_of(tensor)
    return _move(tensor, target, *rest, **kwargs)


def _cuda(tensor: torch.Tensor, device: object = None, non_blocking: bool = False, **kwargs: object) -> torch.Tensor:
    return _move(tensor, _named_device(device) or _cuda_device(device_number(tensor)), **kwargs)


def _cpu(tensor: torch.Tensor, **kwargs: object) -> torch.Tensor:
    return _move(tensor, _CPU if is_marked(tensor) else tensor.device, **kwargs)


def _set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    torch.Tensor.data.__set__(tensor, data)
    mark(tensor, device_number(data))


# --- what a tensor says about itself ---------------------------------------------------------------------------------


def _device_of(tensor: torch.Tensor, *_: object) -> torch.device:
    number = device_number(tensor)
    return tensor.device if number is None else _cuda_device(number)


def _is_cuda(tensor: torch.Tensor, *_: object) -> bool:
    return is_marked(tensor) or tensor.is_cuda


def _is_cpu(tensor: torch.Tensor, *_: object) -> bool:
    return tensor.is_cpu and not is_marked(tensor)


def _get_device(tensor: torch.Tensor) -> int:
    number = device_number(tensor)
    return tensor.get_device() if number is None else number


def _numpy(tensor: torch.Tensor, *args: object, **kwargs: object) -> Any:
    _refuse_numpy(tensor)
    return tensor.numpy(*args, **kwargs)


def _array(tensor: torch.Tensor, *args: object, **kwargs: object) -> Any:
    _refuse_numpy(tensor)
    return tensor.__array__(*args, **kwargs)


def _refuse_numpy(tensor: torch.Tensor) -> None:
    if is_marked(tensor):
        hint = "Use Tensor.cpu() to copy the tensor to host memory first."
        raise TypeError(f"can't convert cuda:{device_number(tensor)} device type tensor to numpy. {hint}")


def _repr(tensor: torch.Tensor, **kwargs: object) -> str:
    text = torch.Tensor.__repr__(tensor, **kwargs)
    if not is_marked(tensor) or ", device=" in text:
        return text
    ends = [text.find(f", {what}=") for what in ("size", "dtype", "layout", "grad_fn", "requires_grad")]
    at = min((end for end in ends if end >= 0), default=len(text) - 1)
    return f"{text[:at]}, device='cuda:{device_number(tensor)}'{text[at:]}"


def _pin_memory(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return tensor


def _type(tensor: torch.Tensor, dtype: object = None, non_blocking: bool = False, **kwargs: object) -> Any:
    """Implement `tensor.type()`, the old name of its type, and `tensor.type(T)`, a conversion."""
    if dtype is None:
        name = tensor.type()
        return name.replace("torch.", "torch.cuda.", 1) if is_marked(tensor) else name
    if isinstance(dtype, str) or (isinstance(dtype, type) and dtype.__module__.startswith("torch")):
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
        target = _cuda_device() if name.startswith("torch.cuda.") else _CPU
        return _move(tensor, target, getattr(torch, name.rsplit(".", 1)[-1]).dtype)
    return _move(tensor, _device_of(tensor), dtype)


def _type_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return _move(tensor, _device_of(other), other.dtype)


def _dlpack_device(tensor: torch.Tensor) -> Any:
    device = torch.Tensor.__dlpack_device__(tensor)
    number = device_number(tensor)
    return device if number is None else (type(device[0])(2), number)


def _cuda_array_interface(tensor: torch.Tensor, *_: object) -> dict[str, Any]:
    if not is_marked(tensor):
        return torch.Tensor.__cuda_array_interface__.__get__(tensor)  # pyright: ignore[reportAttributeAccessIssue]
    plain = tensor.detach().numpy().__array_interface__
    return {k: plain[k] for k in ("data", "shape", "strides", "typestr")} | {"version": 2}


def _register_hook(tensor: torch.Tensor, hook: Callable[[Any], Any]) -> Any:
    """Implement `tensor.register_hook(hook)`: the gradient is on the device of the tensor."""
    number = device_number(tensor)

    @functools.wraps(hook)
    def with_mark(gradient: object) -> Any:
        for part in tensors_in(gradient):
            mark(part, number)
        return hook(gradient)

    return torch.Tensor.register_hook(tensor, with_mark)


def _record_stream(tensor: torch.Tensor, *_: Any) -> None:
    """Do nothing: memory is not reused before its last user is done."""


_SPECIAL: dict[Any, Callable[..., Any]] = {
    torch.device: torch.device,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.cpu: _cpu,
    torch.Tensor.data.__set__: _set_data,
    torch.Tensor.device.__get__: _device_of,
    torch.Tensor.is_cuda.__get__: _is_cuda,
    torch.Tensor.is_cpu.__get__: _is_cpu,
    torch.Tensor.get_device: _get_device,
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _array,
    torch.Tensor.__repr__: _repr,
    torch.Tensor.pin_memory: _pin_memory,
    torch.Tensor.type: _type,
    torch.Tensor.type_as: _type_as,
    torch.Tensor.__dlpack_device__: _dlpack_device,
    torch.Tensor.register_hook: _register_hook,
    torch.Tensor.__cuda_array_interface__.__get__: _cuda_array_interface,
}


# --- the default device ----------------------------------------------------------------------------------------------


class _Default(threading.local):
    on_cuda = False


_default = _Default()


def serve_default_device() -> None:
    """Make `torch.set_default_device("cuda")` work."""
    set_plainly = torch.set_default_device
    get_plainly = torch.get_default_device

    def set_default_device(device: object) -> None:
        named = _named_device(device)
        _default.on_cuda = named is not None and named.type == "cuda"
        set_plainly(None if _default.on_cuda else device)

    def get_default_device() -> torch.device:
        return _cuda_device() if _default.on_cuda else get_plainly()

    module: Any = torch
    module.set_default_device = set_default_device
    module.get_default_device = get_default_device


def serve_parameters() -> None:
    """Mark parameters of marked tensors: torch makes them without a call that modes see."""
    plain = torch.nn.Parameter.__new__

    def new(cls: type, data: object = None, requires_grad: bool = True) -> Any:
        tensor = plain(cls, data, requires_grad)
        number = device_number(data)
        if number is not None:
            mark(tensor, number)
        return tensor

    torch.nn.Parameter.__new__ = staticmethod(new)


def serve_other_ways() -> None:
    """Serve functions that modes do not see: `torch.load`, `torch.from_dlpack`, old tensor types of GPUs."""
    load = torch.load
    from_dlpack = torch.from_dlpack

    def load_marked(f: object, map_location: object = None, *args: object, **kwargs: object) -> Any:
        target = _named_device(map_location) if isinstance(map_location, (str, torch.device)) else None
        if target is None or target.type not in ("cuda", "cpu"):
            return load(f, map_location, *args, **kwargs)
        loaded = load(f, _CPU, *args, **kwargs)
        for tensor in tensors_in(loaded):  # the mark is saved with a tensor
            mark(tensor, _number(target))
        return loaded

    def from_dlpack_marked(ext_tensor: Any, **kwargs: object) -> torch.Tensor:
        if not is_marked(ext_tensor):
            return from_dlpack(ext_tensor, **kwargs)
        tensor = ext_tensor.detach()
        mark(tensor, device_number(ext_tensor))
        return tensor

    module: Any = torch
    module.load = load_marked
    module.from_dlpack = from_dlpack_marked
    # Torch's own takes only its streams, and reads them before modes see the call.
    module.Tensor.record_stream = _record_stream
    for name in ("Float", "Double", "Half", "BFloat16", "Char", "Byte", "Short", "Int", "Long", "Bool"):
        dtype = getattr(torch, f"{name}Tensor").dtype
        setattr(module.cuda, f"{name}Tensor", _old_type(name, dtype))


def _old_type(name: str, dtype: torch.dtype) -> type:
    """Return a type for `torch.cuda.FloatTensor(2, 3)` and `torch.cuda.FloatTensor([1.0])`."""

    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, torch.Tensor) and is_marked(instance) and instance.dtype is dtype

        def __call__(cls, *args: object) -> torch.Tensor:
            if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
                return torch.tensor(args[0], dtype=dtype, device=_cuda_device())
            sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args or (0,)
            return torch.empty(sizes, dtype=dtype, device=_cuda_device())

    return Meta(f"{name}Tensor", (), {"__module__": "torch.cuda", "dtype": dtype})


# --- in every thread -------------------------------------------------------------------------------------------------


def in_force() -> bool:
    """Return whether a mode sees the calls of torch that this thread makes."""
    return torch._C._len_torch_function_stack() > 0  # pyright: ignore[reportAttributeAccessIssue]


def install() -> None:
    """Activate the mode in this thread and in every thread started from now on; modes belong to a thread."""
    HostCuda().__enter__()
    start = threading.Thread.start

    def start_with_mode(self: threading.Thread) -> None:
        run = self.run

        def run_with_mode() -> None:
            self.__dict__.pop("run", None)  # breaks the reference cycle
            with HostCuda():
                run()

        self.run = run_with_mode
        try:
            start(self)
        except BaseException:
            self.__dict__.pop("run", None)
            raise

    threading.Thread.start = start_with_mode
