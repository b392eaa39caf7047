"""The bridge to PyTorch: tensors for programs, and kernels as operators. `kiln/interop/torch` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._support import lazy
from .base_dsl import packages as _packages

try:
    _packages.load("torch")
except ModuleNotFoundError:
    raise ModuleNotFoundError("kiln.torch needs PyTorch: pip install 'kiln-dsl[torch]'", name="torch") from None

from .interop.torch.tensors import *  # noqa: F403

__dir__ = lazy.listing(__name__)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from .interop.torch.operators import Operator


def op(
    name: str,
    function: Any,
    *,
    outputs: Mapping[str, str | tuple[object, ...] | Callable[..., object]] | None = None,
    mutates: Sequence[str] = (),
    backward: Callable[..., object] | None = None,
    save: Sequence[str] = (),
    vmap: str | None = None,
    autocast: torch.dtype | bool | None = None,
    tags: Sequence[torch.Tag] = (),
) -> Operator[..., Any]:
    """Make a function of the language an operator of PyTorch, for eager mode and `torch.compile`.

    `Operator` tells more of the arguments.

    Args:
        name: `"namespace::name"`.
        function: a `@jit` function whose parameters are inputs and outputs.
        outputs: how each output is made, by parameter: the name of an input, for a tensor like it; a tuple of extents,
            `("x.0", "w.1", 64)`; or a function of the inputs.
        mutates: the names of inputs that the kernel writes to.
        backward: a function of the saved tensors and the gradients of the outputs that returns those of the tensor
            inputs.
        save: the names of inputs and outputs that `backward` needs.
        vmap: "leading" if the kernel takes one more axis in front of all its tensors; by default `torch.vmap` calls it
            for each element.
        autocast: the dtype of floating-point inputs under autocast; True for the one that autocast uses.
        tags: further tags of torch, such as `torch.Tag.cudagraph_unsafe`.
    """
    from .interop.torch.operators import Operator

    return Operator(
        name,
        function,
        outputs=outputs,
        mutates=mutates,
        backward=backward,
        save=save,
        vmap=vmap,
        autocast=autocast,
        tags=tags,
    )
