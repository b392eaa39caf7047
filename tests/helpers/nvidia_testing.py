"""Compile for GPUs that are not there, and a stand-in for the CUDA driver."""

from __future__ import annotations

import ctypes
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln.cute as cute
from kiln.base_dsl.compiler import Compilation
from kiln.hardware import toolchain
from kiln.mlir import context, dialect_module, ir
from kiln.targets.host import jit
from kiln.targets.host.runtime import SOFT_FLOAT
from kiln.targets.lowering.builder import Builder, function, ptr_type
from kiln.targets.lowering.llvm_text import fix_float_literals
from kiln.targets.nvidia import codegen
from kiln.targets.nvidia.expand import DeviceBuilder
from kiln.targets.nvidia.math.expressions import Float

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a")

needs_ptxas = pytest.mark.skipif(
    codegen.ptxas_version() is None, reason="there is no ptxas: pip install nvidia-cuda-nvcc"
)
needs_nvdisasm = pytest.mark.skipif(
    codegen.ptxas_version() is None or toolchain.find("nvdisasm") is None,
    reason="there is no nvdisasm, or no ptxas: pip install nvidia-cuda-nvdisasm nvidia-cuda-nvcc",
)
"""Of what reads SASS."""


def compile_for(function: Any, *arguments: Any, arch: str = "sm_90a", options: str = "") -> Any:
    """Compile a jit function for an architecture."""
    return cute.compile(function, *arguments, target="nvidia", options=f"--gpu-arch {arch} {options}")


def floats(*shape: int) -> Any:
    """A row-major tensor argument of Float32, aligned to 16 bytes, with a static layout."""
    return cute.runtime.from_dlpack(np.zeros(shape, np.float32), assumed_align=16)


def resources(compiled: Any) -> Any:
    """What ptxas said of the only kernel."""
    (found,) = compiled.executable.resources.values()
    return found


_PASSES = (
    "convert-scf-to-cf,convert-math-to-llvm,convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,"
    "reconcile-unrealized-casts"
)
_numbers = itertools.count()


def run_on_host(compute: Any, dtype: Any, *arguments: np.ndarray) -> np.ndarray:
    """Apply a function of the target's floats (`targets/nvidia/math/expressions.py`) to arrays, with the host's code generator."""
    count = len(arguments[0])
    symbol = f"device_function_{next(_numbers)}"
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        i64, element = ir.IntegerType.get_signless(64), ir.F64Type.get() if dtype == np.float64 else ir.F32Type.get()
        func = function(module, symbol, [ptr_type()] * (len(arguments) + 1) + [i64], [])
        del func.attributes["sym_visibility"]
        block = func.regions[0].blocks[0]
        *sources, target, length = block.arguments
        b = Builder(ir.InsertionPoint(block), ir.Location.unknown())
        body, index = b.for_(b.i64(0), length, b.i64(1))
        inner = DeviceBuilder(body.point, body.location)
        values = [Float(inner, inner.load(element, inner.gep(source, element, index))) for source in sources]
        inner.store(compute(*values).v, inner.gep(target, element, index))
        b.op("func.return")
        module.operation.verify()
        Compilation(module, symbol).run("llvm-conversion", _PASSES)
        text = fix_float_literals(dialect_module("llvm").translate_module_to_llvmir(module.operation))
    library = jit.Library(jit.emit_object(jit.optimize(text, 1), 1), (symbol,), parts=[SOFT_FLOAT])
    native = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(arguments) + 1), ctypes.c_int64)(
        library.addresses[symbol]
    )
    result = np.full(count, 123.0, dtype)
    arrays = [np.ascontiguousarray(a, dtype) for a in arguments]
    native(*(a.ctypes.data for a in arrays), result.ctypes.data, count)
    return result


class Config(ctypes.Structure):
    """CUlaunchConfig, as the driver's header has it."""

    _fields_ = [
        ("gridDimX", ctypes.c_uint), ("gridDimY", ctypes.c_uint), ("gridDimZ", ctypes.c_uint),
        ("blockDimX", ctypes.c_uint), ("blockDimY", ctypes.c_uint), ("blockDimZ", ctypes.c_uint),
        ("sharedMemBytes", ctypes.c_uint), ("hStream", ctypes.c_void_p), ("attrs", ctypes.c_void_p),
        ("numAttrs", ctypes.c_uint),
    ]  # fmt: skip


class Launch:
    """One call of cuLaunchKernelEx."""

    def __init__(self, config: Config, kernel: str, parameters: int) -> None:
        self.grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        self.block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        self.smem, self.stream, self.kernel = config.sharedMemBytes, config.hStream or 0, kernel
        self.attributes: dict[int, tuple[int, int, int]] = {}
        self.fourth: dict[int, int] = {}
        for number in range(config.numAttrs):
            at = config.attrs + 72 * number
            kind = ctypes.c_int.from_address(at).value
            self.attributes[kind] = tuple((ctypes.c_int * 3).from_address(at + 8))  # pyright: ignore[reportArgumentType]
            self.fourth[kind] = ctypes.c_int.from_address(at + 20).value
        self._parameters = parameters
        self.values: dict[int, bytes] = {}

    def read(self, number: int, kind: Any) -> Any:
        """Argument `number`; only while the launch lasts."""
        address = (ctypes.c_void_p * (number + 1)).from_address(self._parameters)[number]
        return kind.from_address(address).value


class FakeDriver:
    """Enough of libcuda to load and launch kernels; `status` is what the next launches return."""

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self.devices = 1
        self.memory: dict[int, int] = {}
        """By address, the device."""
        self.pushed: list[int] = []
        self.launched_on: list[int] = []
        """Of each launch, the current device."""
        self.launches: list[Launch] = []
        self.seen: list[Any] = []
        self.status: list[int] = []
        self.loaded: list[bytes] = []
        self.kernel_attributes: dict[tuple[str, int], int] = {}
        self.reads: list[tuple[int, Any]] = []
        self.context = 0
        self.capture_mode = 0
        self.modes: list[int] = []
        self._names: list[str] = []
        self._attributes = {
            1: 1024,
            2: 1024,
            3: 1024,
            4: 64,
            5: 2**31 - 1,
            6: 65535,
            7: 65535,
            12: 65536,
            97: 232448,
            120: 1,
        }
        self._attributes |= {75: capability[0], 76: capability[1]}
        p, i, u, s = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p
        for name, types in (
            ("cuInit", [u]), ("cuDeviceGetCount", [p]), ("cuDeviceGetAttribute", [p, i, i]), ("cuCtxGetCurrent", [p]),
            ("cuCtxSetCurrent", [p]), ("cuDevicePrimaryCtxRetain", [p, i]), ("cuCtxGetDevice", [p]),
            ("cuLibraryLoadData", [p, s, p, p, u, p, p, u]), ("cuLibraryGetKernel", [p, p, s]),
            ("cuKernelSetAttribute", [i, i, p, i]), ("cuLaunchKernelEx", [p, p, p, p]), ("cuDeviceGetName", [p, i, i]),
            ("cuStreamIsCapturing", [p, p]), ("cuStreamSynchronize", [p]), ("cuThreadExchangeStreamCaptureMode", [p]),
            ("cuDriverGetVersion", [p]), ("cuCtxPushCurrent_v2", [p]), ("cuCtxPopCurrent_v2", [p]),
            ("cuPointerGetAttribute", [p, i, ctypes.c_uint64]),
        ):  # fmt: skip
            setattr(self, name, ctypes.CFUNCTYPE(i, *types)(getattr(self, f"_{name}")))

    def cuGetErrorName(self, status: int, place: Any) -> int:
        place._obj.value = {1: b"CUDA_ERROR_INVALID_VALUE", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}.get(
            status, b"CUDA_ERROR"
        )
        return 0

    def _cuInit(self, flags: int) -> int:
        return 0

    def _cuDeviceGetCount(self, place: int) -> int:
        ctypes.c_int.from_address(place).value = self.devices
        return 0

    def _cuDeviceGetAttribute(self, place: int, which: int, device: int) -> int:
        ctypes.c_int.from_address(place).value = self._attributes[which]
        return 0

    def _cuDeviceGetName(self, place: int, size: int, device: int) -> int:
        ctypes.memmove(place, b"Test GPU\0", 9)
        return 0

    def _cuCtxGetCurrent(self, place: int) -> int:
        ctypes.c_void_p.from_address(place).value = self.context
        return 0

    def _cuCtxSetCurrent(self, context: int) -> int:
        self.context = context
        return 0

    def _cuDevicePrimaryCtxRetain(self, place: int, device: int) -> int:
        ctypes.c_void_p.from_address(place).value = 77 + device
        return 0

    def _cuCtxGetDevice(self, place: int) -> int:
        ctypes.c_int.from_address(place).value = max(self.context - 77, 0)
        return 0

    def _cuCtxPushCurrent_v2(self, context: int) -> int:
        self.pushed.append(self.context)
        self.context = context
        return 0

    def _cuCtxPopCurrent_v2(self, place: int) -> int:
        self.context = self.pushed.pop()
        return 0

    def _cuPointerGetAttribute(self, place: int, which: int, address: int) -> int:
        assert which == 9
        ctypes.c_int.from_address(place).value = self.memory.get(address, 0)
        return 0 if address in self.memory else 1

    def _cuLibraryLoadData(self, place: int, image: bytes, *_: Any) -> int:
        self.loaded.append(image)
        ctypes.c_void_p.from_address(place).value = 1000 + len(self.loaded)
        return 0

    def _cuLibraryGetKernel(self, place: int, library: int, name: bytes) -> int:
        self._names.append(name.decode())
        ctypes.c_void_p.from_address(place).value = 5000 + len(self._names) - 1
        return 0

    def _cuKernelSetAttribute(self, which: int, value: int, kernel: int, device: int) -> int:
        self.kernel_attributes[self._names[kernel - 5000], which] = value
        return 0

    def _cuLaunchKernelEx(self, config: int, kernel: int, parameters: int, extra: int) -> int:
        if self.status:
            status = self.status.pop(0)
            if status:
                return status
        launch = Launch(Config.from_address(config), self._names[kernel - 5000], parameters)
        self.launches.append(launch)
        self.launched_on.append(max(self.context - 77, 0))
        self.seen.append([launch.read(number, kind) for number, kind in self.reads])
        return 0

    def _cuStreamIsCapturing(self, stream: int, place: int) -> int:
        ctypes.c_int.from_address(place).value = 0
        return 0

    def _cuThreadExchangeStreamCaptureMode(self, place: int) -> int:
        mode = ctypes.c_int.from_address(place)
        mode.value, self.capture_mode = self.capture_mode, mode.value
        self.modes.append(self.capture_mode)
        return 0

    def _cuDriverGetVersion(self, place: int) -> int:
        ctypes.c_int.from_address(place).value = 12040
        return 0

    def _cuStreamSynchronize(self, stream: int) -> int:
        return 0


def stated_errors(kind: str) -> dict[str, float]:
    """The largest errors of functions of f32 or f64 that the page of the target states, in units of the last place."""
    page = Path(__file__).parents[2] / "docs" / "nvidia-target.md"
    column = ("f32", "f64").index(kind) + 1
    stated: dict[str, float] = {}
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3:
            continue
        names = [name.strip() for name in cells[0].replace(", of any argument", "").split(",")]
        numbers = re.findall(r"\d+(?:\.\d+)?", cells[column])
        if len(numbers) == len(names) and set(names) & {"exp", "log", "sin", "asin", "sinh", "asinh", "pow"}:
            stated |= dict(zip(names, map(float, numbers), strict=True))
    return stated
