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
        ("THREADS >> (k + 1)", "THREADS >> (k + 2)", "block_sums of 128 elements"),
    ),
}
"""By lesson and exercise, three each."""
