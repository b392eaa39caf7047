"""Settings about GPUs."""

from __future__ import annotations

from ..base_dsl.settings import KEEPABLE, TRUTH, Setting, choice, path, register, report_path, truth
from .architectures import DEFAULT, Arch

KEEPABLE += ["ptx", "cubin", "sass"]

register(
    Setting(
        "CUTE_DSL_ARCH",
        f"one of {', '.join(Arch.__members__)}",
        "",
        f"GPU architecture to compile for. Unset: that of the GPU; where there is none, {DEFAULT}.",
        choice(*Arch.__members__),
        code=True,
    ),
    Setting("CUTE_DSL_KEEP_PTX", TRUTH, False, "As `CUTE_DSL_KEEP=ptx`.", truth),
    Setting("CUTE_DSL_KEEP_CUBIN", TRUTH, False, "As `CUTE_DSL_KEEP=cubin`.", truth),
    Setting("CUTE_DSL_KEEP_SASS", TRUTH, False, "As `CUTE_DSL_KEEP=sass`.", truth),
    Setting(
        "KILN_PTXAS",
        "a path",
        "",
        "The ptxas to call. Unset: that of the wheel `nvidia-cuda-nvcc`, of `CUDA_HOME`, or on `PATH`.",
        path,
    ),
    Setting(
        "KILN_NVDISASM",
        "a path",
        "",
        "The nvdisasm to call. Unset: that of the wheel `nvidia-cuda-nvdisasm`, of `CUDA_HOME`, or on `PATH`.",
        path,
    ),
    Setting(
        "KILN_BANK_CONFLICTS_REPORT",
        "a path, or `-`",
        "",
        "Where bank conflicts counted under `KILN_SANITIZE=banks` go when the process ends: a table on standard output for `-`, else a JSON file.",
        report_path,
    ),
    Setting(
        "KILN_COALESCING_REPORT",
        "a path, or `-`",
        "",
        "Where sectors of global memory counted under `KILN_SANITIZE=sectors` go when the process ends: a table on standard output for `-`, else a JSON file.",
        report_path,
    ),
)
