"""`kiln opt`: passes by name, and what is said of what cannot be run."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from opt_testing import check_words, opt

from kiln.base_dsl.target import get_target
from kiln.workbench.main import main

ROOT = Path(__file__).parents[2]
MODULE = """
func.func @k(%c: i1, %x: f32) {
  %i = arith.constant 2 : i32
  %m = "cute.alloc_rmem"() {count = 4 : i64} : () -> R<f32>
  scf.if %c { "cute.store"(%x, %m, %i) : (f32, R<f32>, i32) -> () }
  return
}"""


def test_passes_run_in_order_and_the_module_is_printed():
    check_words(
        opt(MODULE, "if-conversion,vector-legalisation"), "%old = cute.load\n%new = arith.select\nnot: scf.if\nreturn"
    )


def test_names_may_have_underscores_as_files_have():
    assert opt(MODULE, "if_conversion") == opt(MODULE, "if-conversion")


def test_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("func.func @f() { return }"))
    assert main(["opt", "--pass", "fma-contraction", "-"]) == 0
    assert "func.func @f()" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["nvidia", "cpu"])
def test_without_a_pass_they_are_listed(target, capsys):
    assert main(["opt", "--target", target]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(get_target(target).passes())


@pytest.mark.parametrize("target", ["nvidia", "cpu"])
def test_every_pass_has_the_name_of_its_file(target):
    folder = ROOT / "src" / "kiln" / "targets"
    files = {file.stem.replace("_", "-") for file in (folder / target / "passes").glob("*.py")} - {"--init--"}
    parts = {"async-registers", "lane-updates", "named-accumulators", "vector-parts"}  # of others
    assert files - parts <= set(get_target(target).passes())


def test_dumps_of_a_compilation_have_the_same_names():
    text = (ROOT / "src" / "kiln" / "targets" / "nvidia" / "lower.py").read_text()
    run = {part.split('"')[1] for part in text.split("compilation.run(")[1:]}
    assert run - {"kernel-attributes", "lines"} <= set(get_target("nvidia").passes())


@pytest.mark.parametrize(
    ("words", "source", "status", "said"),
    [
        (["--pass", "if-convert"], MODULE, 1, "there is no pass 'if-convert'"),
        (["--pass", "if-conversion"], "func.func @f( {", 1, "the module does not parse"),
        (["--pass", "if-conversion"], 'func.func @f() { "cute_nvgpu.fence"() {kind = "x"} : () -> () return }', 1, "has the kind"),
        (["--pass", "if-conversion", "--arch", "sm_1"], MODULE, 2, "argument --arch: 'sm_1' is none of sm_80"),
        (["--pass", "if-conversion", "--target", "tpu"], MODULE, 2, "invalid choice: 'tpu'"),
        (["--pass", "if-conversion"], None, 2, "cannot read"),
    ],
    ids=["no pass", "no MLIR", "a rule", "no architecture", "no target", "no file"],
)  # fmt: skip
def test_what_cannot_be_run_is_said(words, source, status, said, tmp_path, capsys):
    file = tmp_path / "module.mlir"
    if source is not None:
        file.write_text(source.replace("R<f32>", '!cute.ptr<f32, "rmem", 16 : i64>'))
    try:
        assert main(["opt", *words, str(file)]) == status
    except SystemExit as left:
        assert left.code == status
    assert said in capsys.readouterr().err


def test_a_file_is_needed(capsys):
    with pytest.raises(SystemExit):
        main(["opt", "--pass", "if-conversion"])
    assert "a FILE is needed" in capsys.readouterr().err
