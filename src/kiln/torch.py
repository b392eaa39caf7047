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
    outputs: Mapping[str, str | tuple[Any, ...] | Callable[..., Any]] | None = None,
    mutates: Sequence[str] = (),
    backward: Callable[..., Any] | None = None,
    save: Sequence[str] = (),
    vmap: str | None = None,
    autocast: torch.dtype | bool | None = None,
    tags: Sequence[torch.Tag] = (),
) -> Operator:
    """Make a function of the language an operator of PyTorch, `namespace::name`, for eager mode and `torch.compile`.

    `outputs` says how each output is made, by parameter: the name of an input, for a tensor like it; a tuple of
    extents, `("x.0", "w.1", 64)`; or a function of the inputs. `mutates` names inputs that the kernel writes to.
    `backward(*saved, *gradients)` returns the gradients of the tensor inputs, and `save` names the inputs and outputs
    that it needs. `Operator` tells more of these, and of `vmap`, `autocast` and `tags`.
    """
    from .interop.torch.operators import Operator

    return Operator(
        name, function, outputs=outputs, mutates=mutates, backward=backward, save=save, vmap=vmap, autocast=autocast,
        tags=tags,
    )  # fmt: skip
