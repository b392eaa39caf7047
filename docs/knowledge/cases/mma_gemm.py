"""C = A B^T of f16 with `mma.sync`: 64 x 64 tiles, multistage `cp.async`.

Configs change the stages, the layout in shared memory, how operands are loaded from there and the accumulator type;
anti-pattern pages also change where threads wait.
"""

import numpy as np
from arrays import empty, normal, tensor

from kiln import Constexpr, Float16, Float32, cute, range_constexpr, utils
from kiln.cute.nvgpu import CopyUniversalOp, cpasync, warp

M, N, K = 64, 64, 32
problems = [{"m": 128, "n": 64, "k": 96}, {"m": 4096, "n": 4096, "k": 4096}]
configs = [
    {"stages": 3, "shared": "swizzled", "operands": "ldmatrix", "acc": "f32", "warps": [2, 2]},
    {"stages": 2, "shared": "swizzled", "operands": "ldmatrix", "acc": "f32", "warps": [2, 2]},
    {"stages": 3, "shared": "plain", "operands": "ldmatrix", "acc": "f32", "warps": [2, 2]},
    {"stages": 3, "shared": "swizzled", "operands": "elements", "acc": "f32", "warps": [2, 2]},
    {"stages": 3, "shared": "swizzled", "operands": "ldmatrix", "acc": "f16", "warps": [2, 2]},
    {"stages": 3, "shared": "swizzled", "operands": "ldmatrix", "acc": "f32", "warps": [4, 1]},
]


def smem_layout(rows, stages, shared):
    plain = cute.make_layout((8, K), stride=(K, 1))
    atom = cute.make_composed_layout(cute.make_swizzle(2, 3, 3), 0, plain) if shared == "swizzled" else plain
    return cute.tile_to_shape(atom, (rows, K, stages), (0, 1, 2))


@cute.kernel
def gemm_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, config: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    m, n, _ = cute.arch.block_idx()
    stages, fault = config["stages"], config.get("fault")
    tiles_a, tiles_b = cute.local_tile(a, (M, K), (m, None)), cute.local_tile(b, (N, K), (n, None))
    place = cute.local_tile(c, (M, N), (m, n))
    smem = utils.SmemAllocator()
    smem_a = smem.allocate_tensor(Float16, smem_layout(M, stages, config["shared"]), 128)
    smem_b = smem.allocate_tensor(Float16, smem_layout(N, stages, config["shared"]), 128)

    through = cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL)
    fill = cute.make_tiled_copy_tv(
        cute.make_copy_atom(through, Float16, num_bits_per_copy=128),
        cute.make_ordered_layout((32, 4), order=(1, 0)),
        cute.make_layout((1, 8)),
    ).get_slice(thread)
    from_a, to_a = fill.partition_S(tiles_a), fill.partition_D(smem_a)
    from_b, to_b = fill.partition_S(tiles_b), fill.partition_D(smem_b)

    part = mma.get_slice(thread)
    held_a = mma.make_fragment_A(part.partition_A(smem_a[None, None, 0]))
    held_b = mma.make_fragment_B(part.partition_B(smem_b[None, None, 0]))
    acc = mma.make_fragment_C(part.partition_C(place))
    acc.fill(0.0)
    matrices = warp.LdMatrix8x8x16bOp(False, 4) if config["operands"] == "ldmatrix" else CopyUniversalOp()
    atom = cute.make_copy_atom(matrices, Float16)
    read_a = cute.make_tiled_copy_A(atom, mma).get_slice(thread)
    read_b = cute.make_tiled_copy_B(atom, mma).get_slice(thread)
    of_a, of_b = read_a.partition_S(smem_a), read_b.partition_S(smem_b)

    tiles = a.shape[1] // K
    ahead = stages - 1
    for tile in range_constexpr(stages - 1):
        if tile < tiles:
            cute.copy(fill, from_a[None, None, None, tile], to_a[None, None, None, tile])
            cute.copy(fill, from_b[None, None, None, tile], to_b[None, None, None, tile])
        cute.arch.cp_async_commit_group()
    for tile in range(tiles):
        cute.arch.cp_async_wait_group(stages - 1 if fault == "waits for one group less" else stages - 2)
        if fault != "no barrier":
            cute.arch.sync_threads()
        if tile + ahead < tiles:
            cute.copy(fill, from_a[None, None, None, tile + ahead], to_a[None, None, None, (tile + ahead) % stages])
            cute.copy(fill, from_b[None, None, None, tile + ahead], to_b[None, None, None, (tile + ahead) % stages])
            if fault == "no empty groups":
                cute.arch.cp_async_commit_group()
        if fault != "no empty groups":
            cute.arch.cp_async_commit_group()
        cute.copy(read_a, of_a[None, None, None, tile % stages], read_a.retile(held_a))
        cute.copy(read_b, of_b[None, None, None, tile % stages], read_b.retile(held_b))
        cute.gemm(mma, acc, held_a, held_b, acc)
    rounded = cute.make_rmem_tensor_like(acc, Float16)
    rounded.store(acc.load().to(Float16))
    cute.autovec_copy(rounded, part.partition_C(place))


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, config: Constexpr):
    op = warp.MmaF16BF16Op(Float16, Float32 if config["acc"] == "f32" else Float16, (16, 8, 16))
    warps_m, warps_n = config["warps"]
    mma = cute.make_tiled_mma(op, (warps_m, warps_n, 1), permutation_mnk=(16 * warps_m, 16 * warps_n, 16))
    gemm_kernel(a, b, c, mma, config).launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=mma.size)


def kernel_fn(a, b, config):
    c = empty((a.shape[0], b.shape[0]), np.float16, a)
    gemm(tensor(a), tensor(b), tensor(c), config)
    return c


def reference_fn(a, b):
    return a @ b.T


def get_inputs(m, n, k):
    return [normal((m, k), np.float16), normal((n, k), np.float16)]


def flops_bytes(m, n, k):
    return 2 * m * n * k, 2 * (m * k + n * k + m * n)
