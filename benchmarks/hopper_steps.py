"""The programs of `examples/hopper` beside cuBLAS and the library: the staircase of docs/hopper.md and of lesson 11, and
the attention that fits a slide.

    python benchmarks/hopper_steps.py [--save]

Each program runs as a reader runs it, `kiln run examples/hopper/step_N_*.py M N K`, in a process of its own. It checks its
result, and then times 30 calls that alternate with cuBLAS, or with `kernels.flash_attention`.
"""

from __future__ import annotations

import re
import subprocess
import sys

import torch
from results import ROOT, Page, Table

STEPS = Table("GEMM, float16, NT, TFLOP/s", ("M = N = K", "step", "cuBLAS", "Kiln", "of cuBLAS"))
SLIDE = Table(
    "Attention forward, float16, head_dim 128, 16 heads, TFLOP/s", ("tokens", "library", "slide", "of the library")
)
PAGE = Page(__file__, "Hopper GEMM, step by step", STEPS, SLIDE)
EXAMPLES = ROOT / "examples" / "hopper"


def times(program: str, *arguments: int) -> re.Match[str]:
    """Run a program and return what it says: its TFLOP/s, those of its peer, and the ratio."""
    command = [sys.executable, "-m", "kiln", "run", str(EXAMPLES / program), *map(str, arguments)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+) TFLOP/s, (?:cuBLAS|the library) (\d+): ([\d.]+)x", output)
    assert match is not None, output
    return match


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    for size in (4096, 8192):
        for step in sorted(EXAMPLES.glob("step_[2-6]_*.py")):
            match = times(step.name, size, size, size)
            STEPS.add(size, step.stem.split("_")[1], match[2], match[1], match[3])
    for tokens in (2048, 4096, 16384):
        match = times("attention_slide.py", 16, tokens, tokens)
        SLIDE.add(tokens, match[2], match[1], match[3])
    PAGE.finish("--save" in sys.argv)


if __name__ == "__main__":
    main()
