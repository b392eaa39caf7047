"""Online softmax of the sm_80 kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .....utils.tiles import TileSoftmax
from .....utils.tiles.online_softmax import softcap_tanh

if TYPE_CHECKING:
    from ..... import Float32
    from .sm80_mma import Sm80Mma


class Sm80Softmax(TileSoftmax):
    """Online softmax of the accumulators of a warp, with a softcap."""

    def __init__(self, mma: Sm80Mma, scale_log2: Float32 | float) -> None:
        super().__init__(mma.acc_s, mma.acc_o, mma.p, scale_log2)

    def softcap(self, cap: Float32 | float) -> None:
        """Apply the softcap; scale_log2 has the rest of it."""
        for n in range(self.pairs):
            for half, m in self.rows:
                for c in range(2):
                    self.acc_s[(c, half), m, n] = softcap_tanh(self.acc_s[(c, half), m, n], cap)
