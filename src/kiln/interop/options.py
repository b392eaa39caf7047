"""Compile options about calling conventions, and their settings."""

from __future__ import annotations

from ..base_dsl import settings
from ..base_dsl.options import BooleanCompileOption, register
from ..base_dsl.settings import TRUTH, Setting, truth

settings.register(
    Setting("CUTE_DSL_ENABLE_TVM_FFI", TRUTH, False, "Compile every function as with `--enable-tvm-ffi`.", truth)
)


class EnableTVMFFI(BooleanCompileOption):
    """Take framework tensors as they are, through TVM-FFI's calling convention."""

    field: str = "enable_tvm_ffi"
    flag: str = "--enable-tvm-ffi"
    setting: str = "CUTE_DSL_ENABLE_TVM_FFI"
    convention: str = "tvm_ffi"


register(EnableTVMFFI)
