"""Step 4 of `examples/blackwell`, with smaller tiles: one CTA computes five, with two stages of accumulators."""

EXAMPLE = "blackwell/step_4_persistent.py"
SMALLER = {"TILE = (128, 256, 64)": "TILE = (128, 64, 64)", "\nSTAGES = 4": "\nSTAGES = 2"}


def run(example):
    a, b, c = example.harness.matrices(128, 5 * 64, 64)
    example.gemm(a, b, c, 1)
    return example.harness.check(a, b, c) <= 1


CHANGED = [
    ("all stages are the first", "acc = accs_tmem[None, None, None, free.index]", "acc = accs_tmem[None, None, None, 0]"),
    ("loads the other stage", "accs_tmem[(None, None), 0, 0, full.index]", "accs_tmem[(None, None), 0, 0, 1 - full.index]"),
    ("another MMA warp", "    if warp == MMA_WARP:", "    if warp >= MMA_WARP:"),
    ("epilogue in warps 1 to 4", "    if warp < EPILOGUE_WARPS:", "    if warp >= 1 and warp <= EPILOGUE_WARPS:"),
    ("one stage fewer", "acc_layout = mma.make_fragment_C(cute.append(mma.partition_shape_C((M, N)), ACC_STAGES)).layout", "acc_layout = mma.make_fragment_C(cute.append(mma.partition_shape_C((M, N)), 1)).layout"),
]  # fmt: skip
