"""Exported objects and their headers, used by C programs that know of no Python."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from exporting import build, compiled_scale, copy_boxes, gather, matrix, needs_compiler, run, say, scale, scale_here

import kiln
import kiln.cute as cute
from kiln import Boolean, Float32, Float64, Int8, Int32, Int64, Uint16
from kiln.base_dsl.diagnostics import DSLRuntimeError, DSLUserCodeTypeError
from kiln.cute.runtime import make_fake_compact_tensor, make_fake_tensor, make_ptr
from kiln.interop.aot import runtime_files
from kiln.targets.host import elf

HERE = Path(__file__).parent
LIBC = {
    "aligned_alloc", "bcmp", "clock_gettime", "dladdr", "dlopen", "dlsym", "fclose", "fflush", "fprintf", "free", "gcvt", "malloc", "memcmp", "memcpy", "memmove",
    "memset", "open_memstream", "pthread_create", "pthread_join", "pthread_self", "sched_yield", "sem_init", "sem_post",
    "sem_timedwait", "signal", "strlen", "write",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files of three functions for the CPU target."""
    made = tmp_path_factory.mktemp("exported")
    with kiln.target("cpu"):
        compiled_scale().export_to_c(made, "scale_example", "scale")
        x = make_fake_compact_tensor(Float64, (cute.SymInt(),))
        cute.compile(say, x, Int64(1), options="--enable-assertions").export_to_c(made, "say")
        out, p = make_fake_compact_tensor(Float64, (11,)), make_ptr(Float32, 0)
        extents = cute.sym_int32(), cute.sym_int64(), cute.sym_int32()
        wide = make_fake_tensor(Float32, extents, (cute.sym_int64(), cute.sym_int64(), 1))
        given = out, Int8(1), Uint16(2), Boolean(True), 0.5, (Int32(1), (Int32(2), 3)), p, wide, 1.0
        cute.compile(gather, *given).export_to_c(made, "gather")
    return made


def names(file: Path) -> tuple[set[str], set[str]]:
    """What an object shows, and what it needs."""
    symbols = [symbol for symbol in elf.read(file.read_bytes()).symbols if symbol.binding != elf.LOCAL]
    return {s.name for s in symbols if s.is_defined}, {s.name for s in symbols if not s.is_defined}


def test_an_object_shows_its_names_and_needs_the_c_library(folder: Path) -> None:
    shown, needed = names(folder / "scale_example.o")
    module = {f"scale_Kernel_Module_{what}" for what in ("Load", "Unload", "Error")}
    assert shown == {
        *module,
        "cute_dsl_scale_wrapper",
        "__kiln_packed_scale",
        "__kiln_slots_scale",
        "__kiln_meta_scale",
    }
    assert needed <= LIBC
    assert ".note.GNU-stack" in elf.File((folder / "scale_example.o").read_bytes()).names


@needs_compiler
def test_c_programs_call_exported_functions(folder: Path) -> None:
    """Objects in a program, in an archive and in a library; every kind of argument; what is wrong is said and nothing aborts."""
    shutil.copy(HERE / "use_exported.c", folder)
    build(folder, "-std=c99", "-fPIC", "-shared", "-Wl,-z,defs", "-o", "libgather.so", "gather.o")
    said = (folder / "say.o").read_bytes()
    (folder / "libsay.a").write_bytes(runtime_files.archive({"say.o": said}, {"say.o": ["cute_dsl_say_wrapper"]}))
    build(
        folder, "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-o", "program", "use_exported.c", "scale_example.o", "libsay.a", "-L.", "-lgather",
        f"-Wl,-rpath,{folder}", "-Wl,-z,defs",
    )  # fmt: skip
    assert run(folder / "program") == [
        "n is 3", "good 0", "1 2 1 0.5 4 5 6 7 11 8589934614 34",
        "-2 argument 2 (y) of scale(x: Tensor([?, ?], Float32), y: Tensor([?, ?], Float32), by: Float32, stream: stream): its extent 1 is 6, expected a multiple of 4",
        "-100 1", "-1 1", "n is 5", "710 1",
    ]  # fmt: skip


@needs_compiler
def test_headers_are_cpp(folder: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    (folder / "program.cpp").write_text('#include "scale_example.h"\n#include "say.h"\n#include "gather.h"\n')
    build(folder, "-x", "c++", "-std=c++17", "-fsyntax-only", "program.cpp")


@needs_compiler
def test_kernels_are_loaded_without_python(tmp_path: Path) -> None:
    """Against a driver that tells what it is asked for: choice of images, loading once, errors."""
    options = "--enable-assertions --gpu-arch sm_90a"
    x, entry_points = matrix(), ("c", "tvm_ffi")
    kiln.export(scale_here, x, x, 1.0, to=tmp_path, name="scale", archs=("sm_80", "sm_90a"), entry_points=entry_points)
    x = make_fake_compact_tensor(Float64, (cute.SymInt(),))
    cute.compile(say, x, Int64(1), options=options, target="nvidia").export_to_c(tmp_path, "say")
    x = matrix(32, 16)
    kiln.export(copy_boxes, x, x, to=tmp_path, name="boxes", archs=("sm_90a",))
    kiln.export(scale_here, matrix(), matrix(), 1.0, to=tmp_path, name="either", archs=("sm_90a", "cpu"))
    shutil.copy(HERE / "use_driver.c", tmp_path)
    for name, flags in (("new", ()), ("old", ("-DOLD",))):
        (tmp_path / name).mkdir()
        driver = f"{name}/libcuda.so.1"
        build(tmp_path, "-std=gnu99", "-shared", "-fPIC", *flags, "-o", driver, str(HERE / "fake_cuda.c"))
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere" / "libcuda.so.1").touch()  # no library: the search ends here, also where there is a driver
    objects = [f"{name}.o" for name in ("scale", "say", "boxes", "either")]
    build(tmp_path, "-std=c99", "-pthread", "-rdynamic", "-o", "program", "use_driver.c", *objects)

    def lines(driver: str = "new", **answers: str) -> list[str]:
        variables = {f"FAKE_{name}": value for name, value in answers.items()}
        return run(tmp_path / "program", LD_LIBRARY_PATH=str(tmp_path / driver), **variables)

    launch = "launch scaled, grid 3, block 32, smem 0, stream {}, first extent 3"
    told = lines(CAPABILITY="90")
    assert told[:7] == [
        "cuInit", "context of device 0", "load sm_90 cubin, aligned 1", "0 ", launch.format("(nil)"), "0 ", "unload",
    ]  # fmt: skip
    threads = told[7 : told.index("cuInit", 1)]  # the other function finds the driver by itself
    assert threads.count("context of device 0") == threads.count(launch.format("(nil)")) == 8
    assert threads.count("load sm_90 cubin, aligned 1") == 1
    maps = lines(FAULT="0", MAPS="1")
    copied = "launch copied, grid 2, block 32, smem 0, stream (nil), first extent"
    assert "map of rank 2, elements 7" in maps and any(line.startswith(copied) for line in maps)
    assert maps[-1] == "either: 0 0 21"  # memory of the host
    on_gpu = lines(MAPS="1", MEMORY="2")
    assert on_gpu[-1] == "either: 0 0 0" and "launch scaled, grid 2" in on_gpu[-3]
    misaligned = next(line for line in on_gpu if line.startswith("-1 "))
    assert "its address modulo the alignment is 4, expected 0, a multiple of 16" in misaligned
    assert lines(CAPABILITY="86")[2] == "load sm_80 cubin, aligned 1"
    assert lines(CAPABILITY="120")[2] == "load PTX, aligned 1"  # later than all images
    none = "209 this was compiled for sm_80 sm_80 (PTX) sm_90a, and the GPU has compute capability 7.5"
    assert none in lines(CAPABILITY="75")
    two = lines(DEVICES="2", CAPABILITY="80")
    at = two.index("push device 1")
    assert two[at : at + 5] == ["push device 1", "load sm_90 cubin, aligned 1", launch.format("0x21"), "pop", "0"]
    assert two[at + 5 : at + 7] == [launch.format("0x20"), "0"]  # device 0 is current, and its code there
    assert "ValueError: Mismatched argument 1 (x)" in two[at + 7] and "a multiple of 4" in two[at + 7]
    assert "RuntimeError: cannot use CUDA device 7: CUDA_ERROR (error 101)" in two[at + 9]
    nowhere = lines("nowhere")
    assert "3 there is no CUDA driver: libcuda.so.1 was not found" in nowhere and nowhere[-1] == "either: 0 0 21"
    assert "500 the CUDA driver lacks cuLibraryLoadData: it is older than CUDA 12" in lines("old")
    failed = [line for line in lines(cuLaunchKernelEx="700") if line.startswith("700")][0]
    assert failed.endswith("CUDA_ERROR_ILLEGAL_ADDRESS (error 700), as the fake driver says")
    assert "cannot launch kernel" in failed
    assert any("does not start" in line for line in lines(cuInit="100"))
    asserted = [line for line in lines(FAULT="1") if line.startswith("710")]
    assert len(asserted) == 1 and "assertion failed: n is too large" in asserted[0] and "block (1, 2, 3)" in asserted[0]
    assert "wait" not in lines(CAPTURING="1")


def test_other_machines(tmp_path: Path) -> None:
    with kiln.target("cpu"):
        compiled_scale(options="--host-target linux-aarch64").export_to_c(tmp_path, "scale")
    assert elf.read((tmp_path / "scale.o").read_bytes()).machine == elf.MACHINES["aarch64"]
    assert names(tmp_path / "scale.o")[1] <= LIBC
    given = matrix(), matrix(), 1.0
    path, _ = kiln.export(scale_here, *given, to=tmp_path / "a.so", archs=("cpu",), host="linux-aarch64")
    file = elf.File(Path(path).read_bytes())
    assert (file.kind, file.machine) == (elf.SHARED, elf.MACHINES["aarch64"])
    assert {name for name, _, _, section, _, _ in file.symbols(elf.DYNSYM) if name and not section} <= LIBC


@pytest.mark.parametrize("text", ["linux-mips", "llvm -mtriple=x86_64-apple-darwin", "llvm -mcup=x", "windows"])
def test_machines_that_are_none(text: str) -> None:
    with pytest.raises(DSLRuntimeError, match="--host-target"):
        cute.compile(scale, matrix(), matrix(), 1.0, None, options=f"--host-target '{text}'")


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    @cute.jit
    def number(x: Int32):
        return x + 1

    with kiln.target("cpu"):
        compiled, returns = compiled_scale(), cute.compile(number, 1)
        for arguments, words in (
            (("a", "b-c"), "'b-c' is no name of C"),
            (("a", "b", "2c"), "'2c' is no name of C"),
            (("a",), "got no file_name"),
        ):
            with pytest.raises(DSLUserCodeTypeError, match=words):
                compiled.export_to_c(*arguments)
        with pytest.raises(DSLUserCodeTypeError, match="pass either file_name"):
            compiled.export_to_c("a", "b", function_name="c")
        with pytest.raises(DSLUserCodeTypeError, match="returns a number"):
            returns.export_to_c(tmp_path, "number")
        (tmp_path / "file").touch()
        with pytest.raises(DSLRuntimeError, match="cannot write"):
            compiled.export_to_c(tmp_path / "file", "scale")
    assert os.listdir(tmp_path) == ["file"]
