"""`kiln inspect`: which line everything comes from, and the page that shows it."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
import shlex
from pathlib import Path

import browser
import numpy as np
import pytest
from browser import dom_of, needs_chromium, result_of
from example_running import EXAMPLES, load
from nvidia_testing import needs_nvdisasm, needs_ptxas

import kiln.cute as cute
from kiln import Float32, utils
from kiln.base_dsl.compiler import Compilation, Watcher, source_span, watchers
from kiln.hardware import source_paths
from kiln.mlir import ir
from kiln.workbench.core import source_lines
from kiln.workbench.core.records import Journal, Record
from kiln.workbench.inspect import capture, outline, resources
from kiln.workbench.inspect import cli as inspect
from kiln.workbench.inspect import model as inspect_model
from kiln.workbench.inspect import page as inspect_page
from kiln.workbench.inspect.capture import Captured, Compiled, capturing
from kiln.workbench.main import main

HERE = str(Path(__file__))
LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")


@cute.jit
def doubled(x):
    y = x + x  # a line of a function that is inlined
    return y


@cute.kernel
def columns(a: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    tile = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout((32, 32), stride=(32, 1)), 16)
    tile[thread, 0] = doubled(a[thread])  # all threads of a warp in one bank
    cute.arch.sync_threads()
    if thread < 16:
        a[thread] = tile[31 - thread, 0]


@cute.jit
def small(a: cute.Tensor):
    columns(a).launch(grid=(1, 1, 1), block=(32, 1, 1))


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(HERE).read_text().splitlines(), 1) if text in line)


class Plain(Watcher):
    """States of modules as the bindings have them, read without any text with locations."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.operations: list[collections.Counter[tuple[str, tuple[str, int] | None]]] = []

    def state(self, compilation: Compilation, name: str) -> None:
        self.texts.append(compilation.module.operation.get_asm())
        found: collections.Counter[tuple[str, tuple[str, int] | None]] = collections.Counter()

        def visit(op: ir.Operation) -> ir.WalkResult:
            span, _ = source_span(op.location)
            if op.name.split(".")[0] in DIALECTS and op.name != "scf.yield":  # those without values are not printed
                found[op.name, (span.filename, span.line) if span else None] += 1
            return ir.WalkResult.ADVANCE

        compilation.module.operation.walk(visit)
        self.operations.append(found)


DIALECTS = ("arith", "cuda", "cute", "cute_nvgpu", "scf", "vector")


@pytest.fixture(scope="module")
def run():
    """The small kernel compiled for Hopper, and its modules as they are otherwise read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTE_DSL_ARCH", "sm_90a")
        patch.setenv("CUTE_DSL_LINEINFO", "1")
        plain = Plain()
        watchers.append(plain)
        try:
            with capturing() as kept:
                small(np.zeros(32, np.float32))
        finally:
            watchers.remove(plain)
    return kept, plain


@pytest.fixture(scope="module")
def model(run):
    kept, _ = run
    place = {"file": HERE, "line": line_of("in one bank")}
    access = {"span": place, "conflicts": 31, "operation": "st", "width": 4, "wavefronts": 32, "ideal": 1, "worst": 32}
    finding = {"span": place, "other_span": {"file": HERE, "line": line_of("tile[31")}, "kind": "race", "message": "two threads"}  # fmt: skip
    seen = dataclasses.replace(kept, accesses=[access], findings=[finding])
    return inspect_model.build([seen], "test_inspect.py", "kiln inspect ...")


def of_kind(model, kind, unit=0):
    return [text for text in model["units"][unit]["texts"] if text["kind"] == kind]


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.quick(0)
def test_mlir_is_what_the_bindings_print_and_say(run):
    kept, plain = run
    (compiled,) = kept.compiled
    assert len(compiled.states) > 3 and compiled.states[0][0] == "traced"
    for name, text in compiled.states:
        read = source_lines.read_mlir(text)
        number = plain.texts.index("\n".join(read.lines) + "\n")  # the same, letter by letter, without locations
        found: collections.Counter = collections.Counter()
        for line, place in zip(read.lines, read.places):
            if op := re.match(r'\s*(?:%[\w:, #]+ = )?"?((\w+)\.[\w.]+)', line):
                if op[2] in DIALECTS and op[1] != "scf.yield":
                    found[op[1], place] += 1
        assert found == plain.operations[number], name


def test_inlined_functions_know_who_called_them(model):
    (unit,) = model["units"]
    file = next(n for n, one in enumerate(model["files"]) if one["path"] == HERE)
    inner, outer = [file, line_of("that is inlined")], [file, line_of("in one bank")]
    assert [inner, outer] in unit["calls"]
    assert [outer, inner] not in unit["calls"]


LOCATIONS = """#loc1 = loc("/a/p.py":3:1)
#loc5 = loc("x y"(#loc1))
module {
  func.func @f(%arg0: i32 loc("/a/p.py":3:1), %arg1: i32 loc("n"(#loc1))) {
    %0 = "t.s"() {text = "} loc(#loc1) {"} : () -> i32 loc(#loc2)
    scf.if %0 {
      "t.a"() : () -> () loc(#loc3)
    } else {
      "t.b"() : () -> () loc(unknown)
    } loc(#loc4)
    "t.region"() ({
    ^bb0(%1: i32 loc(#loc2)):
      "t.c"() : () -> () loc(fused<"x">[#loc, #loc2])
    }) : () -> () loc(#loc5)
  } loc(#loc1)
} loc(#loc)
#loc = loc(unknown)
#loc2 = loc("/a/b/../p.py":5:2 to :9)
#loc3 = loc(callsite(#loc2 at #loc4))
#loc4 = loc(callsite("/a/q (1).py":7:1 at "/a/p.py":8:1))
"""


def test_locations_of_every_form():
    read = source_lines.read_mlir(LOCATIONS)
    p, q = "/a/p.py", "/a/q (1).py"
    lines = [(line.strip()[:6], place and (place[0][-2:] == "py" and place)) for line, place in zip(read.lines, read.places)]  # fmt: skip
    assert lines == [
        ("module", None), ("func.f", (p, 3)), ("%0 = \"", (p, 5)), ("scf.if", (q, 7)), ('"t.a"(', (p, 5)), ("} else", (q, 7)),
        ('"t.b"(', None), ("}", (q, 7)), ('"t.reg', (p, 3)), ("^bb0(%", None), ('"t.c"(', (p, 5)), ("}) : (", (p, 3)), ("}", (p, 3)), ("}", None),
    ]  # fmt: skip
    assert read.calls == {((p, 5), (q, 7)), ((q, 7), (p, 8))}
    assert read.lines[2] == '    %0 = "t.s"() {text = "} loc(#loc1) {"} : () -> i32'
    assert read.lines[1] == "  func.func @f(%arg0: i32, %arg1: i32) {"


def test_llvm_has_the_lines_of_its_metadata(model):
    (text,) = of_kind(model, "llvm")
    assert not any("!dbg" in line or "!DI" in line for line in text["lines"])
    stores = [(line, place) for line, place in zip(text["lines"], text["places"]) if re.search(r"\bstore float", line)]
    file = next(n for n, one in enumerate(model["files"]) if one["path"] == HERE)
    assert [place for _, place in stores] == [[file, line_of("in one bank")], [file, line_of("tile[31")]]


def test_ptx_has_the_lines_before_it():
    text = """.version 8.8
.visible .entry k(
	.param .u64 p
)
{
	.reg .b32 	%r<3>;
	.loc	1 4 0
	mov.u32 	%r1, %tid.x;
$L__tmp3:
	.loc	2 9 3, function_name $L__info_string1, inlined_at 1 5 1
	// begin inline asm
	{ .reg .pred p; mov.u32 %r2, 1; }
	// end inline asm
$L__BB0_1:
	@%p1 bra 	$L__BB0_1;
	.loc	1 0 0
	ret;
}
	.file	1 "/a/p.py"
	.file	2 "/a/./q.py"
"""
    read = source_lines.read_ptx(text)
    found = {line.split()[0]: place for line, place in zip(read.lines, read.places) if line.strip() not in "{}"}
    assert found["mov.u32"] == ("/a/p.py", 4)
    assert [read.places[n] for n, line in enumerate(read.lines) if ".reg .pred" in line] == [("/a/q.py", 9)]
    assert (found["@%p1"], found["$L__BB0_1:"], found["ret;"], found[".reg"]) == (("/a/q.py", 9), None, None, None)
    assert not any(".loc" in line or "inline asm" in line or "tmp" in line for line in read.lines)


@needs_nvdisasm
def test_sass_has_the_lines_of_the_cubin(run, model):
    """Against another reading of what nvdisasm prints: cut at its notes on lines."""
    kept, _ = run
    expected: collections.Counter[tuple[str, int]] = collections.Counter()
    for part in re.split(r"\n\.L_x_\d+:\s+/\*\w+\*/ +BRA `\(", kept.compiled[0].sass)[0].split("//## File ")[
        1:
    ]:  # without padding
        file, line = re.match(r'"([^"]*)", line (\d+)', part).groups()
        expected[file, int(line)] += len(re.findall(r"^\s*/\*[0-9a-f]{4}\*/ ", part, re.MULTILINE))
    (text,) = of_kind(model, "sass")
    files = model["files"]
    counted = collections.Counter((files[p[0]]["path"], p[1]) for p, label in zip(text["places"], text["labels"]) if p and label)  # fmt: skip
    assert counted == expected and sum(expected.values()) > 10
    addresses = [int(label, 16) for label in text["labels"] if label]
    assert addresses == list(range(0, 16 * len(addresses), 16))  # nothing is missing
    sass, live = (next(c for c in model["units"][0]["columns"] if c["id"] == name) for name in ("sass", "live"))
    assert sass["values"] == {
        f"{next(n for n, f in enumerate(files) if f['path'] == file)}:{line}": count for (file, line), count in expected.items()
    }  # fmt: skip
    assert max(live["values"].values()) == max(n or 0 for n in text["live"])
    resources = model["units"][0]["kernels"][0]
    assert 0 < max(live["values"].values()) <= resources["registers"]
    assert (resources["block"], resources["smem"] + resources["dynamic"], resources["blocks"]) == ((32, 1, 1), 4096, 32)


@pytest.mark.quick(0)
@needs_ptxas
@needs_nvdisasm
@pytest.mark.parametrize("name", ['a"b', "c\\d", "é%22", "n\nl", "plain"], ids=ascii)
def test_every_path_of_a_program(name, tmp_path, capsys):
    """`.file` of PTX has no escapes; all texts name the same file again."""
    program = tmp_path / name / f"{name}.py"
    program.parent.mkdir()
    program.write_text(
        "import numpy as np\nimport kiln.cute as cute\n\n@cute.kernel\ndef one(a: cute.Tensor):\n"
        "    a[0] = a[1] + 1\n\n@cute.jit\ndef run(a: cute.Tensor):\n    one(a).launch(grid=1, block=1)\n\nrun(np.zeros(2, np.int32))\n"
    )
    out = tmp_path / "model.json"
    assert main(["inspect", "--no-run", "--json", str(out), str(program)]) == 0, capsys.readouterr().err
    model = json.loads(out.read_text())["result"]
    assert shlex.split(model["command"])[2] == str(program)
    for kind in ("mlir", "llvm", "ptx", "sass"):
        texts = of_kind(model, kind)
        places = {(model["files"][p[0]]["path"], p[1]) for text in texts for p in text["places"] if p}
        assert (str(program), 6) in places and {path for path, _ in places} == {str(program)}, kind


@pytest.mark.parametrize("path", ["/a/b.py", "a%b", "%22", "%25", '"\\', "é\n\udcff", "100%", "%2g%2F"])
def test_paths_survive_ptx(path):
    assert source_paths.decoded(source_paths.encoded(path)) == path
    assert re.fullmatch(r"[ !#-\[\]-~]*", source_paths.encoded(path))


def test_sass_of_inlined_functions():
    text = """.text.k:
	//## File "/a/q.py", line 9 inlined at "/a/p.py", line 5
	//## File "/a/p.py", line 5
        /*0000*/              @!P0 MOV R1, 0x1 ;
.L_x_0:
	//## File "/a/p.py", line 6
        /*0010*/                   EXIT ;
"""
    read = source_lines.read_sass(text)
    assert list(zip(read.lines, read.places)) == [
        ("k:", None), (" @!P0 MOV R1, 0x1", ("/a/q.py", 9)), (".L_x_0:", None), ("      EXIT", ("/a/p.py", 6)),
    ]  # fmt: skip
    assert read.calls == {(("/a/q.py", 9), ("/a/p.py", 5))}
    assert [source_lines.instruction_of(line) for line in read.lines] == ["", "MOV", "", "EXIT"]


def test_stalls_are_those_of_the_last_profile_of_the_program(tmp_path):
    journal = Journal(tmp_path / ".kiln")
    line = {"file": HERE, "line": 3, "counts": {"barrier": 3, "wait": 3}}
    other = {"file": HERE, "line": 4, "counts": {"wait": 2}}
    elsewhere = {"file": "/a/p.py", "line": 4, "counts": {"wait": 2}}
    for kind, lines in (("ncu", [other]), ("ncu", [line, other]), ("static", [other]), ("ncu", [elsewhere])):
        more = {"prof_type": kind, "kernels": [{"lines": lines}]}
        journal.append(Record("profile", "k", "c", {}, None, "ok", more=more))
    found = inspect_model.stalls_of(str(tmp_path / "kernel.py"))
    assert found == [{("/a/p.py", 4): 100.0}, {(HERE, 3): 75.0, (HERE, 4): 25.0}, {(HERE, 4): 100.0}]
    assert inspect_model.stalls_of(str(tmp_path / "none" / "kernel.py")) == []
    (unit,) = inspect_model.build([Captured([compiled()], [])], "p.py", "", found)["units"]
    (column,) = [column for column in unit["columns"] if column["id"] == "stalls"]
    assert column["values"] == {"0:3": 75.0, "0:4": 25.0}


def test_what_runs_found_is_at_its_line(model):
    columns = {column["id"]: column for column in model["units"][0]["columns"]}
    file = next(n for n, one in enumerate(model["files"]) if one["path"] == HERE)
    at = f"{file}:{line_of('in one bank')}"
    assert columns["banks"]["values"] == {at: 31} and "32-way" in columns["banks"]["details"][at]
    assert set(columns["findings"]["values"]) == {at, f"{file}:{line_of('tile[31')}"}
    assert "two threads" in columns["findings"]["details"][at]


def compiled(entry="f", sass="", **more) -> Compiled:
    mlir = 'module {\n  "a.b"() : () -> () loc(#loc1)\n} loc(#loc)\n#loc = loc(unknown)\n#loc1 = loc("%s":1:1)\n' % HERE
    kernels = [{"name": "k", "file": HERE, "line": 1}]
    return Compiled(
        entry, "sm_90a", [("traced", mlir), ("same", mlir)], "", ".version 8.8\n", sass, "", kernels, **more
    )


def test_without_ptxas_there_is_a_page_without_sass():
    model = inspect_model.build([Captured([compiled()], [])], "p.py")
    assert {text["kind"] for text in model["units"][0]["texts"]} == {"mlir", "llvm", "ptx"}
    assert [text["title"] for text in of_kind(model, "mlir")] == [
        "traced"
    ]  # the pass that changed nothing is not there
    assert any("ptxas" in note for note in model["notes"])
    assert "sass" not in inspect_page.model_of(inspect_page.page(model))["units"][0]["columns"]


def test_two_configs_are_compared():
    code = '.text.k:\n\t//## File "%s", line 1\n        /*0000*/  MOV R%d, 0x1 ;\n        /*0010*/  %s ;\n' % (
        HERE,
        1,
        "EXIT",
    )
    other = code.replace("R1", "R7").replace("EXIT", "NOP ;\n        /*0020*/  EXIT")
    runs = [Captured([compiled(sass=text)], [], config={"n": n}) for n, text in ((1, code), (2, other))]
    model = inspect_model.build(runs, "p.py")
    assert [unit["config"] for unit in model["units"]] == ["n=1", "n=2"]
    diff = model["diffs"]["0:1"]["sass/sm_90a"]
    assert diff == [[1, 0, 2, 0, 2], [0, 2, 2, 2, 3], [1, 2, 3, 3, 4]]  # another register is no difference


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(model, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "p.html"
    file.write_text(inspect_page.page(model), encoding="utf-8")
    return file


def test_a_page_stands_alone(page):
    text = page.read_text()
    assert "default-src 'none'" in text and "{{" not in text.split("<body>")[0]
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]*)""", text.split('<script id="model"')[0]) == [
        "data:,"
    ]
    assert "http" not in text.replace("http-equiv", "").split('<script id="model"')[0]
    model = inspect_page.model_of(text)
    for unit in [{"texts": model["files"]}, *model["units"]]:
        for one in unit["texts"]:  # colours cover lines, no more
            for line, runs in zip(one["lines"], one["runs"], strict=True):
                assert sum(map(int, re.findall(r"\d+", runs))) == len(line)


def test_words_can_be_read_on_every_ground():
    """Contrasts of at least 4.5 to 1, in light and in dark."""
    base, own = inspect_page.part("base.css"), inspect_page.part("inspect.css")
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", base)
    colours = {name: (light, dark) for name, light, dark in found}
    on_marked = colours | {name: (light, dark) for name, light, dark in re.findall(r"--(c|o|soft): light-dark\((#\w{6}), (#\w{6})\)", own)}  # fmt: skip

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for table, grounds in (
        (colours, ("panel", "raised", "paper")),
        (on_marked, ("lit", "pin", "via", "added", "removed")),
    ):
        for ground in grounds:
            for name in ("ink", "soft", "k", "n", "t", "s", "d", "v", "c", "a", "o", "bad", "ember"):
                for theme in (0, 1):
                    one, other = sorted((luminance(table[name][theme]), luminance(table[ground][theme])))
                    assert (other + 0.05) / (one + 0.05) >= 4.5, (name, ground, ("light", "dark")[theme])


def lit(dom: str) -> dict[str, list[int]]:
    """The lines that are lit, by pane."""
    found = {}
    for kind, body in re.findall(r'<section class="pane" data-kind="(\w+)"(.*?)</section>', dom, re.DOTALL):
        found[kind] = [int(n) for n in re.findall(r'<div class="line[^"]* lit[^"]*"[^>]* data-n="(\d+)"', body)]
    return found


KEYS = """
  const wait = () => new Promise((done) => setTimeout(done, 50));
  while (document.querySelector("[aria-busy]")) await wait();
  const press = async (key) => { (document.activeElement ?? document.body).dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })); await wait(); };
  const lines = (kind) => [...document.querySelectorAll(`[data-kind=${kind}] .line.lit`)].map((line) => +line.dataset.n);
  const seen = {};
  document.querySelector("#py-LINE").click(); await wait();
  seen.clicked = { py: lines("py"), sass: lines("sass"), ptx: lines("ptx"), hash: location.hash };
  document.querySelector("[data-kind=py] .code").focus();
  await press("j"); seen.down = lines("py");
  await press("k"); seen.up = lines("py");
  await press("l"); seen.pane = document.activeElement.getAttribute("aria-label");
  await press("/"); seen.search = document.activeElement.id;
  document.activeElement.value = "cuda.launch_ex"; document.activeElement.dispatchEvent(new Event("input")); await wait();
  seen.hits = document.querySelector("#hits").textContent;
  await press("Escape"); seen.closed = document.querySelector("#search").hidden;
  await press("3"); seen.panes = [...document.querySelectorAll(".pane")].map((pane) => pane.dataset.kind);
  await press("?"); seen.help = document.querySelector("#help").open; document.querySelector("#help").close();
  document.querySelector("[data-kind=py] .code").focus();
  await press("Escape"); seen.free = [...document.querySelectorAll(".line.lit")].length;
  seen.before = getComputedStyle(document.body).backgroundColor;
  await press("t"); seen.after = getComputedStyle(document.body).backgroundColor;
  seen.requests = performance.getEntriesByType("resource").length;
  seen.unnamed = [...document.querySelectorAll("button, select, input, [role=listbox]")].filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).length;
  return seen;
"""


@needs_chromium
def test_lines_light_up_by_mouse_and_by_keys(page, model):
    line = line_of("in one bank")
    seen = json.loads(result_of(dom_of(page, script=KEYS.replace("LINE", str(line - 1)))))
    expected = [n for n, place in enumerate(of_kind(model, "ptx")[0]["places"]) if place == [0, line]]
    assert seen["clicked"]["py"] == [line - 1] and seen["clicked"]["hash"] == f"#py:{line}"
    assert seen["clicked"]["ptx"] == expected != []
    assert (seen["down"], seen["up"]) == ([line], [line - 1])
    assert (seen["pane"], seen["search"], seen["hits"], seen["closed"]) == ("MLIR", "query", "1 line", True)
    assert seen["panes"] in (["py", "mlir", "llvm", "ptx", "sass"], ["py", "mlir", "llvm", "ptx"])
    assert (seen["help"], seen["free"], seen["requests"], seen["unnamed"]) == (True, 0, 0, 0)
    assert seen["before"] != seen["after"]


@pytest.fixture(scope="module")
def product() -> Captured:
    """The product of `examples/hopper/step_4_roles.py`, compiled for Hopper."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTE_DSL_ARCH", "sm_90a")
        patch.setenv("CUTE_DSL_LINEINFO", "1")
        patch.setattr(capture, "live_registers", lambda cubin: "")  # the small kernel has them
        arrays = (np.zeros(shape, np.float16) for shape in ((128, 128), (256, 128), (128, 256)))
        with capturing() as kept:
            load("hopper/step_4_roles.py").gemm(*arrays)
    if not LONG:
        kept.compiled[0].states = kept.compiled[0].states[:1]
    return kept


def line_of_product(text: str) -> int:
    source = (EXAMPLES / "hopper/step_4_roles.py").read_text().splitlines()
    return next(n for n, line in enumerate(source, 1) if text in line)


@pytest.mark.quick(0)
@needs_nvdisasm
@needs_chromium
def test_c12_a_product_of_hopper(tmp_path, product):
    """The lines that a link lights are those of the line tables, in every pane, and the page is small."""
    made = inspect_model.build([product], "step_4_roles.py")
    file = tmp_path / "p.html"
    file.write_text(inspect_page.page(made), encoding="utf-8")
    assert file.stat().st_size < (5_000_000 if LONG else 1_000_000)
    line = line_of_product("cute.gemm(")
    seen = lit(dom_of(file, f"#py:{line}"))
    assert made["files"][0]["name"] == "step_4_roles.py"
    expected = {
        kind: [n for n, p in enumerate(of_kind(made, kind)[0]["places"]) if p == [0, line]]
        for kind in ("mlir", "ptx", "sass")
    }
    assert all(expected.values())
    assert seen == {"py": [line - 1], **expected}
    products = [n for n, text in enumerate(of_kind(made, "sass")[0]["lines"]) if "HGMMA" in text]
    assert set(products) & set(seen["sass"])


def test_an_outline_says_how_a_product_is_built(product):
    parts = outline.sections(product.compiled[0], product)
    at = {title: [(item.place and item.place[1], item.words) for item in items] for title, items in parts.items()}
    here = line_of_product
    assert (
        at["tensor maps"][0][0] == here("load_a, tma_a =")
        and "box 64 x 128 of f16, swizzle 128b" in at["tensor maps"][0][1]
    )
    assert at["tensor maps"][1][0] == here("load_b, tma_b =") and "box 64 x 256 of f16" in at["tensor maps"][1][1]
    assert at["launches"] == [(here("kernel.launch("), "gemm_kernel: grid 1 x 1 x 1, block 384 x 1 x 1, 197632 bytes of dynamic shared memory, min. blocks 1")]  # fmt: skip
    stages = {"tile_a = smem": 4 * 128 * 64 * 2, "tile_b = smem": 4 * 256 * 64 * 2, "pipe = pipeline": 4 * 2 * 8}
    assert [(line, int(words.split()[0])) for line, words in at["shared memory"]] == [
        *((here(text), size) for text, size in stages.items()),
        (None, sum(stages.values())),
    ]
    pipe = here("pipe = pipeline")
    assert at["pipelines"] == [(pipe, "PipelineTmaAsync: 4 stages, 8 mbarriers of 1 arrival and 8 arrivals, 49152 bytes a stage")]  # fmt: skip
    assert {(pipe, "4 x mbarrier of 1 arrival"), (pipe, "4 x mbarrier of 8 arrivals")} <= set(at["barriers"])
    assert at["MMAs"] == [(here("cute.gemm("), "4 x wgmma m64n256k16 f16 x f16, A k-major, B k-major")]
    roles = [words for _, words in at["roles"]]
    assert roles[0] == "if warp < WARPGROUP // 32:  registers 40"
    assert f"loads by TMA (line {here('cute.copy(load_a')}, {here('cute.copy(load_b')})" in roles[1]
    assert roles[2].startswith("else:  registers 232;") and f"MMAs (line {here('cute.gemm(')})" in roles[2]
    text = outline.outline(product.compiled[0], product)
    assert f"  {here('tile_a = smem'):>5}    65536 bytes, aligned to 1024" in text


STRUCTURE = """module {
  func.func @k() attributes {cute.kernel} {
    %c8 = arith.constant 8 : i32
    %c64 = arith.constant 64 : i32
    %0 = "cute.alloc_smem"() {alignment = 16 : i64, bytes = 320 : i64} : () -> !cute.ptr<i8, "smem", 16 : i64> loc("/a/p.py":1:1)
    %1 = "cute.cast_ptr"(%0) : (!cute.ptr<i8, "smem", 16 : i64>) -> !cute.ptr<i64, "smem", 16 : i64> loc("/a/p.py":2:1)
    %2 = "cute.ptr_add"(%0, %c64) : (!cute.ptr<i8, "smem", 16 : i64>, i32) -> !cute.ptr<i8, "smem", 16 : i64> loc("/a/p.py":3:1)
    %3 = "cute.ptr_add"(%2, %c8) : (!cute.ptr<i8, "smem", 16 : i64>, i32) -> !cute.ptr<i8, "smem", 8 : i64> loc("/a/p.py":4:1)
    return
  }
}
"""


def test_buffers_of_a_structure():
    one = dataclasses.replace(compiled(), states=[("traced", STRUCTURE)])
    found = [(item.place and item.place[1], item.words.strip(), item.depth) for item in outline.sections(one, Captured([], []))["shared memory"]]  # fmt: skip
    assert found == [(1, "320 bytes, aligned to 16", 0), (2, "64 bytes at 0", 1), (3, "256 bytes at 64", 1)]


TCGEN05 = """module {
  func.func @k() attributes {cute.kernel} {
    %c512 = arith.constant 512 : i32
    %c64 = arith.constant 64 : i64
    %idesc = arith.constant 272629776 : i32
    %0 = arith.ori %idesc, %flags : i32 loc("/a/p.py":2:1)
    "cute_nvgpu.tcgen05_alloc"(%p, %c512) {cta_group = 2 : i32} : (i64, i32) -> () loc("/a/p.py":1:1)
    "cute_nvgpu.tcgen05_mma"(%d, %a, %b, %0, %yes) {cta_group = 2 : i32, kind = "f16"} : (i32, i64, i64, i32, i1) -> () loc("/a/p.py":3:1)
    %1 = "cute_nvgpu.tcgen05_ld"(%d) {repeat = 32 : i32, shape = "32x32b"} : (i32) -> vector<32xi32> loc("/a/p.py":4:1)
    return
  }
}
"""


def test_tensor_memory_and_its_mmas():
    one = dataclasses.replace(compiled(), states=[("traced", TCGEN05)])
    found = outline.sections(one, Captured([], []))
    assert {
        title: [(item.place and item.place[1], item.words.strip()) for item in found[title]] for title in found
    } == {
        "tensor memory": [(1, "512 columns, a pair of CTAs")],
        "copies": [(4, "tcgen05.ld 32x32b x32")],
        "MMAs": [(3, "tcgen05.mma m256n256 f16, a pair of CTAs")],
    }


@needs_ptxas
def test_resources_as_a_table(product):
    head, row = resources.resources([product]).splitlines()
    found = dict(zip(head.replace("limited by", "limit").split(), re.split(r"\s{2,}", row)))
    used = product.compiled[0].kernels[0]
    assert found["registers"] == str(used["registers"]) and found["shared"] == "197632" and found["threads"] == "384"
    assert (found["blocks/SM"], found["occupancy"]) == ("1", "19 %")  # 12 of 64 warps


@needs_ptxas
def test_what_is_compiled_in_of_a_launch_is_known_without_one(product):
    """A program may only compile: the block is in the PTX, and with it the occupancy; the grid is dynamic."""
    waiting = dataclasses.replace(product, launches=[])
    head, row = resources.resources([waiting]).splitlines()
    found = dict(zip(head.replace("limited by", "limit").split(), re.split(r"\s{2,}", row)))
    assert (found["threads"], found["blocks/SM"], found["occupancy"]) == ("384", "1", "19 %")
    (kernel,) = inspect_model.build([waiting], "p")["units"][0]["kernels"]
    assert kernel["grid"] is None and kernel["block"] == [384, 1, 1] and kernel["most_smem"] == 227 * 1024
    ptx = ".visible .entry f(\n.param .u64 f_0\n)\n.reqntid 64, 2, 1\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n{ret;}"
    assert capture.static_launch(ptx, "f") == {"block": [64, 2, 1], "cluster": [2, 1, 1]}
    assert capture.static_launch(ptx, "g") == {}


@needs_chromium
def test_on_a_phone_panes_are_tabs(page, monkeypatch):
    monkeypatch.setattr(
        browser, "_FLAGS", tuple(f for f in browser._FLAGS if "size" not in f) + ("--window-size=500,900",)
    )
    script = """
      while (document.querySelector("#panes").hasAttribute("aria-busy")) await new Promise((done) => setTimeout(done, 50));
      const shown = () => [...document.querySelectorAll(".pane")].map((pane) => pane.dataset.kind);
      const press = (name) => [...document.querySelectorAll("#toggles button")].find((one) => one.textContent === name).click();
      const first = shown(); press("PTX"); const second = shown(); press("PTX"); const third = shown();
      press("Outline"); const outline = [shown(), document.querySelectorAll(".outline").length]; press("SASS"); press("Python");
      return { first, second, third, outline, last: shown(), search: document.querySelector("#search-open").offsetWidth > 0,
        wide: document.documentElement.scrollWidth <= innerWidth,
        cards: [...document.querySelectorAll(".fact")].every((card) => card.getBoundingClientRect().right <= innerWidth) };
    """
    seen = json.loads(result_of(dom_of(page, script=script)))
    assert (seen["first"], seen["second"], seen["third"], seen["last"]) == (["py"], ["ptx"], ["ptx"], ["py"])
    assert seen["outline"] == [[], 1] and seen["search"] and seen["wide"] and seen["cards"]


# --- the command -----------------------------------------------------------------------------------------------------


def test_programs_that_compile_nothing(tmp_path, capsys):
    file = tmp_path / "idle.py"
    file.write_text("raise KeyError('nothing')\n")
    assert main(["inspect", str(file), "--html", str(tmp_path / "p.html"), "--no-run"]) == 1
    said = capsys.readouterr().err
    assert "no kernel was compiled" in said and "KeyError: 'nothing'" in said
    assert not (tmp_path / "p.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["p.py"], "say what to look at"),
        (["--html", "p.html"], "name a program"),
        (["--html", "/no/such/folder/p.html", "p.py"], "no such folder"),
        (["--outline", "--arch", "sm_9", "p.py"], "sm_90a"),
        (["--arch", "sm_95", "p.py"], "--arch sm_95: there are"),
        (["--outline", "missing.py"], "no file missing.py"),
        ([HERE, "--outline", "--config", "1"], "for Cases"),
        (["--outline", "-"], "save it as a file"),
        (["--bank-conflicts", "--outline", "p.py"], "in the margin"),
    ],
)
def test_bad_command_lines(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(["inspect", *words])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_what_names_a_case(tmp_path):
    contract, program, plan = (tmp_path / name for name in ("kernel.py", "program.py", "plan.py"))
    contract.write_text("def kernel_fn(x): ...\ndef get_inputs(): ...\ndef reference_fn(x): ...\n")
    program.write_text("print('kernel_fn')\n")
    plan.write_text("class P(wb.KernelPlan): ...\n")
    assert [inspect.names_case(str(name)) for name in (contract, program, plan, tmp_path)] == [True, False, True, True]
    assert [inspect.names_case(name) for name in ("pkg.kernel", "pkg.kernel:Plan", f"{plan}:P", "none.txt/x")] == [True, True, True, False]  # fmt: skip


CONTRACT = """
import numpy as np
import kiln.cute as cute
from kiln import Float32, utils

configs = {"pad": [0, 1]}

@cute.kernel
def turn(a: cute.Tensor, b: cute.Tensor, pad: cute.Constexpr):
    x, y, _ = cute.arch.thread_idx()
    room = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout((16, 16), stride=(16 + pad, 1)), 16)
    room[y, x] = a[y, x]
    cute.arch.sync_threads()
    b[y, x] = room[x, y]  # read by columns

@cute.jit
def launch(a: cute.Tensor, b: cute.Tensor, pad: cute.Constexpr):
    turn(a, b, pad).launch(grid=(1, 1, 1), block=(16, 16, 1))

def kernel_fn(a, config=None):
    b = np.empty_like(a)
    launch(a, b, config["pad"])
    return b

def reference_fn(a): return a.T
def get_inputs(n=16): return [np.ones((n, n), np.float32)]
"""


@pytest.mark.quick(0)
@needs_ptxas
def test_a_case_is_looked_at_in_two_configs(tmp_path, capsys):
    file = tmp_path / "kernel.py"
    file.write_text(CONTRACT)
    words = ["inspect", str(file), "--resources", "--arch", "sm_80", "--quiet"]
    words += ["--json", str(tmp_path / "model.json"), "--no-run", "--config"]
    assert main([*words, "0", "--config", '{"pad": 1}']) == 0
    rows = [re.split(r"\s{2,}", row) for row in capsys.readouterr().out.splitlines()]
    assert [row[1] for row in rows] == ["config", "pad=0", "pad=1"]
    shared = rows[0].index("shared")
    assert [int(row[shared]) for row in rows[1:]] == [4 * 16 * 16, 4 * (15 * 17 + 16)]
    assert json.loads((tmp_path / "model.json").read_text())["result"]["units"]


@pytest.mark.skipif(not LONG, reason="four processes; set KILN_LONG_TESTS=1")
@needs_ptxas
def test_a_page_has_the_bank_conflicts_of_each_config(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(CONTRACT)
    page = tmp_path / "p.html"
    assert main(["inspect", str(file), "--html", str(page), "--config", "0", "--config", "1", "--arch", "sm_90a"]) == 0
    units = inspect_page.model_of(page.read_text())["units"]
    line = next(n for n, text in enumerate(CONTRACT.splitlines(), 1) if "read by columns" in text)
    lost = [next(c["values"] for c in unit["columns"] if c["id"] == "banks").get(f"0:{line}") for unit in units]
    assert lost[0] > lost[1]
