"""Step 2 of `examples/blackwell`, with smaller tiles: one warp loads and multiplies, through pipelines."""

EXAMPLE = "blackwell/step_2_pipeline.py"
SMALLER = {"TILE = (128, 256, 64)": "TILE = (128, 32, 64)", "STAGES = 4": "STAGES = 2"}


def run(example):
    a, b, c = example.harness.matrices(128, 32, 5 * 64)
    example.gemm(a, b, c)
    return example.harness.check(a, b, c) <= 1
