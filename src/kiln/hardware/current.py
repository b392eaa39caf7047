"""Which GPU: the architecture that programs are compiled for, and the device they are made for.

`--gpu-arch`, `CUTE_DSL_COMPILER_OPT`, `CUTE_DSL_ARCH`, the target in force and its current device come together here,
and nowhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

from ..base_dsl import settings
from ..base_dsl.options import CompileOptions
from ..base_dsl.target import Target, get_target
from . import driver
from .architectures import DEFAULT, Arch, Architecture, of_capability
from .devices import Device, device_here, device_of

cuda_is_host_memory = False
"""Whether host memory stands in for CUDA (`kiln run --target cpu`): the CPU target then takes arrays of CUDA
devices."""


class _Chosen(threading.local):
    options: CompileOptions | None = None
    target: Target | None = None


_chosen = _Chosen()


@contextlib.contextmanager
def compiling_with(options: CompileOptions, target: str | None = None) -> Iterator[None]:
    """While open, what this thread traces is compiled with options, for a target if one is named."""
    before = _chosen.options, _chosen.target
    _chosen.options = options
    _chosen.target = get_target(target) if target else None
    try:
        yield
    finally:
        _chosen.options, _chosen.target = before


def compiled_for() -> Target:
    """Return the target of the compilation this thread is in, or the one in force."""
    return _chosen.target or get_target()


def architecture(
    options: CompileOptions | None = None, target: Target | None = None, default: str = DEFAULT
) -> Architecture:
    """Return what is compiled for: what options or the environment name, else the current GPU's, else `default`.

    Options and target are by default those of the compilation this thread is in, or those in force.
    """
    name = options.gpu_arch if options is not None else _name()
    if name:
        return Arch[name]
    return of_capability(*driver.capability()) if _on_gpu(target) else Arch[default]


def device(number: int | None = None) -> Device:
    """Return the GPU that programs are made for, by default the current one.

    If programs do not run on a GPU, or are compiled for another architecture, it is the one that represents the
    architecture.
    """
    name = _name()
    if not _on_gpu():
        return device_of(name or DEFAULT)
    here = device_here(driver.current_device() if number is None else number)
    if not name:
        return here
    if Arch[name].capability != here.capability:
        return device_of(name)
    return dataclasses.replace(here, suffix=Arch[name].suffix)


def _name() -> str:
    """Return the architecture that the current compilation or the environment names; empty for none."""
    options = _chosen.options
    if options is None:
        if not settings.code_is_chosen():  # asked at every call of the library
            return ""
        options = CompileOptions()
    return options.gpu_arch


def _on_gpu(target: Target | None = None) -> bool:
    """Return whether programs run on a GPU of this machine."""
    return not cuda_is_host_memory and not (target or compiled_for()).on_host and driver.available()
