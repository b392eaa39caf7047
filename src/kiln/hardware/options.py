"""Compile options for GPUs: the architecture, flags of ptxas and nvdisasm, artefacts to keep."""

from __future__ import annotations

from typing import Any

from ..base_dsl.diagnostics import DSLRuntimeError
from ..base_dsl.options import BooleanCompileOption, StringCompileOption, register
from .architectures import Arch, meant


class GPUArch(StringCompileOption):
    """The architecture to compile for, for example `sm_90a`."""

    field, flag, setting = "gpu_arch", "--gpu-arch", "CUTE_DSL_ARCH"

    def __init__(self, val: str) -> None:
        super().__init__(val)

    @classmethod
    def check(cls, value: Any) -> str:
        value = super().check(value)
        if value and value not in Arch.__members__:
            raise DSLRuntimeError(f"unknown GPU architecture {value!r}", hint=meant(value))
        return value


class PtxasOptions(StringCompileOption):
    """Flags for ptxas."""

    field, flag = "ptxas_options", "--ptxas-options"


class NvdisasmOptions(StringCompileOption):
    """Flags for nvdisasm."""

    field, flag, default = "nvdisasm_options", "--nvdisasm-options", "-g -c"

    def __init__(self, val: str = "-g -c") -> None:
        super().__init__(val)


class KeepPTX(BooleanCompileOption):
    """Keep the PTX: a file, and `__ptx__` of the compiled function."""

    field, flag = "keep_ptx", "--keep-ptx"


class KeepCUBIN(BooleanCompileOption):
    """Keep the cubin: a file, and `__cubin__` of the compiled function."""

    field, flag = "keep_cubin", "--keep-cubin"


class KeepSASS(BooleanCompileOption):
    """Keep the SASS: a file, and `__sass__` of the compiled function."""

    field, flag = "keep_sass", "--keep-sass"


class LinkLibraries(StringCompileOption):
    """Libraries to link device code with, separated by commas."""

    field = "link_libraries"


class RDC(BooleanCompileOption):
    """Relocatable device code."""

    field = "rdc"


class RemarkFilter(StringCompileOption):
    """A regular expression that selects the remarks on kernels to report (registers, spills, local memory)."""

    field = "remark_filter"


class RemarkOutput(StringCompileOption):
    """Where remarks go: a file they are added to; empty for standard error."""

    field = "remark_output"


class DeviceTarget(BooleanCompileOption):
    """Compile for the device only."""

    field = "device_target"


class DisableCuteExtCompile(BooleanCompileOption):
    """Leave extensions of the dialect uncompiled."""

    field = "disable_cute_ext_compile"


class Iket(BooleanCompileOption):
    """Keep in-kernel tracing."""

    field, flag = "iket", "iket"


register(
    GPUArch, PtxasOptions, NvdisasmOptions, KeepPTX, KeepCUBIN, KeepSASS, LinkLibraries, RDC, RemarkFilter, RemarkOutput, DeviceTarget, DisableCuteExtCompile, Iket,
)  # fmt: skip
