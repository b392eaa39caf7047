"""Compile options from strings and objects."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import kiln
from kiln import cute
from kiln.base_dsl import settings
from kiln.base_dsl.diagnostics import DSLRuntimeError, DSLWarning
from kiln.base_dsl.options import OPTIONS, BooleanCompileOption, CompileOptions, GenerateLineInfo, OptLevel
from kiln.hardware.options import GPUArch, KeepCUBIN, KeepPTX, PtxasOptions
from kiln.interop.options import EnableTVMFFI


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUTE_DSL_ARCH", "CUTE_DSL_LINEINFO", "CUTE_DSL_DEBUG", "CUTE_DSL_COMPILER_OPT"):
        monkeypatch.delenv(name, raising=False)
    options = CompileOptions()
    assert (options.opt_level, options.keep_ptx, options.nvdisasm_options, options.gpu_arch) == (3, False, "-g -c", "")
    assert not options.is_set("opt_level")


def test_string_form() -> None:
    options = CompileOptions("--opt-level 2 --keep-ptx --ptxas-options '-v -O1' --gpu-arch=sm_90a iket")
    assert (options.opt_level, options.keep_ptx, options.ptxas_options, options.gpu_arch) == (
        2,
        True,
        "-v -O1",
        "sm_90a",
    )
    assert options.iket
    assert not options.keep_cubin
    assert options.is_set("opt_level")


def test_object_form_and_mixtures() -> None:
    options = CompileOptions(OptLevel(1), (KeepPTX, KeepCUBIN()), GenerateLineInfo(False), "--opt-level 2", None)
    assert (options.opt_level, options.keep_ptx, options.keep_cubin, options.generate_line_info) == (
        2,
        True,
        True,
        False,
    )
    assert CompileOptions(options, EnableTVMFFI).enable_tvm_ffi
    assert CompileOptions("--gpu-arch sm_80") == CompileOptions(GPUArch("sm_80"))
    assert hash(CompileOptions("--gpu-arch sm_80")) == hash(CompileOptions(GPUArch("sm_80")))


def test_every_option_has_a_field_and_a_form() -> None:
    for option in OPTIONS:
        special = {"host_target": "linux-aarch64", "checks": "always"}
        value = special.get(option.field, {bool: True, int: 1, str: "sm_80"}[option.kind])
        options = CompileOptions(option(value))
        assert getattr(options, option.field) == value
        if option.flag:
            spelled = option.flag if option.kind is bool else f"{option.flag} {value}"
            assert CompileOptions(spelled) == options
        if issubclass(option, BooleanCompileOption):
            assert CompileOptions(option) == options


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_DSL_COMPILER_OPT", "--opt-level 1 --keep-sass")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    monkeypatch.setenv("CUTE_DSL_KEEP", "cubin")
    assert CompileOptions().opt_level == 1
    assert CompileOptions("--opt-level 0").opt_level == 0
    assert CompileOptions().gpu_arch == "sm_100a"
    assert CompileOptions().kept() == {"sass", "cubin"}


def test_keys_differ_where_code_does() -> None:
    assert CompileOptions(OptLevel(1)).key() != CompileOptions(OptLevel(2)).key()
    assert CompileOptions(KeepPTX).key() == CompileOptions().key()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--opt-lvl 2",), "did you mean --opt-level?"),
        (("--keep_ptx",), "did you mean --keep-ptx?"),
        (("--opt-level",), "needs a value"),
        (("--opt-level fast",), "takes an integer, not 'fast'"),
        (("--opt-level 7",), "0 to 3, not 7"),
        (("--gpu-arch sm90a",), "did you mean sm_90a?"),
        (("--keep-ptx=maybe",), "takes no value"),
        (("'unclosed",), "No closing quotation"),
        ((OptLevel,), "OptLevel needs a value"),
        ((PtxasOptions,), "PtxasOptions needs a value"),
        ((3,), "3 is not a compile option"),
    ],
)
def test_refused(given: tuple[object, ...], words: str) -> None:
    with pytest.raises(DSLRuntimeError) as caught:
        CompileOptions(*given)
    assert words in str(caught.value)


@pytest.mark.parametrize(("option", "value"), [(OptLevel, True), (OptLevel, "2"), (KeepPTX, "yes"), (GPUArch, 90)])
def test_values_of_the_wrong_type(option: type, value: object) -> None:
    with pytest.raises(DSLRuntimeError, match="takes a value of type"):
        option(value)


def test_artefacts_that_the_cpu_target_does_not_make(monkeypatch, tmp_path):
    @cute.jit
    def add(n: cute.Int32) -> cute.Int32:
        return n + 1

    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", str(tmp_path))
    with kiln.target("cpu"):
        monkeypatch.setenv("CUTE_DSL_KEEP_PTX", "1")
        with pytest.warns(DSLWarning, match=r"CPU target, which makes no ptx(.|\n)*target=\"nvidia\""):
            add(1)
        monkeypatch.delenv("CUTE_DSL_KEEP_PTX")
        for kept in ("ir,llvm", "all"):
            monkeypatch.setenv("CUTE_DSL_KEEP", kept)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                add(1)


def test_an_option_is_a_string_again() -> None:
    for option in (OptLevel(2), KeepPTX(), KeepPTX(False), PtxasOptions("-v -O1"), GPUArch("sm_90a")):
        assert CompileOptions(option.serialize()) == CompileOptions(option)


def test_the_folder_of_artefacts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from cutlass.base_dsl.compiler import DumpDir  # where libraries look for options

    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", "/of/the/environment")
    assert CompileOptions("").dump_dir == KeepPTX().dump_path == "/of/the/environment"
    kept = KeepPTX()
    kept.dump_path = str(tmp_path / "ptx")
    assert CompileOptions(kept).dump_dir == kept.dump_path
    assert CompileOptions(DumpDir("a")).key() == CompileOptions(DumpDir("b")).key()

    @cute.jit
    def nothing():
        pass

    folder = tmp_path / "llvm"
    monkeypatch.setenv("CUTE_DSL_KEEP", "ir")
    cute.compile[DumpDir(str(folder))](nothing)
    assert [file.name for file in folder.iterdir()] == ["nothing.mlir"]


def test_variables_of_cute_dsl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_DSL_NO_CACHE", "1")
    monkeypatch.setenv("CUTE_DSL_SHOW_STACKTRACE", "1")
    monkeypatch.setenv("CUTE_DSL_ENABLE_ASSERTIONS", "1")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_103a")
    assert settings.get("CUTE_DSL_DISABLE_FILE_CACHING")
    assert not settings.get("CUTE_DSL_FILTER_STACKTRACE")
    assert CompileOptions("--enable-pyir --extra-compiler-opts 'a b'").enable_assertions
    variables = kiln.cutlass_dsl.CuTeDSL._get_dsl().envar
    assert (variables.arch, variables.enable_assertions) == ("sm_103a", True)
    with pytest.raises(AttributeError, match="there is no setting CUTE_DSL_NOTHING"):
        _ = variables.nothing


@pytest.mark.parametrize(("variable", "shown"), [("AS_ERRORS", "raised"), ("IGNORE", "")])
def test_warnings_by_the_environment(variable: str, shown: str) -> None:
    program = """
import warnings, kiln
from kiln.base_dsl.diagnostics import DSLWarning
try:
    warnings.warn("slow", DSLWarning)
except DSLWarning:
    print("raised")
"""
    environment = {**os.environ, f"CUTE_DSL_WARNINGS_{variable}": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (shown, "")
