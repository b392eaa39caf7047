"""Exported functions, loaded into Python again; files that are not what they seem."""

from __future__ import annotations

import lzma
import random
from pathlib import Path

import numpy as np
import pytest
from exporting import build, compiled_scale, copy_boxes, matrix, needs_compiler

import kiln
import kiln.cute as cute
from kiln import Int32
from kiln.base_dsl.diagnostics import (
    DSLRuntimeError,
    DSLUserCodeRuntimeError,
    DSLUserCodeTypeError,
    DSLUserCodeValueError,
    DSLWarning,
)
from kiln.cute.runtime import from_dlpack, load_module, make_fake_stream
from kiln.interop.aot import objects
from kiln.interop.arguments import loading
from kiln.targets.host import jit

STREAM = make_fake_stream()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("exported")
    with kiln.target("cpu"):
        compiled_scale().export_to_c(made, "scale")
    return made / "scale.o"


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(24, dtype=np.float32).reshape(3, 8), np.zeros((3, 8), np.float32)


def test_functions_take_what_compiled_ones_take(file: Path, arrays: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = arrays
    module = load_module(file)
    assert dir(module) == ["scale"]
    for by in (3.0, 4.0):
        module.scale(x, y, by=by, stream=STREAM)
        assert (y == by * x).all()
    assert hasattr(module.scale, "for_caller") == (loading.loaded() is not None)  # native code takes the calls
    module.scale(from_dlpack(x).mark_layout_dynamic(), from_dlpack(y).mark_layout_dynamic(), 2, STREAM)
    assert (y == 2 * x).all()
    with pytest.raises(AttributeError, match="has no function 'scala'; it has scale"):
        module.scala


def test_arguments_that_do_not_fit(file: Path, arrays: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = arrays
    scale = load_module(file).scale
    for bad, words in (
        ((x, y), "needs by"),
        ((x, y[0], 1.0, STREAM), "1 mode, not 2"),
        ((x.astype(np.float64), y, 1.0, STREAM), "Float64"),
    ):
        with pytest.raises(DSLUserCodeTypeError, match=words):
            scale(*bad)
    with pytest.raises(DSLUserCodeValueError, match="one symbol"):
        scale(x, y[:2], 1.0, STREAM)


def test_another_layout_is_passed_with_a_warning(
    file: Path, arrays: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = arrays
    turned, scale = from_dlpack(np.asfortranarray(x)).mark_layout_dynamic(), load_module(file).scale
    with pytest.warns(DSLWarning, match="its numbers are passed as they are"):
        scale(turned, turned, 1.0, STREAM)
    monkeypatch.setenv("KILN_AOT_STRICT", "1")
    with pytest.raises(DSLUserCodeTypeError, match="the stride of mode"):
        scale(turned, turned, 1.0, STREAM)


@needs_compiler
def test_shared_libraries(file: Path, arrays: tuple[np.ndarray, np.ndarray]) -> None:
    """Those that a linker made; ours: test_shared_library.py."""
    x, y = arrays
    build(file.parent, "-shared", "-s", "-o", "libscale.so", "scale.o")
    load_module(file.parent / "libscale.so").scale(x, y, 3.0, STREAM)
    assert (y == 3 * x).all()


@pytest.mark.skipif(jit.common()[0] != "x86_64", reason="the file holds code of x86-64-v3")
def test_files_of_the_first_format_stay_good(tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]) -> None:
    """`compiled_scale` as it was exported when the format was new: later versions of Kiln load it, too."""
    (tmp_path / "scale.o").write_bytes(lzma.decompress((Path(__file__).parent / "scale_abi1.o.xz").read_bytes()))
    x, y = arrays
    load_module(tmp_path / "scale.o").scale(x, y, 3.0, STREAM)
    assert (y == 3 * x).all()


def test_tensor_maps(tmp_path: Path) -> None:
    """What is asynchronous on a GPU, and the runtime's part for it."""
    x = matrix(32, 16)
    with kiln.target("cpu"):
        cute.compile(copy_boxes, x, x).export_to_c(tmp_path, "boxes")
    given, out = np.arange(16 * 64, dtype=np.float32).reshape(16, 64), np.zeros((16, 64), np.float32)
    load_module(tmp_path / "boxes.o").boxes(
        *(from_dlpack(a, assumed_align=16).mark_layout_dynamic() for a in (given, out))
    )
    assert (given == out).all()
    x = matrix(1)
    with kiln.target("cpu"):
        cute.compile(copy_boxes, x, x).export_to_c(tmp_path, "boxes")
    odd = from_dlpack(np.zeros((16, 33), np.float32)).mark_layout_dynamic()
    with pytest.raises(DSLUserCodeRuntimeError, match="mode 1 has a stride of 132 bytes, expected: .*multiples of 16"):
        load_module(tmp_path / "boxes.o").boxes(odd, odd)


def test_tensor_maps_for_both_targets_in_one_object(tmp_path: Path) -> None:
    """Each target writes maps by a function of its own."""
    x = matrix(32, 16)
    kiln.export(copy_boxes, x, x, to=tmp_path, name="boxes", archs=("sm_90a", "cpu"))
    given, out = np.arange(16 * 64, dtype=np.float32).reshape(16, 64), np.zeros((16, 64), np.float32)
    load_module(tmp_path / "boxes.o").boxes(
        *(from_dlpack(a, assumed_align=16).mark_layout_dynamic() for a in (given, out))
    )
    assert (given == out).all()


def test_numbers_are_given_back(tmp_path: Path) -> None:
    @cute.jit
    def add(a: Int32, b: Int32):
        return a - b

    with kiln.target("cpu"):
        cute.compile(add, 1, 2).export_to_c(tmp_path / "add.o", function_name="add")
    assert load_module(tmp_path / "add.o").add(3, b=5) == -2


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    """The file with other contents, and its checksum put right."""
    assert old in data and len(old) == len(new)
    return objects._signed(data.replace(old, new))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"#!/bin/sh\n", "is no ELF file"),
        (lambda data: b"", "is no ELF file"),
        (lambda data: data[:40], "is truncated: it ends after 40 bytes"),
        (lambda data: data[:-100], "is truncated: it has .* bytes and would have at least"),
        (lambda data: data[:18] + b"\x08\x00" + data[20:], "is for the machine 8 of ELF, and this machine is"),
        (lambda data: data[:5] + b"\x02" + data[6:], "is no 64-bit little-endian"),
        (lambda data: data[:16] + b"\x04\x00" + data[18:], "neither an object nor a shared library"),
        (lambda data: changed(data, b"__kiln_meta_", b"__kiln_data_"), "has no functions that Kiln exported"),
        (lambda data: changed(data, b'{"abi":1,"kiln"', b'{"abi":9,"kiln"'), "version 9 of the format, and this Kiln knows versions up to 1"),
        (lambda data: changed(data, b'{"abi":1,', b'{"abi" 1,'), "its metadata cannot be read"),
        (lambda data: data.replace(b'"alignment":4', b'"alignment":8'), "its checksum is not that of its contents"),
    ],
)  # fmt: skip
def test_files_that_are_not_what_they_seem(change, words: str, file: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.o").write_bytes(change(file.read_bytes()))
    with pytest.raises(DSLRuntimeError, match=words):
        load_module(tmp_path / "bad.o")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DSLRuntimeError, match="No such file"):
        load_module(tmp_path / "none.o")


def test_damaged_files_never_crash(file: Path, tmp_path: Path) -> None:
    data, generator, bad = file.read_bytes(), random.Random(7), tmp_path / "bad.o"
    for _ in range(120):
        damaged = bytearray(data)
        region = (64, len(data) - 2000)[generator.random() < 0.7]
        for _ in range(generator.randint(1, 8)):
            at = generator.randrange(region, len(data)) if region > 64 else generator.randrange(64)
            damaged[at] = generator.randrange(256)
        if bytes(damaged) != data:
            bad.write_bytes(damaged)
            with pytest.raises(DSLRuntimeError):
                load_module(bad)
