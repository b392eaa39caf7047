"""Wrong solutions of the lessons' exercises: text of the right one, what stands in its place, and words of the verdict."""

from __future__ import annotations

WRONG: dict[tuple[int, int], tuple[tuple[str, str, str], ...]] = {
    (0, 1): (
        ("-(-n // threads)", "n // threads", "launch_for(n=1, threads=32)"),
        ("-(-n // threads)", "n // threads + 1", "launch_for(n=1024, threads=256)"),
        ("blocks * threads - n", "n - blocks * threads", "got       (1, -31)"),
    ),
    (0, 2): (
        ("* 1e6", "* 1e3", "least_time_us of saxpy"),
        ("max(moved", "min(moved", "least_time_us of saxpy"),
        ('"memory" if moved / BANDWIDTH >', '"memory" if moved / BANDWIDTH <', "expected  'memory'"),
    ),
    (1, 1): (
        ("if i < cute.size(y):", "if i <= cute.size(y):", "reads x["),
        ("block * THREADS + thread", "thread", "clamp of 130 elements to -1 .. 0.5: element 128"),
        ("kiln.max(x[i], low)", "x[i]", "expected  -1.0"),
    ),
    (1, 2): (
        ("if i < out.shape[0] and j < out.shape[1]:", "if i < out.shape[0]:", "the sanitizer reports"),
        ("+ row[j]", "+ row[i]", "add_row of a matrix (8, 32)"),
        ("row_block * ROWS + row_thread", "column_block * ROWS + row_thread", "add_row of a matrix (9, 33)"),
    ),
    (2, 1): (
        ("result = Float32(0)", "result = 0", "result is Int32 when the loop"),
        ("    y = x\n    if x < 0:", "    if x < 0:", "'y' has a value in only one branch"),
        ('cute.printf("x = {}", x)', 'print("x =", x)', "expected  'x = 7"),
    ),
    (2, 2): (
        ("reversed(coefficients)", "coefficients", "polynomial with coefficients (0.0, 2.0)"),
        ("result * x[i] + c", "result + x[i] * c", "polynomial with coefficients (1.0,)"),
        (
            "for c in reversed(coefficients):",
            "for k in range(len(coefficients)):\n            c = coefficients[k]",
            "index",
        ),
    ),
    (3, 1): (
        ("    cute.arch.sync_threads()\n", "", "race in kernel reverse_kernel"),
        ("cute.arch.sync_threads()", "cute.arch.sync_warp()", "race in kernel reverse_kernel"),
        ("shared[THREADS - 1 - thread]", "shared[THREADS - thread]", "memory in kernel reverse_kernel"),
    ),
    (3, 2): (
        (
            "        cute.arch.sync_threads()\n        if thread < step:\n",
            "        if thread < step:\n",
            "race in kernel",
        ),
        (
            "        cute.arch.sync_threads()\n        if thread < step:\n",
            "        if thread < step:\n            cute.arch.sync_threads()\n",
            "sync in kernel",
        ),
        ("THREADS >> (k + 1)", "THREADS >> (k + 2)", "block_totals of 128 elements"),
    ),
    (4, 1): (
        ("stride=(n + extra, 1)", "stride=(n, 1)", "padded(4, 8, 3) is (4,8):(8,1): coordinate (1, 0)"),
        ("stride=(1, n)", "stride=(1, m)", "transposed(4, 8)"),
        ("stride=((4, 2 * n), (1, 8))", "stride=((4, 8), (1, 2 * m))", "tile_by_tile(4, 8)"),
    ),
    (4, 2): (
        ("(m_tile, n_tile))", "(n_tile, m_tile))", "number_tiles of a matrix (8, 24)"),
        ("cute.local_tile(x, TILE, (m_tile, n_tile))", "x", "number_tiles of a matrix (8, 24)"),
        ("tile[thread] = number", "tile[0, thread] = number", "the sanitizer reports"),
    ),
    (5, 1): (
        ("if (i + 1) * VECTOR <= cute.size(y):", "if i * VECTOR < cute.size(y):", "memory in kernel fused_kernel"),
        ("for k in range(i * VECTOR, cute.size(y)):", "for k in range(0):", "fused of 3 elements"),
        ("VECTOR = 4", "VECTOR = 1", "expected  '16 bytes'"),
    ),
    (5, 2): (
        ("thread // COLUMNS, thread % COLUMNS", "thread % ROWS, thread // ROWS", "got       32"),
        ("thread // COLUMNS, thread % COLUMNS", "thread // COLUMNS, thread // ROWS", "add_column of a matrix (4, 32)"),
        (
            "thread // COLUMNS, thread % COLUMNS",
            "thread // COLUMNS, thread % COLUMNS + 1",
            "add_column of a matrix (4, 32)",
        ),
    ),
    (6, 1): (
        ("mine.fill(0)", "mine.fill(1)", "rms_norm of a matrix (3, 70)"),
        ("squares / n + EPS", "squares / (32 * VALUES) + EPS", "rms_norm of a matrix (3, 70)"),
        ("    mine.fill(0)\n", "", "memory in kernel rms_norm_kernel"),
        ("squares / n + EPS", "squares / n", "rms_norm of a matrix (2, 5) of small numbers"),
    ),
    (6, 2): (
        ("    cute.arch.sync_threads()\n", "", "race in kernel row_max_kernel"),
        ("    if lane == 0:\n        partial[warp] = largest\n", "    partial[0] = largest\n", "the sanitizer reports"),
        (
            "    largest = cute.arch.warp_reduction_max(largest)\n",
            "    if lane < 16:\n        largest = cute.arch.warp_reduction_max(largest)\n",
            "deadlock in kernel row_max_kernel",
        ),
    ),
    (7, 1): (
        ("SWIZZLE = (4, 0, 5)", "SWIZZLE = (0, 0, 5)", "S<0,0,5>: bank conflicts"),
        ("SWIZZLE = (4, 0, 5)", "SWIZZLE = (4, 0, 4)", "S<4,0,4>: bank conflicts"),
        ("SWIZZLE = (4, 0, 5)", "SWIZZLE = (2, 2, 3)", "wavefronts"),
    ),
    (7, 2): (
        ("    cute.arch.sync_threads()\n", "", "race in kernel transpose_kernel"),
        ("cute.make_swizzle(5, 0, 5)", "cute.make_swizzle(0, 0, 5)", "transpose of a matrix (32, 32): bank conflicts"),
        (
            "i, j = m_tile * TILE + warp + k, n_tile * TILE + lane",
            "i, j = m_tile * TILE + warp, n_tile * TILE + lane",
            "transpose of a matrix (32, 32)",
        ),
    ),
    (8, 1): (
        ("lane // 4 +", "lane % 8 +", "place(lane=1, value=0)"),
        ("8 * (value // 2)", "value // 2", "place(lane=0, value=2)"),
        ("lane % 4 * 2 + value % 2", "lane % 4 + 4 * (value % 2)", "place(lane=0, value=1)"),
    ),
    (8, 2): (
        ("stride=(0, 1)", "stride=(1, 0)", "gemm with M, N, K = 16, 8, 16"),
        ("(0, n))", "(0, 0))", "gemm with M, N, K = 32, 24, 48"),
        ("cute.where(v > 0, v, 0)", "v", "expected  0.0"),
    ),
    (9, 1): (
        ("cp_async_wait_group(1)", "cp_async_wait_group(2)", "the sanitizer reports"),
        ("cp_async_wait_group(1)", "cp_async_wait_group(0)", "groups in flight while a tile is added up"),
        (
            "        cute.arch.cp_async_wait_group(1)\n        cute.arch.sync_warp()\n",
            "        cute.arch.cp_async_wait_group(1)\n",
            "race in kernel total_kernel",
        ),
        ("tile % 2]\n        cute.arch.sync_warp()\n", "tile % 2]\n", "race in kernel total_kernel"),
    ),
    (9, 2): (
        ("            stage.release()\n", "", "deadlock in kernel column_totals_kernel"),
        (
            "            total += buffers[31 - lane, stage.index]\n            stage.release()\n",
            "            stage.release()\n            total += buffers[31 - lane, stage.index]\n",
            "race in kernel",
        ),
        ("31 - lane, stage.index", "31 - lane, 0", "column_totals of 2 rows"),
    ),
    (10, 1): (
        ('    cute.arch.fence_proxy("async.shared", space="cta")\n', "", "race in kernel double_kernel"),
        ("    cute.arch.mbarrier_wait(full, 0)\n", "", "the sanitizer reports"),
        ("cute.size_in_bytes(Float32, load.smem_layout))", "512)", "1024 arrived"),
    ),
    (10, 2): (
        ("        tiled_mma.set(warpgroup.Field.ACCUMULATE, True)\n", "", "gemm with M, N, K = 64, 32, 64: element"),
        ("    warpgroup.wait_group(0)\n", "", "the sanitizer reports"),
        (
            "    tiled_mma.set(warpgroup.Field.ACCUMULATE, False)\n",
            "    tiled_mma.set(warpgroup.Field.ACCUMULATE, True)\n",
            "the sanitizer reports",
        ),
    ),
    (11, 1): (
        (
            "inside % GROUP\n    column = inside // GROUP",
            "inside // n_tiles\n    column = inside % n_tiles",
            "the tile number 1",
        ),
        ("band * GROUP + inside % GROUP", "inside % GROUP", "8 by 6 tiles: nobody computes"),
        ("divmod(number, GROUP * n_tiles)", "divmod(number, GROUP * m_tiles)", "8 by 6 tiles: nobody computes"),
    ),
    (11, 2): (
        ("smem_b[None, stage.index]", "smem_b[None, 0]", "gemm with M, N, K = 64, 32, 192"),
        ("gmem_b[None, k]", "gmem_b[None, 0]", "gemm with M, N, K = 64, 32, 192: element"),
        (
            "                cute.copy(load_b, gmem_b[None, k], smem_b[None, stage.index], tma_bar_ptr=stage.barrier)\n",
            "",
            "were expected and",
        ),
    ),
    (12, 1): (
        ("l1 * np.exp(m1 - m) + l2 * np.exp(m2 - m)", "l1 + l2", "merge of 3 and 7 keys: l"),
        ("max(m1, m2)", "m1", "keys: m"),
        ("o1 * np.exp(m1 - m)", "o1 * np.exp(m - m1)", "keys: o"),
        ("l2 * np.exp(m2 - m)", "l2 * np.exp(m2) / np.exp(m)", "merge of 4 and 6 keys: l"),
    ),
    (12, 2): (
        ("kiln.max(row - window + 1, 0)", "0", "window_attention with window=1"),
        ("acc * scale + p", "acc + p", "window_attention with window="),
        (
            "kiln.max(row - window + 1, 0), row + 1):\n        score = cute.arch.warp_reduction_sum(scaled * k[j, lane])\n",
            "0, row + 1):\n        score = cute.arch.warp_reduction_sum(scaled * k[j, lane])\n"
            "        if j <= row - window:\n            score = -Float32(1e30)\n",
            "rows of q, k and v that 12 queries read",
        ),
        ("kiln.max(row - window + 1, 0)", "row - window + 1", "memory in kernel window_kernel"),
    ),
    (13, 1): (
        ("columns = 32\n", "columns = 1\n", "columns_to_allocate(8, 1)"),
        ("    if columns > 512:\n", "    if columns > 1024:\n", "expected  'ValueError'"),
        ("row // 32, row % 32", "row % 4, row // 4", "reader_of(31)"),
    ),
    (13, 2): (
        ("        cute.arch.mbarrier_wait(done, step % 2)\n", "", "the sanitizer reports"),
        ("mbarrier_wait(done, step % 2)", "mbarrier_wait(done, 0)", "gemm with K = 192"),
        ("        mma.set(tcgen05.Field.ACCUMULATE, True)\n", "", "gemm with K = 192: element"),
    ),
    (14, 1): (
        ("3 * n * 4", "2 * n * 4", "flops_bytes(1)"),
        ("rng.standard_normal(n, np.float32), rng", "np.zeros(n, np.float32), rng", "many numbers are equal"),
        ("result = 2 * x + y", "result = x + y", "reference_fn of get_inputs(1)"),
    ),
    (14, 2): (
        ("cute.SymInt()", "cute.SymInt(divisibility=4)", "called with 1 elements: its status"),
        ("Float32, (n,)", "Float32, (cute.SymInt(),)", "called with 7 and 8 elements"),
        (
            "(make_fake_compact_tensor(Float32, (n,))",
            "(make_fake_compact_tensor(Float32, (128,))",
            "writes past the end",
        ),
        ('folder / "libscale.so"', 'folder / "libother.so"', "folder/libscale.so"),
    ),
}
"""By lesson and exercise, three at least."""
