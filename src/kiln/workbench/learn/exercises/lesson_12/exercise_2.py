"""Exercise 2 of lesson 12: causal attention with a sliding window."""

import kiln
import kiln.cute as cute
from kiln import Float32, Int32

LOG2_E = 1.4426950408889634


@cute.kernel
def window_kernel(q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor, window: Int32):
    """Query i sees the keys i - window + 1 to i, as far as they exist, and reads no others. head_dim is 32."""
    lane, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    scaled = q[row, lane] * (32**-0.5 * LOG2_E)
    row_max = -Float32.inf
    row_sum = Float32(0)
    acc = Float32(0)
    # TODO: the loop over the keys that the query sees, with the online softmax (cute.math.exp2)
    for j in range(kiln.max(row - window + 1, 0), row + 1):
        score = cute.arch.warp_reduction_sum(scaled * k[j, lane])
        larger = kiln.max(row_max, score)
        scale = cute.math.exp2(row_max - larger)
        p = cute.math.exp2(score - larger)
        row_sum = row_sum * scale + p
        acc = acc * scale + p * v[j, lane]
        row_max = larger
    # END
    o[row, lane] = acc / row_sum


@cute.jit
def window_attention(q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor, window: Int32):
    window_kernel(q, k, v, o, window).launch(grid=q.shape[0], block=32)
