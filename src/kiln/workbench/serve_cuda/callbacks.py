"""Python that torch's own code calls: backward functions, hooks, kernels of operators, compiled functions.

Torch calls it inside a function that the mode of `tensors.py` has passed on, where the mode is not active. This module
activates it again and marks what torch passes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kiln.base_dsl.packages import leaning_on

from .marks import MARK, device_number, is_marked, mark, number_among, tensors_in
from .tensors import HostCuda, in_force

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def _in_force() -> Iterator[None]:
    """While open, the mode sees the calls of torch that this thread makes."""
    if in_force():
        yield
        return
    with HostCuda():
        yield


def _probe_modes() -> None:
    """Raise AttributeError if torch lacks what `_in_force` needs."""
    in_force()


def serve() -> None:
    """Install all of it."""
    with leaning_on("torch autograd"):
        _serve_autograd()
    with leaning_on("torch operators"):
        _serve_operators()
    _serve_compile()


# --- gradients -------------------------------------------------------------------------------------------------------


def _serve_autograd() -> None:
    """Run backward functions and hooks under the mode. A user's function knows its device from its forward."""
    module: Any = torch.autograd
    run = module.graph._engine_run_backward
    plain = module.Function.apply
    backward = module.function.BackwardCFunction.apply
    forward = inspect.getattr_static(module.Function, "apply")  # a Python function; since torch 2.15 a C function
    _probe_modes()

    @functools.wraps(run)
    def run_in_force(*args: object, **kwargs: object) -> Any:
        with _in_force():
            return run(*args, **kwargs)

    module._engine_run_backward = module.graph._engine_run_backward = run_in_force

    def apply(cls: Any, *args: object, **kwargs: object) -> Any:
        result = forward.__get__(None, cls)(*args, **kwargs)
        number = number_among(tensors_in((args, kwargs)))
        if number is not None:
            for tensor in tensors_in(result):
                if hasattr(tensor, "fake_device") and not in_force():
                    continue  # of a call that the mode passed on, which traces on the host
                mark(tensor, number)
                if tensor.grad_fn is not None:
                    setattr(tensor.grad_fn, MARK, number)
        return result

    module.Function.apply = classmethod(functools.wraps(plain)(apply))

    @functools.wraps(backward)
    def apply_backward(self: Any, *args: object) -> Any:
        number = device_number(self)
        if number is not None:
            for gradient in tensors_in(args):
                mark(gradient, number)
        return backward(self, *args)

    module.function.BackwardCFunction.apply = apply_backward


# --- operators -------------------------------------------------------------------------------------------------------

_HOST_KEYS = {"CUDA": "CPU", "AutogradCUDA": "AutogradCPU"}
"""Torch dispatches marked tensors to the CPU: kernels for a GPU are also registered there."""
_OF_ANY_DEVICE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
"""Keys of kernels that torch calls where there is none for the device, as those of `custom_op` without `device_types`."""
_ANY = "any device"
"""What stands for them."""


def _serve_operators() -> None:
    """Call a kernel registered for `cuda` for marked tensors, one registered for `cpu` for the others.

    One for any device is called for tensors whose device has none.
    """
    plain = torch.library.Library.impl
    probed: Any = torch.library.Library("kiln", "FRAGMENT")
    _ = probed.m, probed.ns, probed.dispatch_key
    _probe_modes()
    tables: dict[tuple[str, str], tuple[Callable[[], object], dict[bool, Callable[..., object]]]] = {}
    """By operator and key: a weak reference to its library, and the kernels by whether they are for cuda."""

    def of_any_device(full: str) -> Callable[..., object] | None:
        owner, kernels = tables.get((full, _ANY), (lambda: None, {}))
        return None if getattr(owner(), "m", None) is None else kernels[True]

    @functools.wraps(plain)
    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
        key = dispatch_key or self.dispatch_key
        host = _HOST_KEYS.get(key, key)
        name = op_name if isinstance(op_name, str) else op_name.name()
        full = name if "::" in name else f"{self.ns}::{name}"
        if host in _OF_ANY_DEVICE and fn is not torch.library.fallthrough_kernel:
            fn = _seen(fn)
            tables[full, _ANY] = weakref.ref(self), {True: fn}
        if host not in _HOST_KEYS.values():
            return plain(self, op_name, fn, dispatch_key, **options)
        if key != host:
            plain(self, op_name, fn, dispatch_key, **options)
        owner, kernels = tables.get((full, host), (lambda: None, {}))
        if getattr(owner(), "m", None) is not None:  # otherwise the operator is defined anew
            kernels[key != host] = fn
            return None
        kernels = {key != host: fn}
        tables[full, host] = weakref.ref(self), kernels
        return plain(self, op_name, _chosen(full, kernels, of_any_device), host, **options)

    torch.library.Library.impl = impl


def _seen(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function whose calls of torch the mode sees."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        with _in_force():
            return function(*args, **kwargs)

    return call


def _chosen(
    name: str,
    kernels: Mapping[bool, Callable[..., object]],
    of_any_device: Callable[[str], Callable[..., object] | None],
) -> Callable[..., Any]:
    def kernel(*args: object, **kwargs: object) -> Any:
        tensors = list(tensors_in((args, kwargs)))
        on_cuda = any(map(is_marked, tensors)) if tensors else True in kernels
        chosen = kernels.get(on_cuda) or of_any_device(name)
        if chosen is None:
            where = "CUDA" if on_cuda else "CPU"
            raise NotImplementedError(f"Could not run {name!r} with arguments from the {where!r} backend.")
        with _in_force():
            return chosen(*args, **kwargs)

    return kernel


# --- compiled functions ----------------------------------------------------------------------------------------------


def _serve_compile() -> None:
    """Make `torch.compile` return the function itself: there is no GPU to generate code for."""

    def compile(model: Any = None, **_: object) -> Any:
        if model is None:
            return compile
        if isinstance(model, torch.nn.Module):
            object.__setattr__(model, "_orig_mod", model)  # where programs look for their module
            return model

        @functools.wraps(model)
        def run(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        return run

    module: Any = torch
    module.compile = compile
    module.nn.Module.compile = lambda self, *_, **__: None
