"""`quantize`: rows in blocks with a scale factor each (mxfp8, mxfp4, nvfp4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ...dispatch.arrays import AnyArray
from ...dispatch.recorder import kernel_function
from .arguments import run_rows
from .block_formats import BlockRows
from .default_configs import smem_config
from .gated_activation import ElementwiseRows

if TYPE_CHECKING:
    from .... import cute
    from .config import RowwiseConfig

__all__ = ["quantize"]


class Same(ElementwiseRows):
    """The rows themselves."""

    def results(self, values: list[cute.TensorSSA], *_: object) -> list[cute.TensorSSA]:
        return values


@kernel_function("x", numbers=("scale",))
def quantize(
    x: AnyArray,
    format: str = "mxfp8",
    *,
    scale_layout: str = "atoms",
    scale: float = 1.0,
    config: RowwiseConfig | None = None,
) -> tuple[AnyArray, AnyArray]:
    """Return rows with fewer bits, and a scale factor for each block of neighbours, as `gemm` takes both.

    An element times its scale factor is about `scale * x`. A block with a NaN or an infinity has a scale factor that is
    no number.

    Args:
        x: (..., columns), f16, bf16 or f32; columns are a multiple of the block.
        format: "mxfp8" (e4m3) or "mxfp4" (e2m1), which have powers of two (e8m0) for blocks of 32: the least with which
            no element saturates; or "nvfp4" (e2m1), which has e4m3 for blocks of 16, the largest magnitude over 6. Floats
            of 4 bits are two to a byte, the first in the low half.
        scale_layout: "atoms" of 512 bytes, as tensor cores take them, (bytes,), or (L, bytes) of (L, M, K); or "rows",
            (..., columns / block).
        scale: what elements are multiplied by, finite and not 0. With nvfp4, magnitudes beyond 2688 saturate, and blocks of magnitudes
            below 0.006 become zeros: 2688 over the largest magnitude uses all of it, and alpha of `gemm` divides by it.
        config: a config of an implementation; by default the library chooses.
    """
    blocks = BlockRows.like("quantize", x, format, scale_layout, scale)
    run_rows("quantize", Same, [x], [blocks.data[0]], [], (), smem_config, config, blocks=blocks)
    return cast("AnyArray", blocks.rows), cast("AnyArray", blocks.scales)
