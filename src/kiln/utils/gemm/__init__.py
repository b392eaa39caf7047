"""Parts of GEMM kernels, by architecture."""

from . import sm100

__all__ = ["sm100"]
