"""Step 1 of `examples/blackwell`, with a smaller tile: one k tile, whose accumulator all warps of the CTA store."""

EXAMPLE = "blackwell/step_1_mma.py"
SMALLER = {"TILE = (128, 128, 64)": "TILE = (128, 32, 64)"}


def run(example):
    a, b, c = example.harness.matrices(128, 32, 64)
    example.gemm(a, b, c)
    return example.harness.check(a, b, c) <= 1
