"""Step 5 of `examples/blackwell`, with smaller tiles: a cluster of two pairs, to which A is multicast."""

EXAMPLE = "blackwell/step_5_pairs.py"
SMALLER = {"TILE = (256, 256, 64)": "TILE = (256, 64, 64)", "\nSTAGES = 4": "\nSTAGES = 2"}


def run(example):
    a, b, c = example.harness.matrices(256, 6 * 64, 2 * 64)
    example.gemm(a, b, c, 1)
    return example.harness.check(a, b, c) <= 1


CHANGED = [
    ("both CTAs multiply", "if place[0] == 0:  # the leader", "if place[0] >= 0:"),
    ("all stages are the first", "accs_tmem[None, None, None, free.index]", "accs_tmem[None, None, None, 0]"),
    ("of one CTA", "pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * EPILOGUE_THREADS)", "pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_THREADS)"),
    ("the bytes of one CTA", "BYTES = (M + N) * K * 2 ", "BYTES = (M + N) * K "),
    ("signals without multicast", "enable_multicast_signaling=True,", ""),
    ("frees alone", "two_cta_tmem_dealloc_mbar_ptr=smem.allocate_array(Int64)", "two_cta_tmem_dealloc_mbar_ptr=None"),
    ("MMAs of one CTA", "Float32, tcgen05.CtaGroup.TWO, (M, N))", "Float32, tcgen05.CtaGroup.ONE, (M // 2, N))"),
]  # fmt: skip
