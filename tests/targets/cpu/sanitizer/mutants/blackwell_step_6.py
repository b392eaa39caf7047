"""Step 6 of `examples/blackwell`, with smaller tiles: pairs that take tiles by cluster launch control."""

EXAMPLE = "blackwell/step_6_clc.py"
SMALLER = {"TILE = (256, 256, 64)": "TILE = (256, 64, 64)", "\nSTAGES = 4": "\nSTAGES = 2"}


def run(example):
    a, b, c = example.harness.matrices(256, 6 * 64, 2 * 64)
    example.gemm(a, b, c)
    return example.harness.check(a, b, c) <= 1


CHANGED = [
    ("without one of the readers", "* 6 + 1", "* 5 + 1"),
    ("asks once more", "        asker.tail()\n", "        scheduler.advance_to_next_work(asker.acquire_and_advance().barrier)\n        asker.tail()\n"),
    ("the odd CTA reads none", "        else:\n            while work.is_valid_tile:", "        else:\n            while False:"),
    ("both CTAs multiply", "if place[0] == 0:  # the leader", "if place[0] >= 0:"),
    ("all stages are the first", "accs_tmem[None, None, None, free.index]", "accs_tmem[None, None, None, 0]"),
    ("of one CTA", "pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * EPILOGUE_THREADS)", "pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_THREADS)"),
    ("the bytes of one CTA", "BYTES = (M + N) * K * 2 ", "BYTES = (M + N) * K "),
    ("before the CTAs have started", "    pipeline.pipeline_init_wait(cluster_shape_mn=ctas)  # all CTAs have started, and have their mbarriers\n", ""),
]  # fmt: skip
