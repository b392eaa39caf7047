"""Text printed by compiled code appears in Python's standard output, in order."""

from __future__ import annotations

import io
import sys

import pytest
from cpu_testing import CONSTANTS, SIZES, Compiled, indices, launch

from kiln.base_dsl.diagnostics import CompilerDiagnosticError
from kiln.targets.cpu.runtime import parts


def printf(format_: str, arguments: list[tuple[str, str]], name: str = "%t") -> str:
    names, types = ", ".join(a for a, _ in arguments), ", ".join(t for _, t in arguments)
    cast = f"{names} : {types} to tuple<{types}>" if arguments else "to tuple<>"
    text = format_.replace("\n", "\\0A").replace('"', "\\22")
    return (
        f"{name} = builtin.unrealized_conversion_cast {cast}\n"
        f'"cute.printf"({name}) {{format = "{text}"}} : (tuple<{types}>) -> ()\n'
    )


def test_host_printf(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [("%a", "i32"), ("%b", "i64"), ("%c", "f64"), ("%d", "i32")]
    source = (
        "func.func @f(%a: i32, %b: i64, %c: f64, %d: i32) {"
        + printf('"a" = %d, b = %lld, c = %.3f, 100%%, %c\n', arguments)
        + printf("é\n", [], "%u")
        + "func.return }"
    )
    compiled = Compiled(source)
    print("before")
    compiled(-3, 1 << 40, 0.1, ord("z"))
    print("after")
    assert capsys.readouterr().out == 'before\n"a" = -3, b = 1099511627776, c = 0.100, 100%, z\né\nafter\n'


def test_the_stream_is_the_one_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Compiled("func.func @f(%a: i32) {" + printf("%d\n", [("%a", "i32")]) + "func.return }")
    for value in (1, 2):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stdout", stream)
        compiled(value)
        assert stream.getvalue() == f"{value}\n"


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("workers", [1, 4])
def test_kernel_printf_runs_in_block_order(capsys: pytest.CaptureFixture[str], workers: int) -> None:
    source = (
        "func.func @k() attributes {cute.kernel} {"
        + indices("tx", "bx")
        + printf("%d.%d\n", [("%bx", "i32"), ("%tx", "i32")])
        + "func.return }"
        + "func.func @f("
        + SIZES
        + ") {"
        + CONSTANTS
        + launch("k", [])
        + "func.return }"
    )
    parts.set_workers(workers)
    try:
        Compiled(source)(300, 1, 1, 7, 1, 1)
    finally:
        parts.set_workers()
    assert capsys.readouterr().out == "".join(f"{b}.{t}\n" for b in range(300) for t in range(7))


def test_text_before_a_fault_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        "func.func @f(%a: i32) -> i32 {"
        + printf("hello\n", [])
        + "%r = arith.divsi %a, %a : i32\n"
        + printf("%d\n", [("%r", "i32")], "%u")
        + "func.return %r : i32 }"
    )
    compiled = Compiled(source)
    with pytest.raises(ZeroDivisionError):
        compiled(0)
    assert capsys.readouterr().out == "hello\n0\n"


def test_much_text(capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        "func.func @f(%n: i32) {"
        + CONSTANTS
        + "scf.for %i = %zero to %n step %one : i32 {"
        + printf("line %d\n", [("%i", "i32")])
        + "}\nfunc.return }"
    )
    Compiled(source)(20000)
    assert capsys.readouterr().out == "".join(f"line {i}\n" for i in range(20000))


@pytest.mark.parametrize(
    ("format_", "arguments"), [("%d", []), ("%f", [("%a", "i32")]), ("%d", [("%x", "f64")]), ("x", [("%a", "i32")])]
)
def test_formats_that_do_not_fit_are_refused(format_: str, arguments: list[tuple[str, str]]) -> None:
    with pytest.raises(CompilerDiagnosticError, match="cute.printf has the format"):
        Compiled("func.func @f(%a: i32, %x: f64) {" + printf(format_, arguments) + "func.return }")


def test_arguments_must_be_widened() -> None:
    with pytest.raises(CompilerDiagnosticError, match="takes i32, i64 and f64 arguments, not f32"):
        Compiled("func.func @f(%x: f32) {" + printf("%f", [("%x", "f32")]) + "func.return }")
