"""Step 3 of `examples/blackwell`, with smaller tiles: warps have roles, and the epilogue stores by TMA."""

EXAMPLE = "blackwell/step_3_roles.py"
SMALLER = {"TILE = (128, 256, 64)": "TILE = (128, 128, 64)", "\nSTAGES = 4": "\nSTAGES = 2"}


def run(example):
    a, b, c = example.harness.matrices(128, 128, 3 * 64)
    example.gemm(a, b, c)
    return example.harness.check(a, b, c) <= 1
