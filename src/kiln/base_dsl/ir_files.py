"""Files of traced programs that programs write and read themselves: MLIR as text, or bytecode with a checksum."""

from __future__ import annotations

import getpass
import io
import os
import tempfile
import zlib
from collections.abc import Callable
from typing import BinaryIO

from .bindings import context, ir
from .diagnostics import runtime_error

__all__ = [
    "get_default_generated_ir_path",
    "load_ir",
    "read_bytecode_and_check_crc32",
    "save_ir",
    "write_bytecode_with_crc32",
]

_CHECKSUM_BYTES = 4


def get_default_generated_ir_path(dsl_name: str) -> str:
    """Return the folder for such files: `<dsl_name>_CACHE_DIR` of the environment, or one of the user's for temporary files."""
    of_user = os.path.join(tempfile.gettempdir(), getpass.getuser(), f"{dsl_name.lower()}_python_cache")
    return os.environ.get(f"{dsl_name}_CACHE_DIR") or of_user


def write_bytecode_with_crc32(file: BinaryIO, module: ir.Module) -> None:
    """Write the bytecode of a module to a file, followed by its CRC-32."""
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    file.write(bytecode.getvalue())
    file.write(zlib.crc32(bytecode.getvalue()).to_bytes(_CHECKSUM_BYTES, "little"))


def read_bytecode_and_check_crc32(file: BinaryIO) -> bytes:
    """Return the bytecode that `write_bytecode_with_crc32` wrote; DSLRuntimeError if the file is damaged."""
    data = file.read()
    bytecode = data[:-_CHECKSUM_BYTES]
    if zlib.crc32(bytecode) != int.from_bytes(data[-_CHECKSUM_BYTES:], "little"):
        raise runtime_error("the checksum of the bytecode is not that of its contents", "write the file again")
    return bytecode


def save_ir(
    dsl_name: str,
    module: object,
    fname: str,
    output_dir: str | None = None,
    as_bytecode: bool = False,
    bytecode_writer: Callable[[BinaryIO], None] | None = None,
) -> str:
    """Write a module to `<output_dir>/<dsl_name>_<fname>.mlir`, whole or not at all, and return the path.

    Args:
        dsl_name: the name of the language, such as "CUTE_DSL".
        module: the module; if it is to be text, anything whose `str` that is.
        fname: what tells the file from others.
        output_dir: the folder; by default `get_default_generated_ir_path`.
        as_bytecode: write bytecode.
        bytecode_writer: writes the bytecode to a file; by default `write_bytecode_with_crc32`.
    """
    folder = output_dir or get_default_generated_ir_path(dsl_name)
    os.makedirs(folder, exist_ok=True)
    handle, partial = tempfile.mkstemp(".part", f"{dsl_name.lower()}_{fname}_", folder)
    with open(handle, "wb") as file:
        if not as_bytecode:
            file.write(str(module).encode())
        elif bytecode_writer is not None:
            bytecode_writer(file)
        elif isinstance(module, ir.Module):
            write_bytecode_with_crc32(file, module)
    path = os.path.join(folder, f"{dsl_name.lower()}_{fname}.mlir")
    os.replace(partial, path)
    return path


def load_ir(
    file: str, asBytecode: bool = False, bytecode_reader: Callable[[BinaryIO], bytes] | None = None
) -> tuple[str, ir.Module]:
    """Return the name and the module of a file that `save_ir` wrote.

    Args:
        file: the path of the file.
        asBytecode: the file is bytecode.
        bytecode_reader: returns the bytecode of a file; by default `read_bytecode_and_check_crc32`.
    """
    with open(file, "rb") as opened:
        text = (bytecode_reader or read_bytecode_and_check_crc32)(opened) if asBytecode else opened.read()
    return os.path.splitext(os.path.basename(file))[0], ir.Module.parse(text, context())
