"""Views of tensor arguments."""

from __future__ import annotations

from ... import cute


def permuted(x: cute.Tensor, modes: list[int] | None, width: int) -> cute.Tensor:
    """Return a tensor with permuted modes, if an order is given, whose dynamic strides a width divides."""
    layout = x.layout if modes is None else cute.select(x.layout, mode=modes)
    stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=width) for s in layout.stride)
    return cute.make_tensor(x.iterator, cute.make_layout(layout.shape, stride=stride))
