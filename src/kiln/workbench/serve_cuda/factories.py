"""Makes large new tensors quickly: programs for GPUs begin by filling gigabytes, which torch does slowly on a CPU.

Tensors get slack behind them from the start, and normal random numbers are drawn in parallel.
"""

from __future__ import annotations

import concurrent.futures
import platform
from typing import TYPE_CHECKING, Any

import numpy
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

SLACK = 64 << 10
"""Bytes of memory behind a new tensor."""
ALIGNMENT = 128
"""The alignment of new tensors, which tensor maps need; a GPU's is larger."""
_LARGE = 4 << 20
_CHUNK = 1 << 20

_NORMAL = {"randn": torch.empty, "randn_like": torch.empty_like}
"""Functions of normal numbers, and those that make empty tensors alike: torch imports sympy to find a shape with `randn`."""
_DRAWN_BY_TORCH = (torch.float16, torch.bfloat16, torch.float32) if platform.machine() == "x86_64" else ()
"""Types of normal numbers that torch draws faster than numpy: by AVX2, 2.7 times as fast for float16."""
_ZEROS = frozenset({"zeros", "zeros_like"})
NAMES = {*_NORMAL, *_ZEROS, "empty", "empty_like", "empty_strided"}
"""Names of the functions whose results `large` makes."""


def large(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Make the tensor that a call of one of `NAMES` asks for; None if it is small or torch must handle its options."""
    name = func.__name__
    if kwargs.get("out") is not None or kwargs.get("requires_grad") or kwargs.get("names") is not None:
        return None
    if kwargs.get("layout", torch.strided) is not torch.strided or any(hasattr(x, "fake_device") for x in args):
        return None
    described = {k: v for k, v in kwargs.items() if k != "generator"}
    like = _NORMAL.get(name, func)(*args, **{**described, "device": "meta"})
    bytes_ = like.numel() * like.itemsize
    if bytes_ < _LARGE or like.untyped_storage().nbytes() != bytes_:
        return None
    if name in _NORMAL and not like.is_floating_point():
        return None
    # The system provides zero pages when they are touched.
    memory = (torch.zeros if name in _ZEROS else torch.empty)(bytes_ + SLACK, dtype=torch.uint8)
    first = -memory.data_ptr() % ALIGNMENT // like.itemsize
    tensor = torch.empty(0, dtype=like.dtype).set_(memory.untyped_storage(), first, like.shape, like.stride())
    if name in _NORMAL:
        _draw_normal(tensor, kwargs.get("generator"))
    return tensor


def _draw_normal(tensor: torch.Tensor, generator: torch.Generator | None) -> None:
    """Fill a tensor with normal random numbers, which depend on the generator's state, not on the number of threads."""
    seed = int(torch.randint(1 << 62, (), generator=generator))
    flat = tensor.as_strided((tensor.numel(),), (1,))

    inference = torch.is_inference_mode_enabled()

    def draw(start: int) -> None:
        with torch.inference_mode(inference):  # each thread has its own mode
            draw_part(start)

    def draw_part(start: int) -> None:
        part = flat[start : start + _CHUNK]
        if tensor.dtype in _DRAWN_BY_TORCH:
            (chunk,) = numpy.random.SeedSequence([seed, start]).generate_state(1)
            part.normal_(generator=torch.Generator().manual_seed(int(chunk)))
            return
        source = numpy.random.Generator(numpy.random.SFC64([seed, start]))
        kind = numpy.float64 if tensor.dtype is torch.float64 else numpy.float32
        values: Any = source.standard_normal(part.numel(), dtype=kind)
        if tensor.dtype is torch.float16:
            values = values.astype(numpy.float16)  # torch takes nine times as long
        part.copy_(torch.from_numpy(values))

    with concurrent.futures.ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        list(pool.map(draw, range(0, flat.numel(), _CHUNK)))
