"""The steps of `examples/hopper` beside cuBLAS: the staircase of docs/hopper.md and of lesson 11.

    python benchmarks/hopper_steps.py [--save]

Each step runs as a reader runs it, `kiln run examples/hopper/step_N_*.py M N K`, in a process of its own. It checks its
result, and then times 30 calls that alternate with cuBLAS.
"""

from __future__ import annotations

import re
import subprocess
import sys

import torch
from results import ROOT, Page, Table

STEPS = Table("GEMM, float16, NT, TFLOP/s", ("M = N = K", "step", "cuBLAS", "Kiln", "of cuBLAS"))
PAGE = Page(__file__, "Hopper GEMM, step by step", STEPS)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    for size in (4096, 8192):
        for step in sorted((ROOT / "examples" / "hopper").glob("step_[2-6]_*.py")):
            command = [sys.executable, "-m", "kiln", "run", str(step), *[str(size)] * 3]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found = re.search(r"(\d+) TFLOP/s, cuBLAS (\d+): ([\d.]+)x", told)
            assert found is not None, told
            STEPS.add(size, step.stem.split("_")[1], found[2], found[1], found[3])
    PAGE.finish("--save" in sys.argv)


if __name__ == "__main__":
    main()
