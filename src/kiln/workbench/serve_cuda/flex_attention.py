"""`torch.nn.attention.flex_attention` for the served device: torch traces score and mask functions on host tensors.

Torch turns the functions of a program into graphs of fake tensors, which take over the device that a captured tensor
reports; fake tensors on `cuda` need a torch that was built with CUDA. So the mode of `tensors.py` passes a whole call
on, sees none of the calls inside, and marks what the call returns.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import handle_torch_function

from kiln.base_dsl.packages import leaning_on

from . import device as served
from . import tensors
from .marks import is_marked, mark, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable


def serve(module: Any) -> None:
    """Serve the functions of the freshly imported module."""
    module.flex_attention = _attending(module.flex_attention)
    module.create_block_mask = _making_mask(module.create_block_mask)
    with leaning_on("torch flex attention"):
        validate = module._validate_device

        def validate_device(query: object, key: object, value: object) -> None:
            if not is_marked(query):  # on the CPU torch refuses gradients; the unfused form that runs here has them
                validate(query, key, value)

        module._validate_device = validate_device


def _as_one_call(function: Callable[..., object]) -> Callable[..., Any]:
    """Return a function that the mode sees as one call of torch."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        if not tensors.in_force():
            return function(*args, **kwargs)
        return handle_torch_function(function, (), *args, **kwargs)

    return call


def _attending(attention: Callable[..., object]) -> Callable[..., Any]:
    """Return `flex_attention` for both devices."""
    signature = inspect.signature(attention)

    @functools.wraps(attention)
    def flex_attention(*args: object, **kwargs: object) -> Any:
        score_mod = signature.bind(*args, **kwargs).arguments.get("score_mod")
        captured = inspect.getclosurevars(score_mod) if inspect.isfunction(score_mod) else None
        for name, value in {**captured.globals, **captured.nonlocals}.items() if captured else ():
            if isinstance(value, torch.Tensor) and value.requires_grad and is_marked(value):
                raise NotImplementedError(
                    f"flex_attention on the served device has no gradient of {name!r}, which score_mod captures: "
                    f"pass {name}.detach()"
                )
        return _as_one_call(attention)(*args, **kwargs)

    return flex_attention


def _making_mask(create: Callable[..., object]) -> Callable[..., Any]:
    """Return `create_block_mask` for both devices; the tensors of a block mask are on the one that is asked for."""
    signature = inspect.signature(create)

    @functools.wraps(create)
    def create_block_mask(*args: object, **kwargs: object) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        if arguments.get("device") is None:
            arguments["device"] = "cuda"
        mask = _as_one_call(create)(**arguments)
        for tensor in tensors_in(list(vars(mask).values())):
            device = torch.device(arguments["device"])
            mark(tensor, served.check_number(device.index) if device.type == "cuda" else None)
        return mask

    return create_block_mask
