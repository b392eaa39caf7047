"""The problem of rotary embeddings."""

from __future__ import annotations

import dataclasses
import math

from .... import Int32, Int64
from ...dispatch.arrays import require
from ...dispatch.matrices import require_floats
from ...dispatch.problem import MAX_VECTOR_BYTES, Problem, TensorLayout


@dataclasses.dataclass(frozen=True)
class RopeProblem(Problem):
    """The rotation of pairs of elements of (batch, tokens, heads, D) by the angles of their positions, (positions,
    pairs).

    `index` are the positions of all tokens (batch, tokens), or where each sequence begins (batch,); None: all begin at
    one place. Elements behind the pairs stay as they are; they are copied unless the result is `in_place`.
    """

    x: TensorLayout
    out: TensorLayout
    cos: TensorLayout
    sin: TensorLayout
    index: TensorLayout | None
    interleaved: bool
    conjugate: bool
    in_place: bool

    name = "rotary_embedding"

    def __post_init__(self) -> None:
        name = self.name
        x = self.x
        require(
            len(x.shape) == 4 and x.shape == self.out.shape,
            f"{name} of shape {x.shape} into {self.out.shape}",
            hint="(batch, tokens, heads, D) or (tokens, heads, D), and a result of that shape",
        )
        require(
            len(self.cos.shape) == 2 and self.cos.shape == self.sin.shape and 2 * self.pairs <= x.shape[3],
            f"{name} of heads of {x.shape[3]} with cosines of shape {self.cos.shape} and sines of {self.sin.shape}",
            hint="both (positions, pairs), with at most half as many pairs as a head has elements",
        )
        tensors = x, self.out, self.cos, self.sin
        require_floats(name, tensors)
        for tensor in tensors:
            require(
                tensor.strides[-1] == 1 or tensor.shape[-1] <= 1,
                f"{name}: {tensor.shape} with strides {tensor.strides}, not contiguous along the last mode",
            )
        if self.index is not None:
            require(
                self.index.dtype in (Int32, Int64),
                f"{name}: positions of {self.index.dtype.__name__} elements",
                hint="Int32 or Int64",
            )
            require(
                self.index.shape in (x.shape[:1], x.shape[:2]),
                f"{name}: positions of shape {self.index.shape} for {x.shape}",
                hint=f"one for each token: {x.shape[:2]}, or for each sequence: {x.shape[:1]}",
            )

    @property
    def pairs(self) -> int:
        """Pairs of a head that are rotated."""
        return self.cos.shape[1]

    @property
    def width(self) -> int:
        """Elements of an access: as many pairs a thread rotates in a head."""
        width = MAX_VECTOR_BYTES // max(self.x.size, self.out.size)
        rest = 0 if self.in_place else self.x.shape[3] - 2 * self.pairs

        def fits(tensor: TensorLayout) -> bool:
            steps = (s for n, s in zip(tensor.shape[:-1], tensor.strides[:-1], strict=True) if n != 1)
            return tensor.offset % min(MAX_VECTOR_BYTES, width * tensor.size) == 0 and all(
                s % width == 0 for s in steps
            )

        while width > 1 and (
            self.pairs % width or rest % width or not all(map(fits, (self.x, self.out, self.cos, self.sin)))
        ):
            width //= 2
        return width

    @property
    def flops(self) -> int:
        """Six for each pair."""
        return 6 * math.prod(self.x.shape[:3]) * self.pairs

    @property
    def bytes(self) -> int:
        """Rotated or copied elements are read once and written once; cosines and sines of so many tokens are read."""
        each = 2 * self.pairs if self.in_place else self.x.shape[3]
        moved = math.prod(self.x.shape[:3]) * each * (self.x.size + self.out.size)
        return moved + 2 * self.x.shape[1] * self.pairs * self.cos.size
