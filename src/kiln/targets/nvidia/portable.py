"""Export of an executable: host code, GPU images, and the records that `loader.py` reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...hardware.architectures import Architecture
from ..host import elf, jit
from ..host.call_context import WRAPPER
from ..host.exported import Portable, place_code, place_sites
from .launch import TABLE
from .loader import ASSERTS, FAMILY, FEATURES, PLAIN, PRINTS, Image, Kernel, Module, Variant, loading
from .parts import PARTS

if TYPE_CHECKING:
    from .target import NvidiaExecutable

_KINDS = {"": PLAIN, "f": FAMILY, "a": FEATURES}
_COUNTER = {"llvm.readcyclecounter": f"{loading.prefix}clock"}
"""The cycle counter, replaced in exported code: it may be privileged elsewhere, and nobody reads launch times there."""


def portable(executable: NvidiaExecutable, ptx: bool = True) -> Portable:
    """Return what an exported object needs of an executable; `ptx`: also what later GPUs can run."""

    def host_code(processor: Any, suffix: str) -> elf.Object:
        optimized = jit.optimize(executable.artifacts["llvm_host"], 1, processor, _COUNTER)
        return elf.renamed(elf.read(jit.emit_object(optimized, 1, processor)), (WRAPPER, TABLE), suffix)

    arch = executable.code.arch
    parts = (*PARTS, jit.Part(loading))
    code = executable.code
    prints = any(kernel.prints for kernel in code.kernels)
    size = sum(map(len, _images(code, ptx).values()))
    return Portable(arch.name, host_code, parts, code.host_sites, prints, (code, ptx), size, _place)


def _images(code: Any, ptx: bool) -> dict[bool, bytes]:
    """Return what there is to load: a cubin (False), PTX (True)."""
    images = {False: code.cubin} if code.cubin else {}
    if (ptx and not code.arch.suffix) or not code.cubin:
        images[True] = code.ptx.encode() + b"\0"
    return images


def _place(data: elf.Data, portables: Sequence[Portable]) -> tuple[elf.Symbol, dict[str, str]]:
    variants = [_variant(data, each) for each in portables]
    module = Module(count=len(variants))
    functions = ("choose", "unload", "explain", "assertion", "enter", "leave", "has")
    return (
        data.records([(module, {"variants": data.records(variants)})]),
        {name: f"{loading.prefix}{name}" for name in functions},
    )


def _variant(data: elf.Data, portable: Portable) -> tuple[Variant, dict[str, elf.Symbol]]:
    code, ptx = portable.kernels
    suffix = f".{portable.architecture}"
    record, addresses = place_code(data, portable, WRAPPER + suffix)
    addresses = {f"code.{name}": symbol for name, symbol in addresses.items()}
    addresses["table"] = data.symbol(TABLE + suffix)
    kernels = [
        (
            Kernel(
                dynamic=int(kernel.needs_room),
                static_smem=kernel.static_smem,
                cluster=int(kernel.needs_large_clusters),
                reports=PRINTS * kernel.prints | ASSERTS * kernel.asserts,
            ),
            {"name": data.text(kernel.name)},
        )
        for kernel in code.kernels
    ]
    images = [_image(data, code.arch, contents, is_ptx) for is_ptx, contents in _images(code, ptx).items()]
    if kernels:
        addresses |= {"kernels": data.records(kernels), "images": data.records(images)}
    if code.sites:
        addresses["device_sites"] = place_sites(data, code.sites)
    return Variant(code=record, kernel_count=len(kernels), image_count=len(images)), addresses


def _image(data: elf.Data, arch: Architecture, contents: bytes, is_ptx: bool) -> tuple[Image, dict[str, elf.Symbol]]:
    major, minor, suffix = arch.value
    name = arch.name + (" (PTX)" if is_ptx else "")
    record = Image(capability=10 * major + minor, kind=_KINDS[suffix], ptx=int(is_ptx))
    return record, {"data": data.constant(contents, 16), "name": data.text(name)}
