"""Compile and call MLIR text on the CPU target."""

from __future__ import annotations

import ctypes
import itertools
import re
from typing import Any

import ml_dtypes
import numpy as np

from kiln.base_dsl.target import Executable, get_target, slot_layout
from kiln.dialects import cute
from kiln.mlir import context, ir

NUMPY = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "index": np.int64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2, "f6E3M2FN": ml_dtypes.float6_e3m2fn,
    "f6E2M3FN": ml_dtypes.float6_e2m3fn, "f4E2M1FN": ml_dtypes.float4_e2m1fn, "i4": np.int8, "tf32": np.float32,
}  # fmt: skip


def parse(source: str) -> ir.Module:
    """A module from text; `P<f32>` is short for a pointer type, and so on."""
    cute.load_dialect()
    source = re.sub(r"\bP<(\w+)>", r'!cute.ptr<\1, "gmem", 1 : i64>', source)
    source = re.sub(r'\bM<(\w+), ("[^"]*")>', r'!cute.memref<\1, "gmem", 1 : i64, \2>', source)
    with context():
        return ir.Module.parse(source)


class Compiled:
    """A compiled function that takes and returns numpy values; arrays are passed by address."""

    def __init__(self, source: str, entry: str = "f", options: Any = None) -> None:
        module = parse(source)
        signature = next(
            op.operation.attributes["function_type"].value
            for op in module.body.operations
            if op.operation.name == "func.func" and op.operation.attributes["sym_name"].value == entry
        )
        self.inputs, self.results = list(signature.inputs), list(signature.results)
        self.offsets, self.size = slot_layout([*self.inputs, *self.results])
        self.executable: Executable = get_target("cpu").compile(module, entry, options)

    def __call__(self, *arguments: Any) -> Any:
        assert len(arguments) == len(self.inputs)
        slots = ctypes.create_string_buffer(b"\xcc" * (self.size + 8), self.size + 8)
        address = -(-ctypes.addressof(slots) // 8) * 8
        for type_, offset, value in zip(self.inputs, self.offsets, arguments):
            data = _to_bytes(str(type_), value)
            ctypes.memmove(address + offset, data, len(data))
        self.executable.call(address)
        results = [
            _from_bytes(str(type_), ctypes.string_at(address + offset, 64 if "vector" in str(type_) else 16))
            for type_, offset in zip(self.results, self.offsets[len(self.inputs) :])
        ]
        return results[0] if len(results) == 1 else tuple(results)


def _to_bytes(type_: str, value: Any) -> bytes:
    if type_.startswith(("!cute.ptr", "!llvm.ptr")):
        return (value.ctypes.data if isinstance(value, np.ndarray) else int(value)).to_bytes(8, "little")
    if type_ == "i128":
        return (int(value) & (1 << 128) - 1).to_bytes(16, "little")
    if type_.startswith("vector"):
        return np.asarray(value, NUMPY[type_.split("x")[-1][:-1]]).tobytes()
    if type_ in ("i1", "i8", "i16", "i32", "i64", "i4", "index"):
        width = {"i1": 8, "i4": 8, "index": 64}.get(type_) or int(type_[1:])
        return (int(value) & (1 << width) - 1).to_bytes(width // 8, "little")
    return np.asarray(value, NUMPY[type_]).tobytes()


def _from_bytes(type_: str, data: bytes) -> Any:
    if type_ == "i128":
        return int.from_bytes(data[:16], "little", signed=True)
    if type_ == "i4":
        value = data[0] & 15
        return value - 16 if value > 7 else value
    if type_.startswith("vector"):
        count, element = type_[7:-1].split("x")
        return np.frombuffer(data, NUMPY[element], int(count)).copy()
    if type_.startswith(("!cute.ptr", "!llvm.ptr")):
        return int.from_bytes(data[:8], "little")
    return np.frombuffer(data, NUMPY[type_], 1)[0]


def run(source: str, *arguments: Any, entry: str = "f") -> Any:
    """Compile and call once."""
    return Compiled(source, entry)(*arguments)


def unary(operation: str, source: str, result: str) -> Compiled:
    """The function `result f(source)` made of one operation on `%x`, written with its types."""
    return Compiled(f"func.func @f(%x: {source}) -> {result} {{ %r = {operation}\n func.return %r : {result} }}")


def binary(name: str, type_: str, result: str = "", suffix: str = "") -> Compiled:
    """The function of two values of one type made of one operation."""
    result = result or type_
    return Compiled(
        f"func.func @f(%x: {type_}, %y: {type_}) -> {result} {{"
        f" %r = {name} %x, %y{suffix} : {type_}\n func.return %r : {result} }}"
    )


_numbers = itertools.count()
LAUNCH_TYPES = ", ".join(["i64"] * 11)


def launch(
    kernel: str, arguments: list[tuple[str, str]], sizes: str = "%gx, %gy, %gz, %bx, %by, %bz", smem: str = "%zero"
) -> str:
    """Text of a launch of `kernel`; arguments are (name, type). Needs `%one`, `%zero` (i32) and `%zero64` in scope."""
    names, types = ", ".join(a for a, _ in arguments), ", ".join(t for _, t in arguments)
    cast = f"{names} : {types} to tuple<{types}>" if arguments else "to tuple<>"
    wide = [(f"%wide{next(_numbers)}", name.strip()) for name in (*sizes.split(","), "%one", "%one", "%one", smem)]
    return (
        "".join(f"{new} = arith.extsi {old} : i32 to i64\n" for new, old in wide)
        + f"%args = builtin.unrealized_conversion_cast {cast}\n"
        f'"cuda.launch_ex"({", ".join(new for new, _ in wide)}, %zero64, %args) {{kernel = @{kernel}}} '
        f": ({LAUNCH_TYPES}, tuple<{types}>) -> ()\n"
    )


CONSTANTS = """
%zero = arith.constant 0 : i32
%one = arith.constant 1 : i32
%zero64 = arith.constant 0 : i64
"""
SIZES = "%gx: i32, %gy: i32, %gz: i32, %bx: i32, %by: i32, %bz: i32"
INDEX = '%{0} = "cute.{1}"() {{dim = {2} : i32}} : () -> i32\n'


def indices(*names: str) -> str:
    """Text that defines `%tx`, `%by`, `%bdx`, `%gdz`... by name."""
    kinds = {"t": "thread_idx", "b": "block_idx", "bd": "block_dim", "gd": "grid_dim"}
    return "".join(INDEX.format(name, kinds[name[:-1]], "xyz".index(name[-1])) for name in names)
