"""The object stage: what goes wrong is reported at the user's line; what goes right can be looked at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiln.base_dsl.compiler import Compilation, source_span
from kiln.base_dsl.diagnostics import CompilerDiagnosticError, DSLNotImplemented, DSLRuntimeError, DSLUserCodeError
from kiln.base_dsl.target import get_target
from kiln.dialects import cute
from kiln.mlir import context, ir

SOURCE = """
func.func @f(%a: i32) -> i32 {
  %b = arith.addi %a, %a : i32
  func.return %b : i32
}"""


def parse(source: str) -> ir.Module:
    cute.load_dialect()
    with context():
        return ir.Module.parse(source)


def compile_(source: str) -> object:
    return get_target("cpu").compile(parse(source), "f")


def test_spans_of_locations() -> None:
    with context():
        here, there, outer = (ir.Location.file(f"{n}.py", k, 5) for k, n in enumerate("abc", 1))
        span, calls = source_span(ir.Location.callsite(here, [there, outer]))
        assert span is not None
        assert (str(span), span.column) == ("a.py:1", 4)
        assert [str(c) for c in calls] == ["b.py:2", "c.py:3"]
        assert source_span(ir.Location.unknown()) == (None, ())
        assert source_span(ir.Location.name("x", here))[0] == span
        assert source_span(ir.Location.fused([ir.Location.unknown(), here]))[0] == span


def test_an_invalid_module_is_reported_at_the_users_line() -> None:
    module = parse(SOURCE)
    with context():
        block = module.body.operations[0].regions[0].blocks[0]
        f32 = ir.F32Type.get()
        location = ir.Location.callsite(ir.Location.file("user.py", 42, 7), [ir.Location.file("main.py", 3, 1)])
        ir.Operation.create(
            "arith.addi", [f32], list(block.arguments) * 2, loc=location, ip=ir.InsertionPoint.at_block_begin(block)
        )
    with pytest.raises(CompilerDiagnosticError, match=r"user\.py:42: error: the program is not valid") as caught:
        get_target("cpu").compile(module, "f")
    assert [str(c) for c in caught.value.calls] == ["main.py:3"]
    assert "called from main.py:3" in str(caught.value)


def test_a_missing_entry() -> None:
    with pytest.raises(CompilerDiagnosticError, match="no function g"):
        get_target("cpu").compile(parse(SOURCE), "g")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('"gpu.barrier"() : () -> () loc("u.py":5:3)', "gpu.barrier"),
        ('llvm.inline_asm has_side_effects "bar.sync 0;", "" : () -> () loc("u.py":5:3)', "inline assembly"),
        ('nvvm.barrier loc("u.py":5:3)', "nvvm.barrier"),
        ('llvm.call_intrinsic "llvm.nvvm.barrier0"() : () -> () loc("u.py":5:3)', "llvm.nvvm.barrier0"),
        ('gpu.printf "hi" loc("u.py":5:3)', "gpu.printf"),
    ],
)
def test_what_cannot_be_lowered_is_refused_before_llvm_sees_it(body: str, words: str) -> None:
    with pytest.raises((CompilerDiagnosticError, DSLNotImplemented)) as caught:
        compile_(f"func.func @f() {{\n{body}\nfunc.return }}")
    assert words in str(caught.value)
    assert "u.py:5: error:" in str(caught.value)


def test_arguments_that_cannot_cross_are_refused() -> None:
    with pytest.raises(CompilerDiagnosticError, match="cannot cross into or out of a compiled function"):
        compile_("func.func @f(%m: memref<4xf32>) { func.return }")


def test_unknown_c_functions_are_reported() -> None:
    source = """
    func.func private @no_such_function()
    func.func @f() {
      func.call @no_such_function() : () -> () loc("u.py":5:3)
      func.return
    }"""
    with pytest.raises(CompilerDiagnosticError, match=r"u\.py:5: error: this process has no function no_such_function"):
        compile_(source)


def test_c_functions_of_the_process_can_be_called() -> None:
    compile_("func.func private @cosh(f64) -> f64\nfunc.func @f(%x: f64) -> f64 {"
             "%r = func.call @cosh(%x) : (f64) -> f64\n func.return %r : f64 }")  # fmt: skip


def test_a_failure_of_llvm_says_where_the_module_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kiln.targets.host import jit

    def fail(text: str, opt: int) -> None:
        raise RuntimeError("LLVM says no")

    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "optimize", fail)
    with pytest.raises(CompilerDiagnosticError, match="LLVM says no") as caught:
        compile_(SOURCE)
    assert "define" in (tmp_path / "f.failed.ll").read_text()
    assert str(tmp_path) in str(caught.value)


def test_without_a_dump_directory_it_is_not_in_the_current_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kiln.targets.host import jit

    def fail(text: str, opt: int) -> None:
        raise RuntimeError("LLVM says no")

    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("CUTE_DSL_DUMP_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(jit, "optimize", fail)
    with pytest.raises(CompilerDiagnosticError, match="LLVM says no") as caught:
        compile_(SOURCE)
    (written,) = temporary.glob("kiln-*/f.failed.ll")
    assert str(written) in str(caught.value)
    assert not list(here.iterdir())


def test_a_dump_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setenv("CUTE_DSL_KEEP", "llvm")
    with pytest.raises(DSLRuntimeError, match="f.ll cannot be written: Not a directory") as caught:
        compile_(SOURCE)
    assert "CUTE_DSL_DUMP_DIR" in str(caught.value)


def test_what_is_rejected_is_told_where_it_cannot_be_dumped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kiln.targets.host import jit

    def fail(text: str, opt: int) -> None:
        raise RuntimeError("LLVM says no")

    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(jit, "optimize", fail)
    with pytest.raises(CompilerDiagnosticError, match="LLVM says no"):
        compile_(SOURCE)
    assert len(list(tmp_path.glob("kiln-*/f.failed.ll"))) == 1


def test_artifacts() -> None:
    executable = get_target("cpu").compile(parse(SOURCE), "f")
    artifacts = executable.artifacts
    assert set(artifacts) >= {"mlir", "mlir_lowered", "llvm", "asm", "object"}
    assert repr(artifacts.keys()) == f"KeysView(Artifacts({', '.join(artifacts)}))"
    assert "arith.addi" in artifacts["mlir"]
    assert "llvm.add" in artifacts["mlir_lowered"]
    assert "define" in artifacts["llvm"]
    assert "kiln_entry" in artifacts["asm"]
    assert artifacts["object"][:4] == b"\x7fELF"
    assert artifacts["asm"] is artifacts["asm"]


def test_dumps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", str(tmp_path / "new"))
    monkeypatch.setenv("CUTE_DSL_KEEP", "ir,ir-debug,passes,llvm,asm,object")
    monkeypatch.setenv("CUTE_DSL_PRINT_IR", "1")
    compile_(SOURCE)
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names >= {"f.mlir", "f.debug.mlir", "f.ll", "f.s", "f.o", "f.03_expansion.mlir"}
    assert "arith.addi" in (tmp_path / "new" / "f.mlir").read_text()
    assert "loc(" in (tmp_path / "new" / "f.debug.mlir").read_text()
    assert "arith.addi" in capsys.readouterr().out


def test_pass_failures_are_reported() -> None:
    compilation = Compilation(parse(SOURCE), "f")
    with pytest.raises(CompilerDiagnosticError, match="pass broken failed"):
        compilation.run("broken", "no-such-pass")


def test_every_pass_leaves_a_valid_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_VERIFY_PASSES", "1")
    compile_(SOURCE)


def test_times_of_stages_are_printed_where_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_(SOURCE)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("CUTE_DSL_JIT_TIME_PROFILING", "1")  # the default of KILN_TIMING
    compile_(SOURCE)
    assert re.search(r"^f: \w+ took \d+\.\d\d ms$", capsys.readouterr().err, re.MULTILINE)


TWO_FUNCTIONS = """
func.func @f(%a: i32, %c: i1) -> i32 {
  %b = scf.if %c -> i32 {
    %d = arith.addi %a, %a : i32 loc("user.py":5:3)
    scf.yield %d : i32
  } else {
    scf.yield %a : i32
  }
  %e = arith.muli %b, %b : i32 loc("user.py":7:9)
  func.return %e : i32
}
func.func @g(%a: i32) -> i32 {
  %b = arith.addi %a, %a : i32 loc("user.py":12:3)
  func.return %b : i32
}"""


def test_a_value_of_a_branch_that_is_used_after_it() -> None:
    module = parse(TWO_FUNCTIONS)
    branch, after = list(module.body.operations[0].regions[0].blocks[0].operations)[:2]
    after.operation.operands[0] = branch.operation.regions[0].blocks[0].operations[0].result
    with pytest.raises(
        DSLUserCodeError, match="only computed inside a branch or loop, which may not have run"
    ) as caught:
        Compilation(module, "f").verify()
    assert str(caught.value.span) == "user.py:7"
    assert [(str(span), text) for span, text in caught.value.notes] == [("user.py:5", "it is computed here")]


def test_a_value_that_is_used_before_it_is_computed() -> None:
    module = parse(TWO_FUNCTIONS)
    branch, after = list(module.body.operations[0].regions[0].blocks[0].operations)[:2]
    inner = branch.operation.regions[0].blocks[0].operations[0]
    inner.operation.operands[0] = after.operation.result
    with pytest.raises(DSLUserCodeError, match="which may not have run"):
        Compilation(module, "f").verify()


def test_a_value_of_another_function() -> None:
    module = parse(TWO_FUNCTIONS)
    f, g = (op.regions[0].blocks[0] for op in module.body.operations)
    g.operations[0].operation.operands[1] = f.operations[1].result
    with pytest.raises(DSLUserCodeError, match="'g' uses a value that is computed in 'f'") as caught:
        Compilation(module, "g").verify()
    assert str(caught.value.span) == "user.py:12"
    assert [str(span) for span, _ in caught.value.notes] == ["user.py:7"]
    module = parse(TWO_FUNCTIONS)
    f, g = (op.regions[0].blocks[0] for op in module.body.operations)
    g.operations[0].operation.operands[1] = f.arguments[0]
    with pytest.raises(DSLUserCodeError, match="'g' uses an argument of 'f'"):
        Compilation(module, "g").verify()
