"""Files of traced programs: MLIR as text, or bytecode whose damage is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiln import mlir
from kiln.base_dsl import ir_files
from kiln.base_dsl.diagnostics import DSLRuntimeError

TEXT = "func.func @f(%x: i32) -> i32 {\n  return %x : i32\n}"


@pytest.mark.parametrize("as_bytecode", [False, True])
def test_what_is_saved_can_be_loaded(tmp_path: Path, as_bytecode: bool) -> None:
    module = mlir.ir.Module.parse(TEXT, mlir.context())
    path = ir_files.save_ir("CUTE_DSL", module, "key", output_dir=str(tmp_path / "new"), as_bytecode=as_bytecode)
    assert os.listdir(tmp_path / "new") == ["cute_dsl_key.mlir"]
    name, again = ir_files.load_ir(path, asBytecode=as_bytecode)
    assert (name, str(again)) == ("cute_dsl_key", str(module))


def test_writers_and_readers_of_the_program(tmp_path: Path) -> None:
    module = mlir.ir.Module.parse(TEXT, mlir.context())
    path = ir_files.save_ir(
        "CUTE_DSL",
        module,
        "key",
        output_dir=str(tmp_path),
        as_bytecode=True,
        bytecode_writer=lambda file: ir_files.write_bytecode_with_crc32(file, module),
    )
    _, again = ir_files.load_ir(path, True, ir_files.read_bytecode_and_check_crc32)
    assert str(again) == str(module)


def test_damaged_bytecode_is_refused(tmp_path: Path) -> None:
    module = mlir.ir.Module.parse(TEXT, mlir.context())
    path = Path(ir_files.save_ir("CUTE_DSL", module, "key", output_dir=str(tmp_path), as_bytecode=True))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DSLRuntimeError, match="checksum"):
        ir_files.load_ir(str(path), asBytecode=True)


def test_the_default_folder_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path))
    assert ir_files.get_default_generated_ir_path("CUTE_DSL") == str(tmp_path)
    monkeypatch.delenv("CUTE_DSL_CACHE_DIR")
    assert ir_files.get_default_generated_ir_path("CUTE_DSL").endswith("cute_dsl_python_cache")
