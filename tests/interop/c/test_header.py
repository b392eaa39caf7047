"""Headers compile in C and C++, whatever parameters, functions and files are called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from exporting import needs_compiler

import kiln
import kiln.cute as cute
from kiln import Float32, Int32
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute.runtime import make_fake_compact_tensor
from kiln.interop.c.header import header
from kiln.interop.c.signature import Parameter, Signature, c_names

C, CPP = ("-std=c99", "-std=gnu89", "-std=gnu2x"), ("-std=c++11", "-std=gnu++20")
KEYWORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return
    short signed sizeof static struct switch typedef union unsigned void volatile while _Alignas _Alignof _Atomic _Bool _Complex _Generic
    _Imaginary _Noreturn _Static_assert _Thread_local _BitInt _Decimal32 alignas alignof bool constexpr false nullptr static_assert
    thread_local true typeof typeof_unqual asm and and_eq bitand bitor catch char8_t char16_t char32_t class compl concept consteval
    constinit const_cast co_await co_return co_yield decltype delete dynamic_cast explicit export friend mutable namespace new noexcept
    not not_eq operator or or_eq private protected public reinterpret_cast requires static_cast template this throw try typeid typename
    using virtual wchar_t xor xor_eq __func__ __attribute__ __asm__ __restrict __typeof__ __FILE__ __LINE__ __cplusplus
""".split()
NAMES = [
    *KEYWORDS,
    "module",
    "x",
    "size_t",
    "int32_t",
    "uint8_t",
    "float_t",
    "é",
    "é_",
    "ue9",
    "变量",
    "NULL",
    "NULL_",
    "_",
    "__",
    "a__b",
]


def compiles(folder: Path, text: str, before: str = "") -> None:
    """With every version of C and C++, without a warning; `before`: lines of the program before the header."""
    (folder / "made.h").write_text(text)
    for compiler, ending, versions in (("gcc", "c", C), ("g++", "cpp", CPP)):
        if shutil.which(compiler) is None:
            continue
        (folder / f"program.{ending}").write_text(f'{before}#include "made.h"\n')
        for version in versions:
            done = subprocess.run(
                [compiler, version, "-Wall", "-Werror", "-fsyntax-only", f"program.{ending}"],
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{version}: {done.stderr}"


def macros() -> list[str]:
    """Those that the header brings, of names that programs can use."""
    found: set[str] = set()
    text = "".join(f"#include <{name}.h>\n" for name in ("stddef", "stdint", "stdio", "stdlib"))
    for language, versions in (("c", C), ("c++", CPP)):
        for version in versions:
            done = subprocess.run(
                ["gcc", "-x", language, version, "-dM", "-E", "-"], input=text, capture_output=True, text=True, check=True
            )  # fmt: skip
            found |= {line.split()[1].partition("(")[0] for line in done.stdout.splitlines()}
    return sorted(found)


@needs_compiler
def test_every_name_of_a_parameter(tmp_path: Path) -> None:
    names = list(dict.fromkeys([*NAMES, *(macros() if shutil.which("gcc") else [])]))
    made = c_names(names)
    assert len(set(made)) == len(names) and all(name.isascii() for name in made)
    assert [c_names([name]) for name in ("x", "M", "value", "_x")] == [["x"], ["M"], ["value"], ["_x"]]
    tensor = {
        "kind": "tensor",
        "shape": [{"bits": 32, "divisibility": 1}],
        "stride": [1],
        "type": "Float32",
        "alignment": 4,
    }
    for about in (tensor, {"kind": "number", "type": "Int32"}, {"kind": "stream"}):
        parameters = [Parameter(name, about, [], c_name) for name, c_name in zip(names, made, strict=True)]
        compiles(tmp_path, header("made", Signature(parameters, [], [], 0, (0, 0), "f"), "1", ["cpu"]))
    parameters = [Parameter("I", tensor, [], *c_names(["I"])), Parameter("errno", tensor, [], *c_names(["errno"]))]
    text = header("made", Signature(parameters, [], [], 0, (0, 0), "f"), "1", ["cpu"])
    compiles(
        tmp_path, text, "#include <errno.h>\n#include <assert.h>\n#ifndef __cplusplus\n#include <complex.h>\n#endif\n"
    )


@needs_compiler
def test_a_comment_holds_any_text(tmp_path: Path) -> None:
    for text in ("f*/ int broken; /*", "f\\", "f\n#error", "f(x: é)", "??/"):
        compiles(tmp_path, header("made", Signature([], [], [], 0, (0, 0), text), "1", ["cpu"]))


@cute.kernel
def kernel(x: cute.Tensor, value: Float32):
    x[0] = value


@cute.jit
def fill(NULL: cute.Tensor, _Bool: Float32, int: Int32, é: cute.Tensor):
    kernel(NULL, _Bool + int).launch(grid=1, block=1)


@needs_compiler
def test_an_exported_function_with_such_parameters(tmp_path: Path) -> None:
    n = cute.SymInt()
    x = make_fake_compact_tensor(Float32, (n,))
    with kiln.target("cpu"):
        compiled = cute.compile(fill, x, 1.0, 2, x)
        compiled.export_to_c(tmp_path, "fill")
        for name in ("../fill", "a/fill", "..", "."):
            with pytest.raises(DSLUserCodeTypeError, match="leads out of the folder"):
                compiled.export_to_c(tmp_path / "sub", name, "fill")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fill.h", "fill.o"]
    text = (tmp_path / "fill.h").read_text()
    assert "fill_Tensor_NULL_t *NULL_, float p_Bool, int32_t int_, fill_Tensor_u00e9_t *u00e9)" in text
    compiles(tmp_path, text)
