"""What a program registers for JAX's GPU is called on the host, where its arrays are."""

import types
from typing import Any

from kiln.workbench.serve_cuda import importing


def test_the_platform_is_the_host():
    module: Any = types.ModuleType("jax_tvm_ffi")
    seen = []
    vars(module)["register_ffi_target"] = lambda name, function, arg_spec, platform, **more: seen.append(
        (name, platform, more)
    )
    importing._AFTER_IMPORT["jax_tvm_ffi"](module)
    module.register_ffi_target("a", print, platform="gpu", allow_cuda_graph=True)
    module.register_ffi_target("b", print)
    assert seen == [("a", "cpu", {"allow_cuda_graph": True}), ("b", "cpu", {})]
