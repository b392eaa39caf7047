"""MLA decode of one token per sequence, with sequences of very different lengths split into equal shares."""

import numpy as np
from arrays import array, empty, normal

from kiln import kernels

arch = "sm_90a"
problems = [{"batch": 3, "most": 256, "heads": 16}, {"batch": 8, "most": 65536, "heads": 16}]
configs = [{"shares": 132}, {"shares": 8}, {"shares": 264}]
VALUES, PAGE = 512, 64


def numbers(config, problem):
    """Return the KV blocks of the longest share, and of the longest sequence, which one CTA would compute alone."""
    lengths = lengths_of(problem["batch"], problem["most"])
    blocks = -(-lengths // PAGE)
    return {"longest_share": int(-(-blocks.sum() // config["shares"])), "longest_sequence": int(blocks.max())}


def lengths_of(batch, most):
    return np.linspace(most // 16, most, batch).astype(np.int32)


def kernel_fn(q, cache, table, lengths, config):
    out = empty((*q.shape[:3], VALUES), np.float16, q)
    return kernels.mla_decode(q, cache, table, lengths, out=out, num_splits=config["shares"])


def reference_fn(q, cache, table, lengths):
    out = empty((*q.shape[:3], VALUES), np.float16, q)
    for n, length in enumerate(lengths.tolist()):
        rows = cache[table[n].tolist()].reshape(-1, cache.shape[2])[:length]
        scores = q[n, 0] @ rows.T * q.shape[3] ** -0.5
        powers = 2.0 ** ((scores - scores.max()) * 1.4426950408889634)
        out[n, 0] = (powers / powers.sum(-1)[:, None]) @ rows[:, :VALUES]
    return out


def get_inputs(batch, most, heads):
    columns = most // PAGE
    table = np.random.permutation(batch * columns).reshape(batch, columns).astype(np.int32)
    lengths = lengths_of(batch, most)
    q, cache = (
        normal((batch, 1, heads, VALUES + 64), np.float16),
        normal((batch * columns, PAGE, VALUES + 64), np.float16),
    )
    return [q, cache, array(table), array(lengths)]


def flops_bytes(batch, most, heads):
    keys = batch * (most + most // 16) // 2
    return 2 * heads * keys * (2 * VALUES + 64), 2 * keys * (VALUES + 64)
