"""Views of tensor arguments."""

from __future__ import annotations

from ... import Float32, TFloat32, cute


def permuted(x: cute.Tensor, modes: list[int] | None, width: int) -> cute.Tensor:
    """Return a tensor with permuted modes, if an order is given, whose dynamic strides a width divides."""
    layout = x.layout if modes is None else cute.select(x.layout, mode=modes)
    stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=width) for s in layout.stride)
    return cute.make_tensor(x.iterator, cute.make_layout(layout.shape, stride=stride))


def tma_view(x: cute.Tensor, modes: list[int], width: int, batched: bool, rounded: bool = False) -> cute.Tensor:
    """Return a tensor with permuted modes and strides that a width divides, the last mode that of batches.

    Not `batched`: batches are all the same. `rounded`: f32 becomes TF32, which TMA rounds to.
    """
    if x.element_type is Float32 and rounded:
        x = cute.recast_tensor(x, TFloat32)
    x = permuted(x, modes, width)
    if batched:
        return x
    return cute.make_tensor(x.iterator, cute.make_layout(x.shape, stride=(*x.stride[:2], 0)))
