"""Settings about GPUs."""

from __future__ import annotations

from ..base_dsl.settings import KEEPABLE, Setting, choice, path, register
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
)
