"""Compile options for GPUs: the architecture, flags of ptxas and nvdisasm, artefacts to keep."""

from __future__ import annotations

from typing import Any

from ..base_dsl.diagnostics import DSLRuntimeError
from ..base_dsl.options import BooleanCompileOption, KeptArtefact, StringCompileOption, register
from .architectures import Arch, meant


class GPUArch(StringCompileOption):
    """The architecture to compile for, for example `sm_90a`."""

    field: str = "gpu_arch"
    flag: str = "--gpu-arch"
    setting: str = "CUTE_DSL_ARCH"

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

    field: str = "ptxas_options"
    flag: str = "--ptxas-options"


class NvdisasmOptions(StringCompileOption):
    """Flags for nvdisasm."""

    field: str = "nvdisasm_options"
    flag: str = "--nvdisasm-options"
    default: str = "-g -c"

    def __init__(self, val: str = "-g -c") -> None:
        super().__init__(val)


class KeepPTX(KeptArtefact):
    """Keep the PTX: a file, and `__ptx__` of the compiled function."""

    field: str = "keep_ptx"
    flag: str = "--keep-ptx"


class KeepCUBIN(KeptArtefact):
    """Keep the cubin: a file, and `__cubin__` of the compiled function."""

    field: str = "keep_cubin"
    flag: str = "--keep-cubin"


class KeepSASS(KeptArtefact):
    """Keep the SASS: a file, and `__sass__` of the compiled function."""

    field: str = "keep_sass"
    flag: str = "--keep-sass"


class ExtraCompilerOpts(StringCompileOption):
    """Options of NVIDIA's compiler: accepted, and without effect."""

    field = "extra_compiler_opts"
    flag: str = "--extra-compiler-opts"


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
    """Keep marks of `cute.experimental.iket`: accepted, and without effect. A trace that is open keeps them."""

    field: str = "iket"
    flag: str = "iket"


register(
    GPUArch,
    PtxasOptions,
    NvdisasmOptions,
    KeepPTX,
    KeepCUBIN,
    KeepSASS,
    ExtraCompilerOpts,
    LinkLibraries,
    RDC,
    RemarkFilter,
    RemarkOutput,
    DeviceTarget,
    DisableCuteExtCompile,
    Iket,
)
