"""Device functions from outside: declared with `cute.extern` and `cute.ffi`, linked for GPUs, libdevice on the CPU target."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from nvidia_testing import compile_for, floats, needs_ptxas

import kiln
import kiln.cute as cute
from kiln import Boolean, Constexpr, Float16, Float32, Float64, Int8, Int32, Int64, Uint32
from kiln.base_dsl.diagnostics import CompilerDiagnosticError, DSLBaseError, DSLNotImplemented
from kiln.hardware import toolchain
from kiln.llvm import binding as llvm
from kiln.mlir import context, ir
from kiln.targets.cpu.passes import external_calls
from kiln.targets.nvidia import linking

needs_libdevice = pytest.mark.skipif(
    toolchain.libdevice() is None, reason="there is no libdevice: pip install nvidia-nvvm"
)

SOURCE = """
target triple = "nvptx64-nvidia-cuda"
%struct.Team = type { i32, i32, i32 }
%struct.__half = type { i16 }
declare float @__nv_expf(float)
define float @scale(float %x, ptr byval(%struct.Team) align 4 %team, i1 zeroext %negate) noinline {
  %field = getelementptr %struct.Team, ptr %team, i32 0, i32 1
  %rank = load i32, ptr %field
  %f = sitofp i32 %rank to float
  %e = call float @__nv_expf(float %x)
  %y = fmul float %f, %e
  %m = fneg float %y
  %r = select i1 %negate, float %m, float %y
  ret float %r
}
define i32 @_Z3addii(i32 %a, i32 %b) { %c = add i32 %a, %b
  ret i32 %c }
define float @_ZN3lib3addEff(float %a, float %b) { %c = fadd float %a, %b
  ret float %c }
define void @put(ptr %x, float %v) noinline { store float %v, ptr %x
  ret void }
define %struct.__half @same_half(ptr byval(%struct.__half) align 2 %x) noinline { %i = load i16, ptr %x
  %v = insertvalue %struct.__half poison, i16 %i, 0
  ret %struct.__half %v }
define ptr @moved(ptr %p, i64 %by) noinline { %q = getelementptr i8, ptr %p, i64 %by
  ret ptr %q }
define %struct.Team @team(i32 %rank) noinline { %t = insertvalue %struct.Team poison, i32 %rank, 1
  ret %struct.Team %t }
define float @sum_F32(float %x) { ret float %x }
define double @sum_F64(double %x) { ret double %x }
"""


class Team:
    """A structure by value, as libraries write it."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    @staticmethod
    def __get_mlir_types__() -> list[Any]:
        return [ir.Type.parse("!llvm.struct<(i32, i32, i32)>", context())]

    def __extract_mlir_values__(self) -> list[Any]:
        return list(self.values)


class Address:
    """`void*`, as libraries write it."""

    @staticmethod
    def __get_mlir_types__() -> list[Any]:
        return [ir.Type.parse("!llvm.ptr", context())]


class Floats:
    """`float*`, as libraries write it."""

    @staticmethod
    def __get_mlir_types__() -> list[Any]:
        return [ir.Type.parse('!cute.ptr<f32, "gmem", 4>', context())]


def _sum_name(function: Any) -> str:
    (dtype,) = (kind.value for kind in function.params_types if isinstance(kind, cute.ConstValue))
    return f"{function.name}_F{dtype.width}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> cute.BitCode:
    path = tmp_path_factory.mktemp("bitcode") / "functions.bc"
    path.write_bytes(llvm.parse_assembly(SOURCE, llvm.create_context()).as_bitcode())
    return cute.BitCode(str(path))


def _program(body: Any) -> Any:
    @cute.kernel
    def kernel(x: cute.Tensor):
        body(x)

    @cute.jit
    def program(x: cute.Tensor):
        kernel(x).launch(grid=[1, 1, 1], block=[32, 1, 1])

    return program


@needs_libdevice
@needs_ptxas
def test_linked_functions(library: cute.BitCode) -> None:
    @cute.extern(source=library)
    def scale(x: Float32, team: Team, negate: Boolean) -> Float32: ...

    @cute.extern(source=library)
    def team(rank: Int32) -> Team: ...

    @cute.extern(name="add", source=library, name_mangler=cute.mangle)
    def add(a: Int32, b: Int32) -> Int32: ...  # pyright: ignore[reportRedeclaration]

    @cute.extern(name="lib::add", source=library, name_mangler=cute.mangle)
    def add(a: Float32, b: Float32) -> Float32: ...  # noqa: F811

    @cute.extern(source=library)
    def put(x: cute.Pointer, v: Float32) -> None: ...

    @cute.extern(source=library)
    def same_half(x: Float16) -> Float16: ...

    @cute.extern(name="sum", source=library, name_mangler=_sum_name)
    def add_up(x: Float32, dtype: Constexpr) -> Float32: ...

    moved = cute.ffi(name="moved", params_types=[Int64, Int64], return_type=Int64, source=library)
    moved_pointer = cute.ffi("moved", [Address, Int64], Address, library)

    def body(x: Any) -> None:
        t = cute.arch.thread_idx()[0]
        value = add(x[t], add(t, 1).to(Float32))
        value = add_up(scale(value, Team(team(t)), True), Float32)
        put(x.iterator + t, value)
        x[t] = same_half(x[t].to(Float16)).to(Float32)
        address = moved(x.iterator.toint(), 4)
        assert type(address) is Int64
        put(cute.make_ptr(Float32, address), 2.0)
        assert str(moved_pointer(x.iterator, 4).type) == "!llvm.ptr"

    compiled = compile_for(_program(body), floats(32), options="--keep-ptx --keep-cubin")
    ptx = compiled.__ptx__
    assert {name for name in ("put", "scale", "same_half", "moved", "team") if f".func {name}(" in ptx or f" {name}(\n" in ptx} == {
        "put", "scale", "same_half", "moved", "team",
    }  # fmt: skip
    assert ptx.count(".visible") == 1  # the kernel: linked functions are internal
    assert "add.s32" in ptx and "_Z3addii" not in ptx and "sum_F32" not in ptx  # inlined
    assert re.search(r"st\.local\.b16.*\n.*callseq[^}]*same_half", ptx, re.S)
    assert "ex2.approx" in ptx  # libdevice, which the library needs
    assert len(compiled.__cubin__) > 1000


@needs_libdevice
def test_without_a_source(library: cute.BitCode) -> None:
    """It is looked for in `LinkLibraries` and in libdevice."""
    put = cute.ffi("put", [cute.Pointer, Float32])
    sine = cute.ffi("__nv_sinf", [Float32], Float32)

    def body(x: Any) -> None:
        put(x.iterator, sine(x[0]))

    program = _program(body)
    compiled = cute.compile[cute.LinkLibraries(library.path), cute.KeepPTX, cute.GPUArch("sm_90a")](
        program, floats(4), target="nvidia"
    )
    assert ".func put" in compiled.__ptx__
    with pytest.raises(CompilerDiagnosticError, match="does not define put") as caught:
        compile_for(program, floats(4))
    assert caught.value.span is not None and "put(x.iterator, sine(x[0]))" in str(caught.value)


WRONG: dict[str, tuple[Any, str]] = {
    "too few arguments": (lambda put, x: put(x.iterator), "missing a required argument: 'v'"),
    "a number of another kind": (
        lambda put, x: put(x.iterator, x[0].to(Float64)),
        "argument 2 is a Float64, not a Float32",
    ),
    "a number for a pointer": (lambda put, x: put(1, x[0]), "argument 1 is a int, not a"),
    "elements of another type": (
        lambda put, x: put(cute.recast_ptr(x.iterator, dtype=Int8), 1.0),
        "argument 1 is a Pointer, not a Floats",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_says_what_does_not_fit(library: cute.BitCode, case: str) -> None:
    @cute.extern(source=library)
    def put(x: Floats, v: Float32) -> None: ...

    wrong, words = WRONG[case]
    with pytest.raises(DSLBaseError, match=re.escape(words)) as caught:
        cute.compile(_program(lambda x: wrong(put, x)), floats(4), target="nvidia")
    assert caught.value.span is not None
    assert caught.value.span.filename == __file__


def test_a_wrong_declaration_names_the_definition(library: cute.BitCode, tmp_path: Any) -> None:
    def compiled(name: str, kinds: list[Any], result: Any, source: Any, *arguments: Any) -> None:
        function = cute.ffi(name, kinds, result, source)
        compile_for(_program(lambda x: function(*arguments)), floats(4))

    def refused(*call: Any) -> str:
        with pytest.raises(DSLBaseError) as caught:
            compiled(*call)
        assert caught.value.span is not None
        assert "function(*arguments)" in str(caught.value)
        return str(caught.value)

    assert "_Z3addii is i32 (i32, i32) in the bitcode: it takes 2 arguments" in refused(
        "_Z3addii", [Int32], Int32, library, 1
    )
    assert "argument 2 is declared as f32, and is i32" in refused("_Z3addii", [Int32, Float32], Int32, library, 1, 1.0)
    assert "the result is declared as f64, and is i32" in refused("_Z3addii", [Int32, Int32], Float64, library, 1, 1)
    assert "the result is declared as i32, and is void" in refused("put", [Int64, Float32], Int32, library, 1, 1.0)
    assert "does not define scal\n" in (missing := refused("scal", [], None, library))
    assert "scale" in missing
    assert "No such file" in refused("put", [], None, cute.BitCode(str(tmp_path / "none.bc")))
    text = tmp_path / "text.bc"
    text.write_text("no bitcode")
    assert "is not LLVM bitcode" in refused("put", [], None, cute.BitCode(str(text)))
    assert "no library defines nothing" in refused("nothing", [], None, None)


def test_a_call_belongs_into_a_kernel(library: cute.BitCode) -> None:
    add = cute.ffi("_Z3addii", [Int32, Int32], Int32, library)
    with pytest.raises(DSLBaseError, match="only possible inside a function that is being traced"):
        add(1, 2)

    @cute.jit
    def host(x: Int32):
        add(x, x)

    with pytest.raises(CompilerDiagnosticError, match="_Z3addii is a device function, called in host code"):
        cute.compile(host, 1, target="nvidia")
    with pytest.raises(
        DSLNotImplemented, match=r"the CPU target does not have _Z3addii, a device function of .*functions.bc"
    ):
        cute.compile(host, 1, target="cpu")


@pytest.mark.parametrize(
    ("name", "kinds", "mangled"),
    [
        ("f", [], "_Z1fv"),
        ("scale", [Float32, Int32, Uint32, Boolean], "_Z5scalefijb"),
        ("a::b::f", [Float64, Int64], "_ZN1a1b1fEdl"),
        ("f", [cute.Pointer, cute.Pointer, Float16, Float16], "_Z1fPvS_6__halfS0_"),
    ],
)
def test_names_in_cxx(name: str, kinds: list[Any], mangled: str) -> None:
    assert cute.mangle(cute.ffi(name, kinds)) == mangled


def test_the_module_is_the_function() -> None:
    from cutlass.base_dsl.ffi import FFI, ffi

    assert isinstance(cute.ffi("f"), FFI)
    assert repr(ffi("f", [Int32], Float32)) == "f(Int32) -> Float32"


REFERENCES: dict[str, Any] = {
    "expf": np.exp, "sinf": np.sin, "fast_cosf": np.cos, "rintf": np.rint, "cbrtf": np.cbrt, "exp10f": lambda x: 10.0**x,
    "frcp_rn": lambda x: 1 / x, "saturatef": lambda x: np.clip(x, 0, 1), "fabsf": np.abs, "log1pf": np.log1p,
}  # fmt: skip
PAIRS: dict[str, Any] = {
    "fmodf": np.fmod, "atan2f": np.arctan2, "fdimf": lambda x, y: np.maximum(x - y, 0), "powf": np.power, "fsub_rn": np.subtract,
    "fmaxf": np.maximum,
}  # fmt: skip
INTEGERS: dict[str, Any] = {
    "popc": lambda n: bin(n).count("1"), "clz": lambda n: 32 - n.bit_length(), "ffs": lambda n: (n & -n).bit_length(),
    "brev": lambda n: int(f"{n:032b}"[::-1], 2), "abs": abs,
}  # fmt: skip


def test_libdevice_on_the_cpu_target() -> None:
    inputs = np.array([0.25, 1.5, 2.5, 0.75, 3.5, 1.0, 0.5, 2.0], np.float32)
    unary = {name: cute.ffi(f"__nv_{name}", [Float32], Float32) for name in REFERENCES}
    binary = {name: cute.ffi(f"__nv_{name}", [Float32, Float32], Float32) for name in PAIRS}
    bits = {name: cute.ffi(f"__nv_{name}", [Uint32], Uint32) for name in INTEGERS}
    high = cute.ffi("__nv_umulhi", [Uint32, Uint32], Uint32)
    whole = cute.ffi("__nv_float2int_rd", [Float32], Int32)
    count = len(unary) + len(binary)

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, n: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        for number, function in enumerate(unary.values()):
            y[number, t] = function(x[t])
        for number, function in enumerate(binary.values()):
            y[len(unary) + number, t] = function(x[t], x[(t + 3) % 8])
        for number, function in enumerate(bits.values()):
            n[number, t] = function(Uint32(t * 77))
        n[len(bits), t] = high(Uint32(0xFFFF0000), Uint32(t))
        n[len(bits) + 1, t] = Uint32(whole(x[t] - 2.0))

    @cute.jit
    def program(x: cute.Tensor, y: cute.Tensor, n: cute.Tensor):
        kernel(x, y, n).launch(grid=[1, 1, 1], block=[8, 1, 1])

    y = np.zeros((count, 8), np.float32)
    n = np.zeros((len(INTEGERS) + 2, 8), np.uint32)
    program(inputs, y, n)
    other = inputs[(np.arange(8) + 3) % 8]
    expected = [function(inputs.astype(np.float64)) for function in REFERENCES.values()]
    expected += [function(inputs.astype(np.float64), other.astype(np.float64)) for function in PAIRS.values()]
    for got, wanted, name in zip(y, expected, [*REFERENCES, *PAIRS], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=3e-7, err_msg=name)
    for row, (name, function) in zip(n, INTEGERS.items()):
        assert row.tolist() == [function(77 * t) for t in range(8)], name
    assert n[-2].tolist() == [0xFFFF0000 * t >> 32 for t in range(8)]
    assert n[-1].astype(np.int32).tolist() == np.floor(inputs - 2).astype(int).tolist()


def test_libdevice_that_the_cpu_target_lacks() -> None:
    def refused(name: str, *kinds: Any) -> None:
        function = cute.ffi(f"__nv_{name}", list(kinds), Float32)
        cute.compile(_program(lambda x: function(x[0])), floats(4), target="cpu")

    with pytest.raises(DSLNotImplemented, match="does not have __nv_j0f, a function of libdevice"):
        refused("j0f", Float32)
    with pytest.raises(DSLNotImplemented, match=r"__nv_exp takes \(f64\) and gives f64, and is declared with f64, f32"):
        refused("exp", Float64)


@needs_libdevice
def test_served_functions_have_the_types_of_libdevice() -> None:
    path = str(toolchain.libdevice())
    served = external_calls.served()
    part = linking.part_of(linking.Library(path, ""), frozenset(served))
    for name, (types, _) in served.items():
        defined = part.functions[name]
        assert [*(parameter.type_ for parameter in defined.parameters), defined.result] == types, name


def test_overloads_are_of_one_name_only() -> None:
    assert kiln.cute.extern is cute.extern

    @cute.extern(name="__nv_sinf")
    def sine(x: Float32) -> Float32: ...  # pyright: ignore[reportRedeclaration]

    @cute.extern(name="__nv_sin")
    def sine(x: Float64) -> Float64: ...  # noqa: F811

    @cute.extern(name="__nv_cosf", overloaded=False)
    def sine_only(x: Float32) -> Float32: ...

    def body(x: Any) -> None:
        wide = sine(x[0].to(Float64))
        assert type(wide) is Float64
        assert type(sine(x[0])) is Float32
        x[0] = sine_only(wide)

    with pytest.raises(DSLBaseError, match=r"argument 1 is a Float64, not a Float32"):
        cute.compile(_program(body), floats(4), target="cpu")
