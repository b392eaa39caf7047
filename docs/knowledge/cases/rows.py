"""y = x / sqrt(mean(x^2)) for each row, a block of 128 threads to a row: what is held in registers, how threads add up their parts,
how a register is chosen, and the accumulator type."""

import operator

import numpy as np
from arrays import empty, normal, tensor

from kiln import Constexpr, Float16, Float32, Int32, cute, range_constexpr, utils

THREADS = 128
problems = [{"m": 3, "n": 2048}, {"m": 16384, "n": 4096}]
configs = [
    {"hold": "registers", "merge": "shuffle", "acc": "f32", "rows": 1},
    {"hold": "nothing", "merge": "shuffle", "acc": "f32", "rows": 1},
    {"hold": "registers", "merge": "shared", "acc": "f32", "rows": 1},
    {"hold": "registers", "merge": "shuffle", "acc": "f32", "rows": 4},
]


@cute.jit
def added(part, thread, merge: Constexpr):
    """The sum of what all threads of the block bring."""
    if merge == "shuffle":
        return utils.reduce_in_block(part, operator.add, THREADS, THREADS)
    parts = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS), 16)
    parts[thread] = part
    if merge != "no barrier":
        cute.arch.sync_threads()
    total = Float32(0.0)
    for i in range(THREADS):
        total += parts[i]
    return total


@cute.jit
def one_row(x, y, row, thread, last, config: Constexpr):
    hold, acc = config["hold"], config["acc"]
    columns = x.shape[1]
    source = cute.local_tile(cute.zipped_divide(x[row, None], 4), (4, THREADS), (0, None))[None, thread, None]
    target = cute.local_tile(cute.zipped_divide(y[row, None], 4), (4, THREADS), (0, None))[None, thread, None]
    held = cute.make_rmem_tensor(source.shape, Float32)
    part = Float16(0.0) if acc == "f16" else Float32(0.0)
    for i in range_constexpr(source.shape[1]):
        values = source[None, i].load()
        held[None, i].store(values)
        for j in range_constexpr(4):
            square = values[j] * values[j]
            part += square.to(Float16) if acc == "f16" else square
    scale = cute.math.rsqrt(added(part.to(Float32), thread, config["merge"]) / columns)
    if hold == "indexed":
        for i in range(last % 2, source.shape[1]):  # nobody knows which registers these are
            target[None, i].store(held[None, i].load() * scale)
    else:
        for i in range_constexpr(source.shape[1]):
            values = held[None, i].load() if hold == "registers" else source[None, i].load()
            target[None, i].store(values * scale)


@cute.kernel
def norm_kernel(x: cute.Tensor, y: cute.Tensor, last: Int32, config: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if config["merge"] == "early return":
        if thread >= last:  # threads that have nothing to do leave, and the others wait for them at a barrier
            return
    if config["rows"] == 1:
        one_row(x, y, block, thread, last, config)
    else:
        for row in range(block * config["rows"], min((block + 1) * config["rows"], x.shape[0])):
            one_row(x, y, row, thread, last, config)
            cute.arch.sync_threads()


@cute.jit
def norm(x: cute.Tensor, y: cute.Tensor, last: Int32, config: Constexpr):
    norm_kernel(x, y, last, config).launch(grid=cute.ceil_div(x.shape[0], config["rows"]), block=THREADS)


def kernel_fn(x, config):
    y = empty(x.shape, np.float32, x)
    norm(tensor(x), tensor(y), THREADS - 28, config)
    return y


def reference_fn(x):
    return x / ((x * x).mean(1) ** 0.5).reshape(-1, 1)


def get_inputs(m, n):
    return [normal((m, n))]


def flops_bytes(m, n):
    return 3 * m * n, 8 * m * n
