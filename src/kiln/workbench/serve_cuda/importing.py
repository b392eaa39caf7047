"""Installs serve_cuda when the program imports torch, cuda-bindings or jax-tvm-ffi, and not before."""

from __future__ import annotations

import functools
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import bindings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _torch(module: ModuleType) -> None:
    from . import torch_cuda  # imports torch, an optional package

    torch_cuda.serve(module)


def _flex_attention(module: ModuleType) -> None:
    from . import flex_attention  # imports torch

    flex_attention.serve(module)


def _jax_tvm_ffi(module: ModuleType) -> None:
    """Call what a program registers for JAX's GPU on the host, which is all that JAX has here."""
    register = module.register_ffi_target

    @functools.wraps(register)
    def register_ffi_target(
        name: str, function: object, arg_spec: object = None, platform: str = "cpu", **more: object
    ) -> Any:
        return register(name, function, arg_spec, "cpu" if platform == "gpu" else platform, **more)

    vars(module)["register_ffi_target"] = register_ffi_target


_AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    "torch": _torch,
    "torch.nn.attention.flex_attention": _flex_attention,
    "cuda.bindings.driver": bindings.serve_driver,
    "cuda.bindings.runtime": bindings.serve_runtime,
    "jax_tvm_ffi": _jax_tvm_ffi,
}
_PACKAGES = ("cuda", "cuda.bindings")


class _Finder:
    """Finds what others find, and serves it after it ran. Modules of cuda-bindings exist without the package."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name not in _AFTER_IMPORT and name not in _PACKAGES:
            return None
        spec = self._others(name, path, target)
        if name in _PACKAGES:
            return spec or ModuleSpec(name, _Empty(), is_package=True)
        if spec is None and name.startswith("cuda."):
            spec = ModuleSpec(name, _Empty())
        if spec is not None and spec.loader is not None:
            spec.loader = _Serving(spec.loader, _AFTER_IMPORT[name])
        return spec

    def _others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


class _Empty(Loader):
    """Loads an empty module."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Serving(Loader):
    """A loader that does something with a module after it ran; otherwise the loader it wraps."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # `__spec__` keeps the original loader, which pickle, inspect and reload look at.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


_finder = _Finder()


def install() -> None:
    """Serve the modules when they are imported; those that already are, at once."""
    if is_installed():
        return
    sys.meta_path.insert(0, _finder)  # pyright: ignore[reportArgumentType]
    for name, serve in _AFTER_IMPORT.items():
        module = sys.modules.get(name)
        if module is not None:
            serve(module)


def is_installed() -> bool:
    """Return whether `install` ran."""
    return _finder in sys.meta_path
